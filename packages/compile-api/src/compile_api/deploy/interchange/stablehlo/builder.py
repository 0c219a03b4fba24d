"""Building the body of a StableHLO function: one operation a line, each value with its type."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from compile_api.deploy.interchange.program import Program
from compile_api.deploy.interchange.stablehlo.sizes import Sizes
from prims.ir.symbols import expr_of
from prims.spec import TensorSpec

__all__ = ["DTYPES", "Builder", "V", "literal", "static", "type_of"]

#: dtype -> StableHLO's element type.
DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "ui8", torch.bool: "i1",
}  # fmt: skip
#: Bits of floats that have no decimal form: how they are packed, and from which dtype they are cut off.
_BITS = {torch.float32: ("<f", "<I", 0), torch.float64: ("<d", "<Q", 0), torch.float16: ("<e", "<H", 0),
         torch.bfloat16: ("<f", "<I", 16)}  # fmt: skip


class V(NamedTuple):
    """A value: its name in the text, its dtype and its sizes (``int | Sym``)."""

    name: str
    dtype: torch.dtype
    shape: tuple[Any, ...]

    def __str__(self) -> str:
        return self.name


def static(shape: Sequence[Any]) -> bool:
    """Are all sizes known?"""
    return all(expr_of(n) is None for n in shape)


def type_of(dtype: torch.dtype, shape: Sequence[Any]) -> str:
    """``tensor<?x4xf32>``."""
    sizes = "".join(f"{int(n) if expr_of(n) is None else '?'}x" for n in shape)
    return f"tensor<{sizes}{DTYPES[dtype]}>"


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number as the text of an attribute."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(torch.full((), value, dtype=dtype)))  # which wraps
    if math.isfinite(value):
        return f"{float(value):.17e}"
    of_float, of_bits, cut = _BITS[dtype]
    bits = struct.unpack(of_bits, struct.pack(of_float, value))[0] >> cut
    return f"0x{bits:0{dtype.itemsize * 2}X}"


class Builder:
    """Collects the lines of a function's body."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.names: dict[torch.fx.Node, V] = {}  # of inputs
        self.sizes = Sizes(self)
        self._count = 0
        self._constants: dict[Any, V] = {}
        self._shapes: dict[Any, V] = {}
        self._location = ""
        self._spec: Any = None
        self._flat: list[torch.fx.Node] = []

    # ---- where the walk is ------------------------------------------------------------------------------------------

    def at(self, node: torch.fx.Node) -> None:
        """What is written from now on belongs to this node."""
        source = node.meta.get("source")
        quoted = str(source.filename).replace("\\", "/").replace('"', "'") if source is not None else ""
        self._location = f' loc("{quoted}":{source.line}:0)' if source is not None else ""
        self._spec = node.meta["spec"]
        self._flat = [n for a in node.args for n in (a if isinstance(a, (tuple, list)) else (a,))
                      if isinstance(n, torch.fx.Node)]  # fmt: skip

    def unknown(self, node: torch.fx.Node) -> Any:
        """Stands for a value that could not be written; nothing that is built with it is kept."""
        spec = node.meta["spec"]
        made = [
            V("%none", getattr(s, "dtype", torch.int64), tuple(getattr(s, "shape", ())))
            for s in (spec if isinstance(spec, (tuple, list)) else (spec,))
        ]  # fmt: skip
        return tuple(made) if isinstance(spec, (tuple, list)) else made[0]

    @property
    def spec(self) -> TensorSpec:
        """The type of the node that is being written."""
        spec: TensorSpec = self._spec
        return spec

    @property
    def specs(self) -> Sequence[Any]:
        """The same of a node with several results."""
        specs: Sequence[Any] = self._spec
        return specs

    # ---- operations -------------------------------------------------------------------------------------------------

    def emit(self, text: str, dtype: torch.dtype, shape: Sequence[Any]) -> V:
        """A line ``%n = text`` and its value."""
        self._count += 1
        made = V(f"%{self._count}", dtype, tuple(shape))
        self.lines.append(f"    {made} = {text}{self._location}")
        return made

    def several(self, text: str, types: Sequence[tuple[torch.dtype, Sequence[Any]]]) -> tuple[V, ...]:
        """A line with more than one result."""
        self._count += 1
        name = f"%{self._count}"
        self.lines.append(f"    {name}:{len(types)} = {text}{self._location}")
        return tuple(V(f"{name}#{at}", dtype, tuple(shape)) for at, (dtype, shape) in enumerate(types))

    def type(self, *values: V) -> str:
        """Types of values, one after another."""
        return ", ".join(type_of(v.dtype, v.shape) for v in values)

    def op(self, name: str, *operands: V) -> V:
        """An operation whose operands and result have one type."""
        full = name if "." in name else f"stablehlo.{name}"
        x = operands[0]
        result = f"{self.type(x)} -> {self.type(x)}" if full.startswith("chlo.") else self.type(x)
        if full.startswith("chlo.") and len(operands) > 1:
            result = f"{self.type(*operands)} -> {self.type(x)}"
        return self.emit(f"{full} {', '.join(map(str, operands))} : {result}", x.dtype, x.shape)

    def to(self, name: str, operands: Sequence[V], attributes: str, dtype: torch.dtype, shape: Sequence[Any]) -> V:
        """An operation with attributes, operands and a result of any types."""
        types = f"({self.type(*operands)}) -> {type_of(dtype, shape)}"
        return self.emit(f"stablehlo.{name} {', '.join(map(str, operands))}{attributes} : {types}", dtype, shape)

    def generic(
        self, name: str, operands: Sequence[V], attributes: str, dtype: torch.dtype, shape: Sequence[Any],
        region: str = "",
    ) -> V:  # fmt: skip
        """The same in MLIR's general form, with a region where the operation has one."""
        types = f"({self.type(*operands)}) -> {type_of(dtype, shape)}"
        inner = f" ({region})" if region else ""
        return self.emit(f'"stablehlo.{name}"({", ".join(map(str, operands))}) <{{{attributes}}}>{inner} : {types}',
                         dtype, shape)  # fmt: skip

    def compare(self, way: str, x: V, y: V) -> V:
        """``EQ NE LT LE GT GE``."""
        return self.emit(f"stablehlo.compare {way}, {x}, {y} : ({self.type(x, y)}) -> {type_of(torch.bool, x.shape)}",
                         torch.bool, x.shape)  # fmt: skip

    def select(self, c: V, x: V, y: V) -> V:
        """x where c, else y."""
        return self.emit(f"stablehlo.select {c}, {x}, {y} : {self.type(c, x)}", x.dtype, x.shape)

    def convert(self, x: V, dtype: torch.dtype) -> V:
        """A conversion, unless it changes nothing. Anything is a bool if it is not 0; floats truncate, and those out of
        a small integer's range wrap as in eager, where XLA by itself takes the nearest one."""
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare("NE", x, self.splat(0, x.dtype, x.shape))
        if x.dtype.is_floating_point and dtype in (torch.int16, torch.int8, torch.uint8):
            x = self.to("convert", [x], "", torch.int64, x.shape)
        return self.to("convert", [x], "", dtype, x.shape)

    # ---- constants --------------------------------------------------------------------------------------------------

    def scalar(self, value: Any, dtype: torch.dtype) -> V:
        """A number without dimensions; of a size, what the inputs' sizes say."""
        e = expr_of(value)
        if e is not None:
            return self.convert(self.sizes.one(e), dtype)
        return self.constant(literal(value, dtype), dtype, ())

    def constant(self, text: str, dtype: torch.dtype, shape: Sequence[int]) -> V:
        """``dense<text>``, written once."""
        key = (text, dtype, tuple(shape))
        if key not in self._constants:
            made = self.emit(f"stablehlo.constant dense<{text}> : {type_of(dtype, shape)}", dtype, shape)
            self._constants[key] = made
        return self._constants[key]

    def splat(self, value: Any, dtype: torch.dtype, shape: Sequence[Any]) -> V:
        """One number everywhere."""
        if static(shape) and expr_of(value) is None:
            return self.constant("" if 0 in shape else literal(value, dtype), dtype, shape)
        key = (expr_of(value) or literal(value, dtype), dtype, *(expr_of(n) or n for n in shape))
        if key not in self._constants:
            self._constants[key] = self.broadcast(self.scalar(value, dtype), shape, ())
        return self._constants[key]

    def ints(self, values: Sequence[int]) -> V:
        """A line of int64."""
        return self.constant(str(list(values)) if values else "", torch.int64, (len(values),))

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def shape(self, sizes: Sequence[Any]) -> V:
        """A shape as a line of int64."""
        key = tuple(expr_of(n) or n for n in sizes)
        if key not in self._shapes:
            self._shapes[key] = self.sizes.line(sizes)
        return self._shapes[key]

    def broadcast(self, x: V, shape: Sequence[Any], dims: Sequence[int]) -> V:
        """Dimension i of x becomes dimension ``dims[i]``."""
        if static(shape) and static(x.shape):
            return self.to("broadcast_in_dim", [x], f", dims = {list(dims)}", x.dtype, shape)
        return self.to("dynamic_broadcast_in_dim", [x, self.shape(shape)], f", dims = {list(dims)}", x.dtype, shape)

    def reshape(self, x: V, shape: Sequence[Any]) -> V:
        """The same elements under another shape."""
        if static(shape) and static(x.shape):
            return self.to("reshape", [x], "", x.dtype, shape)
        return self.to("dynamic_reshape", [x, self.shape(shape)], "", x.dtype, shape)

    def transpose(self, x: V, dims: Sequence[int]) -> V:
        """Dimension i of the result is dimension ``dims[i]``."""
        if list(dims) == list(range(len(dims))):
            return x
        return self.to("transpose", [x], f", dims = {list(dims)}", x.dtype, [x.shape[d] for d in dims])

    def iota(self, shape: Sequence[Any], dim: int, dtype: torch.dtype = torch.int64) -> V:
        """Positions along a dimension."""
        if static(shape):
            return self.emit(f"stablehlo.iota dim = {dim} : {type_of(dtype, shape)}", dtype, shape)
        return self.to("dynamic_iota", [self.shape(shape)], f", dim = {dim}", dtype, shape)

    def slice(self, x: V, starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[Any], shape: Sequence[Any]) -> V:
        """``x[start:stop:step]`` in every dimension; ``shape`` is the result's."""
        if static([*x.shape, *starts, *stops, *steps]):
            parts = ", ".join(f"{a}:{b}:{s}" for a, b, s in zip(starts, stops, steps, strict=True))
            return self.emit(f"stablehlo.slice {x} [{parts}] : ({self.type(x)}) -> {type_of(x.dtype, shape)}",
                             x.dtype, shape)  # fmt: skip
        return self.to("real_dynamic_slice", [x, *map(self.shape, (starts, stops, steps))], "", x.dtype, shape)

    def concatenate(self, xs: Sequence[V], dim: int, shape: Sequence[Any]) -> V:
        """Values one after another."""
        if len(xs) == 1:
            return xs[0]
        return self.to("concatenate", xs, f", dim = {dim}", xs[0].dtype, shape)

    def reduce(self, kind: str, x: V, start: Any, dims: Sequence[int]) -> V:
        """A reduction by an operation of two operands."""
        shape = [n for d, n in enumerate(x.shape) if d not in dims]
        first = self.scalar(start, x.dtype)
        return self.emit(
            f"stablehlo.reduce({x} init: {first}) applies stablehlo.{kind} across dimensions = {list(dims)} : "
            f"({self.type(x, first)}) -> {type_of(x.dtype, shape)}", x.dtype, shape,
        )  # fmt: skip
