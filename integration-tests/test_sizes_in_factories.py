"""What makes tensors by a size that changes between calls, and whose C++ takes no symbol: one graph for all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

PROGRAMS = {
    "linspace": lambda x: x + torch.linspace(-1, 2.5, x.shape[0]),
    "linspace of more": lambda x: x[0] + torch.linspace(0, 1, 2 * x.shape[0] + 1, dtype=torch.float64),
    "linspace of less": lambda x: x.sum() + torch.linspace(0, 1, x.shape[0] - 2),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[0] + 1) * x[:, None],
    "hann_window": lambda x: x * torch.hann_window(x.shape[0]),
    "hann_window, both ends": lambda x: x * torch.hann_window(x.shape[0], periodic=False),
    "hamming_window": lambda x: x.sum() * torch.hamming_window(x.shape[0] + 3, False, 0.3, 0.2),
    "circular padding": lambda x: F.pad(x[None, None], (x.shape[0] // 2, x.shape[0] - 1), mode="circular"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name):
    program = PROGRAMS[name]
    compiled = compile_api.compile(program)
    for size in (4, 6, 7, 9, 12):
        x = torch.linspace(-1, 1, size)
        torch.testing.assert_close(compiled(x), program(x))
    report = compiled.__quintet_optimizer__.report
    assert not report.fallbacks and not report.breaks and len(report.recompiles) == 1


@pytest.mark.parametrize("by", [1, -1])
def test_classes_that_do_not_exist_are_eagers_error(by):
    def program(i):
        return F.one_hot(i + by, i.shape[0])

    compiled = compile_api.compile(program)
    for size in (4, 6, 7):
        found = []
        for run in (compiled, program):
            with pytest.raises(RuntimeError) as error:
                run(torch.arange(size))
            found.append(str(error.value))
        assert found[0] == found[1]


def test_a_circle_gone_round_twice_is_eagers_error():
    def program(x):
        return F.pad(x[None, None], (x.shape[0] + 1, 0), mode="circular")

    compiled = compile_api.compile(program)
    for size in (4, 6, 7):
        with pytest.raises(RuntimeError, match="wrapping around more than once"):
            compiled(torch.ones(size))
