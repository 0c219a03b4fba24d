"""Random operators whose numbers or data are outside of what they are defined for: eager's error, and its generators.

A table of every random operator of PyTorch's, each in the ways a program may call it. That none is missing is read from
the operators' schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_api

NAN, INF = float("nan"), float("inf")
X = torch.full((3, 4), 0.5)
D = torch.distributions


def unchecked(kind: type, *args: Any) -> torch.Tensor:
    """A draw of a distribution that does not look at its parameters itself."""
    return kind(*args, validate_args=False).sample()


#: The call, of data and a number; a good pair; bad ones.
#: By data: the number is not used. By number: the data is not used but for its type.
BY_DATA: dict[str, tuple[Callable[..., Any], Any, tuple[float, ...]]] = {
    "bernoulli": (lambda x: torch.bernoulli(x), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli method": (lambda x: x.bernoulli(), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli_ of a tensor": (lambda x: torch.ones(3, 4).bernoulli_(x), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli_ of itself": (lambda x: x.clone().bernoulli_(x), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli_ of a number of doubles": (lambda x: torch.ones(3, 4).bernoulli_(x[0, :1].double()), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli of a computed one": (lambda x: torch.bernoulli(x * 2 - 0.5), 0.5, (0.0, 1.0, NAN)),
    "bernoulli in half": (lambda x: torch.bernoulli(x.half()), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli in bfloat16": (lambda x: torch.bernoulli(x.bfloat16()), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli of doubles": (lambda x: torch.bernoulli(x.double()), 0.5, (-0.5, 1.5, NAN)),
    "bernoulli of a transpose": (lambda x: torch.bernoulli(x.t()), 0.5, (-0.5, 1.5, NAN)),
    "poisson": (lambda x: torch.poisson(x), 2.0, (-1.0,)),
    "multinomial": (lambda x: torch.multinomial(x, 2), 0.5, (-1.0, NAN, INF, 0.0)),
    "multinomial again": (lambda x: torch.multinomial(x[0], 9, replacement=True), 0.5, (-1.0, NAN, INF, 0.0)),
    "normal of two": (lambda x: torch.normal(x, x), 0.5, (-1.0,)),
    "normal of a mean": (lambda x: torch.normal(1.0, x), 0.5, (-1.0,)),
    "normal of a deviation": (lambda x: torch.normal(x, 2.0), 0.5, ()),
    "binomial": (lambda x: torch.binomial(x * 8, x), 0.5, (-1.0, 1.5)),
    "_standard_gamma": (lambda x: torch._standard_gamma(x), 0.5, ()),
    "_sample_dirichlet": (lambda x: torch._sample_dirichlet(x), 0.5, ()),
    "Bernoulli": (lambda x: unchecked(D.Bernoulli, x), 0.5, (-0.5, 1.5, NAN)),
    "Bernoulli of logits": (lambda x: D.Bernoulli(logits=x, validate_args=False).sample(), 0.5, (NAN,)),
    "Categorical": (lambda x: unchecked(D.Categorical, x), 0.5, (NAN, 0.0)),
    "Normal": (lambda x: unchecked(D.Normal, x, x), 0.5, (-1.0,)),
    "Poisson": (lambda x: unchecked(D.Poisson, x), 2.0, (-1.0,)),
    "Geometric": (lambda x: unchecked(D.Geometric, x), 0.5, ()),
    "Gamma": (lambda x: unchecked(D.Gamma, x, x), 0.5, ()),
    "Beta": (lambda x: unchecked(D.Beta, x, x), 0.5, ()),
    "Binomial": (lambda x: D.Binomial(9, x, validate_args=False).sample(), 0.5, (-1.0, 1.5)),
    "Bernoulli that checks": (lambda x: D.Bernoulli(x).sample(), 0.5, (-0.5, 1.5, NAN)),
    "Normal that checks": (lambda x: D.Normal(x, x, validate_args=True).sample(), 0.5, (-1.0, NAN)),
    "Uniform that checks": (lambda x: D.Uniform(x - x, x, validate_args=True).sample(), 0.5, (-1.0, NAN)),
}

BY_NUMBER: dict[str, tuple[Callable[..., Any], Any, tuple[Any, ...]]] = {
    "bernoulli of p": (lambda x, p: torch.bernoulli(x, p), 0.5, (-0.1, 1.1, NAN)),
    "bernoulli method of p": (lambda x, p: x.bernoulli(p), 0.5, (-0.1, 1.1, NAN)),
    "bernoulli_ of p": (lambda x, p: x.bernoulli_(p), 0.5, (-0.1, 1.1, NAN)),
    "bernoulli_ of integers": (lambda x, p: x.int().bernoulli_(p), 0.5, (-0.1, 1.1, NAN)),
    "bernoulli of a full one": (lambda x, p: torch.bernoulli(torch.full((3,), p)), 0.5, (-0.1, 1.1, NAN)),
    "normal_": (lambda x, p: x.normal_(0, p), 0.5, (-0.1,)),
    "normal of a size": (lambda x, p: torch.normal(0.0, p, (3, 4)), 0.5, (-0.1,)),
    "normal of a tensor": (lambda x, p: torch.normal(x, p), 0.5, (-0.1,)),
    "uniform_": (lambda x, p: x.uniform_(0, p), 0.5, (-0.1, NAN, INF)),
    "uniform_ beyond": (lambda x, p: x.uniform_(-p, p), 0.5, (2e38,)),
    "exponential_": (lambda x, p: x.exponential_(p), 0.5, (-0.1, 0.0, NAN)),
    "geometric_": (lambda x, p: x.geometric_(p), 0.5, (-0.1, 0.0, 1.0, 1.1, NAN)),
    "cauchy_": (lambda x, p: x.cauchy_(0, p), 0.5, (-0.1, 0.0, NAN)),
    "log_normal_": (lambda x, p: x.log_normal_(0, p), 0.5, (-0.1, 0.0, NAN)),
    "random_": (lambda x, p: x.random_(2, p), 5, (2, 1)),
    "random_ to": (lambda x, p: x.random_(p), 5, (0, -1)),
    "random_ of bytes": (lambda x, p: x.byte().random_(0, p), 5, (1000,)),
    "randint": (lambda x, p: torch.randint(2, p, (3,)), 5, (2, 1)),
    "randint_like": (lambda x, p: torch.randint_like(x, 2, p), 5, (2, 1)),
    "randperm": (lambda x, p: torch.randperm(p), 5, (-1,)),
    "multinomial of too many": (lambda x, p: torch.multinomial(x[0], p), 2, (5, 0, -1)),
    "dropout": (lambda x, p: F.dropout(x, p), 0.5, (-0.1, 1.1, NAN)),
    "dropout not training": (lambda x, p: F.dropout(x, p, False), 0.5, (-0.1, 1.1, NAN)),
    "torch.dropout": (lambda x, p: torch.dropout(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "dropout_": (lambda x, p: torch.dropout_(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "native_dropout": (lambda x, p: torch.native_dropout(x, p, True)[0], 0.5, (-0.1, 1.1, NAN)),
    "alpha_dropout": (lambda x, p: F.alpha_dropout(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "torch.alpha_dropout": (lambda x, p: torch.alpha_dropout(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "feature_dropout": (lambda x, p: torch.feature_dropout(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "feature_alpha_dropout": (lambda x, p: torch.feature_alpha_dropout(x, p, True), 0.5, (-0.1, 1.1, NAN)),
    "dropout1d": (lambda x, p: F.dropout1d(x, p), 0.5, (-0.1, 1.1, NAN)),
    "rrelu": (lambda x, p: F.rrelu(x, 0.2, p, True), 0.5, (0.1, NAN, INF)),
    "attention": (
        lambda x, p: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=p), 0.5, (-0.1, 1.1, NAN)
    ),
    "gumbel_softmax": (lambda x, p: F.gumbel_softmax(x, p), 0.5, ()),
    "init.uniform_": (lambda x, p: torch.nn.init.uniform_(x, 0.0, p), 0.5, (-0.1, NAN)),
    "init.normal_": (lambda x, p: torch.nn.init.normal_(x, 0.0, p), 0.5, (-0.1,)),
    "init.trunc_normal_": (lambda x, p: torch.nn.init.trunc_normal_(x, 0.0, 1.0, 0.0, p), 0.5, (NAN,)),
    "init.sparse_": (lambda x, p: torch.nn.init.sparse_(x, 0.5, p), 0.5, (-0.1,)),
    "init.xavier_normal_": (lambda x, p: torch.nn.init.xavier_normal_(x, p), 0.5, (-0.1,)),
    "init.xavier_uniform_": (lambda x, p: torch.nn.init.xavier_uniform_(x, p), 0.5, (-0.1,)),
    "init.kaiming_uniform_": (lambda x, p: torch.nn.init.kaiming_uniform_(x, p), 0.5, (NAN,)),
    "Bernoulli of a number": (lambda x, p: D.Bernoulli(p, validate_args=False).sample((3,)), 0.5, (-0.1, 1.1)),
    "Normal of a number": (lambda x, p: D.Normal(0.0, p, validate_args=False).sample((3,)), 0.5, (-0.1,)),
    "Exponential": (lambda x, p: D.Exponential(p).sample((3,)), 0.5, (-0.1, NAN)),
}

#: What else a schema with a generator is of: these are others' twins, or made of others.
COVERED = {
    "bernoulli": "bernoulli", "bernoulli_": "bernoulli_ of p", "binomial": "binomial", "cauchy": "cauchy_", "cauchy_": "cauchy_",
    "exponential": "exponential_", "exponential_": "exponential_", "geometric": "geometric_", "geometric_": "geometric_",
    "log_normal": "log_normal_", "log_normal_": "log_normal_", "multinomial": "multinomial", "normal": "normal of two",
    "normal_": "normal_", "normal_functional": "normal_", "poisson": "poisson", "random": "random_", "random_": "random_",
    "rrelu": "rrelu", "rrelu_": "rrelu", "rrelu_with_noise": "rrelu", "rrelu_with_noise_": "rrelu",
    "rrelu_with_noise_functional": "rrelu", "uniform": "uniform_", "uniform_": "uniform_",
    "_standard_gamma": "_standard_gamma", "_sample_dirichlet": "_sample_dirichlet", "randint": "randint",
    "randint_like": "randint_like", "randperm": "randperm", "_no_grad_normal_": "init.normal_",
    "_no_grad_uniform_": "init.uniform_", "_fused_dropout": "native_dropout",
}  # fmt: skip
#: They have no domain: a seed and a size are all.
WITHOUT = {"rand", "rand_like", "randn", "randn_like"}


def test_the_table_has_every_operator_with_a_generator():
    named = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and any(a.name == "generator" for a in schema.arguments)
    }
    assert named - WITHOUT == set(COVERED)
    assert set(COVERED.values()) <= {*BY_DATA, *BY_NUMBER}


#: How the call stands in the program, and whose numbers it draws.
WAYS = [(form, "fast") for form in ("used", "unused", "caught", "beside others", "symbolic")]
WAYS += [("used", "eager_exact"), ("unused", "eager_exact")]


def program_of(call: Callable[..., Any], form: str) -> Callable[..., Any]:
    def program(x, *number):
        y = x + 0.0
        before = torch.rand(2) if form == "beside others" else None
        if form == "caught":
            try:
                return call(y, *number), y
            except (RuntimeError, ValueError) as error:
                return torch.zeros(3) + len(str(error)), y
        found = call(y, *number)
        if form == "unused":
            return y * 2
        if form == "beside others":
            return found * 1, torch.rand(2) + before
        return found, y

    return program


def outcome(program: Callable[..., Any], x: torch.Tensor, *number: Any) -> tuple[Any, list[int]]:
    """What a call gives, or raises, and the generator's state after it."""
    torch.manual_seed(5)
    try:
        found: Any = program(x.clone(), *number)
        found = [t.tolist() for t in found] if isinstance(found, tuple) else found.tolist()
    except Exception as error:
        found = type(error), str(error).partition("\n")[0]
    return found if is_error(found) else repr(found), torch.get_rng_state().tolist()


