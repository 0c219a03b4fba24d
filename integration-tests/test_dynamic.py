"""Sizes that change from call to call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import assert_as_good, assert_matches
from reports import assert_all_generated, captured
from torch import nn
from zoo import build, tensors

import compile_api


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_ten_sequence_lengths_capture_at_most_twice(name, dynamic):
    case = build(name, small=True)
    double = build(name, small=True).model.double()
    compiled = compile_api.compile(case.model, fullgraph=True, dynamic=dynamic)
    for length in (16, 24, 32, 40, 48, 64, 80, 96, 33, 17):
        args, kwargs = ((torch.randint(0, 1000, (2, length)),), {})
        if name == "bert":
            args, kwargs = (), {"input_ids": args[0], "attention_mask": torch.ones(2, length, dtype=torch.long)}
        assert_as_good(
            tensors(compiled(*args, **kwargs)), tensors(case.model(*args, **kwargs)), tensors(double(*args, **kwargs))
        )
    report = compiled.report()
    assert len(captured(report)) <= (2 if dynamic is None else 1)
    assert_all_generated(report)


LENGTHS = [(16,), (24,), (32,), (33,), (17,)]
BATCHES = [(2,), (3,), (4,), (7,), (5,)]
IMAGES = [(2, 64), (3, 64), (4, 96), (5, 96), (3, 80)]


@pytest.mark.parametrize(
    "name,sizes,make,most",
    [
        ("gpt2", LENGTHS, lambda n: {"input_ids": torch.randint(0, 100, (2, n))}, 2),
        ("llama", LENGTHS, lambda n: {"input_ids": torch.randint(0, 100, (2, n))}, 2),
        ("t5_encoder", LENGTHS, lambda n: {"input_ids": torch.randint(0, 100, (2, n))}, 2),
        ("vit_b_16", BATCHES, lambda n: {"x": torch.randn(n, 3, 64, 64)}, 2),
        # The batch is the first to change, the image the second.
        ("resnet18", IMAGES, lambda n, s: {"x": torch.randn(n, 3, s, s)}, 3),
    ],
)
def test_models_capture_once_per_kind_of_change(name, sizes, make, most):
    model = build(name, small=True).model
    double = build(name, small=True).model.double()
    compiled = compile_api.compile(model, fullgraph=True)
    for size in sizes:
        inputs = make(*size)
        wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        assert_as_good(tensors(compiled(**inputs)), tensors(model(**inputs)), tensors(double(**wide)))
    assert len(captured(compiled.report())) == most
    assert_all_generated(compiled.report())


def test_only_the_changed_dimension_becomes_dynamic():
    compiled = compile_api.compile(lambda x: (x * 2).sum(-1), fullgraph=True)
    function = lambda x: (x * 2).sum(-1)
    for rows in (3, 4, 5, 6):
        assert_matches(compiled, function, torch.randn(rows, 8))
    assert len(captured(compiled.report())) == 2
    assert_matches(compiled, function, torch.randn(7, 9))
    assert len(captured(compiled.report())) == 3
    assert_matches(compiled, function, torch.randn(9, 11))
    assert len(captured(compiled.report())) == 3


def test_dynamic_false_specialises():
    compiled = compile_api.compile(torch.sin, dynamic=False)
    function = compile_api.compile(lambda x: x.sin() + 1, dynamic=False)
    for rows in (3, 4, 5):
        assert_matches(function, lambda x: x.sin() + 1, torch.randn(rows))
    assert len(captured(function.report())) == 3
    del compiled


def test_sizes_zero_and_one():
    """Sizes 0 and 1 broadcast differently from the others, so they get graphs of their own."""
    function = lambda x, y: (x + y).softmax(-1)
    compiled = compile_api.compile(function, dynamic=True)
    for shape in ((4, 5), (1, 5), (0, 5), (4, 1), (7, 9)):
        assert_matches(compiled, function, torch.randn(shape), torch.randn(shape))
    assert_matches(compiled, function, torch.randn(4, 5), torch.randn(1, 5))


def test_sizes_used_as_numbers():
    def function(x):
        n = x.shape[0]
        if n > 6:
            return x.reshape(2, n // 2, -1) / n**0.5
        return x.reshape(1, n, -1) + n

    compiled = compile_api.compile(function, dynamic=True, fullgraph=True)
    for rows in (4, 6, 8, 10, 12):
        assert_matches(compiled, function, torch.randn(rows, 3))
    assert len(captured(compiled.report())) <= 3


def test_module_with_batch_dimension():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    double = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval().double()
    double.load_state_dict(model.state_dict())
    compiled = compile_api.compile(model, fullgraph=True)
    for batch in (2, 3, 5, 8, 13, 1):
        x = torch.randn(batch, 8)
        assert_as_good([compiled(x)], [model(x)], [double(x.double())])
    assert len(captured(compiled.report())) <= 3


def test_mark_dynamic():
    compiled = compile_api.compile(lambda x: x.cos() + 1, fullgraph=True)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        compile_api.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), x.cos() + 1)
    assert len(captured(compiled.report())) == 1


@torch.enable_grad()
def test_gradients_where_two_symbols_are_one():
    """The product's inner sizes are two symbols, found equal; both are inputs of the backward graph."""

    def function(x, w):
        return (x @ w).relu().sum()

    compiled = compile_api.compile(function, dynamic=True, fullgraph=True)
    for n, k, m in ((5, 7, 9), (4, 8, 3)):
        x, w = torch.randn(n, k, requires_grad=True), torch.randn(k, m, requires_grad=True)
        ours = torch.autograd.grad(compiled(x, w), (x, w))
        torch.testing.assert_close(ours, torch.autograd.grad(function(x, w), (x, w)))
    assert not compiled.report().fallbacks
    assert len(captured(compiled.report())) == 1


