"""What is traced, inlined or left alone, by where its code lives."""

from __future__ import annotations

import dis
import functools
import gc
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

import prims

__all__ = ["GENERATOR_FLAGS", "code_of", "is_c_enumeration", "is_library_class", "is_library_file", "is_library_name",
           "is_set_anew", "is_state", "is_users_file", "library_of", "module_of_globals", "runs_around",
           "runs_without_hook", "skip_reason", "take_as_fixed"]  # fmt: skip

#: Code flags of frames that are never translated: generators, coroutines, async generators.
GENERATOR_FLAGS = 0x20 | 0x80 | 0x200

_TORCH_DIR = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OPTIM = _TORCH_DIR + "optim" + os.sep
#: Files of ``torch.optim`` whose ``step`` is no optimizer's, or calls the program's functions in a loop of its own.
_NO_STEPS = tuple(_OPTIM + name for name in ("lr_scheduler.py", "swa_utils.py", "lbfgs.py"))
_NN_MODULES = _TORCH_DIR + os.path.join("nn", "modules") + os.sep
#: A file of autograd functions there, whose ``forward`` eager calls with a context in C.
_NN_FUNCTIONS = _NN_MODULES + "_functions.py"
_WITHOUT_HOOK = (
    "<frozen importlib",
    *(_TORCH_DIR + name for name in ("_dynamo", "_inductor", "_functorch", "export", "_export")),
)
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PRIMS = os.path.dirname(os.path.abspath(prims.__file__)) + os.sep
#: Where its Python is and, on some systems elsewhere, its modules in C. (To ask sysconfig takes 4 ms.)
_STDLIB = tuple(
    {os.path.dirname(os.path.abspath(os.__file__)) + os.sep,
     os.path.join(sys.base_exec_prefix, sys.platlibdir, "python{}.{}".format(*sys.version_info)) + os.sep}
)  # fmt: skip

_INSTALLED = f"{os.sep}site-packages{os.sep}"

#: Import names whose functions are never captured as frames of their own (modules are, wherever they live).
_SKIPPED_PACKAGES = (
    "numpy", "scipy", "pandas", "sympy", "networkx", "matplotlib", "PIL", "sklearn", "tqdm", "yaml", "requests",
    "rich", "bytecode", "triton", "pytest", "_pytest", "pluggy", "hypothesis", "IPython", "ipykernel", "jinja2",
    "tokenizers", "huggingface_hub", "safetensors", "regex", "typer", "click", "typing_extensions",
    "prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api",
)  # fmt: skip

#: Packages whose class attributes and globals are taken as fixed (no guards on them).
_FIXED_NAMES = frozenset(("torch", "builtins", "typing", "types", "prims", *sys.stdlib_module_names))


_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>"))


def is_library_name(module: str | None) -> bool:
    """Whether a module of this name is torch or the standard library, whose attributes nobody replaces."""
    if module is None:
        return True
    package = module.partition(".")[0]
    return package in _FIXED_NAMES and not _is_users_package(package)


def library_of(globals_: dict[str, Any]) -> str | None:
    """The name of the library's module whose globals these are; None for other namespaces, however they are called."""
    name = globals_.get("__name__")
    if not isinstance(name, str) or not is_library_name(name):
        return None
    return module_of_globals(globals_)


def module_of_globals(globals_: dict[str, Any]) -> str | None:
    """The name by which a module whose globals these are is found in ``sys.modules``; None where there is none.

    A module may call itself otherwise (``_collections_abc`` does): the name it was imported by is in its ``__spec__``.
    """
    for name in (globals_.get("__name__"), getattr(globals_.get("__spec__"), "name", None)):
        module = sys.modules.get(name) if isinstance(name, str) else None
        if isinstance(module, types.ModuleType) and vars(module) is globals_:
            return name
    return None


#: Names of the standard library -> whether the program's own package of that name is what was imported.
_USERS_PACKAGES: dict[str, bool] = {}


