"""The cross-entropy of logits that nothing else reads: by chunks of rows, as near to float64 as eager's is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import zoo
from judge import RUNS, rounded
from test_training_memory import peak_bytes

import compile_api
from aot_autograd.trace import losses

B, T, V, H = 5, 10, 101, 24
TARGET = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(0))
TARGET[0, 3] = TARGET[4, 9] = -100
OF_CLASSES = torch.rand(V, generator=torch.Generator().manual_seed(1))
FLAT = TARGET.view(-1)

PROGRAMS = {
    "mean": lambda x, w, b: F.cross_entropy(F.linear(x, w).view(-1, V), FLAT),
    "sum": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V), FLAT, reduction="sum"),
    "module": lambda x, w, b: torch.nn.CrossEntropyLoss(ignore_index=3)(F.linear(x, w, b).flatten(0, 1), FLAT.clamp(0)),
    "shifted": lambda x, w, b: F.cross_entropy(
        F.linear(x, w, b)[..., :-1, :].contiguous().float().view(-1, V), TARGET[..., 1:].contiguous().view(-1)
    ),
    "last rows": lambda x, w, b: F.cross_entropy(F.linear(x, w, b)[:, -3:].reshape(-1, V), TARGET[:, -3:].reshape(-1)),
    "one row": lambda x, w, b: F.cross_entropy(F.linear(x, w, b)[1, 2], TARGET[1, 2]),
    "classes second": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).transpose(1, 2), TARGET),
    "permuted": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).permute(0, 2, 1), TARGET),
    "class weights": lambda x, w, b: F.cross_entropy(F.linear(x, w).view(-1, V), FLAT, OF_CLASSES.to(x.dtype)),
    "smoothed": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V), FLAT, label_smoothing=0.1),
    "both": lambda x, w, b: F.cross_entropy(
        F.linear(x, w, b).view(-1, V), FLAT, OF_CLASSES.to(x.dtype), label_smoothing=0.2
    ),
    "log softmax": lambda x, w, b: F.nll_loss(F.log_softmax(x @ w.t() + 0.5, -1).view(-1, V), FLAT),
    "capped": lambda x, w, b: 3 * F.cross_entropy((torch.tanh(x @ w.T / 5.0) * 5.0).flatten(0, 1), FLAT),
    "all ignored": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V), torch.full_like(FLAT, -100)),
    "two": lambda x, w, b: (
        F.cross_entropy(F.linear(x, w).view(-1, V), FLAT) + F.cross_entropy(F.linear(x.sin(), w, b).view(-1, V), FLAT)
    ),
    "differentiated inside": lambda x, w, b: (
        torch.autograd.grad(F.cross_entropy(F.linear(x, w, b).view(-1, V), FLAT), x)[0].mul(w.mean()).sum()
    ),
}  # fmt: skip

#: Those that keep their logits.
KEPT = {
    "returned": lambda x, w, b: (F.cross_entropy((y := F.linear(x, w, b).view(-1, V)), FLAT), y),
    "read": lambda x, w, b: F.cross_entropy((y := F.linear(x, w, b).view(-1, V)), FLAT) + y.logsumexp(-1).mean(),
    "written": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V).mul_(2.0), FLAT),
    "masked classes": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V)[:, 1:], FLAT.clamp(0, V - 2)),
    "each row": lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V), FLAT, reduction="none").square().sum(),
    "probabilities": lambda x, w, b: F.cross_entropy(F.linear(x, w).view(-1, V), F.one_hot(FLAT.clamp(0), V).to(x)),
    "other classes": lambda x, w, b: F.cross_entropy(F.linear(x, w, b)[:, :V], TARGET[:, :1].clamp(0, 9).expand(B, V)),
    "twice differentiated": lambda x, w, b: (
        torch.autograd.grad(F.cross_entropy(F.linear(x, w).view(-1, V), FLAT), x, create_graph=True)[0].square().sum()
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Chunks of few rows, the last of them not full, and however little they save."""
    monkeypatch.setattr(losses, "_LEAST", -(1 << 40))
    monkeypatch.setattr(losses, "_ROWS", 16)


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    shapes = [(B, T, H), (V, H), (V,)]
    return [(torch.randn(s, generator=generator) / 2).to(dtype).requires_grad_() for s in shapes]


def by_chunks(compiled) -> int:
    return sum("linear_loss" in record.name for record in compiled.report().externs)


def results(fn, args):
    """Results and gradients, for a tangent that is no power of two."""
    out = fn(*args)
    first = out[0] if isinstance(out, tuple) else out
    found = torch.autograd.grad(first, args, torch.full_like(first, 1.7), allow_unused=True)
    return [first, *found]


