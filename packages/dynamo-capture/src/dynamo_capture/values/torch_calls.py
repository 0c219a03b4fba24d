"""Which callables of torch are operators of the graph, and the functions with a meaning of their own."""

from __future__ import annotations

import functools
import logging
import operator
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from dynamo_capture.breaks import GraphBreak, NotAnOperand
from dynamo_capture.custom_ops import visible_body
from dynamo_capture.first_calls import FirstCall
from dynamo_capture.marks import graph_break, is_compiling
from dynamo_capture.promises import is_assumed_constant, is_disabled_by_torch, substitute_of, why_disabled_by_torch
from dynamo_capture.values import arith
from dynamo_capture.values.base import Value
from dynamo_capture.values.composites import TENSOR_MAKERS, batch_norm_at_a_rate, body_of, of_number, of_numbers
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue, fold
from dynamo_capture.values.fused_steps import FUSED_STEPS
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.wrappers import is_disabled, reason_of
from prims.errors import DataDependentError
from prims.ir import register_callable
from prims.settings import GET_PRECISION, SET_PRECISION, SETTINGS, says_nothing_to_graphs
from prims.spec.recurrent import MAX_STEPS
from prims.transforms import TRANSFORMS

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = [
    "ALLOWED", "call_torch", "disabled_call", "graph_broken", "is_operator_function", "is_set_here",
    "is_torch_callable", "set_mode", "special", "special_by_code", "special_by_name", "special_function", "substituted",
]  # fmt: skip

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]

#: Functions that the user has put into graphs whole (``allow_in_graph``).
ALLOWED: set[Any] = set()

_OPERATOR_MODULES = frozenset(("torch.nn.functional", "torch.functional", "torch._tensor"))
_OPERATORS_ELSEWHERE = frozenset(
    (torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_ite, torch.is_tensor,
     torch.is_storage, torch._sym_sqrt)
) | TRANSFORMS  # fmt: skip
#: Operators in Python that are inlined where sizes are symbolic: what they call must be seen one by one, as some
#: torch versions define it in terms of plain sizes (:mod:`prims.spec.calls`).
INLINED_WITH_SYMBOLS = frozenset((F.multi_head_attention_forward,))
_OPERATOR_TYPES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

#: Setters of thread-local modes -> how to read the mode (with the setter's leading arguments).
MODE_SETTERS: dict[Any, tuple[Any, int]] = {
    torch._C._set_grad_enabled: (torch.is_grad_enabled, 0),
    torch.set_autocast_enabled: (torch.is_autocast_enabled, 1),
    torch.set_autocast_dtype: (torch.get_autocast_dtype, 1),
    torch.set_autocast_cache_enabled: (torch.is_autocast_cache_enabled, 0),
    **{setter: (reader, 0) for setter, reader in SETTINGS.items()},
    **({} if SET_PRECISION is None else {SET_PRECISION: (GET_PRECISION, 2)}),
}
#: How the process's settings are read -> how they are set.
_SETTERS_BY_READER: dict[Any, Any] = {reader: setter for setter, reader in SETTINGS.items()}
_SETTERS_BY_READER[GET_PRECISION] = SET_PRECISION
#: In names of other readers: what they say may depend on those.
_RELATED = ("cudnn", "sdp", "precision", "tf32", "torch.backends")
#: Modules below torch._C whose functions are operators.
_OPERATOR_C_MODULES = frozenset(
    f"torch._C.{name}" for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "_VariableFunctions")
)
#: Recurrent layers; with gradients cuDNN keeps a buffer of its own for the backward pass, which no graph can describe.
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_NESTING = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
_OVERRIDE_QUESTIONS = frozenset(
    (torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
)
_MODE_QUESTIONS = frozenset(
    (torch._C._is_torch_function_mode_enabled, torch._C._len_torch_function_stack, torch._C._get_function_stack_at)
)
#: Readers of what the guard of the global state checks, or of what never changes.
_GUARDED_OR_FIXED = frozenset(
    ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled",
     "get_autocast_dtype", "get_autocast_gpu_dtype", "get_autocast_cpu_dtype", "is_autocast_cache_enabled",
     "_is_torch_function_enabled", "_is_torch_function_mode_enabled", "get_default_dtype", "_get_tracing_state",
     "_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only", "_is_any_autocast_enabled",
     "is_any_autocast_enabled", "_is_autocast_available", "_get_accelerator", "_get_privateuse1_backend_name",
     "get_device", "is_complex", "is_floating_point", "is_tensor", "is_nonzero", "is_same_size", "is_signed",
     "is_storage", "is_conj", "is_neg", "is_inference", "is_distributed", "_get_default_device")
)  # fmt: skip
_READERS = ("is_", "get_", "_get", "_is", "has_", "_has", "are_", "_jit_get", "_are", "_len_", "_dispatch_tls",
            "_cuda_get", "_cuda_is")  # fmt: skip


