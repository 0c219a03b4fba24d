"""Metadata of an operator's results: the registry of rules, and what is tried when there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from prims.errors import Unsupported
from prims.registry import Definitions
from prims.spec.asking import asking_the_kernel
from prims.spec.numbers import checking_numbers
from prims.spec.sym import SymNode, from_torch
from prims.spec.tensorspec import TensorSpec, settled, spec_of

Rule = Callable[..., Any]
OpOverload: TypeAlias = Any  # torch._ops.OpOverload

RULES: Definitions[Rule] = Definitions()
#: By identity, as the hash of an overload is computed in Python; the overload is kept, so that nothing else gets its.
_RESOLVED: dict[int, tuple[Rule, OpOverload]] = {}


def meta_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a metadata rule for overloads named ``aten.mm.default``.

    The rule has the overload's signature with ``TensorSpec`` for tensors and ``int | Sym`` for sizes, and gives
    the results' specs in the overload's structure. For a result that is an argument (in-place and ``out=``
    overloads) it gives that argument's new metadata.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES.define(name, rule, "the metadata rule of")
        _RESOLVED.clear()
        return rule

    return register


def op_name(func: OpOverload) -> str:
    """``aten.mm.default`` of an overload."""
    return f"{func.namespace}.{func._schema.name.split('::', 1)[1]}.{func._overloadname}"


def has_rule(func: OpOverload) -> bool:
    """Whether the overload has a direct rule."""
    _load_rules()
    return op_name(func) in RULES


def infer(func: OpOverload, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Metadata of the results of ``func(*args, **kwargs)``: a pytree of ``TensorSpec``, ``Sym`` and scalars.

    Arguments may be specs, tensors, ``Sym`` or ``torch.SymInt``. In order: a direct rule, then what
    :mod:`prims.spec.fallback` finds: the functional overload's rule for its ``out=`` or in-place form, PyTorch's
    composite kernel run on abstract tensors, a structured kernel's C++ metadata function (which specialises
    symbolic sizes), a custom operator's fake implementation.

    Raises:
        Unsupported: nothing covers this overload.
        DataDependentError: its result's metadata depends on tensor values.
    """
    known = _RESOLVED.get(id(func))
    rule = resolve(func) if known is None else known[0]
    if kwargs:
        return rule(*map(to_spec, args), **{k: to_spec(v) for k, v in kwargs.items()})
    return rule(*map(to_spec, args))


def resolve(func: OpOverload) -> Rule:
    """The rule that :func:`infer` uses for an overload."""
    known = _RESOLVED.get(id(func))
    rule = None if known is None else known[0]
    if rule is None:
        _load_rules()
        from prims.spec.fallback import fallback_rule

        name = op_name(func)
        rule = checking_numbers(name, asking_the_kernel(name, func, RULES.get(name) or fallback_rule(func)))
        rule = _telling_empty(rule)
        _RESOLVED[id(func)] = rule, func
    return rule


def _telling_empty(rule: Rule) -> Rule:
    """The rule, after which every size of its results is 0 or at least 1 in all calls.

    Operators do something else of empty tensors: means are no numbers, maxima raise, a size of -1 is any. Of sizes that
    arguments have that is known; one that follows from them, like ``s0 - 1``, may become 0 in a later call.
    """

    def telling(*args: Any, **kwargs: Any) -> Any:
        made = rule(*args, **kwargs)
        for spec in made if type(made) in (tuple, list) else (made,):
            if type(spec) is TensorSpec:
                for size in spec.shape:
                    if type(size) is not int:
                        size.ctx.tell_whether_empty(size.expr)
        return made

    return telling


def to_spec(x: Any) -> Any:
    """An argument as the rules see it: a size that guards have found to be one is a 1."""
    if type(x) in _PLAIN:
        return settled(x) if type(x) is TensorSpec else x
    if isinstance(x, torch.Tensor):
        return settled(spec_of(x))
    if isinstance(x, (list, tuple)):
        return type(x)(map(to_spec, x)) if type(x) in (list, tuple) else [to_spec(v) for v in x]
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return from_torch(x)
    return x


_PLAIN = frozenset({TensorSpec, int, float, bool, type(None), torch.dtype, torch.device, str})


def unsupported(func: OpOverload) -> Unsupported:
    """The error of an overload that nothing covers."""
    if func.namespace in ("aten", "prims"):
        return Unsupported(f"no metadata rule for {op_name(func)}")
    name = func._schema.name
    return Unsupported(
        f"the operator {name} has no fake implementation; register one with torch.library.register_fake({name!r})"
    )


_loaded = False


def _load_rules() -> None:
    global _loaded
    if not _loaded:
        import prims.spec.rules  # noqa: F401

        _loaded = True


__all__ = ["RULES", "SymNode", "has_rule", "infer", "meta_rule", "op_name", "resolve", "to_spec"]
