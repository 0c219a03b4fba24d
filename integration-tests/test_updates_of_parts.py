"""A part of a state is made of what it held (``k[:, 5:7] += x``): the part alone is read and written.

Every way to name a part with every way to make its new values, run eagerly and compiled on states of their own: results
and states are eager's, and the kernels move few bytes beside the state's. Whatever is refused leaves the state as it
was.
"""

from __future__ import annotations

import contextlib
import random
import warnings

import pytest
import torch

import compile_api

ROWS, COLUMNS = 64, 40

PARTS = {
    "row": lambda k: k[3],
    "last row": lambda k: k[-1],
    "rows": lambda k: k[5:9],
    "columns": lambda k: k[:, 2:5],
    "block": lambda k: k[4:9, 10:20],
    "every third": lambda k: k[1:40:3],
    "one": lambda k: k[7, 8],
    "narrowed twice": lambda k: k.narrow(0, 2, 20).narrow(1, 3, 4)[1:5],
}

#: Parts of what has the state's elements in other dimensions or another order.
THROUGH = {
    "rows of a transposed": lambda k: k.t()[2:4], "rows of a view": lambda k: k.view(-1, 10)[6:12],
    "of blocks": lambda k: k.view(8, 8, COLUMNS).transpose(0, 1)[3, 2:5], "flat": lambda k: k.flatten()[30:50],
    "with more dimensions": lambda k: k.unsqueeze(1).permute(2, 1, 0)[4],
}

CHANGES = {
    "added to": lambda part, x: part.add_(x.sum()),
    "scaled": lambda part, x: part.mul_(0.5),
    "twice": lambda part, x: part.mul_(0.5).add_(1),
    "from its function": lambda part, x: part.copy_(part.sin() + x[0, 0]),
    "normalised": lambda part, x: part.div_(part.norm() + 1),
    "from its own order": lambda part, x: part.copy_(part.flip(0) if part.ndim else -part),
}


def few_bytes(report, state: torch.Tensor) -> bool:
    """Do the kernels write less than the state? (What is returned here is small.)"""
    return bool(report.kernels) and sum(k.written for k in report.kernels) < state.nbytes


def judged(program, make, calls: int = 2, check: bool = True):
    """Run it eagerly and compiled; the compiled function, once results and states were found equal."""
    compiled = compile_api.compile(program, options={"verify": "every_pass"})
    eagers, ours = make(), make()
    where = ours[0].data_ptr()
    with torch.no_grad():
        for _ in range(calls):
            want, got = program(*eagers), compiled(*ours)
            torch.testing.assert_close((got, ours), (want, eagers), rtol=1e-5, atol=1e-5)
    assert ours[0].data_ptr() == where and not compiled.report().fallbacks
    if check:
        assert few_bytes(compiled.report(), ours[0]), [(k.ops, k.written) for k in compiled.report().kernels]
    return compiled


def tensors(dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    return torch.randn(ROWS, COLUMNS).to(dtype), torch.randn(4, 5).to(dtype)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", [*PARTS, *THROUGH])
def test_parts(part, change):
    def program(k, x):
        CHANGES[change]((PARTS | THROUGH)[part](k), x)

    judged(program, tensors)


@pytest.mark.parametrize("part", PARTS)
def test_read_before_and_after(part):
    def program(k, x):
        old = PARTS[part](k) * 2
        PARTS[part](k).mul_(3).add_(x[0, 0])
        return old.sum(), PARTS[part](k).clone(), k[0, 0] + k[-1, -1]

    judged(program, tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool], ids=str)
def test_dtypes(dtype):
    def program(k, x):
        k[2:5] = ~k[2:5] if k.dtype is torch.bool else k[2:5] * 3
        k[:, 1] = k[:, 0]

    judged(program, lambda: tensors(dtype))


