"""What surrounds an optimizer's step: schedules of learning rates, rates that are tensors, averages of models, LBFGS."""

import pytest
import torch
from torch import nn

import compile_api

SCHEDULES = {
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 1001}, "CosineAnnealingLR": {"T_max": 300},
    "CosineAnnealingWarmRestarts": {"T_0": 30}, "ReduceLROnPlateau": {"patience": 2}, "StepLR": {"step_size": 50},
    "LambdaLR": {"lr_lambda": lambda n: min(1, (n + 1) / 20) / (1 + n)}, "PolynomialLR": {"total_iters": 900},
    "CyclicLR": {"base_lr": 0.001, "max_lr": 0.1, "step_size_up": 7},
}  # fmt: skip


def learned_by(step, schedule, options, steps, rate=0.01, make=torch.optim.AdamW):
    """The compiled function, and what a run ends with."""
    torch.manual_seed(2)
    model = nn.Linear(4, 3).double()
    optimizer = make(model.parameters(), lr=rate)
    schedule = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **options) if schedule else None
    call, compiled = step(model, optimizer, schedule)
    for _ in range(steps):
        call(torch.randn(5, 4).double())
    return compiled, [*model.parameters(), torch.as_tensor(optimizer.param_groups[0]["lr"])]


def scheduled(wrap, inside=False):
    def make(model, optimizer, schedule):
        def train(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            if inside:
                schedule.step()
            return loss.detach()

        compiled = wrap(train)

        def call(x):
            loss = compiled(x)
            if schedule is not None and not inside:
                schedule.step(*[loss] * isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau))

        return call, compiled

    return make


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_over_1000_steps(name):
    runs = [learned_by(scheduled(wrap), name, SCHEDULES[name], 1000) for wrap in (compile_api.compile, lambda fn: fn)]
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    report = runs[0][0].report()
    assert report.verdict == "compiled" and len(report.recompiles) == 1, str(report)


def test_a_schedule_inside_ends_the_graph():
    """It goes by counts of its own: one break, and not a graph for each count."""
    runs = [learned_by(scheduled(wrap, True), "CosineAnnealingLR", {"T_max": 30}, 40)
            for wrap in (compile_api.compile, lambda fn: fn)]  # fmt: skip
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    report = runs[0][0].report()
    assert [("schedule" in brk.reason) for brk in report.breaks] == [True] and len(report.recompiles) <= 2, str(report)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adagrad", "Adamax"])
def test_learning_rates_that_are_tensors(name):
    make = getattr(torch.optim, name)
    runs = [learned_by(scheduled(wrap), "ExponentialLR", {"gamma": 0.9}, 10, torch.tensor(0.01), make)
            for wrap in (compile_api.compile, lambda fn: fn)]  # fmt: skip
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    report = runs[0][0].report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 2, str(report)


AVERAGES = {
    "mean": {}, "swa": {"multi_avg_fn": torch.optim.swa_utils.get_swa_multi_avg_fn()},
    "ema": {"multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)},
    "one by one": {"avg_fn": torch.optim.swa_utils.get_ema_avg_fn(0.9)}, "buffers": {"use_buffers": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", AVERAGES)
def test_averages_of_models(kind):
    def step(model, optimizer, average, x):
        optimizer.zero_grad()
        model(x).sin().mean().backward()
        optimizer.step()
        average.update_parameters(model)

    runs = []
    for wrap in (compile_api.compile, lambda fn: fn):
        torch.manual_seed(2)
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
        average = torch.optim.swa_utils.AveragedModel(model, **AVERAGES[kind])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        call = wrap(step)
        for _ in range(12):
            call(model, optimizer, average, torch.randn(5, 4).double())
        runs.append((call, list(average.state_dict().values())))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    report = runs[0][0].report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 2, str(report)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_says_what_runs_eagerly(search, monkeypatch):
    """It decides by numbers that it reads in each of its own rounds: the closure is captured, the rest is eager's."""
    # PyTorch's compiler, once it has run in a process, keeps from every compiler what this optimizer calls.
    as_it_was = getattr(torch.optim.LBFGS.step, "_torchdynamo_orig_callable", torch.optim.LBFGS.step)
    monkeypatch.setattr(torch.optim.LBFGS, "step", as_it_was)
    runs = []
    for wrap in (compile_api.compile, lambda fn: fn):
        torch.manual_seed(2)
        model, x = nn.Linear(4, 3).double(), torch.randn(5, 4).double()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=search)

        def train(optimizer, model, x):
            def closure():
                optimizer.zero_grad()
                loss = model(x).cos().mean()
                loss.backward()
                return loss

            return optimizer.step(closure)

        call = wrap(train)
        losses = [call(optimizer, model, x).detach() for _ in range(4)]
        runs.append((call, [*model.parameters(), *losses]))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    report = runs[0][0].report()
    assert report.breaks and any("closure" in graph.name for graph in report.graphs), str(report)
