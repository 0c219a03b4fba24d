"""``torch.distributed``: collectives become functional operators of the graph; ranks and sizes of groups are constants.

``dist.all_reduce(x)`` and its like write a tensor. In the graph the operator gives a new one, which is waited for where
it is called and copied into what the program named; to later stages that is an ordinary write. The process group is
guarded, and named in the graph. Collectives through which gradients are to flow are those of
``torch.distributed._functional_collectives``, which are inlined; ``torch.distributed.nn.functional.all_reduce`` is the
same. In eager the others write what autograd does not see: a tensor with a gradient ends the graph, as does
``async_op``, whose handle the program waits for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import HandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special_by_name

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["fact_of_group"]

dist: Any = torch.distributed
_MODULE = "torch.distributed.distributed_c10d"
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

#: By function: its parameters, and what gives the new tensor of the arguments.
_Begin = Callable[["Capture", dict[str, Value], Any], tuple[Any, list[Value]]]


def _default_group() -> str | None:
    """The name of the default process group, None before it is initialised."""
    return str(dist.group.WORLD.group_name) if dist.is_initialized() else None


def _group(tx: Capture, given: Value | None, what: str) -> Any:
    """The process group of a call, which is guarded."""
    value = None if given is None else given.realize()
    if value is None or (type(value) is ConstantValue and value.value is None):
        if tx.guards.now(_default_group, "the default process group") is None:
            raise GraphBreak("QB25", f"{what} without a process group")
        return dist.group.WORLD
    real = value.real()
    if not isinstance(real, dist.ProcessGroup):
        raise GraphBreak("QB25", f"{what} in {value.describe()}")
    if value.source is not None:
        tx.guards.is_object(value.source, real)
    return real


def _reduction(tx: Capture, given: Value | None, what: str) -> ConstantValue:
    if given is None:
        return ConstantValue("sum")
    value = given.realize()
    real = value.real()
    for name in _REDUCTIONS:
        if real == getattr(dist.ReduceOp, name):
            if value.source is not None:
                tx.guards.is_object(value.source, real)
            return ConstantValue(name.lower())
    raise GraphBreak("QB25", f"{what} with {value.describe()}")


def _bound(names: tuple[str, ...], args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    given = dict(zip(names, args, strict=False)) | kwargs
    asynchronous = given.pop("async_op", ConstantValue(False)).realize()
    if len(args) > len(names) or given.keys() - set(names) or not (asynchronous.is_const and not asynchronous.const()):
        raise GraphBreak("QB25", f"{what} with async_op, or other arguments than those that are known")
    return given


def _size(group: Any) -> ConstantValue:
    return ConstantValue(dist.get_world_size(group))


def _all_reduce(tx: Capture, given: dict[str, Value], group: Any) -> tuple[Any, list[Value]]:
    op = _reduction(tx, given.get("op"), "all_reduce")
    return torch.ops._c10d_functional.all_reduce.default, [given["tensor"], op]


def _broadcast(tx: Capture, given: dict[str, Value], group: Any) -> tuple[Any, list[Value]]:
    of_group = given.get("group_src", ConstantValue(None)).realize().const()
    source = given.get("src", ConstantValue(None)).realize().const()
    if of_group is None and source is not None:
        of_group = dist.get_group_rank(group, source)
    if of_group is None:
        raise GraphBreak("QB25", "broadcast without a source")
    return torch.ops._c10d_functional.broadcast.default, [given["tensor"], ConstantValue(of_group)]


def _all_gather(tx: Capture, given: dict[str, Value], group: Any) -> tuple[Any, list[Value]]:
    return torch.ops._c10d_functional.all_gather_into_tensor.default, [given["input_tensor"], _size(group)]


def _reduce_scatter(tx: Capture, given: dict[str, Value], group: Any) -> tuple[Any, list[Value]]:
    op = _reduction(tx, given.get("op"), "reduce_scatter_tensor")
    return torch.ops._c10d_functional.reduce_scatter_tensor.default, [given["input"], op, _size(group)]


def _all_to_all(tx: Capture, given: dict[str, Value], group: Any) -> tuple[Any, list[Value]]:
    for name in ("output_split_sizes", "input_split_sizes"):
        value = given.get(name, ConstantValue(None)).realize()
        if not (type(value) is ConstantValue and value.value is None):
            raise GraphBreak("QB25", "all_to_all_single with sizes of its own for each process")
    rows = given["input"].realize().example.shape[0]  # type: ignore[attr-defined]
    size = dist.get_world_size(group)
    if not isinstance(rows, int) or rows % size:
        raise GraphBreak("QB25", "all_to_all_single of rows that are not known, or no multiple of the group's size")
    parts = ConstantValue([rows // size] * size)
    return torch.ops._c10d_functional.all_to_all_single.default, [given["input"], parts, parts]


_WRITING: dict[str, tuple[tuple[str, ...], str, _Begin]] = {
    "all_reduce": (("tensor", "op", "group", "async_op"), "tensor", _all_reduce),
    "broadcast": (("tensor", "src", "group", "async_op", "group_src"), "tensor", _broadcast),
    "all_gather_into_tensor": (("output_tensor", "input_tensor", "group", "async_op"), "output_tensor", _all_gather),
    "all_gather_single": (("output_tensor", "input_tensor", "group", "async_op"), "output_tensor", _all_gather),
    "reduce_scatter_tensor": (("output", "input", "op", "group", "async_op"), "output", _reduce_scatter),
    "reduce_scatter_single": (("output", "input", "op", "group", "async_op"), "output", _reduce_scatter),
    "all_to_all_single": (
        ("output", "input", "output_split_sizes", "input_split_sizes", "group", "async_op"), "output", _all_to_all,
    ),
}  # fmt: skip

#: What goes from process to process in another way than by a tensor of every process.
_NOT_CAPTURED = (
    "all_gather_object", "barrier", "batch_isend_irecv", "broadcast_object_list", "destroy_process_group", "gather",
    "gather_object", "init_process_group", "irecv", "isend", "monitored_barrier", "new_group", "recv",
    "recv_object_list", "reduce", "scatter", "scatter_object_list", "send", "send_object_list",
)  # fmt: skip


def _waited(tx: Capture, operator: Any, args: list[Value], group: Any) -> Value:
    begun = tx.graph_call(operator, [*args, ConstantValue(str(group.group_name))], {})
    return tx.graph_call(torch.ops._c10d_functional.wait_tensor.default, [begun], {})


def _writing(name: str, names: tuple[str, ...], target: str, begin: _Begin) -> None:
    @special_by_name(_MODULE, name)
    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = _bound(names, args, kwargs, name)
        for tensor in [given[key].realize() for key in (target, "input", "input_tensor") if key in given]:
            if not isinstance(tensor, TensorValue) or not tensor.example.is_contiguous():
                raise GraphBreak("QB25", f"{name} of {tensor.describe()}, which is no contiguous tensor")
            if tensor.example.requires_grad or tensor.example.is_complex():
                raise GraphBreak("QB25", f"{name} of a tensor with a gradient, or of complex numbers")
        if target not in given:
            raise GraphBreak("QB25", f"{name} without {target}")
        group = _group(tx, given.get("group"), name)
        result = _waited(tx, *begin(tx, given, group), group)
        written = given[target].realize()
        shaped = tx.graph_call("view_as", [result, written], {}, method=True)
        tx.graph_call("copy_", [written, shaped], {}, method=True)
        return ConstantValue(None)


for _name, _row in _WRITING.items():
    _writing(_name, *_row)


def _as_it_is(name: str) -> None:
    @special_by_name(_MODULE, name)
    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise GraphBreak("QB25", f"torch.distributed.{name}()")


for _name in _NOT_CAPTURED:
    _as_it_is(_name)


@special_by_name("torch.distributed.nn.functional", "all_reduce")
def _differentiable_all_reduce(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bound(("tensor", "op", "group"), args, kwargs, "all_reduce")
    group = _group(tx, given.get("group"), "all_reduce")
    return _waited(tx, *_all_reduce(tx, given, group), group)


@special_by_name(_MODULE, "get_rank")
def _rank(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _of_group(tx, args, kwargs, dist.get_rank, "rank")


@special_by_name(_MODULE, "get_world_size")
def _world_size(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _of_group(tx, args, kwargs, dist.get_world_size, "size")


def _size_of_named(name: str) -> int | None:
    """How many processes the group of a name has; None where there is none."""
    try:
        return int(sys.modules[_MODULE]._get_group_size_by_name(name))
    except RuntimeError:
        return None


@functools.lru_cache(maxsize=256)
def _asks_for(name: str) -> Callable[[], int | None]:
    return functools.partial(_size_of_named, name)  # one of each name, so that it is one guard


@special_by_name(_MODULE, "_get_group_size_by_name")
def _size_by_name(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of functional collectives, which have a group's name, and from PyTorch 2.13 on the group too."""
    (given,) = (*args, *kwargs.values())
    value = given.realize()
    if not value.is_const:
        return _of_group(tx, [value], {}, dist.get_world_size, "size")
    size = tx.guards.now(_asks_for(str(value.const())), f"the size of the process group {value.const()!r}")
    if size is None:
        raise GraphBreak("QB25", f"a process group named {value.const()!r}, which there is not")
    return ConstantValue(size)


@special_by_name(_MODULE, "is_initialized")
def _is_initialised(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(tx.guards.now(dist.is_initialized, "whether process groups are initialised"))


def fact_of_group(tx: Capture, value: Value, cls: type, name: str) -> Value | None:
    """The method of a process group that tells its size or this process's rank; None for all others."""
    if name not in ("size", "rank") or not issubclass(cls, getattr(dist, "ProcessGroup", ())):
        return None

    def tell(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        real = value.real()
        if value.source is not None:
            tx.guards.is_object(value.source, real)
        return ConstantValue(getattr(real, name)())

    return HandlerValue(tell, name)


def _of_group(tx: Capture, args: list[Value], kwargs: dict[str, Value], ask: Callable[..., int], what: str) -> Value:
    group = _group(tx, _bound(("group",), args, kwargs, f"get_{what}").get("group"), f"the {what}")
    if group is dist.group.WORLD:
        return ConstantValue(tx.guards.now(ask, f"the {what} of the default process group"))
    return ConstantValue(ask(group))