TENSORS = {
    "rows": lambda k, i, v: k.__setitem__(i, k[i] + v),
    "added": lambda k, i, v: k.index_add_(0, i, v),
    "put, summed": lambda k, i, v: k.index_put_((i,), v, accumulate=True),
    "scattered": lambda k, i, v: k.scatter_add_(0, i[:, None].expand_as(v), v),
    "largest": lambda k, i, v: k.scatter_reduce_(0, i[:, None].expand_as(v), v, "amax"),
    "copied": lambda k, i, v: k.index_copy_(0, i, k[i] * 2),
    "slots": lambda k, i, v: k.view(8, 8, COLUMNS).flatten(0, 1).index_copy_(0, i, v),
    "slots of a view": lambda k, i, v: k.view(-1, 10).__setitem__(i, v[:, :10]),
    "slots, added to": lambda k, i, v: k.view(-1, 10).index_add_(0, i, v[:, 10:20]),
    "blocks": lambda k, i, v: k.view(8, 8, COLUMNS).__setitem__((i % 8, i.flip(0) % 8), v),
    "two": lambda k, i, v: (k.__setitem__(i, k[i] * 2), k[3].add_(1)),
    "read": lambda k, i, v: (k[i].exp(), k.__setitem__(i, k[i] - v), k[i].sum())[::2],
}


@pytest.mark.parametrize("places", [[1, 5, 9], [4, 4, 4], [-1, 0, 2]], ids=str)
@pytest.mark.parametrize("how", TENSORS)
def test_parts_by_tensors(how, places):
    if -1 in places and how in ("added", "scattered", "largest", "copied", "slots", "slots, added to"):
        places = [2, 0, 1]  # these do not count from the end

    def make():
        k, _ = tensors()
        return k, torch.tensor(places), torch.linspace(0, 1, 3 * COLUMNS).view(3, COLUMNS)

    def program(k, i, v):
        return TENSORS[how](k, i, v) if how == "read" else [TENSORS[how](k, i, v), None][1]

    judged(program, make)


@pytest.mark.parametrize("how", [h for h in TENSORS if h not in ("slots of a view", "slots, added to", "blocks")])
def test_a_place_out_of_range_leaves_the_state_as_eager_does(how):
    compiled = compile_api.compile(TENSORS[how])
    for places in ([0, 1, 2], [3, ROWS, 4], [5, 6, 7], [ROWS, 0, 1]):
        states = []
        for run in (TENSORS[how], compiled):
            states.append(tensors()[0])
            refused = pytest.raises((IndexError, RuntimeError)) if ROWS in places else contextlib.nullcontext()
            with refused, torch.no_grad():
                run(states[-1], torch.tensor(places), torch.ones(3, COLUMNS))
        assert torch.equal(*states)


def test_a_refusal_after_the_write_is_not_made_twice():
    """What fails behind the write runs the program again eagerly: sums must not be added twice."""

    def program(k, i, v, table, j):
        k.index_add_(0, i, v)
        return table[j] * 2

    def make(j):
        k, _ = tensors()
        return k, torch.tensor([1, 1, 3]), torch.ones(3, COLUMNS), torch.randn(4, 3), torch.tensor([j])

    compiled = compile_api.compile(program)
    for j in (0, 9, 1, 9):
        ours, eagers = make(j), make(j)
        for run, given in ((compiled, ours), (program, eagers)):
            with pytest.raises((IndexError, RuntimeError)) if j == 9 else contextlib.nullcontext(), torch.no_grad():
                run(*given)
        assert torch.equal(ours[0], eagers[0])


def test_states_that_share_memory():
    def program(a, b):
        a[1:3] += 1
        b[2:4] *= 2
        return a.sum() + b.sum()

    for share in (False, True):
        compiled = compile_api.compile(program)
        runs = []
        for run in (program, compiled):
            a, _ = tensors()
            b = a if share else a.clone()
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runs.append([run(a, b) for _ in range(3)] + [a, b])
        torch.testing.assert_close(runs[0], runs[1], rtol=1e-5, atol=1e-5)


def test_modules_that_count():
    """Buffers of a module: counters, running statistics of some channels, a memory that is written round and round."""

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1000))
            self.register_buffer("mean", torch.zeros(400, 4))
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, labels):
            y = self.linear(x)
            self.seen.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float32))
            self.mean[labels] = self.mean[labels] * 0.9 + y.detach() * 0.1
            self.seen[0] += 1
            return (y - self.mean[labels]).square().sum()

    torch.manual_seed(0)
    eager, ours = Counts(), Counts()
    ours.load_state_dict(eager.state_dict())
    compiled = compile_api.compile(ours)
    for step in range(3):
        x, labels = torch.randn(3, 4), torch.tensor([5, 5 + step, 9])
        want, got = eager(x, labels), compiled(x, labels)
        want.backward()
        got.backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
        torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad)
    assert not compiled.report().fallbacks


