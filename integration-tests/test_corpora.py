"""A small fixed sample of the corpora, and what their judge and their pool say of damage (``corpora/README.md``)."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time

import corpora.measure
import corpora.pool
import pytest
import torch
from corpora.lots import Lots
from corpora.measure import measured
from corpora.pool import Settings, Task
from corpora.programs import Program, Unbuilt
from corpora.table import one_graph, table
from corpora.tiny import kinds, limit

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
needs_timm = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("timm", "torchvision")), reason="needs timm and torchvision"
)


@pytest.fixture(autouse=True)
def _libraries(monkeypatch):
    """torchvision is importable, and nothing may use a network."""
    import zoo

    if importlib.util.find_spec("torchvision") is not None:
        zoo.import_torchvision()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    "kind,name",
    [
        pytest.param("transformers", "bloom", marks=needs_transformers),
        pytest.param("timm", "vision_transformer", marks=needs_timm),
        ("modules", "nn.GRUCell"),
        ("modules", "nn.GroupNorm"),
        ("examples", "torch.addmm"),
        ("examples", "torch.nn.Bilinear"),
    ],
)
def test_sample(kind, name):
    record = measured(kind, name, "ours")
    assert record["status"] == "ok", record
    assert one_graph(record), record["infer"]
    assert record["infer"]["kernels"] or kind == "examples"
    if kind != "examples":
        assert one_graph(record, "train"), record["train"]


def test_examples_that_break_say_why():
    record = measured("examples", "torch.nonzero", "ours")
    assert record["status"] == "ok" and not one_graph(record)
    assert "nonzero" in record["infer"]["breaks"][0]


# ---- damage ---------------------------------------------------------------------------------------------


class Damaged:
    """A stack whose results are eager's, changed."""

    def __init__(self, change):
        self.change = change

    def compile(self, function):
        return lambda *args, **kwargs: self.change(function(*args, **kwargs))

    def facts(self):
        return {"graphs": 1, "nodes": 1, "breaks": [], "left": [], "kernels": 1, "recompiles": [], "idle": False,
                "verdict": "compiled"}  # fmt: skip


