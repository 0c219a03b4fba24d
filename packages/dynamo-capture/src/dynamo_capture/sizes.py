"""Size guards as native programs: what the symbolic sizes of a graph assumed about each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_capture.dynamic import asked_for
from dynamo_capture.float_guards import FLOAT, guard_floats, guard_sizes, is_of_values
from dynamo_capture.guards import Guard
from dynamo_capture.sources import strided
from dynamo_capture.values.tensor import TensorValue
from prims.spec.expr import Expr, bits_of_float
from prims.spec.ranges import interval

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.sources import Source
    from prims.spec import SymbolContext
    from prims.spec.context import SizeGuard
    from prims.spec.ranges import Interval

__all__ = [
    "NotGuardable", "add_size_guards", "fixed_though_marked", "float_symbols", "late_size_guards", "program",
    "symbol_operands",
]  # fmt: skip

_ASSOCIATIVE = {"min": "min", "max": "max", "and": "and", "or": "or"}
_FLOAT_COMPARISONS = {"feq": "==", "flt": "<", "fle": "<="}
_BINARY = {"floordiv": "//", "mod": "%"}


class NotAnInteger(Exception):
    """The expression has a part that the native evaluator does not know (floats, numbers of more than 64 bits)."""


class NotGuardable(Exception):
    """What a stage behind capture has assumed of sizes is nothing that native guards can check."""


def late_size_guards(
    context: SymbolContext, guards: list[SizeGuard], operands: dict[str, tuple[Any, ...]], floats: frozenset[str]
) -> list[Any]:
    """Guards that came up after the others were put on the tree, as one native program.

    Raises:
        NotGuardable: one is about floats, or about what no input tells.
    """
    hints = context.hints()
    whole: list[Any] = []
    for guard in guards:
        names = guard.expr.free_symbols()
        if not names <= operands.keys() or names & floats:
            raise NotGuardable(f"it rests on {guard.expr}, which no guard of sizes checks")
        try:
            parts = [program(guard.expr, operands)]
        except NotAnInteger:
            parts = [[operands[name], hints[name], "=="] for name in sorted(names)]
        for part in parts:
            whole.extend([*part, "and"] if whole else part)
    return whole


def float_symbols(tx: Capture) -> dict[str, Any]:
    """The inputs that are the bits of floats, by their symbols."""
    return {
        inp.node.meta["spec"].expr.symbol_name: inp
        for inp in tx.graph.all_inputs
        if inp.source.kind == "call" and inp.source.key is bits_of_float
    }


def add_size_guards(tx: Capture) -> None:
    """Put the symbol context's guards, ranges and stride relations on the guard tree."""
    tree = tx.guards.tree
    operands = symbol_operands(tx)
    programs: list[list[Any]] = []
    floats = float_symbols(tx)
    conditions = []
    for guard in tx.symbols.guards:
        names = guard.expr.free_symbols()
        if names and names <= floats.keys():
            conditions.append(guard.expr)
            continue
        try:
            programs.append(program(guard.expr, operands))
        except NotAnInteger:
            if _always(tx, guard.expr):
                programs.extend([operands[name], _LOW, ">="] for name in sorted(names & operands.keys()))
            elif (read := _read_from(tx, names)) is not None and is_of_values(guard.expr, names & floats.keys()):
                guard_sizes(tx, guard.expr, read)
            else:
                programs.extend(_specialised(tx, guard.expr, operands))
    guard_floats(tx, conditions, floats)
    for source, strides in tx.sizes.stride_guards:
        node = source.node(tree)
        for dim, stride in strides.items():
            programs.append([("stride", node, dim), *program(stride.expr, operands), "=="])
    for first, second in tx.sizes.equal_numbers:
        programs.append([("int", first.node(tree)), ("int", second.node(tree)), "=="])
    of_one = {source.node(tree) for source in tx.sizes.of_one}
    bounds = []
    for info in tx.symbols:
        operand = operands.get(info.name)
        if operand is not None and info.min > (1 if operand[1] in of_one else -(2**63)):
            if operand[0] != "size" or operand[1] in of_one:  # the guards of other tensors check the least size
                programs.append([operand, info.min, ">="])
                bounds.append(f"{info.source} >= {info.min}")
    programs.extend(_least(tx, operands))
    programs.extend(_equal(tx, operands))
    whole: list[Any] = []
    for i, one in enumerate(programs):  # joined one by one: the evaluator's stack is 64 deep
        whole.extend(one if i == 0 else [*one, "and"])
    if programs:
        asked = [str(g.expr) for g in tx.symbols.guards] or bounds
        text = " and ".join(asked) or "symbolic sizes keep their relations"
        reasons = {g.reason for g in tx.symbols.guards} or ({"a number that changes"} if bounds else set())
        tree.check_shape(whole, text=text, reason="; ".join(sorted(reasons)))
        tx.guards.guards.extend(Guard("size", str(g.expr), True, g.where) for g in tx.symbols.guards)


