"""Graphs inside the captured graph: a custom backward, a checkpointed region.

What runs more than once, or later, than the region itself is captured as a graph of its own, a plain function of
tensors and sizes. It may read whatever the region reads, and change nothing outside of itself.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.graph_builder import GraphBuilder, GraphInput
from dynamo_capture.side_effects import SideEffects
from dynamo_capture.values.base import LazyValue, Value
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.tensor import SymValue, TensorValue, check_renewed
from prims.spec import TensorSpec, abstract_from_spec

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["InnerEffects", "SubgraphBuilder"]


class SubgraphBuilder(GraphBuilder):
    """Builds a graph inside another; what it reads of the graph around it becomes an input.

    Attributes:
        lifted: the values of the graph around, in the order of the inputs that stand for them, which are the last.
    """

    is_outermost = makes_leaves = False

    def __init__(self, tx: Capture, outer: GraphBuilder) -> None:
        super().__init__(tx, outer.ctx)
        self.outer = outer
        self.lifted: list[Value] = []
        self._nodes: dict[int, torch.fx.Node] = {}
        self._keep: list[Value] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._by_example = ChainMap({}, outer._by_example)  # type: ignore[assignment]

    def new_input(self, name: str, spec: TensorSpec) -> TensorValue:
        """An input that stands for no value of the graph around; to be asked for before anything is captured."""
        return self._of_example(name, abstract_from_spec(spec))

    def new_example(self, name: str, example: torch.Tensor) -> TensorValue:
        """As :meth:`new_input`, of an abstract tensor; writing to it is writing outside."""
        if not example.is_inference():
            self._versions.append((example, example._version))
        return self._of_example(name, example)

    def _of_example(self, name: str, example: torch.Tensor) -> TensorValue:
        value = TensorValue(self._input(name, example.spec), example)  # type: ignore[attr-defined]
        self._by_example[id(example)] = value
        return value

    def _input(self, name: str, spec: Any) -> torch.fx.Node:
        node = self._last_placeholder
        if node is None:
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                made = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(node):
                made = self.graph.placeholder(name)
        made.target = made.name
        made.meta["spec"] = spec
        self._last_placeholder = made
        return made

    def input_list(self) -> list[GraphInput]:
        return self.outer.input_list()

    def tensor_input(self, source: Any, real: torch.Tensor, dynamic: Any, strides: Any) -> TensorValue:
        return self.outer.tensor_input(source, real, dynamic, strides)

    def size_input(self, source: Any, real: int, low: int) -> SymValue:
        return self.outer.size_input(source, real, low)

    def int_input(self, source: Any, real: int) -> SymValue:
        return self.outer.int_input(source, real)

    def float_input(self, source: Any, real: float) -> SymValue:
        return self.outer.float_input(source, real)

    def lower(self, value: Value) -> tuple[Any, Any]:
        value = value.realize()
        if type(value) is TensorValue:
            if value.node.graph is self.graph:
                return value.node, value.example
            if self.tx.renewed:
                check_renewed(self.tx, value)
            if id(value) not in self._nodes and not value.example.is_inference():
                self._versions.append((value.example, value.example._version))
            return self._lift(value, value.node), value.example
        if type(value) is SymValue:
            known = self.tx.known_number(value.example)
            return (known, known) if known is not None else (self._size(value), value.example)
        return super().lower(value)

    def _size(self, value: SymValue) -> torch.fx.Node:
        """A symbolic number's node here: computed here where it can be, else an input."""
        found = self._nodes.get(id(value))
        if found is None:
            node = value.known_node or value.make()
            found = node if node.graph is self.graph else self._lift(value, node)
            self._nodes[id(value)] = found
            self._keep.append(value)
        return found

    def _lift(self, value: TensorValue | SymValue, node: torch.fx.Node) -> torch.fx.Node:
        found = self._nodes.get(id(value))
        if found is None:
            found = self._nodes[id(value)] = self._input(node.name, node.meta["spec"])
            self.lifted.append(value)
        return found

    def writes_outside(self) -> bool:
        """Whether a tensor of the graph around was written in place."""
        return any(tensor._version != version for tensor, version in self._versions)


class InnerEffects(SideEffects):
    """Side effects of what is captured into a graph inside another: none is allowed, save to objects of its own.

    Attributes:
        touched: the objects that were changed.
    """

    def __init__(self, outer: SideEffects) -> None:
        super().__init__()
        self.outer = outer
        self.touched: list[Value] = []

    def mutate(self, value: Value) -> None:
        self.touched.append(value)
        super().mutate(value)

    def write_attribute(self, owner: ObjectValue, name: str, *, again: bool = False) -> None:
        self.touched.append(owner)
        super().write_attribute(owner, name, again=again)

    def forget_attribute(self, owner: ObjectValue, name: str) -> None:
        if (id(owner), name) not in self._attributes and owner.obj is not None:
            raise GraphBreak("QB06", f"deleting attribute {name!r} that was set outside")
        self.touched.append(owner)
        super().forget_attribute(owner, name)

    def global_value(self, globals_: dict[str, Any], name: str) -> Value | None:
        found = super().global_value(globals_, name)
        return found if found is not None else self.outer.global_value(globals_, name)

    def found_on_tensor(self, tensor: Value, name: str) -> Value | None:
        found = super().found_on_tensor(tensor, name)
        return found if found is not None else self.outer.found_on_tensor(tensor, name)

    def found_on(self, obj: Any, name: str) -> Value | None:
        found = super().found_on(obj, name)
        return found if found is not None else self.outer.found_on(obj, name)

    def is_set_on(self, obj: Any) -> bool:
        return super().is_set_on(obj) or self.outer.is_set_on(obj)

    @property
    def sets_on_functions(self) -> bool:
        return super().sets_on_functions or self.outer.sets_on_functions

    def is_mutated(self, value: Value) -> bool:
        return super().is_mutated(value) or self.outer.is_mutated(value)

    def reached(self, roots: list[Value]) -> bool:
        """Whether an object was changed that is known outside: one that the region had, or one behind ``roots``."""
        if self:
            return True
        changed = {id(value) for value in self.touched}
        seen: set[int] = set()
        stack = list(roots) if changed else []
        while stack:
            value = stack.pop()
            if isinstance(value, LazyValue):
                looked_at = value.realized
                if looked_at is None:
                    continue
                value = looked_at
            if id(value) in seen:
                continue
            seen.add(id(value))
            stack.extend(value.children())
            if isinstance(value, ObjectValue):
                stack.extend(value.attrs.values())
        return bool(changed & seen)
