"""Hooks that a region sets: on modules, on tensors that exist outside, and on tensors that it computes.

A hook on a module is an entry of its tables, under a number that :class:`RemovableHandle` gives out; capture leaves the
number open, and only an entry that is left when the region has run gets one. A hook on a tensor that exists outside is
set when the graph has run: a backward pass comes later. A hook on a tensor that the graph computes becomes part of it,
as an ``autograd.Function`` that passes the tensor on; it may do nothing but compute, of what is the same when it is
called (:class:`_Reading`), and its handle stays inside.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_fixed_file, is_library_class, is_library_name
from dynamo_capture.values.autograd_functions import Hooked
from dynamo_capture.values.base import IdentityKey, Value
from dynamo_capture.values.callables import BuiltinValue, ClassValue, HandlerValue, PyModuleValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import CellValue, FunctionValue, PartialValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.picks import is_seen_outside
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special
from dynamo_capture.values.weak import WeakReferenceValue
from dynamo_capture.versions import version_of

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["HandleValue", "hook_on", "kept_handle"]


# --- modules ----------------------------------------------------------------------------------------------------------


class _Number(Value):
    """The number of a new handle, which is unlike all others; it is given out when the region has run."""

    __slots__ = ()

    @property
    def pytype(self) -> type:
        return int

    def key(self, tx: Capture) -> Any:
        return IdentityKey(self)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(_next_number, [])

    def describe(self) -> str:
        return "the number of a hook's handle"


def _next_number() -> int:
    """Runs in the emitted code."""
    number = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    return number


@special(RemovableHandle.__init__)
def _init(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    handle, hooks = (arg.realize() for arg in args[:2])
    given = kwargs["extra_dict"].realize() if "extra_dict" in kwargs else ConstantValue(None)
    extra = given.items if isinstance(given, ListValue) else [] if given.is_const else [given]
    tables = [hooks, *(each.realize() for each in extra)]
    known = isinstance(handle, ObjectValue) and handle.obj is None and handle.cls is RemovableHandle
    existing = all(isinstance(table, DictValue) and table.obj is not None for table in tables)
    if len(args) != 2 or not known or not existing:
        raise GraphBreak("QB06", "making a handle of hooks")
    references: list[Value] = [WeakReferenceValue(table) for table in tables]
    assert isinstance(handle, ObjectValue)
    handle.store(tx, "hooks_dict_ref", references[0])
    handle.store(tx, "id", _Number())
    handle.store(tx, "extra_dict_ref", TupleValue(references[1:]))
    return ConstantValue(None)


@special(RemovableHandle.remove)
def _remove(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    handle = args[0].realize()
    number = handle.attrs.get("id") if isinstance(handle, ObjectValue) else None
    if not isinstance(number, _Number):
        return tx.interpreted(FunctionValue(RemovableHandle.remove), args, kwargs)
    references = [handle.attrs["hooks_dict_ref"], *handle.attrs["extra_dict_ref"].items]  # type: ignore[attr-defined]
    for reference in references:
        table = reference.target
        if table.contains(tx, number):
            table.delitem(tx, number)
    return ConstantValue(None)


# --- tensors ----------------------------------------------------------------------------------------------------------


class HandleValue(Value):
    """The handle of a hook on a tensor.

    Attributes:
        tensor, hook: what it was set on, if that exists outside.
        step: the root frame's, where the hook was set.
        brk: why the region ends there, if the handle is needed.
        computed: what it was set on, if the graph computes that.
        reading: then, what the hook reads.
    """

    __slots__ = ("brk", "computed", "hook", "name", "reading", "removed", "step", "tensor")

    mutable = True

    def __init__(
        self, step: int, brk: GraphBreak, name: str, tensor: TensorValue | None, hook: Value | None,
        computed: TensorValue | None = None,
    ) -> None:  # fmt: skip
        self.source = None
        self.computed = computed
        self.step = step
        self.brk = brk
        self.name = name
        self.tensor = tensor
        self.hook = hook
        self.reading: _Reading | None = None
        self.removed = False

    @property
    def pytype(self) -> type:
        return RemovableHandle

    def truth(self, tx: Capture) -> bool:
        return True

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in ("remove", "__exit__"):
            return HandlerValue(self._remove, name)
        if name == "__enter__":
            return HandlerValue(lambda tx, args, kwargs: self, name)
        if name == "__class__":
            return tx.from_python(RemovableHandle)
        raise GraphBreak("QB12", f"attribute {name!r} of the handle of a tensor's hook")

    def _remove(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.side.epoch += 1
        if self.tensor is None:
            tx.ends.append((self.step, self.brk))
        elif not self.removed:
            self.removed = True
            tx.side.call_no_more(self)
            tx.hooked.remove(self)
        return ConstantValue(None)

    def children(self) -> Iterator[Value]:
        if self.tensor is not None and self.hook is not None:
            yield from (self.tensor, self.hook)

    def reconstruct(self, cg: CodeGen) -> None:
        if self.tensor is None or self.hook is None:
            raise AssertionError("the region ends before a hook whose handle is needed")
        cg.call_const(_removed if self.removed else _set, [ConstantValue(self.name), self.tensor, self.hook])

    def describe(self) -> str:
        return "the handle of a tensor's hook"


def _set(name: str, tensor: torch.Tensor, hook: Any) -> Any:
    """Runs in the emitted code."""
    return getattr(tensor, name)(hook)


def _removed(name: str, tensor: torch.Tensor, hook: Any) -> Any:
    """Runs in the emitted code: the handle of a hook that has been removed again."""
    handle = _set(name, tensor, hook)
    handle.remove()
    return handle


def _held(handle: Any) -> None:
    """Runs in the emitted code: the handle has been made."""


def kept_handle(tx: Capture, built: Iterable[Value]) -> tuple[int, GraphBreak] | None:
    """The step at which the region ends, and why, where it had better ended earlier: the handle of a computed tensor's
    hook is needed, or the tensor, on which another hook may be set, which comes after that of the graph; or what the
    hook reads has changed, or may."""
    if not tx.handles:
        return min(tx.ends, key=lambda end: end[0], default=None)
    needed = {id(value): value for value in built}
    found = [
        each for each in tx.handles
        if id(each) in needed or id(each.computed) in needed
        or each.reading is not None and each.reading.may_change(needed)
    ]  # fmt: skip
    return min([*tx.ends, *((each.step, each.brk) for each in found)], key=lambda end: end[0], default=None)


def hook_on(tx: Capture, tensor: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``tensor.register_hook(hook)``, or ``register_post_accumulate_grad_hook``.

    Raises:
        GraphBreak: it has to be set where the program sets it.
    """
    brk = GraphBreak("QB12", f"Tensor.{name}()")
    example = tensor.example
    hook = args[0].realize() if len(args) == 1 and not kwargs else None
    if hook is None or not tx.graph.is_outermost or tx.levels or not example.requires_grad or example._version:
        raise brk
    brk.where = tx.location()
    step = tx.frames[0].call_step()  # type: ignore[attr-defined]
    if tensor.source is not None:
        if name != "register_hook" and not example.is_leaf:
            raise brk
        handle = HandleValue(step, brk, name, tensor, hook)
        tx.read_later(brk, [example])
        tx.hooked.append(handle)
        tx.side.call_later(_held, [handle], {})
        return handle
    if name != "register_hook" or example.is_leaf or example.is_inference() or tensor.node.users:
        raise brk
    reading = _Reading(hook)
    if not reading.stays:
        raise GraphBreak("QB12", f"Tensor.{name}() of {hook.describe()}, which reads what may change until its call")
    _compute(tx, tensor, hook)
    made = HandleValue(step, brk, name, None, None, tensor)
    made.reading = reading
    tx.handles.append(made)
    return made


