"""Building an ONNX graph: nodes, constants, conversions, and values that are broadcast only where they must be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import onnx
import torch
import torch.fx

from compile_api.deploy.interchange.onnx.sizes import Sizes
from compile_api.deploy.interchange.program import Program
from prims.ir.symbols import expr_of
from prims.spec import TensorSpec

__all__ = ["DTYPES", "Builder", "T", "as_proto", "raw"]

#: dtype -> ONNX's element type.
DTYPES = {
    torch.float32: onnx.TensorProto.FLOAT, torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.int64: onnx.TensorProto.INT64, torch.int32: onnx.TensorProto.INT32, torch.int16: onnx.TensorProto.INT16,
    torch.int8: onnx.TensorProto.INT8, torch.uint8: onnx.TensorProto.UINT8, torch.uint64: onnx.TensorProto.UINT64,
    torch.bool: onnx.TensorProto.BOOL,
}  # fmt: skip


class T(NamedTuple):
    """A value of the graph.

    Attributes:
        name: its name in the graph.
        dtype: of its elements.
        narrow: it has sizes of 1, or fewer dimensions, where the primitive's value repeats it. Elementwise operators of
            ONNX broadcast by themselves, so that most of these never become what they stand for.
    """

    name: str
    dtype: torch.dtype
    narrow: bool = False


def as_proto(name: str, value: torch.Tensor) -> onnx.TensorProto:
    """A tensor as ONNX holds it."""
    return onnx.TensorProto(name=name, data_type=DTYPES[value.dtype], dims=list(value.shape), raw_data=raw(value))


def raw(value: torch.Tensor) -> bytes:
    """The elements' bytes, row by row."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


