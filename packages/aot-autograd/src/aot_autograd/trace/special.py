"""Overloads that the tracer treats by name: those whose schema does not tell what they do.

Each handler is ``handler(tracer, func, args, kwargs)`` and returns the call's result, or ``NotImplemented`` to let the
generic rules have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.trace.opinfo import op_info
from aot_autograd.trace.overlap import refuse_overlap
from aot_autograd.trace.views import Storage, TensorState, ViewStep, is_dense
from prims.errors import DataDependentError, Unsupported
from prims.spec import abstract_from_spec, infer, to_torch
from prims.spec.unbacked import is_making

if TYPE_CHECKING:
    from aot_autograd.trace.tracer import Tracer
    from prims.spec import TensorSpec

__all__ = ["HANDLERS", "READERS_OF_BITS", "handles"]

aten = torch.ops.aten

Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}


def handles(*overloads: str) -> Callable[[Handler], Handler]:
    """Register the handler of ATen overloads, named without their namespace."""

    def register(handler: Handler) -> Handler:
        for name in overloads:
            packet, overload = name.split(".")
            found = getattr(getattr(aten, packet, None), overload, None)
            if found is not None:
                HANDLERS[found] = handler
        return handler

    return register


def _state(tensor: torch.Tensor) -> TensorState:
    return tensor._aot_state  # type: ignore[attr-defined]


@handles("detach.default", "alias.default")
def _alias(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    spec = _state(args[0]).spec
    return tracer.view_step(args[0], ViewStep(func, (), {}, spec, spec))


@handles("_to_copy.default")
def _to_copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(args[0], torch.Tensor):
        return NotImplemented
    return tracer.pure(aten.full.default, ([], args[0]), kwargs)  # batching rules make tensors of Python's numbers


@handles("lift_fresh.default")
def _lift_fresh(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    state = _state(source)
    real = state.storage.constant
    if real is None:
        return _alias(tracer, func, args, kwargs)
    spec = state.spec
    if real.dim() == 0 and not real.dtype.is_complex:
        node, spec = tracer.emit(aten.full.default, ([], real.item()), {"dtype": real.dtype, "device": real.device})
    else:
        node, spec = tracer.emit(aten.clone.default, (tracer.read(source),), {})
    result = abstract_from_spec(spec)
    storage = Storage(spec, node, base=result, constant=real)
    result._aot_state = TensorState(storage, (), node, 0, spec)  # type: ignore[attr-defined]
    return result


@handles("_local_scalar_dense.default", "item.default")
def _item(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    state = _state(args[0])
    real = state.storage.constant
    if real is not None and real.numel() == 1:
        return real.item()
    if is_making():
        from aot_autograd.trace.unbacked import number_of

        return number_of(tracer, args[0])
    raise DataDependentError("a tensor's value is read into Python", where=tracer._current_source())


@handles("sym_size.int", "sym_stride.int")
def _sym_size(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    spec = _state(args[0]).spec
    return to_torch((spec.shape if func is aten.sym_size.int else spec.strides)[args[1]])


@handles("size.default", "stride.default")
def _numbers(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A C++ function that cannot do without numbers: each symbolic size becomes one, with a guard."""
    spec = _state(args[0]).spec
    return list(map(int, spec.shape if func is aten.size.default else spec.strides))


