"""``torch.set_default_device`` and ``with torch.device(...)``: where tensors are made, by capture as by eager."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors, set_device


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.ones(2))


def module(x):
    made = Small()
    return [each * 0 for each in (*made.parameters(), *made.buffers())]


def in_a_decorated_function(x):
    @set_device("meta")
    def make():
        return torch.ones(2)

    return make(), torch.ones(2)


#: What makes a tensor. Each is called with a tensor on the CPU.
MAKERS = {
    "ones": lambda x: torch.ones(2),
    "empty": lambda x: torch.empty(2, 3).device,
    "empty_strided": lambda x: torch.empty_strided((2,), (1,)).zero_(),
    "tensor": lambda x: torch.tensor([1.0, 2.0]),
    "tensor of an int": lambda x: torch.tensor(3),
    "as_tensor of numbers": lambda x: torch.as_tensor([1, 2]),
    "as_tensor of a tensor": lambda x: torch.as_tensor(x),
    "asarray": lambda x: torch.asarray([1, 2]),
    "scalar_tensor": lambda x: torch.scalar_tensor(2.0),
    "arange": lambda x: torch.arange(3),
    "linspace": lambda x: torch.linspace(0, 1, 3),
    "eye": lambda x: torch.eye(2),
    "full": lambda x: torch.full((2,), 3.0),
    "zeros": lambda x: torch.zeros(x.shape),
    "rand": lambda x: torch.rand(2) * 0,
    "randint": lambda x: torch.randint(0, 1, (2,)),
    "randperm": lambda x: torch.randperm(1),
    "tril_indices": lambda x: torch.tril_indices(2, 2),
    "hann_window": lambda x: torch.hann_window(4),
    "fftfreq": lambda x: torch.fft.fftfreq(4),
    "device=None": lambda x: torch.ones(2, device=None),
    "device given": lambda x: torch.ones(2, device="cpu"),
    "another device given": lambda x: torch.ones(2, device="meta"),
    "the input's device": lambda x: torch.ones(2, device=x.device),
    "new_zeros": lambda x: x.new_zeros(2),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "zeros_like": lambda x: torch.zeros_like(x),
    "rand_like": lambda x: torch.rand_like(x) * 0,
    "operator": lambda x: torch.ops.aten.ones.default([2]),
    "Tensor()": lambda x: torch.FloatTensor([1.0]),
    "one_hot": lambda x: F.one_hot(x.long(), 3),
    "the default": lambda x: torch.get_default_device(),
    "the default, named": lambda x: torch.ones(2, device=torch.get_default_device()),
    "module": module,
    "initialised": lambda x: nn.init.constant_(torch.empty(2, 2), 2.0),
    "in a decorated function": in_a_decorated_function,
    "method": lambda x: (x + 1).split(1)[0],
}


def _with(*devices):
    stack = contextlib.ExitStack()
    for device in devices:
        stack.enter_context(torch.device(device))
    return stack


@contextlib.contextmanager
def _set(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


AROUND = {
    "nothing": contextlib.nullcontext,
    "meta": lambda: _with("meta"),
    "cpu": lambda: _with("cpu"),
    "meta in cpu": lambda: _with("cpu", "meta"),
    "cpu in meta": lambda: _with("meta", "cpu"),
    "set to meta": lambda: _set("meta"),
    "set to cpu": lambda: _set("cpu"),
}


def described(result):
    """What two results are compared by: structure, devices, dtypes, values that exist."""
    if isinstance(result, torch.Tensor):
        values = None if result.is_meta or isinstance(result, nn.Parameter) else result.tolist()
        return type(result), result.device, result.dtype, tuple(result.shape), values
    if isinstance(result, (tuple, list)):
        return [described(item) for item in result]
    return result


def inside(make, *devices):
    if len(devices) == 1:

        def fn(x):
            with torch.device(devices[0]):
                made = make(x)
            return made, torch.ones(1), x + 1
    else:

        def fn(x):
            with torch.device(devices[0]):
                before = torch.zeros(1)
                with torch.device(devices[1]):
                    made = make(x)
                after = torch.zeros(1)
            return made, before, after, torch.ones(1), x + 1

    return fn


@pytest.mark.parametrize("name", MAKERS)
def test_set_around_the_call(capture, name):
    make = MAKERS[name]
    c = capture(lambda x: (make(x), x + 1))
    x = torch.ones(2)
    for around in AROUND:
        with AROUND[around]():
            assert described(c(x)) == described(c.fn(x)), around
    assert not c.report.fallbacks
    seen = len(c.report.recompiles)
    assert seen == len(AROUND) - 3, "each stack of devices is one entry, however it came to be"
    for around in reversed(AROUND):
        with AROUND[around]():
            assert described(c(x)) == described(c.fn(x)), around
    assert len(c.report.recompiles) == seen, "back again is a hit"


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("devices", [("meta",), ("cpu",), ("meta", "cpu"), ("cpu", "meta")], ids="-".join)
def test_entered_inside(capture, name, devices):
    fn = inside(MAKERS[name], *devices)
    c = capture(fn)
    x = torch.ones(2)
    for around in ("nothing", "meta", "nothing", "set to cpu", "meta"):
        with AROUND[around]():
            assert described(c(x)) == described(fn(x)), around
    assert not c.report.fallbacks
    assert not c.report.breaks
    assert torch._C._len_torch_function_stack() == 0


#: Those that no short call makes: sparse and quantised ones, and those with arguments of many kinds.
_BREAKING = ("sparse", "quantized", "nested")


@pytest.mark.parametrize("fn", sorted((f for f in _device_constructors()), key=lambda f: f.__name__),
                         ids=lambda f: f.__name__)  # fmt: skip
def test_every_constructor_of_torch(capture, fn):
    """PyTorch's own list decides; a call that capture leaves to eager gets the device there."""
    given = {
        "empty_permuted": ((2, 3), (1, 0)), "empty_strided": ((2,), (1,)), "full": ((2,), 1.0), "linspace": (0, 1, 2),
        "logspace": (0, 1, 2), "randint": (0, 3, (2,)), "range": (0, 2), "tensor": ([1.0],), "as_tensor": ([1.0],),
        "asarray": ([1.0],), "tril_indices": (2, 2), "triu_indices": (2, 2), "scalar_tensor": (1.0,),
        "sparse_coo_tensor": ([[0], [1]], [1.0], (2, 2)), "sparse_compressed_tensor": ([0, 1], [0], [1.0], (1, 1)),
        "sparse_csr_tensor": ([0, 1], [0], [1.0], (1, 1)), "sparse_csc_tensor": ([0, 1], [0], [1.0], (1, 1)),
        "sparse_bsr_tensor": ([0, 1], [0], [[[1.0]]], (1, 1)), "sparse_bsc_tensor": ([0, 1], [0], [[[1.0]]], (1, 1)),
        "nested_tensor": ([[1.0]],),
    }  # fmt: skip
    args = given.get(fn.__name__, (3,))
    keywords = {"layout": torch.sparse_csr} if fn is torch.sparse_compressed_tensor else {}

    def call(x):
        return x + 1, fn(*args, **keywords).device

    c = capture(call)
    for device in ("cpu", "meta", "cpu"):
        with torch.device(device):
            try:
                theirs = call(torch.ones(2, device="cpu"))[1]
            except (RuntimeError, NotImplementedError, TypeError):
                pytest.skip(f"{fn.__name__} has no tensors on {device}")
            assert c(torch.ones(2, device="cpu"))[1] == theirs
    assert bool(c.report.breaks) == fn.__name__.startswith(_BREAKING) or fn.__name__.startswith(_BREAKING)