def is_error(found: Any) -> bool:
    return isinstance(found, tuple)


def check(call, form, numerics, good, bads, given):
    """Good data is drawn compiled; bad raises what it raises in eager, in any order of calls."""
    program = program_of(call, form)
    compiled = compile_api.compile(
        program, dynamic=True if form == "symbolic" else None, options={"numerics": numerics}
    )
    wrong = []
    for each in (good, *(one for bad in bads for one in (bad, good))):
        expected, state = outcome(program, *given(each))
        ours, mine = outcome(compiled, *given(each))
        refused = is_error(expected) or (form == "caught" and each != good)
        if is_error(ours) is not is_error(expected) or (refused and (ours, mine) != (expected, state)):
            wrong.append((each, ours, expected, mine == state))
    assert not wrong, wrong
    assert compiled.report().kernels


@pytest.mark.parametrize(("form", "numerics"), WAYS)
@pytest.mark.parametrize("name", BY_DATA)
def test_data(name, form, numerics):
    call, good, bads = BY_DATA[name]

    def given(value):
        x = torch.full((3, 4), good)
        x[-1, -1] = x[0, 0] = value  # one that a vector has, and one that a remainder has
        return ((X * 0 + value) if value == 0.0 else x,)

    check(call, form, numerics, good, bads, given)