def pooled(n):
    """A pooled picture, where in it the values were, and the picture."""
    picture = torch.randn(2, 3, 2 * n, 2 * n + 2)
    values, places = F.max_pool2d(picture, 2, return_indices=True)
    return values.requires_grad_(), places, picture


#: The backward pass of each uses sizes of inputs that it does not save, under the name of a size that equals them.
OF_EQUAL_SIZES = {
    "addbmm": (
        torch.addbmm,
        lambda n: [torch.randn(s, requires_grad=True) for s in ((n, n + 1), (3, n, 5), (3, 5, n + 1))],
    ),
    "unpooling": (lambda x, places, y: F.max_unpool2d(x, places, 2, output_size=y.shape), pooled),
}


@pytest.mark.parametrize("name", OF_EQUAL_SIZES)
def test_sizes_that_equal_others_reach_the_backward_pass(name):
    program, make = OF_EQUAL_SIZES[name]
    compiled = compile_api.compile(program, dynamic=True)
    for n in (5, 6, 9):
        inputs = make(n)
        wanted = [x for x in inputs if x.requires_grad]
        with torch.enable_grad():
            ours = torch.autograd.grad(compiled(*inputs).square().sum(), wanted)
            eager = torch.autograd.grad(program(*inputs).square().sum(), wanted)
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert len(captured(report)) == 1
    assert report.kernels


def test_views_of_inputs_whose_sizes_a_guard_made_equal():
    """A stacked state against rows of a wider projection, as state space models multiply them."""

    def function(states, rows):
        return (states.transpose(1, 2) @ rows.unsqueeze(-1)).squeeze(-1) * 2.0

    compiled = compile_api.compile(function, dynamic=True)
    for batch, length in ((3, 14), (2, 9)):
        states = torch.randn(length, batch, 16, 4).permute(1, 2, 0, 3)
        for rows in (torch.randn(batch, length, 12)[..., 8:], torch.randn(batch, length, 4)):
            assert_matches(compiled, function, states, rows)
    assert_all_generated(compiled.report())


def test_slices_from_the_end_by_another_size():
    """``x[:, -n:]`` with a symbolic ``n``, less and more than there is."""

    def function(x, y):
        return x[:, -y.shape[1] :] * 2, x[:, : -y.shape[1]] + 1

    compiled = compile_api.compile(function, dynamic=True, fullgraph=True)
    for there, wanted in ((9, 5), (8, 7), (4, 9), (6, 6)):
        assert_matches(compiled, function, torch.randn(3, there), torch.randn(2, wanted), exact=True)
    assert_all_generated(compiled.report())
    assert len(captured(compiled.report())) <= 3


