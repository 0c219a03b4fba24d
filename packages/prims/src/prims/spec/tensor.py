"""Tensors without data: a wrapper subclass whose dispatch only computes metadata."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prims.errors import DataDependentError, Unsupported
from prims.generators import is_random, may_draw
from prims.sharding import decides_itself, is_fake_call, is_sharded
from prims.spec import unbacked
from prims.spec.calls import SymbolicCalls
from prims.spec.infer import resolve, to_spec
from prims.spec.sym import SymNode, to_torch
from prims.spec.tensorspec import TensorSpec

#: The most numbers that ``tolist`` makes symbols of: each is read by itself.
TOLIST = 32

_make_wrapper = torch.Tensor._make_wrapper_subclass
OpOverload: TypeAlias = Any  # torch._ops.OpOverload


class AbstractTensor(torch.Tensor):
    """A tensor of which only the metadata is known. PyTorch's autograd works over it.

    ``spec`` is its :class:`TensorSpec`. It may claim any device, also one this machine does not have. Reading
    its data (``item``, ``tolist``, ``bool``, ``numpy``, ``nonzero``) raises DataDependentError.
    """

    spec: TensorSpec

    @staticmethod
    def __new__(cls, spec: TensorSpec, requires_grad: bool = False) -> AbstractTensor:
        return make(spec, requires_grad)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"AbstractTensor({self.spec})"

    def __deepcopy__(self, memo: Any) -> AbstractTensor:
        return make(self.spec, self.requires_grad)

    def tolist(self) -> Any:
        """The numbers as nested lists, where somebody makes symbols of them and they are few."""
        if not unbacked.is_making() or not all(type(n) is int for n in self.spec.shape) or self.spec.numel() > TOLIST:
            raise _no_data("tolist")
        return [x.tolist() for x in self.unbind()] if self.spec.ndim else self.item()

    def numpy(self, *, force: bool = False) -> Any:
        raise _no_data("numpy")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise _no_data("__array__")

    def data_ptr(self) -> int:
        raise _no_data("data_ptr")


def _no_data(what: str) -> DataDependentError:
    return DataDependentError(f"{what} reads a tensor of which only metadata is known here")


@functools.cache
def _prepare_cuda_autograd() -> None:
    """Autograd asks for a CUDA device guard: an empty one where a CUDA build of torch finds no GPU. A CPU-only
    build has none, and would abort the process.
    """
    if torch.version.cuda is None:
        raise Unsupported("autograd over abstract CUDA tensors needs a CUDA build of torch (this one is CPU-only)")
    torch._C._ensureCUDADeviceGuardSet()


def make(spec: TensorSpec, requires_grad: bool = False) -> AbstractTensor:
    """A leaf AbstractTensor of that spec."""
    shape, strides = spec.shape, spec.strides
    offset = spec.storage_offset
    for s in (*shape, *strides, offset):
        if type(s) is not int:
            shape, strides = tuple(map(to_torch, shape)), tuple(map(to_torch, strides))
            offset = to_torch(offset)
            break
    if requires_grad and spec.device.type == "cuda":
        _prepare_cuda_autograd()
    t = _make_wrapper(
        AbstractTensor,
        shape,
        strides,
        offset,
        dtype=spec.dtype,
        device=spec.device,
        requires_grad=requires_grad,
    )
    t.spec = spec
    return t  # type: ignore[no-any-return]


class _Plan:
    """How one overload is run on abstract tensors: its rule, and which results are or alias an argument."""

    __slots__ = ("func", "has_effects", "identity", "may_draw", "of_tensors", "rule", "views")

    def __init__(self, func: OpOverload) -> None:
        self.func = func
        self.rule = resolve(func)
        self.of_tensors = func in unbacked.OF_TENSORS
        #: Whether a call may advance a random generator, by its arguments.
        self.may_draw = is_random(func)
        self.identity: tuple[tuple[int, int, str], ...] = ()  # (result, argument, its name)
        self.views: tuple[tuple[int, int], ...] = ()
        arguments = func._schema.arguments
        identity, views = [], []
        for r, ret in enumerate(func._schema.returns):
            info = ret.alias_info
            if info is None:
                continue
            for a, arg in enumerate(arguments):
                if arg.alias_info is None or not info.before_set & arg.alias_info.before_set:
                    continue
                if info.is_write:
                    identity.append((r, a, arg.name))
                else:
                    views.append((r, a))
        self.identity, self.views = tuple(identity), tuple(views)
        #: Whether a call may do more than to make tensors of its arguments' metadata: write, draw, look at tensors.
        self.has_effects = bool(identity) or self.may_draw or self.of_tensors or func._schema.is_mutable


#: By the identity of the overload, which its plan keeps alive: an overload hashes in Python.
_PLANS: dict[int, _Plan] = {}


def _plan_of(func: OpOverload) -> _Plan:
    plan = _PLANS.get(id(func))
    if plan is None:
        plan = _PLANS[id(func)] = _Plan(func)
    return plan


_TO_COPY = torch.ops.aten._to_copy.default
_FULL = torch.ops.aten.full.default


def dispatch(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one overload on abstract tensors (and real ones, of which only the metadata is looked at).

    Results are fresh AbstractTensors, except that in-place and ``out=`` results are the arguments themselves;
    results that are views share their base's storage object.
    """
    if func is _TO_COPY and isinstance(args[0], (int, float, complex)):
        func, args = _FULL, ([], args[0])  # batching rules make tensors of Python's numbers
    plan = _plan_of(func)
    if plan.of_tensors and (made := unbacked.of_tensors(func, args, plan.rule)) is not None:
        return wrap(made)
    if kwargs:
        out = plan.rule(*map(to_spec, args), **{k: to_spec(v) for k, v in kwargs.items()})
    else:
        out = plan.rule(*map(to_spec, args))
    if plan.identity:
        return _mutated(func, plan, out, args, kwargs)
    return _views(func, plan, out, args) if plan.views else wrap(out)


