"""Saved values that wait in host memory (``Options.offload``). Here the CPU stands in for a device with memory of its
own: the same graphs, whose copies are plain ones."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import compile_api
from prims.errors import UserError
from prims.options import Options


@pytest.fixture
def own_memory(monkeypatch):
    """The CPU as a device whose saved values of any size go elsewhere."""
    from aot_autograd.partition import offload

    monkeypatch.setattr(offload, "_DEVICES", ("cpu",))
    monkeypatch.setattr(offload, "LEAST", 1)


def layers(depth=12):
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]).double()


def transfers(report):
    return {name: n for name, n in report.extern_counts().items() if name.startswith("quintet.")}


@pytest.mark.usefixtures("own_memory")
@pytest.mark.parametrize("offload", [True, "30KB"])
@pytest.mark.parametrize("numerics", ["fast", "eager_close", "eager_exact"])
def test_gradients(offload, numerics):
    model = layers()
    options = {"offload": offload, "verify": "every_pass", "strict": True, "numerics": numerics}
    compiled = compile_api.compile(model, options=options)
    for rows in (8, 8, 12, 16):
        x = torch.randn(rows, 64, dtype=torch.float64, requires_grad=True)
        found = []
        for call in (model, compiled):
            call(x).square().sum().backward()
            found.append([x.grad, *(p.grad for p in model.parameters())])
            x.grad = None
            model.zero_grad()
        torch.testing.assert_close(found[1], found[0])
    report = compiled.report()
    saved = report.saved[0]
    assert 0 < saved.on_host < saved.bytes and (offload is True or saved.on_host < 40_000)
    counts = transfers(report)
    assert len(counts) == 4 and len(set(counts.values())) == 1 and not report.fallbacks
    assert "bytes of them in host memory" in str(report)


@pytest.mark.usefixtures("own_memory")
def test_it_takes_less_beside_the_host():
    model, x = layers(), torch.randn(64, 64, dtype=torch.float64, requires_grad=True)
    peaks = []
    for offload in (False, True):
        compiled = compile_api.compile(model, options={"offload": offload})
        compiled(x).sum().backward()
        peaks.append(compiled.report().memory[0].peak)
    assert peaks[1] < 0.5 * peaks[0], peaks


@pytest.mark.usefixtures("own_memory")
def test_a_step_of_one_graph():
    found = []
    for offload in (False, True):
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = compile_api.compile(step, options={"offload": offload, "verify": "every_pass", "strict": True})
        found.append([compiled(torch.ones(8, 64, dtype=torch.float64)) for _ in range(4)])
    torch.testing.assert_close(found[1], found[0])
    report = compiled.report()
    assert report.saved[0].on_host and len(transfers(report)) == 4 and not report.fallbacks


@pytest.mark.usefixtures("own_memory")
@pytest.mark.parametrize("part", [2, 8, 100])
def test_a_step_that_takes_gradients_in_between(part, monkeypatch):
    """What a derivative takes is there before the forward pass of what comes behind it, however much is under way."""
    from aot_autograd.partition import offload as module

    monkeypatch.setattr(module, "UNDER_WAY", part)
    found = []
    for offload in (False, True):
        first, rest = layers(), layers()
        optimizer = torch.optim.SGD([*first.parameters(), *rest.parameters()], lr=0.01)

        def step(x):
            optimizer.zero_grad()
            (gradient,) = torch.autograd.grad(first(x).sin().square().sum(), first[0].weight)
            loss = rest(x).square().mean()  # of which the gradient knows nothing
            (loss + rest(gradient).square().mean()).backward()
            optimizer.step()
            return loss.detach()

        compiled = compile_api.compile(step, options={"offload": offload, "verify": "every_pass", "strict": True})
        x = torch.linspace(-1, 1, 64 * 64, dtype=torch.float64).view(64, 64)
        found.append([compiled(x) for _ in range(4)])
    torch.testing.assert_close(found[1], found[0])
    assert compiled.report().saved[0].on_host and not compiled.report().fallbacks


@pytest.mark.usefixtures("own_memory")
def test_results_used_in_part_and_again():
    """The backward graph without some tangents, the same backward pass twice, and gradients of gradients."""
    weight = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)
    program = lambda x: ((x @ weight).tanh() @ weight, (x * 2).sin() @ weight)
    compiled = compile_api.compile(program, options={"offload": True})
    x = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)
    found = []
    for call in (program, compiled):
        first, second = call(x)
        (once,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        (twice,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(second.sum(), x)
        (gradient,) = torch.autograd.grad(call(x)[0].sum(), x, create_graph=True)
        (further,) = torch.autograd.grad(gradient.square().sum(), x)
        found.append((once, twice, other, further))
    torch.testing.assert_close(found[1], found[0])


def test_elsewhere_there_is_no_other_memory():
    model, x = layers(2), torch.randn(8, 64, dtype=torch.float64, requires_grad=True)
    compiled = compile_api.compile(model, options={"offload": True})
    compiled(x).sum().backward()
    assert compiled.report().saved[0].on_host == 0 and not transfers(compiled.report())


@pytest.mark.parametrize("value", [1, "much", -1.0, None])
def test_values(value):
    with pytest.raises(UserError, match="offload"):
        Options(offload=value)


def test_not_with_cuda_graphs():
    with pytest.raises(UserError, match="offload and cudagraphs exclude each other"):
        Options(offload=True, cudagraphs=True)


PROGRAM = """
import sys, torch, compile_api, compile_api.cache
if sys.argv[1] == "first":
    from aot_autograd.partition import offload
    offload._DEVICES, offload.LEAST = ("cpu",), 1
torch.manual_seed(0)
model = torch.nn.Sequential(*[x for _ in range(6) for x in (torch.nn.Linear(8, 8), torch.nn.GELU())])
x = torch.ones(3, 8, requires_grad=True)
for f, options in ((model, {"offload": True}), (lambda x: torch.linalg.solve(x.T @ x + torch.eye(8), x.T), {})):
    compiled = compile_api.compile(f, options=options)
    compiled(x).sum().backward()
    print(x.grad.sum().item(), sorted(n for n in compiled.report().extern_counts() if "quintet" in n))
    print("loaded" in str(compile_api.cache.explain(compiled)))
"""


def test_operators_of_ours_in_another_process(tmp_path: pathlib.Path, monkeypatch):
    """A stored program finds the operators that it names, though nothing has imported what defines them."""
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("QUINTET_PROGRAM_CACHE", raising=False)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    told = []
    for turn in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(script), turn], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.split("\n"))
    assert [line for line in told[0][::2] if line] == [line for line in told[1][::2] if line]
    assert "quintet.to_host.default" in told[1][0] and "quintet.linalg_checked.default" in told[1][2]
    assert told[0][1::2] == ["False", "False"] and told[1][1::2] == ["True", "True"]


def test_every_operator_of_ours_is_found():
    import importlib

    from prims import registry

    for home in registry._HOMES:
        importlib.import_module(home)
    made = {name for name in registry._IMPLEMENTATIONS if "__" not in name}
    made -= {name for name in made if name.startswith(("scan_", "cond_", "while_", "map_", "scored_", "switch_"))}
    assert made <= registry._HOME.keys(), made - registry._HOME.keys()