def _least(tx: Capture, operands: dict[str, tuple[Any, ...]]) -> list[list[Any]]:
    """The least sizes of dimensions whose tensors let smaller ones pass in others (``mark_unbacked``)."""
    found = []
    for inp in tx.graph.all_inputs:
        if isinstance(inp.value, TensorValue) and str(inp.source) in tx.sizes.low_tensors:
            for dim, size in enumerate(inp.node.meta["spec"].shape):
                if not isinstance(size, int) and size.expr.is_symbol:
                    info = tx.symbols.info(size.expr.symbol_name)
                    found.append([("size", inp.source.node(tx.guards.tree), dim), info.min, ">="])
    return found


def _equal(tx: Capture, operands: dict[str, tuple[Any, ...]]) -> list[list[Any]]:
    """Sizes of inputs that are one symbol, because the user has given them one name."""
    found = []
    for inp in tx.graph.all_inputs:
        if isinstance(inp.value, TensorValue) and inp.source.kind != "first":
            for dim, size in enumerate(inp.node.meta["spec"].shape):
                if not isinstance(size, int) and size.expr.is_symbol:
                    here = ("size", inp.source.node(tx.guards.tree), dim)
                    if operands[size.expr.symbol_name] != here:
                        found.append([here, operands[size.expr.symbol_name], "=="])
    return found


def fixed_though_marked(tx: Capture) -> list[tuple[str, Any]]:
    """What fixes sizes that were marked dynamic: texts for the user, each with the line that does."""
    found = []
    for inp in tx.graph.all_inputs:
        if not isinstance(inp.value, TensorValue) or not inp.real.__dict__:
            continue
        spec = inp.node.meta["spec"]
        for dim in sorted(asked_for(inp.real)):
            size = spec.shape[dim] if dim < len(spec.shape) else 0
            if isinstance(size, int) or not tx.symbols.simplify(size.expr).is_const:
                continue
            names = size.expr.free_symbols()
            guard = next((g for g in tx.symbols.guards if g.expr.kind == "eq" and names & g.expr.free_symbols()), None)
            why = f": {guard.reason}" if guard is not None else ""
            what = f"dimension {dim} of {inp.source} was marked dynamic"
            text = f"{what}, but the program fixes it to {inp.real.shape[dim]}{why}"
            found.append((text, None if guard is None else guard.where))
    return found


def symbol_operands(tx: Capture) -> dict[str, tuple[Any, ...]]:
    """Symbol name -> the native operand that reads it."""
    tree = tx.guards.tree
    found: dict[str, tuple[Any, ...]] = {}
    for inp in tx.graph.all_inputs:
        if inp.source.kind == "first":
            continue
        node = inp.source.node(tree)
        if isinstance(inp.value, TensorValue):
            for dim, size in enumerate(inp.node.meta["spec"].shape):
                if not isinstance(size, int) and size.expr.is_symbol:
                    found.setdefault(size.expr.symbol_name, ("size", node, dim))
        else:
            tensor = strided(inp.source)
            operand = ("int", node) if tensor is None else ("stride", tensor.node(tree), inp.source.key)
            found.setdefault(inp.node.meta["spec"].expr.symbol_name, operand)
    return found


#: What sizes are, and numbers that have a symbol.
_LOW, _HIGH = -(2**63), 2**63 - 1


