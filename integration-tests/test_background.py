"""``background=True``: calls run eagerly until the compiled program is ready, and take it over between two calls."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref

import pytest
import torch

import compile_api
from prims.background import Job, submit

WAIT = 240.0


def compiled(fn, **settings):
    options = {"background": True, **settings.pop("options", {})}
    return compile_api.compile(fn, options=options, **settings)


def settle(call, report, *, at_least=1, turns=24):
    """Call until all that is to be compiled is in use; what the calls gave. A call finds what the wait before it left."""
    given = []
    for _ in range(turns):
        given.append(call())
        assert compile_api.wait(WAIT)
        record = report()
        if sum(b.programs for b in record.background) >= at_least and not any(b.open for b in record.background):
            given.append(call())
            return given
    raise AssertionError(str(report()))


class Blocked:
    """The background does nothing while this is entered."""

    def __enter__(self):
        self.go, self.begun = threading.Event(), threading.Event()
        submit(Job(self._hold))
        assert self.begun.wait(WAIT)
        return self

    def _hold(self):
        self.begun.set()
        self.go.wait(WAIT)

    def __exit__(self, *error):
        self.go.set()


def warm():
    """What compiling needs is imported: the next call captures."""
    import dynamo_capture.language  # noqa: F401


@pytest.fixture(autouse=True)
def _warm(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))
    warm()
    yield
    assert compile_api.wait(WAIT)


# --- a table: what runs, by what happens meanwhile -------------------------------------------------------------------


class Net(torch.nn.Module):
    """Something to mutate while it is compiled."""

    def __init__(self, breaks=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))
        self.factor, self.breaks, self.count = 2.0, breaks, 0

    def forward(self, x):
        y = self.first(x).relu() * self.factor
        if self.breaks:
            compile_api.graph_break()
        self.seen += 1
        return self.second(y).sin() if self.training else self.second(y).cos()


def _nothing(net):
    pass


def _weight(net):
    with torch.no_grad():
        net.first.weight.mul_(0.5)


def _new_weight(net):
    net.first.weight = torch.nn.Parameter(net.first.weight.detach() + 1)


def _new_layer(net):
    torch.manual_seed(7)
    net.second = torch.nn.Linear(8, 8)


def _factor(net):
    net.factor = 3.0


def _mode(net):
    net.eval()


def _hook(net):
    net.first.register_forward_hook(lambda module, args, result: result + 1)


def _frozen(net):
    net.first.weight.requires_grad_(False)


def _dtype(net):
    net.double()


CHANGES = [_nothing, _weight, _new_weight, _new_layer, _factor, _mode, _hook, _frozen, _dtype]


def _step(net, model, x, train):
    """Results, gradients and state of one step of the model (the net, or what was compiled of it)."""
    if not train:
        with torch.no_grad():
            return [model(x), net.seen.clone()]
    net.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), net.seen.clone(), *(None if p.grad is None else p.grad.clone() for p in net.parameters())]


def _pair(breaks):
    torch.manual_seed(0)
    one = Net(breaks)
    two = Net(breaks)
    two.load_state_dict(one.state_dict())
    return one, two


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("train", "breaks", "dynamic"), [*itertools.product((False, True), (False, True), (None, True))])
def test_what_happens_meanwhile(change, train, breaks, dynamic):
    net, twin = _pair(breaks)
    model = compiled(net, dynamic=dynamic)
    generator = torch.Generator().manual_seed(1)

    def both(size=4):
        x = torch.randn(size, 8, generator=generator).to(net.first.weight.dtype)
        torch.testing.assert_close(_step(net, model, x, train), _step(twin, twin, x, train))

    with Blocked():  # captured, and not yet compiled
        both()
        assert model.report().background, model.report()
        both()
        for each in (net, twin):
            change(each)
        both()
    for turn in range(10):
        both()
        assert compile_api.wait(WAIT)
        if turn > 4 and not any(b.open for b in model.report().background):
            break
    report = model.report()
    before = sum(b.calls for b in report.background)
    kernels = len(report.kernels)
    for size in (4, 4, 5, 6, 6, 6):
        both(size)
        assert compile_api.wait(WAIT)
    for _ in range(8):
        both(6)
        assert compile_api.wait(WAIT)
    before = sum(b.calls for b in model.report().background)
    both(6)
    both(6)
    report = model.report()
    assert report.verdict.startswith("partly: a graph break" if breaks else "compiled"), report
    assert sum(b.calls for b in report.background) == before, "a call ran eagerly"  # compiled code did the work
    assert kernels > 0 and not report.fallbacks, report
    assert all(b.status == "in use" and b.calls > 0 for b in report.background), report


# --- what is said meanwhile ------------------------------------------------------------------------------------------


def test_the_report_while_it_is_compiled():
    fn = compiled(lambda x: (x.sin() * 2).sum())
    x = torch.ones(5)
    with Blocked():
        for _ in range(3):
            fn(x)
        report = fn.report()
        assert report.verdict.startswith("eager: compiling in the background: ") and "3 calls" in report.verdict
        (record,) = report.background
        assert (record.calls, record.programs) == (3, 0)
        assert record.status in ("waiting", "compiling"), record
        assert "3 calls ran eagerly: compiling in the background" in str(report)
        assert not compile_api.wait(0.05)
    settle(lambda: fn(x), fn.report)
    assert fn.report().verdict == "compiled", fn.report()
    (record,) = fn.report().background
    assert (record.status, record.programs) == ("in use", 1) and record.calls >= 3 and record.seconds > 0
    assert '"background"' in fn.report().to_json()


def test_the_swap_is_between_two_calls_and_no_call_compiles():
    other = compiled(lambda x: x.exp())
    settle(lambda: other(torch.rand(3)), other.report)  # what is imported by then is not measured
    fn = compiled(lambda x: (x @ x.T).softmax(-1))
    x = torch.rand(16, 16)
    expected = (x @ x.T).softmax(-1)
    slowest, begun = 0.0, time.monotonic()
    while fn.report().verdict != "compiled" and time.monotonic() - begun < WAIT:
        start = time.thread_time()
        given = fn(x)
        slowest = max(slowest, time.thread_time() - start)
        torch.testing.assert_close(given, expected)
    report = fn.report()
    assert report.verdict == "compiled", report
    # The calls' own thread has captured (a few ms) and swapped; lowering and generating code is another's.
    assert slowest < 0.5 * report.background[0].seconds, (slowest, report)


# --- exceptions ------------------------------------------------------------------------------------------------------


def _bad_backend(gm, inputs):
    raise RuntimeError("no such thing")


def test_a_backend_that_fails_warns_once_and_the_report_says_so():
    fn = compiled(lambda x: x.sin() + 1, backend=_bad_backend)
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(4):
            torch.testing.assert_close(fn(x), x.sin() + 1)
            compile_api.wait(WAIT)
    told = [w for w in seen if issubclass(w.category, compile_api.CompileWarning)]
    assert len(told) == 1 and "no such thing" in str(told[0].message), [str(w.message) for w in seen]
    assert told[0].filename == __file__  # the user's line, not the background's
    assert any("no such thing" in f.reason for f in fn.report().fallbacks), fn.report()
    assert fn.report().verdict.startswith("eager: "), fn.report()


@pytest.mark.parametrize("strict", ["fullgraph", "strict", "stance"])
def test_where_eager_is_refused_the_next_call_raises(strict):
    settings = {"fullgraph": True} if strict == "fullgraph" else {}
    options = {"strict": True} if strict == "strict" else {}
    fn = compiled(lambda x: x.sin() + 1, backend=_bad_backend, options=options, **settings)
    x = torch.ones(3)
    with compile_api.set_stance("strict") if strict == "stance" else warnings.catch_warnings():
        torch.testing.assert_close(fn(x), x.sin() + 1)  # eagerly, while it is compiled
        compile_api.wait(WAIT)
        with pytest.raises(Exception, match="no such thing"):
            fn(x)


def test_a_graph_break_is_an_error_at_once_under_fullgraph():
    def breaks(x):
        compile_api.graph_break()
        return x + 1

    with pytest.raises(compile_api.errors.Unsupported, match="graph breaks"):
        compiled(breaks, fullgraph=True)(torch.ones(2))


def test_the_programs_own_errors_are_its_own():
    def raises(x, n):
        y = x.sin()
        if n > 3:
            raise ValueError("too many")
        return y.reshape(n, -1)

    fn = compiled(raises)
    for _ in range(4):
        assert fn(torch.ones(6), 3).shape == (3, 2)
        with pytest.raises(ValueError, match="too many"):
            fn(torch.ones(6), 4)
        compile_api.wait(WAIT)
    report = fn.report()
    assert report.kernels and not any(b.open for b in report.background), report
    for _ in range(2):  # what the graph raises, where eager raises it
        with pytest.raises(RuntimeError, match="shape"):
            fn(torch.ones(7), 3)
        compile_api.wait(WAIT)
    before = sum(b.calls for b in fn.report().background)
    assert fn(torch.ones(6), 3).shape == (3, 2) and sum(b.calls for b in fn.report().background) == before


# --- memory, threads, forks, the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
def test_the_first_calls_inputs_are_not_kept(train):
    net = torch.nn.Linear(64, 64)
    fn = compiled(lambda x, net=net: net(x).relu())
    x = torch.ones(4, 64, requires_grad=train)
    gone = weakref.ref(x)
    with Blocked():
        fn(x)
        assert fn.report().background[0].status in ("waiting", "compiling")
        del x
        gc.collect()
        assert gone() is None
    settle(lambda: fn(torch.ones(4, 64, requires_grad=train)), fn.report)
    assert fn.report().kernels


def test_an_optimizer_that_nobody_calls_any_more_is_let_go():
    def make():
        fn = compiled(lambda x: x.cos() * 3)
        with Blocked():
            fn(torch.ones(3))
            gone = weakref.ref(fn)
            del fn
            gc.collect()
            return gone

    gone = make()
    compile_api.wait(WAIT)
    gc.collect()
    assert gone() is None


def test_reset_drops_what_is_to_come():
    fn = compiled(lambda x: x.tan() + 2)
    x = torch.ones(3)
    with Blocked():
        fn(x)
        compile_api.reset()
    compile_api.wait(WAIT)
    given = settle(lambda: fn(x), fn.report)
    torch.testing.assert_close(given[-1], x.tan() + 2)


def test_many_threads_take_over_one_program():
    fn = compiled(lambda x, k: (x * k).sin().sum(-1))
    failures, stop = [], threading.Event()

    def calls(n):
        x = torch.full((4, 3 + n % 3), float(n))
        try:
            while not stop.is_set():
                torch.testing.assert_close(fn(x, 2.0), (x * 2.0).sin().sum(-1))
                time.sleep(0.002)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while time.monotonic() < until and not failures:
        time.sleep(0.2)
        if sum(b.programs for b in fn.report().background) and not any(b.open for b in fn.report().background):
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sum(b.programs for b in fn.report().background), fn.report()  # taken over while all of them called
    widths = [torch.ones(4, width) for width in (3, 4, 5)]  # one may have come just before the end
    settle(lambda: [fn(x, 2.0) for x in widths], fn.report)
    report = fn.report()
    assert report.kernels and report.verdict == "compiled", report


def test_changed_settings_of_torch_compile_it_anew():
    fn = compiled(lambda x: x.sin().sum(0))
    x = torch.ones(3, 4)
    with Blocked():
        fn(x)
        torch.use_deterministic_algorithms(True)
    try:
        compile_api.wait(WAIT)
        settle(lambda: fn(x), fn.report)
    finally:
        torch.use_deterministic_algorithms(False)
    given = settle(lambda: fn(x), fn.report, at_least=2)
    torch.testing.assert_close(given[-1], x.sin().sum(0))


def test_modes_of_the_call_are_those_of_its_program():
    net = torch.nn.Linear(16, 16)
    fn = compiled(lambda x, net=net: net(x).relu())
    x = torch.rand(4, 16)
    modes = [
        torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16),
    ]  # fmt: skip
    for mode in modes:
        for _ in range(4):
            with mode():
                given, expected = fn(x), net(x).relu()
            assert (given.dtype, given.requires_grad, given.is_inference()) == (
                expected.dtype, expected.requires_grad, expected.is_inference()
            )  # fmt: skip
            torch.testing.assert_close(given, expected, rtol=2e-2, atol=2e-2)
            compile_api.wait(WAIT)
    assert sum(b.programs for b in fn.report().background) == len(modes), fn.report()


def test_some_gradients_run_eagerly_until_they_are_compiled():
    def two(x):
        return x.sin() * 2, x.cos() * 3

    fn = compiled(two)
    make = lambda: torch.rand(5, requires_grad=True)
    settle(lambda: sum(fn(make())).sum().backward(), fn.report)
    for _ in range(3):
        x = make()
        y = x.detach().clone().requires_grad_()
        fn(x)[1].sum().backward()
        two(y)[1].sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        compile_api.wait(WAIT)
    partial = next(b for b in fn.report().background if b.code == "backward for some outputs")
    assert (partial.status, partial.calls, partial.programs) == ("in use", 1, 1)


def test_another_process_loads_what_the_background_has_compiled(tmp_path):
    code = """
