"""Random programs agree with eager, and the judges that say so see damage."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz.driver
import fuzz.inputs
import fuzz.program
import fuzz.tensors
import fuzz.worker
import pytest
import torch
from fuzz import mutation, pythons, sizes, tensors, training
from fuzz.damage import Damaged
from fuzz.driver import Settings, describe, run
from fuzz.judge import compare_trees, judge
from fuzz.observe import Observer
from fuzz.program import AssertedError, Program, check, observe
from fuzz.shrink import shrink
from fuzz.worker import examine

import inductor_gen

GENERATORS = {
    "tensor": tensors.generate, "python": pythons.generate, "training": training.generate, "mutation": mutation.generate,
    "sizes": sizes.generate,
}  # fmt: skip
#: Which damage belongs to which kind of program.
POWER = [
    *(("tensor", how) for how in ("zero", "scale", "swap", "strides", "element", "sign", "effect")),
    *(("training", how) for how in ("zero", "scale", "element", "sign")),
    *(("mutation", how) for how in ("zero", "scale", "swap")),
    *(("python", how) for how in ("plain", "error", "effect", "swap")),
    ("sizes", "element"),
]


@functools.cache
def program(kind: str, seed: int) -> Program:
    return Program(kind, seed, GENERATORS[kind](seed))


@pytest.mark.parametrize(
    "kind,first,count",
    [("python", 2000, 575), ("mutation", 1000, 245), ("tensor", 2000, 100), ("training", 3012, 50), ("sizes", 0, 30)],
)
def test_programs_agree_with_eager(kind: str, first: int, count: int) -> None:
    """A thousand programs, which also must not have agreed by running eagerly."""
    totals, failures = run(Settings((kind,), seed=first, count=count, jobs=2, shrinking=10.0, quiet=True))
    assert totals[kind].programs == count
    assert not failures, "\n".join(map(describe, failures))
    assert not totals[kind].shortfalls(kind)


@pytest.mark.parametrize("kind,how", POWER, ids=lambda v: v)
def test_damage_is_seen(kind: str, how: str) -> None:
    """Eager itself, damaged, takes the compiler's place: nearly every damage is a difference."""
    seen = damaged = 0
    for seed in range(150):
        if how == "element" and "float16" in program(kind, seed).source:
            continue  # to 16 bits, two percent is little
        hits: list[int] = []
        outcome = check(program(kind, seed), instead=lambda fn: Damaged(how, fn, hits))
        damaged += bool(hits)
        seen += bool(hits) and outcome.difference is not None
        if damaged == (8 if kind == "training" else 12):  # a training program takes seconds
            break
    assert damaged >= 6
    least = 0.85 if how == "sign" else 0.95  # a zero that several terms add up to may have either
    assert seen >= least * damaged, f"{seen} of {damaged}"


@pytest.mark.parametrize("kind", GENERATORS)
def test_eager_agrees_with_itself(kind: str) -> None:
    for seed in range(12):
        outcome = check(program(kind, seed), instead=lambda fn: fn)
        assert outcome.difference is None, (seed, outcome.difference)


def test_infinity_is_right_beside_a_pole_alone() -> None:
    """Of a number divided by a rounding the sign and the size are chance; of one divided by what is known, nothing is."""
    eager, infinite = torch.tensor([-4.75e8, 4.75e8, 4.75e8, 1e-9, 3.0]), torch.full((5,), float("inf"))
    runs = [[6e16, 6e16, 2.5e9, 1e-10, 3.0], [-2e9, 2e9, 2e9, -2e-9, 3.1]]
    wrong, undecided = judge(eager, infinite, [torch.tensor(run, dtype=torch.float64) for run in runs])
    assert wrong.tolist() == [False, False, True, True, True]
    assert undecided.tolist() == [True, True, False, False, False]


def test_what_a_program_raises_is_no_defect() -> None:
    reason = "capture: an iterator is live here [QB10]; where the graph would end because of this: the program raises an exception here: KeyError: 3 [QB19]"
    assert not fuzz.program.INTERNAL.search(reason)
    assert fuzz.program.INTERNAL.search("aot_autograd: the backward runs uncompiled: VerifierError: [ATEN-C6] derived")
    assert fuzz.program.INTERNAL.search(reason + "; KeyError: 3, aot_autograd: KeyError: 4")


STEPS_OF_NOISE = """
import torch

def f(w, x):
    return torch.nn.functional.group_norm(x * w, 1).sum()

def program(compile, see):
    net = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.uniform_(net.weight, 1, 2)
    opt = torch.optim.Adam(net.parameters(), 0.5)
    g = compile(f)
    for _ in range(3):
        x = torch.linspace(-1, 1, 4).reshape(1, 4)
        opt.zero_grad()
        g(net.weight, x).backward()
        see("gradients", net.weight.grad)
        see.step(net, opt)
        see("later", (net.weight * x).detach())
"""


