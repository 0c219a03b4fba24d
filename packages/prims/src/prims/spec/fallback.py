"""Metadata of overloads without a direct rule, from PyTorch's own definition of them.

In order:

1. in-place overloads give their first argument, ``out=`` overloads their outputs;
2. a CompositeImplicit kernel is run on abstract tensors: what it calls has rules;
3. likewise a CompositeExplicit kernel;
4. a structured kernel's C++ metadata function is run (through the CompositeExplicitAutogradNonFunctional kernel,
   whose allocations and inner ``out=`` call come back to us); symbolic sizes are specialised first;
5. a custom operator's registered fake implementation is run on abstract tensors, else its Meta kernel or its
   composite one. A kernel that is there for real tensors only is never run: it may do anything.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from prims.errors import DataDependentError, Unsupported
from prims.spec.infer import Rule, op_name, resolve, unsupported
from prims.spec.iterator import broadcast_shapes
from prims.spec.sym import Sym, from_torch, to_torch
from prims.spec.tensorspec import TensorSpec, spec_of
from prims.spec.unbacked import CustomSizes

OpOverload: TypeAlias = Any  # torch._ops.OpOverload
_Key = torch._C.DispatchKey


def lift(x: Any) -> Any:
    """Specs as AbstractTensors, sizes as torch's."""
    from prims.spec.tensor import make

    if isinstance(x, TensorSpec):
        return make(x)
    if isinstance(x, (list, tuple)):
        return type(x)(map(lift, x))
    return to_torch(x)


def lower(x: Any) -> Any:
    """The inverse of :func:`lift`."""
    if isinstance(x, torch.Tensor):
        return spec_of(x)
    if isinstance(x, (list, tuple)):
        return tuple(map(lower, x)) if isinstance(x, tuple) else list(map(lower, x))
    return from_torch(x)


def _specialised(x: Any) -> Any:
    if isinstance(x, TensorSpec):
        return TensorSpec(
            tuple(map(int, x.shape)), x.dtype, x.device, tuple(map(int, x.strides)), int(x.storage_offset)
        )
    if isinstance(x, (list, tuple)):
        return type(x)(map(_specialised, x))
    return int(x) if isinstance(x, Sym) else x


def _run(call: Callable[..., Any], static: bool = False) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        from prims.spec.tensor import AbstractMode

        if static:
            args, kwargs = _specialised(args), {k: _specialised(v) for k, v in kwargs.items()}
        # A torch-function mode would see ``_op_dk`` as a plain call of the operator, without its key.
        with AbstractMode(symbolic_calls=False), torch.no_grad(), torch._C.DisableTorchFunction():
            return lower(call(*map(lift, args), **{k: lift(v) for k, v in kwargs.items()}))

    return rule


def _has(func: OpOverload, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func._name, key))


def _written_arguments(func: OpOverload) -> list[tuple[int, str]]:
    return [
        (i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    ]


def _returns_arguments(func: OpOverload) -> bool:
    returns = func._schema.returns
    return all(r.alias_info is not None and r.alias_info.is_write for r in returns)


def _mutation_rule(func: OpOverload) -> Rule | None:
    """The rule of an overload all of whose results (if any) are arguments it writes."""
    written = _written_arguments(func)
    if not written or not _returns_arguments(func):
        return None
    count = len(func._schema.returns)
    functional = _functional_of(func)
    outs = [a.name for a in func._schema.arguments if a.is_out]
    first = len(written) - len(outs) if outs else 0  # statistics that a normalisation updates come before

    namesake = getattr(getattr(torch.ops, func.namespace), func._overloadpacket.__name__.removesuffix("_"), None)
    alike = getattr(namesake, func._overloadname, None)  # of some only it has the tag
    broadcast = op_name(func) in _BROADCAST or any(torch.Tag.pointwise in f.tags for f in (func, alike) if f)

    def rule(*args: Any, **kwargs: Any) -> Any:
        targets = [args[i] if i < len(args) else kwargs[name] for i, name in written]
        if broadcast and not outs:
            _fits(targets[0], (*args, *kwargs.values()))
        if functional is not None:
            taken = {k: v for k, v in kwargs.items() if k not in outs}
            targets[first:] = _new_metadata(functional, targets[first:], args, taken)
        returned = targets[first : first + count]
        return None if count == 0 else returned[0] if count == 1 else tuple(returned)

    return rule


#: What is written in place element by element, without PyTorch's tag.
_BROADCAST = frozenset(("aten.copy_.default", "aten.floor_divide_.Tensor"))


def _fits(target: TensorSpec, operands: Sequence[Any]) -> None:
    """What is written in place is no smaller than what the operands are broadcast to.

    Raises:
        RuntimeError: as eager's.
    """
    shapes = [target.shape, *(x.shape for x in operands if type(x) is TensorSpec and x is not target)]
    if any(shape is not target.shape for shape in shapes[1:]):
        shape = broadcast_shapes(shapes)
        if len(shape) != target.ndim or any(a is not b and a != b for a, b in zip(shape, target.shape, strict=True)):
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(shape)}"
            )


