"""What the frame hook and the guards cost: `python benchmarks/hook_overhead.py` prints one JSON line.

Nanoseconds, the best of several rounds, on one thread:

- `skipped_frame`: a Python call of a function that capture leaves alone, beyond the same call without the hook;
- `activate`: entering and leaving a compiled function;
- `hit_3_tensors`: a cache hit with three tensor arguments (metadata, identity and global-state guards), beyond a call;
- `hit_200_modules_200_parameters`: a hit whose guards walk a model and hand over all its parameters.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dynamo_capture import _native as native
from dynamo_capture import hook


def best(fn: Callable[[], Any], calls: int, rounds: int = 9) -> float:
    """Nanoseconds per call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(calls):
            fn()
        times.append((time.perf_counter_ns() - start) / calls)
    return min(times)


def leaf() -> None:
    return None


def thousand_calls() -> None:
    f = leaf
    for _ in range(1000):
        f()


def skip_all(code: Any, globals_: Any) -> int:
    return native.SKIP


def replaced(fn: Any, new: Any, build: Callable[[Any, dict[str, Any]], None]) -> Any:
    """`fn`'s code runs as `new`'s, under the guards that `build(tree, args)` makes."""

    def translate(code: Any, func: Any, args: dict[str, Any], *rest: Any) -> Any:
        tree = native.GuardTree()
        build(tree, args)
        return native.Entry(new.__code__, tree)

    return native.Context(lambda c, g: native.TRACE if c is fn.__code__ else native.SKIP, translate)


def three(a: Any, b: Any, c: Any) -> Any:
    return a


def three_compiled(a: Any, b: Any, c: Any) -> Any:
    return a


def hit_three_tensors() -> float:
    def build(tree: Any, args: dict[str, Any]) -> None:
        nodes = [tree.local(i) for i in range(3)]
        for node, value in zip(nodes, args.values(), strict=True):
            tree.check_tensor(node, value)
        tree.check_distinct(nodes)
        tree.check_global_state()

    tensors = [torch.randn(3, 4) for _ in range(3)]

    def caller() -> None:
        a, b, c = tensors
        for _ in range(1000):
            three(a, b, c)

    plain = best(caller, 20)
    return (best(native.activate(caller, replaced(three, three_compiled, build)), 20) - plain) / 1000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for i in range(100):
            self.add_module(f"block{i}", nn.Sequential(nn.Linear(4, 4)))


def run_model(self: Any, x: Any) -> Any:
    return x


def hit_model() -> float:
    model, x = Model(), torch.randn(3)
    names = ", ".join(f"p{i}" for i, _ in enumerate(model.parameters()))
    scope: dict[str, Any] = {}
    exec(f"def new(self, x, {names}): return x", scope)

    def build(tree: Any, args: dict[str, Any]) -> None:
        collected: list[int] = []

        def walk(node: int, module: nn.Module) -> None:
            tree.check_type(node, type(module))
            tree.check_equals(tree.dict_attr(node, "training"), module.training)
            for hooks in ("_forward_hooks", "_forward_pre_hooks"):
                tree.check_len(tree.dict_attr(node, hooks), 0)
            for name, parameter in module._parameters.items():
                child = tree.module_item(node, "_parameters", name)
                tree.check_tensor(child, parameter)
                collected.append(child)
            for name, submodule in module._modules.items():
                walk(tree.module_item(node, "_modules", name), submodule)

        walk(tree.local(0), args["self"])
        tree.check_tensor(tree.local(1), args["x"])
        tree.check_distinct(collected)
        tree.check_global_state()
        tree.collect(collected)

    def caller() -> None:
        for _ in range(50):
            run_model(model, x)

    plain = best(caller, 20)
    return (best(native.activate(caller, replaced(run_model, scope["new"], build)), 20) - plain) / 50


def main() -> None:
    paths = hook.init_torch()
    skipping = native.Context(skip_all, skip_all)
    plain = best(thousand_calls, 100) / 1000
    result = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "native_paths": paths,
        "plain_call": round(plain, 1),
        "skipped_frame": round(best(native.activate(thousand_calls, skipping), 100) / 1000 - plain, 1),
        "activate": round(best(native.activate(leaf, skipping), 20000) - best(leaf, 20000), 1),
        "hit_3_tensors": round(hit_three_tensors(), 1),
        "hit_200_modules_200_parameters": round(hit_model(), 1),
    }
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
