"""``x[i]``, where ``i`` is a tensor of one int that only the data tells.

Eager reads the int and gives a view of ``x`` there, so that nothing has to wait for it only if the graph takes the
elements instead. A copy is as good as the view as long as nobody can tell them apart: neither is written to afterwards,
the view would have the strides of a copy, and not both are seen outside of the region. Else the region ends before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import SliceValue, TupleValue, make_slice
from dynamo_capture.values.tensor import SymValue, TensorValue
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Pick", "is_seen_outside", "note_write", "pick", "put", "seen_as_view"]

_INTS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))


@record(frozen=False)
class Pick:
    """Elements that the graph has taken in the place of a view, and where the region ends if that can be told.

    Attributes:
        copies: the nodes that copy them, one for each tensor in the key.
        versions: of ``base`` and ``taken`` when they were the same.
        tracked: gradients were on.
        stale: the first node that has written to ``base`` since.
        changed: the first node that has written to ``taken`` since.
    """

    base: TensorValue
    key: Value
    taken: TensorValue
    copies: tuple[Node, ...]
    versions: tuple[int, int]
    step: int
    brk: GraphBreak
    tracked: bool
    stale: Node | None = None
    changed: Node | None = None

    def versions_now(self) -> tuple[int, int]:
        """Of ``base`` and ``taken``."""
        return self.base.example._version, self.taken.example._version


def note_write(tx: Capture, node: Node) -> None:
    """The graph has written to a tensor."""
    for each in tx.picks:
        base, taken = each.versions_now()
        if base != each.versions[0] and each.stale is None:
            each.stale = node
        if taken != each.versions[1] and each.changed is None:
            each.changed = node


def pick(tx: Capture, tensor: TensorValue, key: Value, brk: GraphBreak) -> Value:
    """``tensor[key]`` with tensors of one int in the key.

    Raises:
        GraphBreak: ``brk``, where the elements cannot stand for a view.
    """
    plain, places = _plain_key(tensor, key, brk)
    base = tensor if plain is None else tx.graph_call(operator.getitem, [tensor, plain], {})
    if not isinstance(base, TensorValue) or base.example.is_inference() or not tx.graph.is_outermost:
        raise brk
    view = base.example
    for dim, _ in reversed(places):
        view = view.select(dim, 0)
    taken: Any = base
    copies: list[Node] = []
    for dim, index in reversed(places):
        taken = tx.graph_call(operator.getitem, [taken, _along(tx, dim, index)], {})
        copies.append(taken.node)
        taken = tx.graph_call("squeeze", [taken, ConstantValue(dim)], {}, method=True)
    if taken.example.is_inference() or taken.example.stride() != view.stride():
        raise brk
    brk.where = tx.location()
    step = tx.frames[0].call_step()  # type: ignore[attr-defined]
    made = Pick(base, key.realize(), taken, tuple(copies), (0, 0), step, brk, torch.is_grad_enabled())
    made.versions = made.versions_now()
    tx.picks.append(made)
    return taken  # type: ignore[no-any-return]


def put(tx: Capture, tensor: TensorValue, key: Value, value: Value, brk: GraphBreak) -> None:
    """``tensor[key] = value`` with one tensor of an int in the key.

    Raises:
        GraphBreak: ``brk``, where it cannot be captured.
    """
    plain, places = _plain_key(tensor, key, brk)
    changed = _changed_pick(tx, tensor, key.realize(), value.realize())
    if len(places) != 1 or not tx.graph.is_outermost:
        raise brk
    dim, index = places[0]
    base: Any = tensor if plain is None else tx.graph_call(operator.getitem, [tensor, plain], {})
    value = value.realize()
    behind = base.example.dim() - dim - 1
    if isinstance(value, TensorValue) and not _fits(value.example.shape, base.example.select(dim, 0).shape):
        raise brk
    if isinstance(value, TensorValue) and value.example.device != base.example.device:
        raise brk
    if isinstance(value, TensorValue) and value.example.dtype != base.example.dtype:
        value = tx.graph_call("to", [value, ConstantValue(base.example.dtype)], {}, method=True)
    if isinstance(value, TensorValue) and value.example.dim() > behind:
        value = tx.graph_call("unsqueeze", [value, ConstantValue(-(behind + 1))], {}, method=True)
    tx.graph_call(operator.setitem, [base, _along(tx, dim, index), value], {})
    if changed is not None:
        changed.versions, changed.stale, changed.changed = changed.versions_now(), None, None


def _fits(shape: Any, place: Any) -> bool:
    """Whether eager takes a value of a shape for a place: without leading dimensions of one it expands to that."""
    sizes = [*shape]
    while sizes and sizes[0] == 1:
        del sizes[0]
    if len(sizes) > len(place):
        return False
    behind = place[len(place) - len(sizes) :]
    return all(size == 1 or size == there for size, there in zip(sizes, behind, strict=True))


def _along(tx: Capture, dim: int, index: TensorValue) -> Value:
    """A key that takes the place along a dimension which a tensor of one int holds; the dimension stays, with one."""
    one = tx.graph_call("reshape", [index, ConstantValue(1)], {}, method=True)
    if index.example.dtype not in (torch.int32, torch.int64):
        one = tx.graph_call("to", [one, ConstantValue(torch.int64)], {}, method=True)
    return TupleValue([*[make_slice([ConstantValue(None)] * 3)] * dim, one])


def _changed_pick(tx: Capture, tensor: TensorValue, key: Value, value: Value) -> Pick | None:
    """The pick that ``tensor[key] += ...`` has just changed and writes back, as eager has done by then."""
    last = next((each for each in reversed(tx.picks) if each.taken is value), None)
    if last is None or last.base is not tensor or last.key is not key or last.stale is not None:
        return None
    return last if last.changed is next(iter(reversed(tx.graph.graph.nodes))) else None


def _plain_key(tensor: TensorValue, key: Value, brk: GraphBreak) -> tuple[Value | None, list[tuple[int, TensorValue]]]:
    """The key with whole dimensions in the place of tensors, or None where it is nothing else; the dimensions of what
    it gives to which the tensors belong."""
    key = key.realize()
    parts = [part.realize() for part in key.items] if isinstance(key, TupleValue) else [key]
    taking = sum(not _is_constant(part, None) and not _is_constant(part, Ellipsis) for part in parts)
    places: list[tuple[int, TensorValue]] = []
    plain: list[Value] = []
    dim = 0
    for part in parts:
        if isinstance(part, TensorValue):
            if part.example.dim() or part.example.dtype not in _INTS or part.cls is not torch.Tensor:
                raise brk
            places.append((dim, part))
            plain.append(make_slice([ConstantValue(None)] * 3))
            dim += 1
        elif _is_constant(part, Ellipsis):
            plain.append(part)
            dim += tensor.example.dim() - taking
        elif isinstance(part, SliceValue) or _is_constant(part, None) or type(part.const()) is slice:
            plain.append(part)
            dim += 1
        elif isinstance(part, SymValue) or type(part.const()) is int:
            plain.append(part)
        else:
            raise brk
    if not places or taking > tensor.example.dim():
        raise brk
    only = len(parts) == 1 and len(places) == 1
    return None if only else TupleValue(plain), places


def _is_constant(value: Value, constant: Any) -> bool:
    return type(value) is ConstantValue and value.value is constant


def seen_as_view(tx: Capture, outputs: Iterable[Value]) -> tuple[int, GraphBreak] | None:
    """The step at which the region ends, and why, where somebody can tell what was taken from a view."""
    if not tx.picks:
        return None
    nodes = {value.node for value in outputs if isinstance(value, TensorValue)}
    copies = {node for each in tx.picks for node in each.copies}
    inputs = tx.graph.input_list()
    unknown = tx.graph.reads_offsets or any(map(_hides_writes, tx.graph.graph.nodes))
    order = {node: at for at, node in enumerate(tx.graph.graph.nodes)}
    differentiated = any(isinstance(v := inp.value, TensorValue) and v.example.requires_grad for inp in inputs)
    for each in tx.picks:
        views = _aliases(each.taken.node, copies, frozenset())  # eager's, to which what is taken of it belongs
        given = not nodes.isdisjoint(views)
        used = max(order[user] for view in views for user in (view, *view.users))
        if unknown or each.changed is not None or (each.stale is not None and (given or used > order[each.stale])):
            return each.step, each.brk
        if each.stale is not None and each.tracked and differentiated:  # what saved the view raises in eager
            return each.step, each.brk
        if given:
            memory = _memory(each.base.node, copies)
            own = _aliases(each.taken.node, copies, copies)
            others = nodes - own
            if any(node.op == "placeholder" for node in memory):
                return each.step, each.brk
            if not all(others.isdisjoint(_aliases(node, copies, frozenset())) for node in memory):
                return each.step, each.brk
    return None


def is_seen_outside(node: Node, outputs: Set[Node]) -> bool:
    """Whether the memory that a node gives is the program's too when the graph has run."""
    memory = _memory(node, frozenset())
    views = (_aliases(each, frozenset(), frozenset()) for each in memory)
    return any(each.op == "placeholder" for each in memory) or not all(map(outputs.isdisjoint, views))