#: Functions that ask a tensor what its method of the same name does.
_STATE_FUNCTIONS = frozenset((torch.is_conj, torch.is_neg, torch.is_inference))


def is_operator_function(fn: Any) -> bool:
    """Whether a Python function of torch (or one the user allowed) becomes one node of the graph."""
    if fn in _OPERATORS_ELSEWHERE or _is_allowed(fn):
        return True
    module = getattr(fn, "__module__", None)
    if module not in _OPERATOR_MODULES:
        return bool(module == "torch._jit_internal" and fn.__name__ == "fn")
    if fn.__name__ == "__torch_function__":
        return False
    if _declared(fn).get("return", fn) is None:
        return False  # it checks its arguments: what it asks is to be seen
    if module == "torch.nn.functional":
        return getattr(F, fn.__name__, None) is fn or fn.__name__ in _F_PRIVATE
    return True


def _declared(fn: Any) -> dict[str, Any]:
    """Its annotations. From Python 3.14 on they are evaluated when asked for, and may name what is not there."""
    try:
        return fn.__annotations__  # type: ignore[no-any-return]
    except NameError:
        if sys.version_info >= (3, 14):
            import annotationlib

            return annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF)
        raise


_F_PRIVATE = frozenset(("_max_pool1d", "_max_pool2d", "_max_pool3d"))


def is_torch_callable(fn: Any) -> bool:
    """Whether a C function (or an operator in Python) belongs to torch."""
    if isinstance(fn, _OPERATOR_TYPES) or (isinstance(fn, types.FunctionType) and is_operator_function(fn)):
        return True
    if not isinstance(fn, types.BuiltinFunctionType):
        return False
    module = getattr(fn, "__module__", None)
    return (isinstance(module, str) and module.startswith("torch")) or _is_allowed(fn)


