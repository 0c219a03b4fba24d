"""What a tensor is asked about itself, beyond the metadata that guards check: always the real tensor's answer.

Generated: every attribute of ``torch.Tensor`` that is no method, and every method that gives something other than tensors
when it is called without arguments, asked of inputs of many kinds and of what is computed of them.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn


def bumped():
    t = torch.ones(3, 4)
    t.add_(1)
    return t.add_(1)


def inference():
    with torch.inference_mode():
        return torch.ones(3, 4)


def retaining():
    t = torch.ones(3, 4, requires_grad=True) * 2
    t.retain_grad()
    return t


KINDS = {
    "plain": lambda: torch.arange(12.0).reshape(3, 4).clone(),
    "bumped": bumped,
    "view": lambda: torch.arange(24.0).reshape(6, 4)[1:4],
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "conjugate": lambda: torch.ones(3, 4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(3, 4, dtype=torch.complex64).conj().imag,
    "leaf": lambda: torch.ones(3, 4, requires_grad=True),
    "computed": lambda: torch.ones(3, 4, requires_grad=True) * 2,
    "retaining": retaining,
    "second result": lambda: torch.ones(2, 3, 4, requires_grad=True).unbind()[1],
    "parameter": lambda: nn.Parameter(torch.ones(3, 4)),
    "integer": lambda: torch.ones(3, 4, dtype=torch.int64),
    "inference": inference,
}
#: Not asked: objects that are compared otherwise, and addresses of what is computed.
LEFT_OUT = frozenset(
    ("__class__", "__dict__", "__doc__", "__module__", "__weakref__", "data", "T", "H", "mT", "mH", "real", "imag",
     "_grad", "_base", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks", "_grad_fn", "grad", "grad_fn",
     "__cuda_array_interface__", "__hash__", "__init__", "__new__", "__reduce__", "__init_subclass__", "__iter__",
     "__subclasshook__", "__sizeof__", "__dir__", "__repr__", "__str__", "backward", "__array__", "__getstate__",
     "__dlpack__", "numpy", "tolist", "__dlpack_device__", "__annotations__", "_fix_weakref")
)  # fmt: skip


def questions():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(set(dir(torch.Tensor)) - LEFT_OUT):
            if not callable(getattr(torch.Tensor, name, None)):
                yield name
            elif not name.endswith("_") or name == "__len__":
                try:
                    answer = getattr(torch.ones(3, 4), name)()
                except Exception:
                    continue
                items = answer if isinstance(answer, (tuple, list)) else (answer,)
                if not any(isinstance(item, torch.Tensor) for item in items):
                    yield f"{name}()"
    yield from ("grad_fn is None", "_base is None", "grad is None")


def asking(expression):
    names: dict = {}
    lines = ("def f(x):", "    y = x * 1", "    try:", f"        v = {expression}", "    except Exception as e:",
             "        v = type(e).__name__", "    return y + 1, v")  # fmt: skip
    exec("\n".join(lines), names)
    return names["f"]


def shown(value):
    plain = (int, float, bool, str, type(None), tuple, torch.Size, torch.dtype, torch.device, torch.layout)
    return value if type(value) in plain else type(value).__name__


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question", list(questions()))
@pytest.mark.parametrize("of", ["x", "(x * 2)", "x[1:]", "x.t()"])
def test_questions(question, of, capture):
    if of != "x" and question in ("data_ptr()", "const_data_ptr()", "_use_count()"):
        pytest.skip("an address or a count of references of its own in every run")
    fn = asking(f"{of}.{question}")
    compiled = capture(fn, strict=False)  # one for all kinds: what the first is told is guarded
    for kind, make in KINDS.items():
        x = make()
        assert shown(compiled(x)[1]) == shown(fn(x)[1]), kind


@pytest.mark.parametrize("name", ["names", "is_quantized_", "no_such_attribute"])
def test_attributes_that_this_version_may_lack(name, capture):
    """PyTorch 2.13 has no named tensors any more; an older one's programs ask for them inside ``try``."""
    for expression in (f"x.{name}", f"hasattr(x, {name!r})", f"getattr(x * 2, {name!r}, 7)"):
        fn = asking(expression)
        compiled = capture(fn, strict=False, fullgraph=True)
        assert shown(compiled(torch.ones(3))[1]) == shown(fn(torch.ones(3))[1])


@pytest.mark.parametrize("question", ["is_conj", "is_neg", "is_inference"])
def test_functions_that_ask(question, capture):
    fn = asking(f"torch.{question}(x)")
    fn.__globals__["torch"] = torch
    compiled = capture(fn, fullgraph=True, dynamic=False)
    for kind, make in KINDS.items():
        x = make()
        assert compiled(x)[1] is fn(x)[1], kind


CONJUGATES = ("x.conj().is_conj()", "torch.is_conj(torch.conj(x))", "x.conj().imag.is_neg()", "x.mH.is_conj()",
              "x.conj().resolve_conj().is_conj()", "(x * 2).conj().conj().is_conj()", "x.adjoint()[:1].is_conj()",
              "torch.is_neg(torch.imag(x.conj()))", "x.real.is_conj()", "torch.view_as_complex(x.abs()).is_conj()")  # fmt: skip


@pytest.mark.parametrize("question", CONJUGATES)
def test_conjugates(question, capture):
    """A conjugate and its imaginary part are views with a bit set, which their stand-ins do not have."""
    fn = asking(question)
    fn.__globals__["torch"] = torch
    compiled = capture(fn, strict=False)
    for x in (torch.randn(2, 2, dtype=torch.complex64), torch.randn(2, 2, dtype=torch.complex64).conj()):
        assert shown(compiled(x)[1]) == shown(fn(x)[1])


def writes_to_what_it_made(x):
    y = x.clone()
    y.add_(1)
    before = y._version
    y[1:].mul_(2)
    return y, before, y._version


def writes_to_its_input(x):
    x.add_(1)
    x.mul_(2)
    return x * 1, x._version


def detaches(x):
    y = x.detach()
    return y * 1, y._version, y._is_view(), y._base is None


@pytest.mark.parametrize("fn", [writes_to_what_it_made, writes_to_its_input, detaches], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("leaf", "parameter")])
def test_versions(fn, kind, capture):
    def run(fn):
        try:
            return fn(KINDS[kind]())[1:]
        except RuntimeError as error:
            return type(error)

    assert run(capture(fn, strict=False)) == run(fn)


NAMED = {
    "made in the region": (lambda x: (x.rename("A", "B") + 1, x * 2), lambda x: x),
    "read in the region": (lambda x: (x.rename("A", "B").names, (x * 2).rename("A", "B").align_to("B", "A")), lambda x: x),
    "an input": (lambda x: x * 2 + 1, lambda x: x.rename("A", "B")),
    "written in place": (lambda x: (x * 2).rename_("A", "B").add_(1), lambda x: x),
}


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="PyTorch 2.13 has no named tensors any more")
@pytest.mark.parametrize("name", NAMED)
def test_names_of_dimensions(name, capture):
    """The graph's tensors have none; they were lost. A call without names, captured before, does not serve them."""
    fn, make = NAMED[name]
    compiled = capture(fn, strict=False)
    if name == "an input":
        compiled(torch.ones(2, 3))
    for _ in range(2):
        x = make(torch.arange(6.0).reshape(2, 3))
        got, wanted = compiled(x), fn(x)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, wanted)), strict=True):
            if isinstance(b, torch.Tensor):
                assert a.names == b.names and torch.equal(a.rename(None), b.rename(None))
            else:
                assert a == b
    assert "named dimensions" in str(compiled.report)