@pytest.mark.parametrize(("form", "numerics"), WAYS)
@pytest.mark.parametrize("name", BY_NUMBER)
def test_numbers(name, form, numerics):
    call, good, bads = BY_NUMBER[name]
    check(call, form, numerics, good, bads, lambda p: (X, p))


def test_the_error_is_raised_at_the_program_s_line():
    def program(x):
        return torch.bernoulli(x) * 2

    compiled = compile_api.compile(program)
    for _ in range(2):
        compiled(X)
        with pytest.raises(RuntimeError, match="p_in >= 0") as error:
            compiled(X + 1)
        assert error.value.__context__ is None
        assert any(entry.name == "program" and str(entry.path) == __file__ for entry in error.traceback)
    report = compiled.report()
    assert report.kernels and not report.breaks
    assert [left.reason for left in report.fallbacks] == ["an operator raised: such calls run eagerly"]


def test_a_backward_pass_draws_the_same_and_asks_nothing_anew():
    def program(x):
        return (torch.bernoulli(x.sigmoid()) * x).sum()

    x = torch.linspace(-1, 1, 64).requires_grad_()
    compiled = compile_api.compile(program)
    loss = compiled(x)
    loss.backward()
    assert set(x.grad.tolist()) == {0.0, 1.0} and torch.equal((x.grad * x).sum(), loss)
    assert not compiled.report().fallbacks
