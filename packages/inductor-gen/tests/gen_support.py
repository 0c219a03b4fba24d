"""Building prim envelopes by hand and comparing compiled graphs with the primitives' reference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

import inductor_gen
from inductor_gen.device.cpu import processor
from inductor_gen.layout.prepare import prepare
from inductor_gen.pipeline import rewritten_graph, size_hint
from prims.handlers import GraphHandler
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext, TensorSpec

__all__ = ["Case", "SERVER", "build", "check", "compile_fn", "laid_out", "lines_run", "of_server"]

#: The record that tests of decisions are stated for, whatever machine they run on.
SERVER = processor("two cores, AVX-512", 2, 64, 2 << 20, 105 << 20)


def of_server(device: torch.device) -> Any:
    """The record of any device, as the pipeline asks for it."""
    return SERVER


def spec_of(t: torch.Tensor, dynamic: Sequence[int] = (), ctx: SymbolContext | None = None, known: Any = None) -> TensorSpec:
    """The spec of a tensor; dimensions in ``dynamic`` become symbols (equal sizes share one). A spec is its own."""
    if isinstance(t, TensorSpec):
        return t
    shape: list[Any] = list(t.shape)
    known = known if known is not None else {}
    for d in dynamic:
        if shape[d] not in known:
            known[shape[d]] = ctx.new_symbol(shape[d], f"dim{d}")  # type: ignore[union-attr]
        shape[d] = known[shape[d]]
    strides: Any = list(t.stride())
    if dynamic:
        if not t.is_contiguous():
            raise ValueError("dynamic sizes only for contiguous tensors here")
        step: Any = 1
        for d in reversed(range(t.ndim)):
            strides[d] = step
            step = step * shape[d]
    return TensorSpec(tuple(shape), t.dtype, t.device, tuple(strides), t.storage_offset())


def build(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    dynamic: dict[int, Sequence[int]] | None = None,
    strides: Sequence[Sequence[int] | None] | None = None,
    claims: frozenset[str] | None = None,
) -> Envelope:
    """The envelope of ``fn(p, *values)``, which returns a value or a tuple of values."""
    graph = torch.fx.Graph()
    p = GraphHandler(graph, claims if claims is not None else inductor_gen.claims("cpu"))
    ctx = SymbolContext()
    known: dict[int, Any] = {}
    descs, values = [], []
    for k, t in enumerate(inputs):
        spec = spec_of(t, (dynamic or {}).get(k, ()), ctx, known)
        descs.append(InputDesc(f"x{k}", "input", spec))
        # inside the graph a value is a logical array: contiguous
        values.append(p.placeholder(f"x{k}", TensorSpec(spec.shape, spec.dtype, spec.device)))
    results = fn(p, *values)
    results = results if isinstance(results, tuple) else (results,)
    outputs = []
    for k, r in enumerate(results):
        spec = TensorSpec(r.shape, r.dtype, r.device)
        if strides is not None and strides[k] is not None:
            spec = TensorSpec(r.shape, r.dtype, r.device, tuple(strides[k]))  # type: ignore[arg-type]
        outputs.append(OutputDesc("output", spec))
    graph.output(tuple(r.node for r in results))
    return Envelope(
        dialect="prim", version=(1, 0), producer="tests", producer_version="0", graph=graph,
        inputs=tuple(descs), outputs=tuple(outputs), symbols=SymbolTable.from_inputs(descs, ctx),
    )  # fmt: skip


def laid_out(env: Envelope, masks: Any = None, in_place: bool = False, **options: Any) -> Any:
    """An envelope's graph, rewritten and laid out."""
    rewritten = rewritten_graph(env, Options(verify="every_pass", **options), masks)
    return prepare(rewritten.graph, env, size_hint(env), options.get("numerics", "fast"), in_place)


class Case:
    """A compiled graph, its report and the outputs of a checked run."""

    def __init__(self, compiled: Any, report: Report, outputs: list[Any]) -> None:
        self.compiled = compiled
        self.report = report
        self.outputs = outputs

    @property
    def kernels(self) -> int:
        """The number of kernel launches."""
        return len(self.compiled.kernels)


OPTIONS = Options(verify="off")


def compile_fn(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], **kw: Any) -> Any:
    """The compiled graph of ``fn(p, *values)``."""
    options = kw.pop("options", OPTIONS)
    return inductor_gen.compile_graph(build(fn, inputs, **kw), options=options)


def reference(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], double: bool) -> list[Any]:
    """What the primitives' PyTorch references give, in float64 where ``double``."""
    from prims.handlers import TorchHandler

    if double:
        inputs = [t.double() if t.is_floating_point() else t for t in inputs]
    out = fn(TorchHandler(), *inputs)
    return list(out if isinstance(out, tuple) else (out,))


def check(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], *, tol: float | None = None, exact: bool = False, **kw: Any
) -> Case:
    """Compile, run, and compare every output with the reference: its metadata and its values."""
    options = kw.pop("options", OPTIONS)
    devices = kw.pop("devices", None)
    env = build(fn, inputs, **kw)
    report = Report()
    compiled = inductor_gen.compile_graph(env, options=options, report=report, devices=devices)
    outputs = compiled(*inputs)
    expected = reference(fn, inputs, False)
    assert len(outputs) == len(expected)
    for got, want, desc in zip(outputs, expected, env.outputs, strict=True):
        assert got.dtype == want.dtype, (got.dtype, want.dtype)
        assert tuple(got.shape) == tuple(want.shape)
        if not kw.get("dynamic") and got.numel():
            assert got.stride() == tuple(desc.spec.strides)
        if exact or not want.is_floating_point():
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        else:
            limit = tol if tol is not None else {
                torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3
            }[want.dtype]
            torch.testing.assert_close(got, want, rtol=limit, atol=limit, equal_nan=True)
    return Case(compiled, report, outputs)


def lines_run(fn: Callable[[], Any]) -> int:
    """How many lines of Python a call of ``fn`` runs in this thread: its cost, the same on every machine."""
    count = 0

    def seen(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        fn()
    finally:
        sys.settrace(before)
    return count
