"""Calls that eager refuses, or takes, by type and size of what they are given: compiled they are as in eager."""

from __future__ import annotations

import functools
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_map

import compile_api

aten = torch.ops.aten
COUNTS = torch.tensor([1, 2, 0])
TYPES = (torch.int64, torch.bool, torch.uint8, torch.float32, torch.float16, torch.float64, torch.complex64)


def softmax_gradients():
    for name, dtype in itertools.product(("_softmax_backward_data", "_log_softmax_backward_data"), TYPES):
        call = getattr(aten, name)
        for given, dim, shape in itertools.product(dict.fromkeys((dtype, torch.float32)), (1, 2), ((2, 3), (), (0, 3))):
            def program(x, call=call, dtype=dtype, given=given, dim=dim):
                return call(x.to(dtype), x.to(dtype), dim if x.ndim else 0, given)
            yield f"{name} of {dtype}, {given}, {dim}, {shape}", program, torch.ones(shape)
        for other in (torch.float64, torch.float16):
            yield (
                f"{name} of {dtype} and {other}",
                lambda x, call=call, dtype=dtype, other=other: call(x.to(dtype), x.to(other), 1, torch.float32),
                torch.ones(2, 3),
            )


def one_hots():
    for shape, classes in itertools.product(((), (0,), (3,), (2, 0)), (-1, 0, 1, 2, -2)):
        yield f"one_hot({shape}, {classes})", lambda x, n=classes: F.one_hot(x, n), torch.zeros(shape, dtype=torch.int64)


def repeats():
    x = torch.arange(6.0).view(2, 3)
    calls = {
        "all": lambda x, **kw: x.repeat_interleave(2, **kw),
        "rows": lambda x, **kw: x.repeat_interleave(2, 1, **kw),
        "negative": lambda x, **kw: x.repeat_interleave(-1, 1, **kw),
        "never": lambda x, **kw: x.repeat_interleave(0, 1, **kw),
        "scalar": lambda x, **kw: x[0, 0].repeat_interleave(3, 0, **kw),
        "counts": lambda x, **kw: x.repeat_interleave(x.new_tensor([1, 2, 0], dtype=torch.int64), 1, **kw),
    }
    for (name, call), size in itertools.product(calls.items(), (None, 0, 2, 3, 6, 12, -1)):
        kw = {} if size is None else {"output_size": size}
        yield f"repeat_interleave, {name}, {kw}", lambda x, call=call, kw=kw: call(x, **kw) + 1, x


def pixels():
    shapes = ((4, 0, 1), (1, 4, 0, 2), (0, 4, 2, 2), (0, 1, 2, 2), (1, 0, 2), (2, 4, 0, 0), (3, 0, 4), (0, 3, 3, 3), (4, 2, 2))
    for call, shape in itertools.product((F.pixel_shuffle, F.pixel_unshuffle), shapes):
        yield f"{call.__name__}{shape}", lambda x, call=call: call(x * 1, 2), torch.ones(shape, requires_grad=True)


CASES = {name: (program, x) for name, program, x in (*softmax_gradients(), *one_hots(), *repeats(), *pixels())}


def outcome(call, x):
    x = x.detach().clone().requires_grad_(x.requires_grad)
    try:
        result = call(x)
        if result.requires_grad:
            result.sum().backward()
    except Exception as error:
        return type(error), str(error).partition("(while")[0]
    return result.shape, result.dtype, result.detach(), x.grad


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    program, x = CASES[name]
    theirs = outcome(program, x)
    ours = outcome(compile_api.compile(program), x)
    assert ours[:2] == theirs[:2]
    if len(theirs) == 4:
        assert torch.equal(ours[2], theirs[2])
        assert (ours[3] is None) == (theirs[3] is None) and (ours[3] is None or torch.equal(ours[3], theirs[3]))


# ---- mistakes of a program: eager's error, where eager raises it, and no word of ours ----------------------------------