@handles("sym_numel.default")
def _sym_numel(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return to_torch(_state(args[0]).spec.numel())


@handles("_conj.default")
def _conj(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[0], torch.Tensor):  # a Python number that an operator was called with
        number = torch.tensor(args[0].conjugate())
        return tracer.pure(aten.full.default, ([], number.item()), {"dtype": number.dtype})
    spec = _state(args[0]).spec
    return tracer.view_step(args[0], ViewStep(aten.conj_physical.default, (), {}, spec, spec))


@handles("_neg_view.default")
def _neg_view(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    spec = _state(args[0]).spec
    return tracer.view_step(args[0], ViewStep(aten.neg.default, (), {}, spec, spec))


def _lazy(chain: tuple[ViewStep, ...]) -> tuple[bool, bool]:
    """Whether eager's tensor is a conjugate, and whether it is a negative, that only its reader makes."""
    conjugate, parts, negative = False, False, False
    for step in chain:
        if step.func is aten.conj_physical.default:
            conjugate = not conjugate
        elif step.func is aten.neg.default:
            negative = not negative
        elif step.func is aten.view_as_real.default:
            conjugate, parts = False, conjugate
        elif step.func is aten.select.int and parts:
            parts, negative = False, negative != (step.args[1] == 1)
    return conjugate, negative


def _lazy_of(x: Any) -> tuple[bool, bool]:
    state = getattr(x, "_aot_state", None)
    return (False, False) if state is None else _lazy(state.chain)


def resolve_conj(input: Any) -> Any:
    """``torch.resolve_conj``: a conjugate that only its reader makes is made, in memory of its own."""
    return input.clone() if _lazy_of(input)[0] else torch.resolve_conj(input)


def resolve_neg(input: Any) -> Any:
    """``torch.resolve_neg``, likewise of a negative."""
    return input.clone() if _lazy_of(input)[1] else torch.resolve_neg(input)


def view_as_real(input: Any) -> Any:
    """``torch.view_as_real``, which of a conjugate that only its reader makes is an error in eager."""
    if _lazy_of(input)[0]:
        raise Unsupported("view_as_real of a conjugate that has not been resolved")
    return torch.view_as_real(input)


#: What is called instead of functions and methods that look at bits which abstract tensors have none of.
READERS_OF_BITS: dict[Any, Callable[..., Any]] = {
    spelling: reader
    for reader in (resolve_conj, resolve_neg, view_as_real)
    for packet in (getattr(aten, reader.__name__),)
    for spelling in (reader.__name__, getattr(torch, reader.__name__), packet, packet.default)
}


@handles("select_scatter.default", "slice_scatter.default", "diagonal_scatter.default", "as_strided_scatter.default")
def _scattered(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy with the strides of the memory that is copied, which of a lazy view is memory of its own."""
    if not any(_lazy(_state(args[0]).chain)):
        return NotImplemented
    return tracer.pure(func, (tracer.pure(aten.clone.default, (args[0],), {}), *args[1:]), kwargs)


# -- one view per result -----------------------------------------------------------------------------------------


def _slices(tracer: Tracer, source: torch.Tensor, dim: int, sizes: list[Any]) -> list[torch.Tensor]:
    results = []
    start: Any = 0
    for size in sizes:
        results.append(tracer.view(aten.slice.Tensor, (source, dim, start, start + size, 1), {}))
        start = start + size
    return results


@handles("split.Tensor")
def _split(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source, size = args[0], args[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    shape = _state(source).spec.shape
    dim = dim % len(shape)
    total = shape[dim]
    if size == 0:
        return _slices(tracer, source, dim, [total])
    count = max(int((total + size - 1) // size), 1)
    sizes = [size] * (count - 1)
    sizes.append(total - size * (count - 1))
    return _slices(tracer, source, dim, sizes)


@handles("split_with_sizes.default")
def _split_with_sizes(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source, sizes = args[0], args[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    return _slices(tracer, source, dim % len(_state(source).spec.shape), list(sizes))


@handles("unbind.int")
def _unbind(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    shape = _state(source).spec.shape
    dim = dim % len(shape)
    return [tracer.view(aten.select.int, (source, dim, i), {}) for i in range(int(shape[dim]))]


@handles("as_strided.default")
def _as_strided(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source, size, stride = args[0], args[1], args[2]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    state = _state(source)
    storage = state.storage
    if offset is None:
        offset = state.spec.storage_offset
    base = storage.base
    other_values = any(step.func in (aten.conj_physical.default, aten.neg.default) for step in state.chain)
    if other_values or state.spec.dtype != storage.spec.dtype:
        raise Unsupported("as_strided of a view with elements of another kind", where=tracer._current_source())
    if base is None or not is_dense(storage.spec):
        raise Unsupported("as_strided on memory of which only a part is known", where=tracer._current_source())
    whole = storage.spec
    if tuple(size) == tuple(whole.shape) and tuple(stride) == tuple(whole.strides) and offset == whole.storage_offset:
        return tracer.view_step(base, ViewStep(aten.alias.default, (), {}, whole, whole))
    if not _within(whole, size, stride, offset):
        raise Unsupported("as_strided reaches memory beside its tensor", where=tracer._current_source())
    return tracer.view(aten.as_strided.default, (base, list(size), list(stride), offset), {})


def _within(whole: TensorSpec, size: Any, stride: Any, offset: Any) -> bool:
    """Whether a strided view stays in the memory of a dense tensor."""
    if any(n == 0 for n in size):
        return True
    first, last = offset - whole.storage_offset, offset - whole.storage_offset
    for n, step in zip(size, stride, strict=True):
        last = last + (n - 1) * step
    return bool(first >= 0 and last < whole.numel())


# -- zeros -------------------------------------------------------------------------------------------------------


def _zeros(value: Any) -> bool:
    """Autograd's zeros that have no memory, or a view of them."""
    return isinstance(value, torch.Tensor) and _state(value).storage.node.target is aten._efficientzerotensor.default


def _new_zeros(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    spec = infer(func, args, kwargs)
    options = {"dtype": spec.dtype, "device": spec.device}
    return tracer.pure(aten._efficientzerotensor.default, (list(spec.shape),), options)  # type: ignore[no-any-return]


#: Backward nodes that share a gradient among equal elements: on the CPU eager fills zeros in, where for abstract
#: tensors PyTorch multiplies by a mask, which makes -0.0 and NaN of some, as it does on a GPU.
_SHARING = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")


@handles("mul.Tensor", "mul.Scalar", "div.Tensor")
def _product(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Zeros without memory stay such whatever they are multiplied or divided by, as in ATen's kernels for them."""
    if _zeros(args[0]) or func is not aten.div.Tensor and _zeros(args[1]):
        return _new_zeros(tracer, func, args, kwargs)
    if tracer.backward and isinstance(args[0], torch.Tensor) and _state(args[0]).spec.dtype is torch.bool:
        node = torch._C._current_autograd_node()
        spec = infer(func, args, kwargs)
        if node is not None and node.name() in _SHARING and spec.device.type == "cpu":
            zeros = tracer.pure(aten.full.default, (list(spec.shape), 0), {"dtype": spec.dtype, "device": spec.device})
            return tracer.pure(aten.masked_fill.Tensor, (zeros, args[0], args[1]), {})
    return NotImplemented


@handles("add.Tensor", "sub.Tensor")
def _sum(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """What is added to zeros without memory is copied, -0.0 too. (Where they come second, autograd adds in place.)"""
    if not _zeros(args[0]) or not isinstance(args[1], torch.Tensor):
        return NotImplemented
    if _zeros(args[1]):
        return _new_zeros(tracer, func, args, kwargs)
    spec = infer(func, args, kwargs)
    wide = tracer.view(aten.expand.default, (args[1], list(spec.shape)), {})
    copy = tracer.pure(aten._to_copy.default, (wide,), {"dtype": spec.dtype})
    alpha = kwargs.get("alpha", 1) * (-1 if func is aten.sub.Tensor else 1)
    result = copy if alpha == 1 else tracer.pure(aten.mul.Scalar, (copy, alpha), {})
    if tracer.backward:
        tracer.beside_zeros[tracer.read(result)] = tracer.made_by.get(_state(args[0]).storage.node)
    return result


# -- writes ------------------------------------------------------------------------------------------------------


@handles("copy_.default")
def _copy_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    refuse_overlap(tracer, func, op_info(func), args, kwargs)
    own, other = _state(target).spec, _state(source).spec
    if own.dtype == other.dtype and own.device == other.device and own.shape == other.shape:
        node, spec = tracer.emit(aten.clone.default, (tracer.read(source),), {})
    else:
        node, spec = tracer.emit(aten.copy.default, (tracer.read(target), tracer.read(source)), {})
    tracer.write(target, node, spec)
    return target


@handles("zero_.default")
def _zero_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    node, spec = tracer.emit(aten.full_like.default, (tracer.read(args[0]), 0), {})
    tracer.write(args[0], node, spec)
    return args[0]


@handles("fill_.Scalar")
def _fill_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    node, spec = tracer.emit(aten.full_like.default, (tracer.read(args[0]), args[1]), {})
    tracer.write(args[0], node, spec)
    return args[0]


@handles("fill_.Tensor")
def _fill_tensor_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    node, spec = tracer.emit(aten.copy.default, (tracer.read(args[0]), tracer.read(args[1])), {})
    tracer.write(args[0], node, spec)
    return args[0]


@handles("native_batch_norm.default")
def _native_batch_norm(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Its schema does not say that it updates the running statistics; each case has a functional overload."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if mean is None or var is None:
        if not training or mean is not None or var is not None:
            return NotImplemented
        return tracer.pure(aten._native_batch_norm_legit.no_stats, (x, weight, bias, True, momentum, eps), {})
    if not training:
        return tracer.pure(
            aten._native_batch_norm_legit_no_training.default, (x, weight, bias, mean, var, momentum, eps), {}
        )
    out, save_mean, save_rstd, new_mean, new_var = tracer.pure(
        aten._native_batch_norm_legit_functional.default, tuple(args), {}
    )
    for target, value in ((mean, new_mean), (var, new_var)):
        state = _state(value)
        tracer.write(target, state.node, state.spec)
    return out, save_mean, save_rstd


@handles("cudnn_batch_norm.default")
def _cudnn_batch_norm(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The same computation; what cuDNN keeps for its own backward is left empty, which serves the one below."""
    found = _native_batch_norm(tracer, func, args, kwargs)
    if found is NotImplemented:
        return found
    return *found, tracer.pure(aten.new_zeros.default, (args[0], [0]), {"dtype": torch.uint8})


@handles("cudnn_batch_norm_backward.default")
def _cudnn_batch_norm_backward(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    x, grad, weight, mean, var, save_mean, save_rstd, eps, _ = args
    native = (grad, x, weight, mean, var, save_mean, save_rstd, True, eps, [True, True, True])
    return tracer.pure(aten.native_batch_norm_backward.default, native, {})


@handles("bernoulli_.float", "bernoulli.p", "bernoulli.default")
def _bernoulli(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Passes the zeros and ones on through bool, so that a dropout mask can be saved in a byte per element."""
    info = op_info(func)
    if tracer.seeded or not torch.is_grad_enabled() or not _state(args[0]).spec.dtype.is_floating_point:
        return NotImplemented
    drawn = tracer.write_op(func, info, args, kwargs) if info.written else tracer.pure(func, args, kwargs)
    spec = _state(drawn).spec
    node = tracer.read(drawn)
    # A checkpointed region that is run again finds the byte mask of its first run.
    thin = next((user for user in node.users if user.kwargs.get("dtype") is torch.bool), None)
    if thin is None:
        thin, _ = tracer.emit(aten._to_copy.default, (node,), {"dtype": torch.bool})
    wide, wide_spec = tracer.emit(aten._to_copy.default, (thin,), {"dtype": spec.dtype})
    tracer.write(drawn, wide, wide_spec)
    return drawn


@handles("mkldnn_rnn_layer.default", "_cudnn_rnn.default", "miopen_rnn.default")
def _library_rnn(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Its backward reads a buffer whose size only the library knows, and which it makes only where autograd is on."""
    flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, torch.Tensor)]
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in flat):
        return NotImplemented
    if func is aten.mkldnn_rnn_layer.default:
        return tracer.pure(torch.ops.quintet.lstm_layer.default, args, kwargs)
    raise Unsupported("a recurrent layer of a library, in training", where=tracer._current_source())


@handles("_fused_rms_norm.default", "_fused_rms_norm_backward.default")
def _rms_norm(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The sizes to normalise over are those of the input: of a symbolic one C++ gives an address in memory."""
    if tracer.context is None:
        return NotImplemented
    at = func._schema.arguments[1].name == "input"
    sizes = _state(args[int(at)]).spec.shape
    given = [*args]
    given[1 + at] = list(sizes[len(sizes) - len(args[1 + at]) :])
    return tracer.pure(func, tuple(given), kwargs)
