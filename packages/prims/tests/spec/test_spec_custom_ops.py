"""Metadata of operators that a program brings with it, and the functional twins of those that write."""

from __future__ import annotations

import pytest
import torch

from prims.errors import Unsupported
from prims.spec import SymbolContext, TensorSpec, infer
from prims.twins import functional_twin, run_of_twin, twin_form, twin_of, written_arguments

LIBRARY = torch.library.Library("prims_test", "DEF")
CPU = torch.device("cpu")


def _define(schema, function, **more):
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CPU")
    for key, kernel in more.items():
        LIBRARY.impl(name, kernel, key)
    return getattr(torch.ops.prims_test, name).default


def _accumulate(x, total, *, alpha=1.0):
    total.add_(x, alpha=alpha)
    return x * 2


def _both(xs, y):
    for x in xs:
        x.add_(1)
    y.mul_(2)


accumulate = _define("accumulate(Tensor x, Tensor(a!) total, *, float alpha=1.0) -> Tensor", _accumulate)
torch.library.register_fake(
    "prims_test::accumulate", lambda x, total, *, alpha=1.0: torch.empty_like(x, dtype=torch.float64), lib=LIBRARY
)
both = _define("both(Tensor(a!)[] xs, Tensor(b!) y) -> ()", _both)
chain = _define("chain(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y))
by_meta = _define("by_meta(Tensor x, int n) -> Tensor", lambda x, n: x.repeat(n), Meta=lambda x, n: x.repeat(n))
bare = _define("bare(Tensor x) -> Tensor", lambda x: x.clone())


def spec(*shape, dtype=torch.float32):
    return TensorSpec(shape, dtype, CPU)


def test_a_fake_implementation_or_a_meta_kernel_tells_the_metadata():
    assert infer(accumulate, (spec(3), spec(3))) == spec(3, dtype=torch.float64)
    assert infer(by_meta, (spec(3), 2)) == spec(6)
    n = SymbolContext().new_symbol(5, "n")
    assert infer(by_meta, (spec(n), 2)).shape == (2 * n,)


def test_a_kernel_for_real_tensors_is_never_run_for_metadata():
    with pytest.raises(Unsupported, match="register_fake"):
        infer(bare, (spec(3),))


def test_twin_computes_on_copies():
    twin = functional_twin(accumulate)
    assert functional_twin(accumulate) is twin
    assert twin_of(twin) is accumulate and twin_of(accumulate) is None
    assert written_arguments(accumulate) == (1,)
    assert not twin._schema.is_mutable
    x, total = torch.randn(4), torch.randn(4)
    before = total.clone()
    doubled, new = twin(x, total, alpha=3.0)
    torch.testing.assert_close((doubled, new, total), (x * 2, before + 3 * x, before))
    assert infer(twin, (spec(4), spec(4))) == (spec(4, dtype=torch.float64), spec(4))


def test_copies_keep_strides():
    x = torch.randn(3, 5).t()
    out = functional_twin(chain)(x, torch.ones(()))
    assert out.stride() == x.stride() and out.data_ptr() != x.data_ptr()


def test_repeated_arguments_share_one_copy():
    twin = functional_twin(chain, ((1, 0),))
    x = torch.randn(4)
    torch.testing.assert_close(twin(x), x * 2)
    assert len(twin._schema.arguments) == 1


def test_lists_among_results_are_spread_out():
    twin = functional_twin(both, (), (2, None))
    xs, y = [torch.zeros(2), torch.zeros(3)], torch.ones(2)
    assert [t.tolist() for t in twin(xs, y)] == [[1, 1], [1, 1, 1], [2, 2]]
    assert infer(twin, ([spec(2), spec(3)], spec(2))) == (spec(2), spec(3), spec(2))
    with pytest.raises(RuntimeError, match="returned 1 tensors"):
        twin(xs[:1], y)


def test_operands_given_up_are_written_in_place():
    x, total = torch.randn(4), torch.randn(4)
    _, new = run_of_twin(*twin_form(functional_twin(accumulate)), frozenset({1}))(x, total)
    assert new.data_ptr() == total.data_ptr()