def _compute(tx: Capture, tensor: TensorValue, hook: Value) -> None:
    """A hook on a tensor that the graph has computed: from here on the tensor is what leaves it."""
    if not torch.is_grad_enabled():
        raise GraphBreak("QB12", "Tensor.register_hook() where gradients are off")
    node, example, hooks = tx.computed_hooks.get(id(tensor), (tensor.node, tensor.example, []))
    last = tensor.node
    tensor.node, tensor.example = node, example  # one call for all, so that they come in their order
    apply = tx.from_python(Hooked).realize().getattr(tx, "apply").realize()
    try:
        passed = apply.call(tx, [tensor, *hooks, hook], {}).realize()
    except GraphBreak as brk:
        text = f"Tensor.register_hook() of {hook.describe()}, which does more than compute"
        raise GraphBreak("QB12", text) if brk.number == "QB12" else brk from None
    if not isinstance(passed, TensorValue):
        raise GraphBreak("QB12", "Tensor.register_hook()")
    if hooks:
        tx.graph.forget(last)
    tx.computed_hooks[id(tensor)] = node, example, [*hooks, hook]
    tx.graph.takes_place(passed, tensor)


class _Reading:
    """What a hook reads beside its argument, which is read when it is called: in a backward pass, later.

    Attributes:
        stays: nobody can change it until then, but for the variables and tensors of the region. An attribute of an
            object, an item of a list or a global variable may be another then; functions and modules are taken to be
            what they are.
    """

    def __init__(self, hook: Value) -> None:
        self._cells: list[tuple[CellValue, Value | None]] = []
        self._tensors: list[tuple[TensorValue, float]] = []
        self._seen: dict[int, Any] = {}  # functions, which it keeps, by identity
        self.stays = self._stays(hook)

    def may_change(self, needed: dict[int, Value]) -> bool:
        """Whether a variable or a tensor has changed since, or may when the region has run.

        Args:
            needed: what the code needs then, by identity.
        """
        if any(id(cell) in needed or cell.content is not content for cell, content in self._cells):
            return True
        outputs = {value.node for value in needed.values() if isinstance(value, TensorValue)}
        return any(
            version_of(tensor.example) != version or is_seen_outside(tensor.node, outputs)
            for tensor, version in self._tensors
        )

    def _stays(self, value: Value) -> bool:
        value = value.realize()
        if isinstance(value, FunctionValue):
            return self._function_stays(value)
        if isinstance(value, TupleValue):
            return all(map(self._stays, value.items))
        if isinstance(value, PartialValue):
            return all(map(self._stays, (value.func, *value.args, *value.keywords.values())))
        if isinstance(value, (BuiltinValue, ClassValue, PyModuleValue)):
            return _is_fixed(value.obj)
        if isinstance(value, TensorValue):
            self._tensors.append((value, version_of(value.example)))
            return value.source is None
        return isinstance(value, (ConstantValue, SymValue))

    def _function_stays(self, function: FunctionValue) -> bool:
        known: Any = function if function.fn is None else function.fn
        if id(known) in self._seen or is_fixed_file(function.code.co_filename):
            return True
        self._seen[id(known)] = known
        if function.fn is not None:
            return self._existing_stays(function.fn)
        for cell in function.closure or ():
            if cell.cell is not None:
                return False
            self._cells.append((cell, cell.content))
        held = [content for _, content in self._cells if content is not None]
        given = [*(function.defaults or ()), *(function.kwdefaults or {}).values()]
        return all(map(self._stays, (*held, *given))) and self._globals_stay(function.code, function.globals)

    def _existing_stays(self, fn: types.FunctionType) -> bool:
        given = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        plain = all(isinstance(each, (bool, int, float, str, type(None))) for each in given)
        return plain and not fn.__closure__ and self._globals_stay(fn.__code__, fn.__globals__)

    def _globals_stay(self, code: types.CodeType, names: dict[str, Any]) -> bool:
        builtins = names.get("__builtins__", {})
        builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
        for inst in dis.get_instructions(code):
            if inst.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                found = names.get(inst.argval, builtins.get(inst.argval))
                own = isinstance(found, types.FunctionType) and not is_fixed_file(found.__code__.co_filename)
                if not (self._function_stays(FunctionValue(found)) if own else _is_fixed(found)):
                    return False
        inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
        return all(self._globals_stay(each, names) for each in inner)


def _is_fixed(obj: Any) -> bool:
    """Whether it is a module, a class or a function of a library."""
    if isinstance(obj, types.ModuleType):
        return is_library_name(obj.__name__)
    if isinstance(obj, type):
        return is_library_class(obj)
    return isinstance(obj, (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType))