class Builder:
    """Collects an ONNX graph. What rows use: `op`, `const`, `ints`, `cast`, `full`, `shape`."""

    def __init__(self, program: Program, opset: int) -> None:
        self.program = program
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.names: dict[torch.fx.Node, str] = {}  # of inputs
        self.sizes = Sizes(self)
        self._taken: set[str] = set()
        self._constants: dict[Any, T] = {}
        self._shapes: dict[Any, T] = {}
        self._expanded: dict[Any, T] = {}
        self._prefix = "size"
        self._doc = ""
        self._spec: Any = None
        self._flat: list[torch.fx.Node] = []

    # ---- where the walk is ------------------------------------------------------------------------------------------

    def at(self, node: torch.fx.Node) -> None:
        """What is written from now on belongs to this node."""
        self._prefix, self._spec = node.name, node.meta["spec"]
        self._flat = [n for a in node.args for n in (a if isinstance(a, (tuple, list)) else (a,))
                      if isinstance(n, torch.fx.Node)]  # fmt: skip
        self._doc = str(node.meta.get("source") or "")

    def unknown(self, node: torch.fx.Node) -> Any:
        """Stands for a value that could not be written; nothing that is built with it is kept."""
        spec = node.meta["spec"]
        if isinstance(spec, (tuple, list)):
            return tuple(T("", getattr(s, "dtype", torch.int64)) for s in spec)
        return T("", getattr(spec, "dtype", torch.int64))

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

    def operand_spec(self, at: int) -> TensorSpec:
        """The type of a tensor among the node's operands, counted through lists of them."""
        spec: TensorSpec = self._flat[at].meta["spec"]
        return spec

    def operand(self, x: T, at: int) -> T:
        """An operand with all its elements."""
        return self.full(x, self.operand_spec(at)) if x.narrow else x

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def free(self, base: str) -> str:
        """A name that nothing has."""
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}.{count}", count + 1
        self._taken.add(name)
        return name

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for what is written last."""
        self._taken.update(names)

    def op(self, kind: str, *inputs: T | None, dtype: torch.dtype | None = None, **attributes: Any) -> T:
        """One operator with one result, of the first input's dtype unless another is given."""
        return self.several(kind, *inputs, dtypes=(dtype,), **attributes)[0]

    def several(
        self, kind: str, *inputs: T | None, dtypes: Sequence[torch.dtype | None], **attributes: Any
    ) -> tuple[T, ...]:
        """One operator; a dtype for each result."""
        first = next(t.dtype for t in inputs if t is not None)
        results = tuple(T(self.free(self._prefix), dtype or first) for dtype in dtypes)
        names = ["" if t is None else t.name for t in inputs]
        node = onnx.helper.make_node(kind, names, [r.name for r in results], name=self.free(f"{kind}.{self._prefix}"),
                                     **attributes)  # fmt: skip
        if self._doc:
            node.doc_string = self._doc
        self.nodes.append(node)
        return results

    def cast(self, x: T, dtype: torch.dtype) -> T:
        """A conversion, unless it changes nothing."""
        if x.dtype == dtype:
            return x
        return self.op("Cast", x, dtype=dtype, to=DTYPES[dtype])._replace(narrow=x.narrow)

    # ---- constants --------------------------------------------------------------------------------------------------

    def const(self, value: Any, dtype: torch.dtype) -> T:
        """A number without dimensions; of a size, what `Shape` says."""
        if expr_of(value) is not None:
            return self.cast(self.sizes.scalar(value), dtype)
        return self.tensor(torch.full((), value, dtype=dtype), (str(value), type(value)))

    def number(self, value: Any, dtype: torch.dtype, compute: torch.dtype) -> T:
        """A number of one dtype, to compute with in another."""
        if expr_of(value) is not None:
            return self.cast(self.const(value, dtype), compute)
        return self.const(torch.full((), value, dtype=dtype).item(), compute)

    def ints(self, values: Sequence[int]) -> T:
        """A line of int64."""
        return self.tensor(torch.tensor(list(values), dtype=torch.int64), tuple(values))

    def tensor(self, value: torch.Tensor, key: Any) -> T:
        """A constant; equal ones of one ``key`` are kept once."""
        key = (key, value.dtype, tuple(value.shape))
        if key not in self._constants:
            name = self.free("constant")
            self.initializers.append(as_proto(name, value))
            self._constants[key] = T(name, value.dtype)
        return self._constants[key]

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def full(self, x: T, spec: TensorSpec) -> T:
        """The value with all its elements."""
        if not x.narrow:
            return x
        if all(isinstance(n, int) for n in spec.shape) and 0 in spec.shape:  # ONNX Runtime drops such an Expand
            return self.tensor(torch.empty(tuple(spec.shape), dtype=x.dtype), "empty")
        key = x.name, tuple(expr_of(n) or n for n in spec.shape)
        if key not in self._expanded:
            wide = self.cast(x, torch.float32) if x.dtype == torch.bfloat16 else x  # Expand runs on no bfloat16
            out = self.op("Expand", wide, self.shape(spec.shape))
            self._expanded[key] = self.cast(out, x.dtype)
        return self._expanded[key]

    def shape(self, sizes: Sequence[Any]) -> T:
        """A shape as a line of int64."""
        key = tuple(expr_of(n) or n for n in sizes)
        if key not in self._shapes:
            self._shapes[key] = self.sizes.line(sizes)
        return self._shapes[key]

    def reshaped(self, x: T, shape: Sequence[Any]) -> T:
        """The same elements under another shape."""
        symbolic = [at for at, n in enumerate(shape) if expr_of(n) is not None]
        others = [n for n in shape if expr_of(n) is None]
        if len(symbolic) == 1 and 0 not in others:  # the one size that follows from the others
            return self.op("Reshape", x, self.ints([-1 if at in symbolic else int(n) for at, n in enumerate(shape)]))
        return self.op("Reshape", x, self.shape(shape), allowzero=1)

    def permuted(self, x: T, dims: Sequence[int]) -> T:
        """Dimension i of the result is dimension ``dims[i]``."""
        return x if list(dims) == list(range(len(dims))) else self.op("Transpose", x, perm=list(dims))
