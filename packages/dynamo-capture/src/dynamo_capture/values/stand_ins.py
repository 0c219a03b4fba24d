"""Functions of torch that are captured as a Python function of ours with the same meaning.

They are C functions with Python results, or ask for PyTorch's compiler when they run eagerly.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _foreach_utils

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.functions import FunctionValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special, special_by_name

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["associative_scan", "group_tensors"]


def group_tensors(
    tensorlistlist: Sequence[Sequence[torch.Tensor | None]], with_indices: bool = False
) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[torch.Tensor | None]], list[int]]]:
    """The columns of some lists of tensors, by device and dtype of the tensor in the first list."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(tensorlistlist[0]):
        key = (first.device, first.dtype)  # type: ignore[union-attr]
        if key not in groups:
            groups[key] = ([[] for _ in tensorlistlist], [])
        lists, indices = groups[key]
        for group, tensors in zip(lists, tensorlistlist):
            if tensors:  # a list may be empty, as the maxima of an Adam without amsgrad
                group.append(tensors[index])
        if with_indices:
            indices.append(index)
    return {key: groups[key] for key in order_of_groups(tuple(groups))}


def order_of_groups(keys: tuple[tuple[torch.device, torch.dtype], ...]) -> tuple[tuple[torch.device, torch.dtype], ...]:
    """Groups in eager's order, which is that of a C++ hash table: it is asked with empty tensors."""
    if len(keys) < 2:
        return keys
    tensors = [torch.empty(0, device=device, dtype=dtype) for device, dtype in keys]
    return tuple(_foreach_utils._group_tensors_by_device_and_dtype([tensors], True))  # type: ignore[list-item,arg-type]


