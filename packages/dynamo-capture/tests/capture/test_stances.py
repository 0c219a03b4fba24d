"""Stances: what compiled callables do with calls while one is set, and what the report says of it."""

from __future__ import annotations

import functools
import threading
import warnings

import pytest
import torch

import dynamo_capture
from dynamo_capture import get_stance, optimize, set_stance, supports_dynamic_shapes
from prims import stance as stances
from prims.errors import NotCompiled, UserError
from prims.options import Options
from prims.report import Report


@pytest.fixture(autouse=True)
def default_stance():
    assert get_stance() == "default"
    yield
    set_stance("default")
    assert get_stance() == "default"


@supports_dynamic_shapes
def backend(gm, inputs):
    return gm.forward


def made(fn, **options):
    report = Report()
    return optimize(fn, backend, options=Options(**options), report=report), report


def double(x):
    return x * 2 + torch.compiler.is_compiling()


def test_eager_as_function_context_and_decorator():
    compiled, report = made(double, fullgraph=True)
    x = torch.ones(3)
    compiled(x)

    @set_stance("force_eager")
    def decorated():
        return compiled(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was asked for: neither warned of nor refused
        with set_stance("eager") as entered:
            assert entered.stance == get_stance() == "eager"
            assert compiled(x).tolist() == [2, 2, 2]
        assert compiled(x).tolist() == [3, 3, 3]
        assert decorated().tolist() == [2, 2, 2] and get_stance() == "default"
        set_stance("eager")
        assert compiled(x).tolist() == [2, 2, 2]
        set_stance("default")
    assert compiled(x).tolist() == [3, 3, 3]
    (record,) = report.stances
    assert (record.stance, record.done, record.count) == ("eager", "ran eagerly", 3)
    assert "stance 'eager': 3 x ran eagerly" in str(report) and report.verdict == "compiled"
    assert '"stance": "eager"' in report.to_json()


def test_a_program_called_under_eager_alone():
    compiled, report = made(double)
    with set_stance("eager"):
        compiled(torch.ones(2))
    assert report.verdict.startswith("eager: stance 'eager': ran eagerly at") and not report.graphs


def test_eager_reaches_compiled_functions_within():
    inner, _ = made(double)

    def outer(x):
        return inner(x) + 1

    compiled, report = made(outer)
    with set_stance("eager"):
        assert compiled(torch.ones(1)).item() == 3
    assert compiled(torch.ones(1)).item() == 4 and len(report.graphs) == 1


def test_nested_stances_restore():
    with set_stance("eager"):
        with set_stance("strict"):
            set_stance("fail_on_recompile")
            assert get_stance() == "fail_on_recompile"
        assert get_stance() == "eager"
        try:
            with set_stance("default"):
                raise KeyError
        except KeyError:
            pass
        assert get_stance() == "eager"
    assert get_stance() == "default"
    again = set_stance("eager")
    with again, again:
        assert get_stance() == "eager"
    assert get_stance() == "default"
    for _ in range(100):
        set_stance("eager")
        set_stance("default")
        assert len(stances._settings) <= 3  # what was set for good takes the place of what was before
    set_stance("strict")
    with set_stance("eager"):
        pass
    assert get_stance() == "strict"


def test_fail_on_recompile():
    compiled, report = made(double)
    with set_stance("fail_on_recompile"), pytest.raises(NotCompiled, match="would be captured: it has not been captured"):
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    with set_stance("fail_on_recompile"):
        assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
        with pytest.raises(NotCompiled, match=r"double would be captured again: .*size \[3\], now \[4\]") as refused:
            compiled(torch.ones(4))
    assert f"{__file__}:{double.__code__.co_firstlineno}" in str(refused.value)
    assert [(r.stance, r.done) for r in report.stances] == [("fail_on_recompile", "refused")] * 2
    assert not report.recompiles and report.verdict == "compiled"
    compiled(torch.ones(4))
    assert len(report.recompiles) == 1


def test_a_frame_that_had_nothing_to_capture_is_refused_when_it_has():
    def fn(x):
        return None if x is None else x * 2

    for stance, refuses in (("fail_on_recompile", True), ("eager_on_recompile", False)):
        dynamo_capture.reset()
        compiled, report = made(fn)
        with set_stance(stance):
            assert compiled(None) is None
            if refuses:
                with pytest.raises(NotCompiled):
                    compiled(torch.ones(1))
            else:
                assert compiled(torch.ones(1)).item() == 2
        assert not report.graphs and compiled(torch.ones(1)).item() == 2 and len(report.graphs) == 1


def test_frames_with_nothing_to_capture_pass():
    helpers = [lambda n: n + 1]

    @functools.partial(dynamo_capture.disable, recursive=False)
    def outside(n):
        return helpers[0](n)

    def fn(x):
        return x * 2 * outside(len(x.shape))

    compiled, report = made(fn)
    assert compiled(torch.ones(2)).tolist() == [4, 4]
    helpers[0] = lambda n: n * 2  # which nobody has looked at
    with set_stance("fail_on_recompile"):
        assert compiled(torch.ones(2)).tolist() == [4, 4]
        helpers[0] = lambda n: torch.ones(n)
        with pytest.raises(NotCompiled, match="it has not been captured before"):
            compiled(torch.ones(2))
    assert [r.count for r in report.stances] == [1]


def test_eager_on_recompile():
    compiled, report = made(double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with set_stance("eager_on_recompile"):
            assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
        assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
        with set_stance("eager_on_recompile"):
            assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
            assert compiled(torch.ones(4)).tolist() == [2] * 4 == compiled(torch.ones(4)).tolist()
    assert [r.count for r in report.stances] == [1, 2] and "size [3], now [4]" in report.stances[1].reason
    assert len(report.graphs) == 1 or report.verdict == "compiled"
    assert not report.recompiles
    assert compiled(torch.ones(4)).tolist() == [3] * 4


def test_a_stance_is_no_reason_after_it():
    """A call that came to compiled code under it leaves no reason behind for one that comes to none for another."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def fn(x, y):
        x = x.sum()
        dynamo_capture.graph_break()
        return x * y

    compiled, report = made(fn)
    compiled(torch.ones(2), torch.ones(2))
    with set_stance("eager_on_recompile"):
        compiled(torch.ones(2), torch.ones(3))
    assert [r.count for r in report.stances] == [1] and "fn" in report.stances[0].reason
    with Mode(), pytest.warns(match="called under a dispatch mode"):
        compiled(torch.ones(2), torch.ones(2))


def test_strict_raises_what_would_be_left_to_eager(monkeypatch):
    def broken(gm, inputs):
        raise AssertionError("no backend")

    compiled, report = made(double)
    with set_stance("strict"):
        compiled(torch.ones(3))
    assert report.verdict == "compiled"

    def plain():
        yield 1

    generator, said = made(plain)
    with set_stance("strict"), pytest.raises(NotCompiled, match="the stance is 'strict', but this runs eagerly: a generator"):
        generator()
    assert [(r.stance, r.done) for r in said.stances] == [("strict", "refused")]
    with pytest.warns(match="generator"):
        assert list(generator()) == [1]


def test_strict_allows_graph_breaks():
    def fn(x):
        x = x + 1
        dynamo_capture.graph_break()
        return x * 2

    compiled, report = made(fn)
    with set_stance("strict"):
        assert compiled(torch.ones(1)).item() == 4
    assert len(report.graphs) == 2


def test_strict_raises_our_own_failures(monkeypatch):
    from dynamo_capture.interpreter.data_ops import DataOps

    def defect(self, arg):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(DataOps, "BUILD_LIST", defect)

    def fn(x):
        return torch.stack([x, x])

    compiled, report = made(fn)
    with set_stance("strict"), pytest.raises(ZeroDivisionError, match="a defect"):
        compiled(torch.ones(1))
    assert [(r.stance, r.done, r.reason) for r in report.stances] == [("strict", "raised", "ZeroDivisionError: a defect")]


def test_refused_inside_a_compiled_region():
    def fn(x):
        x = x + 1
        with set_stance("eager"):
            return x * 2

    compiled, report = made(fn)
    with pytest.raises(UserError, match="inside a compiled region"):
        compiled(torch.ones(1))
    assert get_stance() == "default" and "set_stance(), which is refused" in report.breaks[0].reason
    compiled, _ = made(fn, fullgraph=True)
    with pytest.raises(Exception, match="set_stance\\(\\), which is refused inside a compiled region"):
        compiled(torch.ones(1))

    @dynamo_capture.disable
    def allowed():
        with set_stance("eager"):
            return get_stance()

    compiled, _ = made(lambda x: (x + 1, allowed()))
    assert compiled(torch.ones(1))[1] == "eager"


def test_names_and_arguments_that_are_not_offered():
    with pytest.raises(UserError, match="Did you mean 'fail_on_recompile'"):
        set_stance("fail_on_recompiles")
    with pytest.raises(UserError, match="becomes symbolic at its second capture"):
        set_stance("eager_then_compile")
    with pytest.raises(UserError, match="drops no guards"):
        set_stance("default", skip_guard_eval_unsafe=True)
    with pytest.raises(UserError, match="chooses no backend"):
        set_stance(force_backend="eager")
    with pytest.raises(UserError, match="with set_stance"):

        @set_stance("eager")
        def later():
            yield

    assert get_stance() == "default"


def test_one_for_all_threads():
    """A stance counts on every thread; one that ends leaves those that other threads have entered."""
    compiled, report = made(double)
    compiled(torch.ones(1))
    entered, leave = threading.Event(), threading.Event()

    def other():
        with set_stance("fail_on_recompile"):
            entered.set()
            leave.wait(30)

    with set_stance("eager"):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(30)
        assert get_stance() == "fail_on_recompile"  # the last one entered
    assert get_stance() == "fail_on_recompile"  # the other thread is in it still
    with pytest.raises(NotCompiled, match="fail_on_recompile"):
        compiled(torch.ones(2))
    leave.set()
    thread.join()
    assert get_stance() == "default"

    seen = []
    with set_stance("eager"):
        reader = threading.Thread(target=lambda: seen.append(compiled(torch.ones(1)).item()))
        reader.start()
        reader.join()
    assert seen == [2] and report.stances[-1].done == "ran eagerly"


def test_threads_that_come_and_go():
    compiled, _ = made(double)
    compiled(torch.ones(1))
    errors: list[Exception] = []

    def work(name):
        try:
            for _ in range(200):
                with set_stance(name):
                    assert compiled(torch.ones(1)).item() in (2, 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("eager", "default", "fail_on_recompile", "strict")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and get_stance() == "default" and compiled(torch.ones(1)).item() == 3
    assert not any(setting.entered for setting in stances._settings)
