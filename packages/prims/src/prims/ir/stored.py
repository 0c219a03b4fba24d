"""Reading what may be hostile: values of a stored graph, checked before they are used.

Names end up in the Python code that ``torch.fx`` generates, sizes in generated C; so both are held to their form here,
whatever reads the file. The labels are those of ``docs/ir.md``.
"""

from __future__ import annotations

import contextlib
import inspect
import keyword
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx

from prims.errors import StoredGraphError, VerifierError
from prims.ir.callables import is_method, is_property
from prims.ir.names import target_of
from prims.source import SourceLoc

__all__ = [
    "MAX_CONSTANTS", "MAX_DEPTH", "MAX_FILE", "call_node", "callable_value", "checked_form", "constant_name",
    "device_of", "float_named", "integer", "list_of", "plain_name", "read_file", "size_of", "source_of", "tensor_spec",
    "text_of", "torch_value",
]  # fmt: skip

#: Bytes of a stored graph's text, nesting of its values, dimensions of a tensor, characters of a string.
MAX_FILE, MAX_DEPTH, MAX_DIMS, MAX_STRING = 256 << 20, 64, 64, 1 << 20
#: Bytes of the constants beside it.
MAX_CONSTANTS = 64 << 30

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE = re.compile(r"[a-z]+(:[0-9]{1,4})?")
_DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_TORCH_VALUES: dict[str, Any] = {
    str(v).removeprefix("torch."): v
    for v in vars(torch).values()
    if isinstance(v, (torch.dtype, torch.layout, torch.memory_format))
}


def _bad(what: str) -> StoredGraphError:
    return StoredGraphError("FILE-C2", what)


@contextlib.contextmanager
def checked_form(where: Any = None) -> Iterator[None]:
    """Any error in reading a value is one about the text's form."""
    try:
        yield
    except (StoredGraphError, VerifierError):
        raise
    except (Exception, RecursionError) as error:
        place = where() if callable(where) else where
        message = str(error).splitlines()[0][:200] if str(error) else ""
        raise StoredGraphError("FILE-C2", f"{type(error).__name__}: {message}", where=place) from error


def plain_name(name: Any, what: str) -> str:
    """A name that can stand in generated code: an identifier of ASCII letters, no keyword, none of Python's own."""
    if (
        not isinstance(name, str)
        or len(name) > 1000
        or not _NAME.fullmatch(name)
        or keyword.iskeyword(name)
        or name == "self"
        or (name.startswith("__") and name.endswith("__"))
    ):
        raise StoredGraphError("FILE-C3", f"{what} is named {str(name)[:200]!r}")
    return name


def constant_name(name: Any) -> str:
    """The name of a constant: plain names between dots, none of them an attribute that every module has."""
    if not isinstance(name, str) or not name:
        raise StoredGraphError("FILE-C3", f"a constant is named {name!r}")
    for part in name.split("."):
        if plain_name(part, "a constant") and hasattr(torch.fx.GraphModule, part):
            raise StoredGraphError("FILE-C3", f"a constant is named {name[:200]!r}, an attribute of every module")
    return name


def text_of(value: Any, what: str) -> str:
    """A string of moderate length."""
    if not isinstance(value, str) or len(value) > MAX_STRING:
        raise _bad(f"{what} is {type(value).__name__} {str(value)[:80]!r}, expected a string")
    return value


def integer(value: Any, low: int = -(2**63), high: int = 2**64 - 1) -> int:
    """An int (not a bool) in a range, both ends included."""
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"{str(value)[:80]!r} is no integer from {low} to {high}")
    return value


def float_named(name: str) -> torch.dtype:
    """The floating dtype of that name."""
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise StoredGraphError("FILE-C2", f"the default dtype is {name[:80]!r}")
    return dtype


def list_of(value: Any, what: str, length: int | None = None) -> list[Any]:
    """A list, of so many elements."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise _bad(f"{what} is {str(value)[:80]!r}, expected a list" + (f" of {length}" if length is not None else ""))
    return value


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of a name such as ``float32``."""
    found = _DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise _bad(f"no dtype is named {str(name)[:80]!r}")
    return found


def torch_value(name: Any) -> Any:
    """The dtype, layout or memory format of a name."""
    found = _TORCH_VALUES.get(name) if isinstance(name, str) else None
    if found is None:
        raise _bad(f"no dtype, layout or memory format is named {str(name)[:80]!r}")
    return found


