"""Choosing by measurement: with a clock of the test's own, on candidates of its own."""

import json
import os
import stat
import weakref

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.device.cuda import KNOWN
from inductor_gen.templates import bench, contest, operators
from inductor_gen.templates.decisions import Decisions
from inductor_gen.templates.precision import float32_precision, while_precision
from inductor_gen.templates.tiles import tiles_for
from prims.options import Options
from prims.report import Report

SIZES = ((64, 80), (80, 96))


class Choice:
    """A product with two candidates, ``torch.mm`` and ``other``, and what each is said to take."""

    def __init__(self, monkeypatch, folder):
        self.folder = folder
        self.times = {"torch.mm": 2.0, "other": 1.0}
        self.other = lambda a, b: (a.double() @ b.double()).float()
        self.asked = 0
        self.measured = 0
        monkeypatch.setattr(operators, "onednn", lambda: object())
        monkeypatch.setattr(operators, "_by_onednn", lambda node, args: ("other", self._other))
        monkeypatch.setattr("inductor_gen.extern.calls.cpu_function", lambda node, args: None)
        monkeypatch.setattr(contest.bench, "milliseconds", self._milliseconds)
        Decisions.forget()

    def _other(self, a, b):
        self.asked += 1
        return self.other(a, b)

    def _milliseconds(self, run, device):
        before = self.asked
        run()
        self.measured += 1
        return self.times["other" if self.asked > before else "torch.mm"]

    def compile(self, sizes=SIZES, progress=None, **options):
        """The compiled graph's report, its result on fresh inputs and what that should be."""
        a, b = (torch.randn(s) for s in sizes)
        report = Report(progress=progress)
        env = build(lambda p, x, y: p.aten(torch.ops.aten.mm.default, x, y), [a, b])
        settings = {"verify": "off", "max_autotune": True, "cache_dir": str(self.folder), **options}
        compiled = inductor_gen.compile_graph(env, options=Options(**settings), report=report)
        self.asked = 0
        (got,) = compiled(a, b)
        torch.testing.assert_close(got, a @ b, rtol=1e-5, atol=1e-5)
        return report

    def files(self):
        return sorted((self.folder / "autotune").glob("*.json"))


@pytest.fixture
def choice(monkeypatch, tmp_path):
    yield Choice(monkeypatch, tmp_path)
    Decisions.forget()


def test_the_fastest_wins_and_is_what_runs(choice):
    report = choice.compile()
    (tuning,) = report.tunings
    assert tuning.winner == "other" and choice.asked == 1
    assert dict(tuning.times) == {"torch.mm": 2.0, "other": 1.0} and not tuning.cached
    assert "64x80 80x96" in tuning.problem and "other 1.0000" in str(report)
    assert json.loads(report.to_json())["tunings"][0]["winner"] == "other"


def test_a_small_gain_is_noise(choice):
    choice.times["other"] = 1.99
    assert choice.compile().tunings[0].winner == "torch.mm" and choice.asked == 0


def test_nothing_is_measured_without_the_option(choice):
    assert choice.compile(max_autotune=False).tunings == [] and choice.measured == 0


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (lambda a, b: a @ b + torch.eye(64, 96), "off by"),
        (lambda a, b: (a @ b) / 0.0, "not finite"),
        (lambda a, b: torch.full((64, 96), float("nan")), "not finite"),
    ],
)
def test_a_wrong_candidate_is_dropped(choice, wrong, reason):
    choice.other = wrong
    (tuning,) = choice.compile().tunings
    assert tuning.winner == "torch.mm" and reason in tuning.dropped["other"] and "other" not in tuning.times


def test_a_failing_candidate_is_dropped(choice):
    def fails(a, b):
        raise RuntimeError("no such kernel\nfor this processor")

    choice.other = fails
    (tuning,) = choice.compile().tunings
    assert tuning.winner == "torch.mm" and dict(tuning.dropped) == {"other": "no such kernel"}


def test_out_of_memory_leaves_the_usual_kernel_and_is_not_remembered(choice):
    def fails(a, b):
        raise torch.OutOfMemoryError("tried to allocate 7 GiB")

    choice.other = fails
    report = choice.compile()
    (fallback,) = report.fallbacks
    assert fallback.stage == "autotune" and "out of memory" in fallback.reason and "7 GiB" in fallback.reason
    assert report.tunings[0].winner == "torch.mm" and not choice.files()
    choice.other = lambda a, b: (a.double() @ b.double()).float()
    assert choice.compile().tunings[0].winner == "other"


def test_out_of_memory_is_said_once_and_what_was_measured_is_freed(choice, monkeypatch):
    freed = []

    class Held:
        def __del__(self):
            freed.append("held")

    operands = []

    def fails(a, b):
        held = Held()
        operands.extend(map(weakref.ref, (a, b, a._base, b._base)))
        raise torch.OutOfMemoryError(f"tried to allocate {7 if held else 0} GiB")

    def empty():
        assert operands and not any(x() is not None for x in operands)
        freed.append("cache")

    choice.other = fails
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    mm = torch.ops.aten.mm.default
    env = build(lambda p, x, y, z: p.aten(mm, p.aten(mm, x, y), z), [torch.randn(s) for s in (*SIZES, (96, 160))])
    options = Options(verify="off", max_autotune=True, cache_dir=str(choice.folder))
    report = Report()
    inductor_gen.compile_graph(env, options=options, report=report)
    assert freed == ["held", "cache"] * 2
    (fallback,) = report.fallbacks
    assert "64x80 80x96" in fallback.reason and "and 1 more" in fallback.reason and "7 GiB" in fallback.reason