def _always(tx: Capture, expr: Expr) -> bool:
    """Whether a comparison holds for all numbers of 64 bits within the symbols' ranges."""
    if expr.kind not in ("eq", "ne", "le"):
        return False

    def of_atom(atom: Expr) -> Interval | None:
        name = atom.symbol_name
        if name is None:
            return None
        info = tx.symbols.info(name)
        return max(info.min, _LOW), _HIGH if info.max is None else min(info.max, _HIGH)

    low, high = interval(expr.args[0], of_atom)
    return high <= 0 if expr.kind == "le" else expr.kind == "ne" and (low > 0 or high < 0)


def _read_from(tx: Capture, names: frozenset[str]) -> list[tuple[str, Source, int | None]] | None:
    """The tensors and numbers that symbols are read from (``FLOAT``: a float, of which the symbol holds the bits); None
    where no input tells one."""
    found: dict[str, tuple[str, Source, int | None]] = {}
    for inp in tx.graph.all_inputs:
        if inp.source.kind == "first":
            continue
        spec = inp.node.meta["spec"]
        if inp.source.key is bits_of_float:
            found.setdefault(spec.expr.symbol_name, (spec.expr.symbol_name, inp.source.base, FLOAT))  # type: ignore[arg-type]
            continue
        sizes = enumerate(spec.shape) if isinstance(inp.value, TensorValue) else [(None, spec)]
        for dim, size in sizes:
            if not isinstance(size, int) and size.expr.is_symbol:
                found.setdefault(size.expr.symbol_name, (size.expr.symbol_name, inp.source, dim))
    return [found[name] for name in sorted(names)] if names <= found.keys() else None


def _specialised(tx: Capture, expr: Expr, operands: dict[str, tuple[Any, ...]]) -> list[list[Any]]:
    """The symbols of an expression fixed to their values in this call."""
    hints = tx.symbols.hints()
    return [[operands[name], hints[name], "=="] for name in sorted(expr.free_symbols()) if name in operands]


def program(expr: Expr, operands: dict[str, tuple[Any, ...]]) -> list[Any]:
    """An integer or boolean expression in postfix form.

    Raises:
        NotAnInteger: it contains floats, a number of more than 64 bits, or a symbol that no input binds.
    """
    kind = expr.kind
    if kind == "const":
        return [_of_64_bits(int(expr.value))]
    if kind in ("true", "false"):
        return [int(kind == "true")]
    if kind == "symbol":
        if expr.symbol_name not in operands:
            raise NotAnInteger(str(expr))
        return [operands[expr.symbol_name]]
    if kind == "poly":
        return _polynomial(expr, operands)
    if kind in ("eq", "ne", "le"):
        return [*program(expr.args[0], operands), 0, {"eq": "==", "ne": "!=", "le": "<="}[kind]]
    if kind in _FLOAT_COMPARISONS:
        a, b = (_whole_number(arg, operands) for arg in expr.args)
        return [*a, *b, _FLOAT_COMPARISONS[kind]]
    if kind == "not":
        return [*program(expr.args[0], operands), "not"]
    if kind in _BINARY:
        a, b = expr.args
        return [*program(a, operands), *program(b, operands), _BINARY[kind]]
    if kind in _ASSOCIATIVE:
        out = program(expr.args[0], operands)
        for arg in expr.args[1:]:
            out += [*program(arg, operands), _ASSOCIATIVE[kind]]
        return out
    raise NotAnInteger(str(expr))


def _of_64_bits(value: int) -> int:
    if not _LOW <= value <= _HIGH:
        raise NotAnInteger(str(value))
    return value


def _whole_number(expr: Expr, operands: dict[str, tuple[Any, ...]]) -> list[Any]:
    """A float operand that is an integer in disguise: a whole constant, or an integer made a float."""
    if expr.kind == "fconst" and float(expr.value).is_integer():
        return [_of_64_bits(int(expr.value))]
    if expr.kind == "tofloat":
        return program(expr.args[0], operands)
    raise NotAnInteger(str(expr))


def _polynomial(expr: Expr, operands: dict[str, tuple[Any, ...]]) -> list[Any]:
    out: list[Any] = []
    for i, (monomial, coefficient) in enumerate(expr.terms):
        out.append(_of_64_bits(int(coefficient)))
        for atom, power in monomial:
            for _ in range(power):
                out += [*program(atom, operands), "*"]
        if i:
            out.append("+")
    return out or [0]