def call_torch(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call an operator of torch, read its global state, or set a mode."""
    if fn in MODE_SETTERS:
        return set_mode(tx, fn, [a.realize().const() for a in args])
    if fn in _NESTING:
        tx.nesting += 1 if fn is torch.autocast_increment_nesting else -1
        tx.side.epoch += 1
        return ConstantValue(max(tx.nesting, 0))
    if fn in _OVERRIDE_QUESTIONS:
        from dynamo_capture.values.overrides import overrides

        return ConstantValue(overrides(tx, args) or bool(tx.devices.now))  # the only modes while frames are captured
    if fn in _MODE_QUESTIONS and tx.devices.now:
        raise GraphBreak("QB03", f"torch._C.{fn.__name__} under a default device")
    if fn is not torch.is_tensor:
        from dynamo_capture.values.overrides import dispatched, has_instances

        if has_instances(args, kwargs):
            return dispatched(tx, fn, args, kwargs)
    kwargs = tx.devices.named(fn, kwargs)
    if "generator" in kwargs:
        from dynamo_capture.values.torch_generators import drawn_tensor, generator_in

        generator, kwargs = generator_in(kwargs)
        if generator is not None:
            return drawn_tensor(tx, fn, generator, args, kwargs)
    if fn is torch.clear_autocast_cache or fn is torch._C._log_api_usage_once:
        return ConstantValue(None)
    if isinstance(fn, types.BuiltinFunctionType):
        module, name = fn.__module__, fn.__name__
        if isinstance(getattr(fn, "__self__", None), types.ModuleType) and fn.__self__ is torch._C:
            if not name.startswith(_READERS):
                raise GraphBreak("QB03", f"torch._C.{name}")
        elif module.startswith("torch._C") and module not in _OPERATOR_C_MODULES and not name.startswith(_READERS):
            raise GraphBreak("QB03", f"{module}.{name}")  # functorch's levels and the like: calling it has effects
    if getattr(fn, "__module__", None) == "torch._tensor" and args and fn in _methods_in_python():
        if not issubclass(args[0].realize().pytype, torch.Tensor):
            return fold(tx, fn, args, kwargs)  # which raises, or gives what the numbers' own operator does
        return args[0].realize().call_method(tx, _methods_in_python()[fn], args[1:], kwargs)
    body = body_of(fn, kwargs) or visible_body(fn)
    if fn is F.batch_norm and _keeps_running_numbers(args, kwargs):
        body = batch_norm_at_a_rate
    if fn in FUSED_STEPS and tx.optimizers:
        if tx.eager_bits:
            raise GraphBreak("QB03", f"torch.{fn.__name__}, whose bits only eager's kernel gives")
        body = FUSED_STEPS[fn]
    if fn in (torch.tensor, torch.as_tensor) and len(args) == 1:
        from dynamo_capture.values.arrays import ArrayValue, tensor_of
        from dynamo_capture.values.made_arrays import MadeArrayValue

        if isinstance(made_of := args[0].realize(), (ArrayValue, MadeArrayValue)):
            return tensor_of(tx, fn, made_of, kwargs)
    if fn in TENSOR_MAKERS and len(args) == 1 and isinstance(number := args[0].realize(), SymValue):
        body = of_number if has_place(tx, number) and not kwargs.keys() - {"dtype", "device"} else body
    if fn in (torch.tensor, torch.as_tensor) and len(args) == 1 and not kwargs.keys() - {"dtype", "device"}:
        body = of_numbers if has_symbols(tx, args[0].realize()) else body
    if body is not None:
        return tx.from_python(body).realize().call(tx, args, kwargs)
    if fn is torch.pow and len(args) == 2 and not kwargs and isinstance(base := args[0].realize(), SymValue):
        return arith.binary(tx, operator.pow, base, args[1].realize())
    if _reads_a_setting(fn) and all(a.realize().is_const for a in (*args, *kwargs.values())):
        _guard_setting(tx, fn, [a.realize().const() for a in args], {k: v.realize().const() for k, v in kwargs.items()})
    if fn in _STATE_FUNCTIONS and len(args) == 1 and isinstance(tensor := args[0].realize(), TensorValue):
        return tensor.call_method(tx, fn.__name__, [], kwargs)
    if fn is torch.is_tensor:
        return ConstantValue(issubclass(args[0].realize().pytype, torch.Tensor))
    if fn in _RECURRENT and torch.is_grad_enabled():
        _check_recurrent(fn, args)
    try:
        return tx.graph_call(fn, args, kwargs)
    except GraphBreak as brk:
        by_code = brk.number == "QB02" or isinstance(brk, NotAnOperand)
        if not by_code or not isinstance(fn, types.FunctionType) or fn.__module__ != "torch.nn.functional":
            raise
        return _seen_through(tx, fn, args, kwargs, brk)


#: Numbers up to which a tensor of them is put together from one for each.
_FEW = 32


def has_place(tx: Capture, number: SymValue) -> bool:
    """Whether a symbolic number surely has a place in a tensor of 64 bits: none that is made of the frame's numbers,
    as what is too large is an error of its own."""
    if number.pytype is not int:
        return number.pytype is float
    expr = number.example.node.expr
    of_frame = (inp.node.meta["spec"] for inp in tx.graph.input_list() if isinstance(inp.value, SymValue))
    return expr.is_symbol or expr.free_symbols().isdisjoint(spec.expr.symbol_name for spec in of_frame)  # type: ignore[no-any-return]


def has_symbols(tx: Capture, data: Value) -> bool:
    """Whether it is a short list or tuple of plain numbers, symbolic ones among them."""
    from dynamo_capture.values.containers import ListValue, TupleValue

    if not isinstance(data, (ListValue, TupleValue)) or data.pytype not in (list, tuple) or len(data.items) > _FEW:
        return False
    items = [item.realize() for item in data.items]
    plain = all(isinstance(x, SymValue) or type(x) is ConstantValue and type(x.value) in (int, float) for x in items)
    symbols = [x for x in items if isinstance(x, SymValue)]
    return plain and bool(symbols) and all(has_place(tx, x) for x in symbols)


def _seen_through(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], brk: GraphBreak) -> Value:
    """A function of ``torch.nn.functional`` that reads data, perhaps only to raise by it, or is given a function: its
    Python is captured."""
    from dynamo_capture.values.functions import FunctionValue

    try:
        return tx.interpreted(FunctionValue(fn), args, kwargs)
    except (GraphBreak, DataDependentError):
        raise brk from None


def _keeps_running_numbers(args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether ``F.batch_norm`` averages over batches at a rate that is a number of the graph."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {name: value.realize() for name, value in (*zip(names, args, strict=False), *kwargs.items())}
    training = given.get("training", ConstantValue(False))
    kept = [isinstance(given.get(name), TensorValue) for name in ("running_mean", "running_var")]
    rate = given.get("momentum")
    return isinstance(rate, SymValue) and all(kept) and type(training) is ConstantValue and training.value is True


@functools.cache
def _methods_in_python() -> dict[Any, str]:
    """The methods of tensors that are Python functions, by those, as ``__torch_function__`` is given them."""
    found = vars(torch.Tensor).items()
    return {fn: name for name, fn in found if isinstance(fn, types.FunctionType) and fn.__module__ == "torch._tensor"}


def _check_recurrent(fn: Any, args: list[Value]) -> None:
    """Break before a recurrent layer in training that no graph can describe, or only a very long one."""
    first, batch_first = args[0].realize(), args[-1].realize()
    if not isinstance(first, TensorValue) or first.example.device.type != "cpu":
        raise GraphBreak("QB08", f"torch.{fn.__name__} in training is one call of a library")
    if fn is torch.lstm and first.example.dtype == torch.float32:
        return  # a call per layer
    lengthwise = 1 if batch_first.is_const and batch_first.const() is True and first.example.ndim == 3 else 0
    steps = first.example.shape[lengthwise]
    if isinstance(steps, torch.SymInt):
        raise GraphBreak("QB08", f"torch.{fn.__name__} in training, of a length that changes")
    if steps > MAX_STEPS:
        raise GraphBreak("QB08", f"torch.{fn.__name__} in training, unrolled over {steps} steps (at most {MAX_STEPS})")


#: Beginnings of the names of C functions that read a process's settings, or which device is current.
_SETTINGS = ("get_", "_get_", "is_", "_is_", "are_", "_cuda_get")


def _reads_a_setting(fn: Any) -> bool:
    """Whether a C function reads a process-wide setting that the guard of the global state does not cover."""
    name = getattr(fn, "__name__", "")
    if not isinstance(fn, types.BuiltinFunctionType) or not name.startswith(_SETTINGS):
        return False
    owner = getattr(fn, "__self__", None)
    return (owner is torch._C or owner is None) and name not in _GUARDED_OR_FIXED


def is_set_here(tx: Capture, reader: Any, args: list[Any]) -> bool:
    """Whether it is the region that has set what ``reader(*args)`` reads of the process's settings, so that it was
    guarded before.

    Raises:
        GraphBreak: a reader that is not known, or of what depends on other settings, after the region has set some.
    """
    written = [key for key in tx.modes if key[0] in SETTINGS or key[0] is SET_PRECISION]
    if not written:
        return False
    setter = _SETTERS_BY_READER.get(reader)
    name = getattr(reader, "__name__", "a setting of torch.backends")
    if (setter is None and any(word in name for word in _RELATED)) or (setter is SET_PRECISION and args[1:] != ["all"]):
        raise GraphBreak("QB03", f"{name}, which may depend on settings that the region has set")
    return (setter, *args) in written


def _guard_setting(tx: Capture, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    if is_set_here(tx, fn, args):
        return
    try:
        value = fn(*args, **kwargs)
    except Exception:
        return  # the call itself will say so
    if type(value) in CONST_TYPES:
        tx.guards.state(functools.partial(fn, *args, **kwargs), value, f"{fn.__name__}({', '.join(map(repr, args))})")


def set_mode(tx: Capture, setter: Any, args: list[Any]) -> Value:
    """Set a thread-local mode, for the rest of the capture and in the graph."""
    reader, leading = MODE_SETTERS[setter]
    if setter in SETTINGS or setter is SET_PRECISION:
        _check_setting(tx, setter, args)
    key = (setter, *args[:leading])
    before = reader(*args[:leading])
    first = tx.modes.get(key, (before, before))[0]
    value = args[leading]
    if setter is torch._C._set_grad_enabled and not value and any(level.duals is not None for level in tx.levels):
        raise GraphBreak("QB12", "gradients are switched off in a forward derivative, which goes on all the same")
    if before != value and not says_nothing_to_graphs(setter):
        tx.graph.state_call(setter, args)
    setter(*args)
    tx.modes[key] = (first, value)
    return ConstantValue(None)


def _check_setting(tx: Capture, setter: Any, args: list[Any]) -> None:
    """Break where a setting of the process is read by operators as they run; else guard what the region found."""
    reader, leading = MODE_SETTERS[setter]
    of_gpu = says_nothing_to_graphs(setter)
    known = len(args) == leading + 1 and (setter in SETTINGS or args[0] == "cuda")
    if not known or (of_gpu and torch.cuda.is_available()):
        raise GraphBreak("QB03", f"torch._C.{setter.__name__}")
    if (setter, *args[:leading]) not in tx.modes:
        _guard_setting(tx, reader, args[:leading], {})


# --- Python functions with a meaning of their own -------------------------------------------------------------------

_SPECIAL: dict[Any, Handler] = {}
_SPECIAL_BY_NAME: dict[tuple[str, str], Handler] = {}
#: By the code that closures share: the handler takes the closure first.
_SPECIAL_BY_CODE: dict[types.CodeType, Callable[..., Value]] = {}


def special_function(fn: Any) -> Handler | None:
    """The handler of a Python function that is not inlined, or None."""
    found = substituted(fn) or _SPECIAL.get(fn)
    if found is not None:
        return found
    if is_disabled(fn):
        return functools.partial(disabled_call, why=reason_of(fn))
    promised = _promised(fn)
    if promised is not None:
        return promised
    module = fn.__module__
    if (module, fn.__name__) in _SPECIAL_BY_NAME:
        return _SPECIAL_BY_NAME[module, fn.__name__]
    kept = fn.__dict__.get("_torchdynamo_orig_callable")
    if kept is not None and str(module).startswith("torch.optim."):
        # PyTorch's compiler, once it has run in the process, keeps optimizers' parts from itself, not from us.
        return lambda tx, args, kwargs: tx.from_python(kept).realize().call(tx, args, kwargs)
    of_code = _SPECIAL_BY_CODE.get(fn.__code__)
    return None if of_code is None else functools.partial(of_code, fn)


def _promised(fn: types.FunctionType) -> Handler | None:
    """The handler of a function of which the program has said something, here or to PyTorch's compiler."""
    if is_disabled_by_torch(fn):
        from dynamo_capture.values.compiler_names import disabled_by_torch

        return disabled_by_torch(fn, why_disabled_by_torch(fn))
    if is_assumed_constant(fn):
        from dynamo_capture.values.compiler_names import assumed_constant

        return lambda tx, args, kwargs: assumed_constant(tx, fn, args, kwargs)
    return None


def substituted(fn: Any) -> Handler | None:
    """The handler of a function in whose place another is captured (``substitute_in_graph``)."""
    polyfill = substitute_of(fn)
    if polyfill is None:
        return None

    def call(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        names = [f"{getattr(f, '__module__', None)}.{f.__qualname__}()" for f in (polyfill, fn)]
        tx.guards.promised(f"{names[0]} is captured in the place of {names[1]}")
        return tx.from_python(polyfill).realize().call(tx, args, kwargs)

    return call


def _is_allowed(fn: Any) -> bool:
    """Whether the program puts a function into graphs whole, by our ``allow_in_graph`` or PyTorch's."""
    if fn in ALLOWED:
        return True
    module = sys.modules.get("torch._dynamo.trace_rules")
    if module is None or id(fn) not in getattr(module, "_allowed_callable_ids", ()):
        return False
    if str(getattr(fn, "__module__", "torch")).partition(".")[0] == "torch":
        return False  # what PyTorch's capture takes whole, ours may look into
    ALLOWED.add(register_callable(fn))
    return True


def special(*fns: Any) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        for fn in fns:
            if fn is not None:
                _SPECIAL[fn] = handler
        return handler

    return register


def special_by_name(module: str, name: str) -> Callable[[Handler], Handler]:
    """Register a handler for a function of a module that only the program may import."""

    def register(handler: Handler) -> Handler:
        _SPECIAL_BY_NAME[module, name] = handler
        return handler

    return register


def special_by_code(fn: Any) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register a handler for all closures of one function's code, such as what a decorator makes."""

    def register(handler: Callable[..., Value]) -> Callable[..., Value]:
        if isinstance(fn, types.FunctionType):
            _SPECIAL_BY_CODE[fn.__code__] = handler
        return handler

    return register


def _attribute(path: str) -> Any:
    """A function by dotted path below torch, or None in versions that lack it."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _constant(value: Any) -> Handler:
    return lambda tx, args, kwargs: ConstantValue(value)


def _is_compiling(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """True, but not for optimizers: what they do for PyTorch's compiler is less exact, and skips eager's checks."""
    return ConstantValue(not str(tx.frames[-1].globals.get("__name__")).startswith("torch.optim."))


for _path in ("compiler.is_compiling", "compiler.is_dynamo_compiling"):
    special(_attribute(_path))(_is_compiling)
for _path in ("jit.is_scripting", "jit.is_tracing", "_jit_internal.is_scripting"):
    special(_attribute(_path))(_constant(False))
special_by_name("torch.onnx", "is_in_onnx_export")(_constant(False))  # to import it takes 20 ms
# PyTorch's own compiler, once it has run in the process, numbers the modules that are made.
special_by_name("torch._dynamo.mutation_guard", "tag")(_constant(None))


def disabled_call(tx: Capture, args: list[Value], kwargs: dict[str, Value], why: str = "") -> Value:
    """A function that the user keeps out of graphs."""
    raise GraphBreak("QB04", why)


@special(torch.overrides.handle_torch_function)
def _override(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1:
        from dynamo_capture.values.overrides import handled

        found = handled(tx, args[0].realize(), args[1], args[2:], kwargs)
        if found is not None:
            return found
    if len(args) < 2 or not tx.devices.now:
        raise GraphBreak("QB03", "handle_torch_function")
    return tx.devices.overridden(tx, args[0], args[2:], kwargs)


@special(torch.get_default_device)
def _default_device(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not tx.devices.now:
        text = "the device that torch.set_default_device set, without its mode"
        if tx.guards.now(_fallback_device, text) is not None:
            raise GraphBreak("QB03", "torch.get_default_device")
        return ConstantValue(torch.device("cpu"))
    device = tx.devices.now[-1]
    if device.index is not None:
        return ConstantValue(device)

    current = functools.partial(_current_device, device)
    tx.guards.state(current, current(), f"the current {device.type} device")
    return ConstantValue(current())


def _current_device(device: torch.device) -> torch.device:
    return torch.empty(0, device=device).device


def _fallback_device() -> Any:
    """What ``torch.get_default_device`` goes by where no mode is on."""
    if torch._C._len_torch_function_stack():
        return None
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


@special(typing.cast)
def _cast(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[1]


@special_by_name("torch.random", "manual_seed")  # which PyTorch's compiler wraps when it is imported
def _manual_seed(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Before any operator, it is called before the graph runs."""
    given = [value.realize() for value in (*args, *kwargs.values())]
    known = len(given) == 1 and type(given[0]) is ConstantValue and type(given[0].value) is int
    if not known or tx.graph.op_count or not tx.graph.is_outermost or kwargs.keys() - {"seed"}:
        return _seed(tx, args, kwargs)
    seed = given[0].const()
    if not -(2**63) <= seed < 2**64:
        return _seed(tx, args, kwargs)  # eager refuses it
    tx.side.epoch += 1
    tx.first.add(FirstCall(torch.random.manual_seed, (ConstantValue(seed),), {}))
    return tx.from_python(torch.default_generator)


@special(torch.random.seed, torch.random.set_rng_state)
def _seed(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB03", "setting the state of torch's random number generator")


@special(warnings.warn_explicit)
def _warn(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB11", "warnings.warn")


@special(logging.getLogger)
def _get_logger(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [*args, *kwargs.values()]
    return tx.from_python(logging.getLogger(values[0].realize().const() if values else None))  # one per name, for good


@special(logging.Logger.isEnabledFor)
def _is_enabled(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    # A message that nobody wants costs no break. Asked for real: the first time it takes a lock and fills a cache.
    logger, level = args[0].realize(), args[1].realize()
    ask = functools.partial(logger.real().isEnabledFor, level.const())
    tx.guards.state(ask, ask(), f"{logger.real()!r} is enabled for {level.const()}")
    return ConstantValue(ask())


@special(graph_break)
def graph_broken(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Ends the graph because the program asks for it."""
    message = (args[0] if args else kwargs.get("msg", ConstantValue(""))).realize()
    raise GraphBreak("QB20", message.const() if message.is_const else "")


special(is_compiling)(_constant(True))