def _hides_writes(node: Node) -> bool:
    return node.target is getattr and node.args[1:] == ("data",)


def _aliases(node: Node, copies: Set[Node], apart: Set[Node]) -> set[Node]:
    """The nodes that may give the memory of one in eager, itself among them; those ``apart`` do not."""
    found, todo = {node}, [node]
    while todo:
        at = todo.pop()
        users = [user for user in at.users if user not in found and user not in apart]
        fresh = [user for user in users if (user.args[0] is at if user in copies else _may_give_an_argument(user))]
        found.update(fresh)
        todo += fresh
    return found


def _memory(node: Node, copies: Set[Node]) -> set[Node]:
    """The nodes whose memory one may give in eager, itself among them."""
    found, todo = {node}, [node]
    while todo:
        at = todo.pop()
        given: Any = [at.args[0]] if at in copies else at.all_input_nodes if _may_give_an_argument(at) else []
        fresh = [each for each in given if each not in found]
        found.update(fresh)
        todo += fresh
    return found


def _may_give_an_argument(node: Node) -> bool:
    """Whether a call may give memory of its arguments: what PyTorch's schemas do not deny."""
    if node.op not in ("call_function", "call_method"):
        return False
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet = target if isinstance(target, torch._ops.OpOverloadPacket) else getattr(torch.ops.aten, name, None)
    if isinstance(target, torch._ops.OpOverload):
        schemas = [target._schema]
    elif packet is None:
        return True
    else:
        schemas = [getattr(packet, overload)._schema for overload in packet.overloads() if "out" not in overload]
    return any(result.alias_info is not None for schema in schemas for result in schema.returns)
