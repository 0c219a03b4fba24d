"""What the tracer has to know about an ATen overload, read from its schema once and kept.

An overload is *pure*, a *view* (its result shares storage with its first argument), or it *writes* to some of its
arguments. For a writing overload the functional twin is found by schema: ``add_.Tensor`` becomes ``add.Tensor``,
``add.out`` becomes ``add.Tensor``. A few whose twin has another name or meaning stand in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from prims.collectives import is_collective

__all__ = ["OpInfo", "bind", "draws_random", "op_info", "runs_once"]

aten = torch.ops.aten


class OpInfo(NamedTuple):
    """The tracer's view of one overload.

    Attributes:
        kind: ``"pure"``, ``"view"``, ``"write"`` or ``"composite"``.
        random: draws from a random generator.
        metadata_write: changes its argument's shape or strides in place (``t_``, ``resize_``).
        effect: has an effect besides its result and must not be removed.
        written: ``(position, name)`` of each written argument, in schema order.
        twin: the functional overload that computes what a writing overload writes (for ``t_``, the view ``t``).
        drop: names of ``out`` arguments that the twin does not take.
        names: the positional arguments' names.
        defaults: ``(position, name, value)`` of arguments that have a default here and none in the twin.
        returns_written: for each return of a writing overload, the index in ``written`` that it hands back, or None.
    """

    kind: str
    random: bool
    metadata_write: bool
    effect: bool
    written: tuple[tuple[int, str], ...]
    twin: OpOverload | None
    drop: tuple[str, ...]
    names: tuple[str, ...]
    returns_written: tuple[int | None, ...]
    defaults: tuple[tuple[int, str, Any], ...] = ()


#: In-place random fills whose functional twin is not named after them.
_TWINS: dict[str, str] = {
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::normal_": "normal_functional.default",
    "aten::rrelu_with_noise": "rrelu_with_noise_functional.default",
    "aten::_native_batch_norm_legit": "_native_batch_norm_legit_functional.default",
    "aten::_batch_norm_with_update": "_batch_norm_with_update_functional.default",
    "aten::_fused_moving_avg_obs_fq_helper": "_fused_moving_avg_obs_fq_helper_functional.default",
}

_EFFECTS = ("aten::_assert_async", "aten::_assert_scalar", "aten::_print", "aten::sym_constrain_range")

#: By identity, as the hash of an overload is computed in Python; the overload is kept, so that nothing else gets its.
_INFO: dict[int, tuple[OpInfo, OpOverload]] = {}


def op_info(func: OpOverload) -> OpInfo:
    """The (cached) description of ``func``."""
    known = _INFO.get(id(func))
    if known is None:
        known = _INFO[id(func)] = _describe(func), func
    return known[0]


def _is_composite(func: OpOverload) -> bool:
    """Is it made of other operators on every device? Some, as ``silu_backward``, are but for kernels of their own."""
    keys = torch._C.DispatchKey
    own = any(func.has_kernel_for_dispatch_key(key) for key in (keys.CPU, keys.CUDA))
    return func.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd) and not own


def _describe(func: OpOverload) -> OpInfo:
    schema = func._schema
    arguments = schema.arguments
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    random = torch.Tag.nondeterministic_seeded in func.tags
    effect = schema.name.startswith(_EFFECTS)
    names = tuple(argument.name for argument in arguments)
    if not written:
        if _is_composite(func):
            # Arrives whole only where autograd's keys are off (inference mode); it is made of others.
            return OpInfo("composite", random, False, effect, (), None, (), names, ())
        is_view = bool(schema.returns) and schema.returns[0].alias_info is not None
        return OpInfo("view" if is_view else "pure", random, False, effect, (), None, (), names, ())
    sets = {frozenset(arguments[position].alias_info.before_set): index for index, (position, _) in enumerate(written)}
    returns = tuple(
        None if ret.alias_info is None else sets.get(frozenset(ret.alias_info.before_set)) for ret in schema.returns
    )
    drop = tuple(argument.name for argument in arguments if argument.is_out)
    metadata = torch.Tag.inplace_view in func.tags or schema.name in (
        "aten::set_",
        "aten::resize_",
        "aten::resize_as_",
    )
    twin = _find_twin(func, drop, metadata)
    defaults = () if twin is None else _missing_defaults(func, twin)
    return OpInfo("write", random, metadata, effect, written, twin, drop, names, returns, defaults)


def _missing_defaults(func: OpOverload, twin: OpOverload) -> tuple[tuple[int, str, Any], ...]:
    required = {a.name for a in twin._schema.arguments if not a.has_default_value()}
    return tuple(
        (position, a.name, a.default_value)
        for position, a in enumerate(func._schema.arguments)
        if a.has_default_value() and a.name in required
    )


def _find_twin(func: OpOverload, drop: tuple[str, ...], metadata: bool) -> OpOverload | None:
    schema = func._schema
    full = schema.name + ("." + schema.overload_name if schema.overload_name else "")
    named = _TWINS.get(full) or _TWINS.get(schema.name)
    if named is not None:
        packet_name, overload = named.split(".")
        packet = getattr(aten, packet_name, None)
        return getattr(packet, overload, None) if packet is not None else None
    namespace, name = schema.name.split("::")
    if namespace != "aten":
        return None  # what an operator of that name computes is not known
    if not drop:
        if not name.endswith("_") or name.endswith("__"):
            return None
        name = name[:-1]
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments if a.name not in drop]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted:
            return candidate
    return None


def draws_random(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether this call draws random numbers; attention does so only with a dropout probability above 0, and its
    backward never: it is given the forward's generator state."""
    info = op_info(func)
    if not info.random or "philox_seed" in info.names:
        return False
    if "dropout_p" in info.names:
        return bind(info, args, kwargs, "dropout_p", info.names.index("dropout_p")) not in (None, 0, 0.0)
    return True


def runs_once(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether a call runs exactly once, in its order among others of the kind.

    It draws random numbers, or exchanges data with other processes.
    """
    info = op_info(func)
    if not info.random and func.namespace == "aten":
        return False
    return is_collective(func) or draws_random(func, args, kwargs)


def bind(info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any], name: str, position: int) -> Any:
    """The value of one argument, wherever it was given."""
    if name in kwargs:
        return kwargs[name]
    return args[position] if position < len(args) else None



