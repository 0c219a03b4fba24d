"""Replay of recorded calls, with a made-up CUDA graph that repeats a recorded function on the CPU."""

import contextlib
import threading
import time
import types
import weakref

import pytest
import torch

from inductor_gen.runtime import cuda_graphs
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
    def graph(g, pool, stream, mode):
        assert stream == ("stream of", CPU), "a recording is made on its own device"
        g.pool = pool
        FakeGraph.recording = g
        try:
            yield
        finally:
            FakeGraph.recording = None

    FakeGraph.replays = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    handles = iter(range(1000))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(cuda_graphs, "_SHARED", {})
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


def test_recordings_of_a_stream_share_a_pool_and_hold_nothing_of_it(fake_cuda):
    """Of several sizes and functions; what a recording keeps is in the pool's memory, without owning it."""
    first, second = (make(lambda x, w: (x * w, w), [False, True])[0] for _ in range(2))
    w = torch.ones(1)
    for stream in (0, 1):
        fake_cuda.cuda_stream = stream
        for call in (first, second):
            for n in (2, 2, 3, 3):
                call((torch.zeros(n), w))
    made = [r for call in (first, second) for r in call.recordings.items()]
    pools = {key[0]: {r.graph.pool for k, r in made if k[0] == key[0]} for key, _ in made}
    assert [len(found) for found in pools.values()] == [1, 1] and pools[0] != pools[1]
    for _, recording in made:
        assert recording.places[1] is w and recording.outputs[1].data_ptr() == w.data_ptr()
        ((_, args, outputs),) = recording.graph.steps
        for kept, made_there in ((recording.places[0], args[0]), (recording.outputs[0], outputs[0])):
            assert kept is not made_there and kept.data_ptr() == made_there.data_ptr()
            assert not kept.untyped_storage().resizable()
    fake_cuda.cuda_stream = 0
    for call in (first, second):
        call.recordings.clear()
    del made, recording
    third = make(lambda x: (x + 1,), [False])[0]
    for _ in range(2):
        third((torch.zeros(2),))
    assert {r.graph.pool for r in third.recordings.values()}.isdisjoint(pools[0])  # PyTorch has given that one up


@pytest.mark.parametrize("boxed", [False, True])
def test_without_memory_for_results_recordings_are_given_up(monkeypatch, boxed):
    """All of them, before anything is written; the call runs as it is, and holds nothing that its caller gave up."""
    other, _, _ = make(lambda x: (x + 1,), [False])
    seen = []

    def fn(x, total):
        seen.append(weakref.ref(x))
        return x + 1, total.add_(1)

    call, program, report = make(fn, [False, True])
    total = torch.zeros(1)
    for each in (other, call):
        for _ in range(2):
            each((torch.zeros(2), total)[: len(each.held)])
    graphs = [weakref.ref(r.graph) for each in (other, call) for r in each.recordings.values()]
    counted, replays = total.item(), FakeGraph.replays
    place = cuda_graphs._place

    def full(x):
        raise torch.OutOfMemoryError("a test's memory is full")

    monkeypatch.setattr(cuda_graphs, "_place", full)
    for n in (1, 2):
        args = [torch.zeros(2), total]
        results = call(args if boxed else tuple(args))
        assert results[0].tolist() == [1, 1] and total.item() == counted + n
    assert not other.recordings and not call.recordings and not any(graph() for graph in graphs)
    assert FakeGraph.replays == replays and len(report.fallbacks) == 1 and "memory" in report.fallbacks[0].reason
    monkeypatch.setattr(cuda_graphs, "_place", place)
    assert other((torch.zeros(2),))[0].tolist() == [1, 1] and len(other.recordings) == 1


def test_functions_take_turns_on_a_stream():
    """Two functions whose recordings share memory: no replay comes between another's and the copies of its results."""
    running, wrong = [], []

    def work(x):
        if FakeGraph.recording is None:
            running.append(1)
            if len(running) > 1:
                wrong.append(1)
            time.sleep(0.001)
            running.pop()
        return (x + 1,)

    calls = [make(work, [False])[0] for _ in range(3)]
    for call in calls:
        for _ in range(2):
            call((torch.zeros(10),))
    threads = [threading.Thread(target=lambda c=c: [c((torch.zeros(10),)) for _ in range(20)]) for c in calls]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


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
    from inductor_gen.runtime.cuda_graphs import _kind, _place

    sums = torch.randn(2, 3)
    plain = _kind(sums, False)
    assert noted(_place(sums)) is None
    note(sums, "causal")
    assert noted(_place(sums)) == "causal"
    assert _kind(sums, False) != plain