@special(order_of_groups)
def _order(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.from_python(order_of_groups(args[0].realize().const()))


@special(_foreach_utils._group_tensors_by_device_and_dtype)
def _group(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.from_python(group_tensors).realize().call(tx, args, kwargs)


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """Inclusive scan of ``xs`` (a tensor, or a tuple or list of them) along ``dim``.

    Each of log2(size) rounds combines every element with the one as far to its left as rounds before reached (Hillis
    and Steele, "Data parallel algorithms", 1986). ``combine_fn`` sees the scanned dimension first.
    """
    single = isinstance(xs, torch.Tensor)
    parts = [x.movedim(dim, 0) for x in ([xs] if single else xs)]
    if reverse:
        parts = [x.flip(0) for x in parts]
    size, reach = parts[0].shape[0], 1
    while reach < size:
        left, right = [x[: size - reach] for x in parts], [x[reach:] for x in parts]
        if single:
            merged = [combine_fn(left[0], right[0])]
        elif isinstance(xs, tuple):
            merged = combine_fn(tuple(left), tuple(right))
        else:
            merged = combine_fn(left, right)
        parts = [torch.cat([x[:reach], y]) for x, y in zip(parts, merged, strict=True)]
        reach *= 2
    if reverse:
        parts = [x.flip(0) for x in parts]
    parts = [x.movedim(0, dim) for x in parts]
    return parts[0] if single else tuple(parts) if isinstance(xs, tuple) else parts


@special_by_name("torch._higher_order_ops.associative_scan", "associative_scan")
def _scan(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("combine_fn", "xs", "dim", "reverse", "combine_mode"), args, strict=False)) | kwargs
    xs = given["xs"].realize()
    leaves: list[Value] = [xs] if isinstance(xs, TensorValue) else []
    if isinstance(xs, (TupleValue, ListValue)):
        leaves = [item.realize() for item in xs.items]
    examples = [leaf.example for leaf in leaves if isinstance(leaf, TensorValue)]
    mode = given["combine_mode"].realize().const() if "combine_mode" in given else "pointwise"
    if not examples or len(examples) < len(leaves) or (mode == "pointwise" and examples[0].device.type == "cpu"):
        raise GraphBreak("QB03", "associative_scan")  # nested containers, or what eager refuses
    return tx.from_python(associative_scan).realize().call(tx, args, kwargs)


@special(getattr(torch, "_check_with", None))
def _check(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A condition that holds, by guards or in every call; PyTorch's own way to ask begins with an import of sympy."""
    condition = (args[1] if len(args) > 1 else kwargs["cond"]).realize()
    if isinstance(condition, SymValue) and tx.symbols.is_open(condition.example.node.expr):
        return _check_data(tx, condition, args, kwargs)
    if condition.pytype is bool and condition.truth(tx):
        return ConstantValue(None)
    return tx.interpreted(FunctionValue(torch._check_with), args, kwargs)


@special(getattr(torch, "_check_tensor_all", None))
def _check_tensor_all(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch._check_tensor_all(cond, message)``: the frame is run again where it does not hold, and raises then."""
    condition = (args[0] if args else kwargs["cond"]).realize()
    if not isinstance(condition, TensorValue) or condition.example.dtype is not torch.bool:
        return tx.interpreted(FunctionValue(torch._check_tensor_all), args, kwargs)  # which raises
    brk = GraphBreak("QB02", "torch._check_tensor_all of what only the data tells")
    if tx.may_be_caught():
        raise brk
    if condition.example.ndim:
        condition = tx.graph_call(torch.all, [condition], {}).realize()
    tx.assume(cast(TensorValue, condition), True, brk)
    return ConstantValue(None)


@builtin(torch._assert_async)
def _assert_async(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch._assert_async(condition, message)``: on a CPU, whose operator raises at once, the frame is run again
    where it does not hold. On a GPU the operator ends the process, wherever it is called: there the graph breaks."""
    brk = GraphBreak("QB02", "torch._assert_async, which raises by a tensor's value")
    given = dict(zip(("input", "assert_msg"), args, strict=False)) | kwargs
    condition = given.get("input", ConstantValue(None)).realize()
    one = isinstance(condition, TensorValue) and condition.example.numel() == 1
    if not one or condition.example.device.type != "cpu" or tx.may_be_caught():  # type: ignore[attr-defined]
        raise brk
    tx.assume(cast(TensorValue, tx.graph_call(torch.all, [condition], {}).realize()), True, brk)
    return ConstantValue(None)


def _check_data(tx: Capture, condition: SymValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A condition that only the data tells: a fact from here on, which the graph checks when it runs."""
    kind = args[0].realize()
    message = (kwargs.get("message") or (args[2] if len(args) > 2 else ConstantValue(None))).realize()
    if kind.real() is not RuntimeError:
        raise GraphBreak("QB02", "a check of what only the data tells")
    text: Any = _DEFAULT_MESSAGE if message.pytype is type(None) else message.call(tx, [], {}).realize().const()
    if not isinstance(text, str):
        raise GraphBreak("QB02", "a check whose message is no text")
    node = tx.graph.call_node(torch.ops.aten._assert_scalar.default, [condition.node, text])
    node.meta["spec"] = None
    tx.symbols.assume(condition.example.node.expr)
    return ConstantValue(None)


#: Of ``torch._check``.
_DEFAULT_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


@special(copy.deepcopy)
def _deepcopy(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Numbers and texts are their own copies; their addresses, which the function begins with, are not known."""
    original = args[0].realize() if args else None
    memo = args[1] if len(args) > 1 else kwargs.get("memo")
    if type(original) is ConstantValue and original.pytype in copy._deepcopy_dispatch:  # type: ignore[attr-defined]
        if memo is None or memo.realize().source is None:  # one of the program's own may hold anything
            return original
    if isinstance(original, TensorValue) and memo is None and _is_plain(tx, original):
        return tx.graph_call("clone", [original], {}, method=True)
    return tx.interpreted(FunctionValue(cast(types.FunctionType, copy.deepcopy)), args, kwargs)


def _is_plain(tx: Capture, tensor: TensorValue) -> bool:
    """Whether a tensor is its memory alone, so that a clone is a deep copy of it: no gradient, no attributes."""
    example, real = tensor.example, tensor.real_tensor
    if tensor.cls is not torch.Tensor or example.requires_grad or example.is_inference() or not example.is_contiguous():
        return False
    if any(written is tensor for written in tx.side.tensors_written()):
        return False
    if real is None:
        return not any(isinstance(inp.value, TensorValue) and _has_bits(inp.real) for inp in tx.graph.input_list())
    if not _alone(real):
        return False
    if tensor.source is not None:
        tx.guards.predicate(tensor.source, _alone, f"{tensor.source} has no attributes and no gradient")
    return True


def _has_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _alone(tensor: torch.Tensor) -> bool:
    return not tensor.__dict__ and tensor.grad is None and not _has_bits(tensor)
