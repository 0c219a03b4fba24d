"""Data that eager refuses is refused by compiled programs, whether they use the result or not.

The calls are found by trial: every ATen operator that the samples of PyTorch's database come to is given damaged data, and
where eager raises, so must the compiled call, with the same first line. Some kernels of eager's crash on such data
instead, so each operator is tried in a process of its own. Every eighth operator is tried here;
``python test_refused_data.py`` tries them all.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import compile_api

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

INTS = (-100, 10**6, 0, -1, 3)
FLOATS = (float("nan"), float("inf"), -5.0, 1e30, 0.0, 1.0)
#: Read as numbers, they are no operands of a graph; a call of a function of PyTorch's in Python.
NOT_IN_GRAPHS = ("linspace", "logspace", "_linalg_check_errors", "_linear_cross_entropy")


class Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded(operators: Any, most: int = 3) -> dict[Any, list[Any]]:
    """The functional ATen calls that samples come to, ``most`` of each operator."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for op in operators:
        for dtype in {torch.float32, torch.int64} & op.dtypes:
            for sample in list(op.sample_inputs("cpu", dtype))[:4]:
                try:
                    with Recorded() as mode:
                        op.op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
                for func, args, kwargs in mode.calls:
                    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
                    if len(found[func]) < most and sum(x.numel() for x in tensors) < 1000 and _is_functional(func):
                        found[func].append((args, kwargs))
    return found


def _is_functional(func: Any) -> bool:
    returns = func._schema.returns
    return (
        not func._schema.is_mutable
        and bool(returns)
        and returns[0].alias_info is None
        and torch.Tag.nondeterministic_seeded not in func.tags
        and not any(name in str(func) for name in NOT_IN_GRAPHS)
    )


def damaged(call: Any) -> Iterator[Any]:
    """The call with one tensor full of one number."""
    count = sum(isinstance(x, torch.Tensor) for x in tree_leaves(call))
    for at in range(count):
        for i in range(max(len(INTS), len(FLOATS))):
            places = iter(range(count))

            def put(x: Any, at: int = at, i: int = i, places: Any = places) -> Any:
                if not isinstance(x, torch.Tensor):
                    return x
                values = FLOATS if x.is_floating_point() else INTS if x.dtype in (torch.int64, torch.int32) else ()
                return torch.full_like(x, values[i]) if next(places) == at and i < len(values) else x.detach().clone()

            yield tree_map(put, call)


def outcome(run: Any, call: Any) -> Any:
    try:
        run(torch.ones(3), *tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call))
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return None


def differences(func: Any, calls: list[Any]) -> tuple[int, list[str]]:
    """How many kinds of errors eager gave for an operator, and where a compiled call gives none or another."""

    def unused(x, args, kwargs):
        func(*args, **kwargs)
        return x + 1

    def used(x, args, kwargs):
        return x + 1, func(*args, **kwargs)

    found, kinds = [], Counter()
    for call in calls:
        if outcome(used, call) is not None:
            continue
        for bad in damaged(call):
            expected = outcome(used, bad)
            if expected is None or "alloc" in expected[1] or "INTERNAL" in expected[1] or kinds[expected[0]] >= 2:
                continue
            kinds[expected[0]] += 1
            for program in (used, unused):
                compile_api.reset()
                compiled = compile_api.compile(program)
                outcome(compiled, call)
                got = outcome(compiled, bad)
                if got is None or got[0] != expected[0]:
                    found.append(f"{func}, result {program.__name__}: {got}, eager {expected}")
    return sum(kinds.values()), found