@pytest.mark.parametrize(
    "program,apart",
    [
        (lambda x: torch.sum(x, 0, out=x[0]), False),
        (lambda x: x[:, :2].add_(x[:, :1]), False),
        (lambda x: x[1:].mul_(x[:1]), True),
        (lambda x: x[:, 1].mul_(x[:, 0]), True),
        (lambda x: x[:, :1].add_(x[:, 2:3]), True),
    ],
)
def test_a_write_beside_its_operand_is_compiled_and_one_into_it_is_left_to_eager(program, apart):
    compiled = compile_api.compile(program, dynamic=True)
    for rows, columns in ((4, 3), (5, 6)):
        x, y = (torch.arange(1.0, rows * columns + 1).reshape(rows, columns) for _ in range(2))
        compiled(x)
        program(y)
        assert torch.equal(x, y)
    assert bool(compiled.report().fallbacks) is not apart


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.diagonal().add_(1),
        lambda x: x.diagonal_scatter(x.diagonal() + 1),
        lambda x: x.select_scatter(x[0] + 100, 0, 1),
        lambda x: x.slice_scatter(x[:2] + 100, 0, 1, 3),
    ],
)
def test_writes_to_tensors_whose_elements_overlap_agree_with_eager(program, dynamic):
    compiled = compile_api.compile(program, dynamic=dynamic)
    for rows, columns in ((4, 3), (6, 5), (5, 7)):
        x, y = (torch.arange(24.0).as_strided((rows, columns), (1, 1), 1) for _ in range(2))
        ours, eager = compiled(x), program(y)
        assert torch.equal(ours, eager) and torch.equal(x, y) and ours.stride() == eager.stride()


@pytest.mark.parametrize("training", [False, True])
def test_a_probability_that_changes_is_compared_where_a_guard_has_left_one_value(training):
    layer = nn.Dropout(0.0)
    compiled = compile_api.compile(lambda x: layer(x) + 1)
    with torch.set_grad_enabled(training):
        for rows, p in ((3, 0.0), (3, 1.0), (4, 1.0), (4, 0.0), (5, 1.0)):
            layer.p = p
            x, y = (torch.ones(rows, 4, requires_grad=training) for _ in range(2))
            ours, eager = compiled(x), layer(y) + 1
            assert torch.equal(ours, eager)
            if training:
                ours.sum().backward()
                eager.sum().backward()
                assert torch.equal(x.grad, y.grad)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_split_of_loops_leaves_each_value_where_the_others_read_it(dynamic):
    weight = nn.Parameter(torch.linspace(-1, 1, 24).reshape(3, 8))

    def program(x):
        h = x * weight.expand(3, 8).mean()
        return h.unflatten(1, (2, -1)).flip(1).flatten() * 0.5

    compiled = compile_api.compile(program, dynamic=dynamic)
    x = torch.arange(24).reshape(3, 8) % 3 > 0
    with torch.enable_grad():
        (ours,) = torch.autograd.grad(compiled(x).std(), weight)
        (eager,) = torch.autograd.grad(program(x).std(), weight)
    torch.testing.assert_close(ours, eager)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("odd", [1, 2, 7, 1000])
@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3), (5, 3, 1), (1, 1, 5, 3)])
def test_a_dimension_of_one_may_have_any_stride(shape, odd):
    """PyTorch calls such a tensor contiguous; no stride of the other dimensions may be taken for a number."""
    compiled = compile_api.compile(lambda x: torch.nn.functional.mish(x) + 1, dynamic=True)
    for change in range(3):
        sizes = [n if n == 1 else n + change for n in shape]
        dense = torch.randn(sizes)
        strides = [odd if n == 1 else stride for n, stride in zip(sizes, dense.stride(), strict=True)]
        x = dense.as_strided(sizes, strides)
        torch.testing.assert_close(compiled(x), torch.nn.functional.mish(x) + 1)
    assert compiled.report().kernels


