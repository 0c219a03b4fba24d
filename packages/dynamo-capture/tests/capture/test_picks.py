"""``x[i]`` and ``x[i] = v`` where a tensor holds the int: in one graph where nobody can tell the copy from eager's view."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

X = torch.arange(12.0).reshape(3, 4)


class Schedule(nn.Module):
    """A diffusion sampler's, walked by tensors."""

    def __init__(self):
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, 6)
        self.register_buffer("products", (1 - betas).cumprod(0))
        self.net = nn.Linear(4, 4)

    def forward(self, x, steps):
        for t in steps:
            a = self.products[t]
            before = torch.where(t > 0, self.products[t - 1], 1.0)
            noise = self.net(x)
            start = (x - (1 - a).sqrt() * noise) / a.sqrt()
            x = before.sqrt() * start + (1 - before).sqrt() * noise
        return x


def counted(x, i):
    counts = torch.zeros(3)
    counts[i] += 1
    counts[i] *= 3
    return counts, x[i].sum()


def best_of(x, i):
    sequences = torch.cat([x, x * 2])
    return sequences[x.sum(1).argmax()], x.sum(1).topk(2)


def written(x, i):
    y = x + 1
    y[i] = 7
    y[:, i] = torch.arange(3.0)
    y[0, i] = i
    y[i, 1:] = y[i, :3] * 2
    return y


ONE_GRAPH = {
    "first": lambda x, i: x[i] * 2,
    "negative": lambda x, i: x[i - 3] + x[i - 4 + 1],
    "both": lambda x, i: x[i, i] + x[0][i] + x[2, i] + x[i, 1],
    "rest": lambda x, i: x[i, 1:] * x[i, ..., :3],
    "of_computed": lambda x, i: (x + 1)[i],
    "rows": lambda x, i: torch.stack([x[i], x[i].flip(0), x[x[:, 0].argmin()]]),
    "product": lambda x, i: x[i] @ x.t() + x[i].view(2, 2).sum(),
    "counted": counted,
    "best_of": best_of,
    "written": written,
}


def changed_after(x, i):
    y = x + 1
    z = y[i]
    y[1] = 0
    return z * 1


def changed_through(x, i):
    y = x + 1
    z = y[i]
    z.mul_(5)
    return y


def held(x, i):
    y = x + 1
    z = y[i]
    z += 2
    total = y.sum()
    y[i] = z
    return y, total


def hidden(x, i):
    y = x + 1
    z = y[i]
    y.data.zero_()
    return z * 1


SEEN = {
    "input": lambda x, i: x[i],
    "view_of_input": lambda x, i: x.view(12)[2:][i].view(1),
    "detached": lambda x, i: (x * 2, x[i].detach()),
    "both_given": lambda x, i: [y := x * 2, y[i]],
    "strided": lambda x, i: x[:, i] * 2,
    "changed_after": changed_after,
    "changed_through": changed_through,
    "held": held,
    "hidden": hidden,
}


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32, torch.int8], ids=str)
def test_one_graph(capture, name, dtype, index):
    fn = ONE_GRAPH[name]
    compiled = capture(fn)
    for place in (1, 0, 2):
        i = torch.tensor(place, dtype=index)
        torch.testing.assert_close(compiled(X.to(dtype), i), fn(X.to(dtype), i), rtol=0, atol=0)
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


@pytest.mark.parametrize("name", SEEN)
def test_where_the_view_can_be_told_the_region_ends(capture, name):
    fn = SEEN[name]
    compiled = capture(fn, strict=False)
    for place in (1, 0, 2):
        mine, theirs = X.clone(), X.clone()
        found, wanted = compiled(mine, torch.tensor(place)), fn(theirs, torch.tensor(place))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        for a, b in zip(*([each] if torch.is_tensor(each) else each for each in (found, wanted)), strict=True):
            assert a.stride() == b.stride()
        mine += 1
        theirs += 1
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)  # what shares memory with the argument does so too
    assert compiled.report.breaks


def test_a_schedule_is_one_graph(capture):
    torch.manual_seed(0)
    module, steps = Schedule(), torch.tensor([5, 3, 1, 0])
    compiled = capture(module)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x, steps), module(x, steps))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