def _views(func: OpOverload, plan: _Plan, out: Any, args: tuple[Any, ...]) -> Any:
    """Results that share their base's storage.

    In inference mode a view of a normal tensor is a normal tensor: it shares the version counter.
    """
    base = args[plan.views[0][1]]
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            result = wrap(out)
    else:
        result = wrap(out)
    for r, a in plan.views:
        if isinstance(args[a], AbstractTensor):
            whole = result if len(func._schema.returns) == 1 else result[r]
            for view in whole if isinstance(whole, (list, tuple)) else (whole,):
                torch._functionalize_unsafe_set(view, args[a])
    return result


def wrap(out: Any) -> Any:
    """A rule's result as tensors and torch symbolic numbers."""
    kind = type(out)
    if kind is TensorSpec:
        return make(out)
    if kind is tuple:
        return tuple(map(wrap, out))
    if kind is list:
        return list(map(wrap, out))
    return to_torch(out) if isinstance(out, SymNode) else out


def _mutated(func: OpOverload, plan: _Plan, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Results of an in-place or ``out=`` overload: the written arguments."""
    targets = {r: args[a] if a < len(args) else kwargs[name] for r, a, name in plan.identity}
    if len(func._schema.returns) == 1:
        return _written(targets[0], out)
    return tuple(_written(targets[r], value) if r in targets else wrap(value) for r, value in enumerate(out))


def _written(target: Any, new: Any) -> Any:
    if isinstance(target, AbstractTensor) and isinstance(new, TensorSpec) and new is not target.spec:
        set_metadata(target, new)
    return target


def set_metadata(target: AbstractTensor, spec: TensorSpec) -> None:
    """Change a tensor's metadata in place, as ``transpose_`` or ``resize_`` do."""
    old = target.spec
    if old.dtype is not spec.dtype:
        raise Unsupported(f"a result of dtype {spec.dtype} written to an output of dtype {old.dtype}")
    if _needs_more(old, spec):
        torch._functionalize_unsafe_set(target, make(spec))
    with torch._C._DisableTorchDispatch():
        target.as_strided_(
            tuple(map(to_torch, spec.shape)), tuple(map(to_torch, spec.strides)), to_torch(spec.storage_offset)
        )
    target.spec = spec


def _needs_more(old: TensorSpec, new: TensorSpec) -> bool:
    """Whether the new metadata may reach past the memory that the old one used."""
    a, b = old.numel(), new.numel()
    return not (a is b or a == b)


@contextmanager
def plain_saving() -> Iterator[None]:
    """Saves tensors for a backward pass as they are: the program's hooks for saved tensors (a checkpoint's, say, which
    counts them) are not for abstract ones. With hooks that change nothing autograd would give other tensors back."""
    taken_off = []
    while (hooks := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken_off.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(taken_off):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


def _devices(values: Any) -> Iterator[torch.device]:
    if isinstance(values, torch.Tensor):
        yield values.device
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _devices(value)
    elif isinstance(values, dict):
        yield from _devices(tuple(values.values()))


class AbstractMode(TorchDispatchMode):
    """Makes factory calls (``torch.zeros``, ``arange``, ``torch.tensor`` constants) give AbstractTensors.

    Use it around code that runs on abstract tensors: capture while it evaluates a call's metadata, the
    ahead-of-time stage while it traces. Real tensors that meet abstract ones count as constants. An operator
    none of whose arguments is abstract still runs abstractly, so that nothing is computed or allocated.

    Args:
        symbolic_calls: also enter :class:`SymbolicCalls`. That is a torch-function mode, which a program can see
            (``has_torch_function``); a caller that runs more than tensor functions enters it around those alone.
    """

    #: What the last operator has made, if it does nothing but make new tensors.
    made: Any = None
    #: Whether an operator may have done more than make tensors and views. Who asks sets it to False before.
    had_effects = False

    #: Higher-order operators come here too, rather than to PyTorch's own tracing.
    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.made = None
        if type(func) is not torch._ops.OpOverload and isinstance(func, torch._ops.HigherOrderOperator):
            self.had_effects = True
            if func.name() == "triton_kernel_wrapper_mutation":
                return None  # a launch inside torch.library.triton_op: it fills tensors that exist
            raise Unsupported(f"the higher-order operator {func.name()}")
        if len(types) != 1 or types[0] is not AbstractTensor:  # else both answers are no
            if is_fake_call(types):
                self.had_effects = True
                return func(*args, **kwargs)
            if decides_itself(types):
                self.had_effects = True
                if any(map(is_sharded, args)) and may_draw(func, args, kwargs):
                    raise Unsupported(f"{func}, which draws random numbers for a DTensor")
                return NotImplemented
        result = dispatch(func, args, kwargs)
        plan = _plan_of(func)
        if plan.has_effects:
            self.had_effects = True
        elif not plan.views:
            self.made = result
        if plan.may_draw and may_draw(func, args, kwargs):
            self.drawn.update(_devices((result, args, kwargs)))
        return result

    def __enter__(self) -> AbstractMode:
        super().__enter__()
        if self._symbolic_calls is not None:
            self._symbolic_calls.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._symbolic_calls is not None:
            self._symbolic_calls.__exit__(*error)
        super().__exit__(*error)

    def __init__(self, symbolic_calls: bool = True) -> None:
        super().__init__()
        #: The devices on which operators may have drawn random numbers.
        self.drawn: set[torch.device] = set()
        self._symbolic_calls = SymbolicCalls() if symbolic_calls else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, wraps __torch_dispatch__ in a function that imports torch._dynamo when first called.
        return False


class _History(torch.autograd.Function):
    """Gives a tensor a history, so that it is no leaf; not by a view of one, which could not be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: AbstractTensor) -> torch.Tensor:
        return make(leaf.spec)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


#: The class of autograd node before which nothing is known: that of an abstract tensor that is no leaf.
HISTORY_NODE: type = _History._backward_cls  # type: ignore[attr-defined]


def abstract(
    tensor: torch.Tensor, ctx: Any = None, dynamic_dims: Any = (), source: str = "",
    dynamic_strides: Any = types.MappingProxyType({}),
) -> AbstractTensor:  # fmt: skip
    """The abstract twin of a tensor: same metadata, requires_grad, leafness and Parameter-ness.

    Args:
        tensor: any strided tensor.
        ctx: the SymbolContext that makes the symbols of ``dynamic_dims``.
        dynamic_dims: dimensions that get a new symbol each (a mapping gives the ``int | Sym`` to use). Strides of
            a dense tensor follow from the sizes; other strides stay static.
        source: where the tensor comes from, for the symbols' records.
        dynamic_strides: symbols for strides that do not follow from the sizes, by dimension.
    """
    from prims.spec.abstract import abstract_spec

    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):  # a normal tensor counts its versions there, too
            return abstract(tensor, ctx, dynamic_dims, source, dynamic_strides)
    spec = abstract_spec(tensor, ctx, dynamic_dims, source, dynamic_strides)
    requires_grad = tensor.requires_grad
    out = make(spec, requires_grad)
    if requires_grad and not tensor.is_leaf:
        with torch.enable_grad():
            out = _History.apply(out)
    if isinstance(tensor, torch.nn.Parameter):
        out._is_param = True  # type: ignore[attr-defined]
    elif getattr(tensor, "_is_buffer", False):
        out._is_buffer = True  # type: ignore[attr-defined]
    return out


def abstract_from_spec(spec: TensorSpec, requires_grad: bool = False) -> AbstractTensor:
    """A leaf AbstractTensor of that spec."""
    return make(spec, requires_grad)


__all__ = ["AbstractMode", "AbstractTensor", "abstract", "abstract_from_spec", "dispatch", "plain_saving"]
