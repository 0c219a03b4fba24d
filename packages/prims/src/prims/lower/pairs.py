"""Complex numbers as pairs of real values.

Primitives know no complex dtype. A complex value that is made of real ones in the graph (``view_as_complex``,
``complex``, ``polar``) stays a pair of them, so that the arithmetic on it fuses with what is around, as in a rotary
embedding. Whatever else takes a complex value (an FFT, an output) is given one tensor, made once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from prims.decomp import get
from prims.decomp.common import select
from prims.decomp.elementwise import add, mul, sub
from prims.decomp.views import stack
from prims.handlers import GraphHandler, GraphValue
from prims.spec import TensorSpec

__all__ = ["Pair", "each_part", "joined", "paired"]

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class Pair:
    """A complex value: its real and imaginary parts, of one shape and dtype."""

    def __init__(self, p: GraphHandler, re: GraphValue, im: GraphValue) -> None:
        self.p = p
        self.re = re
        self.im = im

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes: ``int | Sym``."""
        return self.re.shape

    @property
    def node(self) -> torch.fx.Node:
        """The node of the one tensor that holds both parts."""
        return self.join().node

    def join(self) -> GraphValue:
        """Both parts in one tensor. Equal calls are one node."""
        made: GraphValue = self.p.aten(torch.ops.aten.complex.default, self.re, self.im)
        return made


def joined(value: Any) -> Any:
    """An argument with every pair in it as one tensor."""
    if isinstance(value, Pair):
        return value.join()
    if isinstance(value, (tuple, list)):
        return type(value)(joined(v) for v in value)
    if isinstance(value, dict):
        return {k: joined(v) for k, v in value.items()}
    return value


