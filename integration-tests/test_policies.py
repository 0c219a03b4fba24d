"""The policies about bits: ``deterministic`` (of every run) and ``batch_invariant`` (of a row, whatever its batch)."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from invariant_models import MODELS, batch_of

import compile_api
from compile_api import errors

ROWS = 32
BATCHES = (1, 2, 7)
WEIGHT = torch.randn(40, 40, generator=torch.Generator().manual_seed(1))


def places(rows):
    """Where batches begin: at the first row, at others whose memory is aligned otherwise, at the last."""
    return (0, 3, 16, ROWS - rows)


def differing(run, whole, batch):
    """The batches in which a row has other bits than among all."""
    return [
        (rows, at)
        for rows in BATCHES for at in places(rows)
        if not torch.equal(run(batch[at : at + rows]), whole[at : at + rows])
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("dynamic", [False, True, None], ids=["static", "dynamic", "when it changes"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_five_models(name, dynamic):
    model, batch = MODELS[name]().eval(), batch_of(name, ROWS)
    made = compile_api.compile(model, dynamic=dynamic, options={"batch_invariant": True, "strict": True})
    with torch.no_grad():
        whole = made(batch)
        assert differing(made, whole, batch) == []
        torch.testing.assert_close(whole, model(batch), rtol=1e-4, atol=1e-4)
    report = made.report()
    assert report.verdict == "compiled" and report.policies and all(p.held for p in report.policies)
    own = {p.op for p in report.policies}
    assert {op for op in report.extern_counts() if "mm" in op or "convolution" in op} == own


def test_without_the_policy_rows_differ():
    """On this processor for one model at least: by products (MKL's and oneDNN's) or by the last elements of a row."""
    found = {}
    for name in ("perceptron", "bert", "resnet"):
        model, batch = MODELS[name]().eval(), batch_of(name, ROWS)
        made = compile_api.compile(model)
        with torch.no_grad():
            found[name] = differing(made, made(batch), batch)
    assert any(found.values()), found


PROGRAMS = {
    "columns, of which one is a row": (lambda x: x.t().contiguous().sum(0), (333,)),
    "sums over two dimensions with the batch between": (
        lambda x: (x.transpose(0, 1).contiguous() * 1.7).sum((0, 2)), (17, 23),
    ),
    "a softmax in the middle": (lambda x: torch.softmax(x, 1), (37, 5)),
    "a mean over rows": (lambda x: x.mean(1), (50, 64)),
    "variances": (lambda x: torch.var(x, (1, 2)), (31, 29)),
    "an instance norm": (F.instance_norm, (5, 13, 13)),
    "sums so far": (lambda x: x.cumsum(1), (300,)),
    "a long sum": (lambda x: (x * x).sum(1) * 1e-3, (70000,)),
    "elementary functions": (
        lambda x: x.sin() + x.exp() * x.erf() + x.tanh() - (x * x).log1p() + (x * x).pow(1.3), (37,),
    ),
    "products of rows": (lambda x: torch.einsum("bij,bkj->bik", x, x).softmax(-1), (11, 19)),
    "a product and a norm": (lambda x: F.normalize(x, dim=-1) @ WEIGHT, (40,)),
    "the batch in the second dimension": (lambda x: (x.transpose(0, 1) @ WEIGHT).softmax(-1).sum(0), (13, 40)),
    "a scatter": (
        lambda x: torch.zeros(x.shape[0], 9).scatter_add(1, (x * 100).long() % 9, x), (200,),
    ),
    "a transposed convolution": (
        lambda x: F.conv_transpose1d(x, WEIGHT[:4, :24].reshape(4, 8, 3), stride=2).relu(), (4, 21),
    ),
    "grouped and dilated": (
        lambda x: F.conv2d(x, WEIGHT[:6, :18].reshape(6, 2, 3, 3), padding=2, dilation=2, groups=2), (4, 9, 11),
    ),
    "pooling": (lambda x: F.max_pool2d(F.avg_pool2d(x, 3, 2, 1), 2).mean((2, 3)), (6, 20, 20)),
    "two largest": (lambda x: (x @ WEIGHT).topk(2).values + (x @ WEIGHT).sort(1).values[:, :2], (40,)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_programs(name, dynamic):
    program, shape = PROGRAMS[name]
    batch = torch.randn(ROWS, *shape)
    made = compile_api.compile(program, dynamic=dynamic, options={"batch_invariant": True, "strict": True})
    whole = made(batch)
    assert differing(made, whole, batch) == []
    torch.testing.assert_close(whole, program(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rows_of_other_types(dtype):
    weight, bias = WEIGHT.to(dtype), WEIGHT[0].to(dtype)
    program = lambda x: F.layer_norm(F.gelu(F.linear(x, weight, bias)), (40,)) @ weight
    batch = torch.randn(ROWS, 40).to(dtype)
    made = compile_api.compile(program, options={"batch_invariant": True, "strict": True})
    whole = made(batch)
    assert whole.dtype == dtype and differing(made, whole, batch) == []
    if dtype == torch.float64:
        torch.testing.assert_close(whole, program(batch))
        return
    exact = F.layer_norm(F.gelu(F.linear(batch.double(), weight.double(), bias.double())), (40,)) @ weight.double()
    error, own = ((y.double() - exact).abs().max() for y in (whole, program(batch)))
    assert error <= 4 * own + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["perceptron", "resnet"])
def test_gradients_of_rows(name):
    model, batch = MODELS[name]().eval(), batch_of(name, ROWS)
    made = compile_api.compile(model, options={"batch_invariant": True})

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(made(x).square().sum(), x)[0]

    whole = gradient(batch)
    assert differing(gradient, whole, batch) == []
    x = batch.clone().requires_grad_()
    torch.testing.assert_close(whole, torch.autograd.grad(model(x).square().sum(), x)[0], rtol=1e-4, atol=1e-4)


def test_threads_do_not_matter():
    model, batch = MODELS["bert"]().eval(), batch_of("bert", 4)
    made = compile_api.compile(model, options={"batch_invariant": True})
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(made(batch))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, results[0]) for x in results)


def test_what_is_not_known_is_named():
    def program(x):
        return torch.fft.rfft(x).real.sum(1)

    made = compile_api.compile(program, options={"batch_invariant": True})
    made(torch.randn(3, 8))
    (found,) = (p for p in made.report().policies if not p.held)
    assert found.op == "aten._fft_r2c.default" and "test_policies.py" in found.where
    assert "not batch invariant: aten._fft_r2c.default" in str(made.report())
    assert '"held": false' in made.report().to_json()
    with pytest.raises(errors.Unsupported, match=r"_fft_r2c\.default under batch_invariant"):
        compile_api.compile(program, options={"batch_invariant": True, "strict": True})(torch.randn(3, 8))


def test_what_is_left_to_eager_is_named():
    made = compile_api.compile(lambda x: x * 2, backend="inductor", options={"batch_invariant": True})
    with pytest.MonkeyPatch.context() as patch:
        import inductor_gen

        def failing(*args, **settings):
            raise errors.Unsupported("planted")

        patch.setattr(inductor_gen, "compile_graph", failing)
        with pytest.warns(errors.CompileWarning, match="planted"):
            made(torch.ones(2))
    assert [(p.op, p.held) for p in made.report().policies] == [("codegen", False)]


def test_policies_and_other_options():
    for policy in ("deterministic", "batch_invariant"):
        with pytest.raises(errors.UserError, match="measured times would choose orders of sums"):
            compile_api.compile(torch.sin, mode="max-autotune", options={policy: True})
    with pytest.raises(errors.UserError, match="'batch_invariant' and numerics='eager_exact' do not agree"):
        compile_api.compile(torch.sin, options={"batch_invariant": True, "numerics": "eager_exact"})
    assert compile_api.Options(batch_invariant=True).numerics == "eager_close"
    keys = {compile_api.Options(**{p: True}).cache_key() for p in ("deterministic", "batch_invariant")}
    assert len(keys | {compile_api.Options().cache_key()}) == 3


# ---- deterministic ---------------------------------------------------------------------------------------------


def test_a_sum_is_one_threads():
    """Threads bring their parts of a sum in the order in which they end: 200 calls gave 7 results with 16 threads."""
    x = torch.randn(1 << 20, dtype=torch.float64)
    x *= torch.randn(1 << 20, dtype=torch.float64).exp()
    shared = "#pragma omp parallel for schedule(static) reduction(+:"
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(16)
        for deterministic in (False, True):
            options = {"deterministic": deterministic, "threads": 16}
            made = compile_api.compile(lambda x: (x * 1.5).sum(), options=options)
            results = {made(x).item() for _ in range(100 if deterministic else 1)}
            assert len(results) == 1
            assert any(shared in k.source for k in made.report().kernels) is not deterministic
    finally:
        torch.set_num_threads(before)


def test_the_librarys_calls_are_deterministic():
    """As under ``torch.use_deterministic_algorithms``, and the setting is afterwards as it was."""
    seen = []

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((str(func), torch.are_deterministic_algorithms_enabled()))
            return func(*args, **(kwargs or {}))

    made = compile_api.compile(lambda x: (x @ x).median(1).values, options={"deterministic": True})
    x = torch.randn(5, 5)
    want = made(x)
    from inductor_gen.extern.functions import deterministic

    with Watching():
        got = deterministic(torch.ops.aten.median.dim)(x @ x, 1)[0]
    assert torch.equal(got, want) and ("aten.median.dim", True) in seen
    assert not torch.are_deterministic_algorithms_enabled()
    assert made.report().extern_counts()["aten.median.dim"] == 1
    (found,) = made.report().policies
    assert (found.policy, found.op, found.held) == ("deterministic", "aten.median.dim", True)


def test_an_error_of_the_library_leaves_the_setting():
    from inductor_gen.extern.functions import deterministic

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(IndexError):
            deterministic(torch.ops.aten.median.dim)(torch.ones(2), 7)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_has_no_deterministic_form_raises():
    """Eager, which runs what fails, would take it."""

    def program(x):
        values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        return torch.nn.functional.max_unpool2d(values, places, 2) * 2

    x = torch.randn(1, 1, 4, 4)
    compiled = compile_api.compile(program, options={"deterministic": True})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            compiled(x)
    torch.testing.assert_close(compile_api.compile(program)(x), program(x))


def test_two_processes_give_the_same_bits(tmp_path):
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
        import torch, compile_api
        from invariant_models import MODELS, batch_of
        torch.manual_seed(0)
        model, batch = MODELS["gpt2"](), batch_of("gpt2", 4)
        options = {{"deterministic": True, "batch_invariant": True, "program_cache": True}}
        made = compile_api.compile(model, options={{**options, "cache_dir": {str(tmp_path)!r}}})
        loss = made(batch).square().sum()
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        print(loss.item().hex(), *(g.double().sum().item().hex() for g in grads))
        print(made.report().programs, file=sys.stderr)
    """)
    run = lambda: subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    runs = [run(), run()]
    assert runs[0].stdout == runs[1].stdout and "0x" in runs[0].stdout
