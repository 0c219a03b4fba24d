"""Replay of recorded calls, with a made-up CUDA graph that repeats a recorded function on the CPU."""

import contextlib
import threading
import types

import pytest
import torch

from inductor_gen.runtime.cuda_graphs import LIMIT, Replayed, replayed
from prims.report import Report
from prims.spec import TensorSpec

CPU = torch.device("cpu")


class FakeGraph:
    """Repeats, into the same results, the calls that ran while it was being recorded."""

    recording = None
    replays = 0

    def __init__(self):
        self.steps = []

    def replay(self):
        FakeGraph.replays += 1
        for fn, args, outputs in self.steps:
            for old, new in zip(outputs, fn(*args)):
                old.copy_(new)


class Program:
    """A compiled call that counts how often it really runs."""

    def __init__(self, fn):
        self.fn = fn
        self.runs = 0

    def __call__(self, args):
        self.runs += 1
        args = tuple(args)
        outputs = list(self.fn(*args))
        if FakeGraph.recording is not None:
            FakeGraph.recording.steps.append((self.fn, args, outputs))
        return outputs


@pytest.fixture(autouse=True)
def fake_cuda(monkeypatch):
    stream = types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None)

    @contextlib.contextmanager
    def graph(g, *, stream, **kwargs):
        assert stream == ("stream of", CPU), "a recording is made on its own device"
        FakeGraph.recording = g
        try:
            yield
        finally:
            FakeGraph.recording = None

    FakeGraph.replays = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "device", lambda d: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda d: ("stream of", d))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda d=None: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return stream


def make(fn, held):
    program, report = Program(fn), Report()
    return Replayed(program, held, CPU, report), program, report


def test_first_call_runs_second_records_later_replay():
    call, program, report = make(lambda x, w: (x * w,), [False, True])
    w = torch.randn(3)
    for n in range(5):
        x = torch.randn(3)
        assert torch.equal(call((x, w))[0], x * w)
        assert program.runs == min(n + 1, 2)
    assert FakeGraph.replays == 4
    assert report.fallbacks == []


def test_results_may_be_held():
    call, _, _ = make(lambda x: (x + 1,), [False])
    held = [call((torch.full((2,), float(n)),))[0] for n in range(4)]
    assert [h[0].item() for h in held] == [1.0, 2.0, 3.0, 4.0]


def test_parameters_are_read_in_place():
    call, _, _ = make(lambda x, w: (x * w,), [False, True])
    w = torch.ones(2)
    for _ in range(3):
        call((torch.ones(2), w))
    w.mul_(5)
    assert call((torch.ones(2), w))[0].tolist() == [5.0, 5.0]


def test_another_parameter_address_is_recorded_anew():
    call, program, _ = make(lambda w: (w * 2,), [True])
    a, b = torch.ones(2), torch.full((2,), 3.0)
    for _ in range(3):
        assert call((a,))[0].tolist() == [2.0, 2.0]
        assert call((b,))[0].tolist() == [6.0, 6.0]
    assert len(call.recordings) == 2 and program.runs == 4


def test_kinds_of_calls_are_limited_and_the_reason_is_recorded_once():
    call, _, report = make(lambda x: (x + 1,), [False])
    for n in range(1, LIMIT + 4):
        for _ in range(2):
            assert torch.equal(call((torch.zeros(n),))[0], torch.ones(n))
    assert len(call.recordings) == LIMIT
    assert len(report.fallbacks) == 1 and "kinds of calls" in report.fallbacks[0].reason


def test_kinds_that_come_once_do_not_pile_up():
    call, _, _ = make(lambda x, n: (x + n,), [False, False])
    for n in range(1000):
        call((torch.zeros(2), n))
    assert len(call.seen) <= 4 * LIMIT and not call.recordings


def test_expanded_input():
    call, _, report = make(lambda x: (x * 2,), [False])
    for n in range(4):
        x = torch.full((1, 3), float(n)).expand(4, 3)
        assert torch.equal(call((x,))[0], x * 2)
    assert FakeGraph.replays == 3 and report.fallbacks == []


def test_overlapping_input_runs_as_it_is():
    call, program, report = make(lambda x: (x * 2,), [False])
    for _ in range(3):
        x = torch.randn(6).as_strided((3, 4), (1, 1))
        assert torch.equal(call((x,))[0], x * 2)
    assert program.runs == 3
    assert [f.reason for f in report.fallbacks] == ["an input's elements overlap in memory"]


def test_results_keep_their_strides():
    call, _, _ = make(lambda x: (x.t(), x[:, :2], x[:1].expand(5, 4)), [False])
    for _ in range(3):
        x = torch.randn(3, 4)
        for ours, theirs in zip(call((x,)), (x.t(), x[:, :2], x[:1].expand(5, 4))):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_failed_recording_runs_as_it_is():
    def fn(x):
        if FakeGraph.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (x + 1,)

    call, _, report = make(fn, [False])
    for _ in range(4):
        assert call((torch.zeros(2),))[0].tolist() == [1.0, 1.0]
    assert len(report.fallbacks) == 1 and "not permitted" in report.fallbacks[0].reason


def test_streams_do_not_share_places(fake_cuda):
    call, _, _ = make(lambda x: (x + 1,), [False])
    for stream in (0, 1):
        fake_cuda.cuda_stream = stream
        for _ in range(2):
            call((torch.zeros(2),))
    assert len(call.recordings) == 2


def test_a_list_of_arguments_is_emptied():
    call, _, _ = make(lambda x: (x + 1,), [False])
    for _ in range(2):
        call((torch.zeros(2),))
    args = [torch.zeros(2)]
    call(args)
    assert args == []


def test_threads_take_turns():
    call, _, _ = make(lambda x: (x + 1,), [False])
    for _ in range(2):
        call((torch.zeros(1000),))
    wrong = []

    def work(value):
        for _ in range(50):
            if not torch.equal(call((torch.full((1000,), value),))[0], torch.full((1000,), value + 1)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_graph_on_several_devices_is_left_alone():
    def described(device):
        return types.SimpleNamespace(spec=TensorSpec((2,), torch.float32, torch.device(device)), kind="input")

    env = types.SimpleNamespace(inputs=[described("cuda:0"), described("cpu")], outputs=[])
    report = Report()
    call = Program(lambda x: (x,))
    assert replayed(call, env, report) is call
    assert report.fallbacks[0].stage == "cudagraphs"
    env.inputs.pop(0)
    report = Report()
    assert replayed(call, env, report) is call
    assert report.fallbacks == []


def test_what_an_attention_noted_for_its_backward_travels_with_copies():
    from inductor_gen.extern.attention import note, noted
    from inductor_gen.runtime.cuda_graphs import _copy, _kind, _place

    sums = torch.randn(2, 3)
    plain = _kind(sums, False)
    assert noted(_place(sums)) is None and noted(_copy(sums)) is None
    note(sums, "causal")
    assert noted(_place(sums)) == noted(_copy(sums)) == "causal"
    assert _kind(sums, False) != plain
