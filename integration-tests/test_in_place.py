"""Writes to what a graph is given: in place, of the written part alone, where nobody needs what was there before.

Each program runs eagerly and compiled on states of its own, three calls each; results, states, where the states' memory
is and their version counters must be eager's. Whether the graph writes in place is read off its kernels: one that does
not begins with a copy of the whole state, or computes it all.
"""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

import compile_api

ROWS = 12


def index_copy(k, x, pos):
    k.index_copy_(1, pos, x)
    return k.sum()


def set_by_tensor(k, x, pos):
    k[:, pos] = x
    return k * 2


def set_rows(k, x, pos):
    k[:, 2:5] = x
    return k.amin(1)


def set_a_part(k, x, pos):
    k[1, 3:6].copy_(x[0])
    return k.amax()


def set_one(k, x, pos):
    k[0, 4] = x[0, 0]
    k[1, -1] = 3.5
    return k + 1


def set_every_second(k, x, pos):
    k[:, 1:7:2] = x
    return k.sum(0)


def set_columns(k, x, pos):
    k.transpose(1, 2)[:, 2:4] = x.transpose(1, 2)[:, :2, :1]
    return k.sum()


def scatter(k, x, pos):
    k.scatter_(1, pos.view(1, 3, 1).expand(2, 3, 5), x)
    return k.cos()


def write_twice(k, x, pos):
    k[:, pos] = x
    k[:, 0:1] = x[:, :1] * 2
    return k.sum()


def fill(k, x, pos):
    k[:, 5].fill_(2.0)
    k[0].narrow(0, 1, 2).zero_()
    return k.sum(1)


def return_it(k, x, pos):
    k[:, pos] = x
    return k


def return_a_view(k, x, pos):
    k[:, pos] = x
    return k[:, 3:]


def only_write(k, x, pos):
    k[:, pos] = x


def reads_before(k, x, pos):
    old = k.sum(1)
    k[:, pos] = x
    return old, k.sum()


def from_itself(k, x, pos):
    k[:, 0:3] = k[:, 4:7] + x
    return k.sum()


def places_from_itself(k, x, pos):
    at = (k[0, :3, 0].abs() * 3).long().clamp(0, ROWS - 1)
    k[:, at] = x
    return k.sum()


def accumulates(k, x, pos):
    k.index_add_(1, pos, x)
    return k.sum()


#: Programs that write in place.
IN_PLACE = [
    index_copy, set_by_tensor, set_rows, set_a_part, set_one, set_every_second, scatter, write_twice, fill, return_it,
    return_a_view, only_write, reads_before, from_itself, places_from_itself, accumulates,
]  # fmt: skip


def reads_between(k, x, pos):
    k[:, pos] = x
    between = k.exp()
    k[:, 0:1] = 1.0
    return between, k.sum()


def writes_all(k, x, pos):
    k.mul_(2).add_(x[:, :1])
    return k.sum()


#: Programs whose states are read between two writes, or written as a whole.
OTHERS = [set_columns, reads_between, writes_all]


def state(layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(2.0 * ROWS * 5, dtype=torch.float64).sin().to(dtype).view(2, ROWS, 5)
    match layout:
        case "transposed":
            return values.transpose(0, 2).contiguous().transpose(0, 2)
        case "part":
            return torch.cat([values, values])[2:]
        case "gaps":
            return torch.stack([values, values], -1)[..., 0]
    return values


def places(layout: str, call: int) -> torch.Tensor:
    return torch.tensor([3 * call, 7, 10 - call])


def same(got, want, summed=None) -> None:
    """Equal but for roundings; of a sum over ``summed``, whose terms may cancel, but for roundings of its terms."""
    atol = 1e-6
    if isinstance(got, torch.Tensor) and got.ndim == 0 and summed is not None and summed.is_floating_point():
        atol = max(atol, torch.finfo(summed.dtype).eps * summed.double().abs().sum().item())
    torch.testing.assert_close(got, want, rtol=1e-6, atol=atol, equal_nan=True)


def ran(program, layout: str = "dense", dtype: torch.dtype = torch.float32):
    """Run a program eagerly and compiled; the report of the compiled calls."""
    compiled = compile_api.compile(program)
    ours, eagers = state(layout, dtype), state(layout, dtype)
    where, held = ours.data_ptr(), ours[0]
    for call in range(3):
        x = torch.randn(2, 3, 5).to(dtype)
        before = (ours._version, eagers._version)
        with torch.no_grad():
            got = compiled(ours, x, places(layout, call))
            want = program(eagers, x, places(layout, call))
        same(got, want, eagers)
        same(ours, eagers)
        same(held, eagers[0])
        assert ours.data_ptr() == where
        assert (ours._version > before[0]) == (eagers._version > before[1])
    return compile_api.report(compiled) if hasattr(compile_api, "report") else compiled.report()


def copies(report, whole: int = state("dense").nbytes) -> list[tuple[str, ...]]:
    """The kernels that make a state anew, and not a part of it."""
    return [k.ops for k in report.kernels if ("copy" in k.ops or "where" in k.ops) and k.written >= whole]


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda p: p.__name__)
@pytest.mark.parametrize("layout", ["dense", "transposed", "part"])
def test_in_place(program, layout):
    report = ran(program, layout)
    assert not copies(report) and len(report.kernels) > 0, [k.ops for k in report.kernels]


