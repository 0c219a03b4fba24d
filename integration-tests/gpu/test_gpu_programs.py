"""Small programs on a GPU: functions, modules, breaks, sizes that change, what a recompilation must notice."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from judge import assert_matches
from on_gpu import DEVICE, all_generated, gpu_case
from reports import captured, extern_names, kernel_count
from torch import nn
from zoo import tensors

import compile_api
import inductor_gen
from prims.errors import Unsupported


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


def randn(*shape, **kw):
    return torch.randn(*shape, device=DEVICE, **kw)


def double_of(model):
    """The eager module for any dtype: assert_matches also runs it in float64."""
    return lambda x: model.double()(x) if x.dtype == torch.float64 else model.float()(x)


# --- functions and modules ------------------------------------------------------------------------------------------


def test_pointwise_functions_and_decorator():
    @compile_api.compile(fullgraph=True)
    def first(x, y):
        return torch.sin(x) + torch.cos(y)

    def second(x, y):
        return (x * y).relu() / (y.abs() + 1)

    assert_matches(first, lambda x, y: torch.sin(x) + torch.cos(y), randn(10, 10), randn(10, 10))
    all_generated(first.report(), graphs=1, kernels=1)
    compiled = compile_api.compile(second, fullgraph=True)
    assert_matches(compiled, second, randn(10, 10), randn(10, 10))
    all_generated(compiled.report(), graphs=1, kernels=1)


def test_modules():
    def inner():
        return nn.Sequential(nn.Linear(100, 10), nn.ReLU())

    for model in (inner().to(DEVICE), nn.Sequential(inner(), nn.Linear(10, 7)).to(DEVICE)):
        compiled = compile_api.compile(model, fullgraph=True)
        assert_matches(compiled, double_of(model), randn(8, 100))
        all_generated(compiled.report(), graphs=1)
        assert extern_names(compiled.report()) <= {"aten.addmm", "aten.mm"}


@pytest.mark.parametrize("numel", [1, 10_000, 1 << 22])
def test_twenty_rounds_of_sine(numel):
    case = gpu_case("sine", length=numel)
    compiled = compile_api.compile(case.model, fullgraph=True)
    assert_matches(compiled, case.model, *case.args)
    all_generated(compiled.report(), graphs=1, kernels=1)


FUSED = {
    "softmax": (lambda x: torch.softmax(x * 2, -1), 1),
    "column_softmax": (lambda x: torch.softmax(x, 0), 1),
    "layer_norm": (lambda x: nn.functional.layer_norm(x + 1, (x.shape[-1],)).relu(), 1),
    "rms_norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), 1),
    "gelu": (lambda x: nn.functional.gelu(x) * x.tanh() + x.exp(), 1),
    "sum": (lambda x: x.sin().sum(-1), 1),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), 1),
    "argmax": (lambda x: x.argmax(-1), 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(32, 64), (33, 1000), (5, 20_001), (3, 70_000)], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_reductions_and_their_surroundings(name, shape, dtype):
    function, kernels = FUSED[name]
    compiled = compile_api.compile(function, fullgraph=True)
    x = randn(*shape, dtype=dtype)
    assert_matches(compiled, function, x, exact=name == "argmax")
    assert kernel_count(compiled.report()) == kernels
    all_generated(compiled.report())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy(dtype):
    target = torch.randint(0, 5003, (300,), device=DEVICE)
    function = lambda x: nn.functional.cross_entropy(x, target)
    compiled = compile_api.compile(function, fullgraph=True)
    assert_matches(compiled, function, randn(300, 5003, dtype=dtype))
    all_generated(compiled.report())


def test_gather_scatter_and_embedding():
    index = torch.randint(0, 50, (300,), device=DEVICE)

    def function(table, x):
        return table[index] + 1, torch.zeros_like(table).index_add(0, index, x), table.index_select(0, index).sum(0)

    compiled = compile_api.compile(function, fullgraph=True)
    assert_matches(compiled, function, randn(50, 33), randn(300, 33))
    all_generated(compiled.report())


def test_mixed_dtypes():
    def function(x, y):
        return x + y, ((x > 0) & (y > 0)).to(torch.int32), x.to(torch.bfloat16) + 1, y / 3

    compiled = compile_api.compile(function, fullgraph=True)
    assert_matches(compiled, function, randn(5, 6), torch.arange(6, device=DEVICE))
    all_generated(compiled.report(), graphs=1)


def test_a_number_on_the_cpu():
    """Eager's own kernel reads it on the host; what surrounds it is generated."""

    def function(x, scale):
        return (x.sin() * scale).cos() + 1

    compiled = compile_api.compile(function, fullgraph=True)
    for value in (3.0, 4.0):
        assert_matches(compiled, function, randn(5, 6), torch.tensor(value))
    assert len(captured(compiled.report())) == 1 and compiled.report().kernels