def paired(p: GraphHandler, name: str, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call's result in terms of pairs, or None where one tensor serves better."""
    rule = _RULES.get(name)
    if rule is None or not _worth_it(name, node, args):
        return None
    return rule(p, node, args, kwargs)


def each_part(p: GraphHandler, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair | None:
    """What ``fn`` makes of the real and of the imaginary parts; None where an operand has no parts of a known type."""
    operands = [x for x in (*args, *kwargs.values()) if isinstance(x, GraphValue)]
    if any(x.dtype not in _REAL for x in operands):
        return None
    re, im = (
        fn(*(_part(p, a, part) for a in args), **{k: _part(p, v, part) for k, v in kwargs.items()}) for part in (0, 1)
    )
    return Pair(p, re, im)


def _worth_it(name: str, node: torch.fx.Node, args: tuple[Any, ...]) -> bool:
    """Is something a pair already, and nothing larger to be taken apart?"""
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or (spec.dtype.is_complex and spec.dtype not in _REAL):
        return False
    if name in _MAKERS:
        return True
    flat = [v for a in args for v in (a if isinstance(a, (tuple, list)) else (a,))]
    largest = max((_count(v) for v in flat if isinstance(v, Pair)), default=0)
    whole = [v for v in flat if isinstance(v, GraphValue) and v.dtype.is_complex]
    return largest > 0 and all(_count(v) <= largest for v in whole)


def _count(value: Any) -> int:
    total = 1
    for size in value.shape:
        total *= size if isinstance(size, int) else int(size.hint)
    return max(total, 1)


# ---- rules ------------------------------------------------------------------------------------------------------


Rule = Callable[[GraphHandler, torch.fx.Node, tuple[Any, ...], dict[str, Any]], Any]
_RULES: dict[str, Rule] = {}
_MAKERS = frozenset({"aten.view_as_complex.default", "aten.complex.default", "aten.polar.default"})


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def _parts(p: GraphHandler, x: Any) -> tuple[Any, Any]:
    """Real and imaginary part; None for the latter where it is 0."""
    if isinstance(x, Pair):
        return x.re, x.im
    if isinstance(x, complex):
        return x.real, x.imag
    if isinstance(x, GraphValue) and x.dtype.is_complex:
        both = p.aten(torch.ops.aten.view_as_real.default, x)
        return select(p, both, x.ndim, 0), select(p, both, x.ndim, 1)
    return x, None


@_rule("aten.view_as_complex.default")
def _view_as_complex(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    x = args[0]
    return Pair(p, select(p, x, x.ndim - 1, 0), select(p, x, x.ndim - 1, 1))


@_rule("aten.complex.default")
def _complex(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    return _made(p, node, *args)


@_rule("aten.polar.default")
def _polar(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    size, angle = args
    return _made(p, node, mul(p, size, p.cos(angle)), mul(p, size, p.sin(angle)))


@_rule("aten.view_as_real.default")
def _view_as_real(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    z = args[0]
    return stack(p, [z.re, z.im], len(z.shape))


@_rule("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    (a, b), (c, d) = _parts(p, args[0]), _parts(p, args[1])
    if b is None or d is None:
        (a, b), c = ((a, b), c) if d is None else ((c, d), a)
        return _made(p, node, mul(p, a, c), mul(p, b, c))
    return _made(p, node, sub(p, mul(p, a, c), mul(p, b, d)), add(p, mul(p, a, d), mul(p, b, c)))


def _sum(fn: Any) -> Rule:
    def rule(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        (a, b), (c, d) = _parts(p, args[0]), _parts(p, args[1])
        if isinstance(kwargs.get("alpha"), complex):
            return None
        if b is None or d is None:
            zero = p.full((), 0.0, _REAL[node.meta["spec"].dtype], node.meta["spec"].device)
            b, d = (zero if b is None else b), (zero if d is None else d)
        return _made(p, node, fn(p, a, c, **kwargs), fn(p, b, d, **kwargs))

    return rule


_rule("aten.add.Tensor", "aten.add.Scalar")(_sum(add))
_rule("aten.sub.Tensor", "aten.sub.Scalar")(_sum(sub))


@_rule("aten.conj_physical.default", "aten._conj_physical.default")
def _conj(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    return Pair(p, args[0].re, p.neg(args[0].im))


@_rule("aten.abs.default")
def _abs(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    return p.hypot(args[0].re, args[0].im)


def _each_part(name: str) -> None:
    """An operator that treats both parts alike: a change of shape, a sum."""

    @_rule(name)
    def rule(p: GraphHandler, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        fn = get(node.target)
        if fn is None or kwargs.get("dtype") is not None:
            return None
        parts = []
        for part in (0, 1):
            given = tuple(_part(p, a, part) for a in args)
            parts.append(fn(p, *given, **kwargs))
        return Pair(p, *parts)


def _part(p: GraphHandler, x: Any, part: int) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_part(p, v, part) for v in x)
    if isinstance(x, Pair) or (isinstance(x, GraphValue) and x.dtype.is_complex):
        return _parts(p, x)[part]
    return x


for _name in (
    "view.default reshape.default _unsafe_view.default unsqueeze.default squeeze.default squeeze.dim squeeze.dims "
    "expand.default permute.default transpose.int t.default slice.Tensor select.int clone.default alias.default "
    "neg.default sum.default sum.dim_IntList cat.default stack.default flip.default repeat.default"
).split():
    _each_part(f"aten.{_name}")


def _made(p: GraphHandler, node: torch.fx.Node, re: Any, im: Any) -> Pair:
    """The pair in the precision and the shape that the operator gives."""
    spec: TensorSpec = node.meta["spec"]
    dtype = _REAL[spec.dtype]
    parts = []
    for part in (re, im):
        value = part if part.dtype == dtype else p.convert(part, dtype)
        if value.ndim != len(spec.shape) or any(a is not b and a != b for a, b in zip(value.shape, spec.shape)):
            lead = len(spec.shape) - value.ndim
            value = p.broadcast(value, tuple(spec.shape), tuple(range(lead, len(spec.shape))))
        parts.append(value)
    return Pair(p, *parts)
