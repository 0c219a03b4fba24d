"""What the host side's statements are made of: sizes, places in memory, PyTorch's tensors, and operators' calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from inductor_gen.codegen.lowered import Lowered
from inductor_gen.extern import cpu
from inductor_gen.extern.calls import function_of
from inductor_gen.extern.cpu import SMALL, linear
from inductor_gen.extern.custom import is_custom
from inductor_gen.kernel.ir import Call
from inductor_gen.layout.record import ViewRef, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, contiguous_strides, product
from inductor_gen.native_host.interface import code_of
from inductor_gen.native_host.operators import BUILD, Values, arguments_of, operator_name, refuse
from prims.errors import InternalError, Unsupported
from prims.ir.symbols import expr_of
from prims.spec import expr as ex
from prims.spec.expr import Expr
from prims.spec.exprtext import parse, to_c

__all__ = ["Calls"]


class _Made(str):
    """A tensor that a statement has made, in the place of a view."""


#: Attention kernels and how many of their leading arguments must have a dense last dimension.
_DENSE_ROWS = {"aten._scaled_dot_product_flash_attention_for_cpu.default": 3}
#: Operators that take no tensor of which equal elements share their memory.
_NOT_SHARED = frozenset({"aten.median.dim", "aten.nanmedian.dim"})


class Calls:
    """The statements of a graph's host side, as far as they are written.

    Attributes:
        lines: the statements.
        names: where each buffer is, as a pointer's text.
        handles: of operators' results, the number of PyTorch's tensor; ``count`` of them all.
        held: weights and constants, by their pointer's text.
        views: tensors of weights that are made once, and ``view_lines``, the statements that make them.
        ending: by step, the tensors that end with it; ``kept_handles`` those whose memory results have.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.prepared = lowered.prepared
        self.layouts = lowered.layouts
        self.memory = lowered.memory
        self.torch = False
        self.step = 0
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self.handles: dict[Node, int] = {}
        self.count = 0
        self.held: dict[Node, str] = {}
        self.views: dict[Any, int] = {}
        self.view_lines: list[str] = []
        self.ending: dict[int, list[int]] = {}
        self.kept_handles: list[int] = []
        self.returned = set(self.prepared.returned())

    # ---- sizes and places -----------------------------------------------------------------------------------------

    def c(self, e: Any) -> str:
        """A size as C text."""
        if isinstance(e, int):
            return str(int(e))
        if isinstance(e, str):
            return to_c(parse(e))
        inner = e if isinstance(e, Expr) else expr_of(e)
        if inner is None:
            raise Unsupported(f"a size is {e!r}")
        if inner.is_const and not inner.is_float:
            return str(inner.value)
        return to_c(inner)

    def _array(self, sizes: Iterable[Any]) -> str:
        texts = [self.c(s) for s in sizes]
        return f"(const int64_t[]){{{', '.join(texts)}}}" if texts else "(const int64_t[]){0}"

    def _place(self, node: Node, offset: Expr = ZERO) -> str:
        """The pointer to an element of a buffer."""
        base = self.prepared.storage(node)
        width = node.dtype.itemsize  # type: ignore[union-attr]
        start = node.args[1] * width if node.kind == "part" else 0
        start += self.memory.place[base][1] if base in self.memory.place else 0
        at = ex.add(ex.const(start), ex.mul(offset, ex.const(width)))
        name = self.names.get(base)
        if not name:
            raise InternalError(f"the buffer {base!r} is nowhere")
        return name if at is ZERO else f"{name} + {self.c(at)}"

    # ---- operators ------------------------------------------------------------------------------------------------

    def _operator(self, call: Call) -> None:
        node = call.node
        if call.chosen is not None or is_custom(node):
            raise refuse(node, "it is not one of PyTorch's own")
        self.torch = True
        args, kwargs = self.prepared.externs[node]
        name, function = function_of(node, *self.prepared.call_of(node), self.lowered.options, [])
        if name.startswith(("ordered_", "deterministic_")):
            policies = " and ".join(self.lowered.options.policies)
            raise refuse(node, f"under {policies} a function in Python calls it")
        name = name.lstrip("_")
        self.lines.append(f'at = "{node.op}";')
        self.lines.append("{")
        first = self.count
        if node.target is linear:
            x, weight, bias = (*args, None)[:3]
            made = [self._pointwise(node, x, self._flat(node, weight), bias)]
        elif name in ("linear", "conv1x1", "strided_conv1x1"):
            made = [self._linear(node, name, function, args)]
        elif node.op in ("aten.addmm.default", "aten.baddbmm.default") :
            made = [self._added(node, args, kwargs)]
        elif node.op == "dot":
            made = [self._dispatched(node, ("aten::matmul", ""), args, kwargs, torch.ops.aten.matmul.default)]
        else:
            made = self._dispatch(node, args, kwargs)
        for k in range(first, self.count):
            if k not in made:
                self.lines.append(f"qr_delete(&h[{k}]);")
        self.lines.append("}")
        self._made(node, made, name)

    def _made(self, node: Node, made: Sequence[int], name: str) -> None:
        """Results by node: the pointers that kernels take, and when they end."""
        results = [(item, made[item.args[1]]) for item in node.users if item.kind == "item" and item in self.layouts]
        if node in self.layouts and node.dtype is not None:
            results = [(node, made[0])]
        kept = set()
        for item, handle in results:
            if item not in self.memory.place:
                continue
            kept.add(handle)
            self.handles[item] = handle
            shape, strides = item.shape, strides_of(self.layouts, item)
            if name in ("conv1x1", "strided_conv1x1"):  # the product's rows are pixels
                order = (0, 2, 3, 1)
                shape, strides = tuple(shape[d] for d in order), tuple(strides[d] for d in order)
            self.lines.append(
                f"if (qr_planned(&h[{handle}], {code_of(item.dtype)}, {len(shape)}, {self._array(shape)}, "
                f"{self._array(strides)})) goto torch;"
            )
            piece = self.memory.place[item][0]
            self.lines.append(f"char* const x{handle} = qr_data(h[{handle}]);")
            for other in (item, *piece.nodes):  # kernels may write theirs over it
                self.names[other] = f"x{handle}"
            if self.returned.isdisjoint((item, *piece.nodes)):
                self.ending.setdefault(max(piece.end, self.step), []).append(handle)
            else:
                self.kept_handles.append(handle)
        self.lines += [f"qr_delete(&h[{handle}]);" for handle in made if handle not in kept]

    def _handle(self) -> int:
        self.count += 1
        return self.count - 1

    def _tensor(self, ref: Any) -> str:
        """PyTorch's tensor of a view, as an expression."""
        if isinstance(ref, _Made):
            return str(ref)
        base = self.prepared.storage(ref.base)
        code = code_of(ref.base.dtype)
        handle = self.handles.get(base)
        own = (base.shape, strides_of(self.layouts, base), ZERO, base.dtype)
        if handle is not None and (ref.shape, ref.strides, ref.offset, ref.base.dtype) == own:
            return f"h[{handle}]"
        shape, strides = self._array(ref.shape), self._array(ref.strides)
        fixed = all(e.is_const for e in (*ref.shape, *ref.strides, ref.offset))
        if base in self.held and fixed and ref.base.kind != "part":
            pointer = f"{self.held[base]} + {ref.offset.value * ref.base.dtype.itemsize}"  # type: ignore[union-attr]
            key = (pointer, code, shape, strides)
            if key not in self.views:
                self.views[key] = len(self.views)
                made = f"qr_view({pointer}, {code}, {len(ref.shape)}, {shape}, {strides}, &m->views[{self.views[key]}])"
                self.view_lines.append(f"    if ({made}) return 1;")
            return f"m->views[{self.views[key]}]"
        k = self._handle()
        place = self._place(ref.base, ref.offset)
        self.lines.append(f"if (qr_view({place}, {code}, {len(ref.shape)}, {shape}, {strides}, &h[{k}])) goto torch;")
        return f"h[{k}]"

    def _dispatch(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """A call by the dispatcher."""
        if node.op in _DENSE_ROWS:
            args = tuple(self._dense(x, k < _DENSE_ROWS[node.op]) for k, x in enumerate(args))
        if node.op in _NOT_SHARED and any(s is ZERO for s in args[0].strides):
            args = (self._row_major(args[0]), *args[1:])
        return self._stack(node, operator_name(node), arguments_of(node, args, kwargs), node.target._schema.returns)

    def _dispatched(
        self, node: Node, name: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> int:
        arguments = list(zip((a.type for a in target._schema.arguments), args, strict=True))
        return self._stack(node, name, arguments, target._schema.returns)[0]

    def _stack(
        self, node: Node, name: tuple[str, str], arguments: list[tuple[Any, Any]], returns: Sequence[Any]
    ) -> list[int]:
        texts = {id(v): self._tensor(v) for v in _refs(a for _, a in arguments)}
        values = Values(node, lambda ref: texts[id(ref)], self.c)
        self.lines.append(f"uint64_t v[{max(len(arguments), len(returns), 1)}];")
        for k, (kind, value) in enumerate(arguments):
            values.put(kind, value, f"v[{k}]")
        self.lines += values.lines
        self.lines.append(f'if (torch_call_dispatcher("{name[0]}", "{name[1]}", v, {BUILD})) goto torch;')
        made = []
        for k, one in enumerate(returns):
            if one.type.kind() != "TensorType":
                raise refuse(node, f"it returns a {one.type}")
            handle = self._handle()
            self.lines.append(f"h[{handle}] = (qr_handle)(uintptr_t)v[{k}];")
            if one.alias_info is not None:
                copy = self._handle()
                self.lines.append(f"if (aoti_torch_clone(h[{handle}], &h[{copy}])) goto torch;")
                handle = copy
            made.append(handle)
        return made

    def _dense(self, x: Any, wanted: bool) -> Any:
        return self._row_major(x) if wanted and isinstance(x, ViewRef) and x.strides[-1] is not ONE else x

    def _row_major(self, ref: ViewRef) -> Any:
        """A row-major copy of a view, for an operator that takes no other."""
        source = self._tensor(ref)
        k = self._handle()
        shape, strides = self._array(ref.shape), self._array(contiguous_strides(ref.shape))
        code = code_of(ref.base.dtype)
        self.lines.append(
            f"if (aoti_torch_empty_strided({len(ref.shape)}, {shape}, {strides}, {code}, 0, 0, &h[{k}]) || "
            f"aoti_torch_copy_(h[{k}], {source}, 0)) goto torch;"
        )
        return _Made(f"h[{k}]")

    def _empty(self, node: Node) -> int:
        """A tensor for a product to be written to."""
        k = self._handle()
        shape = self._array(node.shape)
        strides = self._array(contiguous_strides(node.shape))
        self.lines.append(
            f"if (aoti_torch_empty_strided({len(node.shape)}, {shape}, {strides}, {code_of(node.dtype)}, 0, 0, "
            f"&h[{k}])) goto torch;"
        )
        return k

    def _added(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """A product and something to add: its factors are scalars, which the dispatcher's stack does not take."""
        beta, alpha = (kwargs.get(name, args[k] if len(args) > k else 1) for k, name in ((3, "beta"), (4, "alpha")))
        if not all(isinstance(x, (int, float)) for x in (beta, alpha)):
            raise refuse(node, "its factors are computed")
        tensors = [self._tensor(ref) for ref in args[:3]]
        out = self._empty(node)
        name = "addmm" if node.op == "aten.addmm.default" else "baddbmm"
        factors = f"{float(beta)!r}, {float(alpha)!r}"
        self.lines.append(f"if (aoti_torch_cpu_{name}_out(h[{out}], {', '.join(tensors)}, {factors})) goto torch;")
        return out

    # ---- oneDNN ---------------------------------------------------------------------------------------------------

    def _linear(self, node: Node, name: str, function: Any, args: tuple[Any, ...]) -> int:
        """A linear layer by oneDNN, of a product's operands or of a convolution's with a kernel of one position."""
        if name != "linear":
            x, weight, bias = args[:3]
            if name == "strided_conv1x1":
                down, right = args[3][0], args[3][-1]
                x = _strided(x, down, right)
            shape, strides = (tuple(v[d] for d in (0, 2, 3, 1)) for v in (x.shape, x.strides))
            pixels = ViewRef(x.base, shape, strides, x.offset)
            return self._pointwise(node, pixels, self._flat(node, weight), bias)
        bias, a, b = (None, *args) if len(args) == 2 else args
        turned = ViewRef(b.base, b.shape[::-1], b.strides[::-1], b.offset)
        if function.__name__ == "by_linear":
            return self._pointwise(node, a, turned, bias, product=True)
        rows, inner, columns = self.c(a.shape[0]), self.c(a.shape[1]), self.c(b.shape[1])
        in_rows = f"{self.c(a.strides[1])} == 1"
        k = self._handle()
        where = cpu.onednn_range()
        assert where is not None  # as it was when the function was chosen
        few = f"{rows} >= {where.rows} && {rows} <= {where.most_rows} && {inner} * {columns} >= {where.values}"
        pays = f"{few} && {rows} * {inner} * {columns} >= {SMALL} && ({inner} >= 64 || {in_rows})"
        self.lines.append(f"if ({pays}) {{")
        first = self._pointwise(node, a, turned, bias, product=True)
        self.lines += [f"h[{k}] = h[{first}]; h[{first}] = NULL;", "} else {"]
        second = self._added(node, args, {}) if bias is not None else self._stack(
            node, ("aten::mm", ""), [(t.type, v) for t, v in zip(torch.ops.aten.mm.default._schema.arguments, args)],
            torch.ops.aten.mm.default._schema.returns,
        )[0]  # fmt: skip
        self.lines += [f"h[{k}] = h[{second}]; h[{second}] = NULL;", "}"]
        return k

    def _flat(self, node: Node, weight: ViewRef) -> ViewRef:
        """A weight as a matrix: a row per output."""
        inner = weight.shape[1:]
        rest = [(n, s) for n, s in zip(inner, weight.strides[1:], strict=True) if n is not ONE]
        dense = [(n, s) for n, s in zip(inner, contiguous_strides(inner), strict=True) if n is not ONE]
        step = ONE if rest == dense else rest[0][1] if len(rest) == 1 else None
        if step is None:
            raise refuse(node, "its weight would have to be laid out anew in every call")
        return ViewRef(weight.base, (weight.shape[0], product(inner)), (weight.strides[0], step), weight.offset)

    def _pointwise(
        self, node: Node, x: ViewRef, weight: ViewRef, bias: ViewRef | None, *, product: bool = False
    ) -> int:
        """What ``extern.cpu.linear`` calls, or ``extern.cpu.by_linear`` for a product."""
        target: Any = torch.ops.aten.linear.default
        values: list[Any] = [x, weight, bias]
        if product or cpu.blas_is_slow():
            target, values = torch.ops.mkldnn._linear_pointwise.default, [*values, "none", [], ""]
        arguments = [(a.type, v) for a, v in zip(target._schema.arguments, values, strict=True)]
        return self._stack(node, (target._schema.name, ""), arguments, target._schema.returns)[0]


def _refs(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (ViewRef, _Made)):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _refs(value)


def _strided(x: ViewRef, down: int, right: int) -> ViewRef:
    """Every so manieth row and column of images."""
    n, c, height, width = x.shape
    steps = [ex.const(down), ex.const(right)]
    pairs = zip((height, width), steps, strict=True)
    sizes = [ex.floordiv(ex.add(size, ex.const(s.value - 1)), s) for size, s in pairs]
    strides = [ex.mul(stride, s) for stride, s in zip(x.strides[2:], steps, strict=True)]
    return ViewRef(x.base, (n, c, *sizes), (*x.strides[:2], *strides), x.offset)
