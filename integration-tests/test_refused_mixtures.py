"""Calls of PyTorch's operators in which one operand has another type or shape than the others: refused as in eager.

The operands are those of PyTorch's own database. What the metadata of a call refuses is left to eager, so that only
what they take, and eager does not, is compiled: that has to raise too.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import compile_api
from prims.errors import DataDependentError
from prims.spec import abstract
from prims.spec.tensor import AbstractMode

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2
TYPES = (torch.float64, torch.bfloat16, torch.int64, torch.bool)
#: Which eager computes by another kernel where no gradient is asked of them.
LEFT_OUT = {"nn.functional.max_pool1d"}
#: Which read memory that is not theirs, and end the process, in eager.
LEFT_OUT |= {"lu_unpack", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}
LEFT_OUT |= {"_segment_reduce"}
#: Of PyTorch's own decompositions alone; compiled it takes values and masks that broadcast, which eager refuses.
LEFT_OUT |= {"_unsafe_masked_index_put_accumulate"}
#: Words of errors about values, and of what eager does not refuse, but fails in.
OF_VALUES = ("out of bounds", "out of range", "INTERNAL ASSERT")


def changes(x):
    """The operand with another type or shape."""
    for dtype in TYPES:
        if x.dtype != dtype:
            yield x.to(dtype)
    if x.ndim:
        yield x[:0]
        yield x[:1]
        yield torch.cat([x, x[:1]]) if x.shape[0] else x.new_zeros((1, *x.shape[1:]))
        yield x[..., :-1]
        yield x.sum(0).to(x.dtype)
    yield x[None]


def calls(op):
    """A function of the operands and operands of which one is changed."""
    base = torch.float32 if torch.float32 in op.dtypes else torch.int64
    if base not in op.dtypes:
        return
    samples = list(itertools.islice(op.sample_inputs("cpu", base), SAMPLES))
    for call, sample in itertools.product(filter(None, (op.op, op.inplace_variant)), samples):
        flat, tree = tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in flat):
            continue
        flat = [x.detach() if isinstance(x, torch.Tensor) else x for x in flat]
        for place, operand in enumerate(flat):
            if isinstance(operand, torch.Tensor):
                for changed in changes(operand):
                    yield call, tree, [*flat[:place], changed, *flat[place + 1 :]]


def error_of(call, tree, flat):
    """What a call on copies of its operands raises."""
    args, kwargs = tree_unflatten([x.clone() if type(x) is torch.Tensor else x for x in flat], tree)
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    return None


def is_taken(call, tree, flat):
    args, kwargs = tree_unflatten([abstract(x) if isinstance(x, torch.Tensor) else x for x in flat], tree)
    try:
        with AbstractMode():
            call(*args, **kwargs)
    except DataDependentError:
        return False  # a graph ends before it
    except Exception:
        return False
    return True


@pytest.mark.parametrize("op", [op for op in op_db if op.name not in LEFT_OUT], ids=lambda op: op.formatted_name)
def test_one_operand_of_another_kind(op):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for call, tree, flat in calls(op):
        theirs = error_of(call, tree, flat)
        if theirs is None or any(words in str(theirs) for words in OF_VALUES) or not is_taken(call, tree, flat):
            continue
        compile_api.reset()
        compiled = compile_api.compile(lambda *args, call=call, **kwargs: call(*args, **kwargs))
        mine = error_of(compiled, tree, flat)
        assert type(mine) is type(theirs), (theirs, flat, compiled.report().verdict)


INDICES = {
    "index_add": lambda x, i, y: x.index_add(0, i, y),
    "index_add_": lambda x, i, y: x.clone().index_add_(0, i, y),
    "index_add of int32": lambda x, i, y: x.index_add(0, i.int(), y),
    "index_copy": lambda x, i, y: x.index_copy(0, i, y),
    "index_copy_": lambda x, i, y: x.clone().index_copy_(0, i, y),
    "index_select": lambda x, i, y: x.index_select(0, i),
    "index_reduce": lambda x, i, y: x.index_reduce(0, i, y, "amax"),
    "gather": lambda x, i, y: x.gather(0, i[:, None].expand(3, 2)),
    "scatter": lambda x, i, y: x.scatter(0, i[:, None].expand(3, 2), y),
    "scatter_add": lambda x, i, y: x.scatter_add(0, i[:, None].expand(3, 2), y),
    "embedding": lambda x, i, y: torch.nn.functional.embedding(i, x),
}


@pytest.mark.parametrize("place", [-1, -4, -5, 4])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", INDICES)
def test_places_that_do_not_count_from_the_end(name, gradients, place):
    """Where eager refuses a negative place, so does what is compiled, in its kernel."""
    warnings.simplefilter("ignore")
    given = torch.randn(4, 2, requires_grad=gradients), torch.tensor([1, 0, 2]), torch.randn(3, 2)
    compiled = compile_api.compile(INDICES[name])
    torch.testing.assert_close(compiled(*given), INDICES[name](*given))
    assert compiled.report().verdict == "compiled"
    given[1][1] = place
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        INDICES[name](*given)
    with pytest.raises(type(theirs.value)):
        compiled(*given)
