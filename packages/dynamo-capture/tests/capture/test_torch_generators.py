"""Draws from a ``torch.Generator`` of the program's own: in one graph, with eager's numbers and eager's state after."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import dynamo_capture

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        for _ in range(3):
            x = self.net(x) + torch.randn(x.shape, generator=self.generator, dtype=x.dtype, device=x.device)
        return x


def by_size(x, g):
    sizes = torch.rand(3, 4, generator=g), torch.randn((2, 3), generator=g), torch.randn(4, generator=g)
    ints = torch.randint(9, (3,), generator=g), torch.randint(-2, 9, (2, 2), generator=g), torch.randperm(7, generator=g)
    return x + sizes[2], sizes, ints, torch.normal(1.0, 2.0, (3,), generator=g)


def filled(x, g):
    y = torch.empty(3, 4)
    y.uniform_(-1, 2, generator=g)
    z = torch.zeros(5).normal_(1, 2, generator=g)
    z = z + torch.empty(5).exponential_(generator=g) + torch.empty(5).geometric_(0.5, generator=g)
    z = z + torch.empty(5).log_normal_(generator=g) + torch.empty(5).cauchy_(generator=g)
    return x + y.sum(), z, torch.empty(5).bernoulli_(0.5, generator=g), torch.empty(3).random_(9, generator=g)


def input_filled(x, g):
    x.normal_(generator=g)
    return x + 1


def view_filled(x, g):
    y = torch.zeros(4, 4)
    y[1].uniform_(generator=g)
    return y + x


def initialised(x, g):
    w = torch.empty(4, 4)
    nn.init.normal_(w, std=0.02, generator=g)
    nn.init.kaiming_uniform_(w, generator=g)
    nn.init.xavier_normal_(w, generator=g)
    return x @ w


def written(x, g):
    noise = torch.randn(4, generator=g)
    noise.mul_(2)
    return noise, x + noise


def given_back(x, g):
    return torch.randn(4, generator=g), x + 1


def seeded(x, g):
    g.manual_seed(11)
    first = torch.rand(4, generator=g)
    return x + first, torch.rand(2, generator=g.manual_seed(12)), torch.zeros(len(g.device.type))


def made(x, g):
    own = torch.Generator().manual_seed(3)
    other = torch.Generator(device="cpu")
    return x + torch.rand(4, generator=own), torch.rand(4, generator=other), torch.rand(2, generator=own)



def beside_the_default(x, g):
    return torch.rand(4) + torch.rand(4, generator=g) * torch.rand(4) + x


PROGRAMS = (by_size, filled, input_filled, view_filled, initialised, written, given_back, seeded, made,
            beside_the_default)  # fmt: skip


def outcome(fn, *args):
    torch.manual_seed(0)
    return fn(*args)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_graph_with_eagers_numbers(capture, program):
    compiled, ours, theirs = capture(program), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for _ in range(3):
        mine, x = torch.ones(4), torch.ones(4)
        found, wanted = outcome(compiled, mine, ours), outcome(program, x, theirs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert torch.equal(mine, x) and torch.equal(ours.get_state(), theirs.get_state())
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(capture, dtype):
    def fn(x, g):
        return x + torch.randn(x.shape, generator=g, dtype=x.dtype), torch.empty_like(x).uniform_(generator=g)

    compiled, ours, theirs = capture(fn), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for size in (3, 40):
        x = torch.ones(2, size, dtype=dtype)
        torch.testing.assert_close(compiled(x, ours), fn(x, theirs), rtol=0, atol=0)
    assert compiled.report.breaks == []


def test_a_module_keeps_its_generator(capture):
    torch.manual_seed(0)
    module = Sampler()
    compiled = capture(module)
    found = [compiled(torch.ones(2, 4)) for _ in range(3)]
    module.generator.manual_seed(5)
    wanted = [module(torch.ones(2, 4)) for _ in range(3)]
    torch.testing.assert_close(found, wanted)
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1
    module.generator = torch.Generator().manual_seed(5)
    torch.testing.assert_close(compiled(torch.ones(2, 4)), wanted[0])
    assert len(compiled.report.graphs) == 1


def test_symbolic_sizes(capture):
    def fn(x, g, n):
        y = torch.randn(x.shape, generator=g) + torch.rand(x.shape[0], x.shape[1], generator=g)
        return x + y, torch.rand(2 * x.shape[1] + n, generator=g), torch.randint(5, (n,), generator=g)

    compiled, ours, theirs = capture(fn), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for size in (3, 4, 5, 9, 17):
        x = torch.ones(2, size)
        torch.testing.assert_close(compiled(x, ours, size + 3), fn(x, theirs, size + 3), rtol=0, atol=0)
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 2


def test_a_backend_gets_real_tensors():
    seen = []

    def backend(gm, inputs):
        seen.extend(inputs)
        return gm.forward

    fn = dynamo_capture.optimize(lambda x, g: x + torch.randn(4, generator=g), backend)
    fn(torch.ones(4), torch.Generator())
    assert [type(value) for value in seen] == [torch.Tensor, torch.Tensor] and seen[1].shape == (4,)


def test_gradients_go_past_the_noise(capture):
    def fn(x, g):
        return (x * torch.randn(4, generator=g)).sum()

    compiled = capture(fn)
    grads = []
    for run in (compiled, fn):
        x = torch.ones(4, requires_grad=True)
        run(x, torch.Generator().manual_seed(1)).backward()
        grads.append(x.grad)
    assert torch.equal(*grads) and compiled.report.breaks == []


def test_where_the_graph_raises_the_state_is_put_back(capture):
    def fn(x, g, rows):
        y = x + torch.randn(4, generator=g)
        try:
            return y[rows]
        except IndexError:
            return y * torch.rand(4, generator=g)

    compiled, ours, theirs = capture(fn, strict=False), torch.Generator(), torch.Generator()
    for row in (1, 9, 2):
        found, wanted = (run(torch.ones(4), g, torch.tensor([row])) for run, g in ((compiled, ours), (fn, theirs)))
        assert torch.equal(found, wanted) and torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad])
def test_modes(capture, around):
    @around()
    def fn(x, g):
        return x * 2 + torch.randn(4, generator=g), torch.empty(4).normal_(generator=g.manual_seed(3))

    def partly(x, g):
        with around():
            noise = torch.randn(4, generator=g)
        return x + noise, noise

    for program in (fn, partly):
        compiled = capture(program)
        for _ in range(2):
            found, wanted = compiled(torch.ones(4), torch.Generator()), program(torch.ones(4), torch.Generator())
            assert all(map(torch.equal, found, wanted))
            assert [t.is_inference() for t in found] == [t.is_inference() for t in wanted]
        assert program is partly or (compiled.report.breaks == [] and len(compiled.report.graphs) == 1)


def test_the_default_generator_is_the_graphs_too(capture):
    def fn(x, g):
        return torch.rand(4) + torch.rand(4, generator=g) + torch.rand(4) * x

    compiled = capture(fn)
    compiled(torch.ones(4), torch.Generator())
    for _ in range(2):
        found = outcome(compiled, torch.ones(4), torch.default_generator)
        assert torch.equal(found, outcome(fn, torch.ones(4), torch.default_generator))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 2


def test_one_generator_under_two_names(capture):
    def fn(x, a, b):
        return torch.rand(4, generator=a) - torch.rand(4, generator=b) * x

    compiled = capture(fn)
    same = torch.Generator().manual_seed(1)
    for a, b in ((torch.Generator(), torch.Generator().manual_seed(2)), (same, same), (torch.Generator(), same)):
        states = a.get_state(), b.get_state()
        found = compiled(torch.ones(4), a, b)
        a.set_state(states[0]), b.set_state(states[1])
        assert torch.equal(found, fn(torch.ones(4), a, b))
    assert compiled.report.breaks == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, g: torch.multinomial(x.softmax(0), 1, generator=g),
        lambda x, g: torch.bernoulli(x * 0.5, generator=g),
        lambda x, g: x.clone().expand(3, 4).contiguous().t().normal_(generator=g),
        lambda x, g: x + g.initial_seed(),
    ],
    ids=["multinomial", "bernoulli", "strided", "initial_seed"],
)
def test_what_has_to_be_done_in_its_place(capture, fn):
    compiled, ours, theirs = capture(fn), torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for _ in range(2):
        x = torch.ones(4)
        assert torch.equal(compiled(x, ours), fn(x, theirs)) and torch.equal(ours.get_state(), theirs.get_state())
    assert all("enerator" in brk.reason for brk in compiled.report.breaks) and compiled.report.breaks


@pytest.mark.parametrize(
    "bad",
    [lambda g: torch.randint(3, 3, (2,), generator=g), lambda g: torch.rand(-1, generator=g),
     lambda g: torch.empty(2).normal_(0, -1, generator=g)],
)  # fmt: skip
def test_a_draw_that_is_refused(capture, bad):
    def fn(x, g, log):
        log.append(x + 1)
        return bad(g)

    compiled, log = capture(fn, strict=False), []
    for run in (compiled, fn):
        with pytest.raises(RuntimeError):
            run(torch.ones(2), torch.Generator(), log)
    assert len(log) == 2 and torch.equal(*log)


def test_threads(capture):
    def fn(x, g):
        return [x + torch.randn(64, generator=g) for _ in range(4)]

    compiled, found = capture(fn), {}

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        found[seed] = [compiled(torch.zeros(64), g) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        for drawn in found[seed]:
            assert all(map(torch.equal, drawn, fn(torch.zeros(64), g)))
