"""A compiled module is still the module.

``compile(model)`` returns an object of a class made for it: a subclass of the model's class whose ``forward`` is the
compiled one. Both objects share one ``__dict__``, and with it parameters, buffers, submodules, hooks and every other
attribute. So ``isinstance``, ``state_dict()``, ``train()``, hooks added later and assignments need no forwarding.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prims.eager import leave_to_eager
from prims.options import Options
from prims.report import Report

__all__ = ["CompiledModule", "compile_module", "compiled_in_place", "put_in_place", "strip_prefix"]

#: What ``torch.compile`` puts in front of the keys of its checkpoints.
PREFIX = "_orig_mod."
_OF_EVERY_MODULE = frozenset(dir(torch.nn.Module))
#: Methods that trainers call for a module's work.
_STEPS = ("training_step", "validation_step", "test_step", "predict_step", "generate", "loss")


def strip_prefix(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's entries with every ``_orig_mod.`` removed from the keys."""
    return {key.replace(PREFIX, ""): value for key, value in state_dict.items()}


class _State:
    """What belongs to the compiled object alone, and so cannot stand in the shared ``__dict__``.

    It is in a slot of the object, not in its class, for only the cyclic collector frees a class, and the model with it.
    """

    def __init__(
        self,
        original: torch.nn.Module,
        optimize: Callable[[Callable[..., Any]], Callable[..., Any]],
        recompile: Callable[[torch.nn.Module], Any],
        settings: dict[str, Any],
        options: Options,
        report: Report,
    ) -> None:
        self.original = original
        #: The class of the original from which the compiled object's class was derived.
        self.base: type = type(original)
        self.optimize = optimize
        self.recompile = recompile
        self.settings = settings
        self.options = options
        self.report = report
        #: The function that ``compiled`` is made from: one assigned to the instance, else the class's.
        self.made_from: Any = None
        self.compiled: Callable[..., Any] | None = None
        #: The same function, or None: the next call is to ask :meth:`forward`.
        self.function: Any = None
        self.asked = False
        #: A method of the program's is running that is to come to ``forward``.
        self.watching = False

    def forward(self, function: Any) -> Callable[..., Any]:
        """The compiled form of the original's ``forward``, which is ``function`` now."""
        self.asked = True
        if self.compiled is None or function is not self.made_from:
            self.compiled = self.optimize(self.original.forward)
            self.made_from = function
        self.function = function
        return self.compiled


