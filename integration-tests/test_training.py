"""Training: losses and gradients against eager, whole steps with an optimizer, memory kept."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from judge import RUNS, assert_as_good, error, rounded, to_float64
from reports import LIBRARY_CALLS, captured, extern_names
from torch import nn
from zoo import build, tensors

import compile_api


def loss_of(outputs):
    """A loss that every output contributes to, with a gradient that is not constant."""
    return sum(t.double().square().mean().to(t.dtype) if t.dtype == torch.float64 else t.square().mean() for t in outputs)


def step(case, model):
    outputs = tensors(model(*case.args, **case.kwargs))
    loss = loss_of([t for t in outputs if t.requires_grad])
    loss.backward()
    return loss.detach()


def no_dropout(model):
    """Without dropout the gradients are comparable; its own test compares its statistics."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


MODELS = ["transformer", "convnet", "resnet18", "densenet121", "bert", "gpt2", "llama", "t5_encoder", "vit_b_16"]


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    """As near to float64's as eager's on numbers that any rounding may have left: relus turn at some."""
    case = build(name, small=True)
    settings = {"batch": 4} if name in ("resnet18", "densenet121") else {}
    if settings:
        case = build(name, small=True, **settings)
    no_dropout(case.model).train()
    eager, exact = copy.deepcopy(case.model), to_float64(case.model)
    generator = torch.Generator().manual_seed(0)
    others = [rounded((case.model, case.args, case.kwargs), generator) for _ in range(RUNS)]
    compiled = compile_api.compile(case.model, fullgraph=True)
    loss = step(case, compiled)
    eager_loss = step(case, eager)
    for other in others:
        step(dataclasses.replace(case, args=other[1], kwargs=other[2]), other[0])
    exact_loss = step(dataclasses.replace(case, args=to_float64(case.args), kwargs=to_float64(case.kwargs)), exact)
    assert_as_good([loss], [eager_loss], [exact_loss])
    models = [case.model, eager, exact, *(other[0] for other in others)]
    for key, *found in zip(dict(case.model.named_parameters()), *(model.parameters() for model in models), strict=True):
        ours, theirs, reference, *spread = (parameter.grad for parameter in found)
        assert (ours is None) == (theirs is None), key
        if theirs is None:
            continue
        scale = float(reference.abs().max())
        usual = max(error(grad, reference) for grad in (theirs, *spread))
        assert error(ours, reference) <= 4 * usual + 16 * torch.finfo(torch.float32).eps * scale, key
    for (key, ours), theirs in zip(case.model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=key)
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert len(captured(report)) == 1
    assert extern_names(report) <= LIBRARY_CALLS


def test_train_and_eval_on_one_module():
    case = build("convnet", small=True)
    twin = copy.deepcopy(case.model)
    compiled = compile_api.compile(case.model)
    x = case.args[0]
    for _ in range(2):
        for training in (True, False):
            compiled.train(training), twin.train(training)
            with torch.set_grad_enabled(training):
                torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-4)
    assert len(captured(compiled.report())) == 2


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
def test_whole_training_step(optimizer):
    make = {
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }[optimizer]

    def train(model, opt, scheduler, x, y):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        scheduler.step()
        return loss

    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    data = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(5)]
    compiled = compile_api.compile(train)
    for model, function in zip(models, (compiled, train), strict=True):
        opt = make(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for x, y in data:
            function(model, opt, scheduler, x, y)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_dynamic_training():
    case = build("transformer", small=True)
    twin = copy.deepcopy(case.model)
    compiled = compile_api.compile(case.model, fullgraph=True)
    for length in (16, 24, 32, 40, 48, 64, 80, 96, 33, 17):
        ids = torch.randint(0, 1000, (2, length))
        for model in (compiled, twin):
            model.zero_grad(set_to_none=True)
            model(ids).square().mean().backward()
        for ours, theirs in zip(case.model.parameters(), twin.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert len(captured(compiled.report())) <= 2
