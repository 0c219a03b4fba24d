"""Keys of calls: what is equal of their operators, literal arguments and operands' metadata is computed once.

A key is made of numbers, sizes that are numbers, and types: whatever else an argument may be (a symbolic size, about
which a rule may ask and so guard, above all) is in none, and the call is computed as if there were no keys.
"""

from __future__ import annotations

from typing import Any

import torch

from prims.defaults import default_dtype
from prims.spec.infer import RULES, infer, op_name
from prims.spec.tensorspec import TensorSpec

__all__ = ["Alike", "Inferred", "NotAlike"]

_LITERALS = frozenset({int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, type(Ellipsis)})


class NotAlike(Exception):
    """An argument that is in no key."""


class Alike:
    """Keys of arguments, for as long as this object lives."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._by_object: dict[int, tuple[Any, int]] = {}

    def argument(self, arg: Any) -> Any:
        """An argument's key, in which 1, 1.0 and True differ, and 0.0 and -0.0.

        Raises:
            NotAlike: it has none.
        """
        kind = type(arg)
        if kind is TensorSpec:
            return self.spec(arg)  # a bare number, which no literal's key is
        if kind in _LITERALS:
            return kind, arg
        if kind is tuple:
            return tuple(map(self.argument, arg))
        if kind is list:
            return list, *map(self.argument, arg)
        if kind is float:
            return kind, repr(arg)
        if kind is torch.device and (arg.type == "cpu" or arg.index is not None):  # else it is the current one
            return kind, arg
        return self.other(arg)

    def other(self, arg: Any) -> Any:
        """The key of what is neither metadata nor a literal."""
        raise NotAlike

    def spec(self, spec: Any) -> int:
        """A number that equal metadata shares. The object is kept, so that nothing else gets its identity.

        Raises:
            NotAlike: a size is no number, or it is no tensor's metadata.
        """
        found = self._by_object.get(id(spec))
        if found is not None:
            return found[1]
        if type(spec) is not TensorSpec:
            raise NotAlike
        for size in (*spec.shape, *spec.strides, spec.storage_offset):
            if type(size) is not int:
                raise NotAlike
        key = (spec.shape, spec.strides, spec.storage_offset, spec.dtype, spec.device)
        number = self._numbers.setdefault(key, len(self._numbers))
        self._by_object[id(spec)] = (spec, number)
        return number


#: Modules of rules that look at more than their arguments: at flags of kernels and at the default device.
_LOOKING_ROUND = frozenset({"prims.spec.rules.attention", "prims.spec.rules.creation"})


class Inferred(Alike):
    """`prims.spec.infer`, where a rule is asked once for equal calls.

    A rule is a function of its arguments' metadata, of literals, and of the default dtype, which is in the key; those
    of other modules of rules than these, and what stands in for a rule (a composite kernel, a custom operator's own
    code), are asked each time, and so is one whose result has a symbolic size. `hits` counts the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0
        self._found: dict[Any, Any] = {}
        self._rules: dict[int, tuple[Any, bool]] = {}

    def other(self, arg: Any) -> Any:
        return self.spec(getattr(arg, "spec", None))

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """See `prims.spec.infer`."""
        known = self._rules.get(id(func))
        if known is None:
            known = self._rules[id(func)] = (func, _looks_at_arguments(func))
        if not known[1]:
            return infer(func, args, kwargs)
        try:
            named = tuple([(name, self.argument(value)) for name, value in kwargs.items()]) if kwargs else None
            key = id(func), default_dtype(), tuple(map(self.argument, args)), named
        except NotAlike:
            return infer(func, args, kwargs)
        found = self._found.get(key)
        if found is not None:
            self.hits += 1
            return found
        found = infer(func, args, kwargs)
        if type(found) is TensorSpec or type(found) is tuple:
            try:
                self.argument(found)
            except NotAlike:
                return found
            self._found[key] = found
        return found


def _looks_at_arguments(func: Any) -> bool:
    if func.namespace != "aten":
        return False
    rule = RULES.get(op_name(func))
    return rule is not None and rule.__module__ not in _LOOKING_ROUND
