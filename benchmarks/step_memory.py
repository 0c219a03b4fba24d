"""Memory and time of a whole training step (zero_grad, forward, backward, AdamW) on the CPU, by form.

    python benchmarks/step_memory.py [--models mlp,bert] [--forms one,two] [--out FILE.jsonl]

``one`` compiles the step as one function, ``two`` model and loss (a forward and a backward graph) and the optimizer's
step apart, ``eager`` nothing. One subprocess per cell, one thread; a JSON line each. ``peak_bytes`` is the highest sum of
live allocations during a step, by the CPU allocator's events, with the gradients of the step before, which are there
when it begins; ``planned`` the peaks of the graphs' memory plans; ``step_ms`` the median step's processor time; ``loss`` that of the
tenth step.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[1]
FORMS = ("eager", "two", "one")


def _mlp():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int = 128) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.back(nn.functional.gelu(self.wide(self.norm(x))))

    return nn.Sequential(*(Block() for _ in range(6))), (torch.randn(32, 128, 128),), {}


def _convolutions():
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for k in range(4):
        layers += [nn.Conv2d(16 if k else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()]
    return nn.Sequential(*layers), (torch.randn(8, 3, 64, 64),), {}


def _unet():
    import device_models
    import torch

    return device_models.UNet(8, 3), (torch.randn(4, 3, 64, 64),), {}


def _zoo(name: str, **settings):
    def builder():
        import zoo

        case = zoo.build(name, **settings)
        return case.model, case.args, case.kwargs

    return builder


MODELS = {
    "mlp": _mlp,
    "convolutions": _convolutions,
    "bert": _zoo("bert", small=True, batch=8, length=128),
    "resnet18": _zoo("resnet18", small=True, batch=8),
    "resnet50": _zoo("resnet50", small=True, batch=4),
    "gpt2": _zoo("gpt2", small=True, batch=8, length=128),
    "vit": _zoo("vit_b_16", small=True, batch=8),
    "unet": _unet,
}


def cell(name: str, form: str, settings: dict, seconds: float) -> dict:
    """One measurement."""
    sys.path.insert(0, str(ROOT / "integration-tests"))
    import torch
    import zoo
    from training_memory import peak_bytes

    import compile_api

    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    part = lambda f: compile_api.compile(f, options=settings) if form == "two" else f

    def measured():
        return sum(t.float().square().mean() for t in zoo.tensors(model(*args, **kwargs)) if t.requires_grad)

    forward, update = part(measured), part(optimizer.step)

    def step():
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        update()
        return loss.detach()

    called = compile_api.compile(step, options=settings) if form == "one" else step
    torch.manual_seed(1)
    losses = [float(called()) for _ in range(10)]
    peaks = [peak_bytes(called) for _ in range(4)][1:]  # it may miss allocations of the first step that it sees
    found = {"model": name, "form": form, "peak_bytes": max(peaks), "step_ms": round(1e3 * _steady(called, seconds), 2),
             "loss": losses[-1]}  # fmt: skip
    compiled = {"one": [called], "two": [forward, update], "eager": []}[form]
    reports = [c.report() for c in compiled]
    return found | {
        "planned": [m.peak for r in reports for m in r.memory],
        "kernels": sum(len(r.kernels) for r in reports),
        "graphs": sum(len(r.graphs) for r in reports),
        "fallbacks": [f.reason for r in reports for f in r.fallbacks],
        "breaks": sum(len(r.breaks) for r in reports),
        "torch": torch.__version__,
    }


def _steady(step, seconds: float) -> float:
    """The median of a step's processor times, of at least five: other work on the machine counts little."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    """Run the cells and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--options", default="{}", help="compile()'s options, as JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing a cell")
    parser.add_argument("--out", help="where the records go")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "FORM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = json.loads(options.options)
    if options.cell:
        print(json.dumps(cell(*options.cell, settings, options.seconds)))
        return
    records = []
    for model in options.models.split(","):
        for form in options.forms.split(","):
            done = subprocess.run(
                [sys.executable, __file__, "--cell", model, form, "--options", options.options, "--seconds",
                 str(options.seconds)], capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip
            if done.returncode:
                print(f"{model:14}{form:6}{done.stderr.strip()[-600:]}", flush=True)
                continue
            records.append(json.loads(done.stdout.splitlines()[-1]))
            r = records[-1]
            planned = " ".join(f"{p / 1e6:.2f}" for p in r["planned"])
            print(f"{model:14}{form:6}peak {r['peak_bytes'] / 1e6:8.2f} MB  planned {planned:24}{r['step_ms']:9.2f} ms"
                  f"  kernels {r['kernels']:4}  loss {r['loss']:.6f}", *r["fallbacks"], flush=True)  # fmt: skip
    if options.out:
        pathlib.Path(options.out).write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