def test_breaks_inside(capture):
    def fn(x):
        a = torch.ones(1)
        with torch.device("meta"):
            b = torch.ones(1)
            n = x.sum().item()
            c = torch.ones(1)
            with torch.device("cpu"):
                m = x.sum().item()
                d = torch.ones(1)
            e = torch.ones(1)
        return a, b, c, d, e, torch.ones(1), n + m

    c = capture(fn)
    for around in ("nothing", "meta", "nothing", "cpu in meta", "set to meta"):
        with AROUND[around]():
            for _ in range(2):
                before = torch._C._len_torch_function_stack()
                assert described(c(torch.ones(2, device="cpu"))) == described(fn(torch.ones(2, device="cpu")))
                assert torch._C._len_torch_function_stack() == before
    assert not c.report.fallbacks


def test_exceptions_leave_the_stack_as_eager_does(capture):
    def fn(x, raises):
        made = []
        try:
            with torch.device("meta"):
                made.append(torch.ones(1))
                if raises:
                    raise ValueError("no")
                made.append(torch.ones(1))
        except ValueError:
            made.append(torch.ones(1))
        return made, x + 1

    c = capture(fn)
    for raises in (False, True, False, True):
        assert described(c(torch.ones(2), raises)) == described(fn(torch.ones(2), raises))
        assert torch._C._len_torch_function_stack() == 0

    def fails(x):
        with torch.device("meta"):
            raise ValueError(str(x.shape))

    c = capture(fails)
    for _ in range(4):
        with pytest.raises(ValueError, match="2"):
            c(torch.ones(2))
        assert torch._C._len_torch_function_stack() == 0


def test_set_inside(capture):
    def fn(x):
        torch.set_default_device("meta")
        made = torch.ones(1)
        torch.set_default_device(None)
        return made, torch.ones(1), x + 1

    c = capture(fn)
    for _ in range(3):
        assert described(c(torch.ones(2))) == described(fn(torch.ones(2)))


def test_a_graph_that_raises_leaves_the_stack(capture):
    def fn(x, i):
        with torch.device("meta"):
            made = torch.ones(1)
        return x[i], made

    c = capture(fn)
    with torch.device("cpu"):
        c(torch.ones(2), torch.tensor([1]))
        with pytest.raises(IndexError):
            c(torch.ones(2), torch.tensor([5]))
        assert torch._C._len_torch_function_stack() == 1


class Counts(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counts.calls += func is torch.ones
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("order", ["inner", "outer", "alone"])
def test_other_modes_see_eager(capture, order):
    def fn(x):
        return x + torch.ones(2)

    c = capture(fn)
    x = torch.ones(2)
    c(x)
    modes = {"inner": [torch.device("cpu"), Counts()], "outer": [Counts(), torch.device("cpu")], "alone": [Counts()]}
    with contextlib.ExitStack() as stack:
        for mode in modes[order]:
            stack.enter_context(mode)
        before = Counts.calls
        fn(x)
        seen = Counts.calls - before
        c(x)
        assert Counts.calls - before == 2 * seen
    assert "torch-function mode" in c.report.fallbacks[0].reason


def test_nothing_is_asked_without_modes(capture):
    c = capture(lambda x: x + torch.ones(2))
    c(torch.ones(2))
    (captured,) = [entry.tag for entry in __import__("dynamo_capture")._native.entries(c.fn.__code__)]
    assert not any("default device" in str(guard) for guard in captured.guards)
