"""What is known of a function of torch, or of a method by its name, whatever it is called with.

A graph asks it at every call, and a program calls few functions many times. It is kept for functions that live as long
as the process: those of torch, of Python's operators, and operators. It follows from the function's kind, its name and
its module, which the key has all; of any other callable it is found anew.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import torch

__all__ = ["Called", "facts_of"]

_ASSERTS_DATA = frozenset((
    "_assert_async", "_assert_async.default", "_assert_async.msg", "_functional_assert_async",
    "_functional_assert_async.msg",
))  # fmt: skip
_READS_OFFSET = frozenset(
    f"{name}{overload}" for name in ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter",
                                     "storage_offset", "sym_storage_offset") for overload in ("", ".default")
)  # fmt: skip
#: Functions that give the argument itself when there is nothing to do, and never write.
_MAY_RETURN_ARGUMENT = frozenset(
    ("contiguous", "to", "float", "double", "half", "bfloat16", "int", "long", "bool", "type_as", "expand_as", "cpu",
     "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "positive",
     "resolve_conj", "resolve_neg", "requires_grad_", "type", "as_tensor", "conj", "real", "flatten", "ravel",
     "reshape", "squeeze", "dim", "size", "stride", "numel", "is_contiguous", "is_floating_point", "is_complex",
     "element_size", "get_device", "has_torch_function_unary", "pos", "getattr", "is_grad_enabled")
)  # fmt: skip


class Called(NamedTuple):
    """The facts of one function.

    Attributes:
        asserts_data: it raises by a tensor's value.
        takes_plain_bools: it is an operator of tensors, whose flags (``is_causal=x.shape[1] > 1``) are no symbols.
        only_computes: it does nothing but compute: a function of torch or Python's operators.
        reads_offset: it takes the place of a tensor in its memory as a number.
        may_give_argument: it may give the argument itself, and never writes.
        is_in_c: it is an operator in C: a function of PyTorch's, a method of its tensors, or one of Python's.
    """

    asserts_data: bool
    takes_plain_bools: bool
    only_computes: bool
    reads_offset: bool
    may_give_argument: bool
    is_in_c: bool


#: By the identity of a function, or a method's name: the function, its name and module, and the facts.
_FACTS: dict[Any, tuple[Any, Any, Any, Called]] = {}
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
#: Modules in C all of whose functions are operators.
_OPERATOR_MODULES = frozenset(("_operator", "torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special"))


def facts_of(fn: Any) -> Called:
    """The facts of a function, or of a method by its name."""
    if type(fn) is str:
        known = _FACTS.get(fn)
        if known is None:
            known = _FACTS[fn] = fn, None, None, _found(fn)
        return known[3]
    known = _FACTS.get(id(fn))
    if known is not None and known[1] == fn.__name__ and known[2] == fn.__module__:
        return known[3]
    facts = _found(fn)
    if _lives_on(fn):
        _FACTS[id(fn)] = fn, fn.__name__, getattr(fn, "__module__", None), facts
    return facts


def _lives_on(fn: Any) -> bool:
    """Whether a function may be kept: it lives as long as the process."""
    kind = type(fn)
    if kind is types.BuiltinFunctionType:
        return type(fn.__self__) is types.ModuleType or _is_of_torch_itself(fn)
    if kind is types.FunctionType:
        return _is_torchs(fn)
    return kind in _OPERATORS and fn.__module__ is not None


def _is_in_c(fn: Any) -> bool:
    """Whether it is an operator in C: a function of PyTorch's, a method of its tensors, or one of Python's."""
    if type(fn) is str:
        return type(vars(torch._C.TensorBase).get(fn)) in _DESCRIPTORS and fn not in vars(torch.Tensor)
    if type(fn) is torch._ops.OpOverload:
        return fn.namespace == "aten"
    if type(fn) is not types.BuiltinFunctionType:
        return False
    return fn.__module__ in _OPERATOR_MODULES or _is_of_torch_itself(fn)


def _is_of_torch_itself(fn: Any) -> bool:
    """Whether it is an operator of the module ``torch``."""
    return getattr(torch._C._VariableFunctions, fn.__name__, None) is fn


def _is_torchs(fn: Any) -> bool:
    return str(fn.__module__).partition(".")[0] == "torch"


def _found(fn: Any) -> Called:
    name = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
    module = getattr(fn, "__module__", None)
    if isinstance(fn, torch._ops.OpOverload):
        only_computes = fn.namespace == "aten"
    else:
        only_computes = isinstance(fn, str) or str(module).startswith(("torch", "_operator", "None"))
    return Called(
        asserts_data=getattr(fn, "__name__", "") in _ASSERTS_DATA,
        takes_plain_bools=module not in ("_operator", "math") and not name.startswith(("sym_", "_check")),
        only_computes=only_computes,
        reads_offset=name in _READS_OFFSET,
        may_give_argument=name in _MAY_RETURN_ARGUMENT,
        is_in_c=_is_in_c(fn),
    )
