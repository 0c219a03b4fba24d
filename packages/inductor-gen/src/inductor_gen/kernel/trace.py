"""Tracing: from a cluster to the body that its kernel computes at each point."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.layout.record import Layout
from inductor_gen.loops.graph import Node, asked_before, inner_dims, is_whole_division
from inductor_gen.loops.index import ONE, ZERO, Ranges, div, flatten, lower, nonneg, rem, simplified, size, upper
from inductor_gen.loops.views import Index
from prims.dtypes import HALVES
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Storage", "trace", "trace_scatter"]

#: The node whose buffer holds a node's value.
Storage: TypeAlias = Callable[[Node], Node]

#: Operators whose result in 16 bits is one of their operands' values, or a number as the program gives it.
_NEVER_ROUNDED = frozenset(
    "const size load where neg abs sign maximum minimum fmax fmin copysign convert bitcast floor ceil trunc round "
    "rounded".split()
)  # fmt: skip

_COMPARISONS = frozenset("eq ne lt le gt ge".split())

#: What is asked of whole numbers and of answers, where they are known.
_ANSWERS: dict[str, Callable[..., bool]] = {
    **{name: getattr(operator, name) for name in _COMPARISONS},
    "logical_and": lambda a, b: a and b, "logical_or": lambda a, b: a or b, "logical_not": operator.not_,
}  # fmt: skip

#: What jumps from one number to another where its operand hardly differs.
_JUMPS = frozenset("isinf sign floor ceil trunc round fmod remainder".split())


class _Tracer:
    def __init__(
        self, fusion: Fusion, cluster: Cluster, layouts: Mapping[Node, Layout], storage: Storage, rounding: bool
    ) -> None:
        self.fusion = fusion
        self.rounding = rounding
        self.cluster = cluster
        self.layouts = layouts
        self.storage = storage
        inner = list(cluster.inner)
        self.body = Body([v for v in cluster.space if v not in cluster.inner], inner, dict(cluster.space))
        self.on_cpu = all(node.device is None or node.device.type == "cpu" for node in cluster.nodes)
        self.interned: dict[Any, Val] = {}
        self.memo: dict[Any, Val] = {}
        self.first: dict[tuple[int, Index], tuple[Expr, ...]] = {}  # the conditions that a value was first asked under

    # ---- values -----------------------------------------------------------------------------------------

    def val(self, op: str, args: tuple[Val, ...], dtype: torch.dtype, attr: Any = None, at: Expr | None = None) -> Val:
        token = (type(attr).__name__, str(attr)) if isinstance(attr, float) else attr
        key = (op, tuple(a.id for a in args), dtype, token, at)
        found = self.interned.get(key)
        if found is None:
            found = Val(op, args, dtype, attr, at)
            found.id = len(self.body.vals)
            self.body.vals.append(found)
            self.interned[key] = found
        if self.rounding and dtype in HALVES and op not in _NEVER_ROUNDED:
            return self.val("rounded", (found,), dtype)
        return found

    def const(self, value: Any, dtype: torch.dtype) -> Val:
        if isinstance(value, (bool, int, float)):
            return self.val("const", (), dtype, value)
        return self.val("size", (), dtype, size(value))

    def atom(self, v: Val) -> Expr:
        """The value as a symbol for index expressions."""
        symbol = ex.symbol(f"v{v.id}")
        self.body.atoms[symbol] = v
        return symbol

    def place(self, v: Val) -> Expr:
        """A value that is an index: of loop variables where it is known to be that, else through a symbol for it."""
        return v.at if v.op == "index" and v.at is not None else self.atom(v)

    def condition(self, where: tuple[Expr, ...]) -> Val | None:
        """The conjunction of ``w >= 0``; None when all hold everywhere."""
        result: Val | None = None
        for w in where:
            if self.decided(w):
                continue
            test = self.val("test", (), torch.bool, None, w)
            result = test if result is None else self.val("logical_and", (result, test), torch.bool)
        return result

    def decided(self, w: Expr) -> bool | None:
        """Does ``w >= 0`` hold everywhere (True), nowhere (False), or is it unknown (None)?"""
        space = self.body.space
        if nonneg(lower(w, space)):
            return True
        high = upper(w, space)
        if high is not None and nonneg(ex.sub(ex.neg(high), ONE)):
            return False
        return None

    def value(self, node: Node, index: Index, where: tuple[Expr, ...] = ()) -> Val:
        """The value of a node at an index, meant only where the conditions hold.

        One that is asked for under other conditions too is computed under none, where there is such an element: parts
        that are made of one another would be computed once for each way to them.
        """
        if where and self.first.setdefault((node.id, index), where) != where and self._exists(node, index):
            where = ()
        key = (node.id, index, where)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._value(node, index, where)
        return found

    def _exists(self, node: Node, index: Index) -> bool:
        inside = (e for i, extent in zip(index, node.shape, strict=True) for e in (i, ex.sub(ex.sub(extent, ONE), i)))
        return all(self.decided(e) for e in inside)

    def _value(self, node: Node, index: Index, where: tuple[Expr, ...]) -> Val:
        cluster = self.cluster
        if cluster.homes.get(node) == index:
            return self.computed(node)
        if node.kind == "view":
            return self._view(node, index, where)
        if node.kind == "create":
            return self._create(node, index)
        if node in self.fusion.inlined:
            return self._pointwise(node, index, where)
        return self.load(node, index, where)

    def computed(self, node: Node) -> Val:
        """The value of a node of this cluster, at its home."""
        key = (node.id, None, ())
        found = self.memo.get(key)
        if found is not None:
            return found
        at = self.cluster.operands[node]
        if node.kind == "reduce":
            found = self._reduce(node, at)
        elif node.kind == "scan":
            x = self.value(node.args[0], at)
            moves = any(v in self.cluster.inner for v in at[node.args[1]].symbols)
            found = self.val("scan", (x,), node.dtype, node.op) if moves else x
        else:
            found = self._pointwise(node, at, ())
        if found.node is None:
            found.node = node
        self.memo[key] = found
        return found

    def load(self, node: Node, index: Index, where: tuple[Expr, ...]) -> Val:
        """An element of a buffer."""
        condition = self.condition(where)
        args = () if condition is None else (condition,)
        at = simplified(self.layouts[node].position(index), self.body.space)
        return self.val("load", args, node.dtype, self.storage(node), at)

    def _view(self, node: Node, index: Index, where: tuple[Expr, ...]) -> Val:
        branches = []
        for b in self.fusion.pull(node, index):
            known = [self.decided(w) for w in b.where]
            if any(k is False for k in known):
                continue
            branches.append((b, tuple(w for w, k in zip(b.where, known, strict=True) if k is None)))
            if not branches[-1][1]:
                break
        result: Any = None
        for i, (branch, tests) in reversed(list(enumerate(branches))):  # the last is for all that is left
            earlier = tuple(ex.sub(ex.neg(w[0]), ONE) for _, w in branches[:i] if len(w) == 1)
            chosen = self._branch(branch, node, (*where, *earlier, *tests))
            condition = self.condition(tests)
            result = chosen if condition is None else self.val("where", (condition, chosen, result), node.dtype)
        return result

    def _branch(self, branch: Any, node: Node, where: tuple[Expr, ...]) -> Val:
        if branch.node is None:
            return self.const(branch.value, node.dtype)
        return self.value(branch.node, branch.index, where)

    def _create(self, node: Node, index: Index) -> Val:
        if node.op == "full":
            return self._rounded(self.const(node.args[1], node.dtype))  # it is a tensor, not a number beside one
        _, start, step, dtype, _ = node.args
        if all(isinstance(x, int) or hasattr(x, "expr") for x in (start, step)) and not dtype.is_floating_point:
            at = ex.add(size(start), ex.mul(size(step), index[0]))
            v = self.const(at.value, torch.int64) if at.is_const else self.val("index", (), torch.int64, None, at)
            return v if dtype == torch.int64 else self.val("convert", (v,), dtype)
        # floats: computed in float64, rounded once
        i = self.val("convert", (self.val("index", (), torch.int64, None, index[0]),), torch.float64)
        scaled = self.val("mul", (i, self.const(step, torch.float64)), torch.float64)
        v = self.val("add", (scaled, self.const(start, torch.float64)), torch.float64)
        return v if dtype == torch.float64 else self.val("convert", (v,), dtype)

    def _reduce(self, node: Node, at: Index) -> Val:
        x = self.value(node.args[0], at)
        if node.op in ("argmax", "argmin"):
            x = self._rounded(x)  # of equal ones it is the first
        inner = set(self.cluster.inner)
        over = {v for d in inner_dims(node) for v in at[d].symbols if v in inner}
        if node.op in ("argmax", "argmin"):
            if not over:
                return self.const(0, torch.int64)
            position = self.val("index", (), torch.int64, None, at[inner_dims(node)[0]])
            return self.val("reduce", (x, position), torch.int64, node.op)
        if not over:
            return x
        return self.val("reduce", (x,), node.dtype, node.op)

    # ---- pointwise --------------------------------------------------------------------------------------

    def _pointwise(self, node: Node, index: Index, where: tuple[Expr, ...]) -> Val:
        match node.op:
            case "gather" | "index":
                return self._lookup(node, index, where)
            case "convert":
                return self._convert(self.value(node.args[0], index, where), node.args[1])
            case "bitcast":
                return self.val("bitcast", (self.value(node.args[0], index, where),), node.args[1])
            case "copy":
                return self.value(node.args[0], index, where)
            case "bounded":
                x, extent, wraps = node.args
                i = self.value(x, index, where)
                return self.bounded(self.wrapped(i, extent) if wraps else i, extent, where)
            case "random_uniform" | "random_normal" | "random_bits":
                return self._random(node, index)
        if node.op == "where" and isinstance(node.args[0], Node):
            test = self.value(node.args[0], index, where)
            if test.op == "const":  # a part of what was written in parts
                taken = node.args[1 if test.attr else 2]
                return self.value(taken, index, where) if isinstance(taken, Node) else self.const(taken, node.dtype)
        compared = node.args[1:] if node.op == "where" else node.args
        operand = next((a.dtype for a in compared if isinstance(a, Node)), node.dtype)
        args = tuple(self.value(a, index, where) if isinstance(a, Node) else self.const(a, operand) for a in node.args)
        if is_whole_division(node.op, node.dtype):
            low, high = _limits(args[1], self.body.space)
            args = (args[0], self._checked("nonzero", args[1], None, where)) if low <= 0 <= high else args
        if operand in HALVES and _tells_roundings(node.op, args):
            args = tuple(map(self._rounded, args))
        known, place = _known(node.op, args), self._position(node, args)
        found = self.val(node.op, args, node.dtype) if known is None else self.const(known, torch.bool)
        if place is not None:
            found = place
        if found.number is None:
            found.number = node
        return found

    def _position(self, node: Node, args: tuple[Val, ...]) -> Val | None:
        """What is computed of positions and sizes alone, as the index that it is: a place that is known in memory."""
        if node.dtype != torch.int64 or node.op not in _OF_POSITIONS or not all(a.dtype == torch.int64 for a in args):
            return None
        given = [_as_index(a) for a in args]
        if any(each is None for each in given) or not any(a.op == "index" for a in args):
            return None
        at = _OF_POSITIONS[node.op](self.body.space, *given)
        if at is None or any(abs(coeff) > _FACTOR for _, coeff in at.terms):
            return None
        if any(s in self.body.space or s in self.body.atoms for s in at.symbols):
            return self.val("index", (), torch.int64, None, at)
        return self.const(at.value if at.is_const else at, torch.int64)

    def _convert(self, x: Val, dtype: torch.dtype) -> Val:
        if x.dtype == dtype:
            return x
        if not dtype.is_floating_point:  # it tells roundings, as comparisons do
            x = self._rounded(x)
        return self.val("convert", (x,), dtype)

    def _rounded(self, x: Val) -> Val:
        """A 16-bit value as memory would hold it."""
        return self.val("rounded", (x,), x.dtype) if x.dtype in HALVES and not _held(x) else x

    def _random(self, node: Node, index: Index) -> Val:
        _, seed, offset, dtype, _ = node.args
        position = self.val("index", (), torch.int64, None, flatten(index, node.shape))
        args = self.value(seed, (ZERO,) * len(seed.shape)), self.const(offset, torch.int64), position
        return self.val(node.op, args, dtype)

    # ---- checks of what the program's data says (on a GPU eager divides by zero without a word) ------------------

    def bounded(self, i: Val, extent: Expr, where: tuple[Expr, ...] = ()) -> Val:
        """An index that the kernel checks against a dimension's extent, unless it is known to be one."""
        i = self._convert(i, torch.int64)
        low, high = _limits(i, self.body.space)
        if low >= 0 and extent.kind == "const" and high < extent.args[0]:
            return i
        if i.op == "index" and i.at is not None and self.decided(i.at):
            if self.decided(ex.sub(ex.sub(extent, ONE), i.at)):
                return i
        return self._checked("bounded", i, extent, where)

    def _checked(self, op: str, v: Val, attr: Any, where: tuple[Expr, ...]) -> Val:
        if op == "nonzero" and not self.on_cpu:
            return v
        condition = self.condition(where)
        return self.val(op, (v,) if condition is None else (v, condition), v.dtype, attr)

    def picked(self, node: Node, index: Index, where: tuple[Expr, ...] = ()) -> tuple[Index, list[Val]]:
        """The element of its first operand that a gather, index, scatter or index_put at ``index`` reads or writes, and
        the checked indices in its place."""
        x, indices = node.args[:2]
        if node.op in ("gather", "scatter"):
            dim = node.args[2 if node.op == "gather" else 3]
            given, rest = iter([(dim, self.value(indices, index, where))]), (*index[:dim], *index[dim + 1 :])
        else:
            shared, rest = index[: len(indices[0].shape)], index[len(indices[0].shape) :]
            dims = zip(indices, node.args[2], strict=True)
            values = ((d, i, self.value(i, shared, where)) for i, d in dims)
            given = ((d, v if i.op == "bounded" else self.wrapped(v, x.shape[d])) for d, i, v in values)
        asked = asked_before(node, self.fusion.kept)
        found = {d: i if asked else self.bounded(i, x.shape[d], where) for d, i in given}
        places, others = {d: self.place(i) for d, i in found.items()}, iter(rest)
        return tuple(places[d] if d in places else next(others) for d in range(len(x.shape))), list(found.values())

    def _lookup(self, node: Node, index: Index, where: tuple[Expr, ...]) -> Val:
        at, checks = self.picked(node, index, where)
        read = self.value(node.args[0], at, where)
        for checked in checks:
            read = self._behind(checked, read)
        return read

    def _behind(self, checked: Val, read: Val) -> Val:
        """What is read at a checked index; the check is made also where all elements are equal, and none needs it."""
        if checked.op != "bounded" or checked in self.body.cone([read]):
            return read
        exists = self.val("ge", (checked, self.const(0, torch.int64)), torch.bool)
        return self.val("where", (exists, read, self.const(0, read.dtype)), read.dtype)

    def wrapped(self, i: Val, extent: Expr) -> Val:
        """An index that may be negative, counted from the end."""
        i = self._convert(i, torch.int64)
        if _limits(i, self.body.space)[0] >= 0 or i.op == "index" and i.at is not None and self.decided(i.at):
            return i
        negative = self.val("lt", (i, self.const(0, torch.int64)), torch.bool)
        moved = self.val("add", (i, self.val("size", (), torch.int64, extent)), torch.int64)
        return self.val("where", (negative, moved, i), torch.int64)

    def finish(self, nodes: Sequence[Node]) -> Body:
        """The body, which computes these nodes, without what no store needs."""
        self.body.nodes = list(nodes)
        self.body.prune()
        return self.body