def test_a_decision_is_kept_for_other_processes(choice):
    choice.compile()
    (path,) = choice.files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert choice.measured == 2
    Decisions.forget()
    (tuning,) = choice.compile().tunings
    assert tuning.cached and tuning.winner == "other" and tuning.times["torch.mm"] == 2.0
    assert choice.measured == 2 and choice.asked == 1


@pytest.mark.parametrize("damage", ["", "{}", "[1]", "swap"])
def test_a_damaged_decision_is_made_again(choice, damage):
    choice.compile()
    (path,) = choice.files()
    path.write_text(path.read_text().replace('"other"', '"torch.mm"') if damage == "swap" else damage)
    Decisions.forget()
    (tuning,) = choice.compile().tunings
    assert not tuning.cached and tuning.winner == "other"
    Decisions.forget()
    assert choice.compile().tunings[0].cached


def test_a_folder_that_others_can_write_is_not_believed(choice):
    choice.compile()
    os.chmod(choice.folder / "autotune", 0o777)
    Decisions.forget()
    assert not choice.compile().tunings[0].cached


def test_without_caches_nothing_is_written(choice):
    choice.compile(cache=False)
    assert not (choice.folder / "autotune").exists()


def test_another_problem_is_another_decision(choice):
    choice.compile()
    choice.compile(sizes=((64, 80), (80, 128)))
    assert choice.measured == 4 and len(choice.files()) == 2


def test_equal_problems_of_a_graph_are_measured_once(choice):
    a, b = torch.randn(64, 80), torch.randn(80, 80)
    mm = torch.ops.aten.mm.default
    env = build(lambda p, x, y: p.aten(mm, p.aten(mm, x, y), y), [a, b])
    report = Report()
    options = Options(verify="off", max_autotune=True, cache_dir=str(choice.folder))
    inductor_gen.compile_graph(env, options=options, report=report)
    assert [t.winner for t in report.tunings] == ["other", "other"] and choice.measured == 2


def test_progress_is_shown_to_its_end(choice, caplog):
    seen = []
    with caplog.at_level("INFO", logger="quintet"):
        choice.compile(progress=lambda what, done, total: seen.append((what, done, total)))
    assert [s[1:] for s in seen] == [(0, 2), (2, 2)] and seen[-1][0].endswith("float32: other")
    assert any("[2/2]" in record.getMessage() for record in caplog.records)


def test_progress_ends_with_an_error(choice, monkeypatch):
    seen = []

    def fails(*args):
        raise ValueError("no clock")

    monkeypatch.setattr(contest.bench, "milliseconds", fails)
    with pytest.raises(ValueError, match="no clock"):
        choice.compile(progress=lambda what, done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)


def test_random_numbers_of_the_program_are_left_alone(choice):
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    a, b = (torch.empty(s) for s in SIZES)
    env = build(lambda p, x, y: p.aten(torch.ops.aten.mm.default, x, y), [a, b])
    options = Options(verify="off", max_autotune=True, cache_dir=str(choice.folder))
    inductor_gen.compile_graph(env, options=options)
    assert choice.measured == 2 and torch.equal(torch.rand(4), want)


def test_results_are_compared_by_share_of_the_largest():
    y = torch.randn(200, 30)
    assert bench.differs([y.bfloat16()], [y.bfloat16()], 2.0**-7) is None
    assert bench.differs([y * (1 + 1e-6)], [y], 2.0**-18) is None
    assert bench.differs([y * (1 + 1e-3)], [y], 2.0**-18) is not None
    one = y.clone()
    one[7, 7] += 3
    assert "off by 3" in bench.differs([one.bfloat16()], [y.bfloat16()], 2.0**-8)
    endless = y.clone()
    endless[0, 0] = float("inf")
    assert bench.differs([endless], [endless], 2.0**-18) is None
    assert bench.differs([y], [endless], 2.0**-18) is not None
    mask = y > 0
    assert bench.differs([mask], [mask], 0.0) is None
    assert "50.0%" in bench.differs([mask ^ (torch.arange(30) % 2 == 0)], [mask], 0.0)
    assert bench.differs([torch.empty(0)], [torch.empty(0)], 0.0) is None


def test_another_precision_is_another_graph():
    before = torch.get_float32_matmul_precision()
    made = []

    def other():
        made.append(1)
        return lambda args: ["other"]

    try:
        torch.set_float32_matmul_precision("highest")
        assert float32_precision() == "ieee"
        run = while_precision("ieee", lambda args: ["tuned"], other)
        assert run([]) == ["tuned"] and not made
        torch.set_float32_matmul_precision("high")
        assert float32_precision() == "tf32"
        assert run([]) == ["other"] and run([]) == ["other"] and made == [1]
        torch.set_float32_matmul_precision("highest")
        assert run([]) == ["tuned"]
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "dtype, precision", [(torch.bfloat16, "ieee"), (torch.float32, "tf32"), (torch.float32, "ieee")]
)
@pytest.mark.parametrize(
    "m, n, k", [(1, 4096, 4096), (4096, 4096, 4096), (8192, 768, 3072), (3, 5, 7), (100, 50257, 768)]
)
@pytest.mark.parametrize("device", KNOWN.values(), ids=KNOWN)
def test_tiles_suit_their_product(dtype, precision, m, n, k, device):
    tiles = tiles_for(m, n, k, 1, dtype, precision, device)
    assert 1 <= len(tiles) <= 12 and len(set(tiles)) == len(tiles)
    assert any(t.m == 1 for t in tiles) == (m <= 2)
    for t in tiles:
        assert t.m == 1 or min(t.m, t.n, t.k) >= 16
        assert t.m == 1 or t.stages * t.k * (t.m + t.n) * dtype.itemsize <= device.shared_memory
        assert t.m <= max(16, 2 * m) and (t.m == 1 or t.n <= max(16, 2 * n))
