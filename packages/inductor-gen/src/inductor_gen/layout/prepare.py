"""Before fusion: decide where values must be in memory and in which layout, and mark it with ``copy`` nodes.

Extern operators take strided tensors and graph outputs have the strides that eager gives them. A view of a buffer
that strides can express costs nothing; where they cannot, a ``copy`` node (a pointwise identity) takes the view's
place, so that fusion writes the values in the layout wanted straight from the kernel that makes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inductor_gen.device.claims import CUDNN_BACKWARD
from inductor_gen.device.cuda import FUSED_ATTENTION
from inductor_gen.extern.attention import mask_of
from inductor_gen.extern.cpu import conv_form
from inductor_gen.extern.custom import is_custom
from inductor_gen.layout.record import Layout, Prepared, ViewRef, channels_last
from inductor_gen.layout.updates import Into, in_place_updates, new_values, scattered_over, through
from inductor_gen.loops.graph import Graph, Node, asked_before, instances, is_training, reached
from inductor_gen.loops.index import ONE, ZERO, Hint, contiguous_strides, product, size
from inductor_gen.loops.views import view_strides
from inductor_gen.rewrite.convolutions import SPATIAL
from prims.dtypes import HALVES
from prims.errors import InternalError, QuintetError
from prims.handlers.base import map_values
from prims.ir import Envelope
from prims.spec import Sym, TensorSpec, infer, layout
from prims.spec.expr import Expr

__all__ = ["prepare", "travels_channels_last"]

#: Overloads that read any operand whose rows or columns are contiguous at full speed.
_BLAS = frozenset({
    "aten.mm.default", "aten.addmm.default", "aten._addmm_activation.default", "aten.bmm.default",
    "aten.baddbmm.default", "dot",
})  # fmt: skip


#: Channels from which on eager's maximum pooling on a CPU is faster with them innermost, even where its operand and its
#: result are copied for it: 2 to 16 times for 16 to 256 channels, all floating types, windows of 2x2 to 5x5 (AMD EPYC,
#: one thread; with 4 channels 0.6 to 1.2 times).
_POOLED = 16


class _Preparer:
    def __init__(self, graph: Graph, env: Envelope, hint: Hint, numerics: str, in_place: bool | str) -> None:
        self.env = env
        self.old = graph
        self.context = env.symbols.context
        self.out = Prepared(Graph())
        self.updates = in_place_updates(self.old, env) if in_place else {}
        self.over = scattered_over(self.old, env, self.updates) if in_place is True else {}
        loops = lambda x: () if x.kind in ("extern", "item") else x.users
        written = [*self.over, *(into.target for into in self.over.values())]
        self.old_values = set(reached(written, loops))  # made of what inputs or parts held
        self.bounded: dict[tuple[Node, Expr, bool], Node] = {}
        self.owned: set[Node] = set()  # buffers that some output already is
        self.relaid: dict[tuple[Node, str | None], ViewRef] = {}
        self.copies: dict[tuple[Node, str | None], Node] = {}  # row-major ones, of views that strides cannot express
        self.at: Node | None = None  # the node whose operands are laid out
        if numerics == "fast" and not is_training(env) and not any(node.is_late for node in graph.nodes):
            self._choose_forms(hint)
        self.new_nodes: list[Node] = []

    # ---- building ---------------------------------------------------------------------------------------

    def run(self) -> Prepared:
        for node, desc in zip(self.old.inputs, self.env.inputs, strict=True):
            if desc.kind == "tangent":
                self.out.tangents.add(node)
            if desc.kind in ("saved", "tangent"):
                self.out.freed.add(node)
            if self._travels_as_image(desc, node):
                self.out.layouts[node] = Layout(channels_last(node.shape))
        for node in self.old.nodes:
            self.at = node
            if node.kind in ("input", "constant"):
                self.out.layouts.setdefault(node, Layout(tuple(size(s) for s in node.spec.strides)))
            elif node.kind == "pointwise" and node in self.old.images:
                self.in_channels_last(node)
            elif node.kind == "extern":
                self._extern(node)
            elif node.kind == "item":
                self._given(node, node.args[0].spec[node.args[1]])
            elif node.kind == "scatter":
                self._scatter(node)
            self.new_nodes.append(node)
        self.at = None
        self._outputs()
        self.out.images = self.old.matrices
        self.out.graph = Graph(self.new_nodes, self.old.inputs)
        self.out.graph.relink()
        return self.out

    def _travels_as_image(self, desc: Any, node: Node) -> bool:
        """Is it saved for the backward pass, and an image? Queries, keys and values beside a convolution are none."""
        return desc.kind == "saved" and node.shape in self.old.image_shapes and travels_channels_last(desc.spec)

    def _choose_forms(self, hint: Hint) -> None:
        """Which convolutions on the CPU run with channels last. In training none: what is saved has eager's layout, and
        so have the gradients that operators give."""
        forms = {n: conv_form(n, hint) for n in self.old.nodes if n.op == "aten.convolution.default"}
        if any(form != "plain" for form in forms.values()):
            self.out.forms = forms

    def copy(self, x: Node, strides: tuple[Expr, ...] | None = None) -> Node:
        """A new node that equals ``x`` and will be written to memory with these strides."""
        spec = TensorSpec(x.spec.shape, x.dtype, x.device)  # type: ignore[arg-type]
        node = Node(0, "pointwise", "copy", (x,), spec, x.source)
        node.late = self._late(x)
        if spec.dtype.is_complex:  # of which no kernel is generated; the call's result is laid out as planned
            node.kind, node.op, node.target = "extern", "aten.clone.default", torch.ops.aten.clone.default
            ref = self.resolve(x)
            assert ref is not None  # complex values come from calls and inputs
            node.args = (ref.base,)
            self.out.externs[node] = ((ref,), {})
        self.new_nodes.append(node)
        self.out.layouts[node] = Layout(strides if strides is not None else contiguous_strides(node.shape))
        return node

    def layout(self, node: Node) -> Layout:
        """The layout of a buffer; a kernel's is row-major unless an output asked for another before."""
        return self.out.layouts.setdefault(node, Layout(contiguous_strides(node.shape)))

    def resolve(self, x: Node, making: bool = False) -> ViewRef | None:
        """``x`` as a strided view of a buffer, or None where only a copy can be one.

        With ``making`` it may be one of an image that is laid out with channels last for it, or of a copy of the last
        value on its way that no strides can express, made once for all readers: a gradient and its transpose, both of
        them read by products, are one matrix in memory.
        """
        chain: list[Node] = []
        while x.kind == "view" and x.op not in ("pad", "concat", "flip") and not (making and x in self.old.images):
            chain.append(x)
            x = x.args[0]
        if x.kind == "create":
            return None
        if making and chain and x in self.old.images:
            ref = self.in_channels_last(x)
        else:
            ref = ViewRef(x, x.shape, self.layout(x).strides if x.kind != "view" else contiguous_strides(x.shape), ZERO)
        copied = x if ref.base is x and x.kind == "view" else None
        for view in reversed(chain):
            moved = view_strides(view, ref.strides, ref.offset)
            if moved is None:
                copied, moved = view, (contiguous_strides(view.shape), ZERO)
            ref = ViewRef(ref.base, view.shape, *moved)
        if copied is None:
            return ref
        if not making or copied.dtype is None or copied.dtype.is_complex:
            return None
        key = copied, self._late(copied)
        if key not in self.copies:
            self.copies[key] = self.copy(copied)
        return replace(ref, base=self.copies[key])

    def _late(self, x: Node) -> str | None:
        """The mark of a copy of ``x``: what is late takes a copy of its own of what is early, rather than keep that."""
        return x.late or ("again" if self.at is not None and self.at.late else None)

    # ---- externs ----------------------------------------------------------------------------------------

    def _extern(self, node: Node) -> None:
        strides = iter(node.strides or ())
        # What a branch or a loop is given it may give back, laid out as the graph says of its result.
        is_operator = getattr(node.target, "namespace", "quintet") != "quintet"

        def place(x: Any) -> Any:
            if isinstance(x, Node):
                known = next(strides, None)
                if node.op == CUDNN_BACKWARD and known is not None:
                    return self._operand(node, x) if x is not node.args[0] else self._gradient(node)
                exact = node.strides is not None or is_custom(node)
                return self._exact(x, known, is_operator) if exact else self._operand(node, x)
            return x

        args, kwargs = map_values(place, node.args), map_values(place, node.kwargs)
        self.out.externs[node] = (args, kwargs)
        base = lambda x: x.base if isinstance(x, ViewRef) else x
        node.args, node.kwargs = map_values(base, args), map_values(base, kwargs)
        self._given(node, self._infer(node, args, kwargs))

    def _given(self, node: Node, spec: Any) -> None:
        """An operator's result is laid out as the operator does it."""
        node.spec = spec
        if isinstance(spec, TensorSpec):
            self.out.layouts[node] = Layout(tuple(map(size, spec.strides)))

    def _gradient(self, node: Node) -> ViewRef:
        """The gradient for cuDNN's attention as eager lays it out: one without rows as the attention's result."""
        assert node.strides is not None
        grad, out = node.strides[0], node.strides[4]
        return self._exact(node.args[0], grad if grad[-1] == 1 else out)

    def _infer(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload):
            return node.spec
        try:
            made = infer(node.target, map_values(self._spec_of, args), map_values(self._spec_of, kwargs))
            return made if all(r.alias_info is None for r in node.target._schema.returns) else _cloned(made)
        except QuintetError:
            return node.spec  # no rule: the aten dialect's own metadata, made from the same layouts

    def _spec_of(self, x: Any) -> Any:
        if not isinstance(x, ViewRef):
            return x
        shape, strides = (tuple(self._plain(e) for e in part) for part in (x.shape, x.strides))
        return TensorSpec(shape, x.base.dtype, x.base.device, strides)  # type: ignore[arg-type]

    def _plain(self, e: Expr) -> Any:
        if e.is_const:
            return e.value
        if self.context is None:
            raise InternalError("a symbolic size in an envelope without a symbol context")
        return self.context.make(e)

    def _operand(self, node: Node, x: Node) -> ViewRef:
        if self._wants_channels_last(node, x):
            return self.in_channels_last(x)
        if node.op in FUSED_ATTENTION and x is mask_of(node):
            return self._with_dense_rows(x)
        strides = _token_by_token(x.shape) if _is_query_of_tokens(node, x) else None
        if strides is not None and x.kind == "pointwise":
            self.out.layouts.setdefault(x, Layout(strides))
        ref = self.resolve(x, making=strides is None)
        if ref is None or not self._suits(node, x, ref):
            ref = self.resolve(self.copy(x, strides))
        assert ref is not None
        return ref

    def _with_dense_rows(self, x: Node) -> ViewRef:
        """A mask whose last dimension is contiguous, as fused kernels read it unasked; what is repeated still is."""
        ref = self.resolve(x)
        if ref is not None and ref.strides[-1] is ONE:
            return ref
        repeats: list[Node] = []
        while x.op == "broadcast" and x.args[0].shape and x.args[0].shape[-1] is x.shape[-1]:
            repeats.append(x)
            x = x.args[0]
        key = x, self._late(x)
        if key not in self.copies:
            self.copies[key] = self.copy(x)
        ref = self.resolve(self.copies[key])
        for repeat in reversed(repeats):
            assert ref is not None
            moved = view_strides(repeat, ref.strides, ref.offset)
            assert moved is not None  # a repeated dimension's stride is 0
            ref = ViewRef(ref.base, repeat.shape, *moved)
        assert ref is not None
        return ref

    def _exact(self, x: Node, strides: Any, any_strides: bool = False) -> ViewRef:
        """``x`` with eager's strides, on which a kernel that somebody wrote may count (row-major ones if unknown).
        Those that leave gaps or share elements are made only where ``any_strides`` are taken."""
        dense = strides is None or layout.is_dense(x.spec.shape, tuple(strides))
        given = contiguous_strides(x.shape) if strides is None else tuple(size(s) for s in strides)
        wanted = given if dense or any_strides else contiguous_strides(x.shape)
        ref = self.resolve(x)
        if ref is not None and _same_strides(ref.shape, ref.strides, given):
            return ref
        if dense and x.kind in ("pointwise", "reduce", "scan") and x not in self.owned:
            self.out.layouts.setdefault(x, Layout(wanted))
        return self._laid_out(x, wanted)  # gaps and shared elements included, which a copy writes with equal values

    def _wants_channels_last(self, node: Node, x: Node) -> bool:
        if len(x.shape) != 4:
            return False
        if self.old.image_shapes:
            return node.op in SPATIAL
        if x is not node.args[0]:
            return False
        if node.op == "aten.max_pool2d_with_indices.default" and not x.on_gpu:
            channels = x.shape[1]
            return bool(self.out.forms) or channels.is_const and channels.value >= _POOLED
        return self.out.forms.get(node, "plain") in ("channels_last", "linear")

    def in_channels_last(self, x: Node) -> ViewRef:
        """``x`` with its channels innermost; a kernel that makes it writes it so."""
        found = self.relaid.get((x, self._late(x)))
        if found is not None:
            return found
        wanted = channels_last(x.shape)
        if x.kind == "pointwise":
            self.out.layouts.setdefault(x, Layout(wanted))
        found = self.relaid[x, self._late(x)] = self._laid_out(x, wanted)
        return found

    def _laid_out(self, x: Node, wanted: tuple[Expr, ...]) -> ViewRef:
        """``x`` with these strides."""
        ref = self.resolve(x)
        if ref is None or not _same_strides(ref.shape, ref.strides, wanted):
            ref = self.resolve(self.copy(x, wanted))
        assert ref is not None
        return ref

    def _suits(self, node: Node, x: Node, ref: ViewRef) -> bool:
        """Is the view as good for the operator as a fresh contiguous copy made while computing it?"""
        if _is_read_by_rows(node, x) and not _has_aligned_rows(ref):
            return False
        if ref.base.kind not in ("pointwise", "reduce", "scan"):
            return True  # in memory already; other operators take any strides
        if x is ref.base or ref.strides == contiguous_strides(ref.shape):
            return True
        return node.op in _BLAS and any(s is ONE for s in ref.strides[-2:])

    def _scatter(self, node: Node) -> None:
        updates, over = self.updates.get(node), self.over.get(node)
        if over is not None:
            target, strides = self._scatter_over(node, over), over.strides
        elif updates is not None:
            target, strides = updates.target, updates.strides
        else:
            target = self.copy(node.args[0])
            node.args = (target, *node.args[1:])
            strides = self.layout(target).strides
        self.out.scattered[node] = target
        self.out.layouts[node] = Layout(strides)

    def _scatter_over(self, node: Node, over: Into) -> Node:
        """The buffer of a scatter that may come to write an input: a copy of it, or the copy that the scatter before it
        writes; what is scattered is in memory by then."""
        whole, before = node.args[0], through(node.args[0])
        made = [x for x in dict.fromkeys(node.ins) if x in self.old_values and x is not whole]
        held = {x: self.copy(x) for x in made if x.kind not in ("extern", "item")}
        self.out.held.update(held.values())
        if before is over.target:
            target = self.copy(before, self.layout(before).strides)
            self.out.renewing[target] = before
            whole = self._seen_as(whole, target)
        else:
            target = self.out.scattered[before]
        swap = lambda x: held.get(x, x) if isinstance(x, Node) else x
        node.args = (whole, *map_values(swap, node.args[1:]))
        if not node.on_gpu and not asked_before(node, self.out.held):
            self._ask_before(node)
        return target

    def _seen_as(self, view: Node, base: Node) -> Node:
        """The views between an input and ``view``, of its copy."""
        if view.kind != "view":
            return base
        made = Node(0, "view", view.op, (self._seen_as(view.args[0], base), *view.args[1:]), view.spec, view.source)
        self.new_nodes.append(made)
        return made

    def _ask_before(self, node: Node) -> None:
        """Have the places of a scatter looked at by a kernel of their own, which fails before anything is written."""
        _, places, *rest = node.args
        shape = node.args[0].shape
        if node.op == "scatter":
            node.args = (node.args[0], self._bounded(places, shape[node.args[3]], False), *rest)
        elif not all(map(_are_numbers, places)):
            asked = tuple(self._bounded(i, shape[d], True) for i, d in zip(places, node.args[2], strict=True))
            node.args = (node.args[0], asked, *rest)

    def _bounded(self, places: Node, extent: Expr, wraps: bool) -> Node:
        """Positions along a dimension, which are refused outside it; with ``wraps`` they may count from its end."""
        found = self.bounded.get((places, extent, wraps))
        if found is None:
            spec = TensorSpec(places.spec.shape, torch.int64, places.device)  # type: ignore[arg-type,union-attr]
            found = Node(0, "pointwise", "bounded", (places, extent, wraps), spec, places.source)
            self.bounded[places, extent, wraps] = found
            self.new_nodes.append(found)
            self.out.layouts[found] = Layout(contiguous_strides(found.shape))
            self.out.held.add(found)
        return found

    # ---- outputs ----------------------------------------------------------------------------------------

    def _outputs(self) -> None:
        for desc, x in zip(self.env.outputs, self.old.outputs, strict=True):
            self.out.outputs.append(self._output(desc, x) if isinstance(x, Node) else x)

    def _output(self, desc: Any, x: Node) -> ViewRef:
        last = through(x)
        if desc.kind == "mutation" and (into := self.updates.get(last) or self.over.get(last)) is not None:
            return ViewRef(last, x.shape, self.layout(into.target).strides, ZERO)
        spec = desc.spec
        wanted = tuple(size(s) for s in spec.strides) if isinstance(spec, TensorSpec) else None
        if self._travels_as_image(desc, x):
            wanted = channels_last(x.shape)
        if wanted is not None and x.kind in ("pointwise", "reduce", "scan") and x not in self.owned:
            self.out.layouts.setdefault(x, Layout(wanted))
        ref = self.resolve(x)
        if ref is not None and (wanted is None or _same_strides(ref.shape, ref.strides, wanted)):
            storage = self.out.storage(ref.base)
            given = storage.kind in ("input", "constant") or storage in self.out.renewing
            if not given and ref.base not in self.owned:
                self.owned.add(ref.base)
                # What eager computes of a result has a layout for which the strides of dimensions of one element count.
                if wanted is None or desc.kind == "saved" or _is_of_convolution(ref.base):
                    return ref
                return replace(ref, strides=wanted)
        copy = self.copy(x, wanted)
        if x.is_late and x.kind in ("extern", "item"):
            self._read_instead(x, copy)
        made = self.resolve(copy)
        assert made is not None
        return made

    def _read_instead(self, x: Node, copy: Node) -> None:
        """Let kernels read the copy of an operator's result, which need not be kept beside it then: a gradient in the
        parameter's layout."""
        self.new_nodes.remove(copy)
        self.new_nodes.insert(self.new_nodes.index(x) + 1, copy)
        swap = lambda value: copy if value is x else value
        for user in x.users:
            if user.kind in ("pointwise", "reduce", "scan") and user is not copy:
                user.args = map_values(swap, user.args)