#: A factor of a position up to which no index comes to 64 bits.
_FACTOR = 1 << 24


def _as_index(v: Val) -> Expr | None:
    """A position, a size or a whole number as an expression; None for another value."""
    if v.op == "index":
        return v.at
    if v.op == "const":
        return ex.const(int(v.attr)) if type(v.attr) is int else None
    return v.attr if v.op == "size" and isinstance(v.attr, Expr) and not v.attr.is_float else None


def _times(space: Ranges, a: Expr, b: Expr) -> Expr | None:
    varies = [any(s in space for s in e.symbols) for e in (a, b)]
    return None if all(varies) else ex.mul(a, b)


def _divided(space: Ranges, a: Expr, b: Expr) -> Expr | None:
    return div(a, b, space) if b.is_const and b.value > 0 and nonneg(lower(a, space)) else None


def _remaining(space: Ranges, a: Expr, b: Expr) -> Expr | None:
    return rem(a, b, space) if b.is_const and b.value > 0 and nonneg(lower(a, space)) else None


#: Of positions and numbers: what is computed of them, where that is an index of normal form again.
_OF_POSITIONS: dict[str, Callable[..., Expr | None]] = {
    "add": lambda space, a, b: ex.add(a, b),
    "sub": lambda space, a, b: ex.sub(a, b),
    "neg": lambda space, a: ex.neg(a),
    "mul": _times,
    "floor_div": _divided,
    "remainder": _remaining,
}


