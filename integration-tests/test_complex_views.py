"""Strided views of complex numbers, and writes to them, are computed by parts."""

from __future__ import annotations

import pytest
import torch

import compile_api


def written(x: torch.Tensor) -> torch.Tensor:
    x.fill_diagonal_(3)
    return x * 2


def wrapped(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.fill_diagonal_(2 - 1j, True)
    return y


def viewed(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (1, 3)) + 1


@pytest.mark.parametrize("fn", [written, wrapped, viewed], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("turned", [False, True])
def test_strided_views_of_complex_numbers(fn, dtype, turned) -> None:
    numbers = torch.randn(5, 3, dtype=dtype)
    ours, theirs = (numbers.clone().t() if turned else numbers.clone() for _ in range(2))
    compiled = compile_api.compile(fn)
    result, expected = compiled(ours), fn(theirs)
    assert torch.equal(result, expected) and torch.equal(ours, theirs)
    assert result.stride() == expected.stride()
    assert compiled.report().kernels and not compiled.report().fallbacks


LAZY = {
    "imaginary parts of conjugates": lambda x: x.conj().imag,
    "conjugates": lambda x: x.conj(),
    "real parts of conjugates": lambda x: x.conj().real,
    "conjugates of conjugates": lambda x: x.conj().conj(),
    "imaginary parts": lambda x: x.imag,
    "negated imaginary parts": lambda x: torch._neg_view(x.conj().imag),
}
SCATTERS = {
    "select": lambda t: t.select_scatter(t.select(0, 0), 0, 1),
    "slice": lambda t: t.slice_scatter(t[:1], 0, 0, 1),
    "diagonal": lambda t: t.diagonal_scatter(t.diagonal()),
}


@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("view", LAZY)
@pytest.mark.parametrize("layout", ["whole", "turned", "with gaps"])
def test_strides_of_copies_of_lazy_views(view, scatter, layout) -> None:
    """A conjugate that only its reader makes is copied into memory without gaps, another view with those that it has."""

    def program(x):
        y = x * 2j
        y = {"whole": y, "turned": y.t(), "with gaps": torch.stack([y, y], 2)[..., 0]}[layout]
        return SCATTERS[scatter](LAZY[view](y))

    x = torch.arange(12.0).reshape(3, 4)
    compiled = compile_api.compile(program)
    ours, theirs = compiled(x), program(x)
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours.resolve_conj(), theirs.resolve_conj())
    assert compiled.report().graphs and not compiled.report().fallbacks


def _written_copy(z):
    whole = z.clone()
    return whole, whole.conj().resolve_conj().mul_(2)


RESOLVED = {
    "conjugate": lambda z: (z.conj().resolve_conj(),),
    "turned": lambda z: (z @ z.conj().t(), z.conj().t().resolve_conj(), z.mH.resolve_conj()),
    "written": _written_copy,
    "twice": lambda z: (z.conj().conj().resolve_conj(), z.conj().view(-1).resolve_conj(), z.resolve_conj()),
    "parts": lambda z: (z.conj().imag.resolve_neg(), z.conj().imag.resolve_conj(), z.conj().real.resolve_neg()),
    "other bit": lambda z: (z.conj().resolve_neg(), (-z.conj().imag).resolve_neg()),
    "functions": lambda z: (torch.resolve_conj(z.conj()[0]), torch.resolve_neg(z.conj().imag)),
    "operators": lambda z: (torch.ops.aten.resolve_conj(z.conj()), torch.ops.aten.resolve_neg.default(z.conj().imag)),
    "physical": lambda z: (torch.conj_physical(z.conj()), z.conj_physical()),
    "as pairs": lambda z: (torch.view_as_real(z.conj().resolve_conj()), torch.view_as_real(z)),
    "real numbers": lambda z: (z.abs().resolve_conj(), z.abs().resolve_neg()),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", RESOLVED)
def test_resolved_conjugates_and_negatives_are_copies(name, needs_gradient) -> None:
    """Of a view that only its reader computes; of other tensors they are the tensor itself."""

    def outcome(call):
        z = torch.tensor([[1 + 1j, 2 - 3j], [4j, 5 + 1j]], requires_grad=needs_gradient)
        results = call(z)
        seen = [
            (r.is_conj(), r.is_neg(), r.stride(), r.untyped_storage().data_ptr() == z.untyped_storage().data_ptr())
            for r in results
        ]
        numbers = [r.detach().resolve_conj().resolve_neg().clone() for r in results]
        if needs_gradient:
            sum((r.abs().sum() for r in results if r.requires_grad), torch.zeros(())).backward()
        return seen, [*numbers, z.detach()] + ([z.grad] if needs_gradient else [])

    compiled = compile_api.compile(RESOLVED[name], fullgraph=True)
    (seen, numbers), (expected_seen, expected) = outcome(compiled), outcome(RESOLVED[name])
    assert seen == expected_seen
    for ours, theirs in zip(numbers, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert compiled.report().verdict == "compiled"


def test_pairs_of_a_conjugate_that_was_not_made() -> None:
    with pytest.raises(RuntimeError, match="unresolved conjugated"):
        compile_api.compile(lambda z: torch.view_as_real(z.conj()) * 1)(torch.tensor([1 + 2j]))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, w: (x * w * 1j).abs().sum(),
        lambda x, w: (torch.relu((x * w).real) + 1j * torch.relu((x * w).imag)).abs().sum(),
        lambda x, w: ((2 - 1j) * w.real * 1j / (x * w)).abs().sum(),
        lambda x, w: (w ** (1 + 2j)).abs().sum() + (w - 1j).abs().sum() + (1j - w).abs().sum(),
    ],
    ids=["product", "parts", "quotient", "power and sums"],
)
def test_gradients_inside_through_numbers_of_the_program(loss, dtype) -> None:
    """A Python number in a product is conjugated in the gradient."""
    torch.manual_seed(0)
    w, x = torch.randn(3, dtype=dtype, requires_grad=True), torch.randn(3, dtype=dtype)

    def program(x):
        return torch.autograd.grad(loss(x, w), w)[0]

    compiled = compile_api.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x))