def _cloned(spec: Any) -> Any:
    """A view's metadata as that of its copy, which the call gives (``extern.custom.with_own_memory``)."""
    if isinstance(spec, TensorSpec):
        return TensorSpec(spec.shape, spec.dtype, spec.device, layout.like_strides(spec.shape, spec.strides))
    return type(spec)(map(_cloned, spec)) if isinstance(spec, (tuple, list)) else spec


def travels_channels_last(spec: Any) -> bool:
    """Can a forward and a backward graph with channels last pass this saved value so, whatever its descriptor says?"""
    if not isinstance(spec, TensorSpec) or spec.ndim != 4 or spec.dtype not in (*HALVES, torch.int64):
        return False
    return spec.is_contiguous() and all(isinstance(s, int) and s > 0 for s in spec.shape)


def _is_read_by_rows(node: Node, x: Node) -> bool:
    """Is it the gradient, query, key or value of a fused attention kernel?"""
    if node.op not in FUSED_ATTENTION:
        return False
    count = 4 if node.op.endswith("backward.default") else 3
    return any(x is a for a in node.args[:count])


def _is_query_of_tokens(node: Node, x: Node) -> bool:
    """Is it the query of an attention on a GPU whose result is read token by token, all heads of one together?

    The result lies as the query does: a kernel that writes the query so spares another one that turns the result.
    """
    if node.op not in FUSED_ATTENTION or node.op.endswith("backward.default") or x is not node.args[0]:
        return False
    results = [user for user in node.users if user.kind == "item" and user.args[1] == 0]
    readers = [user for result in results for user in result.users]
    return bool(readers) and all(r.op == "permute" and tuple(r.args[1]) == (0, 2, 1, 3) for r in readers)