def _held(v: Val) -> bool:
    """Whether a 16-bit value is as memory holds it. One that is not would not equal itself read from there."""
    if v.op in ("load", "const", "convert", "rounded"):
        return True
    return v.op in _NEVER_ROUNDED and v.op != "size" and all(_held(a) for a in v.args if a.dtype == v.dtype)


def _tells_roundings(op: str, args: tuple[Val, ...]) -> bool:
    """Whether an operator of 16-bit values is likely to give another answer for what has not been rounded: equal to a
    number, a whole one, too large for the type, or equal to what was rounded. Orders beside a plain number are not
    worth it."""
    if op not in _COMPARISONS:
        return op in _JUMPS
    numbers = [float(a.attr) for a in args if a.op == "const"]
    return not numbers or op in ("eq", "ne") or any(not abs(n) < torch.finfo(args[0].dtype).max for n in numbers)


def _known(op: str, args: tuple[Val, ...]) -> bool | None:
    """The answer to a comparison of whole numbers, or to what is asked of answers, if it is known here."""
    if op not in _ANSWERS or not all(a.op == "const" and a.dtype in (torch.int64, torch.bool) for a in args):
        return None
    return bool(_ANSWERS[op](*(a.attr for a in args)))


_ANY = 1 << 62


def _limits(v: Val, space: Mapping[Expr, Expr]) -> tuple[int, int]:
    """The smallest and the largest number that an integer value may be, as far as its making tells."""
    match v.op:
        case "const":
            return (int(v.attr), int(v.attr)) if isinstance(v.attr, (int, bool)) else (-_ANY, _ANY)
        case "size":
            return 0, _ANY
        case "index":
            least, most = lower(v.at, space), upper(v.at, space)  # type: ignore[arg-type]
            return (
                least.args[0] if least is not None and least.kind == "const" else -_ANY,
                most.args[0] if most is not None and most.kind == "const" else _ANY,
            )
        case "minimum" | "maximum" | "where":
            (a, b), (c, d) = (_limits(x, space) for x in v.args[-2:])
            if v.op == "where":
                test = v.args[0]
                if test.op == "lt" and test.args[0] is v.args[2] and _limits(test.args[1], space) == (0, 0):
                    c = max(c, 0)  # negative ones are replaced
                return min(a, c), max(b, d)
            return (min(a, c), min(b, d)) if v.op == "minimum" else (max(a, c), max(b, d))
        case "convert" if not v.args[0].dtype.is_floating_point and v.dtype == torch.int64:
            return _limits(v.args[0], space)
        case "reduce" if v.attr in ("argmax", "argmin"):
            return _limits(v.args[1], space)
    if v.dtype == torch.bool:
        return 0, 1
    return (0, 255) if v.dtype == torch.uint8 else (-_ANY, _ANY)