def test_a_step_that_rounding_decides_is_eagers() -> None:
    """An adaptive optimiser makes whole steps of gradients that are nothing but rounding; each run goes on from the same."""
    steps = Program("training", 0, STEPS_OF_NOISE)

    def other(amount: float) -> Any:
        return lambda f: lambda w, x: f(w, x) + (w * x).sum() * amount

    for amount, right in ((1e-9, True), (1e-3, False)):
        assert (check(steps, instead=other(amount)).difference is None) is right
    eager = observe(steps, lambda f: f)
    ours = observe(steps, other(1e-3), eager)
    alone = observe(steps, other(1e-3))
    leaves = [[tree.data for label, tree in see.trees if label == "later"] for see in (eager, ours, alone)]
    assert all(map(torch.equal, leaves[0], leaves[1]))
    assert float((leaves[0][0] - leaves[2][0]).abs().max()) > 0.1


def test_a_version_counts_where_numbers_change() -> None:
    """A write that rounding makes void in one run and not in the other is no difference of counters."""

    def counted(add: float, shown: bool) -> str:
        def call(t: torch.Tensor) -> None:
            (t if shown else t.data).add_(add)

        see = Observer()
        see.call("call", call, torch.ones(2))
        return str(dict(see.trees)["call: counted"])

    assert counted(1.0, True) == counted(0.0, True) == counted(0.0, False) != counted(1.0, False)


def test_places_in_memory_are_no_difference() -> None:
    """The one number in a text that two runs of eager do not share; others are compared."""
    source = """
class Box:
    pass


def program(compile, see):
    value = compile(lambda: {value})()
    see("text", str(value))
    see("error", ValueError(str(value)))
"""
    same = lambda fn: fn
    other = lambda fn: lambda: str(fn()) + "1"
    for value in ("Box()", "'at 0x12'"):
        written = Program("python", 0, source.format(value=value))
        assert check(written, instead=same).difference is None
        assert check(written, instead=other).difference is not None
    moving = Program("python", 0, source.format(value="'at ' + hex(id(Box()))"))
    assert check(moving, instead=lambda fn: lambda: "at 0x1").difference is not None


@pytest.mark.parametrize("eager,ours,same", [
    ("[s[:1], s[1:]]", "[s[:1].clone(), s[1:].clone()]", True), ("[s[:1], s[1:]]", "[s[:1], s[1:]]", True),
    ("[s[:1].clone(), s[1:].clone()]", "[s[:1], s[1:]]", False), ("[s[:1].clone(), s[1:]]", "[s[:1], s[1:].clone()]", True),
    ("[s[:1], s[1:]]", "[x[:1].detach(), s[1:]]", False),
])  # fmt: skip
def test_gradients_may_have_memory_of_their_own(eager: str, ours: str, same: bool) -> None:
    """They may share none that eager's do not."""
    trees = []
    for text in (eager, ours):
        x, see = torch.zeros(2, requires_grad=True), Observer()
        grads = eval(text, {"s": torch.zeros(2), "x": x})
        leaves = [torch.zeros(1, requires_grad=True) for _ in range(2)]
        see("x", x)
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.register_post_accumulate_grad_hook(functools.partial(lambda leaf, grad: setattr(leaf, "grad", grad), grad=grad))
        see.gradients("call", sum(leaves), leaves)
        see("x again", x)
        trees.append(see.trees)
    found = [compare_trees(a, b, "", []) for (_, a), (_, b) in zip(*trees, strict=True)]
    assert all(each is None for each in found) is same and found[0] is found[-1] is None


@dataclasses.dataclass(frozen=True)
class Held:
    name: str
    value: Any


SETS = {
    "tensors": lambda: {torch.ones(2), torch.zeros(1), 3},
    "in tuples": lambda: {(torch.ones(2), "a"), (torch.zeros(1), "b"), 1, 2},
    "in tuples in a frozenset": lambda: {frozenset({((torch.ones(2), "a"),), ((torch.ones(2), "b"),)}), "c", 2},
    "in objects of a data class": lambda: {Held("a", torch.ones(2)), Held("b", object()), 4},
}


@pytest.mark.parametrize("name", SETS)
def test_what_an_address_orders_is_told_in_one_order(name: str) -> None:
    kept, trees, orders = [], [], set()
    for _ in range(60):
        see, made = Observer(), SETS[name]()
        see("a set", made)
        kept.append(made)
        trees.append(see.trees[0][1])
        orders.add(str([(type(e).__name__, *map(str, e if isinstance(e, tuple) else ())) for e in made]))
    assert all(compare_trees(tree, trees[0], "", []) is None for tree in trees)
    assert len(orders) > 1, "one order in all runs: the test shows nothing"


