"""Tensors whose numbers are not in their memory as they are: negated and conjugated lazily, zeros without memory, and
batches of gradients; as inputs and as gradients that come back."""

from __future__ import annotations

import pytest
import torch

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")


def imaginary_of_a_conjugate(y):
    """A loss whose gradient for ``y`` has the negative bit."""
    return (torch.complex(torch.zeros_like(y), y).conj() * (1 + 2j)).sum().real


PROGRAMS = {
    "number": (lambda x: x.sin().sum(), (5,)),
    "row": (lambda x: x.sin().sum(0, keepdim=True), (5,)),
    "batch of one": (lambda x: (x * torch.arange(3.0)).sin().sum(1), (1, 3)),
    "rows": (lambda x: (x * torch.arange(3.0)).sin(), (5, 3)),
    "two results": (lambda x: (x.sin() * 2).sum(1), (4, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_with_the_negative_bit(name):
    program, shape = PROGRAMS[name]
    compiled = compile_api.compile(program)
    for _ in range(2):
        found = []
        for call in (program, compiled):
            x = torch.full(shape, 0.3, requires_grad=True)
            imaginary_of_a_conjugate(call(x)).backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)
    assert compiled.report().verdict == "compiled"


GRADIENTS = {
    "negated": lambda shape: torch._neg_view(torch.ones(shape)),
    "zeros": lambda shape: torch._efficientzerotensor(shape),
    "expanded": lambda shape: torch.ones(()).expand(shape),
    "sparse": lambda shape: torch.eye(*shape).to_sparse(),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 3)], ids=str)
def test_gradients_given(kind, shape):
    program = lambda x: x.sin() * 2
    compiled = compile_api.compile(program)
    found = []
    for call in (program, compiled, compiled):
        x = torch.full(shape, 0.3, requires_grad=True)
        call(x).backward(GRADIENTS[kind](shape))
        found.append(x.grad.to_dense())  # of a sparse one eager's is sparse, too
    torch.testing.assert_close(found[1:], found[:1] * 2)


@pytest.mark.parametrize("made", [lambda z: z.conj(), lambda z: z.conj().imag, lambda z: torch._neg_view(z)])
@pytest.mark.parametrize("size", [1, 4])
def test_complex_gradients(made, size):
    program = lambda z: z * z
    compiled = compile_api.compile(program)
    found = []
    for call in (program, compiled):
        z = (torch.arange(1.0, size + 1) * (1 + 2j)).requires_grad_()
        made(call(z)).abs().square().sum().backward()
        found.append(z.grad)
        z.grad = None
        call(z).backward((torch.arange(1.0, size + 1) * (1 - 1j)).conj())
        found.append(z.grad)
    torch.testing.assert_close(found[2:], found[:2])


@pytest.mark.parametrize(
    "program",
    [lambda x: torch.complex(x, x * 2), lambda x: torch.view_as_complex(torch.stack([x.sin(), x], -1)),
     lambda x: torch.polar(x.abs() + 1, x)],
    ids=["complex", "view_as_complex", "polar"],
)  # fmt: skip
def test_conjugated_gradients_of_complex_results(program):
    compiled = compile_api.compile(program)
    found = []
    for call in (program, compiled):
        x = torch.ones(3, requires_grad=True)
        (call(x).conj() * (1 + 2j)).sum().real.backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_zeros_without_memory_as_inputs():
    program = lambda x: x.sin() * 2 + 1
    compiled = compile_api.compile(program)
    ones, zeros = torch.ones(3), torch._efficientzerotensor((3,))
    for x in (zeros, ones, zeros, ones):
        torch.testing.assert_close(compiled(x), program(x))
    assert compiled.report().kernels and "it stands for zeros" in compiled.report().verdict


@pytest.mark.parametrize("outside", [lambda y: y.sum(0), lambda y: y.sum(1), lambda y: y.mean(), lambda y: y], ids=range(4))
def test_batches_of_gradients(outside):
    """Those of a sum outside of the region are expanded."""
    program = lambda x: x.sin()
    compiled = compile_api.compile(program)
    x = torch.linspace(-1, 1, 20).view(5, 4)
    found = [
        torch.autograd.functional.jacobian(lambda y, call=call: outside(call(y)), x, vectorize=True)
        for call in (program, compiled)
    ]
    torch.testing.assert_close(*found)
