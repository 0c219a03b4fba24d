"""The handler that builds: values are hash-consed nodes of a `torch.fx.Graph`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from prims.errors import InternalError
from prims.handlers.base import BaseHandler, map_values
from prims.handlers.rewrites import REWRITES, Rewrite
from prims.ir.nodes import call_node
from prims.ops import PrimOp
from prims.spec import TensorSpec, from_torch, infer

__all__ = ["GraphHandler", "GraphValue"]


class GraphValue:
    """A tensor-valued node with its metadata. Equal subexpressions are one value (one `node`)."""

    __slots__ = ("node", "spec")

    node: torch.fx.Node
    spec: TensorSpec

    def __init__(self, node: torch.fx.Node, spec: TensorSpec) -> None:
        self.node = node
        self.spec = spec

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes: ``int | Sym``."""
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.spec.dtype

    @property
    def device(self) -> torch.device:
        """Device."""
        return self.spec.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    @property
    def op(self) -> Any:
        """What the node calls, or None for an input."""
        return self.node.target if self.node.op == "call_function" else None

    def __repr__(self) -> str:
        return f"%{self.node.name}: {self.spec}"


def _key(arg: Any) -> Any:
    """A hashable stand-in of an argument that keeps apart what prints apart (1, 1.0, True, -0.0)."""
    kind = type(arg)
    if kind is GraphValue:
        return arg.node
    if kind is float:
        return float, repr(arg)
    if kind is int or kind is bool:
        return kind, arg
    if kind is tuple or kind is list:
        return tuple(map(_key, arg))
    if isinstance(arg, dict):
        return tuple((k, _key(v)) for k, v in sorted(arg.items()))
    if isinstance(arg, (tuple, list)):
        return tuple(map(_key, arg))
    expr = getattr(arg, "expr", None)
    return arg if expr is None else (kind, expr)


def _spec_of(arg: Any) -> Any:
    return arg.spec if type(arg) is GraphValue else arg


def _logical(spec: Any) -> Any:
    """A prim-dialect value is a logical array: contiguous strides, whatever the overload's own layout."""
    return TensorSpec(spec.shape, spec.dtype, spec.device) if isinstance(spec, TensorSpec) else spec


def _node_of(arg: Any) -> Any:
    return arg.node if type(arg) is GraphValue else arg


