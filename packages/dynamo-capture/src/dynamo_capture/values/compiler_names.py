"""What programs call by the names of ``torch.compiler`` and ``torch._dynamo``, and by ours.

PyTorch's compiler is not imported for it: a function of it is known by its module and name, and a program that calls
one has imported it.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture import _native, dynamic, marks
from dynamo_capture.breaks import GraphBreak
from dynamo_capture.stance import set_stance
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.identity import object_of, pin
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import disabled_call, graph_broken, special, special_by_name
from prims.errors import DataDependentError
from prims.spec import Sym

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["assumed_constant", "disabled_by_torch"]

_DECORATORS = "torch._dynamo.decorators"
_NONE = ConstantValue(None)


# --- questions and marks --------------------------------------------------------------------------------------------


@special(marks.is_exporting, getattr(torch.compiler, "is_exporting", None))
def _is_exporting(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(tx.request.exporting)


@special(marks.is_dynamo_compiling)
def _is_dynamo_compiling(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(True)


special_by_name(_DECORATORS, "graph_break")(graph_broken)


@special(torch.compiler.cudagraph_mark_step_begin)
def _step_begins(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _NONE


def _marked_too_late(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB26")


special(dynamic.mark_dynamic, dynamic.maybe_mark_dynamic, dynamic.mark_unbacked)(_marked_too_late)
for _name in ("mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"):
    special_by_name(_DECORATORS, _name)(_marked_too_late)


@special(dynamic.mark_static)
def _mark_static(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The sizes of a tensor, an input or what the region has made, are fixed to what they are."""
    given = dict(zip(("tensor", "dims"), args, strict=False)) | kwargs
    given |= {{"t": "tensor", "index": "dims"}.get(name, name): value for name, value in kwargs.items()}
    tensor = given["tensor"].realize() if "tensor" in given else None
    if not isinstance(tensor, TensorValue):
        raise GraphBreak("QB03", "mark_static() of what is no tensor")
    shape = tensor.example.shape
    dims = _NONE if "dims" not in given else given["dims"].realize()
    wanted = _dims(dims, len(shape))
    for dim in wanted:
        size = shape[dim]
        if isinstance(size, torch.SymInt) and isinstance(size.node, Sym):
            try:
                tx.symbols.specialise(size.node)
            except DataDependentError:
                raise GraphBreak("QB02", "mark_static() of a size that only the data tells") from None
    return _NONE


special_by_name(_DECORATORS, "mark_static")(_mark_static)


def _dims(dims: Value, ndim: int) -> list[int]:
    if dims.is_const and dims.const() is None:
        return list(range(ndim))
    one = dims.is_const and type(dims.const()) is int
    found = [dims.const()] if one else [item.realize().const() for item in _items(dims)]
    if not all(type(dim) is int and -ndim <= dim < ndim for dim in found):
        raise GraphBreak("QB03", f"mark_static() of dimensions {found!r:.60}")
    return found


def _items(value: Value) -> list[Value]:
    items = getattr(value, "items", None)
    if not isinstance(items, list):
        raise GraphBreak("QB03", f"mark_static() of {display(value)}")
    return items


# --- settings of capture --------------------------------------------------------------------------------------------


@special(set_stance.__init__)
def _stance(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB03", "set_stance(), which is refused inside a compiled region")


def _guard_refusal(tx: Capture) -> None:
    """Whether breaks were errors as the region began, which it reads or puts back."""
    for at, whose in enumerate(("", " of torch._dynamo")):
        tx.guards.now(functools.partial(_refused, at), f"error_on_graph_break{whose}")


def _refused(at: int) -> bool | None:
    return marks.breaks_refused()[at]


@special(marks.refuse_breaks)
def _refuse_breaks(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _guard_refusal(tx)
    wanted = (args[0] if args else kwargs["wanted"]).realize()
    ours, theirs = tx.breaks_refused
    tx.breaks_refused = wanted.const(), theirs
    tx.side.call_later(marks.refuse_breaks, [wanted], {})
    return ConstantValue(ours)


@special_by_name("torch._dynamo.utils", "_get_error_on_graph_break")
def _breaks_refused(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _guard_refusal(tx)
    return ConstantValue(tx.breaks_refused[1])


@special_by_name("torch._dynamo.utils", "_set_error_on_graph_break")
def _refuse_breaks_by_torch(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _guard_refusal(tx)
    wanted = (args[0] if args else kwargs["value"]).realize()
    tx.breaks_refused = tx.breaks_refused[0], wanted.const()
    tx.side.call_later(sys.modules["torch._dynamo.utils"]._set_error_on_graph_break, [wanted], {})
    return _NONE


def _changes_the_compiler(what: str) -> Any:
    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise GraphBreak("QB03", what)

    return handler


special_by_name("torch", "compile")(_changes_the_compiler("torch.compile()"))
for _module, _name in (("compile_api.compile", "compile"), ("dynamo_capture.frontend", "disable")):
    special_by_name(_module, _name)(_changes_the_compiler(f"{_name}(), whose result is to be made once, outside"))
special(torch.compiler.reset)(_changes_the_compiler("torch.compiler.reset()"))
special_by_name("torch._dynamo", "reset")(_changes_the_compiler("torch._dynamo.reset()"))


@special_by_name("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder")
def _nested_region(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``torch.compiler.nested_compile_region`` makes of a call: the function is inlined."""
    return args[0].realize().call(tx, args[1:], kwargs)


# --- promises -------------------------------------------------------------------------------------------------------


def assumed_constant(tx: Capture, fn: types.FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a function of ``assume_constant_result()`` gives now; its arguments are guarded.

    Raises:
        GraphBreak: it has to be called by the program.
        ObservedError: it raises.
    """
    name = fn.__qualname__
    values = [value.realize() for value in (*args, *kwargs.values())]
    values = [ConstantValue(value.const()) if isinstance(value, SymValue) else value for value in values]
    if any(isinstance(value, TensorValue) for value in values):
        raise GraphBreak("QB03", f"{name}(), whose result is assumed to be constant, of a tensor")
    if tx.side or tx.graph.mutated_inputs():
        raise GraphBreak("QB03", f"{name}(), whose result is assumed to be constant, after changes that it may look at")
    real = [object_of(tx, value) for value in values]
    if any(obj is None and not value.is_const for obj, value in zip(real, values, strict=True)):
        raise GraphBreak("QB03", f"{name}(), whose result is assumed to be constant, of objects that the region makes")
    for value in values:
        pin(tx, value)
    named = dict(zip(kwargs, real[len(args) :], strict=True))
    with _disable_current_modes():
        result = tx.exact(fn, *real[: len(args)], **named)
    tx.guards.promised(f"the result of {name}() is assumed to be constant")
    return tx.from_python(result).realize()


def disabled_by_torch(fn: types.FunctionType, why: str) -> Any:
    """The handler of a function under PyTorch's ``disable()``.

    With ``recursive=False`` its own frame stays as it is, and what it calls is looked at.
    """
    if fn.__dict__.get("_torchdynamo_disable_recursive") is False:
        original = fn.__dict__.get("_torchdynamo_orig_callable")
        if isinstance(original, types.FunctionType):
            _native.mark(original.__code__, _native.SKIP)

    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return disabled_call(tx, args, kwargs, why)

    return handler
