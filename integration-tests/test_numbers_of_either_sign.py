"""Ints that change their sign from call to call, given to operators that read -1 in a way of its own, or refuse some: values
and errors are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

X, M, C = torch.arange(6.0), torch.arange(24.0).view(2, 3, 4), torch.arange(16.0).view(1, 2, 8)
PROGRAMS = {
    "view": lambda x, n: x.view(n, 2) * 1,
    "view2": lambda x, n: x.view(2, n) * 1,
    "reshape": lambda x, n: x.reshape(n, 3) * 1,
    "reshape2": lambda x, n: x.reshape((3, n)) * 1,
    "expand": lambda x, n: x[:1].expand(n) * 1,
    "expand2": lambda x, n: x[:3, None].expand(-1, n) * 1,
    "expand3": lambda x, n: x[:3, None].expand(n, 4) * 1,
    "unflatten": lambda x, n: x.unflatten(0, (n, 2)) * 1,
    "flatten": lambda x, n: M.flatten(0, n) * 1,
    "repeat": lambda x, n: x.repeat(n) * 1,
    "ones": lambda x, n: torch.ones(n) + 1,
    "sum": lambda x, n: M.sum(n),
    "cat": lambda x, n: torch.cat([M, M], n),
    "stack": lambda x, n: torch.stack([M, M], n),
    "softmax": lambda x, n: M.softmax(n),
    "transpose": lambda x, n: M.transpose(0, n) * 1,
    "permute": lambda x, n: M.permute(0, n, 1) * 1,
    "squeeze": lambda x, n: M[:1].squeeze(n) * 1,
    "unsqueeze": lambda x, n: M.unsqueeze(n) * 1,
    "split": lambda x, n: x.split(n)[0] * 1,
    "chunk": lambda x, n: x.chunk(n)[0] * 1,
    "narrow": lambda x, n: x.narrow(0, 0, n) * 1,
    "narrow2": lambda x, n: x.narrow(0, n, 1) * 1,
    "select": lambda x, n: x.select(0, n) * 1,
    "index": lambda x, n: x[n] * 1,
    "slice": lambda x, n: x[n:] * 1,
    "slicestep": lambda x, n: x[::n] * 1,
    "roll": lambda x, n: x.roll(n),
    "conv stride": lambda x, n: F.conv1d(C, torch.ones(1, 2, 2), stride=n),
    "conv pad": lambda x, n: F.conv1d(C, torch.ones(1, 2, 2), padding=n),
    "conv dil": lambda x, n: F.conv1d(C, torch.ones(1, 2, 2), dilation=n),
    "convT": lambda x, n: F.conv_transpose1d(C, torch.ones(2, 1, 2), stride=n),
    "pool": lambda x, n: F.max_pool1d(C, n),
    "pool stride": lambda x, n: F.max_pool1d(C, 2, n),
    "avgpool": lambda x, n: F.avg_pool1d(C, n),
    "adaptive": lambda x, n: F.adaptive_avg_pool1d(C, n),
    "unfold": lambda x, n: x.unfold(0, n, 1) * 1,
    "unfold2": lambda x, n: x.unfold(0, 2, n) * 1,
    "as_strided": lambda x, n: x.as_strided((2,), (n,)) * 1,
    "as_strided2": lambda x, n: x.as_strided((n,), (1,)) * 1,
    "as_strided3": lambda x, n: x.as_strided((2,), (1,), n) * 1,
    "arange": lambda x, n: torch.arange(n) + 1,
    "arange2": lambda x, n: torch.arange(0, 10, n) + 1,
    "linspace": lambda x, n: torch.linspace(0, 1, n) + 1,
    "eye": lambda x, n: torch.eye(n) + 1,
    "topk": lambda x, n: x.topk(n)[0],
    "kth": lambda x, n: x.kthvalue(n)[0],
    "one_hot": lambda x, n: F.one_hot(torch.arange(3), n) + 1,
    "interp": lambda x, n: F.interpolate(C, size=n),
    "pad": lambda x, n: F.pad(x, (n, 0)) + 1,
    "pad refl": lambda x, n: F.pad(C, (n, 0), mode="reflect") + 1,
    "pad circ": lambda x, n: F.pad(C, (n, 0), mode="circular") + 1,
    "diagonal": lambda x, n: M[0].diagonal(n) * 1,
    "tril": lambda x, n: M.tril(n),
    "group_norm": lambda x, n: F.group_norm(C, n),
    "glu": lambda x, n: F.glu(C, n),
    "pixel_shuffle": lambda x, n: F.pixel_shuffle(torch.arange(16.0).view(1, 4, 2, 2), n),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n),
    "tensor_split": lambda x, n: x.tensor_split(n)[0] * 1,
    "cumsum": lambda x, n: M.cumsum(n),
    "movedim": lambda x, n: M.movedim(0, n) * 1,
    "rot90": lambda x, n: M.rot90(n),
    "diff": lambda x, n: x.diff(n),
    "new_zeros": lambda x, n: x.new_zeros(n, 2) + 1,
    "full": lambda x, n: torch.full((n,), 2.0) + 1,
    "empty": lambda x, n: torch.empty(n).shape,
    "vander": lambda x, n: torch.vander(x, n),
    "var corr": lambda x, n: x.var(correction=n),
    "dropout2": lambda x, n: x.view(1, -1)[:, :n] * 1,
    "gather": lambda x, n: x.take(torch.tensor([n])),
}
SEQUENCES = [(3, -1, 2, -1), (2, -1, -2, 1, -1), (-1, 2, -1, 3), (-2, -1, 0, 1, -3, -1)]


def outcome(call, n):
    try:
        return call(X.clone(), n)
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_errors(name):
    for numbers in SEQUENCES:
        compiled = compile_api.compile(PROGRAMS[name])
        for n in numbers:
            theirs, ours = outcome(PROGRAMS[name], n), outcome(compiled, n)
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            else:
                assert ours == theirs, (numbers, n)
