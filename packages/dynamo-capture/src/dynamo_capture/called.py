"""What is known of a function of torch, or of a method by its name, whatever it is called with.

A graph asks it at every call, and a program calls few functions many times. It is kept for functions that live as long
as the process: those of torch, of Python's operators, and operators. It follows from the function's kind, its name and
its module, which the key has all; of any other callable it is found anew.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
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


def _under_autocast(given: Sequence[Any]) -> str | None:
    """It computes with products when it runs, which autocast then takes in its own type: no overload's types tell."""
    under = torch._C._is_any_autocast_enabled()
    return "under autocast, which has a part in how it computes" if under else None


def _with_phases(given: Sequence[Any], made_complex: bool = False) -> str | None:
    """Complex vectors that are given up to a factor: eager looks into the numbers and refuses a loss that the factor
    changes."""
    x = next((x for x in given if isinstance(x, torch.Tensor)), None)
    if x is None or not (x.requires_grad and torch.is_grad_enabled() and (made_complex or x.is_complex())):
        return None
    return "of complex vectors, whose gradient eager checks by its numbers"


def _untold_views(given: Sequence[Any]) -> str | None:
    return "whose results share their argument's memory and are no views for all that"


_LEFT_TO_EAGER: dict[str, Callable[[Sequence[Any]], str | None]] = {
    "linalg_pinv": _under_autocast, "linalg_pinv.atol_rtol_tensor": _under_autocast,
    "linalg_eig": partial(_with_phases, made_complex=True), "linalg_eigh": _with_phases, "_linalg_eigh": _with_phases,
    "linalg_svd": _with_phases, "_linalg_svd": _with_phases, "svd": _with_phases,
    "unsafe_split": _untold_views, "unsafe_chunk": _untold_views, "unsafe_split_with_sizes": _untold_views,
    "unsafe_split.Tensor": _untold_views,
}  # fmt: skip


class Called(NamedTuple):
    """The facts of one function.

    Attributes:
        asserts_data: it raises by a tensor's value.
        takes_plain_bools: it is an operator of tensors, whose flags (``is_causal=x.shape[1] > 1``) are no symbols.
        only_computes: it does nothing but compute: a function of torch or Python's operators.
        reads_offset: it takes the place of a tensor in its memory as a number.
        left_to_eager: given its arguments, why it is not recorded, or None; None where there is no such reason.
        may_give_argument: it may give the argument itself, and never writes.
        is_in_c: it is an operator in C: a function of PyTorch's, a method of its tensors, or one of Python's.
    """

    asserts_data: bool
    takes_plain_bools: bool
    only_computes: bool
    reads_offset: bool
    left_to_eager: Callable[[Sequence[Any]], str | None] | None
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
        left_to_eager=_LEFT_TO_EAGER.get(name.removesuffix(".default")),
        may_give_argument=name in _MAY_RETURN_ARGUMENT,
        is_in_c=_is_in_c(fn),
    )