def _is_users_package(package: str) -> bool:
    known = _USERS_PACKAGES.get(package)
    if known is not None:
        return known
    found = sys.modules.get(package)
    if found is None:
        return False
    file = getattr(found, "__file__", None)
    own = package in sys.stdlib_module_names and isinstance(file, str) and not is_library_file(os.path.abspath(file))
    _USERS_PACKAGES[package] = own
    return own


def is_library_file(filename: str) -> bool:
    """Whether a source file is torch's or the standard library's."""
    return filename.startswith(_TORCH_DIR) or (filename.startswith(_STDLIB) and "site-packages" not in filename)


@functools.cache
def is_users_file(filename: str) -> bool:
    """Whether a source file is of the program, or of a library of models, whose lines say something to the user."""
    package = filename.rpartition(_INSTALLED)[2].partition(os.sep)[0] if _INSTALLED in filename else None
    return not (is_library_file(filename) or filename.startswith((_HERE, _PRIMS)) or package in _SKIPPED_PACKAGES)


@functools.cache
def is_fixed_file(filename: str) -> bool:
    """Whether functions of a source file keep their code and defaults: those of the libraries and of this package."""
    return is_library_file(filename) or filename.startswith((_HERE, "<frozen"))


#: id(class) -> (the class, whether it is a library's).
_LIBRARY_CLASSES: dict[int, tuple[weakref.ref[type], bool]] = {}
_HEAP_TYPE = 1 << 9
_of_class = type.__getattribute__  # asks no metaclass of the program


def is_library_class(cls: type) -> bool:
    """Whether a class is torch's or the standard library's, whatever it says of its module.

    It stands under its own name in a module of that name, and the module's file is the library's. Classes that C code
    lays out cannot be changed, so they count as a library's too.
    """
    known = _LIBRARY_CLASSES.get(id(cls))
    if known is None or known[0]() is not cls:
        known = _LIBRARY_CLASSES[id(cls)] = (weakref.ref(cls), _lives_in_library(cls))
    return known[1]


def is_c_enumeration(cls: type) -> bool:
    """Whether it is an enumeration of PyTorch's C++, whose members are equal and hash by their numbers."""
    return vars(torch._C).get(cls.__qualname__) is cls and "__entries" in cls.__dict__


def take_as_fixed(cls: type) -> None:
    """A class that nobody but the capture sees, so that nobody changes it."""
    _LIBRARY_CLASSES[id(cls)] = (weakref.ref(cls), True)


def _lives_in_library(cls: type) -> bool:
    if not _of_class(cls, "__flags__") & _HEAP_TYPE:
        return True
    name = _of_class(cls, "__module__")
    if not isinstance(name, str) or not is_library_name(name) or name not in sys.modules:
        return False
    found: Any = sys.modules[name]
    if not _is_library_module(found):
        return False
    for part in _of_class(cls, "__qualname__").split("."):
        found = _of_class(found, "__dict__").get(part) if isinstance(found, type) else vars(found).get(part)
        if found is None:
            return False
    return found is cls


def _is_library_module(module: types.ModuleType) -> bool:
    file = module.__dict__.get("__file__")
    return file is None or is_library_file(file)


#: A library's module -> the names in it that its own functions assign.
_STATE: dict[str, frozenset[str]] = {}
_ASSIGNING = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))
_NO_STATE = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.dtype, torch.layout,
    torch.memory_format, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace,
)  # fmt: skip
_WITH_CODE = (types.FunctionType, staticmethod, classmethod, property)


def is_state(module: str, globals_: dict[str, Any], name: str) -> bool:
    """Whether a name of a library's module is one that its functions give other values, by ``global``.

    Modules, functions, classes and the like are not, though a function may set them once they are needed.
    """
    if isinstance(globals_[name], _NO_STATE):
        return False
    found = _STATE.get(module)
    if found is None:
        found = _STATE[module] = frozenset(_set_anew(globals_))
    return name in found


