"""The kit for backends that compile whole envelopes: static and with symbolic sizes.

    from prims.conformance import check_compiler

    def compile_envelope(env):            # a prim-dialect envelope, one primitive in it
        return my_compiler(env)           # callable(*flat inputs) -> flat outputs

    print(check_compiler(compile_envelope))

Every sample becomes a one-node envelope. Where a sample allows it, a second envelope has a symbol for each of its sizes
(of at least 2); it is compiled once and run on the sample and on two larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from prims.conformance.judge import judge
from prims.conformance.kit import ConformanceReport, Failure, dtypes_of, samples_of
from prims.errors import Unsupported, UserError
from prims.handlers import GraphHandler
from prims.handlers.base import map_values
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.ir.versions import CURRENT
from prims.ops import TABLE, PrimOp, Sample, lookup
from prims.spec import Sym, SymbolContext, TensorSpec

__all__ = ["check_compiler", "instance", "symbolic_instance"]

Compile = Callable[[Envelope], Callable[..., Sequence[Any]]]
Growth = dict[int, int]

#: Parameters whose ints are sizes of the operands, and so become symbols together with them.
_SIZE_PARAMS = {("broadcast", "shape"), ("reshape", "shape"), ("slice", "stops")}


def _envelope(
    op: PrimOp, args: tuple[Any, ...], shape_of: Callable[[torch.Tensor], tuple[Any, ...]], context: Any
) -> tuple[Envelope, list[torch.Tensor]]:
    graph = torch.fx.Graph()
    handler = GraphHandler(graph, rewrites={})
    inputs: list[InputDesc] = []
    tensors: list[torch.Tensor] = []

    def placeholder(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        strides = arg.stride() if context is None else None
        spec = TensorSpec(shape_of(arg), arg.dtype, arg.device, strides)
        inputs.append(InputDesc(f"x{len(inputs)}", "input", spec))
        tensors.append(arg if context is None else arg.contiguous())
        return handler.placeholder(inputs[-1].name, spec)

    result = handler.prim(op, *map_values(placeholder, args))
    graph.output((result.node,))
    descs = tuple(inputs)
    symbols = SymbolTable() if context is None else SymbolTable.from_inputs(descs, context)
    outputs = (OutputDesc("output", result.spec),)
    env = Envelope("prim", CURRENT["prim"], "prims.conformance", "1", graph, descs, outputs, symbols)
    return env, tensors


def instance(op: PrimOp, args: tuple[Any, ...]) -> tuple[Envelope, list[torch.Tensor]]:
    """A prim-dialect envelope of the one call ``op(*args)`` (canonical arguments), and its flat inputs."""
    return _envelope(op, args, lambda t: tuple(t.shape), None)


def symbolic_instance(op: PrimOp, args: tuple[Any, ...]) -> Envelope | None:
    """The same with a symbol for each operand size of at least 2, one per distinct size.

    None where the call needs particular sizes (its metadata rule records a guard) or has none to vary.
    """
    context = SymbolContext()
    symbols: dict[int, Sym] = {}

    def size(n: int) -> Any:
        if n < 2:
            return n
        if n not in symbols:
            symbols[n] = context.new_symbol(n, f"size {n}")
        return symbols[n]

    map_values(lambda a: [size(n) for n in a.shape] if isinstance(a, torch.Tensor) else a, args)
    env, _ = _envelope(op, _replace_sizes(op, args, symbols), lambda t: tuple(map(size, t.shape)), context)
    return env if symbols and not context.guards else None


def _replace_sizes(op: PrimOp, args: tuple[Any, ...], sizes: Any) -> tuple[Any, ...]:
    """The arguments with the sizes among their attributes replaced."""
    return tuple(
        tuple(sizes.get(n, n) for n in a) if (op.name, param.name) in _SIZE_PARAMS else a
        for param, a in zip(op.params, args, strict=True)
    )


def _grown(op: PrimOp, args: tuple[Any, ...], growth: Growth) -> tuple[Any, ...]:
    """The same call on larger operands, their elements repeated cyclically."""

    def grow(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        for dim, n in enumerate(arg.shape):
            if n in growth:
                arg = arg.index_select(dim, torch.arange(growth[n]) % n)
        return arg

    return _replace_sizes(op, map_values(grow, args), growth)


def _runs(op: PrimOp, sample: Sample) -> Iterator[tuple[str, Envelope, list[tuple[Any, ...]]]]:
    """Envelopes of a sample, each with the calls it is to be run on."""
    args = op.bind(*sample.args)
    yield sample.note, instance(op, args)[0], [args]
    symbolic = symbolic_instance(op, args)
    if symbolic is not None:
        sizes = sorted({n for t in _tensors(args) for n in t.shape if n >= 2})
        calls = [args]
        # Distinct sizes stay distinct, and one of the larger calls leaves vector-sized multiples behind.
        for step in (1, 17):
            calls.append(_grown(op, args, {n: n + step * (i + 1) for i, n in enumerate(sizes)}))
        # "set" with an index twice may keep either value.
        repeats = op.name in ("scatter", "index_put")
        yield f"{sample.note}, symbolic", symbolic, calls[:1] if repeats else calls


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_values(lambda a: found.append(a) if isinstance(a, torch.Tensor) else None, args)
    return found


def check_compiler(
    compile_envelope: Compile,
    *,
    ops: Iterable[str | PrimOp] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    samples: int | None = None,
) -> ConformanceReport:
    """Compile each row's samples as one-node envelopes, run them and compare (`prims.conformance.judge`).

    Args:
        compile_envelope: ``(env) -> callable(*flat inputs) -> flat outputs``; raises `Unsupported` for what the
            backend lacks. Any other exception counts as a failure of that sample.
        ops: rows or names; all by default.
        dtypes: all by default.
        samples: at most so many samples per row and dtype; all by default.

    Raises:
        UserError: `compile_envelope` is not callable, or an op's name is unknown.
    """
    if not callable(compile_envelope):
        raise UserError(
            f"compile_envelope is {compile_envelope!r}, not a callable", todo="give a function of an envelope"
        )
    wanted = None if dtypes is None else list(dtypes)
    rows = TABLE.values() if ops is None else [lookup(o) if isinstance(o, str) else o for o in ops]
    report = ConformanceReport()
    for op in rows:
        for dtype in dtypes_of(op, wanted):
            for i, sample in enumerate(samples_of(op, dtype)):
                if samples is not None and i >= samples:
                    break
                for note, env, calls in _runs(op, sample):
                    _check(op, dtype, i, note, env, calls, compile_envelope, report)
    return report


def _check(
    op: PrimOp, dtype: torch.dtype, index: int, note: str, env: Envelope, calls: list[tuple[Any, ...]],
    compile_envelope: Compile, report: ConformanceReport,
) -> None:  # fmt: skip
    try:
        compiled = compile_envelope(env)
        for args in calls:
            inputs = _tensors(args) if not len(env.symbols) else [t.contiguous() for t in _tensors(args)]
            message = judge(op, args, compiled(*inputs)[0])
            if message is None:
                report.passed += 1
            else:
                sizes = [tuple(t.shape) for t in _tensors(args)]
                report.failures.append(Failure(op.name, dtype, index, f"{note}, sizes {sizes}", message))
    except Unsupported:
        known = report.unsupported.setdefault(op.name, [])
        if dtype not in known:
            known.append(dtype)
    except Exception as error:  # a backend's bug is a finding, not the end of the run
        report.failures.append(Failure(op.name, dtype, index, note, f"{type(error).__name__}: {error}"))
