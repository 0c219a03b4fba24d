"""Where a value of the frame comes from, as a path that a guard tree can walk.

``Source("attr", Source("local", None, (0, "self")), "fc")`` is ``self.fc``. A source is turned into a node of the
guard tree the first time a guard, a graph input or an output needs it; a value that nobody looks at costs nothing.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Source", "identifier", "stride_source", "strided", "strides_of"]

_FORMATS = {
    "attr": "{0}.{1}",
    "dict_attr": "{0}.{1}",
    "instance_dict": "{0}.__dict__",
    "item": "{0}[{1!r}]",
    "dict_key": "list({0})[{1}]",
    "dict_value": "list({0}.values())[{1}]",
    "type_of": "type({0})",
    "func_closure": "{0}.__closure__[{1}].cell_contents",
    "func_closure_cell": "{0}.__closure__[{1}]",
    "func_defaults": "{0}.__defaults__",
    "func_kwdefaults": "{0}.__kwdefaults__",
    "func_code": "{0}.__code__",
    "method_self": "{0}.__self__",
    "method_func": "{0}.__func__",
    "grad": "{0}.grad",
}

_ROOTS = frozenset(("local", "closure", "closure_cell", "global_", "builtin", "first"))


class Source:
    """One step of a path: the guard tree's accessor ``kind`` with its ``key``, applied to ``base``."""

    __slots__ = ("_name", "_node", "_text", "base", "key", "kind")

    def __init__(self, kind: str, base: Source | None = None, key: Any = None) -> None:
        self.kind = kind
        self.base = base
        self.key = key
        self._node: int | None = None
        self._text: str | None = None
        self._name: str | None = None

    def node(self, tree: Any) -> int:
        """The guard tree's node (a source belongs to one capture, so to one tree)."""
        if self._node is None:
            accessor = getattr(tree, self.kind)
            if self.base is not None:
                parent = self.base.node(tree)
                if self.kind == "module_item":
                    self._node = accessor(parent, *self.key)
                elif self.key is None and self.kind != "item":  # None may be an item's
                    self._node = accessor(parent)
                else:
                    self._node = accessor(parent, self.key)
            elif isinstance(self.key, tuple):
                self._node = accessor(*self.key)
            else:
                self._node = accessor(self.key)
            if self._node is None:
                raise AssertionError(f"no guard node for {self}")
        return self._node

    def again(self) -> Source:
        """The same path, for another capture."""
        return Source(self.kind, self.base and self.base.again(), self.key)

    def attr(self, name: str) -> Source:
        """``getattr(self, name)``."""
        return Source("attr", self, name)

    def item(self, key: Any) -> Source:
        """``self[key]``."""
        return Source("item", self, key)

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._render()
        return self._text

    def _render(self) -> str:
        if self.base is None:
            if self.kind == "globals_dict":
                return "globals()"
            if self.kind in _ROOTS:
                key = self.key
                return str(key[1] if isinstance(key, tuple) else key)
            held = self.key[0]
            name = getattr(held, "__name__", None) or type(held).__name__
            if isinstance(held, enum.Enum):  # whose values differ from member to member
                name = f"{name}.{held._name_}"
            return f"<{name}>"
        if self.kind == "module_item":
            return f"{self.base}.{self.key[1]}"
        if self.kind == "call":
            return f"{self.key.__name__}({self.base})"
        if self.kind == "item" and self.base.kind == "constant":
            return str(self.key)
        if type(self.key) is str and self.kind in ("attr", "dict_attr"):
            return f"{self.base}.{self.key}"
        return _FORMATS[self.kind].format(self.base, _name_of_tensor(self.key) or self.key)

    def stands_in(self, name: str, owners: set[Source]) -> bool:
        """Whether the path leads through the attribute ``name`` of one of ``owners``."""
        step: Source | None = self if owners else None
        while step is not None:
            if step.key == name and step.base is not None:
                owner = step.base.base if step.base.kind == "instance_dict" else step.base
                if owner in owners:
                    return True
            step = step.base
        return False

    @property
    def is_fixed(self) -> bool:
        """Whether it is an object that the code itself fixes, the same in every call."""
        return self.base is None and self.kind == "constant"

    @property
    def is_module_state(self) -> str | None:
        """``"parameter"`` or ``"buffer"`` for the state of a module, else None."""
        if self.kind == "module_item":
            return {"_parameters": "parameter", "_buffers": "buffer"}.get(self.key[0])
        return None

    def graph_name(self) -> str:
        """A name for the graph input, such as ``l_self_modules_fc_parameters_weight``."""
        if self._name is None:
            self._name = self._render_name()
        return self._name

    def _render_name(self) -> str:
        if self.base is None:
            prefix = {"local": "l_", "closure": "c_", "global_": "g_", "first": ""}.get(self.kind, "k_")
            return prefix + identifier(str(self)) + "_"
        if self.kind == "module_item":
            return f"{self.base.graph_name().rstrip('_')}{self.key[0]}_{identifier(self.key[1])}"
        key = self.key.__name__ if self.kind == "call" else str(_name_of_tensor(self.key) or self.key)
        return f"{self.base.graph_name().rstrip('_')}_{identifier(key)}"


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Runs when guards are evaluated and in the emitted code."""
    return torch.Tensor.stride(tensor)


def stride_source(tensor: Source, dim: int) -> Source:
    """A stride of a tensor, as a number of the frame."""
    return Source("item", Source("call", tensor, strides_of), dim)


def strided(source: Source) -> Source | None:
    """The tensor whose stride a source of :func:`stride_source` is; None for another source."""
    base = source.base
    return base.base if source.kind == "item" and base is not None and base.key is strides_of else None


class _TensorName(str):
    """How a tensor that is a key is called: its own text would be its numbers, others in every call."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self}>"


_NAMES = WeakIdKeyDictionary()


def _name_of_tensor(key: Any) -> _TensorName | None:
    """A name of this tensor alone, the same as long as it lives; None for another key."""
    if not isinstance(key, torch.Tensor):
        return None
    if key not in _NAMES:
        _NAMES[key] = next(_NUMBERS)
    return _TensorName(f"{type(key).__name__} {_NAMES[key]}")


_NUMBERS = itertools.count()


@functools.lru_cache(maxsize=4096)
def identifier(text: str) -> str:
    """``text`` with everything that may not stand in a name replaced."""
    return re.sub(r"\W+", "_", text).strip("_").lower() or "x"
