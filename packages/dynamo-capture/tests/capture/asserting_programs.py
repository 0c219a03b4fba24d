"""Programs of ``test_assumed.py``, in a module whose assertions pytest does not rewrite."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

import dynamo_capture


class Log:
    def __init__(self):
        self.calls = 0


LOG = Log()


def asserted(x):
    y = x * 2
    assert (x > 0).all(), f"not positive: {x.min():.1f}"
    return y + 1


def negated(x):
    if torch.isnan(x).any():
        raise ValueError("NaN", int(torch.isnan(x).sum()))
    return x + 1


def not_all(x):
    if not (x > 0).all():
        raise ValueError("low")
    return x + 1


def two(x):
    assert x.min() > 0
    y = x.sqrt()
    if y.max() > 100:
        raise OverflowError(y.max().item())
    return y


def check(x):
    if (x < 0).any():
        raise ValueError("negative")


def in_a_function(x):
    check(x)
    return x.sqrt()


def float_condition(x):
    if x.min().clamp(max=0):
        raise ValueError("a number as the condition")
    return x + 1


def with_effects(x):
    LOG.calls += 1
    assert (x > 0).all()
    LOG.calls += 10
    return x + LOG.calls


def with_random_numbers(x):
    a = torch.rand(3)
    assert (x > 0).all()
    return a + torch.rand(3) + x


def with_gradient(x):
    y = x.exp()
    assert (y > 0.01).all()
    return y * 2


def checked(x):
    torch._check_tensor_all(x > 0, lambda: f"min {x.min():.1f}")
    return x * 2


def gaussian(x):
    return F.gaussian_nll_loss(x, x + 1, x)


def written(x):
    x.mul_(2)
    assert (x > 0).all()
    return x.add_(1)


def caught(x):
    try:
        if (x > 2).any():
            raise KeyError("large")
        y = x + 1
    except KeyError:
        y = x - 1
    return y


def suppressed(x):
    with contextlib.suppress(ValueError):
        if (x > 2).any():
            raise ValueError
        x = x + 1
    return x


def both(x):
    if (x > 2).all():
        raise KeyError
    raise ValueError


def neither(x):
    return x + 1 if (x > 2).all() else x - 1


def around_a_break(x):
    assert (x > 0).all()
    y = x * 2
    dynamo_capture.graph_break()
    assert (y < 10).all(), "large"
    return y + 1


PROGRAMS = [asserted, negated, not_all, two, in_a_function, float_condition, with_effects, with_random_numbers,
            with_gradient, checked, gaussian, written]  # fmt: skip
BREAKING = [caught, suppressed, both, neither]
