"""The step that a ``torch.amp.GradScaler`` takes only where no gradient is infinite, without a look at the gradients.

Eager reads whether one is. Here the step is in the graph, and where one is, what it has written gets its old value
back, which compiled is one ``torch.where`` in the kernel that writes. That is eager's step as long as it does nothing
but write to tensors that there were before. One that does more, as the first, which makes the optimizer's state, ends
the graph: it runs as eager's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp import grad_scaler

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import InnerEffects
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special
from dynamo_capture.versions import version_of

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__: list[str] = []

#: Operators that draw random numbers, which a step that is not taken does not.
_RANDOM = frozenset(
    ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal",
     "uniform", "exponential", "cauchy", "log_normal", "geometric", "random", "multinomial", "poisson", "binomial",
     "dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu")
)  # fmt: skip


@special(grad_scaler.GradScaler._maybe_opt_step)
def _maybe_step(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``scaler._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)``."""
    _, optimizer, state, *rest = args
    optimizer = optimizer.realize()
    if not isinstance(optimizer, ObjectValue) or optimizer.source is None or rest or kwargs:
        raise GraphBreak("QB02", "the step of a GradScaler with arguments")
    if not tx.graph.is_outermost or tx.levels or torch.is_inference_mode_enabled():
        raise GraphBreak("QB02", "the step of a GradScaler inside of a derivative or another graph")
    found = tx.from_python(infinities).realize().call(tx, [state], {}).realize()
    if not isinstance(found, TensorValue):
        raise GraphBreak("QB02", "the step of a GradScaler without gradients")
    before = {id(value): version_of(value.example) for value in tx.graph.values()}
    last = next(iter(reversed(tx.graph.graph.nodes)))
    _step(tx, optimizer)
    if any(_name(node).removesuffix("_") in _RANDOM for node in _after(last)):
        raise GraphBreak("QB02", "a GradScaler that skips a step which draws random numbers")
    written = [value for value in _existing(tx, before) if version_of(value.example) != before.get(id(value), 0)]
    with tx.graph.graph.inserting_before(last.next):
        old = [_copy(tx, value) for value in written]
    for device in dict.fromkeys(value.example.device for value in written):
        pairs = [(value, kept) for value, kept in zip(written, old, strict=True) if value.example.device == device]
        values, copies = (ListValue(list(part)) for part in zip(*pairs, strict=True))
        tx.from_python(put_back).realize().call(tx, [values, copies, found, ConstantValue(device)], {})
    return ConstantValue(None)


def _step(tx: Capture, optimizer: ObjectValue) -> None:
    """``optimizer.step()``, which is to do nothing but write tensors."""
    effects, modes, count = tx.side, dict(tx.modes), len(tx.written)
    side = tx.side = _StepEffects(effects, _marks(tx, optimizer))
    try:
        result = optimizer.getattr(tx, "step").call(tx, [], {}).realize()
        roots = [value for frame in tx.frames for value in (*frame.locals.values(), *frame.cells.values())]
        plain = type(result) is ConstantValue and result.value is None and tx.modes == modes
        if not plain or len(tx.written) != count or side.reached([*roots, *effects.roots()]):
            raise _does_more(optimizer)
    finally:
        tx.side = effects
        effects.epoch += side.epoch


def _marks(tx: Capture, optimizer: ObjectValue) -> frozenset[str]:
    """The attributes of an optimizer that a schedule sets to True in each step, and that are so."""
    name = "_opt_called"
    assert optimizer.obj is not None
    if optimizer.obj.__dict__.get(name) is not True:
        return frozenset()
    value = optimizer.getattr(tx, name).realize()
    return frozenset((name,) if value.is_const and value.const() is True else ())


class _StepEffects(InnerEffects):
    """The effects of a step.

    Args:
        marks: attributes that are True before it, and may be set to True.
    """

    def __init__(self, outer: Any, marks: frozenset[str]) -> None:
        super().__init__(outer)
        self.marks = marks

    def write_attribute(self, owner: ObjectValue, name: str, *, again: bool = False) -> None:
        if name not in self.marks:
            super().write_attribute(owner, name, again=again)


def _does_more(optimizer: ObjectValue) -> GraphBreak:
    """The graph breaks before the step, in calls in which the optimizer is as it is now."""
    brk = GraphBreak("QB02", "whether a GradScaler takes a step that does more than write to tensors (the first, say)")
    obj, source = optimizer.obj, optimizer.source
    states, called = len(obj.state), obj.__dict__.get("_opt_called")  # type: ignore[union-attr]

    def is_as_now(found: Any) -> bool:
        return len(found.state) == states and found.__dict__.get("_opt_called") is called

    def guard(tx: Any) -> None:
        tx.guards.predicate(source.again(), is_as_now, f"{source} has made {states} states")  # type: ignore[union-attr]

    brk.guard = guard
    return brk


def _existing(tx: Capture, before: dict[int, float]) -> list[TensorValue]:
    """The tensors that there were before the step, none of which is a view of another."""
    found = [value for value in tx.graph.values() if id(value) in before or value.real_tensor is not None]
    own = {id(value.example) for value in found}
    return [value for value in found if value.example._base is None or id(value.example._base) not in own]


def _after(node: torch.fx.Node) -> list[torch.fx.Node]:
    found = []
    while (node := node.next).op != "root":
        found.append(node)
    return found


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _copy(tx: Capture, value: TensorValue) -> Value:
    plain = tx.graph_call("detach", [value], {}, method=True)
    return tx.graph_call("clone", [plain], {}, method=True)


def infinities(optimizer_state: Any) -> Any:
    """Captured: on how many devices a gradient is infinite or NaN."""
    found = list(optimizer_state["found_inf_per_device"].values())
    return sum([count.to(found[0].device) for count in found])


def put_back(tensors: Any, old: Any, found: Any, device: Any) -> None:
    """Captured: the old values of tensors of one device, where a gradient is infinite or NaN."""
    with torch.no_grad():
        skipped = found.to(device) != 0
        for tensor, before in zip(tensors, old):
            tensor.copy_(torch.where(skipped, before, tensor))
