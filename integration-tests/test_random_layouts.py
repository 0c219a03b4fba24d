"""Random numbers of ``numerics="eager_exact"`` go to the elements that get them in eager, whatever their order in memory
and whether sizes change from call to call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import compile_api

LAYOUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "row-major": lambda n, m: torch.randn(2, 3, n, m),
    "channels last": lambda n, m: torch.randn(2, 3, n, m).to(memory_format=torch.channels_last),
    "transposed": lambda n, m: torch.randn(2, 3, m, n).transpose(2, 3),
    "reversed": lambda n, m: torch.randn(m, n, 3, 2).permute(3, 2, 1, 0),
    "with gaps": lambda n, m: torch.randn(2, 3, m, 2 * n).transpose(2, 3)[:, :, ::2],
    "one row": lambda n, m: torch.randn(1, n, m, 1).transpose(1, 2),
}

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli_ of a number": lambda x: x.clone().bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: x.clone().bernoulli_(x.sigmoid()),
    "uniform_": lambda x: x.clone().uniform_(-1, 2),
    "normal_": lambda x: x.clone().normal_(1, 2),
    "exponential_": lambda x: x.clone().exponential_(2),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "random_": lambda x: x.clone().random_(0, 50),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 50),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=1),
    "normal of tensors": lambda x: torch.normal(x, x.exp()),
    "poisson": lambda x: torch.poisson(x.exp()),
    "in place in what was given": lambda x: x.bernoulli_(0.3),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_element_gets_eagers_number(name, layout, dynamic):
    program = PROGRAMS[name]
    compiled = compile_api.compile(program, dynamic=dynamic, options={"numerics": "eager_exact"})
    for n, m in ((4, 6), (5, 7)) if dynamic else ((4, 6),):
        x = LAYOUTS[layout](n, m)
        found = []
        for call in (program, compiled):
            given = LAYOUTS[layout](n, m).copy_(x)
            torch.manual_seed(4)
            found.append((call(given), torch.rand(1)))
        (theirs, after), (ours, also) = found
        assert torch.equal(theirs, ours), (n, m)
        strides = zip(theirs.shape, theirs.stride(), ours.stride(), strict=True)
        assert all(size == 1 or a == b for size, a, b in strides)
        assert torch.equal(after, also)  # and as many were drawn
    assert compiled.report().verdict == "compiled"
