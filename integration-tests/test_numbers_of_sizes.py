"""Numbers and tensors that are made of sizes stay made of them: one more capture serves all lengths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compile_api

LENGTHS = (6, 7, 9, 16, 12, 11, 17, 8, 13, 10, 25, 6)

PROGRAMS = {
    "tensor of a size": lambda x: x * torch.tensor(x.shape[0]),
    "tensor of a size, of floats": lambda x: x * torch.tensor(x.shape[0], dtype=torch.float64),
    "tensor of sizes": lambda x: x.sum() * torch.tensor([x.shape[0], 1, x.shape[0] - 1]),
    "tensor of a size and a float": lambda x: x.sum() * torch.tensor((x.shape[0], 0.5)),
    "new_tensor": lambda x: x * x.new_tensor(x.shape[0]) + x.new_tensor([x.shape[0], 2])[0],
    "as_tensor": lambda x: x * torch.as_tensor(x.shape[0], dtype=torch.int32),
    "ends by index": lambda x: x[torch.tensor([0, x.shape[0] - 1])],
    "divmod": lambda x: x * divmod(x.shape[0], 3)[0] + divmod(x.shape[0], 4)[1],
    "logarithm to a base": lambda x: x * math.log(x.shape[0], 3),
    "fractional power": lambda x: x * x.shape[0] ** -0.5,
    "power of one over": lambda x: x * x.shape[0] ** -1,
    "square root by a power": lambda x: x * x.shape[0] ** 0.5,
    "warm-up": lambda x: x * min(x.shape[0] ** -0.5, x.shape[0] * 40**-1.5),
    "power of a size": lambda x: x.shape[0] ** -x,
    "power of a quotient": lambda x: (x.shape[0] / 3) ** x,
    "torch.pow of a size": lambda x: torch.pow(x.shape[0], x),
    "inverse frequencies": lambda x: 1.0 / (x.shape[0] ** (torch.arange(0, 8, 2).float() / 8)),
    "linspace to the last": lambda x: torch.linspace(0, x.shape[0] - 1, x.shape[0]) + x,
    "linspace between sizes": lambda x: torch.linspace(-x.shape[0], x.shape[0] / 2, 5) + x.sum(),
    "arange of floats": lambda x: torch.arange(0.0, x.shape[0]) + x,
    "arange to a float": lambda x: torch.arange(float(x.shape[0])) + x,
    "arange in halves": lambda x: torch.arange(0, x.shape[0], 0.5),
    "arange to a half": lambda x: torch.arange(x.shape[0] * 0.5),
    "arange of a reciprocal": lambda x: torch.arange(0, 1, 1 / x.shape[0]),
    "arange in steps of a size": lambda x: torch.arange(0, 4 * x.shape[0], x.shape[0]),
    "arange down": lambda x: torch.arange(x.shape[0] - 1, -1, -1) + x,
    "rfftfreq": lambda x: torch.fft.rfftfreq(x.shape[0], 0.5) * x.sum(),
    "fftfreq": lambda x: torch.fft.fftfreq(x.shape[0]) * x,
    "kron": lambda x: torch.kron(x, torch.ones(2)) + torch.kron(torch.ones(1, 2), x),
    "hann window": lambda x: torch.hann_window(x.shape[0]) * x,
}  # fmt: skip

#: The same of batches of matrices (n, 3, 3).
BATCHES = {
    "inv": lambda a: torch.linalg.inv(a),
    "solve": lambda a: torch.linalg.solve(a, a.mT @ a),
    "solve vectors": lambda a: torch.linalg.solve(a, a[..., 0]),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT),
    "cholesky_solve": lambda a: torch.cholesky_solve(a, torch.linalg.cholesky(a @ a.mT)),
    "det": lambda a: torch.linalg.det(a),
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "logdet": lambda a: torch.logdet(a @ a.mT),
    "eigvalsh": lambda a: torch.linalg.eigvalsh(a @ a.mT),
    "svdvals": lambda a: torch.linalg.svdvals(a),
    "qr": lambda a: torch.linalg.qr(a).R,
    "lu": lambda a: torch.linalg.lu_factor(a).LU,
    "lu_solve": lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a.mT),
    "pinv": lambda a: torch.linalg.pinv(a),
    "gaussian": lambda a: torch.distributions.MultivariateNormal(
        torch.zeros(a.shape[0], 3), a @ a.mT, validate_args=False
    ).log_prob(torch.ones(3)),
}  # fmt: skip


def check(fn, inputs, dynamic, gradients=False):
    compiled = compile_api.compile(fn, dynamic=dynamic)
    for x in inputs:
        rows = []
        for run in (fn, compiled):
            given = x.clone().requires_grad_(gradients)
            out = run(given)
            if gradients:
                out.sum().backward()
            rows.append((out.detach(), given.grad))
        torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-3)
        assert rows[0][0].dtype == rows[1][0].dtype and rows[0][0].stride() == rows[1][0].stride()
    report = compiled.report()
    assert report.verdict == "compiled", str(report)
    assert len(report.recompiles) <= (0 if dynamic else 1), [each.reason for each in report.recompiles]


@pytest.mark.parametrize("dynamic", [None, True], ids=["changing", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_any_length(name, dynamic):
    torch.manual_seed(0)
    check(PROGRAMS[name], [torch.rand(length) + 0.1 for length in LENGTHS], dynamic)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_any_number(name, gradients):
    torch.manual_seed(0)
    matrices = [torch.randn(length, 3, 3) * 0.3 + 2 * torch.eye(3) for length in LENGTHS]
    check(BATCHES[name], matrices, None, gradients)


POOLS = {
    "windows of 3": lambda x: F.max_pool1d(x, 3),
    "padded, in steps": lambda x: F.max_pool1d(x, 3, 2, 1),
    "rounded up": lambda x: F.max_pool1d(x, 4, 3, ceil_mode=True),
    "in C": lambda x: torch.max_pool1d(x, 3, stride=2),
    "a module": nn.MaxPool1d(2),
    "dilated": lambda x: F.max_pool1d(x, 2, 1, 0, 2),
    "no batch": lambda x: F.max_pool1d(x[0], (3,), stride=(2,)),
    "with places": lambda x: F.max_pool1d(x, 3, return_indices=True)[0],
}


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", POOLS)
def test_pools_of_any_length(name, gradients):
    torch.manual_seed(0)
    check(POOLS[name], [torch.randn(2, 3, length + 4) for length in LENGTHS], None, gradients)


def test_a_number_that_is_read_back_is_one():
    """A tensor of a size of which the program asks the number again: as for one of constants, no graph breaks."""

    def fn(x):
        count = torch.tensor(x.shape[0])
        return x * int(count), count.item() + 1, x[: torch.tensor([1, x.shape[0]]).min().item()]

    compiled = compile_api.compile(fn)
    for length in (6, 7, 6, 9):
        x = torch.rand(length)
        torch.testing.assert_close(compiled(x), fn(x))
    assert compiled.report().verdict == "compiled", str(compiled.report())


def test_bags_of_any_length():
    bag = nn.EmbeddingBag(20, 6)
    compiled = compile_api.compile(bag)
    for batch, length in zip(LENGTHS, LENGTHS[::-1], strict=True):
        x = torch.randint(0, 20, (batch, length))
        torch.testing.assert_close(compiled(x), bag(x))
    assert len(compiled.report().recompiles) <= 2, [each.reason for each in compiled.report().recompiles]


def test_a_scale_made_of_a_size_that_never_changes():
    """The width of a head is a symbol under ``dynamic=True``, and fixed by the scale: one capture for all lengths."""
    compiled = compile_api.compile(
        lambda q: F.scaled_dot_product_attention(q, q, q, scale=q.shape[-1] ** -0.5), dynamic=True
    )
    for length in LENGTHS:
        q = torch.randn(2, 2, length, 8)
        torch.testing.assert_close(compiled(q), F.scaled_dot_product_attention(q, q, q, scale=8**-0.5))
    assert not compiled.report().recompiles


_OF_SIZES = {
    "one_hot under vmap": lambda x: torch.func.vmap(lambda i: torch.nn.functional.one_hot(i, x.shape[1]).float())(
        x.argmax(-1)
    ),
    "one_hot under two vmaps": lambda x: torch.func.vmap(
        torch.func.vmap(lambda i: torch.nn.functional.one_hot(i, x.shape[1] + 1)), in_dims=1
    )((x > 0).long()),
    "upper triangle": lambda x: x[tuple(torch.triu_indices(x.shape[0], x.shape[0], 1))].sum(),
    "lower triangle": lambda x: x[tuple(torch.tril_indices(x.shape[0], x.shape[0]))] * 2,
    "combinations": lambda x: torch.combinations(torch.arange(x.shape[0])).float().sum(0),
}


@pytest.mark.parametrize("name", _OF_SIZES)
def test_indices_of_sizes(name):
    compiled = compile_api.compile(_OF_SIZES[name])
    for n in range(3, 14):
        x = torch.randn(n, n, generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(compiled(x), _OF_SIZES[name](x))
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


def counted_after(x, n):
    x = x * (1.0 / n)
    for _ in range(n):
        x = x + x.sin()
    return x


def raised_after(x, n):
    return x * (n / 2.5) + x * 2**n + n**0.5


def listed_after(x, n):
    y = x * (1.0 / n) + n / 2.5 + n % 2.5 + float(n) * 2 + divmod(n, 2.5)[0] + math.sqrt(n) + round(n / 3, 1)
    return y if [1] * n else -y


def counted_size_after(x, n):
    part = x[:n]
    z = part * (1.0 / part.shape[0]) + part.shape[0] / 2.5
    for k in range(part.shape[0]):
        z = z + k
    return z.sum()


def compared_between(x, n):
    z = x * (1.5 / n)
    if n == 6:
        z = z * (2.5 / n) + n / 1.5
    return z + 1.5 / n


@pytest.mark.parametrize(
    "program", [counted_after, raised_after, listed_after, counted_size_after, compared_between],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_divisions_by_a_number_that_is_fixed_later(program):
    """The graph divides by a symbol of which a later line asks what it is."""
    compiled = compile_api.compile(program)
    for n in (4, 6, 8, 10):
        x = torch.arange(12.0)
        torch.testing.assert_close(compiled(x, n), program(x, n))
    report = compiled.report()
    assert report.verdict == "compiled" and not report.fallbacks, report
