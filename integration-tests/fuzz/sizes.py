"""Programs about sizes: branches on what the sizes of three matrices are, and operators that go by them.

Sizes are of 0 to 5 and change from call to call, one among them often: what a guard implies of a size, and what is
broadcast where it is one, has to hold in every call that the guards let in.
"""

from __future__ import annotations

import random
import re

__all__ = ["generate"]

CALLS = 5

LAYOUTS = ("contiguous", "part", "part", "part", "sliced", "transposed", "offset", "expanded", "overlapping")

_SIZES = (0, 1, 1, 1, 2, 2, 3, 4, 5)

#: Expressions of matrices ``x`` and ``y``.
OPERATORS = """
x.reshape(-1)
x.reshape(x.shape[0], -1)
x.reshape(-1, x.shape[1])
x.reshape(1)
x.reshape(x.shape[1], x.shape[0])
x.view(x.numel() // 2, 2)
x.view(-1, 1) * x.view(1, -1)
x.view(1, *x.shape)
x.unflatten(0, (x.shape[0], 1))
x.flatten().unsqueeze(0)
x.squeeze()
x.squeeze(0)
x.t()
x.movedim(0, 1)
x.diagonal()
x + y
x * y[:1]
x - y[:, :1]
x / (y.abs() + 1)
x.unsqueeze(1) * y
x.unsqueeze(0) + y.unsqueeze(1)
x.t() + y
torch.where(x > 0, x, y)
torch.maximum(x, y.sum())
x.expand(x.shape[0], x.shape[1])
x[:1].expand(y.shape[0], -1)
x.expand(y.shape)
torch.broadcast_to(x, (2, *x.shape))
torch.cat([x, y], 0)
torch.cat([x, x], 1)
torch.stack([x, x])
x.repeat(2, 1)
x.repeat(x.shape[1], 1)
x.repeat_interleave(2, 0)
x[:-1]
x[1:]
x[::2]
x[-1]
x[: y.shape[0]]
x[:, : x.shape[0]]
x[x.shape[0] // 2]
x[:, x.shape[1] - 1]
x[x.shape[0] - y.shape[0] :]
x.narrow(0, 0, max(x.shape[0] - 1, 0))
x.chunk(2)[0]
x.split(2)[-1]
x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1, device=x.device))
x.roll(1, 0)
x.flip(0)
x.tril()
F.pad(x, (0, x.shape[0]))
F.pad(x, (1, 0, 0, 1))
x.unfold(0, 2, 1)
x @ x.t()
x @ y.t()
x.t() @ y
torch.outer(x[0], y[0])
x.sum(0)
x.sum(0, keepdim=True)
x.mean(1, keepdim=True)
x.var(0)
x.amax(0)
x.argmax(1)
x.cumsum(0)
x.softmax(-1)
F.layer_norm(x, x.shape[1:])
x / x.shape[0]
x * x.numel()
x.clamp(max=x.shape[0])
x.new_full((x.shape[0], 2), 3.0)
torch.arange(x.shape[0], device=x.device) + x[:, 0]
torch.zeros(x.shape[1], x.shape[0], device=x.device) + x.t()
torch.linspace(0, 1, x.shape[1], device=x.device) * x
torch.meshgrid(x[0], x[:, 0], indexing="ij")[0]
F.interpolate(x[None, None], scale_factor=2)[0, 0]
F.avg_pool1d(x[None], 2)[0]
F.adaptive_avg_pool1d(x[None], 2)[0]
F.adaptive_avg_pool2d(x[None], (1, 2))[0]
F.adaptive_max_pool2d(x[None], (2, 1))[0]
F.max_pool1d(x[None], 2, ceil_mode=True)[0]
F.interpolate(x[None], 3, mode="linear")[0]
x.diff(dim=0)
x.std(1)
x[:, 1:].prod(1)
x[1:].logsumexp(0)
""".strip().splitlines()

CONDITIONS = """
x.numel() == 1
x.numel() < 2
x.numel() == 0
x.numel() == y.numel()
x.numel() - y.numel() == 0
x.numel() % 3 == 1
x.shape == y.shape
x.shape[0] == y.shape[0]
x.shape[0] * 2 == y.shape[0]
x.shape[0] > x.shape[1]
x.shape[0] * x.shape[1] <= 4
x.shape[0] * y.shape[1] == 1
x.shape[0] + x.shape[1] == 3
x.shape[0] + 2 * y.shape[1] == 3
x.shape[1] % 2 == 0
x.shape[0] // 2 == 1
(x.shape[0] - 1) * x.shape[1] == 0
max(x.shape) == 1
min(x.shape) == 1
len(x) == 1
x.is_contiguous()
x.shape[0] >= 2 and y.shape[1] == 1
x.shape[1] == y.shape[1] != 1
""".strip().splitlines()