def test_gradients(capture):
    def fn(x, i):
        return (x * 3)[i].pow(2).sum() + x[i, 1]

    compiled, grads = capture(fn), []
    for run in (compiled, fn):
        x = X.clone().requires_grad_()
        run(x, torch.tensor(2)).backward()
        grads.append(x.grad)
    assert torch.equal(*grads) and compiled.report.breaks == []


def test_out_of_range(capture):
    def fn(x, i, log):
        log.append(1)
        try:
            return x[i] * 2
        except IndexError as error:
            return str(error)

    compiled, log = capture(fn, strict=False), []
    for place in (1, 7, -9):
        assert str(compiled(X, torch.tensor(place), log)) == str(fn(X, torch.tensor(place), log))
    assert len(log) == 6


def test_threads(capture):
    compiled, found = capture(ONE_GRAPH["both"]), {}

    def work(place):
        found[place] = [compiled(X, torch.tensor(place)).item() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {place: [ONE_GRAPH["both"](X, torch.tensor(place)).item()] * 20 for place in range(3)}


# --- results that share memory in eager -------------------------------------------------------------------------------


def two_of_one(x, i, j):
    h = x * 2
    return h[i], h[j]


def of_one_taken(x, i, j):
    h = x * 2
    taken = h[i]
    return taken[j], h[i]


def taken_twice(x, i, j):
    taken = x[i]
    return taken[j], x.sum()


def taken_before_a_write(x, i, j):
    h = x * 2
    taken = h[i][j]
    h.add_(1)
    return taken.sum(), h.sum()


def two_of_two(x, i, j):
    return (x * 2)[i], (x * 3)[j]


def beside_its_view(x, i, j):
    taken = (x * 2)[i]
    return taken, taken.view(-1)


SHARING = (two_of_one, of_one_taken, taken_twice, taken_before_a_write, two_of_two, beside_its_view)


@pytest.mark.parametrize("program", SHARING, ids=lambda fn: fn.__name__)
def test_results_share_memory_as_in_eager(capture, program):
    compiled = capture(program, strict=False)
    for i, j in ((1, 1), (1, 2), (0, 1)):
        found = []
        for run in (compiled, program):
            x = X.clone()
            first, second = run(x, torch.tensor(i), torch.tensor(j))
            first.add_(100)
            found.append((x, first, second))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert bool(compiled.report.breaks) is (program not in (two_of_two, beside_its_view))


VALUES = [1.5, torch.tensor(3.0), torch.ones(4), torch.ones(1, 1, 4), torch.ones(3), torch.ones(2, 4), torch.ones(1, 3),
          torch.ones(4, 1), torch.ones(0)]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(tuple(getattr(value, "shape", "n"))))
def test_values_that_do_not_fit_are_refused_as_in_eager(capture, value):
    def fn(x, i, value):
        h = x * 2
        h[i] = value
        return h

    found = []
    for run in (capture(fn, strict=False), fn):
        try:
            found.append(run(X, torch.tensor(1), value))
        except RuntimeError as error:
            found.append(str(error))
    torch.testing.assert_close(*found, rtol=0, atol=0) if torch.is_tensor(found[1]) else None
    assert torch.is_tensor(found[1]) or found[0] == found[1]


def saved_and_written(x, i):
    h = x * 2
    total = (h[i] ** 2).sum()
    h[i] = 0
    return total + h.sum()


def saved_and_written_beside(x, i):
    counts = torch.arange(3.0)
    total = (x[0] * counts[i]).sum()
    counts.add_(1)
    return total + counts.sum()


@pytest.mark.parametrize("program", [saved_and_written, saved_and_written_beside], ids=lambda fn: fn.__name__)
def test_a_view_that_is_saved_and_written_is_eagers_error(capture, program):
    compiled = capture(program, strict=False)
    for place in (1, 0):
        errors = []
        for run in (compiled, program):
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
                run(X.clone().requires_grad_(), torch.tensor(place)).backward()
            errors.append(str(error.value))
        assert errors[0] == errors[1]
    with torch.no_grad():
        for run in (captured := capture(program), program):
            assert torch.isfinite(run(X.clone(), torch.tensor(1)))
    assert captured.report.breaks == []