def _token_by_token(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of ``[batch, heads, tokens, width]`` with the heads of a token side by side."""
    _, heads, tokens, width = shape
    return (product((heads, tokens, width)), width, product((heads, width)), ONE)


def _has_aligned_rows(ref: ViewRef) -> bool:
    """Are the rows dense, and does each begin at a multiple of 16 bytes where the buffer does?

    The kernels load 16 bytes at a time, and eager's operand may have been a copy. Symbolic strides are taken to be
    multiples of the head size.
    """
    if ref.strides[-1] is not ONE:
        return False
    unit = max(16 // ref.base.dtype.itemsize, 1)  # type: ignore[union-attr]
    steps = [s for n, s in zip(ref.shape[:-1], ref.strides[:-1], strict=True) if n is not ONE]
    return all(s.value % unit == 0 for s in (*steps, ref.offset) if s.is_const)


def _same_strides(shape: tuple[Expr, ...], have: tuple[Expr, ...], want: tuple[Expr, ...]) -> bool:
    if any(s is ZERO for s in shape):
        return have == want
    return all(a is b or s is ONE for s, a, b in zip(shape, have, want, strict=True))


def prepare(graph: Graph, env: Envelope, hint: Hint, numerics: str = "fast", in_place: bool | str = False) -> Prepared:
    """A rewritten graph of a prim-dialect envelope, with copies where values must be laid out anew.

    ``hint`` gives a likely number for a size, ``numerics`` is that of the options. ``in_place``: inputs that the
    graph's mutations name may be written (:mod:`inductor_gen.layout.updates`).
    """
    prepared = _Preparer(graph, env, hint, numerics, in_place).run()
    prepared.renewed = new_values(prepared, env) if in_place is True else {}
    return prepared


def _are_numbers(places: Node) -> bool:
    """Are positions the program's own, and known?"""
    made = reached([places], lambda x: instances(Node, x.args))
    numbers = lambda x: all(type(a) is not Sym for a in x.args) and all(n.is_const for n in x.shape)
    return all(x.kind in ("view", "create") and numbers(x) for x in made)


def _is_of_convolution(x: Node) -> bool:
    """Whether a convolution gives it, or its gradient, whose strides in dimensions of one element are by those that the
    operands have in a call: a graph serves calls that differ in them."""
    source = x.args[0] if x.kind == "item" else x
    return isinstance(source, Node) and source.kind == "extern" and "convolution" in str(source.op)