def test_the_judge_sees_a_copy():
    """Half of the state or more is made as a whole, which the kernels show."""

    def program(k, x):
        k[1:] *= 2

    report = judged(program, tensors, check=False).report()
    assert not few_bytes(report, tensors()[0])


#: Statements over two states, places that may repeat, numbers, and what was read before (``y``).
STATEMENTS = [
    "a[{r}] += y[0]", "a[{r}:{s}] *= 0.5", "b[:, {c}] = a[:, {d}] + 1", "a[{r}, {c}] = b[{s}, {d}] * 2",
    "a[i] = a[i] * 0.5 + v", "b[i] += v", "a.index_add_(0, i, v)", "b.index_put_((i,), v, accumulate=True)",
    "a[{r}:] = a[: -{r} or None].flip(0)", "b[{r}] = a[{s}]", "a[::2].add_(b[::2])", "b[1:3, {c}:].zero_()",
    "a[{r}].copy_(b[{s}].exp().clamp(max=2))", "b.copy_(a * 0.5)", "a.mul_(0.5)", "a[:, {c}].clamp_(min=0.1)",
    "y = y + a[{r}].sum()", "y = y + b[i].sum(1)[:2].repeat(2)", "y = y * 0.5 + b[:4, {c}]", "y = y + a.amax(1)[:4]",
    "out.append(a[{r}:{s}] * 2)", "a[{r}] = a[{r}] * 2; out.extend(a[{r}].sort())", "out.extend(a.topk(2))",
    "a[:2] += 1; out.extend(a[:2].unbind(0))", "a[{r}:{s}] *= 2; out.append(torch.as_strided(a[{r}:{s}], (3,), (2,)))",
    "out.append(b[i])", "out.append(a.sum(0))", "out.append(b[{r}, {c}])",
    "a[i, {c}] = y[:3]", "a.view(4, 12)[{r} // 2, {c}:] += 1", "b.t()[{c}] = b[:, {d}] * 2", "b.view(-1)[i] = v[:, {c}]",
    "a.view(2, 4, 6)[:, {r} // 2].mul_(0.5)", "w = b.view(-1, 3); w[i] = v[:, :3]; w[0] += 1; y = y + w[i].sum()",
    "a.permute(1, 0)[{c}, {r}:{s}] = 2.0", "b.unsqueeze(0)[0, {r}].add_(a.flatten()[{s}])",
    "a[b[0, :2].abs().long() % 8] = 1.5", "b[a[:, {c}] > {d}] = -1.0",
]  # fmt: skip


def random_program(seed: int) -> str:
    """Its text."""
    draw = random.Random(seed)
    lines = []
    for _ in range(draw.randint(2, 7)):
        low, high = sorted(draw.sample(range(8), 2))
        text = draw.choice(STATEMENTS)
        lines.append(text.format(r=low, s=high, c=draw.randint(0, 5), d=draw.randint(0, 5)))
    body = "".join(f"    {line}\n" for line in lines)
    return f"def program(a, b, i, v, y):\n    out = []\n{body}    return out, y\n"


def random_inputs(seed: int, call: int):
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(8, 6, generator=draw) - 0.3 for _ in range(2))
    places = torch.randint(0, 8, (3,), generator=draw)
    if seed % 7 == 0 and call == 1:
        places[call] = 9  # refused
    return [a, a if seed % 5 == 4 else b, places, torch.rand(3, 6, generator=draw), torch.ones(4)]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    text = random_program(seed)
    scope: dict = {"torch": torch}
    exec(compile(text, "<program>", "exec"), scope)
    compiled = compile_api.compile(scope["program"], options={"verify": "every_pass"})
    for call in range(3):
        runs = []
        for run in (scope["program"], compiled):
            given = random_inputs(seed, call)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    result = run(*given)
                except (IndexError, RuntimeError) as error:
                    result = [torch.tensor([len(type(error).__name__)])]
            runs.append((result, given))
        torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-5, msg=lambda m: f"{m}\n{text}")
    assert not [f for f in compiled.report().fallbacks if f.stage == "codegen"]