import sys, torch, compile_api
net = torch.nn.Linear(8, 8)
def fn(x):
    return net(x).gelu() if hasattr(x, "gelu") else torch.nn.functional.gelu(net(x))
c = compile_api.compile(fn, options={"background": True, "program_cache": True})
for _ in range(6):
    y = c(torch.ones(3, 8)); y.sum().backward(); compile_api.wait(200)
report = c.report()
print([p.status for p in report.programs], report.verdict, len(report.background))
"""
    env = {**os.environ, "QUINTET_CACHE_DIR": str(tmp_path / "shared")}
    (tmp_path / "program.py").write_text(code)
    command = [sys.executable, str(tmp_path / "program.py")]
    first, second = (subprocess.run(command, env=env, capture_output=True, text=True, timeout=400) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "'stored'" in first.stdout and first.stdout.strip().endswith("compiled 1"), first.stdout
    assert "'loaded'" in second.stdout and second.stdout.strip().endswith("compiled 0"), second.stdout


END = """
import sys, time, torch, compile_api
net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(12)])
c = compile_api.compile(net, options={"background": True})
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    c(torch.ones(2, 8)).sum().backward()
print("end", flush=True)
"""


@pytest.mark.parametrize("after", [0.0, 0.7, 2.0, 4.0])
def test_the_program_ends_while_something_is_compiled(after):
    done = subprocess.run(
        [sys.executable, "-c", END, str(after)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", ""), done


FORK = """
import faulthandler, os, signal, sys, time, torch, compile_api, warnings
faulthandler.register(signal.SIGALRM, chain=True)  # what hangs says where, before the alarm ends it; in the child, too
signal.alarm(180)
torch.set_num_threads(1)
import dynamo_capture.language
net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(12)])
c = compile_api.compile(net, options={"background": True})
x = torch.ones(2, 8)
expected = net(x)
c(x)
time.sleep(0.3)
begun = time.monotonic()
pid = os.fork()
if pid == 0:
    signal.alarm(90)
    try:
        warnings.simplefilter("ignore")
        for _ in range(3):
            torch.testing.assert_close(c(x), expected)
        assert compile_api.wait(5)
        assert "forked while the background compiled" in c.report().verdict, c.report().verdict
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
    os._exit(0)
assert time.monotonic() - begun < 5  # no waiting for the compilation
assert os.waitpid(pid, 0)[1] == 0
compile_api.wait(200)
c(x)
print(c.report().verdict)
"""


def test_a_fork_waits_for_nothing_and_its_child_runs_eagerly():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done