class _Forward:
    """``forward`` of a compiled module: a data descriptor, so that it wins over an assigned ``model.forward``.

    Who reads the class (PyTorch's exporter does, for defaults) finds what the original's has.
    """

    __slots__ = ("_base",)

    def __init__(self, base: Any) -> None:
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base.forward, name)

    def __call__(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        return instance.forward(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return owner._quintet_base.forward
        state: _State = instance._quintet_state
        # Looked up each time: an instance's or a class's method may be replaced at any moment.
        function = instance.__dict__.get("forward") or type(state.original).forward
        if function is state.function:
            return state.compiled
        return state.forward(function)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["forward"] = value

    def __delete__(self, instance: Any) -> None:
        if "forward" not in instance.__dict__:
            raise AttributeError("forward")
        del instance.__dict__["forward"]


def compiled_in_place(module: torch.nn.Module) -> CompiledModule | None:
    """The compiled object that runs the calls of a module, where ``compile_()`` has made one; else None."""
    impl = module.__dict__.get("_compiled_call_impl")
    behind = impl.__self__ if isinstance(impl, types.MethodType) else None
    return behind if isinstance(behind, CompiledModule) else None


#: Compiled objects, by their ids.
_objects: dict[int, weakref.ref[Any]] = {}


def _note(compiled: Any) -> None:
    key = id(compiled)
    _objects[key] = weakref.ref(compiled, lambda _: _objects.pop(key, None))


def put_in_place(module: torch.nn.Module, compiled: Any) -> None:
    """Have the calls of a module run a compiled object's code, or its own again (None).

    Objects that ``compile()`` has made of it share its attributes, and go on with their own code.
    """
    module._compiled_call_impl = compiled._call_impl if isinstance(compiled, CompiledModule) else None
    for held in [*_objects.values()]:
        one = held()
        if one is not None and one._quintet_state.original is module:
            _follow(one, one._quintet_state)


class _CallsAsItself:
    """Of a compiled object whose original ``compile_()`` has compiled in place, too.

    Only there: what traces the module's calls (``torch.export`` in its strict form) knows a plain attribute there.
    """

    __slots__ = ()

    @property
    def _compiled_call_impl(self) -> Any:
        """What ``torch.nn.Module.compile()`` has set; not what ``compile_()`` has, which is such an object as this."""
        impl = self.__dict__.get("_compiled_call_impl")
        return None if compiled_in_place(self) is not None else impl  # type: ignore[arg-type]

    @_compiled_call_impl.setter
    def _compiled_call_impl(self, value: Any) -> None:
        self.__dict__["_compiled_call_impl"] = value


class CompiledModule:
    """What a compiled module has beyond the original. ``isinstance(m, CompiledModule)`` tells it apart."""

    __slots__ = ("_quintet_state",)

    _quintet_base: type
    forward: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        """The original's class, from which a class to be assigned here is derived."""
        return type(self._quintet_state.original)

    @__class__.setter
    def __class__(self, value: type) -> None:
        state = self._quintet_state
        state.original.__class__ = value
        _follow(self, state)

    def __getattr__(self, name: str) -> Any:
        state = self._quintet_state
        if type(state.original) is not state.base:  # it has been given another class meanwhile
            _follow(self, state)
            return getattr(self, name)
        return super().__getattr__(name)  # type: ignore[misc]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Another instance, such as ``compiled[:2]`` of an ``nn.Sequential`` makes, is a module of its own: plain."""
        return cls._quintet_base(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The class made for a compiled module is no subclass that the program's ``__init_subclass__`` should see."""

    def report(self) -> Report:
        """What compiling it did so far; grows as more calls are compiled."""
        return self._quintet_state.report

    @property
    def _orig_mod(self) -> torch.nn.Module:
        """The original module, under the name that other libraries look for."""
        return self._quintet_state.original

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # ``load_state_dict`` hands down its own copy of the dict, so that renaming in place is safe.
        start = prefix + PREFIX
        for key in [key for key in state_dict if key.startswith(start)]:
            state_dict[prefix + key[len(start) :]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        state = self._quintet_state
        clone = state.recompile(copy.deepcopy(state.original, memo))
        memo[id(self)] = clone
        return clone

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._quintet_state.original, self._quintet_state.settings)


def _rebuild(original: torch.nn.Module, settings: dict[str, Any]) -> Any:
    from compile_api.compile import compile

    return compile(original, **settings)


def compile_module(
    model: torch.nn.Module,
    optimize: Callable[[Callable[..., Any]], Callable[..., Any]],
    settings: dict[str, Any],
    options: Options,
    report: Report,
) -> Any:
    """The compiled counterpart of ``model``: shares its state, is an instance of its class.

    Args:
        optimize: makes the compiled form of a bound ``forward``.
        settings: ``compile()``'s keyword arguments, for copies and pickles.
    """
    state = _State(model, optimize, lambda clone: _rebuild(clone, settings), settings, options, report)
    report.uncalled = _about_other_methods(type(model))
    compiled = object.__new__(_class_for(model))
    object.__setattr__(compiled, "_quintet_state", state)
    object.__setattr__(compiled, "__dict__", model.__dict__)
    _note(compiled)
    return compiled


def _own_methods(cls: type) -> set[str]:
    """The names of the functions that a class and its bases have beyond what torch gives every module."""
    own = [base for base in cls.__mro__ if issubclass(base, torch.nn.Module) and not _is_torchs(base)]
    return {
        name for base in own for name, value in vars(base).items()
        if isinstance(value, types.FunctionType) and (name == "__call__" or name not in _OF_EVERY_MODULE)
    }  # fmt: skip


def _about_other_methods(cls: type) -> str:
    """What the verdict says while ``forward`` has not been called: which methods of the program's own run eagerly."""
    text = "only forward() is compiled, and no call has come to it"
    names = {name for name in _own_methods(cls) if not name.startswith("_")}
    likely = [name for name in _STEPS if name in names]
    named = (likely or sorted(names))[:3]
    if not named:
        return text
    calls = ", ".join(f"{name}()" for name in named)
    return f"{text}; other methods, such as {calls}, run eagerly: compile them too, as compile(model.{named[0]})"


def _watched(name: str, method: types.FunctionType) -> Callable[..., Any]:
    """A method of a compiled object that says so where it does its work without ``forward``: none of it is compiled."""

    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # part of a region, which is compiled
            return method(self, *args, **kwargs)
        state: _State = self._quintet_state
        if state.watching:
            return method(self, *args, **kwargs)
        state.function, state.asked, state.watching = None, False, True
        try:
            result = method(self, *args, **kwargs)
        finally:
            state.watching = False
        if not state.asked:
            code = method.__code__
            where = f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"
            reason = f"{name}() does not come to forward(), which alone is compiled of a module"
            todo = f"Compile what it does, too: model.{name} = compile(model.{name})."
            if name == "__call__":
                todo = "Compile a function or a method that computes with tensors instead."
            leave_to_eager(state.report, state.options, "capture", reason, where, subject="call", todo=todo)
        return result

    return watched


def _is_torchs(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "torch"


def _plain_function(cls: type, name: str) -> types.FunctionType | None:
    """The function that a class finds under a name; None where it finds something else."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return found if type(found) is types.FunctionType else None


def _class_for(original: torch.nn.Module) -> Any:
    base: Any = type(original)
    above: tuple[type, ...] = (CompiledModule, base)
    if compiled_in_place(original) is not None:
        above = (_CallsAsItself, *above)
    namespace: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_quintet_base": base,
        "forward": _Forward(base),
    }
    own = _own_methods(base)
    for name in ("__call__", *(step for step in _STEPS if step != "loss")):  # of what forward() has given
        method = _plain_function(base, name) if name in own else None
        if method is not None:
            namespace[name] = _watched(name, method)
    return type(base)(base.__name__, above, namespace)


def _follow(compiled: Any, state: _State) -> None:
    """Give the compiled object a class made of the one that the original has now."""
    state.base = type(state.original)
    object.__dict__["__class__"].__set__(compiled, _class_for(state.original))