@pytest.mark.parametrize("interpret", [lambda y: y.tensor_split(2)[0], lambda y: y[: y.shape[0] // 2 + y.shape[0] % 2]])
def test_a_size_that_a_guard_makes_one_is_broadcast(interpret):
    compiled = compile_api.compile(lambda x, y: x * (interpret(y).abs() + 0.5), dynamic=True)
    for rows, columns in ((3, 5), (7, 4)):
        x, y = torch.randn(rows, columns), torch.randn(2, columns)
        torch.testing.assert_close(compiled(x, y), x * (y[:1].abs() + 0.5))
    x, y = torch.randn(3, 5), torch.randn(6, 5)
    torch.testing.assert_close(compiled(x, y), x * (y[:3].abs() + 0.5))
    assert compiled.report().kernels and not compiled.report().fallbacks


def test_loops_are_not_cut_where_a_seam_would_lead_a_value_elsewhere():
    def program(x, w):
        y = x @ w
        return y, y.roll((1, -1), (0, -1)), torch.dot(x.flatten(), x.flatten())

    compiled = compile_api.compile(program, dynamic=True)
    for shape in ((2, 3, 1), (4, 4, 1), (5, 2, 1)):
        grads = []
        for run in (compiled, program):
            x = torch.linspace(-2, 3, shape[0] * shape[1]).reshape(shape).requires_grad_()
            with torch.enable_grad():
                first, second, third = run(x, torch.full((1,), 0.5))
                loss = (first.sum() + (second * torch.arange(second.numel()).reshape(second.shape)).sum() + third)
            grads += torch.autograd.grad(loss, x)
        torch.testing.assert_close(*grads)
    assert not compiled.report().fallbacks


def halves(x, rows):
    """Rows that are computed of a size, and may be none or one: x[s // 2:], the pieces of a pool or of a chunk."""
    flat = torch.cat([x[:1] * 2, torch.zeros(rows - 1, x.shape[1])]).reshape(-1)
    n = flat.shape[0]
    yield torch.stack([flat[0 : n // 2 * 2 : 2], flat[1 : n // 2 * 2 : 2]]).sum(0)
    yield F.avg_pool1d(flat[None], 3, 3, ceil_mode=True)
    yield F.lp_pool1d(flat.abs()[None], 2, 2)
    yield torch.stack([x, x.sin()], -1).reshape(-1)[:3] * 2
    for k in (2, 3, 5):
        yield torch.cat([flat[: n // k].cos(), flat])[:3] * 2
        yield torch.cat([flat, flat[n - n % k :].cos()]).flip(0)[:3] + 1
        yield F.pad(flat, (n // k, 0))[1 : n : 2].sin()
        yield flat.roll(n // k)[::2] * 3


@pytest.mark.parametrize("rows", [2, 7])
def test_pieces_that_begin_where_a_size_says(rows):
    def f(x):
        return tuple(halves(x, rows))

    compiled = compile_api.compile(f, dynamic=True, fullgraph=True)
    for width in (7, 2, 3, 5, 13, 100):
        x = torch.linspace(-1, 2, rows * width).reshape(rows, width)
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-6, atol=1e-6)


FLAT = {
    "pooled": lambda x: F.max_pool1d(x.float().reshape(1, -1), 2),
    "sorted": lambda x: x.float().reshape(-1).sort().values,
    "multiplied": lambda x: x.float().reshape(1, -1) @ x.float().reshape(-1, 1),
}
TURNED = {"fliplr": torch.fliplr, "flipud": torch.flipud, "twice": lambda x: torch.rot90(x, 2)}


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("flat", FLAT)
def test_what_is_flat_for_a_library_beside_what_is_reversed(flat, turned):
    """Kernels that become one run over one's variables: i * s + j must still be seen to be the element (i, j) in it."""
    f = lambda x: (FLAT[flat](x), TURNED[turned](x))
    compiled = compile_api.compile(f, fullgraph=True, dynamic=True, options={"strict": True})
    for shape in ((8, 8), (6, 8), (5, 3)):
        x = torch.rand(shape) > 0.5
        for ours, theirs in zip(compiled(x), f(x), strict=True):
            assert torch.equal(ours, theirs)
