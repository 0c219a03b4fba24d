"""The pass from the aten dialect to the prim dialect."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import torch.fx

import prims
from prims.control import Control, control_of, control_operator
from prims.decomp.registry import Decomposition, get
from prims.errors import LeftWhole, Unsupported, VerifierError
from prims.handlers import GraphHandler, GraphValue
from prims.ir.envelope import Envelope
from prims.ir.passes import Fuel
from prims.ir.settle import settled
from prims.ir.versions import CURRENT
from prims.lower.composites import COMPOSITES, values_alone
from prims.lower.context import LowerContext
from prims.lower.custom import custom_call, opaque_call
from prims.lower.numerics import not_exact, stays_eager
from prims.lower.once import MISSING, Call, Once
from prims.lower.pairs import each_part, joined, paired
from prims.lower.readback import read_back
from prims.lower.rebuild import Rebuild
from prims.lower.regions import UPDATES, write_region, written_regions
from prims.lower.rewrites import ASKED_FOR, rewrites_for
from prims.lower.strided import STRIDED, strided_call
from prims.lower.writes import Writes
from prims.ops import PrimOp
from prims.spec import TensorSpec
from prims.stance import raises_defects

_aten = torch.ops.aten

CONVERSIONS = (_aten._to_copy.default, _aten.to.dtype, _aten.copy.default)
"""Ops by which a program asks for a rounding."""

INDEXING = frozenset(f"aten.{way}{name}" for way in ("", "_unsafe_") for name in ("index.Tensor", "index_put.default"))
"""Ops that take indices, a list of them, from the CPU too."""

COMPLEX = "complex"
"""A backend claims this where it calls every overload on complex numbers, which no primitive knows, as it is."""


def _strided(p: Any, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``as_strided`` as one call, where it does not dissolve into primitives."""
    target: Any = node.target
    operand: Any = node.args[0]
    names = [a.name for a in target._schema.arguments]
    called, given = strided_call(operand.meta["spec"], target, (*args, *map(kwargs.get, names[len(args) :])))
    return opaque_call(p, node, given, {}, target=called)


