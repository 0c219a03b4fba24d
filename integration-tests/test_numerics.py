"""``numerics="eager_exact"`` and ``"eager_close"``: eager's bits, and eager's rounding points and accumulation types.

The whole of PyTorch's operator database is swept by script (``sweeps/sweep_op_db.py --numerics eager_exact --dtype float32
bfloat16 float16 --forward --grad``); here is every twelfth operator of it, in another phase for each dtype.
"""

from __future__ import annotations

import argparse
import copy
import warnings

import pytest
import torch
from judge import error
from numeric_cases import DTYPES, EXACT, MODELS, operands, program, steps
from sweeps import sweep_op_db as sweep
from sweeps.agreement import clone, double, other_bits, same_bits
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from zoo import build, tensors

import compile_api

CLOSE = {"numerics": "eager_close", "strict": True}


# ---- the operator database ------------------------------------------------------------------------------------------


def settings(dtype: str) -> argparse.Namespace:
    return sweep.settings(["--forward", "--grad", "--samples", "1", "--numerics", "eager_exact", "--dtype", dtype])


def tasks():
    for phase, dtype in enumerate(("float32", "bfloat16", "float16")):
        for _, index, name, kind, _ in sweep.tasks(settings(dtype))[4 * phase :: 12]:
            if op_db[index].name not in TANGENTS or kind == "forward":
                yield pytest.param(index, name, kind, id=f"{op_db[index].formatted_name}-{name}-{kind}")


#: Their gradients are given in another layout than the result's, and brought into it before they meet a product.
TANGENTS = {"cholesky_inverse", "linalg.eigh"}


@pytest.mark.parametrize(("index", "dtype", "kind"), list(tasks()))
def test_operator_gives_eagers_bits(index, dtype, kind):
    warnings.simplefilter("ignore")
    verdict, reason = sweep.check(op_db[index], dtype, kind, settings(dtype))
    assert verdict in ("generated", "eager", "skipped"), reason


# ---- pointwise programs in generated kernels ------------------------------------------------------------------------

