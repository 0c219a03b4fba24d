"""Tensor and global-state guards, on the native paths and on the attribute paths."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


def load_hook(native):
    """hook.py without the package."""
    name = "dynamo_capture.hook"
    if name not in sys.modules:
        package = type(sys)("dynamo_capture")
        package._native = native
        path = Path(__file__).parents[2] / "src" / "dynamo_capture" / "hook.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        saved = sys.modules.get("dynamo_capture")
        sys.modules["dynamo_capture"] = package
        try:
            spec.loader.exec_module(module)
        finally:
            if saved is None:
                del sys.modules["dynamo_capture"]
            else:
                sys.modules["dynamo_capture"] = saved
        sys.modules[name] = module
    return sys.modules[name]


@pytest.fixture(params=["native", "attributes"])
def mode(request, native):
    load_hook(native).init_torch()
    native.use_native(request.param == "native", request.param == "native")
    yield request.param
    native.use_native(True, True)


def tensor_tree(native, example, **options):
    tree = native.GuardTree()
    tree.check_tensor(tree.local(0, "x"), example, **options)
    return tree


def holds(tree, value):
    result = tree.check([value])
    assert (tree.explain_failure([value]) is None) is result
    return result


def test_the_native_paths_agree_with_this_torch(native):
    """On the versions we support the fast paths must be in use, or the speed claims are void."""
    assert load_hook(native).init_torch() == {"tensor": True, "state": True}


class Sub(torch.Tensor):
    pass


def base():
    return torch.zeros(3, 4)


SAME = [
    lambda: base(),
    lambda: torch.ones(5, 4)[:3],
    lambda: torch.ones(5, 4)[2:],
]
DIFFERENT = {
    "dtype": lambda: base().double(),
    "bfloat16": lambda: base().bfloat16(),
    "shape": lambda: torch.zeros(4, 3),
    "dim": lambda: torch.zeros(3, 4, 1),
    "scalar": lambda: torch.zeros(()),
    "strides": lambda: torch.zeros(4, 3).t(),
    "requires_grad": lambda: base().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(base(), requires_grad=False),
    "subclass": lambda: base().as_subclass(Sub),
    "meta": lambda: torch.zeros(3, 4, device="meta"),
    "sparse": lambda: base().to_sparse(),
    "neg": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj().imag.contiguous()._neg_view(),
    "inference": lambda: inference_tensor(),
    "none": lambda: None,
    "list": lambda: [[0.0] * 4] * 3,
}


def inference_tensor():
    with torch.inference_mode():
        return base()


@pytest.mark.parametrize("make", SAME)
def test_same_metadata_passes(native, mode, make):
    assert holds(tensor_tree(native, base()), make())


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_metadata_fails(native, mode, what):
    assert not holds(tensor_tree(native, base()), DIFFERENT[what]())


@pytest.mark.parametrize("what", [w for w in DIFFERENT if w not in ("none", "list")])
def test_each_kind_matches_itself(native, mode, what):
    make = DIFFERENT[what]
    assert holds(tensor_tree(native, make()), make())
    assert not holds(tensor_tree(native, make()), base())


def test_conj(native, mode):
    x = torch.zeros(3, dtype=torch.complex64)
    tree = tensor_tree(native, x)
    assert holds(tree, torch.ones(3, dtype=torch.complex64))
    assert not holds(tree, x.conj())
    assert not holds(tensor_tree(native, x.conj()), x)
    assert holds(tensor_tree(native, x.conj()), x.conj())


def test_changes_in_place_are_seen(native, mode):
    x = base()
    tree = tensor_tree(native, x)
    assert holds(tree, x)
    x.requires_grad_()
    assert not holds(tree, x)
    x.requires_grad_(False)
    assert holds(tree, x)
    x.data = torch.zeros(2)
    assert not holds(tree, x)
    x.data = base()
    assert holds(tree, x)
    x.transpose_(0, 1)
    assert not holds(tree, x)


def test_dynamic_sizes(native, mode):
    tree = tensor_tree(native, base(), sizes=[None, 4])
    for n in (2, 3, 100):
        assert holds(tree, torch.zeros(n, 4))
    for bad in (torch.zeros(1, 4), torch.zeros(0, 4), torch.zeros(3, 5), torch.zeros(3), torch.zeros(4, 3).t(),
                torch.zeros(6, 4)[::2]):
        assert not holds(tree, bad)
    tree = tensor_tree(native, base(), sizes=[None, 4], min_size=0)
    assert holds(tree, torch.zeros(0, 4))
    assert holds(tree, torch.zeros(1, 4))


def test_dynamic_strides(native, mode):
    x = torch.zeros(4, 3).t()
    tree = tensor_tree(native, x, sizes=[3, None])
    assert not holds(tree, torch.zeros(5, 3).t().contiguous())
    tree = tensor_tree(native, x, sizes=[3, None], strides=[1, None])
    assert holds(tree, torch.zeros(5, 3).t())
    assert not holds(tree, torch.zeros(3, 5))


def test_storage_offset_is_an_option(native, mode):
    x = torch.zeros(10)
    assert holds(tensor_tree(native, x[:4]), x[2:6])
    tree = tensor_tree(native, x[2:6], storage_offset=True)
    assert holds(tree, x[2:6])
    assert not holds(tree, x[:4])


def test_requires_grad_can_be_given(native, mode):
    tree = tensor_tree(native, base(), requires_grad=True)
    assert not holds(tree, base())
    assert holds(tree, base().requires_grad_())


def test_shape_programs_read_tensors(native, mode):
    tree = native.GuardTree()
    x = tree.local(0, "x")
    tree.check_shape([("size", x, 0), ("size", x, -1), "*", ("numel", x), "==", ("stride", x, 0), 4, "==", "and"])
    assert tree.describe() == ["(((L['x'].size(0) * L['x'].size(-1)) == L['x'].numel()) and (L['x'].stride(0) == 4))"]
    assert holds(tree, base())
    assert not holds(tree, torch.zeros(3, 5))
    assert not holds(tree, torch.zeros(3, 2, 4)[:, 0])
    assert not holds(tree, 3)
    tree = native.GuardTree()
    tree.check_shape([("size", tree.local(0), 5), 0, ">="])
    assert not holds(tree, base())
    tree = native.GuardTree()
    tree.check_shape([("offset", tree.local(0)), 4, "=="])
    assert holds(tree, torch.zeros(5, 4)[1:])


def test_no_overlap(native, mode):
    tree = native.GuardTree()
    a, b, c = (tree.local(i) for i in range(3))
    tree.check_no_overlap([a], [b, c])
    x = torch.zeros(10)
    free = torch.zeros(3)
    assert holds_all(tree, free, x, x)
    assert holds_all(tree, x[:5], x[5:], free)
    assert holds_all(tree, torch.zeros(0), torch.zeros(0), free)
    assert not holds_all(tree, x[:5], x[4:], free)
    assert not holds_all(tree, x, free, x)
    assert not holds_all(tree, x, x.view(2, 5).t(), free)
    assert not holds_all(tree, x, 5, free)
    tree = native.GuardTree()
    nodes = [tree.local(i) for i in range(40)]
    tree.check_no_overlap(nodes[:2], nodes[2:])
    rows = list(torch.zeros(40, 3))
    assert holds_all(tree, *rows)
    assert not holds_all(tree, *rows[:39], rows[1])


def holds_all(tree, *values):
    result = tree.check(values)
    assert (tree.explain_failure(values) is None) is result
    return result


def test_grad_accessor(native, mode):
    x = base().requires_grad_()
    tree = native.GuardTree()
    tree.check_id(tree.grad(tree.local(0)), None)
    assert holds(tree, x)
    x.sum().backward()
    assert not holds(tree, x)


def test_explanation_names_the_difference(native, mode):
    tree = tensor_tree(native, base(), reason="foo.py:1")
    text = tree.explain_failure([torch.zeros(4, 3)])
    assert "[3, 4]" in text and "[4, 3]" in text and text.endswith("[foo.py:1]")


def test_misuse(native, mode):
    tree = native.GuardTree()
    x = tree.local(0)
    with pytest.raises(TypeError, match="must be a tensor"):
        tree.check_tensor(x, 5)
    with pytest.raises(ValueError, match="1 sizes for a tensor of 2"):
        tree.check_tensor(x, base(), sizes=[3])
    with pytest.raises(ValueError, match="negative"):
        tree.check_tensor(x, base(), strides=[-3, 1])
    with pytest.raises(ValueError, match="no node"):
        tree.check_tensor(9, base())
    assert len(tree) == 0


def test_read_tensor(native, mode):
    x = torch.zeros(6, 4)[1:].t().requires_grad_()
    assert native.read_tensor(x) == {"sizes": [4, 5], "strides": [1, 4], "offset": 4, "requires_grad": 1}


# ---------------------------------------------------------------- global state


class Function(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatch(torch.utils._python_dispatch.TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Setting:
    def __init__(self, setter, new, old):
        self.setter, self.new, self.old = setter, new, old

    def __enter__(self):
        self.setter(self.new)

    def __exit__(self, *exc):
        self.setter(self.old)


STATES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "function mode": Function,
    "dispatch mode": Dispatch,
    "no torch function": torch._C.DisableTorchFunctionSubclass,
    "default device": lambda: torch.device("meta"),
    "default dtype": lambda: Setting(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: Setting(torch.use_deterministic_algorithms, True, False),
    "warn only": lambda: Setting(lambda on: torch.use_deterministic_algorithms(on, warn_only=on), True, False),
    "autocast dtype": lambda: Setting(
        lambda d: torch.set_autocast_dtype("cpu", d), torch.float16, torch.bfloat16
    ),
}


@pytest.mark.parametrize("what", STATES)
def test_global_state(native, mode, what):
    outside = native.GuardTree()
    outside.check_global_state()
    assert outside.check([])
    with STATES[what]():
        assert not outside.check([])
        assert "changed: " in outside.explain_failure([])
        inside = native.GuardTree()
        inside.check_global_state()
        assert inside.check([])
    assert outside.check([])
    assert not inside.check([])


def test_global_state_is_per_thread(native, mode):
    """Grad mode is thread-local: another thread starts with its own."""
    tree = native.GuardTree()
    tree.check_global_state()
    results = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: results.append(tree.check([])))
        thread.start()
        thread.join()
        results.append(tree.check([]))
    assert results == [True, False]


def test_tensor_guards_hold_no_tensor(native, mode):
    x = base()
    alive = weakref.ref(x)
    tree = tensor_tree(native, x)
    tree.explain_failure([torch.zeros(2)])
    del x
    assert alive() is None
    assert holds(tree, base())


def test_nothing_of_the_compiler_is_imported():
    code = (
        "import sys, importlib.util, types\n"
        "import torch\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from conftest import native\n"
        "from test_tensor_guards import load_hook\n"
        "load_hook(native).init_torch()\n"
        "t = native.GuardTree(); t.check_tensor(t.local(0), torch.zeros(3)); t.check_global_state()\n"
        "assert t.check([torch.ones(3)])\n"
        "bad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))]\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def conjugated():
    return torch.randn(2, 3, dtype=torch.complex64).conj()


def inference():
    with torch.inference_mode():
        return torch.ones(2, 3)


@pytest.mark.parametrize(
    ("wanted", "found", "words"),
    [
        (torch.ones(2, 3), torch.ones(2, 4), "size [2, 3], now [2, 4]"),
        (torch.ones(2, 3), torch.ones(6), "size [2, 3], now [6]"),
        (torch.ones(3, 3), torch.ones(3, 3).t(), "stride [3, 1], now [1, 3]"),
        (torch.ones(2, 3), torch.ones(2, 3).double(), "dtype torch.float32, now torch.float64"),
        (torch.ones(2, 3), torch.ones(2, 3, device="meta"), "device cpu, now meta"),
        (torch.ones(2, 3), torch.ones(2, 3).to_sparse(), "layout torch.strided, now torch.sparse_coo; stride [3, 1], now [0, 0]"),
        (torch.ones(2, 3), torch.ones(2, 3).requires_grad_(), "requires_grad False, now True"),
        (torch.ones(2, 3), torch.nn.Parameter(torch.ones(2, 3), False), "type Tensor, now Parameter"),
        (conjugated().resolve_conj(), conjugated(), "conjugate False, now True"),
        (torch.ones(2, 3), inference(), "inference tensor False, now True"),
        (torch.ones(2, 3), torch.ones(1, 3).long(), "dtype torch.float32, now torch.int64; size [2, 3], now [1, 3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_told_in_words(native, mode, wanted, found, words):
    tree = native.GuardTree()
    tree.check_tensor(tree.local(0, "x"), wanted)
    text = tree.explain_failure([found])
    assert text == f"L['x']: {words}"
    assert "scalar_type" not in text and "keys" not in text