@pytest.mark.parametrize("program", [*IN_PLACE, *OTHERS], ids=lambda p: p.__name__)
@pytest.mark.parametrize("layout", ["dense", "gaps"])
def test_right(program, layout):
    assert len(ran(program, layout).kernels) > 0


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool], ids=str)
def test_dtypes_that_kernels_do_not_write(dtype):
    def first(k, x, pos):
        k[0] = 1
        k[:, 3:4] = x[:, :1]
        return k.clone()

    ran(first, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("program", [index_copy, set_rows, set_one, write_twice], ids=lambda p: p.__name__)
def test_dtypes(program, dtype):
    assert not copies(ran(program, dtype=dtype), state("dense", dtype).nbytes)


def test_states_that_share_memory_are_written_as_eager_writes_them():
    def both(a, b, x, pos):
        a[:, pos] = x
        b[:, 0:1] = x[:, :1]
        return a.sum() + b.sum()

    compiled = compile_api.compile(both)
    x, pos = torch.randn(2, 3, 5), torch.tensor([1, 0, 6])
    for share in (False, True):
        ours, eagers = state("dense"), state("dense")
        other, others = (ours, eagers) if share else (state("dense"), state("dense"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, want = compiled(ours, other, x, pos), both(eagers, others, x, pos)
        same(got, want, summed=torch.stack((eagers, others)))
        same(ours, eagers)
        same(other, others)


def test_a_place_out_of_range_writes_what_eager_does():
    compiled = compile_api.compile(index_copy)
    ours, eagers, x = state("dense"), state("dense"), torch.randn(2, 3, 5)
    for places in ([0, 1, 2], [3, ROWS, 4], [5, 6, 7]):
        for run, buffer in ((compiled, ours), (index_copy, eagers)):
            refused = pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)")
            with refused if ROWS in places else contextlib.nullcontext():
                run(buffer, x, torch.tensor(places))
        same(ours, eagers)


def test_an_error_before_the_write_leaves_the_state():
    def looked_up(k, table, at, x):
        row = table[at]
        k[:, 2:5] = x
        return k.sum() + row.sum()

    compiled = compile_api.compile(looked_up)
    ours, table, x = state("dense"), torch.randn(4, 3), torch.randn(2, 3, 5)
    compiled(ours, table, torch.tensor([0]), x)
    before = ours.clone()
    with pytest.raises((IndexError, RuntimeError)):
        compiled(ours, table, torch.tensor([9]), x + 1)
    assert torch.equal(ours, before)


def gathered(x, at):
    return x.gather(0, at)


def indexed(x, at):
    return x[at] * 2 + 1


def embedded(x, at):
    return torch.nn.functional.embedding(at, x[:, None].expand(4, 4)).relu().sum(1)


def divided(x, at):
    return torch.arange(1, 5) // (at - 9)


def inverted(x, at):
    return torch.linalg.inv((at - 9).float().diag()).sum(0)


REFUSING = [gathered, indexed, embedded, divided, inverted]
WRITES = {
    "index_copy": lambda cache, new: cache.index_copy_(0, torch.tensor([2, 5]), new),
    "rows": lambda cache, new: cache[1:3].copy_(new),
    "by tensor": lambda cache, new: cache.__setitem__(torch.tensor([0, 7]), new),
    "twice": lambda cache, new: (cache.index_copy_(0, torch.tensor([2, 5]), new), cache[6:].copy_(new * 2)),
}
READS = {
    "beside": lambda z, cache: (cache[:4] * z).exp(),
    "sums": lambda z, cache: (cache.sum(1)[:4] + z).sum(),
    "several": lambda z, cache: (cache[:4, 0] * z, (cache * z.repeat(2)[:, None]).sum(1), z + 1, cache.amax() * z),
    "apart": lambda z, cache: (cache * 2, z * 2),
}


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("refusing", REFUSING, ids=lambda f: f.__name__)
def test_data_that_is_refused_before_the_write(refusing, write, reads):
    """Whatever is computed together: the state is not written, as the program does not come to that."""

    def fn(x, at, cache, new):
        z = refusing(x, at)
        WRITES[write](cache, new)
        return READS[reads](z, cache)

    compiled = compile_api.compile(fn, options={"verify": "every_pass"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in ([0, 1, 2, 3], [3, 9, 1, 2], [3, 3, 3, 3], [0, 0, 0, 9]):
            runs = []
            for call in (fn, compiled):
                torch.manual_seed(0)
                x, cache, new = torch.randn(4), torch.zeros(8, 4), torch.randn(2, 4)
                try:
                    result = call(x, torch.tensor(at), cache, new)
                except (RuntimeError, IndexError) as error:
                    result = type(error)
                runs.append((cache, result))
            (expected, wanted), (cache, result) = runs
            assert torch.equal(cache, expected)
            if 9 in at:
                assert result is wanted
            else:
                torch.testing.assert_close(result, wanted)
    assert compiled.report().kernels and not compiled.report().breaks


def test_a_part_that_moves():
    def step(k, x, at: int):
        k[:, at : at + 1] = x
        return k[:, : at + 1].sum()

    compiled = compile_api.compile(step)
    ours, eagers = state("dense"), state("dense")
    for at in range(ROWS):
        x = torch.randn(2, 1, 5)
        same(compiled(ours, x, at), step(eagers, x, at))
        same(ours, eagers)


def test_gradients_need_the_old_value():
    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(6))
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))

        def forward(self, x):
            y = (self.weight * x).sum() + self.seen.sum()
            self.seen[1:3] = x.detach()[1:3]
            return y

    ours, eagers = Writes(), Writes()
    compiled = compile_api.compile(ours)
    for _ in range(3):
        x = torch.randn(6)
        loss, want = compiled(x), eagers(x)
        same(loss, want)
        loss.backward()
        want.backward()
        same(ours.weight.grad, eagers.weight.grad)
        same(ours.seen, eagers.seen)


def test_the_judge_sees_a_copy():
    """A state that is also read between two writes must be copied, and the kernels show it."""
    assert copies(ran(reads_between))


# ---- new values that depend on the old ones: written by the last kernels, after everything that can fail -------------


def momentum(p, m, g, i):
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(m * 0.01)


def adam(p, m, g, i):
    m.lerp_(g, 0.1)
    p.addcdiv_(m, (g * g).sqrt() + 1e-3, value=-0.01)
    return p.sum(), m.abs().amax()


def through_a_view(p, m, g, i):
    p.view(-1).mul_(2).add_(g.view(-1))
    return m @ g.t()


def with_a_library(p, m, g, i):
    p.add_(m @ (g.t() @ g))
    m.copy_(torch.tanh(m) * 2)


def indexed_first(p, m, g, i):
    y = m[i]
    p.mul_(2)
    return y


def indexed_last(p, m, g, i):
    p.mul_(2)
    m.add_(p)
    return g[i]


RENEWING = {"momentum": momentum, "adam": adam, "view": through_a_view, "library": with_a_library,
            "indexed first": indexed_first, "indexed last": indexed_last}  # fmt: skip


def renewed_state():
    torch.manual_seed(0)
    return [*(torch.randn(6, 4) for _ in range(3)), torch.tensor([1, 5, 0])]


@pytest.mark.parametrize("name", RENEWING)
def test_new_values_over_old_ones(name):
    run = RENEWING[name]
    eager, ours = renewed_state(), renewed_state()
    compiled = compile_api.compile(run, options={"verify": "every_pass"})
    places = [t.data_ptr() for t in ours]
    with torch.no_grad():
        for _ in range(3):
            expected, got = run(*eager), compiled(*ours)
            torch.testing.assert_close((ours, got), (eager, expected))
    assert places == [t.data_ptr() for t in ours]
    assert not compiled.report().fallbacks
    allocated = {"momentum": 0, "adam": 2, "view": 1, "library": 2, "indexed first": 1, "indexed last": 1}
    assert [plan.pieces for plan in compiled.report().memory] == [allocated[name]]  # results and products


@pytest.mark.parametrize("name", ["indexed first", "indexed last"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_failure_comes_before_the_writes(name, before):
    """Where the program's data is refused the graph has written nothing, in the first call or in a later one: what is
    written then is what eager writes before it raises."""
    run = RENEWING[name]
    eager, ours = renewed_state(), renewed_state()
    compiled = compile_api.compile(run)
    with torch.no_grad():
        for _ in range(before):
            run(*eager), compiled(*ours)
        for call, tensors in ((compiled, ours), (run, eager)):
            tensors[3] = torch.tensor([1, 99, 0])
            with warnings.catch_warnings(), pytest.raises(IndexError):
                warnings.simplefilter("ignore")
                call(*tensors)
    torch.testing.assert_close(ours[:3], eager[:3])


@pytest.mark.parametrize("change", ["mul_", "copy_", "index_copy_", "sin_"])
def test_a_region_that_saves_only_arguments_and_results_has_a_backward_pass(change: str) -> None:
    """Its kernels write no input: that is for regions without gradients."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        r = y * 2
        match change:
            case "mul_":
                x.mul_(y)
            case "copy_":
                x.copy_(y * 3)
            case "index_copy_":
                x.index_copy_(0, torch.tensor([1]), y[:1])
            case _:
                x.sin_()
        return r + x * y

    results = []
    for call in (f, compile_api.compile(f)):
        z = torch.linspace(-1, 2, 12).reshape(4, 3).requires_grad_()
        y = torch.linspace(2, 1, 12).reshape(4, 3).requires_grad_()
        found = []
        for _ in range(2):
            w = z * 1
            out = call(w, y)
            (out.sum() + w.cos().sum()).backward()
            found += [out.detach(), w.detach(), z.grad.clone(), y.grad.clone()]
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


# ---- forward passes that change what no gradient needs ----------------------------------------------------------------


class Counts(torch.nn.Module):
    """A buffer that counts what it has seen beside a batch norm's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)
        self.linear = torch.nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.seen.mul_(0.9).add_(y.abs().mean(0))
        return torch.relu(self.norm(y)) * x


class OldValue(Counts):
    """The gradient needs what a buffer held before."""

    def forward(self, x):
        y = self.linear(x) * self.seen.exp()
        with torch.no_grad():
            self.seen.add_(y.mean(0))
        return self.norm(y)


class NewValue(Counts):
    """The gradient needs what a buffer holds now, whatever is written to it later."""

    def forward(self, x):
        with torch.no_grad():
            self.seen.add_(x.detach().sin().mean(0))
        return self.norm(self.linear(x) * self.seen.clone().exp())


class Drawn(Counts):
    """Parts of buffers at places that the data gives."""

    def forward(self, x):
        with torch.no_grad():
            self.seen[x[0].argsort()[:4]] = x[1, :4].detach()
        return torch.relu(self.norm(self.linear(x)))


@pytest.mark.parametrize("kind", [Counts, OldValue, NewValue, Drawn], ids=lambda c: c.__name__)
@pytest.mark.parametrize("twice", [False, True])
def test_training_with_buffers(kind, twice):
    """``twice``: the forward pass runs again before the backward pass of the first one does."""
    torch.manual_seed(1)
    eager = kind().double()
    ours = kind().double()
    ours.load_state_dict(eager.state_dict())
    compiled = compile_api.compile(ours, options={"verify": "every_pass"})
    places = {name: b.data_ptr() for name, b in ours.named_buffers()}
    for _ in range(3):
        x = torch.randn(5, 6, dtype=torch.float64)
        versions = [{n: b._version for n, b in m.named_buffers()} for m in (eager, ours)]
        losses = []
        for call in (eager, compiled):
            losses.append([call(x).square().sum() for _ in range(1 + twice)])
            for loss in losses[-1]:
                loss.backward()
        same(losses[1], losses[0])
        for (name, a), (_, b) in zip(eager.named_buffers(), ours.named_buffers(), strict=True):
            same(b, a)
            assert (b._version > versions[1][name]) == (a._version > versions[0][name]), name
        for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
            same(b.grad, a.grad)
    assert {name: b.data_ptr() for name, b in ours.named_buffers()} == places
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("kind", [Drawn, NewValue], ids=lambda c: c.__name__)
def test_a_forward_pass_writes_the_part_of_a_buffer(kind):
    """Its kernels begin with no copy of the buffer, but where the gradient needs a value of its own."""

    class Part(kind):
        def forward(self, x):
            with torch.no_grad():
                self.seen[2:4] = x[1, 2:4].detach()
            y = self.linear(x)
            return y * self.seen if kind is NewValue else y

    compiled = compile_api.compile(Part())
    for _ in range(2):
        compiled(torch.randn(5, 6)).sum().backward()
    assert bool(copies(compiled.report(), 24)) == (kind is NewValue), [k.ops for k in compiled.report().kernels]

@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("write", [lambda t: t.mul_(2), lambda t: torch.nn.functional.silu(t, inplace=True), lambda t: t[1:].neg_()])
def test_a_result_with_gaps_keeps_them_when_it_is_written(write, dynamic) -> None:
    def program(x):
        result = x.select_scatter(x.select(-1, 0) * 2, -1, -1)
        write(result)
        return result

    compiled = compile_api.compile(program, dynamic=dynamic)
    for rows in (2, 3):
        x = torch.randn(rows, 2, 9)[..., 1::2]
        ours, eager = compiled(x), program(x)
        assert ours.stride() == eager.stride() and not eager.is_contiguous()
        torch.testing.assert_close(ours, eager)
    assert not compiled.report().fallbacks
