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
