"""The callables that a stored graph may name.

What a name in a file leads to is looked up in a closed list; nothing is imported for it, and no attribute is taken but
those that the list stands for. Beside operators (``torch.ops``) and primitives these are PyTorch's functions on
tensors, arithmetic of :mod:`operator` and :mod:`math`, Python's conversions, methods and properties of tensors, and
what a program has registered itself.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional

from prims.registry import import_operator
from prims.settings import ATTENTION

__all__ = ["is_method", "is_property", "listed", "operator_of", "register_callable", "registered", "registered_name"]

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Functions on tensors that read memory or files that no graph describes.
_REFUSED_IN_TORCH = frozenset(("from_file", "frombuffer"))
#: Functions of PyTorch in Python, or in C outside of its operators, that stages put into graphs.
_TORCH_OTHERS = frozenset(
    ("tensor", "as_tensor", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum", "_sym_sqrt",
     "is_tensor", "set_autocast_enabled", "set_autocast_dtype", "set_autocast_cache_enabled",
     "autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache", "is_grad_enabled",
     "is_autocast_enabled", "get_autocast_dtype", "is_autocast_cache_enabled", "get_default_dtype")
)  # fmt: skip
_TORCH_C = frozenset(("_set_grad_enabled", *(setter.__name__ for setter in ATTENTION)))
_BUILTINS = frozenset(
    ("abs", "bool", "complex", "divmod", "float", "getattr", "int", "len", "list", "max", "min", "pow", "range",
     "round", "slice", "sum", "tuple")
)  # fmt: skip
_REFUSED_IN_OPERATOR = frozenset(("attrgetter", "call", "itemgetter", "methodcaller"))
_REFUSED_METHODS = frozenset(
    ("apply_", "map_", "map2_", "backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad",
     "share_memory_", "numpy", "storage", "untyped_storage", "module_load", "record_stream", "data_ptr", "set_",
     "reinforce", "storage_type", "from_bytes", "fromhex", "to_bytes")
)  # fmt: skip
_SPECIAL_METHODS = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift",
                 "and", "or", "xor")
) | frozenset(
    f"__{name}__"
    for name in ("abs", "bool", "ceil", "eq", "float", "floor", "ge", "getitem", "gt", "index", "int", "invert", "le",
                 "len", "lt", "ne", "neg", "pos", "round", "setitem", "trunc")
)  # fmt: skip
_PROPERTIES = frozenset(
    ("T", "mT", "H", "mH", "real", "imag", "data", "shape", "dtype", "device", "layout", "ndim", "requires_grad",
     "grad", "is_leaf", "itemsize", "nbytes", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested",
     "is_mkldnn", "names")
)  # fmt: skip

_REGISTERED: dict[str, Any] = {}


def register_callable(fn: F, name: str | None = None) -> F:
    """Let stored graphs name ``fn``: a graph that calls it can then be saved, and loaded where it is registered.

    Args:
        name: its name in files; by default its module and qualified name. The newest of equal names counts.

    Returns:
        ``fn``, so that this can be used as a decorator.
    """
    if name is None:
        from prims.ir.names import target_name

        name = target_name(fn).removeprefix("@")
    _REGISTERED[name] = fn
    return fn


def registered(name: str) -> Any:
    """What was registered under a name, or None."""
    return _REGISTERED.get(name)


def registered_name(fn: Any) -> str | None:
    """The name under which ``fn`` is registered, or None."""
    return next((name for name, known in _REGISTERED.items() if known is fn), None)


def is_method(name: Any) -> bool:
    """Whether a stored graph may call the method of that name."""
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        return False
    if name.startswith("_"):
        return name in _SPECIAL_METHODS
    if name in _REFUSED_METHODS:
        return False
    return any(callable(getattr(owner, name, None)) for owner in (torch.Tensor, int, float))


def is_property(name: Any) -> bool:
    """Whether a stored graph may read the attribute of that name by ``getattr``."""
    return isinstance(name, str) and name in _PROPERTIES


def operator_of(dotted: str) -> Any:
    """The operator ``namespace.name`` or overload ``namespace.name.overload`` of ``torch.ops``, or None.

    One that takes the name of a file is none: it would read or write that file.
    """
    names = dotted.split(".")
    if len(names) not in (2, 3) or not all(map(_PLAIN.fullmatch, names)) or names[0] == "prim":
        return None
    if names[0] == "quintet":
        import_operator(names[1])
    space = getattr(torch.ops, names[0], None)
    if not isinstance(space, torch._ops._OpNamespace):
        return None
    packet = getattr(space, names[1], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overloads = [getattr(packet, name, None) for name in (names[2:] or packet.overloads())]
    if not all(isinstance(found, torch._ops.OpOverload) and not _takes_file(found) for found in overloads):
        return None
    return overloads[0] if len(names) == 3 else packet


def _takes_file(overload: Any) -> bool:
    return any("file" in argument.name and "str" in str(argument.type) for argument in overload._schema.arguments)


def _is_function(value: Any) -> bool:
    return isinstance(value, (types.BuiltinFunctionType, types.FunctionType))


def _in_torch(name: str) -> Any:
    value = vars(torch).get(name)
    if name in _REFUSED_IN_TORCH or name.startswith("__"):
        return None
    operators = hasattr(torch._C._VariableFunctions, name) or getattr(value, "__module__", None) == "torch.functional"
    return value if name in _TORCH_OTHERS or (operators and _is_function(value)) else None


def _in_variable_functions(name: str) -> Any:
    if name in _REFUSED_IN_TORCH or name.startswith("__"):
        return None
    return getattr(torch._C._VariableFunctions, name, None)


def _in_operator(name: str) -> Any:
    return getattr(operator, name) if name in operator.__all__ and name not in _REFUSED_IN_OPERATOR else None


def _in_functional(name: str) -> Any:
    value = vars(torch.nn.functional).get(name)
    if isinstance(value, types.FunctionType):
        own = value.__module__ in ("torch.nn.functional", "torch.functional")
        return value if own or value.__qualname__.startswith("boolean_dispatch.<locals>") else None
    known = (torch._C._nn, torch._C._VariableFunctions)
    return value if _is_function(value) and any(getattr(m, value.__name__, None) == value for m in known) else None


def _of_c_module(module: Any) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        value = vars(module).get(name)
        return value if _is_function(value) and not name.startswith("__") else None

    return find


def _of_wrapped(module: Any, c_module: Any) -> Callable[[str], Any]:
    """Of a module whose operators are those of a C module under shorter names."""

    def find(name: str) -> Any:
        value = vars(module).get(name)
        return value if _is_function(value) and vars(c_module).get(value.__name__) == value else None

    return find


def _of_sizes(name: str) -> Any:
    """The functions by which a captured graph takes a float of the program, or what a tensor of float32 holds of it."""
    from prims.spec.sym import float_from_bits, float_to_single

    return {fn.__name__: fn for fn in (float_from_bits, float_to_single)}.get(name)


def _of_transforms(name: str) -> Any:
    """The functions of a graph that takes derivatives itself."""
    from prims.transforms import TRANSFORMS

    return next((fn for fn in TRANSFORMS if fn.__name__ == name), None)


def _of_type(owner: type) -> Callable[[str], Any]:
    return lambda name: getattr(owner, name, None) if is_method(name) else None


_HOMES: dict[str, Callable[[str], Any]] = {
    "torch": _in_torch,
    "torch.functional": _in_torch,
    "torch.nn.functional": _in_functional,
    "torch.linalg": _of_wrapped(torch.linalg, torch._C._linalg),
    "torch.fft": _of_wrapped(torch.fft, torch._C._fft),
    "torch.special": _of_wrapped(torch.special, torch._C._special),
    **{f"torch._C.{name}": _of_c_module(getattr(torch._C, name))
       for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")},
    "torch._C": lambda name: getattr(torch._C, name, None) if name in _TORCH_C else None,
    "torch._C._VariableFunctions": _in_variable_functions,
    "torch._C._VariableFunctionsClass": _in_variable_functions,
    "torch.Tensor": _of_type(torch.Tensor),
    "torch._tensor.Tensor": _of_type(torch.Tensor),
    "torch._tensor.TensorBase": _of_type(torch.Tensor),
    "torch._C.TensorBase": _of_type(torch.Tensor),
    "operator": _in_operator,
    "_operator": _in_operator,
    "prims.spec.sym": _of_sizes,
    "prims.transforms": _of_transforms,
    "dynamo_capture.graph_builder": _of_sizes,  # its place in files of the first version
    "math": lambda name: vars(math).get(name) if not name.startswith("_") else None,
    "builtins": lambda name: getattr(builtins, name) if name in _BUILTINS else None,
    "builtins.int": _of_type(int),
    "builtins.float": _of_type(float),
}  # fmt: skip


def listed(dotted: str) -> Any:
    """The listed callable of a dotted name, or None."""
    home, _, name = dotted.rpartition(".")
    if home not in _HOMES or not _PLAIN.fullmatch(name):
        return None
    value = _HOMES[home](name)
    return value if callable(value) else None
