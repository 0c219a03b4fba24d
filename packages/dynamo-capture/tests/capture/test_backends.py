"""What a backend gets when sizes change, by what it declares: no backend may bake in a size unseen."""

from __future__ import annotations

import pytest
import torch

from dynamo_capture import mark_dynamic, optimize, supports_dynamic_shapes
from prims.errors import CompileWarning
from prims.options import Options
from prims.report import Report
from prims.spec import AbstractTensor


def program(x, w, scale):
    return (x.sin() * x.shape[0] @ w + scale).sum(0).view(-1, w.shape[1]) * torch.ones(x.shape[0], 1)


def calls():
    return [(torch.randn(n, m), torch.randn(m, 2), s) for n, m, s in ((4, 3, 2), (6, 3, 2), (9, 5, 3), (6, 3, 2.5))]


def traces(gm, inputs):
    """As ``torch.jit.trace`` does: what was an int at the call is that int for ever."""
    recorded = [x.shape if isinstance(x, torch.Tensor) else x for x in inputs]

    def run(*args):
        now = [x.shape if isinstance(x, torch.Tensor) else x for x in args]
        if now != recorded:
            raise AssertionError(f"compiled for {recorded}, called with {now}")
        return gm(*args)

    return run


class Tracer:
    def __call__(self, gm, inputs):
        return traces(gm, inputs)


@pytest.mark.parametrize("backend", [traces, Tracer(), lambda gm, inputs: torch.jit.trace(gm, inputs, check_trace=False)],
                         ids=["function", "object", "jit.trace"])  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_backend_that_declares_nothing_gets_each_size(backend, dynamic):
    report = Report()
    compiled = optimize(program, backend, options=Options(dynamic=dynamic), report=report)
    for args in (*calls(), *calls()):
        torch.testing.assert_close(compiled(*args), program(*args))
    assert report.verdict == "compiled" and len(report.graphs) == len(calls())
    assert all(isinstance(size, int) for x in calls() for size in x[0].shape)


def test_marks_do_not_make_such_a_graph_symbolic():
    report = Report()
    compiled = optimize(program, traces, report=report)
    for args in calls():
        mark_dynamic(args[0], 0)
        torch.testing.assert_close(compiled(*args), program(*args))


def test_the_limit_says_what_to_declare():
    compiled = optimize(lambda x: x.sin() * x.shape[0], traces, options=Options(recompile_limit=2))
    with pytest.warns(CompileWarning, match="declare supports_dynamic_shapes"):
        for n in (2, 3, 4, 5):
            x = torch.ones(n)
            torch.testing.assert_close(compiled(x), x.sin() * n)


def test_a_declared_backend_gets_the_calls_tensors():
    seen = []

    @supports_dynamic_shapes
    def backend(gm, inputs):
        seen.append(([tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)], gm.meta["envelope"]))
        return gm.forward

    compiled = optimize(lambda x: x.sin() * x.shape[0], backend, options=Options(fullgraph=True))
    for n in (2, 3, 4, 5):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), x.sin() * n)
    assert [shapes for shapes, _ in seen] == [[(2,)], [(3,)]]
    sizes = [envelope.inputs[0].spec.shape[0] for _, envelope in seen]
    assert sizes[0] == 2 and not isinstance(sizes[1], int)


class Symbolic:
    symbolic_example_inputs = True

    def __init__(self, asks=False):
        self.asks, self.seen = asks, []

    def __call__(self, gm, inputs):
        (x,) = inputs
        size = x.shape[0]
        self.seen.append((type(x), type(size)))
        if self.asks and size > 4:  # what is asked of a symbolic size is a guard
            return lambda *args: [result * 1 for result in gm(*args)]
        assert self.asks or gm(x)[0].shape[0] == size
        return gm.forward


def test_symbolic_example_inputs():
    backend = Symbolic()
    compiled = optimize(lambda x: x.sin() * x.shape[0], backend, options=Options(dynamic=True, fullgraph=True))
    for n in (2, 3, 4, 5):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), x.sin() * n)
    assert backend.seen == [(AbstractTensor, torch.SymInt)]
    asking = Symbolic(asks=True)
    compiled = optimize(lambda x: x.sin() * x.shape[0], asking, options=Options(dynamic=True, fullgraph=True))
    for n in (2, 3, 8, 9, 4):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), x.sin() * n)
    assert len(asking.seen) == 2


def test_an_explicit_wish_gives_abstract_inputs_to_any_backend():
    seen = []

    def backend(gm, inputs):
        seen.append(type(inputs[0]))
        return gm.forward

    compiled = optimize(lambda x: x.sin() * x.shape[0], backend, options=Options(dynamic=True))
    for n in (2, 3, 4):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), x.sin() * n)
    assert seen == [AbstractTensor]


def _buffer(module, x):
    module.running.mul_(2).add_(x.sum(0).detach())
    return x + module.running


class _Running(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.ones(3))


#: Programs that write into their inputs, and what they are given.
WRITING = {
    "an argument": (lambda x: x.add_(3), lambda: (torch.zeros(4, 3),)),
    "its rows": (lambda x: x[::2].mul_(3) + x.sum(), lambda: (torch.ones(4, 3),)),
    "a strided one": (lambda x: x.add_(1).t(), lambda: (torch.zeros(8, 6)[1::2, ::2],)),
    "one with a gradient": (lambda x: x.mul_(2).sum(), lambda: (torch.ones(3, requires_grad=True) * 1,)),
    "a buffer": (_buffer, lambda: (_Running(), torch.ones(2, 3))),
    "one of two": (lambda x, y: y.copy_(x) + 1, lambda: (torch.ones(3), torch.zeros(3))),
}
TRACERS = {
    "runs it": lambda gm, inputs: (gm(*inputs), gm.forward)[1],
    "torch.jit.trace": lambda gm, inputs: torch.jit.trace(gm, inputs, check_trace=False),
    "runs it twice": lambda gm, inputs: (gm(*inputs), gm(*inputs), gm.forward)[2],
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("backend", TRACERS)
@pytest.mark.parametrize("name", WRITING)
def test_a_backend_that_runs_the_graph_writes_into_copies(name, backend, dynamic):
    fn, make = WRITING[name]
    found = []
    for run in (fn, optimize(fn, TRACERS[backend], options=Options(dynamic=dynamic, fullgraph=True))):
        args = make()
        results = [run(*args).detach().clone() for _ in range(2)]
        held = args[0].running if isinstance(args[0], torch.nn.Module) else args[0]
        found.append([*results, held.detach().clone(), args[-1].detach().clone()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_copies_are_like_what_they_are_made_from():
    seen = []
    parameter = torch.nn.Parameter(torch.ones(3))
    strided = torch.zeros(8, 6)[1::2, ::2]
    inner = torch.ones(3, requires_grad=True) * 1

    def backend(gm, inputs):
        seen.extend(inputs)
        return gm.forward

    def fn(p, x, y):
        with torch.no_grad():
            p.add_(1)
        return x.add_(1).sum() + y.mul_(2).sum()

    optimize(fn, backend, options=Options(fullgraph=True))(parameter, strided, inner)
    kinds = sorted((type(t).__name__, tuple(t.stride()), t.storage_offset(), t.requires_grad, t.is_leaf) for t in seen)
    given = [("Parameter", (1,), 0, True, True), ("Tensor", (1,), 0, True, False), ("Tensor", (12, 2), 6, False, True)]
    assert kinds == given
    assert not {t.data_ptr() for t in seen} & {t.data_ptr() for t in (parameter, strided, inner)}