#: Expressions of a matrix and of a number that changes from call to call, and may be negative.
BY_NUMBERS = """
x[n:]
x[:n]
x[n:, :n]
x[n : n + 2]
x[n - 1 :].sum(0)
x[:, n:].sum(1)
x[-n:] * n
x[n]
x.select(1, n)
x.narrow(0, n, 1)
x.roll(n, 0)
x.roll((n, -n), (0, 1))
x.diagonal(n)
x.tril(n)
x.triu(n - 1) * 2
F.pad(x, (n, 0))
F.pad(x, (-n, n, 1, 1))
F.pad(x, (0, 0, n, 1 - n))
torch.slice_scatter(x, x[n:] * 2, 0, n)
torch.select_scatter(x, x.sum(0), 0, n)
x * n
(x + n).clamp(-abs(n), abs(n))
x / (n * 2 + 1)
x * (n // 2) + n % 3
x.index_select(0, torch.arange(x.shape[0]).roll(n))
x * torch.arange(n, n + x.shape[1])
torch.cat([x[n:], x[:n]])
x.flip(0)[n:]
x.reshape(-1)[n:]
x[torch.arange(x.shape[0]) > n].sum(0)
torch.where(torch.arange(x.shape[1]) + n > 0, x, -x)
torch.full((2,), n) * x.sum()
x if n > 0 else x * n
x[min(n, 1) :]
x.repeat(abs(n), 1)
x.unsqueeze(0).expand(abs(n), -1, -1).sum(0)
""".strip().splitlines()


def generate(seed: int, device: str = "cpu") -> str:
    """The text of a program; it is the same for equal arguments.

    Half of the programs take gradients, and in some the inputs of each call are laid out in ways of their own: parts of
    longer buffers, whose strides do not follow from the sizes. A quarter has its function twice, the second in calls
    that come in another order: its graphs are those of the first, which may be on disk, and what they asked of sizes
    holds for it too. Two in five take a number as well, and go by it.
    """
    pick, numbers = random.Random(f"sizes {seed}"), random.Random(f"numbers {seed}")
    low, high = numbers.choice(((-4, -1), (-4, -1), (-3, 3), (0, 4), (1, 4)))
    by_number = numbers.random() < 0.4
    lines = [f"def f(a, b, c{', n' * by_number}):", "    out = []"]
    for k in range(pick.randint(2, 6)):
        names = {"x": pick.choice("abc"), "y": pick.choice("abc")}
        filled = lambda text, names=names: re.sub(r"\b[xy]\b", lambda found: names[found[0]], text)
        indent = "    "
        if pick.random() < 0.45:
            lines.append(f"{indent}if {filled(pick.choice(CONDITIONS))}:")
            indent *= 2
        lines += [f"{indent}t{k} = {filled(pick.choice(OPERATORS))}", f"{indent}out.append(t{k})"]
        if pick.random() < 0.4:
            lines += [f"{indent}if t{k}.ndim == 2:", f"{indent}    {pick.choice('abc')} = t{k} * 0.5"]
        if by_number and numbers.random() < 0.6:
            by = re.sub(r"\bx\b", numbers.choice("abc"), numbers.choice(BY_NUMBERS))
            lines.append(f"    out.append({by})")
    calls = []
    for _ in range(CALLS):
        n, m = pick.choice(_SIZES), pick.choice(_SIZES)
        calls.append([(pick.choice((n, n, m, 1)), pick.choice((m, m, n, 1))) for _ in range(3)])
    gradients, twice = pick.random() < 0.5, pick.random() < 0.25
    layouts = [["contiguous"] * 3 for _ in range(CALLS)]
    if pick.random() < 0.4:
        layouts = [[pick.choice(LAYOUTS) for _ in range(3)] for _ in range(CALLS)]
    counts = [numbers.randint(low, high) for _ in range(CALLS)]
    told = "".join([f", device={device!r}"] * (device != "cpu") + [", grad=True"] * gradients)
    backward = ", backward=True" if gradients else ""
    lines = [*lines, "    return out", ""]
    again = [
        "    h = compile(f_again)", f"    for call in {pick.sample(range(CALLS), CALLS)}:",
        f"        see.call('again ', h, *inputs(call){backward})",
    ]  # fmt: skip
    return "\n".join([
        "import torch", "import torch.nn.functional as F", "from fuzz.inputs import make", "", *lines,
        *([lines[0].replace("f(", "f_again("), *lines[1:]] if twice else []),
        "def inputs(call):", f"    sizes, layouts = {calls}[call], {layouts}[call]",
        f"    tensors = [make(sizes[k], layout=layouts[k], seed=10 * call + k{told}) for k in range(3)]",
        f"    return [*tensors, {counts}[call]]" if by_number else "    return tensors", "",
        "def program(compile, see):", "    g = compile(f)", f"    for call in range({CALLS}):",
        f"        see.call('call ', g, *inputs(call){backward})", *(again if twice else []), "",
    ])  # fmt: skip
