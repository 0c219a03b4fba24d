"""What operators refuse of sizes, and what -1 means, where the numbers are made of a tensor's length.

Each program is given `x`, of n numbers, and `k = n - 3`, for lengths at which k is a size, one, nothing and negative: it raises
where eager does, and otherwise gives eager's result.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import compile_api

LENGTHS = (8, 6, 4, 2, 1, 3, 0, 5)

PROGRAMS = {
    "adaptive_avg_pool1d": lambda x, k: F.adaptive_avg_pool1d(torch.arange(4.0)[None, None], k) * 2,
    "arange by": lambda x, k: torch.arange(0, 4, k) * 2,
    "arange down": lambda x, k: torch.arange(4, 0, k) * 2,
    "arange from": lambda x, k: torch.arange(k, 3) + 1,
    "as_strided": lambda x, k: x.as_strided((k, 2), (1, 1)) * 2,
    "as_strided, by strides": lambda x, k: torch.arange(4.0).as_strided((2,), (k,)) * 2,
    "as_strided, from an offset": lambda x, k: torch.arange(4.0).as_strided((2,), (1,), k) * 2,
    "avg_pool1d by": lambda x, k: F.avg_pool1d(torch.arange(4.0)[None, None], 2, k) * 2,
    "broadcast_to": lambda x, k: torch.broadcast_to(x[:1], (k,)) * 2,
    "cat": lambda x, k: torch.cat([x.view(1, -1), torch.ones(1, 4)], 0) * 2,
    "chunk": lambda x, k: x.chunk(k)[0] * 2,
    "clamp": lambda x, k: torch.arange(4.0).clamp(max=k),
    "conv1d": lambda x, k: F.conv1d(x[None, None], torch.ones(1, 1, 4)) * 2,
    "conv1d by": lambda x, k: F.conv1d(torch.arange(4.0)[None, None], torch.ones(1, 1, 2), stride=k) * 2,
    "conv1d, padded by": lambda x, k: F.conv1d(torch.arange(4.0)[None, None], torch.ones(1, 1, 2), padding=k) * 2,
    "cumsum": lambda x, k: torch.arange(4.0).view(2, 2).cumsum(k) * 2,
    "diagonal": lambda x, k: torch.ones(3, 3).diagonal(k) * 2,
    "diff": lambda x, k: torch.arange(4.0).diff(n=k) * 2,
    "empty reduction": lambda x, k: x[3:].amax(0) * 2,
    "expand": lambda x, k: x[:1].expand(k) * 2,
    "expand, a new dimension": lambda x, k: x[:1].expand(k, 1) * 2,
    "expand, a size that stays": lambda x, k: torch.ones(5).expand(k) * 2,
    "expand, the last": lambda x, k: x[:1].expand(2, k) * 2,
    "floor_divide": lambda x, k: torch.arange(1, 4) // k,
    "fold": lambda x, k: F.fold(x.view(1, -1, 1), (2, 2), (2, 2)) * 2,
    "gather": lambda x, k: x.gather(0, torch.tensor([3])) * 2,
    "glu": lambda x, k: F.glu(x, 0) * 2,
    "group_norm": lambda x, k: F.group_norm(torch.ones(1, 4, 2), k) * 2,
    "index": lambda x, k: torch.arange(4.0)[torch.tensor([0, 1]) + k] * 2,
    "index_add": lambda x, k: x.clone().index_add_(0, torch.tensor([3]), torch.ones(1)) * 2,
    "index_copy": lambda x, k: x.clone().index_copy_(0, torch.tensor([3]), torch.ones(1)) * 2,
    "index_fill": lambda x, k: x.clone().index_fill_(0, torch.tensor([3]), 1.0) * 2,
    "index_put": lambda x, k: x.clone().index_put_((torch.tensor([3]),), torch.ones(1)) * 2,
    "interpolate": lambda x, k: F.interpolate(torch.arange(4.0)[None, None], k) * 2,
    "layer_norm": lambda x, k: F.layer_norm(x, (4,)) * 2,
    "linspace": lambda x, k: torch.linspace(0, 1, k) * 2,
    "matmul": lambda x, k: x.view(1, -1) @ torch.ones(4, 2) * 2,
    "max_pool1d": lambda x, k: F.max_pool1d(torch.arange(4.0)[None, None], k) * 2,
    "narrow": lambda x, k: x.narrow(0, 2, 3) * 2,
    "narrow from": lambda x, k: x.narrow(0, k - 1, 2) * 2,
    "narrow to": lambda x, k: x.narrow(0, 0, k) * 2,
    "new_zeros": lambda x, k: x.new_zeros(k) + 1,
    "one_hot": lambda x, k: F.one_hot(torch.tensor([0, 1]), k) * 2,
    "pad": lambda x, k: F.pad(x, (-5, 6)) * 2,
    "pad both": lambda x, k: F.pad(x, (-1, 1)) * 2,
    "pad by": lambda x, k: F.pad(torch.arange(2.0), (k, 4)) * 2,
    "pad, circular": lambda x, k: F.pad(x[None, None], (4, 4), mode="circular") * 2,
    "pad, reflecting": lambda x, k: F.pad(x[None, None], (3, 3), mode="reflect") * 2,
    "pixel_shuffle": lambda x, k: F.pixel_shuffle(torch.ones(1, 4, 1, 1), k) * 2,
    "pow": lambda x, k: torch.arange(1, 4) ** k,
    "put": lambda x, k: x.clone().put_(torch.tensor([3]), torch.ones(1)) * 2,
    "remainder": lambda x, k: torch.arange(1, 4) % k,
    "repeat": lambda x, k: torch.ones(2).repeat(k) * 2,
    "repeat_interleave": lambda x, k: torch.arange(3.0).repeat_interleave(k) * 2,
    "reshape": lambda x, k: torch.ones(6).reshape(k, 3) * 2,
    "reshape, copied": lambda x, k: torch.ones(2, 3).t().reshape(k) * 2,
    "roll": lambda x, k: (x * 2).roll(k),
    "scatter": lambda x, k: x.clone().scatter_(0, torch.tensor([3]), torch.ones(1)) * 2,
    "select": lambda x, k: torch.arange(4.0).select(0, k) * 2,
    "shift": lambda x, k: torch.arange(1, 4) << k,
    "slice": lambda x, k: torch.arange(4.0)[k - 3 : k] * 2,
    "slice from": lambda x, k: torch.arange(4.0)[k:] * 2,
    "slice_scatter": lambda x, k: x.slice_scatter(torch.ones(2), 0, 2, 4) * 2,
    "softmax": lambda x, k: torch.arange(6.0).view(2, 3).softmax(k) * 2,
    "split": lambda x, k: x.split(k)[0] * 2,
    "split into": lambda x, k: x.split([3, k])[0] * 2,
    "stack": lambda x, k: torch.stack([torch.ones(2), torch.ones(2)], k) * 2,
    "std": lambda x, k: torch.arange(4.0).std(correction=k),
    "sum": lambda x, k: torch.ones(3, 4).sum(k) * 2,
    "take": lambda x, k: x.take(torch.tensor([3])) * 2,
    "tensor_split": lambda x, k: x.tensor_split(k)[0] * 2,
    "topk": lambda x, k: torch.arange(4.0).topk(k)[0] * 2,
    "transpose": lambda x, k: torch.arange(6.0).view(1, 2, 3).transpose(0, k) * 2,
    "tril": lambda x, k: torch.ones(3, 3).tril(k) * 2,
    "unflatten": lambda x, k: torch.ones(6).unflatten(0, (k, 3)) * 2,
    "unfold": lambda x, k: torch.arange(4.0).unfold(0, k, 1) * 2,
    "unfold by": lambda x, k: torch.arange(4.0).unfold(0, 2, k) * 2,
    "unsqueeze": lambda x, k: torch.ones(2).unsqueeze(k) * 2,
    "var": lambda x, k: x[None].var(1),
    "var, half a degree": lambda x, k: x[None].var(1, correction=1.5),
    "view": lambda x, k: torch.ones(6).view(2, k) * 2,
}  # fmt: skip


def outcome(fn, x):
    try:
        return fn(x)
    except Exception as error:
        return error


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_length_is_refused_as_eager_refuses_it(name: str, dynamic: bool | None) -> None:
    body = PROGRAMS[name]
    program = lambda x: body(x, x.shape[0] - 3)
    compiled = compile_api.compile(program, dynamic=dynamic)
    torch.manual_seed(0)
    refused = 0
    for n in LENGTHS:
        x = torch.randn(n)
        expected, ours = outcome(program, x), outcome(compiled, x)
        if isinstance(expected, Exception):
            refused += 1
            assert isinstance(ours, Exception), f"{n}: {expected}"
            continue
        assert not isinstance(ours, Exception), f"{n}: {ours}"
        for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(expected), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
    assert refused == len(LENGTHS) or compiled.report().kernels
