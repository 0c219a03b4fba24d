"""``x[mask] = values``: one value for all elements of the mask, or one for each, with gradients of both."""

from __future__ import annotations

import pytest
import torch

import compile_api

#: Shapes of the tensor and the mask, whole dimensions before the mask, and the shapes of values that fit four elements.
SHAPES = [
    ((8,), (8,), 0, [(), (1,), (4,)]),
    ((8, 3), (8,), 0, [(), (3,), (1,), (1, 3), (4, 1), (4, 3)]),
    ((4, 2, 3), (4, 2), 0, [(), (3,), (4, 3), (4, 1), (1, 1)]),
    ((2, 8), (8,), 1, [(), (1,), (4,), (2, 4), (1, 4), (2, 1)]),
    ((2, 8, 3), (8,), 1, [(3,), (1, 3), (4, 3), (2, 4, 3), (2, 1, 3), (1, 4, 1)]),
    ((2, 4, 2, 3), (4, 2), 1, [(3,), (4, 3), (2, 4, 3), (2, 1, 1)]),
]
CASES = [(x, mask, dim, values) for x, mask, dim, all_values in SHAPES for values in all_values]
MASK = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0]).bool()


def set_item(x, mask, values, dim):
    y = x * 2
    y[(slice(None),) * dim + (mask,)] = values
    return y.sin()


def increased(x, mask, values, dim):
    return torch.index_put(x * 2, (mask,), values, accumulate=True).sin()


def put_in_place(x, mask, values, dim):
    y = x * 2
    y.index_put_((mask,), values)
    return y.sin()


FUNCTIONS = [set_item, increased, put_in_place]


@pytest.mark.parametrize("gradients", ["none", "of x", "of values", "of both"])
@pytest.mark.parametrize(("fn", "case"), [(fn, case) for fn in FUNCTIONS for case in CASES if fn is set_item or not case[2]])
def test_values(fn, case, gradients):
    shape, mask_shape, dim, of_values = case
    compiled = compile_api.compile(fn)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(shape, requires_grad=gradients in ("of x", "of both"))
        values = torch.randn(of_values, requires_grad=gradients in ("of values", "of both"))
        mask = MASK[torch.randperm(8)].reshape(mask_shape)
        mine, eager = compiled(x, mask, values, dim), fn(x, mask, values, dim)
        torch.testing.assert_close(mine, eager)
        assert mine.stride() == eager.stride()
        leaves = [leaf for leaf in (x, values) if leaf.requires_grad]
        if leaves:
            upstream = torch.randn_like(eager)
            found, wanted = (torch.autograd.grad(y, leaves, upstream) for y in (mine, eager))
            torch.testing.assert_close(found, wanted)
    report = compiled.report()
    assert report.verdict == "compiled" and report.kernels, report.verdict


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("count", [3, 5, 8, 0])
def test_another_number_of_values_is_eagers_error(gradients, count):
    compiled = compile_api.compile(set_item)
    x, mask = torch.randn(8, 2), MASK
    values = torch.randn(4, 2, requires_grad=gradients)
    torch.testing.assert_close(compiled(x, mask, values, 0), set_item(x, mask, values, 0))
    wrong = torch.zeros(8, dtype=torch.bool)
    wrong[:count] = True
    with pytest.raises(RuntimeError) as eager:
        set_item(x, wrong, values, 0)
    with pytest.raises(type(eager.value)) as mine:
        compiled(x, wrong, values, 0)
    assert str(mine.value) == str(eager.value)
    torch.testing.assert_close(compiled(x, mask, values, 0), set_item(x, mask, values, 0))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize(("shape", "mask", "of_values"), [
    ((8, 3), MASK, (1, 4, 3)), ((8, 1), MASK, (5,)), ((8, 3), MASK[:1], ()), ((8, 3), MASK[:7], (3,)), ((8, 3), MASK, (4, 5)),
    ((8,), MASK, (2, 4)), ((8,), MASK.view(2, 4), ()), ((8, 3), MASK, (2, 1, 3)), ((8, 3), MASK[:1], (1, 3)),
])  # fmt: skip
def test_masks_and_values_of_other_shapes_are_eagers_errors(shape, mask, of_values, fn, gradients):
    """All but leading dimensions of one, which ``x[mask] = values`` leaves out."""
    def outcome(call):
        try:
            return call(torch.ones(shape), mask, torch.ones(of_values, requires_grad=gradients), 0).shape
        except Exception as error:
            return type(error)

    assert outcome(compile_api.compile(fn)) == outcome(fn)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("accumulate", [False, True])
def test_dtypes(accumulate, dtype):
    def program(x, mask, values):
        return torch.index_put(x, (mask,), values, accumulate)

    x, values = (torch.randint(0, 2, shape).to(dtype) for shape in ((8, 3), (4, 3)))
    compiled = compile_api.compile(program)
    assert torch.equal(compiled(x, MASK, values), program(x, MASK, values))
    assert compiled.report().verdict == "compiled" or dtype.is_complex, compiled.report().verdict


@pytest.mark.parametrize("gradients", [False, True])
def test_sizes_that_change(gradients):
    compiled = compile_api.compile(set_item)
    for size in (8, 11, 23, 40):
        mask = torch.rand(size) > 0.5
        values = torch.randn(int(mask.sum()), 3, requires_grad=gradients)
        x = torch.randn(size, 3)
        mine, eager = compiled(x, mask, values, 0), set_item(x, mask, values, 0)
        torch.testing.assert_close(mine, eager)
        if gradients:
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), values)[0] for y in (mine, eager)))
    assert len(compiled.report().recompiles) <= 2


@pytest.mark.parametrize("elements", [0, 8])
@pytest.mark.parametrize("gradients", [False, True])
def test_nothing_and_everything(elements, gradients):
    mask = torch.arange(8) < elements
    values = torch.randn(elements, 2, requires_grad=gradients)
    x = torch.randn(8, 2, requires_grad=True)
    compiled = compile_api.compile(set_item)
    torch.testing.assert_close(compiled(x, mask, values, 0), set_item(x, mask, values, 0))


def test_a_learned_token_at_masked_places():
    """As masked image and speech models train."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token = torch.nn.Parameter(torch.randn(6))
            self.inner = torch.nn.Linear(6, 6)

        def forward(self, x, mask):
            x = x * 1
            x[mask] = self.token.to(x.dtype)
            return self.inner(x).pow(2).mean()

    torch.manual_seed(0)
    model = Model()
    compiled = compile_api.compile(model, fullgraph=True)
    x, mask = torch.randn(2, 5, 6), torch.rand(2, 5) > 0.5
    found = torch.autograd.grad(compiled(x, mask), list(model.parameters()))
    wanted = torch.autograd.grad(model(x, mask), list(model.parameters()))
    torch.testing.assert_close(found, wanted)
    assert compiled.report().verdict == "compiled"
