"""Sharded tensors: ``DTensor`` with its meshes and placements, which are constants of the capture.

An instance is a :class:`ShardedTensorValue`: a node of the graph, whose example is a ``DTensor`` of an abstract local
tensor. One that exists outside is an input of the graph by its local tensor, of which the graph makes it again; its
spec (mesh, placements, global sizes) is guarded. So is nothing else: what ``DTensor`` makes of an operator on instances
follows from their specs, by PyTorch's own rules, which run when the graph is made and when it is traced
(:mod:`prims.sharding`). An instance that leaves the region is made of the graph's output.

The graph breaks where processes talk to each other to make one (``distribute_tensor``, ``run_check=True``), where one
is written in place, and where random numbers are drawn. Sizes of a sharded tensor do not vary in a graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.overrides import OverridingTensorValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special_by_name
from prims.sharding import (
    FromLocal,
    Joined,
    Pair,
    Redistributed,
    Rejoined,
    Shard,
    ToLocal,
    awaited,
    is_sharded,
    sharded_class,
    text_of_spec,
)

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["ShardedTensorValue", "awaited_input", "is_sharded_class", "on_shards", "placement", "sharded_input"]

_API = "torch.distributed.tensor._api"
_FACTS = ("placements", "device_mesh")


class ShardedTensorValue(OverridingTensorValue):
    """A ``DTensor``: ``node`` gives it in the graph, ``example`` has an abstract local tensor."""

    __slots__ = ("example", "local", "node")

    def __init__(self, node: torch.fx.Node, example: Any) -> None:
        super().__init__(type(example), None)
        self.node = node
        self.example = example
        #: The local tensor, which the graph gives for it where it leaves the region; None of one that exists outside.
        self.local: TensorValue | None = None

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in _FACTS:
            return tx.from_python(getattr(self.example, name))
        if name in ("_local_tensor", "_spec"):
            raise GraphBreak("QB17", f"{name} of a DTensor")
        return super().getattr(tx, name)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        raise GraphBreak("QB17", f"setting attribute {name!r} of a DTensor")

    def reconstruct(self, cg: CodeGen) -> None:
        assert self.local is not None
        cg.call_const(Rejoined(self.example._spec), [self.local])

    def children(self) -> Iterator[Value]:
        if self.local is not None:
            yield self.local

    def describe(self) -> str:
        return f"a DTensor of {text_of_spec(self.example._spec)}"


def is_sharded_class(cls: type) -> bool:
    """Whether a class is ``DTensor`` itself."""
    return cls is sharded_class()


def has_spec(spec: Any, obj: Any) -> bool:
    """Whether a ``DTensor`` is placed as it was (a guard)."""
    return is_sharded(obj) and obj._spec == spec


def sharded_input(tx: Capture, obj: Any, source: Source | None) -> Value:
    """A ``DTensor`` that exists outside.

    Raises:
        GraphBreak: this process has no part of it, or its local tensor is not plain.
    """
    source = source or Source("constant", None, (obj,))
    spec = obj._spec
    tx.guards.type_is(source, type(obj))
    text = f"{source} is {text_of_spec(spec)}"
    tx.guards.predicate(source, functools.partial(has_spec, spec), text)
    if spec.mesh.get_coordinate() is None:
        raise GraphBreak("QB25", f"a DTensor ({source}) of which this process has no part")
    tx.guards.of_this_process(text)
    pair = Pair(spec)
    shard = Shard(pair)
    with _disable_current_modes():
        real = shard(obj)
    local = _of_fixed_sizes(tx, tx.wrap(real, Source("call", source, shard)))
    if local is None:
        raise GraphBreak("QB17", f"a DTensor ({source}) whose local tensor is not plain, or of strides that vary")
    value = tx.graph.call(Joined(pair), [local], {})
    assert isinstance(value, ShardedTensorValue)
    value.source, value.obj, value.cls = source, obj, type(obj)
    tx.overriding = True
    return value


def awaited_input(tx: Capture, obj: Any, source: Source | None) -> Value:
    """An ``AsyncCollectiveTensor`` from outside, as eager's ``to_local()`` may give: the plain tensor that it becomes.

    Raises:
        GraphBreak: of a tensor that is not plain.
    """
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, type(obj))
    tx.guards.of_this_process(f"{source}, which a collective has begun")
    with _disable_current_modes():
        real = awaited(obj)
    value = tx.wrap(real, Source("call", source, awaited))
    if not isinstance(value, TensorValue):
        raise GraphBreak("QB17", f"the result of a collective ({source}), which is {display(value)}")
    return value


def _of_fixed_sizes(tx: Capture, local: Value) -> TensorValue | None:
    """A local tensor of sizes that do not vary: a spec has those of this call, which are guarded.

    None where it is not plain, or its strides vary all the same.
    """
    local = local.realize()
    if not isinstance(local, TensorValue):
        return None
    spec: Any = local.example.spec  # type: ignore[attr-defined]
    if all(type(size) is int for size in (*spec.shape, *spec.strides)):
        return local
    why = "a DTensor has sizes that do not vary"
    sizes = [size if type(size) is int else tx.symbols.specialise(size, why) for size in spec.shape]
    fixed = tx.graph_call("view", [local, TupleValue([ConstantValue(size) for size in sizes])], {}, method=True)
    assert isinstance(fixed, TensorValue)
    found: Any = fixed.example.spec  # type: ignore[attr-defined]
    return fixed if all(type(size) is int for size in (*found.shape, *found.strides)) else None


def on_shards(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool) -> Value:
    """A function of torch, or a method by name, on arguments with sharded tensors among them.

    Raises:
        GraphBreak: it writes to one, or PyTorch refuses it.
    """
    name = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
    writes = fn is operator.setitem or "out" in kwargs
    if writes or (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE:
        raise GraphBreak("QB17", f"{name} on a DTensor, which it writes")
    tx.guards.now(custom_handlers, "the operators that DTensor is told to handle otherwise (loss_parallel)")
    return tx.graph.call(fn, args, kwargs, method=method)


_IN_PLACE = frozenset(f"__i{name}__" for name in "add sub mul truediv floordiv mod pow and or xor".split()) | frozenset(
    ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
)


def custom_handlers() -> tuple[str, ...]:
    """The operators that ``loss_parallel`` and the like have told ``DTensor`` to handle otherwise."""
    cls = sharded_class()
    return () if cls is None else tuple(sorted(map(str, cls._op_dispatcher._custom_op_handlers)))


# --- placements and meshes --------------------------------------------------------------------------------------------


def placement(tx: Capture, obj: Any, source: Source | None) -> Value:
    """A placement, which is guarded to be equal."""
    if source is not None:
        tx.guards.equals(source, obj)
    return ConstantValue(obj, source)


def _python(tx: Capture, value: Value | None, what: str) -> Any:
    """An argument that is a placement, a mesh, a number, a dtype, or a sequence of those."""
    if value is None:
        return None
    value = value.realize()
    if isinstance(value, (TupleValue, ListValue)):
        return tuple(_python(tx, item, what) for item in value.items)
    if isinstance(value, ObjectValue) and value.obj is not None and not value.attrs:
        if value.source is not None:
            tx.guards.is_object(value.source, value.obj)
        return value.obj
    if not value.is_const:
        raise GraphBreak("QB17", f"{what} with {display(value)}")
    return value.const()


def _bound(names: tuple[str, ...], args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or given.keys() - set(names):
        raise GraphBreak("QB17", f"{what} with other arguments than those that are known")
    return given


# --- DTensor's own functions ------------------------------------------------------------------------------------------


@special_by_name(_API, "from_local")
def _from_local(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("local_tensor", "device_mesh", "placements", "run_check", "shape", "stride", "grad_placements")
    given = _bound(names, args, kwargs, "DTensor.from_local")
    local = given["local_tensor"].realize()
    mesh, placements = (_python(tx, given.get(name), "DTensor.from_local") for name in names[1:3])
    shape, stride, grad_placements = (_python(tx, given.get(name), "DTensor.from_local") for name in names[4:])
    if _python(tx, given.get("run_check"), "DTensor.from_local"):
        raise GraphBreak("QB25", "DTensor.from_local with run_check, which asks the other processes")
    if mesh is None or mesh.get_coordinate() is None:
        raise GraphBreak("QB25", "DTensor.from_local without a mesh that this process is part of")
    fixed = _of_fixed_sizes(tx, local)
    if fixed is None:
        raise GraphBreak("QB17", f"DTensor.from_local of {display(local)}, which is not plain, or of strides that vary")
    tx.guards.of_this_process("a DTensor and its mesh")
    tx.overriding = True
    return tx.graph.call(FromLocal(mesh, placements, shape, stride, grad_placements), [fixed], {})


def _sharded(value: Value, what: str) -> ShardedTensorValue:
    value = value.realize()
    if not isinstance(value, ShardedTensorValue):
        raise GraphBreak("QB17", f"{what} of {display(value)}")
    return value


@special_by_name(_API, "redistribute")
def _redistribute(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("self", "device_mesh", "placements", "async_op", "forward_dtype", "backward_dtype")
    what = "DTensor.redistribute"
    given = _bound(names, args, kwargs, what)
    mesh, placements = _python(tx, given.get("device_mesh"), what), _python(tx, given.get("placements"), what)
    dtypes = {name: _python(tx, given[name], what) for name in names[4:] if name in given}
    return tx.graph.call(Redistributed(mesh, placements, dtypes), [_sharded(given["self"], what)], {})


@special_by_name(_API, "to_local")
def _to_local(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bound(("self", "grad_placements"), args, kwargs, "DTensor.to_local")
    grad_placements = _python(tx, given.get("grad_placements"), "DTensor.to_local")
    return tx.graph.call(ToLocal(grad_placements), [_sharded(given["self"], "DTensor.to_local")], {})


@special_by_name(_API, "full_tensor")
def _full_tensor(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bound(("self", "grad_placements"), args, kwargs, "DTensor.full_tensor")
    whole = _sharded(given["self"], "DTensor.full_tensor")
    replicate = _replicate()
    everywhere = (replicate,) * whole.example.device_mesh.ndim
    grad_placements = _python(tx, given.get("grad_placements"), "DTensor.full_tensor")
    redistributed = tx.graph.call(Redistributed(None, everywhere, {}), [whole], {})
    return tx.graph.call(ToLocal(grad_placements), [redistributed], {})


def _replicate() -> Any:
    from torch.distributed.tensor.placement_types import Replicate  # the program has imported it

    return Replicate()


def _sends(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB25", "distribute_tensor() or distribute_module(), which send what one process has to others")


for _module in ("torch.distributed.tensor", _API):  # where they say that they are
    for _name in ("distribute_tensor", "distribute_module"):
        special_by_name(_module, _name)(_sends)


@special_by_name("torch.distributed.tensor.parallel.loss", "_enable_custom_loss_ops")
def _loss_parallel(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB17", "loss_parallel() inside of what is compiled: enter it around the call")
