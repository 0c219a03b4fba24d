"""``torch.nn.Module`` instances: parameters and buffers become graph inputs, submodules are inlined."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import bind_attribute, find, lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue
from dynamo_capture.values.objects import ObjectValue, is_data_descriptor
from dynamo_capture.values.parallel import is_sharded, synchronised
from dynamo_capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["ModuleValue"]

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
                 "_global_backward_pre_hooks")  # fmt: skip
_MODULE_GETATTR = nn.Module.__dict__["__getattr__"]
_MODULE_SETATTR = nn.Module.__dict__["__setattr__"]
_MODULE_DELATTR = nn.Module.__delattr__
_MODULE_CALL = nn.Module.__dict__["__call__"]
_CALL_IMPL = nn.Module.__dict__["_call_impl"]
_LISTS = (nn.ModuleList, nn.ParameterList)


class ModuleValue(ObjectValue):
    """An existing module."""

    __slots__ = ()

    def truth(self, tx: Capture) -> bool:
        return super().truth(tx) if self._has(tx, "__len__") or self._has(tx, "__bool__") else True

    def missing_attribute(self, tx: Capture, name: str) -> Value:
        if find(tx, self.cls, "__getattr__")[0] is not _MODULE_GETATTR:
            return super().missing_attribute(tx, name)
        value = self._registered(tx, name)
        return super().missing_attribute(tx, name) if value is None else value

    def _registered(self, tx: Capture, name: str) -> Value | None:
        """A parameter, buffer or submodule."""
        own = self.obj.__dict__
        for table in _TABLES:
            entries = own.get(table)
            changed = tx.changed(entries)
            if changed is not None:  # such as functional_call writes parameters
                found = changed.find(tx, ConstantValue(name))  # type: ignore[attr-defined]
                if found is not None:
                    return found
            elif entries is not None and name in entries:
                source = self.source and Source("module_item", self.source, (table, name))
                return tx.read(entries[name], source)
        return None

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        if find(tx, self.cls, "__setattr__")[0] is _MODULE_SETATTR:
            value = value.realize()
            now = self._registered(tx, name) if isinstance(value, TensorValue) else None
            if now is not None and now.realize() is value:
                return  # self.weight += ...
            kind = value.pytype
            registers = isinstance(kind, type) and issubclass(kind, (nn.Module, nn.Parameter, nn.Buffer))
            if not registers and not self._is_in_tables(tx, name):  # what nn.Module.__setattr__ comes to then
                if is_data_descriptor(lookup(self.cls, name)[0]):
                    self.store(tx, name, value)
                else:
                    self.write(tx, name, value)
                return
        super().setattr(tx, name, value)

    def delattr(self, tx: Capture, name: str) -> None:
        if find(tx, self.cls, "__delattr__")[0] is _MODULE_DELATTR and not self._is_in_tables(tx, name):
            self.remove(tx, name)
        else:
            super().delattr(tx, name)

    def _is_in_tables(self, tx: Capture, name: str) -> bool:
        """Whether a parameter, buffer or submodule may have this name."""
        own = self.obj.__dict__
        return any(name in own.get(table, ()) or tx.changed(own.get(table)) is not None for table in _TABLES)

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found, owner = find(tx, self.cls, "__call__")
        if found is not _MODULE_CALL:
            return bind_attribute(tx, self, self.cls, "__call__", found, owner).call(tx, args, kwargs)  # type: ignore[arg-type]
        if any(base.__module__ == "torch.jit._script" for base in self.cls.__mro__):
            raise GraphBreak("QB06", "a TorchScript module")
        if is_sharded(self.cls):
            synchronised(f"the hooks of fully_shard() on {self.describe()}")
        if (called := self._calls_another(tx)) is not None:
            return called.call(tx, args, kwargs)
        if self._has_hooks(tx):
            self._check_backward_hooks([*args, *kwargs.values()])
            call_impl = nn.Module.__dict__["_call_impl"]
            return tx.function(call_impl, None).call(tx, [self, *args], kwargs)
        return self.getattr(tx, "forward").realize().call(tx, args, kwargs)

    def _calls_another(self, tx: Capture) -> Value | None:
        """What ``nn.Module.__call__`` calls in the place of its own ``_call_impl``; what ``module.compile()`` has put
        there computes the same."""
        own = self.obj.__dict__
        compiled = own.get("_compiled_call_impl")
        if isinstance(compiled, types.FunctionType) and not hasattr(compiled, "_torchdynamo_orig_callable"):
            return self.getattr(tx, "_compiled_call_impl").realize()
        if find(tx, self.cls, "_call_impl")[0] is _CALL_IMPL and "_call_impl" not in own:
            return None
        return self.getattr(tx, "_call_impl").realize()

    def _has_hooks(self, tx: Capture) -> bool:
        own = self.obj.__dict__
        for name in _GLOBAL_HOOKS:
            hooks = getattr(nn_module, name)
            tx.guard_fixed_length(hooks, f"torch.nn.modules.module.{name}")
            if hooks or tx.changed(hooks) is not None:
                return True
        found = False
        for name in _HOOKS:
            hooks = own.get(name)
            if name in self.attrs or tx.changed(hooks) is not None:
                return True
            if hooks is not None and self.source is not None:
                if hooks:
                    found = True
                else:
                    tx.guards.length(Source("dict_attr", self.source, name), 0)
        return found

    def _check_backward_hooks(self, given: list[Value]) -> None:
        """Break before a call around which eager sets the module's backward hooks, on nodes of autograd's own.

        Where there is nothing to differentiate it sets none; a wrong guess is a break inside the call.
        """
        own = [self.obj.__dict__.get(name) for name in _HOOKS if "backward" in name]
        everywhere = [getattr(nn_module, name) for name in _GLOBAL_HOOKS if "backward" in name]
        if not torch.is_grad_enabled() or not any([*own, *everywhere]):
            return
        tensors = [value.realize() for value in given]
        needed = any(isinstance(value, TensorValue) and value.example.requires_grad for value in tensors)
        if needed or any(parameter.requires_grad for parameter in self.obj.parameters()):
            raise GraphBreak("QB12", f"backward hooks of {self.describe()}")

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "forward" and "forward" not in self.attrs and "forward" not in self.obj.__dict__:
            found, owner = lookup(self.cls, "forward")
            plain = lookup(self.cls, "__getattribute__")[0] is object.__getattribute__
            if plain and isinstance(found, types.FunctionType):
                if self.source is not None:
                    tx.guards.no_instance_attr(self.source, "forward")
                return bind_attribute(tx, self, self.cls, name, found, owner)  # type: ignore[arg-type]
        return super().getattr(tx, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__getitem__" and isinstance(self.obj, _LISTS):
            return self.getitem(tx, args[0])
        return super().call_method(tx, name, args, kwargs)

    def getitem(self, tx: Capture, key: Value) -> Value:
        key = key.realize()
        if isinstance(self.obj, _LISTS) and key.pytype is slice:
            # A slice of a ModuleList is a new container of the same modules.
            members = list(self.unpack(tx))
            return ListValue(ListValue(members).getitem(tx, key).items)  # type: ignore[attr-defined]
        return super().getitem(tx, key)

    def describe(self) -> str:
        return f"a {self.cls.__name__} module"