def device_of(name: Any) -> torch.device:
    """The device of a name such as ``cuda:0``."""
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise _bad(f"no device is named {str(name)[:80]!r}")
    try:
        return torch.device(name)
    except RuntimeError:
        raise _bad(f"no device is named {name[:80]!r}") from None


def size_of(text: Any, context: Any) -> Any:
    """The size expression of a text, in a context of symbols."""
    from prims.spec.exprtext import parse

    expr = parse(text_of(text, "a size expression"))
    unknown = sorted(symbol.name for symbol in expr.symbols if context is None or symbol.name not in context.symbols)
    if unknown:
        raise _bad(f"the size {text[:200]!r} uses the symbol {unknown[0]!r}, which is not declared")
    return context.make(expr) if context is not None else integer(expr.value)


def tensor_spec(shape: Any, dtype: Any, device: Any, strides: Any, offset: Any) -> Any:
    """The spec of these parts; sizes are integers or symbolic."""
    from prims.ir.symbols import expr_of
    from prims.spec import TensorSpec

    sizes = (*shape, *(strides or ()), offset)
    if len(shape) > MAX_DIMS or (strides is not None and len(strides) != len(shape)):
        raise _bad(f"a tensor has {len(shape)} sizes and {'no' if strides is None else len(strides)} strides")
    for size in sizes:
        if expr_of(size) is None:
            integer(size, high=2**63 - 1)
    if any(type(size) is int and size < 0 for size in shape):
        raise _bad(f"a tensor has the shape {tuple(shape)}")
    return TensorSpec(tuple(shape), dtype_of(dtype), device_of(device), None if strides is None else strides, offset)


def source_of(filename: Any, line: Any, function: Any) -> SourceLoc:
    """A place in the user's program, for people to read: one line of text each."""
    for part in (filename, function):
        if len(text_of(part, "a source")) > 4096 or not (part.isprintable() or not part):
            raise _bad(f"a source is {part[:80]!r}")
    return SourceLoc(filename, integer(line, 0, 2**31), function)


def call_node(graph: torch.fx.Graph, name: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.fx.Node:
    """A node that calls the target of a name, ``.name`` for a method."""
    own = _argument_names(name) if any(map(keyword.iskeyword, kwargs)) else ()
    for key in kwargs:
        if key not in own:
            plain_name(key, "a keyword argument")
    if isinstance(name, str) and name.startswith("."):
        if not is_method(name[1:]):
            raise StoredGraphError("FILE-C1", f"a graph must not call the method {name[1:200]!r}")
        if not args or not isinstance(args[0], torch.fx.Node):
            raise _bad(f"the method {name[1:]!r} is called on no value of the graph")
        return graph.call_method(name[1:], args, dict(kwargs))
    target = target_of(name)
    if target is getattr and (kwargs or len(args) not in (2, 3) or not is_property(args[1])):
        raise StoredGraphError("FILE-C1", f"a graph must not read the attribute {str(args[1:2])[:200]}")
    if getattr(target, "__module__", None) == "_operator":  # fx writes these as infix operators, unasked
        inspect.signature(target).bind(*args, **kwargs)
    return graph.call_function(target, args, dict(kwargs))


def _argument_names(name: Any) -> list[str]:
    """The arguments of an overload; one may be named as only Python's keywords are (``from``)."""
    found = target_of(name) if isinstance(name, str) and not name.startswith(".") else None
    return [argument.name for argument in found._schema.arguments] if isinstance(found, torch._ops.OpOverload) else []


def callable_value(name: Any) -> Any:
    """A callable as an argument: an overload, which alone ``fx`` can write down."""
    found = target_of(name)
    if not isinstance(found, torch._ops.OpOverload):
        raise StoredGraphError("FILE-C1", f"an argument is {name[:200]}, no overload of an operator")
    return found


def read_file(path: str, limit: int) -> bytes:
    """The contents of a regular file; one that is none (a FIFO, a device, a folder) is not waited for.

    Raises:
        StoredGraphError: it cannot be read, is no regular file, or is larger than ``limit`` bytes.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise StoredGraphError("FILE-C4", f"{path!r} cannot be read: {error}") from error
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise StoredGraphError("FILE-C4", f"{path!r} is no regular file")
        if info.st_size > limit:
            raise StoredGraphError("FILE-C4", f"{path!r} has {info.st_size} bytes, at most {limit} are read")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(info.st_size)
    except OSError as error:
        raise StoredGraphError("FILE-C4", f"{path!r} cannot be read: {error}") from error
    finally:
        os.close(handle)
