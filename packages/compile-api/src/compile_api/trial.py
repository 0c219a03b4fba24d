"""Runs of a graph on copies of its inputs, values, gradients and mutated state alike, that leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from compile_api.judge import Ran
from prims.errors import Unsupported
from prims.records import record

__all__ = [
    "Copies", "copies_of", "in_float64", "keeping_random_state", "seconds_of_call", "state_of",
    "tangents_for", "trial",
]  # fmt: skip

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_WIDER = {
    torch.Tensor.float: torch.Tensor.double, torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
}  # fmt: skip


@record(eq=False)
class Copies:
    """Copies of arguments, and the leaves to which their gradients come."""

    args: Any
    leaves: tuple[torch.Tensor, ...]


def copies_of(args: Any, *, double: bool = False) -> Copies:
    """Copies of the tensors in ``args``: with the strides, the sharing of memory, the need for gradients and the
    attributes that the program has put on them, marks of sizes (``mark_dynamic``) among these.

    Args:
        double: floating tensors in float64 (which then share no memory).

    Raises:
        Unsupported: a tensor that is no plain strided one.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    leaves: list[torch.Tensor] = []

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        copy = _copy(x, storages, double)
        if x.requires_grad and not copy.is_inference():
            if x.is_leaf:
                leaves.append(copy.requires_grad_())
            else:
                with torch.enable_grad():
                    leaves.append(torch.empty(copy.shape, dtype=copy.dtype, device=copy.device, requires_grad=True))
                    copy = _Inner.apply(leaves[-1], [copy])
        copy.__dict__.update(x.__dict__)
        return copy

    return Copies(pytree.tree_map(copied, args), tuple(leaves))


class _Inner(torch.autograd.Function):
    """A tensor with a history, as a value that the program computed has: it may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: list[torch.Tensor]) -> torch.Tensor:
        return value[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def _copy(x: torch.Tensor, storages: dict[int, torch.UntypedStorage], double: bool) -> torch.Tensor:
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided or x.is_quantized:
        raise Unsupported(f"a {type(x).__name__} ({x.layout}) cannot be copied for a comparison")
    with torch.no_grad():
        if double and x.dtype in _NARROW:
            copy = torch.empty_strided(x.shape, x.stride(), dtype=torch.float64, device=x.device).copy_(x)
        elif double and x.dtype in (torch.complex64, torch.complex32):
            copy = x.to(torch.complex128)
        elif x.is_conj() or x.is_neg():
            copy = x.detach().clone()
        else:
            storage = x.untyped_storage()
            if storage._cdata not in storages:
                storages[storage._cdata] = storage.clone()
            copy = torch.empty(0, dtype=x.dtype, device=x.device)
            copy.set_(storages[storage._cdata], x.storage_offset(), x.shape, x.stride())  # type: ignore[call-overload]
    return copy


def state_of(program: Any) -> list[torch.Tensor]:
    """The parameters of a module; of other programs none."""
    return list(program.parameters()) if isinstance(program, torch.nn.Module) else []


def seconds_of_call(
    run: Callable[..., Any], state: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any],
    around: AbstractContextManager[Any] | None = None,
) -> float:  # fmt: skip
    """The seconds of a call on copies of its arguments, and of its backward pass where a result has one.

    Args:
        state: parameters that gradients are taken for, too; those on a GPU are waited for.
        around: is entered when all is ready, and left when the host is done.
    """
    copies = copies_of((tuple(args), dict(kwargs)))
    leaves = [*copies.leaves, *(x for x in state if x.requires_grad)]
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in (*pytree.tree_leaves((args, kwargs)), *state))
    if on_gpu:
        torch.cuda.synchronize()
    with around or nullcontext():
        began = time.perf_counter()
        outputs = pytree.tree_leaves(run(*copies.args[0], **copies.args[1]))
        roots = [y for y in outputs if isinstance(y, torch.Tensor) and y.grad_fn is not None]
        if leaves and roots and torch.is_grad_enabled():
            torch.autograd.grad(roots, leaves, tangents_for(roots), allow_unused=True)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began


@contextmanager
def keeping_random_state(args: Any) -> Iterator[Callable[[], bool]]:
    """Random generators are afterwards as they were before; gives a function that tells whether they have moved."""
    devices = {x.device for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor) and x.is_cuda}
    cpu, others = torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in devices}

    def moved() -> bool:
        return not torch.equal(torch.get_rng_state(), cpu) or any(
            not torch.equal(torch.cuda.get_rng_state(d), state) for d, state in others.items()
        )

    try:
        yield moved
    finally:
        torch.set_rng_state(cpu)
        for device, state in others.items():
            torch.cuda.set_rng_state(state, device)


def trial(run: Callable[..., Any], args: Sequence[Any], *, gradients: bool = True, double: bool = False) -> Ran:
    """Run on copies of ``args``, and take the gradients of all results to all inputs, with fixed tangents.

    Raises:
        Unsupported: an input cannot be copied.
        Exception: what the program raises.
    """
    copies = copies_of(args, double=double)
    with keeping_random_state(args) as moved:
        outputs = tuple(pytree.tree_leaves(run(*copies.args)))
        grads: tuple[Any, ...] = ()
        if gradients:
            roots = [y for y in outputs if isinstance(y, torch.Tensor) and y.grad_fn is not None]
            if copies.leaves and roots:
                grads = torch.autograd.grad(roots, copies.leaves, tangents_for(roots), allow_unused=True)
        return Ran(outputs, grads, tuple(pytree.tree_leaves(copies.args)), moved())


def tangents_for(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of results to begin with: the same in each run."""
    return [_tangent(y, k) for k, y in enumerate(roots)]


def _tangent(y: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers that are the same for a result in float16 and in float64, whatever dtypes a mode would make of it."""
    with torch._C.DisableTorchFunction():
        generator = torch.Generator().manual_seed(seed)
        kind = torch.complex64 if y.is_complex() else torch.float32
        values = torch.randn(y.shape, generator=generator, dtype=kind)
        return values.to(kind if y.is_complex() else torch.float8_e4m3fn).to(kind).to(device=y.device, dtype=y.dtype)


class _Wide(TorchFunctionMode):
    """Dtypes that a program names are float64, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widen(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value

        args, kwargs = pytree.tree_map(widen, (args, kwargs or {}))
        return _WIDER.get(func, func)(*args, **kwargs)


def in_float64(run: Callable[..., Any], args: Sequence[Any], *, gradients: bool = True) -> Ran | None:
    """:func:`trial` of the program in float64, on copies of ``args``; None where it does not run so."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with _Wide():
            return trial(run, args, gradients=gradients, double=True)
    except Exception:
        return None
    finally:
        torch.set_default_dtype(before)
