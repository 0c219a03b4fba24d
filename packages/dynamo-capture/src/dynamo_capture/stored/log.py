"""The guards of a capture, written down as they are put on its tree.

A guard tree is built by calls (``tree.attr(parent, name)``, ``tree.check_type(node, cls, reason=...)``), which number
its nodes in their order. The same calls on an empty tree build the same tree, so the calls are what is stored of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dynamo_capture import _native
from dynamo_capture.hook import state_readers
from prims.records import record

__all__ = ["GuardLog", "Reads", "Row"]


class Row(NamedTuple):
    """One call: the method, its arguments, and what it gave (a node's number, or None)."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int | None
    #: What the call read of the process that its arguments do not say.
    seen: Any = None


@record(frozen=False)
class Reads:
    """What a capture read of libraries without a guard, as nothing changes it in a process; in another it may differ.

    Attributes:
        globals: by a module's globals (their identity) and a name, ``(globals, name, what was read)``.
        attributes: the same of modules.
        lookups: by a class (its identity) and a name, the two.
        made: by the identity of an object that capture made, which the guards look into: the object, and the function
            of whose arguments it is made.
        promised: what the user has promised, which holds in this process.
        hashed: whether something depends on how texts hash.
        addressed: whether something depends on where an object is in memory.
    """

    globals: dict[tuple[int, str], tuple[Any, str, Any]]
    attributes: dict[tuple[int, str], tuple[Any, str, Any]]
    lookups: dict[tuple[int, str], tuple[type, str]]
    made: dict[int, tuple[Any, Any, tuple[Any, ...]]]
    promised: list[str]
    hashed: bool = False
    addressed: bool = False

    @classmethod
    def none(cls) -> Reads:
        """Of a capture that begins."""
        return cls({}, {}, {}, {}, [])


class GuardLog:
    """A native guard tree that keeps the rows of what is put on it.

    Args:
        portable: also what the calls read of the process, for another one to compare.
    """

    def __init__(self, portable: bool = True) -> None:
        self.tree = _native.GuardTree()
        self.rows: list[Row] = []
        self._seen = _SEEN if portable else {}

    def __len__(self) -> int:
        return len(self.tree)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.tree, name)
        if name not in _LOGGED:
            return method
        logged = self._logged(name, method)
        setattr(self, name, logged)
        return logged

    def _logged(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        rows = self.rows
        seen = self._seen.get(name)
        known: set[Any] = set()

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if result is not None:  # a node, which is asked for as often as it is met
                if result in known:
                    return result
                known.add(result)
            rows.append(Row(name, args, kwargs, result, None if seen is None else seen(*args, **kwargs)))
            return result

        return call


def tensor_facts(example: Any) -> dict[str, Any]:
    """What a guard takes from a tensor beside the sizes that it is given."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        return _tensor_facts(example)


def _tensor_facts(example: Any) -> dict[str, Any]:
    import torch

    return {
        "type": type(example),
        "dtype": example.dtype,
        "device": example.device,
        "layout": example.layout,
        "requires_grad": example.requires_grad,
        "offset": example.storage_offset(),
        "dims": example.dim(),
        "flags": (example.is_conj(), example.is_neg(), example.is_inference()),
        "keys": _native_keys(example),
        "contiguous": example.layout is torch.strided and example.is_contiguous(),
    }


def _native_keys(example: Any) -> str:
    import torch

    return str(torch._C._dispatch_keys(example))


def process_state() -> dict[str, Any]:
    """torch's global state, as its guard compares it."""
    return {name: read() for name, read in state_readers().items()}


def _of_state(**kwargs: Any) -> dict[str, Any]:
    return process_state()


def _of_tensor(node: int, example: Any, **kwargs: Any) -> dict[str, Any]:
    facts = tensor_facts(example)
    if not kwargs.get("storage_offset"):
        del facts["offset"]
    return facts


_SEEN: dict[str, Callable[..., Any]] = {"check_global_state": _of_state, "check_tensor": _of_tensor}

ACCESSORS = frozenset((
    "local", "closure", "closure_cell", "global_", "globals_dict", "builtin", "constant", "attr", "dict_attr",
    "instance_dict", "item", "module_item", "dict_key", "dict_value", "type_of", "func_closure", "func_closure_cell",
    "func_defaults", "func_kwdefaults", "func_code", "method_self", "method_func", "grad", "call",
))  # fmt: skip
CHECKS = frozenset((
    "check_type", "check_id", "check_equals", "check_len", "check_dict_keys", "check_contains",
    "check_no_instance_attr", "check_set", "check_tensor", "check_lambda", "check_same", "check_distinct",
    "check_together", "check_no_overlap", "check_shape", "check_global_state", "check_call", "check_class_attr",
    "check_mro",
    "check_function", "check_subclasses",
))  # fmt: skip
_LOGGED = ACCESSORS | CHECKS | {"collect"}