MISTAKES = {
    "addmm_": lambda x: x.clone().addmm_(torch.zeros(3, 5), torch.zeros(4, 4)),
    "baddbmm_": lambda x: x[None].clone().baddbmm_(torch.zeros(1, 3, 5), torch.zeros(1, 4, 4)),
    "masked_fill_": lambda x: x.clone().masked_fill_(torch.zeros(3, 5) > 0, 1.0),
    "index_add_": lambda x: x.clone().index_add_(0, torch.tensor([0, 1]), torch.zeros(3, 4)),
    "put_": lambda x: x.clone().put_(torch.tensor([0, 1]), torch.zeros(3)),
    "overlapping": lambda x: torch.gather(x, 0, torch.zeros(3, 4, dtype=torch.int64), out=x),
    "after compiled work": lambda x: (x.sin() * 2).exp().clone().addmm_(torch.zeros(3, 5), torch.zeros(4, 4)),
    "with gradients": lambda x: (x.requires_grad_().sin() * 2).addmm_(torch.zeros(3, 5), torch.zeros(4, 4)).sum(),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_eagers_error_and_nothing_else(name):
    x = torch.ones(3, 4)
    theirs = outcome(MISTAKES[name], x)
    compiled = compile_api.compile(MISTAKES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error", compile_api.errors.CompileWarning)
        for _ in range(2):
            assert outcome(compiled, x) == theirs and len(theirs) == 2


ERRORS = {
    f"{op.name} {op.variant_test_name}": op
    for op in common_methods_invocations.op_db
    if op.error_inputs_func is not None
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_pytorchs_own_database(name):
    """The calls that PyTorch's tests expect to fail: the same exception and text, and no warning of ours."""
    op = ERRORS[name]
    for case in op.error_inputs("cpu"):
        given = case.sample_input
        call = lambda *args, **kwargs: op(*args, **kwargs)
        theirs = _refusal(call, given)
        with warnings.catch_warnings():
            warnings.simplefilter("error", compile_api.errors.CompileWarning)
            assert _refusal(compile_api.compile(call), given) == theirs


def _refusal(call, given):
    try:
        call(given.input, *given.args, **given.kwargs)
    except Exception as error:
        return type(error), str(error)
    return None


TYPES_OF_ALL = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.complex64)
LISTS = (
    *common_methods_invocations.foreach_unary_op_db, *common_methods_invocations.foreach_binary_op_db,
    *common_methods_invocations.foreach_pointwise_op_db, *common_methods_invocations.foreach_reduce_op_db,
)  # fmt: skip
VARIANTS = {
    "one": [(op, op.op, {}) for op in common_methods_invocations.op_db],
    "in place": [(op, op.inplace_variant, {}) for op in common_methods_invocations.op_db if op.inplace_variant],
    "lists": [(op, op.method_variant, {"num_input_tensors": [2]}) for op in LISTS],
    "lists in place": [(op, op.inplace_variant, {"num_input_tensors": [2]}) for op in LISTS if op.inplace_variant],
}


#: Which eager computes of numbers alone that no gradient is asked of, and by another kernel otherwise.
TAKEN = {"nn.functional.max_pool1d"}


@pytest.mark.parametrize(
    "variant,dtype",
    [(v, t) for v, t in itertools.product(VARIANTS, TYPES_OF_ALL) if "lists" not in v or not t.is_floating_point],
    ids=str,
)
def test_types_that_eager_refuses(variant, dtype):
    """The operators of PyTorch's own databases, given numbers of a type that they have no kernel for."""
    refused = 0
    for op, call, base, given in operands(variant):
        change = lambda x: x.detach().to(dtype) if isinstance(x, torch.Tensor) and x.dtype == base else x
        args, kwargs = tree_map(change, given)
        program = lambda *args, call=call, **kwargs: call(*args, **kwargs)
        theirs = _raised(program, *copied((args, kwargs)))
        if theirs is not None:
            refused += 1
            assert _raised(compile_api.compile(program), *copied((args, kwargs))) == theirs, (op.name, theirs)
    assert refused >= 3


@functools.cache
def operands(variant):
    """The operators of a variant, each with a type that it takes and arguments of that."""
    found = []
    for op, call, settings in VARIANTS[variant]:
        base = torch.float32 if torch.float32 in op.dtypes else torch.int64
        if base in op.dtypes and op.name not in TAKEN:
            sample = list(op.sample_inputs("cpu", base, **settings))[-1]
            kwargs = {k: v for k, v in sample.kwargs.items() if k not in ("is_fastpath", "disable_fastpath")}
            found.append((op, call, base, ((sample.input, *sample.args), kwargs)))
    return found


def copied(values):
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values)


def _raised(call, args, kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error)
    return None
