"""What a tensor is asked about itself that its abstract stand-in does not know: versions, views, bits, leaves.

The stand-in is made of the metadata that a guard checks. Whatever else a tensor can tell is read from the real one,
with a guard of its own; or the graph breaks, so that the program asks the real tensor; or the frame runs as it is,
where the tensors that compiled code makes would tell something else than eager's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.versions import version_of
from prims.spec import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.values.tensor import TensorValue

__all__ = ["STATE", "has_names", "may_be_copied", "tensor_state"]

#: Bits of an input's dispatch keys, which are guarded.
_KEYS = frozenset(("is_conj", "is_neg", "is_inference"))
#: Those of them that computing may set.
_COMPLEX = frozenset(("is_conj", "is_neg"))
#: What gives the tensor itself where it does not have a bit, and a copy of it where it has: the question for the bit.
_RESOLVES = {
    spelling: question
    for name, question in (("resolve_conj", "is_conj"), ("resolve_neg", "is_neg"))
    for packet in (getattr(torch.ops.aten, name),)
    for spelling in (name, getattr(torch, name), packet, packet.default)
}
_AUTOGRAD = frozenset(("is_leaf", "grad_fn", "output_nr", "retains_grad"))
_COUNTERS = frozenset(("_version", "_base", "_is_view", "_use_count", "_cdata"))
#: The attributes and methods without arguments that :func:`tensor_state` answers.
STATE = _KEYS | _AUTOGRAD | _COUNTERS


_NAMES = hasattr(torch.Tensor, "has_names")


def has_names(tensor: torch.Tensor) -> bool:
    """Whether a tensor's dimensions have names, which graphs know nothing of (up to PyTorch 2.12; a dispatch key, which
    is guarded)."""
    return _NAMES and tensor.has_names()


def tensor_state(tx: Capture, tensor: TensorValue, name: str) -> Value:
    """``tensor.name``, or ``tensor.name()`` where that is a method.

    Raises:
        GraphBreak: only the real tensor can tell.
    """
    if name in _KEYS:
        return ConstantValue(_key(tx, tensor, name))
    if name in _AUTOGRAD:
        return _autograd(tx, tensor, name)
    if name == "_is_view" and tensor.real_tensor is None and not _any_input(tx, "is_inference"):
        return ConstantValue(tensor.example._is_view())
    changed = tensor.real_tensor is None or tensor.example.is_inference() or tensor.example._version
    raise GraphBreak("QB06", f"Tensor.{name}", leaves="callers" if changed else None)


def may_be_copied(tx: Capture, fn: Any, tensor: TensorValue) -> bool:
    """Whether a function that gave a tensor's stand-in may give a copy of the tensor: the stand-in has no bits."""
    question = _RESOLVES.get(fn)
    if question is None or question == "is_conj" and not tensor.example.dtype.is_complex:
        return False
    if tensor.real_tensor is not None:
        return bool(getattr(tensor.real_tensor, question)())
    return question == "is_conj" or _any_input(tx, question) or any(map(_is_complex, tx.graph.graph.nodes))


def _any_input(tx: Capture, question: str) -> bool:
    from dynamo_capture.values.tensor import TensorValue

    return any(isinstance(inp.value, TensorValue) and getattr(inp.real, question)() for inp in tx.graph.input_list())


def _key(tx: Capture, tensor: TensorValue, name: str) -> bool:
    if tensor.real_tensor is not None:
        return bool(getattr(tensor.real_tensor, name)())
    if _any_input(tx, name):
        # What is computed of such a tensor may be such a tensor, which its stand-in is not.
        raise GraphBreak("QB06", f"Tensor.{name}() of what is computed of such a tensor", leaves="callers")
    if name in _COMPLEX and any(map(_is_complex, tx.graph.graph.nodes)):
        # Eager conjugates by a bit, which the imaginary part of the result has as a sign; stand-ins have none.
        raise GraphBreak("QB06", f"Tensor.{name}() beside complex numbers", leaves="callers")
    return bool(getattr(tensor.example, name)())


def _is_complex(node: Node) -> bool:
    made = node.meta.get("spec")
    specs = made if type(made) is tuple else (made,)
    return any(isinstance(spec, TensorSpec) and spec.dtype.is_complex for spec in specs)


class GradientFunctionValue(Value):
    """``tensor.grad_fn`` of a tensor that has one: there is one is all that is known of it.

    What compiled code computes has other ones than in eager, as far as the program looks into them.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        self.source = None
        self.tensor = tensor

    def _break(self, what: str) -> GraphBreak:
        computed = self.tensor.real_tensor is None or version_of(self.tensor.example)
        return GraphBreak("QB06", f"{what} of the grad_fn of a tensor", leaves="callers" if computed else None)

    @property
    def pytype(self) -> type:
        raise self._break("the type")

    def truth(self, tx: Capture) -> bool:
        return True

    def getattr(self, tx: Capture, name: str) -> Value:
        raise self._break(f"attribute {name!r}")

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        raise self._break(f"attribute {name!r}")

    def key(self, tx: Capture) -> Any:
        raise self._break("the hash")

    def children(self) -> Iterator[Value]:
        yield self.tensor

    def reconstruct(self, cg: CodeGen) -> None:
        # A local variable, which the program may never look at: of what the graph computes it is not eager's.
        if self.tensor.real_tensor is None or version_of(self.tensor.example):
            raise GraphBreak("QB10", self.describe())
        cg.load(self.tensor)
        cg.load_attr("grad_fn")

    def describe(self) -> str:
        return "the grad_fn of a tensor"


def _autograd(tx: Capture, tensor: TensorValue, name: str) -> Value:
    real, example = tensor.real_tensor, tensor.example
    if id(tensor) in tx.led:  # guarded when they were set
        return ConstantValue({"is_leaf": True, "grad_fn": None, "output_nr": 0, "retains_grad": False}[name])
    if real is None or not real.requires_grad or version_of(example):
        value = getattr(example, name)
        if name == "grad_fn" and value is not None:
            return GradientFunctionValue(tensor)
        return ConstantValue(value)
    leaf = real.is_leaf
    if tensor.source is not None:
        text = f"{tensor.source} is {'a' if leaf else 'no'} leaf of the autograd graph"
        tx.guards.predicate(tensor.source, functools.partial(_is_leaf_as, leaf), text)
    if name == "is_leaf":
        return ConstantValue(leaf)
    if leaf:
        return ConstantValue({"grad_fn": None, "output_nr": 0, "retains_grad": False}[name])
    if name == "grad_fn":
        return GradientFunctionValue(tensor)
    raise GraphBreak("QB06", f"attribute {name!r} of a tensor")


def _is_leaf_as(leaf: bool, found: Any) -> bool:
    return found.is_leaf is leaf