def test_the_order_of_what_no_address_orders_is_compared() -> None:
    """Sets of numbers whose places are the same, so that they are in the order in which they came."""
    trees = []
    for made in ({0, 8}, {8, 0}, {(0, "a"), (8, "a")}, {(8, "a"), (0, "a")}):
        see = Observer()
        see("a set", made)
        trees.append(see.trees[0][1])
    assert [*{0, 8}] != [*{8, 0}] and compare_trees(trees[0], trees[1], "", []) is not None


def test_memory_that_was_given_up_is_not_taken_for_what_came_into_its_place() -> None:
    see, x = Observer(), torch.ones(4)
    for i in range(20):
        see(f"{i}", x)
        x.data = torch.empty(0)
        x.data = torch.full((4,), float(i))
    places = [part[1] for _, tree in see.trees for part in tree.meta if part[0] == "memory"]
    assert len(set(places)) == 20


def test_notes_of_errors_are_compared_but_for_the_line_of_the_program() -> None:
    source = """
def program(compile, see):
    error = ValueError("a")
    error.add_note("noted")
    compile(lambda e: None)(error)
    see("error", error)
"""

    def noting(note: str) -> Callable[..., Any]:
        return lambda fn: lambda error: error.add_note(note)

    written = Program("python", 0, source)
    assert check(written, instead=noting('In the program, this is\n  File "a.py", line 3')).difference is None
    assert check(written, instead=noting("In the program, so")).difference is not None


def test_workers_that_cannot_start_are_no_agreement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program runs where a worker cannot import the packages: that is an error, with the worker's words."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch in this place')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no torch in this place"):
        run(Settings(("training",), count=4, jobs=2, quiet=True))


def test_programs_depend_on_their_seed_alone() -> None:
    for generate in GENERATORS.values():
        assert generate(11) == generate(11) != generate(12)


@pytest.mark.parametrize("device,kept", [("cpu", True), ("cuda", False)])
def test_writes_to_shared_elements_have_an_answer_on_the_cpu_only(device: str, kept: bool) -> None:
    generator = fuzz.tensors._Tensors(0, device)
    for layout, line, runs in (
        ("overlapping", "x.neg_()", kept), ("overlapping", "x[:-1] += x[1:]", kept), ("overlapping", "t0 = x + 1", True),
        ("contiguous", "x.neg_()", True),
    ):  # fmt: skip
        scope = {"x": fuzz.inputs.make((3, 4), "float32", layout)}
        assert generator._runs(line, "t0" if line.startswith("t0") else None, [scope]) == runs, line


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_gpus_kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    totals, failures = run(Settings(("tensor",), seed=40, count=2, quiet=True, interpreted=True))
    assert not failures and totals["tensor"].kernels
    given: list[dict[str, Any]] = []
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(inductor_gen, "compile_graph", lambda *args, **kwargs: given.append(kwargs))
    fuzz.worker.interpret()
    inductor_gen.compile_graph(None)
    assert given[0]["triton"] and given[0]["devices"](None).name == "H200" and os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize("line,idle", [
    ("with torch.no_grad(): pass", True), ("x[...]", True), ("x.float().T", True), ("x.tolist(); x[0].item()", True),
    ("x.sin()", False), ("x += 1", False), ("torch.tensor([1.0]) + x", False),
])  # fmt: skip
def test_programs_that_compute_nothing_are_not_counted(line: str, idle: bool) -> None:
    """Views and reads of what is there are no computation."""
    source = f"import torch\n\ndef f(x):\n    {line}\n\ndef program(compile, see):\n    see.call('f', compile(f), torch.ones(2))\n"
    assert check(Program("python", 0, source), instead=lambda f: f).idle is idle


def test_shrinking_keeps_the_difference() -> None:
    source = "def f(a):\n    b = a + 1\n    if b:\n        c = [b, 7, a]\n        d = c\n    return a\n"
    small = shrink(source, lambda text: "7" in text and "return" in text, 5.0)
    assert "7" in small and "return" in small
    assert "if" not in small and "d =" not in small and "b = " not in small


ASSERTING = """
import json, sys

print(json.dumps({"ready": True}), flush=True)
done = 0
for line in sys.stdin:
    task = json.loads(line)
    seed, gone, alone = task["seed"], task.get("asserting", []), task.get("alone", False)
    record = {"kind": task["kind"], "seed": seed, "programs before": done}
    if seed == 1 and len(gone) < 2:
        record |= {"again": {"asserting": [*gone, f"t{len(gone)} = bad"]}, "retire": True}
    elif seed == 2 and not alone:
        record |= {"again": {"asserting": [], "alone": True}, "retire": True}
    else:
        record |= dict.fromkeys(("graphs", "kernels", "breaks", "raised", "unstable", "refused", "elements", "undecided"), 1)
        record |= {"seconds": 0.0, "lost": [], "fallbacks": [str(task)], "asserted": alone, "difference": None}
        record |= {"idle": False, "withheld": False}
    done += 1
    print(json.dumps(record), flush=True)
"""