def trace(
    fusion: Fusion, cluster: Cluster, stored: Collection[Node], layouts: Mapping[Node, Layout], storage: Storage,
    parts: Mapping[Node, Sequence[Node]], rounding: bool = False,
) -> Body:  # fmt: skip
    """The body of a cluster that writes ``stored`` (nodes of the cluster) to their buffers, which ``storage`` tells,
    and what has ``parts`` in other buffers to those.

    With ``rounding`` every 16-bit value is rounded where it is computed, as if each operator wrote it to memory.
    """
    tracer = _Tracer(fusion, cluster, layouts, storage, rounding)
    for node in cluster.nodes:
        v = tracer.computed(node)
        for into in (*([node] if node in stored else []), *parts.get(node, ())):
            at = simplified(layouts[into].position(cluster.homes[node]), tracer.body.space)
            tracer.body.stores.append(Store(into, at, v))
    return tracer.finish(cluster.nodes)


def trace_scatter(
    fusion: Fusion, cluster: Cluster, layouts: Mapping[Node, Layout], storage: Storage, rounding: bool = False
) -> Body:
    """The body that combines the values of a scatter or index_put into its buffer, which holds ``x`` already."""
    tracer = _Tracer(fusion, cluster, layouts, storage, rounding)
    node = cluster.nodes[0]
    index = cluster.operands[node]
    at, _ = tracer.picked(node, index)
    if node.op == "scatter":
        source, mode = node.args[2], node.args[4]
    else:
        source, mode = node.args[3], "add" if node.args[4] else "set"
    tracer.body.stores.append(Store(storage(node), layouts[node].position(at), tracer.value(source, index), mode))
    return tracer.finish([node])