# --- control flow, breaks, foreign code -------------------------------------------------------------------------------


def test_data_dependent_branches():
    def bar(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    compiled = compile_api.compile(bar)
    for b in (torch.ones(10, device=DEVICE), -torch.ones(10, device=DEVICE), torch.ones(10, device=DEVICE)):
        assert_matches(compiled, bar, randn(10), b)
    assert len(captured(compiled.report())) == 3 and not compiled.report().fallbacks


def test_disabled_callee_and_numpy():
    @compile_api.disable
    def outside(x):
        return torch.from_numpy(x.cpu().numpy() * 2).to(DEVICE)

    def function(x):
        return outside(x.sin()).cos()

    compiled = compile_api.compile(function)
    assert_matches(compiled, function, randn(40))
    assert len(captured(compiled.report())) == 2


def test_moving_between_devices():
    def function(x):
        return (x.cpu() + 1).to(DEVICE) * 2

    compiled = compile_api.compile(function)
    assert_matches(compiled, function, randn(6, 5))


def test_created_inside():
    def function(x):
        n = x.shape[0]
        mask = torch.ones(n, n, device=x.device, dtype=torch.bool).tril()
        return torch.where(mask, x, float("-inf")).softmax(-1), torch.arange(n, device=x.device) * 2

    compiled = compile_api.compile(function, fullgraph=True)
    assert_matches(compiled, function, randn(37, 37))
    all_generated(compiled.report())


@pytest.mark.parametrize("shape,dim", [((3, 4, 1), 0), ((4, 3), 1), ((5,), 0), ((1, 5), 1), ((5, 1), 0), ((2, 9000), 1)])
def test_signs_of_zeros_in_running_sums(shape, dim):
    """Eager's kernel for several sequences begins with a zero, the one for a single sequence with its first number."""
    function = lambda x: (x * 1).cumsum(dim)
    compiled = compile_api.compile(function, fullgraph=True)
    x = torch.full(shape, -0.0, device=DEVICE)
    assert torch.equal(compiled(x).signbit(), function(x).signbit())
    all_generated(compiled.report())


# --- sizes, guards, state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True])
def test_ten_lengths_capture_at_most_twice(dynamic):
    case = gpu_case("bert", small=True)
    compiled = compile_api.compile(case.model, fullgraph=True, dynamic=dynamic)
    for length in (16, 24, 32, 40, 48, 64, 80, 96, 33, 17):
        ids = torch.randint(0, 1000, (2, length), device=DEVICE)
        for ours, theirs in zip(tensors(compiled(ids)), tensors(case.model(ids)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    all_generated(compiled.report())
    assert len(captured(compiled.report())) <= 2


def test_what_changes_is_noticed():
    state = {"scale": 2.0}

    def function(x):
        return x.sin() * state["scale"]

    compiled = compile_api.compile(function)
    for x in (
        randn(8, 8), randn(8, 8).half(), randn(8, 8).t(), randn(8, 9), randn(1, 8), randn(0, 8), randn(8, 8).double(),
        torch.randn(8, 8), randn(8), randn(64)[::2].view(8, 4), randn(8, 8, requires_grad=True),
    ):  # fmt: skip
        assert_matches(compiled, function, x)
    state["scale"] = 5.0
    assert_matches(compiled, function, randn(8, 8))


def test_what_the_device_is_like():
    """Asked for by the program: a constant of the graph, as long as the device is current."""

    def function(x):
        properties = torch.cuda.get_device_properties(x.device)
        if torch.cuda.get_device_capability() >= (8, 0):
            return x * properties.multi_processor_count + properties.major
        return x

    compiled = compile_api.compile(function, fullgraph=True)
    x = randn(8)
    torch.testing.assert_close(compiled(x), function(x))
    assert not compiled.report().breaks


def test_checkpoints_load_and_weights_are_not_copied():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).to(DEVICE)
    compiled = compile_api.compile(model, fullgraph=True)
    x = randn(4, 8)
    compiled(x)
    assert compiled.state_dict().keys() == model.state_dict().keys()
    saved = {f"_orig_mod.{name}": torch.randn_like(value) for name, value in model.state_dict().items()}
    compiled.load_state_dict(saved)
    torch.testing.assert_close(model[0].weight, saved["_orig_mod.0.weight"])
    torch.testing.assert_close(compiled(x), model(x))
    assert len(captured(compiled.report())) == 1


def test_moving_a_compiled_model():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
    compiled = compile_api.compile(model)
    for device in ("cpu", DEVICE, "cpu", DEVICE):
        compiled.to(device)
        x = torch.randn(4, 8, device=device)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert not compiled.report().fallbacks


def test_unaligned_and_strided_inputs():
    def function(x, y):
        return x * 2 + y.relu()

    compiled = compile_api.compile(function)
    base = randn(1000)
    for offset in (0, 1, 2, 3, 4, 7):
        assert_matches(compiled, function, base[offset : offset + 500], base[3:503])
        assert torch.equal(
            compiled(base[offset : offset + 500], base[3:503]), function(base[offset : offset + 500], base[3:503])
        )


def test_unaligned_data_that_is_written():
    """Through ``data`` no write is counted, of memory that begins anywhere as of any other."""

    def f(x):
        x.data.add_(1)
        return x * 2

    for start in (0, 1):
        ours, theirs = (torch.zeros(40, device=DEVICE, dtype=torch.int8)[start : start + 37] for _ in range(2))
        compiled = compile_api.compile(f)
        assert torch.equal(compiled(ours), f(theirs)) and torch.equal(ours, theirs)
        assert ours._version == theirs._version and compiled.report().kernels


def test_sizes_that_change_in_a_norm_that_is_not_generated():
    """What runs in its place is given the sizes, not what C++ makes of symbols on the way to the fused kernel."""
    norm = lambda x: F.rms_norm(x * 2, x.shape[-1:]).sin()
    compiled = compile_api.compile(norm, dynamic=True)
    refusing = mock.patch.object(inductor_gen, "compile_graph", side_effect=Unsupported("refused"))
    with torch.enable_grad(), refusing:
        for n in (5, 7, 9):
            x, y = (torch.arange(3.0 * n, device=DEVICE).reshape(3, n).requires_grad_() for _ in range(2))
            out, expected = compiled(x), norm(y)
            out.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close((out, x.grad), (expected, y.grad))
    assert captured(compiled.report()) and compiled.report().fallbacks


def test_a_batch_norm_without_a_bias_gives_no_negative_zero():
    x = torch.outer(torch.arange(4.0), torch.tensor([-1.0, 0.0, 2.0])).to(DEVICE)
    norm = lambda x: F.batch_norm(x, None, None, training=True)
    ours, theirs = compile_api.compile(norm, fullgraph=True)(x), norm(x)
    assert torch.equal(ours.signbit(), theirs.signbit())


def test_channels_last():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)).to(DEVICE).eval()
    for layout in (torch.contiguous_format, torch.channels_last):
        compiled = compile_api.compile(model, fullgraph=True)
        x = randn(2, 8, 20, 20).to(memory_format=layout)
        ours, theirs = compiled(x), model(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        assert ours.stride() == theirs.stride()
        all_generated(compiled.report(), graphs=1)


def test_random_numbers_change_and_follow_the_seed():
    def function(x):
        return nn.functional.dropout(x, 0.25) + torch.rand_like(x) * 0

    compiled = compile_api.compile(function, fullgraph=True)
    x = torch.ones(1 << 16, device=DEVICE)
    torch.manual_seed(3)
    one, two = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), one) and not torch.equal(one, two)
    assert abs(float((one == 0).float().mean()) - 0.25) < 0.01
    torch.testing.assert_close(one[one != 0], torch.full_like(one[one != 0], 1 / 0.75))