def test_assertions_of_kernels_belong_to_the_program_that_fails_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program goes on in new processes, is counted once, and the one after it knows nothing of it."""
    (tmp_path / "asserting_worker.py").write_text(ASSERTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fuzz.driver.Worker, "module", "asserting_worker")
    totals, failures = run(Settings(("tensor",), count=4, jobs=1, quiet=True))
    assert not failures and totals["tensor"].programs == 4 and totals["tensor"].asserted == 1
    given = "".join(totals["tensor"].fallbacks)
    assert given.count("'seed'") == 4
    assert sum("t0 = bad" in text for text in totals["tensor"].fallbacks) <= 1


class AssertingGpu:
    """``torch.cuda`` after a kernel's assertion: each later call fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed = False
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self) -> None:
        if self.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")


ASSERTS = """
def program(compile, see):
    see.call("call", compile(lambda: 1))
"""


@pytest.mark.parametrize("eager,ours", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("at_once", [False, True])
def test_both_runs_must_end_with_an_assertion_or_none(
    monkeypatch: pytest.MonkeyPatch, eager: bool, ours: bool, at_once: bool
) -> None:
    gpu = AssertingGpu(monkeypatch)

    def ends(asserts: bool) -> Callable[..., Any]:
        def call() -> int:
            gpu.failed = asserts
            if asserts and at_once:
                gpu.synchronize()
            return 1

        return call

    written = Program("tensor", 0, ASSERTS)
    monkeypatch.setattr(fuzz.program, "_eagerly", lambda fn: ends(eager))
    if eager:
        with pytest.raises(AssertedError, match="eager"):
            check(written, instead=lambda fn: ends(ours))
    gpu.failed = False
    outcome = check(written, instead=lambda fn: ends(ours), alone=eager)
    assert outcome.asserted is ours
    assert (outcome.difference is None) is (eager is ours)
    assert eager is ours or outcome.difference.kind == "assertion"


def test_statements_that_fail_an_assertion_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that eager refuses are, once it is known of them; the kernel's error may come later than the statement."""
    plain = tensors.generate(805292)
    line = next(line.strip() for line in plain.splitlines() if line.strip().startswith("t0 = "))
    gpu = AssertingGpu(monkeypatch)
    real = fuzz.tensors.settled

    def settled(who: str, errors: Any = ()) -> None:
        gpu.failed = who == line
        real(who, errors)

    monkeypatch.setattr(fuzz.tensors, "settled", settled)
    with pytest.raises(AssertedError) as caught:
        tensors.generate(805292)
    assert caught.value.who == line
    record = examine("tensor", 805292)
    assert record["again"] == {"asserting": [line], "alone": False} and record["retire"]
    assert line not in tensors.generate(805292, "cpu", [line])


GROWING = ["xs += xs", "s += s", "n *= n", "xs = (xs, xs)", "LOG.append((*LOG, 1))"]


@pytest.mark.parametrize("line", [*GROWING, "n += 0", "x = x + 1"])
def test_programs_that_grow_without_end_are_not_written(line: str) -> None:
    text = (
        f"LOG = []\ndef f(xs, s, n, d, x, log):\n    for i in range(60):\n        {line}\n        log = LOG\n    return x\n"
        'def program(compile, see):\n    see.call("call", compile(f), [1], "ab", 3, {}, 1, None)\n'
    )
    assert (pythons._run(text, 0) is None) == (line in GROWING)


def test_programs_that_run_on_are_not_written() -> None:
    text = "def f(n):\n    while n:\n        n += 1\ndef program(compile, see):\n    see.call('call', compile(f), 1)\n"
    assert pythons._run(text, 0) is None


def test_no_program_reads_what_a_kernel_left_behind():
    rows = torch.arange(12.0).view(3, 4)
    left = torch.empty(9)[:1].detach()  # as if the rest were nobody's
    for view, others, beyond in (
        (rows[1].as_strided((2, 2), (1, 1), 0), [rows[1]], False),  # its base has them
        (rows.as_strided((3, 4), (4, 1)), [rows], False),
        (left.as_strided((2, 2), (1, 1), 0), [left], True),
        (left.as_strided((1,), (1,), 0), [left, rows, 3], False),
        (left.as_strided((2,), (1,), 0), [left, torch.view_as_complex(torch.empty(2, 2))], True),
    ):
        assert fuzz.tensors.reads_beyond(view, others) is beyond
