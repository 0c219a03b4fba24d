"""What a call pays for guards: `python benchmarks/guards.py [--out FILE]`, one JSON line per model and stack.

A model is compiled with a backend whose graph is a constant, so that a call costs the cache lookup: the guards, and
handing over the parameters. Both stacks run in the same process, in turns; microseconds of CPU time, the least of
several rounds. The stack `quintet, guards` is the evaluation of the guards alone, through a call from Python.
`linear N` is a row of N `nn.Linear`, `bert N` a BERT of N layers (where transformers is installed).
"""

from __future__ import annotations

import argparse
import builtins
import inspect
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dynamo_capture
from dynamo_capture import _native

sys.path.append(str(Path(__file__).parents[1] / "integration-tests"))


def constant_backend(module: Any, example_inputs: Any, **options: Any) -> Callable[..., Any]:
    """A graph that answers with what it gave at first."""
    answers: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not answers:
            answers.append(module(*inputs))
        return answers[0]

    return run


def linear(layers: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]), torch.randn(2, 4)


def bert(layers: int) -> tuple[nn.Module, torch.Tensor]:
    import zoo

    zoo.import_torchvision()  # transformers imports it, which needs its operators declared beside a CPU build of torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 100}
    return BertModel(BertConfig(num_hidden_layers=layers, **sizes)).eval(), torch.randint(0, 100, (1, 8))


def microseconds(fn: Callable[[], Any], calls: int) -> float:
    start = time.process_time_ns()
    for _ in range(calls):
        fn()
    return (time.process_time_ns() - start) / calls / 1e3


def evaluation(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Evaluates the guards of the model's one entry, for the arguments of its `forward` or what wraps it."""
    forward = type(model).forward
    (entry,) = (e for e in _native.entries(forward.__code__) if e.hits)
    positional: list[Any] = [model, x]
    args = positional[: forward.__code__.co_argcount]
    args += [tuple(positional[len(args) :])] * bool(forward.__code__.co_flags & inspect.CO_VARARGS)
    args += [{}] * bool(forward.__code__.co_flags & inspect.CO_VARKEYWORDS)
    given = (args, forward.__globals__, vars(builtins), forward.__closure__)
    assert entry.guards.check(*given), entry.guards.explain_failure(*given)
    return lambda: entry.guards.check(*given)


def measure(model: nn.Module, x: torch.Tensor, calls: int, rounds: int) -> dict[str, float]:
    torch._dynamo.reset()
    dynamo_capture.reset()
    stacks: dict[str, Callable[..., Any]] = {
        "quintet": dynamo_capture.optimize(model, constant_backend),
        "torch.compile": torch.compile(model, backend=constant_backend),
    }
    best: dict[str, float] = {}
    with torch.no_grad():
        for _ in range(rounds):
            for name, compiled in stacks.items():
                compiled(x)
                compiled(x)
                spent = microseconds(lambda compiled=compiled: compiled(x), calls)
                best[name] = min(best.get(name, spent), spent)
            alone = evaluation(model, x)
            spent = min(microseconds(alone, calls) for _ in range(2))
            best["quintet, guards"] = min(best.get("quintet, guards", spent), spent)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="append the lines to this file too")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases: list[tuple[str, Callable[[int], Any], int]] = [("linear", linear, n) for n in (1, 10, 36, 100)]
    try:
        bert(1)
        cases += [("bert", bert, n) for n in (2, 12)]
    except ImportError as error:
        print(f"BERT is left out: {error}", file=sys.stderr)
    for name, make, layers in cases:
        for stack, spent in measure(*make(layers), given.calls, given.rounds).items():
            line = json.dumps(
                {
                    "benchmark": "guards",
                    "model": f"{name} {layers}",
                    "stack": stack,
                    "microseconds": round(spent, 2),
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "cpu": platform.processor() or platform.machine(),
                    "command": " ".join(["python", *sys.argv]),
                    "date": time.strftime("%Y-%m-%d"),
                }
            )
            print(line, flush=True)
            if given.out:
                with open(given.out, "a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
