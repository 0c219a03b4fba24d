"""Draws of ``random`` and readings of a clock: at run time, in eager's order, with the generators' states as in eager."""

from __future__ import annotations

import random
import sys
import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dynamo_capture
from prims.errors import Unsupported
from prims.options import Options

RNG = random.Random(0)
OTHER = random.Random(0)
LAST = 0.0


class Holder:
    def __init__(self, generator):
        self.generator = generator
        self.last = 0.0


class Loaded(random.Random):
    def random(self):
        return 0.25


class Noise(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)
        self.low, self.high = -1.0, 1.0

    def forward(self, x):
        return x * self.rng.uniform(self.low, self.high)


@torch.library.custom_op("test_drawn::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


@noisy.register_fake
def _(x):
    return torch.empty_like(x)


def every_float(x):
    y = x * random.uniform(-1, 2) + random.triangular(0, 3, 1) - random.gauss(0.0, 1.0)
    y = y + random.normalvariate(1, 2) + random.lognormvariate(0, 0.25) + random.expovariate(2.0)
    y = y + random.vonmisesvariate(0.5, 4.0) + random.gammavariate(2.0, 1.5) + random.betavariate(2, 3)
    return y + random.paretovariate(3) + random.weibullvariate(1, 1.5) + random.gauss(sigma=2.0, mu=1.0)


def every_int(x):
    y = x + random.randint(-3, 3) + random.randrange(7) + random.randrange(10, 0, -3)
    return y * random.getrandbits(10) + random.choice((1, 5, 9)) + random.choice(range(4, 8)), random.randint(2, 2)


def seeded(x):
    random.seed(7)
    first = random.random()
    random.seed(7)
    return x + first, random.random()


def two_generators(x):
    a, b, c = RNG.random(), random.random(), RNG.random()
    return x + a, b, [c, RNG.gauss(0, 1)]


def held(x, holder):
    holder.last = holder.generator.uniform(0, holder.last + 1)
    return x + holder.last


def printed(x):
    return f"{random.random():.4f}", x + 1


def in_a_comprehension(x):
    return x + sum([random.random() for _ in range(4)])


def refused(x):
    try:
        random.randint(5, 1)
    except ValueError as error:
        return x + 1, str(error)


def empty_choice(x):
    try:
        return x + random.choice([])
    except IndexError as error:
        return x + 1, str(error)


def global_kept(x):
    global LAST
    LAST = random.random()
    return x + LAST


def written(x):
    x += random.random()
    return x * random.random()


def caught(x):
    y = x + random.random()
    try:
        return y[torch.tensor([x.shape[0] + 9])]
    except IndexError:
        return y * random.random()


def in_an_order(x):
    order, weights = [3, 1, 2], [0.5, 1.5]
    random.shuffle(order)
    random.Random.shuffle(RNG, weights)
    random.shuffle([])
    return x * order[0] + weights[1], order, weights


def sampled(x):
    a, b = random.sample(range(10), 2)
    c = random.choices((5, 7), weights=[1, 3], k=3)
    return x * a + b + RNG.sample([1.5, 2.5, 3.5], k=2)[1], c, random.choices([4, 6])[0]


def shuffled_rows(x):
    order = list(range(3))
    random.shuffle(order)
    return torch.stack([x * 1, x * 2, x * 3])[order], x[random.sample([0, 0, 0], 1)]


ONE_GRAPH = {
    "in an order": (in_an_order, ()),
    "an index": (lambda x: x[random.randint(0, 1)] + x[[random.randint(0, 0), random.randint(0, 1)]], ()),
    "sampled": (sampled, ()),
    "rows in another order": (shuffled_rows, ()),
    "random": (lambda x: x + random.random(), ()),
    "every float": (every_float, ()),
    "every int": (every_int, ()),
    "a float among choices": (lambda x: x * random.choice([0.5, -1.5, 2.5]), ()),
    "a generator of one's own": (lambda x: x + RNG.random(), ()),
    "an unbound method": (lambda x: x + random.Random.random(RNG) * random.Random.uniform(RNG, 1, 2), ()),
    "a generator among the arguments": (lambda x, rng: x + rng.random(), (lambda: RNG,)),
    "one generator twice": (lambda x, a, b: (x + a.random(), b.random(), a.random()), (lambda: RNG, lambda: RNG)),
    "several generators": (two_generators, ()),
    "seeded": (seeded, ()),
    "printed": (printed, ()),
    "in a comprehension": (in_a_comprehension, ()),
    "refused": (refused, ()),
    "an empty choice": (empty_choice, ()),
    "kept by a global": (global_kept, ()),
    "an input written": (written, ()),
    "a size": (lambda x: torch.zeros(random.randint(1, 5)).sum() + x, ()),
    "an integer tensor": (lambda x: x.long() * random.random() + random.randint(1, 3), ()),
    "returned alone": (lambda x: (random.random(), x + 1, random.randint(0, 9)), ()),
    "never used": (lambda x: (random.random(), x + 1)[1], ()),
}


def draws_a_branch(x):
    y = x * 2
    if random.random() < 0.5:
        return y + 1
    return y - random.random()


def around_a_break(x):
    y = x + random.random()
    dynamo_capture.graph_break()
    return y * random.random() + RNG.random()


def shuffled(x):
    items = [1, 2, 3, 4]
    y = x + random.random()
    random.shuffle(items)
    return y + items[0] + random.random(), items, random.sample(items, 2)


def state_read(x):
    a = random.random()
    state = random.getstate()
    b = random.random()
    random.setstate(state)
    return x + a, b == random.random()


def gauss_kept(x):
    a = RNG.gauss(0, 1)
    kept = RNG.gauss_next
    return x + a, kept, RNG.gauss(0, 1), RNG.gauss_next


def gauss_set(x):
    RNG.gauss_next = 0.125
    return x + RNG.gauss(0, 1)


def drawn_by_an_operator(x):
    y = x + random.random()
    return noisy(y) * random.random()


def drawn_in_a_checkpoint(x):
    return checkpoint(lambda t: t * random.random(), x, use_reentrant=False) + random.random()


def made_here(x):
    rng = random.Random(3)
    return x + rng.random()


def of_a_size(x):
    return x[: random.randint(1, x.shape[0])].sum() + x


BREAKS = {
    "a branch": (draws_a_branch, ()),
    "around a break": (around_a_break, ()),
    "shuffled": (shuffled, ()),
    "the state read": (state_read, ()),
    "what gauss keeps": (gauss_kept, ()),
    "what gauss keeps, set": (gauss_set, ()),
    "drawn by an operator too": (drawn_by_an_operator, ()),
    "in a checkpoint": (drawn_in_a_checkpoint, ()),
    "a generator made here": (made_here, ()),
    "a subclass": (lambda x, rng: (x + rng.random(), rng.uniform(0, 1)), (lambda: Loaded(),)),
    "a large int": (lambda x: (x + 1, random.getrandbits(80)), ()),
    "no float": (lambda x: x + random.triangular(5, 5, 5), ()),
    "of objects": (lambda x: x + len(random.choice(["a", "bbb", "cc"])), ()),
    "as a bound": (of_a_size, ()),
}
if sys.version_info >= (3, 12):  # sum() adds floats with a compensation, which numbers that are not known do not get
    BREAKS["in a comprehension"] = ONE_GRAPH.pop("in a comprehension")


def outcomes(function, makers, calls=6):
    """What calls give or raise, with the generators' states after each."""
    random.seed(1)
    RNG.seed(2)
    found = []
    for n in range(calls):
        x = torch.linspace(-1, 1, 4 + n // 3)
        try:
            result = function(x, *(make() for make in makers))
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        found.append((result, x, random.getstate(), RNG.getstate(), LAST))
    return found


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) in (list, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_drawn_when_the_region_runs(name, capture):
    function, makers = ONE_GRAPH[name]
    wanted = outcomes(function, makers)
    compiled = capture(function)
    assert same(outcomes(compiled, makers), wanted)
    assert not compiled.report.breaks and not compiled.report.fallbacks
    assert len(compiled.graphs) <= 2  # one for each size, or for the two first sizes
    assert len(compiled.report.recompiles) <= 1


@pytest.mark.parametrize("name", BREAKS)
def test_a_draw_that_decides_breaks(name, capture):
    function, makers = BREAKS[name]
    wanted = outcomes(function, makers)
    compiled = capture(function)
    assert same(outcomes(compiled, makers), wanted)
    assert compiled.report.breaks


@pytest.mark.parametrize("name", [*ONE_GRAPH, *BREAKS])
def test_a_backend_of_fixed_numbers(name):
    function, makers = (ONE_GRAPH | BREAKS)[name]
    wanted = outcomes(function, makers)
    compiled = dynamo_capture.optimize(
        function, lambda gm, inputs: gm.forward, options=Options(recompile_limit=40, strict=True)
    )
    assert same(outcomes(compiled, makers), wanted)


def test_drawn_by_what_an_object_holds(capture):
    def calls(function):
        holder = Holder(random.Random(4))
        return [(function(torch.ones(3), holder), holder.last, holder.generator.getstate()) for _ in range(5)]

    wanted = calls(held)
    assert same(calls(capture(held)), wanted)

    def of_module(make):
        module = Noise()
        run = make(module)
        found = []
        for low in (-1.0, 0.0, 0.5, 0.75):
            module.low = low
            found.append((run(torch.ones(3)), module.rng.getstate()))
        return found

    compiled = []
    wanted = of_module(lambda module: module)
    assert same(of_module(lambda module: compiled.append(capture(module)) or compiled[0]), wanted)
    assert not compiled[0].report.breaks and len(compiled[0].graphs) == 2


def test_a_graph_that_raises_has_drawn_nothing(capture):
    wanted = outcomes(caught, ())
    compiled = capture(caught)
    assert same(outcomes(compiled, ()), wanted)

    def raises(x):
        y = x + random.random()
        y = y[torch.tensor([x.shape[0] + 9])]
        return y * random.random()

    wanted = outcomes(raises, ())
    assert same(outcomes(capture(raises), ()), wanted)


def test_gradients(capture):
    def function(x):
        return (x * random.uniform(1, 2)).sin().sum() * random.random()

    def gradients(run):
        random.seed(3)
        found = []
        for _ in range(3):
            x = torch.ones(3, requires_grad=True)
            run(x).backward()
            found.append(x.grad)
        return found

    compiled = capture(function)
    assert same(gradients(compiled), gradients(function))
    assert len(compiled.graphs) == 1 and not compiled.report.breaks


def test_fullgraph(capture):
    compiled = capture(lambda x: x + random.random(), fullgraph=True)
    random.seed(0)
    got = [compiled(torch.zeros(1, dtype=torch.float64)).item() for _ in range(4)]
    random.seed(0)
    assert got == [random.random() for _ in range(4)]


def test_what_is_drawn_is_not_exported():
    with pytest.raises(Unsupported, match=r"calls uniform\(\), whose result is no argument"):
        dynamo_capture.export_graph(lambda x: x + random.uniform(0, 1), torch.ones(3))


CLOCKS = ["time", "perf_counter", "monotonic", "process_time", "thread_time"]


@pytest.mark.parametrize("name", [*CLOCKS, *(name + "_ns" for name in CLOCKS)])
def test_a_clock_is_read_in_every_call(name, capture):
    clock = getattr(time, name)

    def function(x):
        before, after = clock(), clock()
        return x + before * 0, before, after

    compiled = capture(function)
    last = clock()
    for _ in range(4):
        result, before, after = compiled(torch.ones(3))
        assert type(before) is type(last) and last <= before <= after <= clock()
        assert torch.equal(result, torch.ones(3))
        last = after
    assert len(compiled.graphs) == 1 and not compiled.report.breaks


def test_a_clock_after_an_operator_measures_it(capture):
    @torch.library.custom_op("test_drawn::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return x + 1

    slow.register_fake(torch.empty_like)

    def function(x):
        begin = time.perf_counter()
        y = slow(x)
        return y * 2, time.perf_counter() - begin

    compiled = capture(function)
    for _ in range(3):
        result, took = compiled(torch.ones(3))
        assert torch.equal(result, torch.full((3,), 4.0))
        assert took >= 0.02
    assert len(compiled.report.breaks) == 1