def is_set_anew(globals_: dict[str, Any], name: str) -> bool:
    """Whether a function of the module has ``global name``, and sets or deletes it."""
    return any(name == other for other in _set_anew(globals_))


def _set_anew(globals_: dict[str, Any]) -> Iterator[str]:
    for value in list(globals_.values()):
        for code in _codes(value, globals_):
            yield from _assigned(code)


def _codes(value: Any, globals_: dict[str, Any]) -> Iterator[types.CodeType]:
    """The code of a module's function, whatever is wrapped around it, or of its class's functions."""
    if isinstance(value, type):
        inner = vars(value)
        if inner.get("__module__") == globals_.get("__name__"):
            for one in list(inner.values()):
                if isinstance(one, _WITH_CODE):
                    yield from _codes(one, globals_)
        return
    if isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            yield from _codes(accessor, globals_)
        return
    seen: set[int] = set()  # a function may be said to wrap itself
    while isinstance(value, _WITH_CODE) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, types.FunctionType) and value.__globals__ is globals_:
            yield value.__code__
        value = getattr(value, "__wrapped__", None)


def _assigned(code: types.CodeType) -> Iterator[str]:
    if not _ASSIGNING.isdisjoint(code.co_code[::2]):  # caches look like instructions here
        for instruction in dis.get_instructions(code):
            if instruction.opcode in _ASSIGNING:
                yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _assigned(inner)


def runs_without_hook(code: types.CodeType, globals_: dict[str, Any]) -> bool:
    """Whether everything that a frame calls runs as it is too: imports, PyTorch's own compiler, the stage behind.

    That one runs a captured graph again for second derivatives, which would be captured, and run again for its own.
    Callbacks of the garbage collector run wherever it happens to, and are no part of the program there.
    """
    if code.co_name == "nonrecursive_disable_wrapper" and code.co_filename.startswith(_WITHOUT_HOOK):
        return False  # of torch.compiler.disable(recursive=False), which is about one function alone
    name = globals_.get("__name__")
    if code.co_filename.startswith(_WITHOUT_HOOK) or (isinstance(name, str) and name.startswith("aot_autograd.")):
        return True
    return any(code_of(callback) is code for callback in gc.callbacks)


def code_of(callback: Any) -> types.CodeType | None:
    """The code that runs when it is called, of functions, methods, partial objects and instances of classes."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    if not isinstance(callback, (types.FunctionType, types.MethodType)):
        callback = type(callback).__call__ if callable(callback) else None
    return getattr(callback, "__code__", None)


def runs_around(code: types.CodeType) -> bool:
    """Whether frames of this code stay as they are though they are what is to be compiled: what they call counts.

    What :mod:`dynamo_capture.values.parallel` says of modules that synchronise with other processes.
    """
    return code is torch.nn.parallel.DistributedDataParallel.forward.__code__


def skip_reason(code: types.CodeType, globals_: dict[str, Any]) -> str | None:
    """Why frames of this code are not captured, or None. Their callees are still looked at."""
    filename = code.co_filename
    if code.co_name in _COMPREHENSIONS:
        return "a comprehension's frame, which is handed an iterator"
    if code.co_flags & GENERATOR_FLAGS:
        return "generators and coroutines run as they are"
    if filename.startswith(_TORCH_DIR):
        is_forward = code.co_name == "forward" and filename.startswith(_NN_MODULES) and filename != _NN_FUNCTIONS
        is_step = code.co_name == "step" and filename.startswith(_OPTIM) and not filename.startswith(_NO_STEPS)
        return None if is_forward or is_step else "torch's own code"
    if filename.startswith(("<frozen", _HERE)):
        return "internal code"
    name = globals_.get("__name__")
    package = name.partition(".")[0] if isinstance(name, str) else ""
    if package in _SKIPPED_PACKAGES:
        return f"code of {package}"
    if filename.startswith(_STDLIB) and "site-packages" not in filename and package in sys.stdlib_module_names:
        return "the standard library"
    return None