def in_its_own_process(func: Any, calls: list[Any]) -> tuple[int, list[str]] | None:
    """:func:`differences`; None where the process crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            torch.set_num_threads(1)  # GNU OpenMP would wait for the threads that the parent has
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(differences(func, calls), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def check(operators: Any) -> tuple[int, list[str]]:
    warnings.simplefilter("ignore")
    refused, wrong = 0, []
    for func, calls in sorted(recorded(operators).items(), key=lambda item: str(item[0])):
        kinds, found = in_its_own_process(func, calls) or (0, [])
        refused += kinds > 0
        wrong += found
    return refused, wrong


def test_data_that_operators_refuse():
    refused, wrong = check(op_db[::8])
    assert refused > 5
    assert not wrong, "\n".join(wrong)


WRONG = {
    "an index": lambda y, i: y[i],
    "an index of a column": lambda y, i: y[:, i],
    "index_select": lambda y, i: y.index_select(0, i),
    "gather": lambda y, i: y.gather(0, i[:, None].expand(2, 3)),
    "an index into equal elements": lambda y, i: torch.ones(3)[i],
    "gather of an expanded number": lambda y, i: y[0, 0].expand(3).gather(0, i) * 2,
    "sum of expanded numbers": lambda y, i: y[0, 0].expand(3)[i].sum(),
    "embedding": lambda y, i: F.embedding(i, y),
    "embedding_bag": lambda y, i: F.embedding_bag(i[None], y),
    "one_hot": lambda y, i: F.one_hot(i, 3),
    "one_hot of a negative": lambda y, i: F.one_hot(-i, 3),
    "index_put": lambda y, i: y.clone().index_put_((i,), y[:2]),
    "index_add": lambda y, i: y.index_add(0, i, y[:2]),
    "scatter": lambda y, i: y.scatter(0, i[:, None].expand(2, 3), y),
    "take": lambda y, i: y.take(i * 5),
    "an integer divided": lambda y, i: i // (i * 0),
    "a remainder": lambda y, i: i % (i * 0),
    "cross_entropy": lambda y, i: F.cross_entropy(y[:2], i),
    "binary_cross_entropy": lambda y, i: F.binary_cross_entropy(y * 5, y * 5),
    "cholesky": lambda y, i: torch.linalg.cholesky(y - y - 1),
    "inv": lambda y, i: torch.linalg.inv(y * 0),
    "solve": lambda y, i: torch.linalg.solve(y * 0, y),
    "eigh": lambda y, i: torch.linalg.eigh(y * float("nan")),
    "svd": lambda y, i: torch.linalg.svd(y * float("nan")),
    "max_unpool": lambda y, i: F.max_unpool1d(y[None], (y[None] * 0 + 50).long(), 2),
}


@pytest.mark.parametrize("form", ["used", "unused", "in try", "symbolic", "nothing else"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_data(name, form):
    call = WRONG[name]

    def program(x, i):
        y = x.sin()
        if form == "nothing else":
            call(y, i)
            return True
        if form == "used":
            return call(y, i)
        if form == "in try":
            try:
                call(y, i)
            except Exception:
                return y * 3
            return y * 2
        call(y, i)
        return y * 2

    x, i = torch.randn(3, 3), torch.tensor([0, 7])
    compiled = compile_api.compile(program, dynamic=True if form == "symbolic" else None)
    if form == "in try":
        torch.testing.assert_close(compiled(x, i), program(x, i))
        return
    with pytest.raises(Exception) as expected:
        program(x, i)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            compiled(x, i)
        assert str(found.value).partition("\n")[0] == str(expected.value).partition("\n")[0]


def test_unused_calls_with_good_data():
    """They are made, beside the program's own kernels and without leaving any of it to eager."""

    def program(x, i):
        x.index_select(0, i)
        F.cross_entropy(x[:2], i)
        return x + 1, x * 2

    compiled = compile_api.compile(program)
    x, i = torch.randn(3, 4), torch.tensor([0, 2])
    for ours, eager in zip(compiled(x, i), program(x, i), strict=True):
        assert torch.equal(ours, eager)
    report = compiled.report()
    assert not report.fallbacks and not report.breaks
    ops = [op for kernel in report.kernels for op in kernel.ops]
    assert "index" in ops and "gather" in ops


def test_gradients_beside_unused_calls():
    def program(x, i):
        x.gather(0, i[:, None].expand(2, 4))
        return (x.sin() * 2).sum(), x.cos()

    compiled = compile_api.compile(program)
    x, i = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 2])
    (ours,), (eager,) = (torch.autograd.grad(fn(x, i)[0] + fn(x, i)[1].sum(), x) for fn in (compiled, program))
    torch.testing.assert_close(ours, eager)
    with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
        compiled(x, i + 1)
    assert not compiled.report().fallbacks


if __name__ == "__main__":
    refused, wrong = check(op_db)
    print(refused, "operators refuse data", *wrong, sep="\n")
    sys.exit(bool(wrong))
