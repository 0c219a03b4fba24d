"""Bytes alive during a training step, counted by the CPU allocator's events: a compiled step's peak is at most eager's.

The steps run in this process one after the other; what was alive before a step does not count, the gradients do.
"""

from __future__ import annotations

import pytest
import torch
import zoo

import compile_api

MODELS = {
    "bert": {"small": True, "batch": 2},
    "gpt2": {"small": True, "batch": 2},
    "t5_encoder": {"small": True, "batch": 2},
    "vit_b_16": {"small": True, "batch": 2},
    "llama": {"small": True, "batch": 2},
    "resnet18": {"small": True, "batch": 2},
    "resnet50": {"small": True, "batch": 2},
    "transformer": {"small": True},
    "convnet": {"small": True},
}


def peak_bytes(step) -> int:
    """The highest sum of allocations alive while ``step`` runs, above what was alive before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return highest


def step_of(case, module):
    def step():
        outputs = zoo.tensors(module(*case.args, **case.kwargs))
        sum(t.square().mean() for t in outputs if t.requires_grad).backward()

    return step


def peaks(case, module) -> list[int]:
    """The peaks of three steps whose gradients start as None, after two that compile and that keep their inputs, and one
    that the profiler starts with: it may miss allocations of the first step that it sees.
    """
    found = []
    step = step_of(case, module)
    for count in range(6):
        case.model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        if count < 2:
            step()
        else:
            found.append(peak_bytes(step))
    return found[1:]


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_peaks_no_higher_than_eager(name):
    case = zoo.build(name, **MODELS[name])
    case.model.train()
    model = compile_api.compile(case.model)
    eager, ours = peaks(case, case.model), peaks(case, model)
    print(name, eager, ours)
    assert not model.report().fallbacks
    assert {g.name for g in model.report().graphs} >= {"forward", "backward"}
    assert max(ours) <= min(eager)


class _Perceptron(torch.nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide, self.back = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.back(torch.nn.functional.gelu(self.wide(self.norm(x)))))


#: What of a step takes memory is kept between its forward and its backward part: few parameters, many elements.
DEEP = {
    "perceptrons": (lambda: [_Perceptron() for _ in range(4)], (32, 128, 128)),
    "encoders": (
        lambda: [torch.nn.TransformerEncoderLayer(64, 4, 256, 0.1, "gelu", batch_first=True) for _ in range(3)],
        (16, 64, 64),
    ),
}


def whole_step(model, x, **options):
    """Forward, backward and update as one compiled function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step():
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return compile_api.compile(step, **options)


@pytest.mark.parametrize("budget", [0.99, 0.4, "1GB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["perceptrons", "encoders"])
def test_a_budget_has_one_graph_compute_again(name, dtype, budget):
    """A step captured as one graph keeps less between its parts, and random numbers are drawn once all the same."""
    blocks, shape = DEEP[name]
    found, losses = {}, {}
    for options in ({}, {"options": {"memory_budget": budget}}):
        torch.manual_seed(0)
        model, x = torch.nn.Sequential(*blocks()).to(dtype).train(), torch.randn(shape, dtype=dtype)
        step = whole_step(model, x, **options)
        torch.manual_seed(1)
        losses[bool(options)] = torch.stack([step() for _ in range(3)])
        assert step.report().verdict == "compiled" and not step.report().fallbacks
        found[bool(options)] = max(plan.peak for plan in step.report().memory)
    assert found[True] <= 0.8 * found[False], found
    torch.testing.assert_close(losses[True], losses[False], rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=0)