@pytest.mark.parametrize("numerics", ["eager_exact", "eager_close"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_rounded_once_is_fused_and_exact(seed, dtype, numerics):
    """The programs' operators round once each, so that "close" means equal for them too."""
    f = program(seed)
    compiled = compile_api.compile(f, fullgraph=True, options={"numerics": numerics, "strict": True})
    for x, y in (operands(dtype, seed), [t.repeat_interleave(2)[::2] for t in operands(dtype, seed + 1)]):
        assert other_bits(list(compiled(x, y)), list(f(x, y)), 0) is None
    report = compiled.report()
    assert report.kernels and not report.externs and not report.fallbacks and not report.inexact
    assert max(len(kernel.ops) for kernel in report.kernels) > 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fast_keeps_what_the_others_round(dtype):
    """The test above could fail: the default drops roundings between operators."""
    differing = 0
    for seed in range(6):
        f, (x, y) = program(seed), operands(dtype, seed)
        differing += other_bits(list(compile_api.compile(f)(x, y)), list(f(x, y)), 0) is not None
    assert differing >= 3


def test_products_are_rounded_before_they_are_added():
    torch.manual_seed(0)
    x, y, z = torch.randn(3, 4096)
    f = lambda x, y, z: x * y + z
    for numerics in ("eager_close", "eager_exact"):
        assert same_bits(compile_api.compile(f, options={"numerics": numerics})(x, y, z), f(x, y, z))


# ---- accumulation ---------------------------------------------------------------------------------------------------

SUMS = {
    "cumsum": lambda x: x.cumsum(0),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "batch norm": lambda x: nn.functional.batch_norm(x.view(8, 4, -1), None, None, training=True),
    "index_add": lambda x: torch.zeros(3, dtype=x.dtype).index_add(0, torch.arange(x.numel()) % 3, x),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_added_up_as_in_eager(name, dtype):
    """Far from zero the type of the sum decides what is left: about as close to float64 as eager, and to eager itself."""
    f = SUMS[name]
    torch.manual_seed(1)
    x = (torch.randn(4096) + 100).to(dtype)
    ours, theirs, exact = compile_api.compile(f, options=CLOSE)(x), f(x), f(x.double())
    assert error(ours, exact) <= 1.1 * error(theirs, exact)
    assert same_bits(ours, theirs)


CALLS = {
    "cross_entropy": lambda x: nn.functional.cross_entropy(x, torch.arange(len(x)) % x.shape[1]),
    "log_softmax": lambda x: nn.functional.log_softmax(x, 1) * torch.arange(x.shape[1]),
    "softmax": lambda x: nn.functional.softmax(x, 1) * torch.arange(x.shape[1]),
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[1:]) * torch.arange(x.shape[1]),
    "batch_norm": lambda x: nn.functional.batch_norm(x, None, None, training=True) * torch.arange(x.shape[1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_training_calls_eagers_operators_as_they_are(name):
    """The default writes some of them out before it partitions: other bits."""
    f, seen = CALLS[name], {}
    for numerics in ("eager_exact", "fast"):
        compiled = compile_api.compile(f, fullgraph=True, options={"numerics": numerics, "strict": True})
        seen[numerics] = 0
        for seed in range(10):
            torch.manual_seed(seed)
            x = torch.randn(64, 1031, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            ours, theirs = compiled(x * 3), f(y * 3)
            ours.sum().backward()
            theirs.sum().backward()
            seen[numerics] += other_bits([ours, x.grad], [theirs, y.grad], 0) is not None
    assert seen["eager_exact"] == 0
    assert seen["fast"] > 0  # the judge can tell


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_training_gives_eagers_bits(name, dtype):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    model(torch.randn(shape).to(dtype))  # lazy layers
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(twin, fullgraph=True, options=EXACT)
    assert other_bits(steps(twin, compiled, shape, dtype), steps(model, model, shape, dtype), 1) is None
    report = compiled.report()
    assert not report.fallbacks and not report.breaks and len(report.graphs) > 2


@pytest.mark.parametrize("name", ["transformer", "convnet", "bert", "gpt2", "llama"])
def test_models_give_eagers_bits(name):
    case = build(name, small=True)
    with torch.no_grad():
        ours = tensors(compile_api.compile(case.model, options=EXACT)(*case.args, **case.kwargs))
        theirs = tensors(case.model(*case.args, **case.kwargs))
    assert other_bits(ours, theirs, 0) is None


@pytest.mark.parametrize("name", ["transformer", "convnet", "bert", "gpt2", "llama"])
def test_models_are_as_close_as_eager(name):
    case = build(name, small=True)
    case.model.bfloat16()
    args, kwargs = clone((case.args, case.kwargs))
    low = lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
    args, kwargs = pytree.tree_map(low, (args, kwargs))
    with torch.no_grad():
        compiled = compile_api.compile(case.model, options=CLOSE)
        ours, theirs = tensors(compiled(*args, **kwargs)), tensors(case.model(*args, **kwargs))
        exact = tensors(double(copy.deepcopy(case.model).double())(*double(args), **double(kwargs)))
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert error(a, c) <= 1.5 * error(b, c) + torch.finfo(torch.bfloat16).eps * float(c.abs().max())
    assert compiled.report().kernels and not compiled.report().fallbacks


def test_random_numbers_of_one_seed_are_eagers():
    def f(x):
        noise = torch.rand_like(x) + torch.randn(x.shape)
        return nn.functional.dropout(x, 0.4) + noise, torch.randperm(5), torch.bernoulli(noise.sigmoid())

    x = torch.randn(300)
    torch.manual_seed(3)
    theirs = [*f(x), torch.rand(2)]
    torch.manual_seed(3)
    compiled = compile_api.compile(f, fullgraph=True, options=EXACT)
    assert other_bits([*compiled(x), torch.rand(2)], theirs, 0) is None


#: Stacked normalisations of two numbers: what the outer one's gradient has of rounding the inner one's projection takes
#: away, if it is the same rounding wherever the kernels compute it.
PROJECTIONS = {
    "group norms": lambda: [nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)],
    "layer norms": lambda: [nn.LayerNorm(2), nn.LayerNorm(2)],
    "three": lambda: [nn.LayerNorm(2), nn.LayerNorm(2), nn.LayerNorm(2)],
}


class Projected(nn.Module):
    """Normalisations behind a linear layer, and a loss that reads their result together with something else."""

    def __init__(self, norms, head):
        super().__init__()
        self.linear = nn.Linear(4 if isinstance(norms[0], nn.GroupNorm) else 2, norms[0].weight.numel())
        self.norms = nn.Sequential(*norms)
        for parameter in self.norms.parameters():
            parameter.data += 0.01 * torch.randn_like(parameter)
        self.mix = nn.Conv1d(2, 2, 1) if head == "convolution" else None
        self.register_buffer("scale", torch.randn(6, norms[0].weight.numel()))

    def forward(self, x):
        h = self.norms(self.linear(x))
        return (h * h * self.scale).norm() if self.mix is None else self.mix(torch.stack([h, x], 1))[:, 0].norm()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("head", ["products", "convolution"])
@pytest.mark.parametrize("name", PROJECTIONS)
def test_what_cancels_in_eager_cancels(name, head, dynamic):
    errors = []
    for seed in range(5):
        torch.manual_seed(seed)
        net = Projected(PROJECTIONS[name](), head)
        x = torch.randn(6, net.linear.in_features)
        compiled, exact = compile_api.compile(copy.deepcopy(net), dynamic=dynamic), copy.deepcopy(net).double()
        exact(x.double()).backward()
        net(x).backward()
        compiled(x).backward()
        right, eager, ours = (m.linear.weight.grad.double() for m in (exact, net, compiled))
        errors.append(torch.stack([(ours - right).abs().max(), (eager - right).abs().max()]))
        assert compiled.report().kernels and not compiled.report().fallbacks
    ours, eager = torch.stack(errors).median(0).values.tolist()
    assert ours <= 8 * eager, (ours, eager)


@pytest.mark.parametrize("terms", [343, 4096, 100003])
@pytest.mark.parametrize("name", ["sinc", "softplus", "where", "smooth", "log1p"])
def test_equal_terms_are_summed_over_short_stretches(name, terms):
    """However a compiler puts a loop with calls and branches: in one chain the same rounding error adds up."""
    functions = {
        "sinc": lambda x, a: torch.fmin(a, torch.sinc(x)).cos(),
        "softplus": lambda x, a: torch.nn.functional.softplus(torch.fmin(a, x)).exp(),
        "where": lambda x, a: torch.where(x > 0, torch.fmin(a, x).sin(), a.sin()).cos(),
        "smooth": lambda x, a: torch.nn.functional.smooth_l1_loss(torch.fmin(a, x.sinc()), a.cos().expand_as(x), reduction="none"),
        "log1p": lambda x, a: torch.where(x > 3, x.log1p(), torch.fmin(a, x.exp()).square().log1p()),
    }  # fmt: skip
    f = functions[name]
    compiled = compile_api.compile(lambda x, a: f(x, a).mean(), dynamic=True)
    x, a = torch.full((terms,), 2.0), torch.tensor([-0.6014])
    right = float(f(x.double(), a.double()).mean())
    assert abs(float(compiled(x, a)) / right - 1) < 6 * 2.0**-23
    assert compiled.report().kernels and not compiled.report().fallbacks


# ---- accuracy of float32 ------------------------------------------------------------------------------------------------


class Normalised(nn.Module):
    """Batch norms behind one another: the mean that the second takes is 0 but for the roundings of the first."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.BatchNorm2d(12), nn.BatchNorm2d(12)
        self.depthwise = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12))

    def forward(self, x):
        x = self.first(x)
        return (self.again(x) + self.depthwise(x)).relu()


ACCURATE = {
    "batch norm": (lambda: nn.BatchNorm2d(16), (2, 16, 48, 48)),
    "batch norm of rows": (lambda: nn.BatchNorm1d(16), (600, 16)),
    "instance norm": (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 40, 40)),
    "batch norms in a row": (Normalised, (2, 12, 24, 24)),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_normalisations_are_as_accurate_as_eager(name):
    """By the root mean square of the errors against float64, of results, gradients and running statistics."""
    make, shape = ACCURATE[name]
    torch.manual_seed(0)
    model = make()
    twin, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = compile_api.compile(twin, fullgraph=True)
    total: dict[str, list[float]] = {}
    for _ in range(8):
        x = torch.randn(shape)
        exact = _training_step(wide, wide, x.double())
        for at, step in enumerate((_training_step(twin, compiled, x), _training_step(model, model, x))):
            for key, value in step.items():
                total.setdefault(key, [0.0, 0.0])[at] += float((value.double() - exact[key]).square().mean())
    assert compiled.report().kernels and any("running_mean" in key for key in total) == (name != "instance norm")
    for key, (ours, theirs) in total.items():
        assert ours**0.5 <= 1.5 * theirs**0.5, f"{key}: {(ours / theirs) ** 0.5:.2f} times eager's error"


def _training_step(module, call, x):
    """What a step on fresh statistics gives, by name."""
    module.zero_grad()
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._NormBase):
            norm.reset_running_stats()
    out = call(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=x.dtype).view(out.shape).cos()).mean().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters()}
    found |= {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point()}
    return {"output": out.detach(), **found}


def test_a_constant_channel_becomes_the_bias():
    """Also where x * scale and mean * scale are rounded differently: what a relu behind it lets through hangs on it."""

    def f(x, weight, bias):
        return torch.relu(nn.functional.batch_norm(x, None, None, weight, bias, training=True))

    x = torch.linspace(-3.1, 4.7, 64).view(1, 64, 1, 1).expand(2, 64, 5, 5).contiguous()
    compiled = compile_api.compile(f, fullgraph=True)
    weight, bias = torch.rand(64).requires_grad_(), torch.zeros(64).requires_grad_()
    out = compiled(x, weight, bias)
    out.sum().backward()
    assert not out.any() and not bias.grad.any()
    assert (compiled(x, torch.ones(64), torch.full((64,), 0.3)) == torch.tensor(0.3)).all()


def test_the_deviation_of_numbers_whose_squares_overflow():
    """On a CPU eager squares in double precision."""
    x = torch.randn(4, 900) * 1e25
    compiled = compile_api.compile(lambda x: (x.std(1), *torch.std_mean(x, 1)), fullgraph=True)
    for ours, theirs in zip(compiled(x), (x.std(1), *torch.std_mean(x, 1)), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.isfinite().all()
    assert compiled.report().kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
def test_evenly_spaced_numbers_are_eagers(numerics: str, dtype: torch.dtype) -> None:
    program = lambda x: torch.linspace(-1, 1, x.shape[0], dtype=dtype)
    compiled = compile_api.compile(program, options={"numerics": numerics}, dynamic=False)
    for count in (2, 8, 17, 64, 100, 1000):
        x = torch.empty(count)
        assert torch.equal(compiled(x), program(x))
    assert not compiled.report().fallbacks


#: Numbers beside 16-bit tensors: as they are, but where the program makes a tensor of one.
BESIDE_NUMBERS = {
    "mul": lambda x, y, n: x * n,
    "div": lambda x, y, n: x / n,
    "rsub": lambda x, y, n: n - x,
    "add with a factor": lambda x, y, n: torch.add(x, y, alpha=n),
    "addcmul": lambda x, y, n: torch.addcmul(x, y, y, value=n),
    "clamp": lambda x, y, n: x.clamp(max=n),
    "full": lambda x, y, n: x * torch.full_like(x, n),
    "equal": lambda x, y, n: x == n,
    "hardshrink": lambda x, y, n: nn.functional.hardshrink(x, n),
    "of a size": lambda x, y, n: x * (x.shape[0] * 0.001),
}


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BESIDE_NUMBERS)
def test_numbers_that_change_are_not_rounded(name, dtype, numerics):
    torch.manual_seed(0)
    fn = BESIDE_NUMBERS[name]
    compiled = compile_api.compile(fn, options={"numerics": numerics})
    for k, n in enumerate((0.1, 0.25, 0.3, 0.7)):
        # Whole vectors: of what is left over, eager multiplies by a factor that it has not rounded.
        x, y = (torch.randn(512 + 64 * k * (name == "of a size"), dtype=dtype) for _ in range(2))
        assert torch.equal(compiled(x, y, n), fn(x, y, n)), n


#: Optimizers whose step eager does in one operator, or in other steps than ours, and one that is captured as it is.
OPTIMIZERS = {
    "fused SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), "_fused_sgd_"),
    "fused Adam": (lambda p: torch.optim.Adam(p, fused=True), "_fused_adam_"),
    "fused AdamW": (lambda p: torch.optim.AdamW(p, fused=True), "_fused_adamw_"),
    "fused Adagrad": (lambda p: torch.optim.Adagrad(p, fused=True), "_fused_adagrad_"),
    "Adafactor": (torch.optim.Adafactor, "Adafactor"),
    "AdamW": (torch.optim.AdamW, None),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_has_eagers_bits_or_is_eagers(name: str) -> None:
    make, breaks_at = OPTIMIZERS[name]
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(33))]
    theirs = copy.deepcopy(ours)
    optimizer, eager = make(ours), make(theirs)
    step = compile_api.compile(optimizer.step, options={"numerics": "eager_exact"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", compile_api.CompileWarning)
        for _ in range(4):
            for p, q in zip(ours, theirs, strict=True):
                p.grad = torch.randn_like(p)
                q.grad = p.grad.clone()
            step()
            eager.step()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
    report = step.report()
    if breaks_at is None:
        assert report.kernels and not report.breaks
    else:
        assert breaks_at in str(report)


_PERTURBED = {
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "group norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.SiLU(), nn.Linear(8, 3)),
    "scales": lambda: nn.Sequential(nn.PReLU(6), nn.Linear(6, 8), nn.PReLU(8), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
@pytest.mark.parametrize("name", _PERTURBED)
def test_what_is_written_behind_the_version_counter_reaches_a_backward_pass_as_eagers(name, numerics):
    """Parameters that are perturbed for a forward pass alone, as weight noise does."""
    torch.manual_seed(0)
    model, gradients = _PERTURBED[name](), []
    noise = [torch.randn_like(parameter) for parameter in model.parameters()]
    x = torch.randn(5, 6)
    compiled = compile_api.compile(copy.deepcopy(model), options={"numerics": numerics})
    for each in (model, compiled):
        for parameter, change in zip(each.parameters(), noise, strict=True):
            parameter.data.add_(change)
        loss = each(x).square().sum()
        for parameter, change in zip(each.parameters(), noise, strict=True):
            parameter.data.sub_(change)
        loss.backward()
        gradients.append([parameter.grad for parameter in each.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert compiled.report().verdict == "compiled"


_VIEWS = {
    "diagonal": lambda x: x.diagonal(),
    "every third": lambda x: x[:, ::3],
    "a column": lambda x: x[:, 1],
    "a part, transposed": lambda x: x[2:, :15].t(),
    "windows": lambda x: x.unfold(1, 9, 4),
    "shared elements": lambda x: x.as_strided((30, 20), (7, 2)),
    "repeated": lambda x: x[:, :1].expand(37, 37),
}
_SUMS = {"sum": lambda v: v.sum(), "mean": lambda v: v.mean(-1), "norm": lambda v: v.norm(), "prod": lambda v: v.prod(0),
         "logsumexp": lambda v: v.logsumexp(0)}  # fmt: skip
_WRITTEN = {
    "of an input": lambda x, view: view(x),
    "of what is computed": lambda x, view: view(x * 1.5),
    "after a write to it": lambda x, view: view(x * 1.5).mul_(1.5),
    "after a write to what it is of": lambda x, view: view((x * 1.5).add_(1)),
}


@pytest.mark.parametrize("made", _WRITTEN)
@pytest.mark.parametrize("kind", _SUMS)
@pytest.mark.parametrize("view", _VIEWS)
def test_eagers_kernels_are_given_what_lies_as_in_eager(view, kind, made):
    """Eager's sums go by the strides of what they are given: gaps and shared elements included."""
    if made == "after a write to it" and view in ("windows", "shared elements", "repeated"):
        pytest.skip("PyTorch refuses to write to what shares elements")
    compiled = compile_api.compile(
        lambda x: _SUMS[kind](_WRITTEN[made](x, _VIEWS[view])), options={"numerics": "eager_exact"}
    )
    for seed in range(6):
        x = torch.randn(37, 37, generator=torch.Generator().manual_seed(seed))
        expected = _SUMS[kind](_WRITTEN[made](x.clone(), _VIEWS[view]))
        assert torch.equal(compiled(x), expected), f"seed {seed}"
    assert compiled.report().verdict == "compiled"