def _functional_of(func: OpOverload) -> OpOverload | None:
    """The functional overload that tells the new metadata: of an ``out=`` overload (``sin`` of ``sin.out``) and of
    an in-place one that changes sizes or strides (``squeeze`` of ``squeeze_``). Other in-place ones change none.
    """
    name, packet = func._overloadname, func._overloadpacket
    if torch.Tag.inplace_view in func.tags:
        base = packet.__name__.removesuffix("_")
        name = "int" if base == "transpose" else name
        return getattr(getattr(torch.ops.aten, base, None), name, None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    if len(wanted) == len(func._schema.arguments):
        return None
    for candidate in (getattr(packet, overload) for overload in packet.overloads()):
        arguments = candidate._schema.arguments
        if not any(a.is_out for a in arguments):
            taken = [(a.name, str(a.type)) for a in arguments]
            if wanted in (taken, [a for a in taken if a[0] not in _FACTORY_ARGUMENTS]):
                return candidate  # type: ignore[no-any-return]
    return None


#: What a factory function asks for and its ``out=`` answers.
_FACTORY_ARGUMENTS = frozenset(("dtype", "layout", "device", "pin_memory"))
#: Functional overloads whose metadata is being found: their kernels may call the ``out=`` overload in question.
_ASKED = threading.local()


def _new_metadata(
    functional: OpOverload, targets: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The written arguments' metadata after the call: an output of another shape is resized."""
    asked: set[OpOverload] = _ASKED.__dict__.setdefault("overloads", set())
    if functional in asked:
        return targets
    asked.add(functional)
    try:
        out = resolve(functional)(*args, **kwargs)
    finally:
        asked.discard(functional)
    results = list(out) if isinstance(out, tuple) else [out]
    factory = any(a.name == "pin_memory" for a in functional._schema.arguments)
    for i, (target, new) in enumerate(zip(targets, results, strict=False)):
        if isinstance(target, list) and [t.shape for t in target] != [spec.shape for spec in new]:
            raise Unsupported(f"an out= of other sizes, a list, of {functional}")
        if not isinstance(new, TensorSpec) or not isinstance(target, TensorSpec):
            continue
        if not factory and not _takes(functional, new.dtype, target.dtype):
            raise RuntimeError(f"result type {new.dtype} can't be cast to the desired output type {target.dtype}")
        if _is_view(functional):
            targets[i] = new
        elif target.shape != new.shape:
            if not (_is_structured(functional) or new.is_contiguous()):
                raise Unsupported(f"an out= of another size, which {functional} lays out in its own way")
            targets[i] = TensorSpec(new.shape, target.dtype, target.device, new.strides, target.storage_offset)
    return targets


#: Operators that convert no result to the dtype of their ``out=``.
_EXACT = frozenset(("gather", "index_select", "complex", "polar", "take", "aminmax"))


def _takes(func: OpOverload, made: torch.dtype, wanted: torch.dtype) -> bool:
    """May an ``out=`` of this dtype be given?"""
    return made is wanted or (torch.can_cast(made, wanted) and func._overloadpacket.__name__ not in _EXACT)


def _is_structured(func: OpOverload) -> bool:
    """Does one C++ function say what the functional overload and the ``out=`` one make, strides included?"""
    return _has(func, "CompositeExplicitAutogradNonFunctional")


def _is_view(func: OpOverload) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def _custom_fake(func: OpOverload) -> Rule | None:
    """The fake implementation that ``torch.library.register_fake`` put down for a custom operator."""
    from torch._library.fake_impl import set_ctx_getter
    from torch._library.simple_registry import singleton

    entry = singleton.find(func._schema.name)
    kernel = entry.fake_impl.kernel
    if kernel is not None:
        sizes = CustomSizes(func._schema.name.replace("::", "."))

        def fake(*args: Any, **kwargs: Any) -> Any:
            with set_ctx_getter(lambda: sizes):
                return kernel(*args, **kwargs)

        return _run(fake)
    for name in ("Meta", "CompositeExplicitAutograd"):
        if _has(func, name):
            kernel = functools.partial(func._op_dk, getattr(_Key, name))
            return _first_that_works([_run(kernel), _run(kernel, static=True)])
    return None


def _first_that_works(rules: list[Rule]) -> Rule:
    """Tries the rules in turn, first the one that worked last."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        error: Exception | None = None
        for i, candidate in enumerate(rules):
            try:
                out = candidate(*args, **kwargs)
            except DataDependentError:
                raise
            except (Unsupported, NotImplementedError, RuntimeError, TypeError) as e:
                error = error or e
                continue
            if i:
                rules.insert(0, rules.pop(i))
            return out
        assert error is not None
        raise error

    return rule


def fallback_rule(func: OpOverload) -> Rule:
    """The best rule for an overload that has no direct one."""
    mutation = _mutation_rule(func)
    if mutation is not None:
        return mutation
    if _has(func, "CompositeImplicitAutograd"):
        return _run(func.decompose)
    if func.namespace not in ("aten", "prims"):
        return _custom_fake(func) or _missing(func)
    rules: list[Rule] = []
    for key in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        if _has(func, key):
            explicit = getattr(_Key, key)
            rules.append(_run(lambda *a, _key=explicit, **k: func._op_dk(_key, *a, **k)))
            rules.append(_run(lambda *a, _key=explicit, **k: func._op_dk(_key, *a, **k), static=True))
    if not rules:
        return _missing(func)
    return rules[0] if len(rules) == 1 else _first_that_works(rules)


def _missing(func: OpOverload) -> Rule:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(func)

    return missing