class Wrong(torch.autograd.Function):
    """The identity, whose gradient lacks a thousandth in one place."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad.view(-1)[0] *= 0.999
        return grad


def _element(x):
    x = x.clone()
    with torch.no_grad():
        x.view(-1)[-1] += 1e-3 * x.abs().max()
    return x


DAMAGE = {
    "scaled": lambda x: x * 1.0001,
    "one element": _element,
    "a NaN": lambda x: torch.where(torch.arange(x.numel()).view(x.shape) == 3, float("nan"), x),
    "transposed in memory": lambda x: x.mT.contiguous().mT,
    "float64": lambda x: x.double(),
    "detached": lambda x: x.detach(),
    "its gradient": Wrong.apply,
    "two results": lambda x: (x, x),
    "none": lambda x: x,
}


@pytest.fixture
def program(monkeypatch):
    """A model as the only program, and the stack that ``measured`` is to take."""

    def use(stack, make=None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 6)
        )
        x = torch.randn(4, 8)
        monkeypatch.setattr(corpora.measure, "build", make or (lambda kind, name: Program(model, (x,))))
        monkeypatch.setattr(corpora.measure, "make_stack", lambda name: stack)
        return measured("none", "none", "ours")

    return use


@pytest.mark.parametrize("how", DAMAGE)
def test_the_judge_sees_damage(how, program):
    record = program(Damaged(DAMAGE[how]))
    assert record["status"] == ("ok" if how == "none" else "wrong"), record
    if how in ("detached", "its gradient"):  # of inference they are no damage
        assert record["infer"]["status"] == "ok" and record["train"]["status"] == "wrong"


def test_the_judge_sees_other_integers_and_plain_values(program):
    x = torch.randn(5)
    for results, change in (
        (lambda: (x.argsort(), 3), lambda r: (r[0].flip(0), 3)),
        (lambda: (x.argsort(), 3), lambda r: (r[0], 4)),
        (lambda: (x > 0, "a"), lambda r: (~r[0], "a")),
    ):
        make = lambda kind, name, results=results: Program(results, train=False)
        assert program(Damaged(lambda r: r), make)["status"] == "ok"
        assert program(Damaged(change), make)["status"] == "wrong"


NO_STRIDES = {
    "csr": (lambda x: x.to_sparse_csr(), lambda r: (r.to_dense() * 1.01).to_sparse_csr()),
    "bsc": (lambda x: x.to_sparse_bsc((2, 2)), lambda r: r.to_dense()),
    "coo": (lambda x: x.to_sparse(), lambda r: r.to_dense().to_sparse_csr()),
    "named": (lambda x: x.rename("A", "B"), lambda r: r.rename("A", "C")),
    "named, other numbers": (lambda x: x.rename("A", "B"), lambda r: r * 1.01),
}


@pytest.mark.parametrize("how", NO_STRIDES)
def test_the_judge_compares_sparse_and_named_tensors(how, program):
    """It ended with an error, which counted as a crash of what it was to judge."""
    if "named" in how and not hasattr(torch.Tensor, "rename"):
        pytest.skip("this PyTorch has no named tensors")
    x = torch.randn(4, 6)
    make, change = NO_STRIDES[how]
    build = lambda kind, name: Program(lambda: make(x), train=False)
    assert program(Damaged(lambda r: r + 0 if "named" in how else r), build)["status"] == "ok"
    assert program(Damaged(change), build)["status"] == "wrong"


def test_an_exception_that_eager_does_not_raise_is_a_crash(program):
    def fail(result):
        raise ValueError("no")

    record = program(Damaged(fail))
    assert record["status"] == "crash" and "ValueError: no" in record["why"]


def test_what_cannot_be_made_is_not_counted(program):
    def refuse(kind, name):
        raise Unbuilt("not here")

    record = program(Damaged(lambda x: x), refuse)
    assert record["status"] == "unbuilt"
    text, short = table([{**record, "kind": "timm", "total_s": 0.0}])
    assert not short and "    0.0%" in text


# ---- the pool and the table -----------------------------------------------------------------------------


def _does(how):
    match how:
        case "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hangs":
            time.sleep(60)
        case "grows":
            return {"size": torch.ones(1 << 31).numel()}
        case "calls":
            import socket

            socket.create_connection(("127.0.0.1", 9))
    return {}


@pytest.mark.skipif(sys.platform != "linux", reason="the pool forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_pool_keeps_its_limits(monkeypatch):
    """A process that dies, hangs, takes too much memory or reaches for a network is a row; others go on."""
    monkeypatch.setattr(corpora.pool, "work", lambda task, settings: task.row(status="ok", **_does(task.name)))
    monkeypatch.setenv("QUINTET_CACHE_DIR", os.environ.get("QUINTET_CACHE_DIR", ""))
    tasks = [Task("none", name, "ours") for name in ("dies", "hangs", "grows", "calls", "works")]
    rows = {row["name"]: row for row in corpora.pool.run(tasks, Settings(jobs=2, limit=4.0, memory=2.0))}
    assert {name: row["status"] for name, row in rows.items()} == {
        "dies": "crash", "hangs": "late", "grows": "crash", "calls": "crash", "works": "ok",
    }  # fmt: skip
    assert rows["dies"]["why"] == "the process ended: signal 11"
    assert any("memory" in line for line in rows["grows"]["trace"])
    assert any("network" in line for line in rows["calls"]["trace"])


def test_bars():
    part = {"status": "ok", "graphs": 1, "breaks": [], "left": [], "kernels": 2}
    whole = {"kind": "timm", "stack": "ours", "status": "ok", "infer": part, "total_s": 1.0}
    broken = {**whole, "infer": {**part, "graphs": 2, "breaks": ["why @ there"]}}
    rows = [{**whole, "name": f"{k}"} for k in range(98)] + [{**broken, "name": f"{k}"} for k in (98, 99)]
    text, short = table(rows)
    assert short == [] and "breaks: why" in text
    _, short = table([*rows, {**broken, "name": "100"}])
    assert short == ["BELOW THE BAR: timm: 97.0% in one graph, the bar is 98%"]
    _, short = table([*rows, {**whole, "name": "100", "status": "wrong", "why": "error"}])
    assert short[0] == "BELOW THE BAR: timm: 1 wrong, the bar is 0"


def test_sizes_by_the_form_of_their_names():
    assert limit("hidden_size") == limit("d_model") == 32 and limit("num_key_value_heads") == 2
    assert limit("decoder_layers") == 2 and limit("vision_vocab_size") == 128 and limit("num_labels") is None
    assert kinds(["full", "full", "sliding", "full"], 2) == ["full", "sliding"]
    assert kinds(("a", "a", "a"), 2) == ["a", "a"]


# ---- what rounding leaves open --------------------------------------------------------------------------


class Network(torch.nn.Module):
    """Many relus, of which sixteen have one operand each that is 0 but for roundings, and a place through whose gradient
    damage comes."""

    def __init__(self, x, damage=None):
        super().__init__()
        self.first = torch.nn.Conv2d(x.shape[1], 16, 3, padding=1)
        with torch.no_grad():
            self.first.bias.zero_()
            self.first.bias.copy_(-self.first(x)[0, :, 3, 4])
        self.middle = torch.nn.Sequential(self.convolution(16), torch.nn.MaxPool2d(2))
        self.last = self.convolution(8)
        self.damage = damage

    def convolution(self, out):
        return torch.nn.Sequential(
            torch.nn.Conv2d(16, out, 3, padding=1, bias=False), torch.nn.BatchNorm2d(out), torch.nn.ReLU()
        )

    def forward(self, x):
        x = self.middle(torch.relu(self.first(x)))
        return self.last(x if self.damage is None else Damage.apply(x, self.damage)).mean((2, 3))


class Damage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


class Replaced:
    """A stack whose "compiled" module is another one."""

    facts = Damaged.facts

    def __init__(self, change):
        self.change = change

    def compile(self, function):
        if isinstance(function, torch.nn.Module):
            self.change(function)
        return function


GRADIENTS = {
    "none": (None, "ok"),
    "a quarter more": (lambda g: g * 1.25, "wrong"),
    "none at all": (torch.zeros_like, "wrong"),
    "halves exchanged": (lambda g: g.roll(g.shape[1] // 2, 1), "wrong"),
    "a hundredth more": (lambda g: g * 1.01, "wrong"),
    "one element lost": (lambda g: torch.where(g.abs() == g.abs().max(), 0, g), "wrong"),
}


@pytest.mark.parametrize("how", GRADIENTS)
def test_damage_to_a_gradient_among_relus(how, program):
    """A judge that allows for turned relus is to see what no turned relu does."""
    change, status = GRADIENTS[how]
    torch.manual_seed(0)
    x = torch.randn(2, 8, 16, 16)
    model = Network(x)
    replaced = Replaced(lambda m: setattr(m, "damage", change))
    record = program(replaced, lambda kind, name: Program(model, (x,)))
    assert record["status"] == status, record


def _other_sums(module):
    """Convolutions whose weights' sums are added up in another order, as a compiler's kernels may."""
    for convolution in [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]:

        def other(x, convolution=convolution):
            weight, half = convolution.weight, x.shape[1] // 2
            first, second = (
                torch.nn.functional.conv2d(x[:, part], weight[:, part], padding=1)
                for part in (slice(half), slice(half, None))
            )
            biased = first if convolution.bias is None else first + convolution.bias[:, None, None]
            return biased + second

        convolution.forward = other


def test_other_roundings_are_right_though_they_turn_relus(program):
    turned = 0
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(2, 8, 16, 16)
        model = Network(x)
        record = program(Replaced(_other_sums), lambda kind, name, model=model, x=x: Program(model, (x,)))
        assert record["status"] == "ok", record
        turned += record["train"]["judged"] == "rounded"
    assert turned


def test_what_is_open_is_drawn_by_lot():
    """Of a relu's operands, a pool's and a comparison's, those that are off by more than they are from the limit."""
    x = torch.tensor([[[1e-8, -1e-8, 0.5, -0.5], [0.0, 2.0, 2.0, -2.0]]], requires_grad=True)
    off = torch.tensor([[[3e-8, -3e-8, 1e-9, 1e-9], [0.0, 1e-8, -1e-8, 0.0]]], dtype=torch.float64)

    def run(x):
        x = x.detach().requires_grad_()
        y = (x * 1).relu()
        pooled = torch.nn.functional.max_pool2d(x[:, 1:, 1:3] * 1, (1, 2))
        above = (x * 1 > 0) * 1.0
        (y.sum() + pooled.sum()).backward()
        return x.grad, above.detach()

    lots = Lots(lambda: run(x), lambda: run(x.double() + off))
    plain, seen = run(x), set()
    for seed in range(40):
        with lots.drawn(seed):
            gradient, above = run(x)
        same = [torch.equal(gradient[0, 0, 2:], plain[0][0, 0, 2:]), torch.equal(above[0, :, 2:], plain[1][0, :, 2:])]
        assert all(same) and gradient[0, 1, 0] == plain[0][0, 1, 0] and above[0, 1, 0] == plain[1][0, 1, 0]
        drawn = {"relu": gradient[0, 0, :2], "pool": gradient[0, 1, 1:3], "gt": above[0, 0, :2]}
        seen |= {(name, *map(float, values)) for name, values in drawn.items()}
    assert len([s for s in seen if s[0] == "relu"]) == len([s for s in seen if s[0] == "gt"]) == 4
    assert len([s for s in seen if s[0] == "pool"]) == 2