def compare(fn, args, compiled, exact_fn=None):
    """Ours are as near to float64's as eager's is on numbers that any rounding may have left, of one type and layout."""
    eager, ours = results(fn, args), results(compiled, args)
    exact = results(exact_fn or fn, [x.detach().double().requires_grad_() for x in args])
    generator = torch.Generator().manual_seed(0)
    others = [results(fn, rounded(args, generator)) for _ in range(RUNS)]
    for got, usual, wanted, *spread in zip(ours, eager, exact, *others, strict=True):
        if usual is None:
            assert got is None
            continue
        assert (got.dtype, got.shape, got.stride()) == (usual.dtype, usual.shape, usual.stride())
        distance = lambda x, wanted=wanted: (x.double() - wanted).abs().nan_to_num().max().item()
        errors = [distance(got), max(map(distance, (usual, *spread)))]
        largest = wanted.abs().nan_to_num().max().item()
        assert torch.equal(got.isnan(), usual.isnan())
        units = 32 if got.dtype == torch.float64 else 4  # of float64 the reference is rounded as well
        assert errors[0] <= max(2 * errors[1], units * torch.finfo(got.dtype).eps * largest), errors
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_losses(name, dtype):
    if name == "shifted" and dtype == torch.float64:
        pytest.skip("its float() makes float32 of the logits, in the reference too")
    compiled = compile_api.compile(PROGRAMS[name], fullgraph=True, options={"strict": True})
    compare(PROGRAMS[name], inputs(dtype), compiled)
    assert by_chunks(compiled) == (2 if name == "two" else 1)
    assert any("exp" in " ".join(k.ops) for k in compiled.report().kernels)  # the body is generated code
    with torch.no_grad():
        if name != "differentiated inside":
            torch.testing.assert_close(compiled(*inputs(dtype)), PROGRAMS[name](*inputs(dtype)), equal_nan=True)


@pytest.mark.parametrize("name", KEPT)
def test_logits_that_stay(name):
    compiled = compile_api.compile(KEPT[name], options={"strict": True})
    compare(KEPT[name], inputs(), compiled)
    assert by_chunks(compiled) == 0


@pytest.mark.parametrize("options", [{"numerics": "eager_exact"}, {"numerics": "eager_close"}, {"fuel": 0}], ids=str)
def test_options_that_keep_the_logits(options):
    compiled = compile_api.compile(PROGRAMS["mean"], options=options)
    compare(PROGRAMS["mean"], inputs(), compiled)
    assert by_chunks(compiled) == 0


def test_float16_keeps_its_logits():
    compiled = compile_api.compile(PROGRAMS["sum"])
    results(compiled, inputs(torch.float16))
    assert by_chunks(compiled) == 0


@pytest.mark.parametrize("name", ["mean", "sum", "smoothed", "log softmax", "shifted"])
def test_autocast(name):
    def autocast(x, w, b):
        with torch.autocast("cpu", torch.bfloat16):
            return PROGRAMS[name](x, w, b)

    compiled = compile_api.compile(autocast, fullgraph=True, options={"strict": True})
    compare(autocast, inputs(), compiled, PROGRAMS[name])
    assert by_chunks(compiled) == 1


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_frozen_operands(learning):
    fn = lambda *given: PROGRAMS["sum"](*merged(learning, given))
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
    compare(fn, [inputs()[at] for at in learning], compiled)
    assert by_chunks(compiled) == 1


def merged(learning, given):
    args = [x.to(given[0].dtype) for x in FIXED]
    for at, x in zip(learning, given, strict=True):
        args[at] = x
    return args


FIXED = [x.detach() for x in inputs()]


def test_batches_of_other_sizes():
    def loss(x, w, target):
        return F.cross_entropy(F.linear(x, w).view(-1, V), target.view(-1))

    compiled = compile_api.compile(loss, fullgraph=True, options={"strict": True})
    for rows in (2, 3, 8, 16, 17, 33):
        x, w, _ = inputs()
        x = torch.randn(rows, 4, H).requires_grad_()
        target = torch.randint(0, V, (rows, 4))
        ours = torch.autograd.grad(compiled(x, w, target), (x, w))
        for got, wanted in zip(ours, torch.autograd.grad(loss(x, w, target), (x, w)), strict=True):
            torch.testing.assert_close(got, wanted)
    assert by_chunks(compiled) == 2 and len(compiled.report().recompiles) == 1  # of one size, then of any


