"""What two ranks do under pipeline parallelism (``torch.distributed.pipelining``), compiled and eager; for
test_pipeline.py. Each process has one half of a network, or two quarters, through which the batch goes in four parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from reports import LIBRARY_CALLS, assert_all_generated, captured
from tensor_parallel_cases import LENGTH, RANKS, STEPS, VOCABULARY, Block, around, assert_same, inside
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

PARTS = 4
WIDTH = 32


class Stage(nn.Module):
    """A part of a language model: the first has the embedding, the last the head."""

    def __init__(self, at: int, count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if at == 0 else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(4 // count))
        self.head = nn.Linear(WIDTH, VOCABULARY) if at == count - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def next_tokens(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The loss of a language model."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


def places(kind: Any, rank: int) -> list[int]:
    """Which stages a process has."""
    if kind in (ScheduleGPipe, Schedule1F1B):
        return [rank]
    return [rank, 2 * RANKS - 1 - rank] if kind is ScheduleZBVZeroBubble else [rank, rank + RANKS]


def run(schedule: Any, first: bool, last: bool, tokens: torch.Tensor, mixed: bool) -> list[torch.Tensor]:
    """One step; the losses of the parts in the last process."""
    losses: list[torch.Tensor] = []
    given = (tokens,) if first else ()
    wanted: dict[str, Any] = {"target": tokens.roll(-1, 1), "losses": losses} if last else {}
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        schedule.step(*given, **wanted)
    return losses


def train(rank: int, kind: Any, compiled: Callable[[Any], tuple[Any, list[Any]]], mixed: bool) -> list[Any]:
    """Five steps of a compiled and an eager pipeline; captured graphs and breaks by report."""
    at = places(kind, rank)
    count = RANKS * len(at)
    base = [Stage(place, count) for place in at]
    theirs = nn.ModuleList(copy.deepcopy(base))
    pairs = [compiled(stage) for stage in base]
    ours = nn.ModuleList(stage for stage, _ in pairs)
    models, schedules = (ours, theirs), []
    for model in models:
        stages = [PipelineStage(m, i, count, torch.device("cpu")) for m, i in zip(model, at, strict=True)]
        schedules.append(kind(stages if len(stages) > 1 else stages[0], PARTS, loss_fn=next_tokens))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    tolerance = 2e-3 if mixed else 2e-6
    last = count - 1 in at
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (2 * PARTS, LENGTH), generator=torch.Generator().manual_seed(step))
        losses = []
        for schedule, optimizer in zip(schedules, optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(run(schedule, 0 in at, last, tokens, mixed))
        assert len(losses[0]) == (PARTS if last else 0)
        torch.testing.assert_close(*losses, rtol=1e-3, atol=tolerance)
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert_same(p.grad, q.grad, tolerance, f"the gradient of {name} in step {step}")
        for optimizer in optimizers:
            optimizer.step()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert_same(p, q, tolerance, f"{name} after step {step}")
    return [_counts(each.report()) for _, reporting in pairs for each in reporting]


def _counts(report: Any) -> list[int]:
    assert_all_generated(report, allowed=LIBRARY_CALLS)
    return [len(captured(report)), len(report.breaks)]


def _case(kind: Any, where: Any, mixed: bool) -> Callable[[int], list[Any]]:
    def case(rank: int) -> list[Any]:
        return train(rank, kind, where, mixed)

    case.__name__ = f"{kind.__name__.removeprefix('Schedule').lower()}_{where.__name__}_{'bf16' if mixed else 'fp32'}"
    return case


def nodes_outlive_results() -> bool:
    """Whether the node of an ``autograd.Function`` serves after its result is gone, as schedules without bubbles need.

    In PyTorch 2.11 it does not, also not of a function of the program.
    """

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 2 * gradient

    node = Double.apply(torch.ones(1, requires_grad=True)).grad_fn
    try:
        return bool(node._input_metadata)
    except RuntimeError:
        return False


KINDS = [ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B]
if nodes_outlive_results():
    KINDS += [ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble]
CASES = [_case(kind, where, mixed) for kind in KINDS for where in (inside, around) for mixed in (False, True)]