def _each(fn: Callable[[Any], Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`fn` on a primitive's canonical arguments, which nest only one tuple deep."""
    return tuple([tuple(map(fn, a)) if type(a) is tuple else fn(a) for a in args])


class GraphHandler(BaseHandler):
    """Emits nodes into `graph`, each distinct application once.

    Args:
        graph: where nodes go, at its current insertion point.
        claims: composite overloads to keep (`Handler.claims`).
        rewrites: primitive name to `Rewrite`s tried in order before a node is made; `REWRITES` by default, ``{}``
            for none.
        fuel: a `prims.ir.Fuel`; each rewrite applied spends one unit, and none is applied without.

    ``node.meta["spec"]`` and, when `source` is set, ``node.meta["source"]`` are filled in. Nodes are named after
    their primitive or overload, in order of creation. While `late` is set, nodes get it as ``meta["late"]``, and none
    is one that was made before: a derivative computes again what is not to be kept for it.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        claims: frozenset[str] = frozenset(),
        *,
        rewrites: Mapping[str, Sequence[Rewrite]] = REWRITES,
        fuel: Any = None,
    ) -> None:
        super().__init__(claims)
        self.graph = graph
        self.rewrites = rewrites
        self.fuel = fuel
        self.late: str | None = None
        #: What has been applied, by key: values, or what an overload gives.
        self.known: dict[Any, Any] = {}
        self._values: dict[torch.fx.Node, GraphValue] = {}

    # ---- inputs -----------------------------------------------------------------------------------------

    def placeholder(self, name: str, spec: Any, source: Any = None) -> Any:
        """A graph input. `spec` is a `TensorSpec`; for a size input (``Sym | int``) the spec itself comes back."""
        node = self.graph.placeholder(name)
        node.meta["spec"] = spec
        if source is not None:
            node.meta["source"] = source
        return self.value(node) if isinstance(spec, TensorSpec) else spec

    def value(self, node: torch.fx.Node) -> GraphValue:
        """The value of a node of the graph, whose ``meta["spec"]`` is a `TensorSpec`."""
        found = self._values.get(node)
        if found is None:
            spec = node.meta.get("spec")
            if not isinstance(spec, TensorSpec):
                raise InternalError(f"node {node.name} has no tensor spec to make a value of (has {spec!r})")
            found = self._values[node] = GraphValue(node, spec)
        return found

    # ---- operations -------------------------------------------------------------------------------------

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> GraphValue:
        bound, key = self.keyed(op, op.bind(*args, **kwargs))
        found = self.known.get(key)
        if found is not None:
            return found  # type: ignore[no-any-return]
        return self.apply(op, bound, key, op.meta(*_each(_spec_of, bound)))

    def keyed(self, op: PrimOp, bound: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """A primitive's arguments (of `PrimOp.bind`) in the one form that they have in the graph, and the key of the
        application in `known`: ``(late or not, name, *arguments)``, values as their nodes."""
        if op.elementwise:
            bound = _canonical_numbers(op, bound)
        return bound, (self.late is None, op.name, *map(_key, bound))

    def apply(self, op: PrimOp, bound: tuple[Any, ...], key: tuple[Any, ...], spec: TensorSpec) -> GraphValue:
        """The value of an application that is not `known`, with the metadata that the primitive's row derives."""
        value = self._rewritten(op, bound, spec)
        if value is None:
            node = call_node(self.graph, op, _each(_node_of, bound))
            meta = node.meta
            meta["spec"] = spec
            if self.source is not None:
                meta["source"] = self.source
            if self.late is not None:
                meta["late"] = self.late
            value = self._values[node] = GraphValue(node, spec)
        self.known[key] = value
        return value

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        # Two draws of a random overload are two values even where their arguments are equal, and two empty tensors are
        # two pieces of memory; what a custom operator does is not known.
        pure = op.namespace == "aten" and not (op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags)
        pure = pure and not op._schema.name.startswith("aten::empty")
        key = (self.late is None, op, _key(args), _key(kwargs))
        if pure and key in self.known:
            return self.known[key]
        if spec is None:
            spec = infer(op, map_values(_spec_of, args), map_values(_spec_of, kwargs))
        spec = map_values(_logical, spec)
        result = self._emit(op, map_values(_node_of, args), map_values(_node_of, kwargs), spec)
        if pure:
            self.known[key] = result
        return result

    # ---- internals --------------------------------------------------------------------------------------

    def _rewritten(self, op: PrimOp, args: tuple[Any, ...], spec: TensorSpec) -> GraphValue | None:
        rewrites = self.rewrites.get(op.name, ())
        if rewrites and self.fuel is not None and not self.fuel.left:
            return None
        for rewrite in rewrites:
            try:
                value = rewrite.fn(self, args, spec)
            except Exception:
                if self.fuel is not None:
                    self.fuel.spend(rewrite.name)
                raise
            if value is not None and (self.fuel is None or self.fuel.spend(rewrite.name)):
                return value
        return None

    def _emit(self, target: Any, args: Any, kwargs: Any, spec: Any) -> Any:
        node = call_node(self.graph, target, args, kwargs)
        self._stamp(node, spec)
        if isinstance(spec, (tuple, list)):
            return tuple(self._item(node, i, s) for i, s in enumerate(spec))
        return self.value(node) if isinstance(spec, TensorSpec) else from_torch(spec)

    def _item(self, node: torch.fx.Node, i: int, spec: Any) -> Any:
        if not isinstance(spec, TensorSpec):
            return spec
        item = call_node(self.graph, operator.getitem, (node, i))
        self._stamp(item, spec)
        return self.value(item)

    def _stamp(self, node: torch.fx.Node, spec: Any) -> None:
        node.meta["spec"] = tuple(spec) if isinstance(spec, list) else spec
        if self.source is not None:
            node.meta["source"] = self.source
        if self.late is not None:
            node.meta["late"] = self.late


def _canonical_numbers(op: PrimOp, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Python numbers beside float tensors become floats, so that ``add(x, 1)`` and ``add(x, 1.0)`` are one."""
    operands = args[1:] if op.name == "where" else args
    if not any(type(a) is int for a in operands):
        return args
    floating = any(type(a) is GraphValue and a.spec.dtype.is_floating_point for a in operands)
    if not floating:
        return args
    return tuple(float(a) if type(a) is int else a for a in args)