def decompose(env: Envelope, fuel: Fuel, *, context: LowerContext) -> Envelope:
    """Write every aten op in primitives. What the backend claims stays one node; so does a call that PyTorch's own
    kernel does better, and what has no decomposition, this with a fallback recorded in the report. The rewrites of
    `prims.lower.rewrites` are applied as nodes are made, one unit of fuel each. `prims.lower.numerics` says what stays
    one node besides, where results must be eager's.
    """
    env = settled(read_back(env, context.claims, context.options.numerics))
    build = Rebuild(env, context.claims, rewrites_for(context.options.numerics), fuel)
    p = build.p
    setattr(p, ASKED_FOR, False)

    def extern(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
        if context.report is not None:
            todo = "It is a call of PyTorch's own kernel between compiled ones; nothing needs to be done."
            context.report.fallback("lower", f"{node.target}: {reason}", node.meta.get("source"), todo=todo)
        return opaque_call(p, node, args, kwargs)

    regions = written_regions(env) if UPDATES in context.claims else {}
    once = Once(p, context.claims)
    writes = Writes(p, build.values)

    def emit(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if isinstance(target, PrimOp):
            return getattr(p, target.name)(*args, **kwargs)
        written = None if node in regions else writes.emit(node)
        if written is not None:
            return written
        call = None if node in regions else once.call(node, args, kwargs)
        if call is not None and (known := _again(once, call, target, args)) is not MISSING:
            return known
        name = str(target)
        alone = values_alone(p, node, args, kwargs)
        if alone is not None:
            return alone
        if not context.options.batch_invariant and stays_eager(context.options.numerics, node):
            doubt = not_exact(node) if context.options.numerics == "eager_exact" else None
            if doubt is not None and context.report is not None:
                context.report.not_exact(name, doubt, node.meta.get("source"))
            return _strided(p, node, args, kwargs) if name in STRIDED else opaque_call(p, node, args, kwargs)
        if _is_complex(node):
            pair = paired(p, name, node, args, kwargs)
            if pair is not None:
                return pair
            args, kwargs = joined(args), joined(kwargs)
        if name in context.claims:
            simpler = COMPOSITES.get(name)
            if simpler is not None and fuel.spend(name):
                args, kwargs = simpler(args, kwargs)
            return opaque_call(p, node, args, kwargs)
        region = regions.get(node)
        if region is not None and not _is_complex(node):
            source = build.values[region.source]
            if source.device == args[0].device:
                return write_region(p, args[0], source, region)
        if name in STRIDED:
            rule = functools.partial(STRIDED[name], p, node.args[0].meta["spec"])
            if not _is_complex(node):
                return rule(*args, **kwargs)
            pair = each_part(p, rule, args, kwargs)
            if pair is not None:
                return pair
            return _strided(p, node, args, kwargs)
        fn = get(target)
        if fn is None and target.namespace != "aten":
            control = control_of(target)
            if control is not None:
                return opaque_call(p, node, args, kwargs, target=_lowered(control, context))
            return custom_call(p, node, args, kwargs)
        if _is_complex(node):
            if COMPLEX in context.claims:
                return opaque_call(p, node, args, kwargs)
            return extern(node, args, kwargs, "complex numbers")
        if fn is None:
            return extern(node, args, kwargs, "no decomposition")
        try:
            if name != "aten._to_copy.default":  # whose result is to be elsewhere
                args, kwargs, call = _together(p, node, args, kwargs, call)
            run = fn if call is None else functools.partial(once.record, call, fn)
            if target in CONVERSIONS:
                return _asked_for(p, run, args, kwargs)
            return run(p, *args, **kwargs)
        except LeftWhole:
            return opaque_call(p, node, args, kwargs)
        except Unsupported as error:
            return extern(node, args, kwargs, error.reason)
        except VerifierError as error:
            # A primitive that is not defined for these operands (a dtype, mostly).
            return extern(node, args, kwargs, error.message)
        except Exception as error:
            if raises_defects(context.options):
                raise
            return extern(node, args, kwargs, f"its decomposition failed: {type(error).__name__}: {error}")

    out = build.run(emit)
    return out.replace(dialect="prim", version=CURRENT["prim"], producer="prims", producer_version=prims.__version__)


def _lowered(control: Control, context: LowerContext) -> Any:
    """The operator of the bodies' lowered graphs."""
    from prims.lower import lower

    # Whatever a body is given belongs to somebody else: it is not written.
    claims, options, report = context.claims - {UPDATES}, context.options, context.report
    bodies = [lower(body, claims=claims, options=options, report=report) for body in control.bodies]
    return control_operator(control.form, bodies)


def _again(once: Once, call: Call, target: Any, args: tuple[Any, ...]) -> Any:
    """The result of a call that was decomposed before, or `MISSING`. An error, which a rewrite may make of operands,
    is met again where the call is decomposed, and answered there."""
    if not once.knows(call):
        return MISSING
    try:
        if target in CONVERSIONS:
            return _asked_for(once.p, lambda p, *args: once.again(call), args, {})
        return once.again(call)
    except Exception:
        return MISSING


def _asked_for(p: GraphHandler, fn: Decomposition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Decompose a conversion that the program asks for, and mark the node that it becomes."""
    setattr(p, ASKED_FOR, True)
    try:
        value = fn(p, *args, **kwargs)
    finally:
        setattr(p, ASKED_FOR, False)
    if value is not args[0] and value is not MISSING:
        value.node.meta[ASKED_FOR] = True
    return value


def _together(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any, call: Call | None) -> tuple[Any, ...]:
    """The operands on the result's device: eager takes tensors of no dimension from the CPU, and some indices. What is
    moved may depend on what an operand is made of, so that there is then no call to be recorded.

    What else is elsewhere stays there: primitives refuse it, and eager's operator says what is wrong with it.
    """
    results = node.meta.get("spec")
    results = results if isinstance(results, (tuple, list)) else (results,)
    device = next((s.device for s in results if isinstance(s, TensorSpec)), None)
    if device is None or all(getattr(n.meta.get("spec"), "device", device) == device for n in node.all_input_nodes):
        return args, kwargs, call
    whole = str(node.target) in INDEXING

    def bring(x: Any, nested: bool = False) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(bring(v, True) for v in x)
        if not isinstance(x, GraphValue) or x.device == device or (x.ndim and not (whole and nested)):
            return x
        if x.op is prims.ops.full:
            return p.full(x.shape, x.node.args[1], x.dtype, device)
        return p.aten(torch.ops.aten._to_copy.default, x, device=device)

    return tuple(map(bring, args)), {name: bring(value) for name, value in kwargs.items()}, None


def _is_complex(node: torch.fx.Node) -> bool:
    """Does any tensor that goes in or comes out hold complex numbers?"""
    specs = [node.meta.get("spec"), *(n.meta.get("spec") for n in node.all_input_nodes)]
    for spec in specs:
        for one in spec if isinstance(spec, (tuple, list)) else (spec,):
            dtype = getattr(one, "dtype", None)
            if isinstance(dtype, torch.dtype) and dtype.is_complex:
                return True
    return False