def test_a_class_that_does_not_exist_is_refused():
    def loss(x, w, target):
        return F.cross_entropy(F.linear(x, w).view(-1, V), target.view(-1))

    x, w, _ = inputs()
    compiled = compile_api.compile(loss)
    compiled(x, w, TARGET)
    assert by_chunks(compiled) == 1
    for wrong in (V, -1):
        with pytest.raises(IndexError):
            loss(x, w, torch.full_like(TARGET, wrong))
        with pytest.raises(IndexError):
            compiled(x, w, torch.full_like(TARGET, wrong))


def test_disabled_classes_and_numbers_that_are_none():
    x, w, b = inputs()
    with torch.no_grad():
        b[:1] = -torch.inf  # the class that rows that fill up the last chunk belong to
        x[2, 3] = torch.nan
    loss = lambda x, w, b: F.cross_entropy(F.linear(x, w, b).view(-1, V), FLAT.clamp(1))
    compiled = compile_api.compile(loss, fullgraph=True)
    for chosen in (slice(0, 2), slice(0, 5)):
        part = lambda x, w, b, chosen=chosen: loss_of(x[chosen], w, b, TARGET[chosen].clamp(1))
        for got, usual in zip(
            results(compile_api.compile(part), [x, w, b]), results(part, [x, w, b]), strict=True
        ):  # fmt: skip
            torch.testing.assert_close(got, usual, equal_nan=True)
    compiled(x, w, b)
    assert by_chunks(compiled) == 1


def loss_of(x, w, b, target):
    return F.cross_entropy(F.linear(x, w, b).view(-1, V), target.view(-1))


def test_second_derivatives_and_a_graph_used_twice():
    x, w, b = inputs()
    compiled = compile_api.compile(PROGRAMS["mean"], fullgraph=True)
    found = []
    for fn in (compiled, PROGRAMS["mean"]):
        (first,) = torch.autograd.grad(fn(x, w, b), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), (x, w)))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)
    loss = compiled(x, w, b)
    once = torch.autograd.grad(loss, (x, w), retain_graph=True)
    again = torch.autograd.grad(loss, (x, w))
    assert all(map(torch.equal, once, again)) and by_chunks(compiled) == 1


def test_a_small_loss_stays_whole_and_a_large_one_does_not(monkeypatch):
    """The bytes of the logits decide; the step's peak falls by what is saved."""
    monkeypatch.undo()

    def loss(x, w, target):
        return F.cross_entropy(F.linear(x, w), target)

    def step(fn, rows):
        x, w, target = torch.randn(rows, 16), torch.randn(8000, 16).requires_grad_(), torch.arange(rows)
        fn(x, w, target)  # compiled
        return max(peak_bytes(lambda: fn(x, w, target).backward()) for _ in range(3))

    small = compile_api.compile(loss, dynamic=False)
    step(small, 64)
    assert by_chunks(small) == 0
    large = compile_api.compile(loss, dynamic=False)
    ours, whole = step(large, 4096), 4096 * 8000 * 4
    assert by_chunks(large) == 1
    assert ours < 0.4 * whole, (ours, whole)
    assert step(compile_api.compile(loss, dynamic=False, options={"numerics": "eager_close"}), 4096) > 0.9 * whole


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_language_models(model):
    """The loss of a causal model whose caller drops the logits, with tied weights (GPT-2) and without, and a whole step."""
    case = zoo.build(model, small=True, batch=2)
    module, (ids, *_) = case.model.train(), case.args
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    loss = lambda ids: module(ids, labels=ids).loss
    wanted = gradients(loss, module, ids)
    compiled = compile_api.compile(loss, options={"strict": True})
    check_close(gradients(compiled, module, ids), wanted)
    assert by_chunks(compiled) == 1

    def step(ids):
        loss(ids).backward()

    inside = compile_api.compile(step, options={"strict": True})
    module.zero_grad(set_to_none=True)
    inside(ids)
    check_close([p.grad for p in module.parameters() if p.requires_grad], wanted[1:])
    assert by_chunks(inside) == 1
    whole = compile_api.compile(module)
    logits = whole(ids, labels=ids).logits
    assert logits.shape[:2] == ids.shape and by_chunks(whole) == 0


def gradients(loss, module, ids):
    module.zero_grad(set_to_none=True)
    value = loss(ids)
    value.backward()
    return [value.detach(), *(p.grad for p in module.parameters() if p.requires_grad)]


def check_close(ours, wanted):
    for got, usual in zip(ours, wanted, strict=True):
        torch.testing.assert_close(got, usual, rtol=1e-3, atol=1e-5)
