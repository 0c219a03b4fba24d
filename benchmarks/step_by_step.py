"""Loops over the steps of a sequence: ``python benchmarks/step_by_step.py --out results.jsonl``.

Programs that take a tensor apart step by step, fill one, read it between the writes, or join steps, for more and more
steps: what each costs should grow with the steps. Every measurement is a fresh process with an empty cache and one
thread. A JSON line holds, of one program, number of steps and stack (``eager``, ``torch.compile`` or ``quintet``):

- ``first_call_seconds``: forward and backward, compiling included, after a small other program was compiled;
- ``wall_ms``: forward and backward later, the least of ten means; ``device_ms`` on a GPU, from the profiler;
- ``close``: whether the result and the gradient are eager's, to 1e-4.

A process that takes longer than ``--limit`` has a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import facts

STACKS = ("eager", "torch.compile", "quintet")


def programs() -> dict[str, Callable[..., Any]]:
    import torch

    def taken(x: Any, w: Any) -> Any:
        return torch.stack([(x[:, t] * w[0]).sin() for t in range(x.shape[1])], 1).square()

    def recurrent(x: Any, w: Any) -> Any:
        out, h = torch.empty_like(x), x.new_zeros(x.shape[0], x.shape[2])
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + h @ w)
            out[:, t] = h
        return out.softmax(1).square()

    def discounted(x: Any, w: Any) -> Any:
        out = x * 1.0
        for t in reversed(range(x.shape[1] - 1)):
            out[:, t] = out[:, t] + out[:, t + 1] * 0.5
        return out * w[0]

    def joined(x: Any, w: Any) -> Any:
        return torch.cat([(part @ w) * (k + 1) for k, part in enumerate(x.unbind(1))], -1).softmax(-1).square()

    return {f.__name__: f for f in (taken, recurrent, discounted, joined)}


def _compiler(stack: str) -> Callable[[Any], Any]:
    if stack == "eager":
        return lambda f: f
    if stack == "torch.compile":
        import torch

        return torch.compile
    import compile_api

    return compile_api.compile


def _device_ms(step: Callable[[], None]) -> float:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    return sum(e.self_device_time_total for e in seen.key_averages()) / 10_000


def measure(name: str, steps: int, stack: str, device: str) -> dict[str, Any]:
    """The figures of one process."""
    import torch

    torch.set_num_threads(1)
    program = programs()[name]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    x = torch.randn(16, steps, 64, device=device).requires_grad_()
    w = (torch.randn(64, 64, device=device) / 8).requires_grad_()

    def ran(f: Callable[..., Any]) -> list[Any]:
        x.grad = w.grad = None
        out = f(x, w)
        out.sum().backward()
        return [out.detach(), x.grad, w.grad]

    compiler = _compiler(stack)
    ran(compiler(lambda x, w: (x @ w).relu()))
    compiled = compiler(program)
    wait()
    begun = time.perf_counter()
    got = ran(compiled)
    wait()
    record: dict[str, Any] = {"first_call_seconds": round(time.perf_counter() - begun, 3)}
    means = []
    for _ in range(10):
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.1:
            ran(compiled)
            count += 1
        wait()
        means.append((time.perf_counter() - begun) / count)
    record["wall_ms"] = round(min(means) * 1e3, 4)
    if device == "cuda":
        record["device_ms"] = round(_device_ms(lambda: ran(compiled)), 4)
    record["close"] = all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(got, ran(program), strict=True))
    if stack == "quintet":
        report = compiled.report()
        record |= {"fallbacks": len(report.fallbacks), "kernels": len(report.kernels)}
    return record


def _in_a_process(args: argparse.Namespace, name: str, steps: int, stack: str) -> dict[str, Any]:
    told = ["--one", name, str(steps), stack, "--device", args.device]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"QUINTET_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        command = [sys.executable, "-W", "ignore", __file__, *told]
        try:
            done = subprocess.run(
                command, env={**os.environ, **caches}, timeout=args.limit, capture_output=True, text=True, check=True
            )
        except subprocess.TimeoutExpired:
            return {"error": f"longer than {args.limit:g} s"}
        except subprocess.CalledProcessError as error:
            return {"error": error.stderr.strip().splitlines()[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", nargs="*", type=int, default=[10, 40, 100])
    parser.add_argument("--programs", nargs="*")
    parser.add_argument("--stacks", nargs="*", default=list(STACKS))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a process may take")
    parser.add_argument("--out")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.one[2], args.device)))
        return
    command = "python benchmarks/step_by_step.py " + " ".join(sys.argv[1:])
    lines = [{**facts(args), "command": command}]
    for name in args.programs or programs():
        for steps in args.steps:
            for stack in args.stacks:
                record = {"program": name, "steps": steps, "stack": stack, **_in_a_process(args, name, steps, stack)}
                print(json.dumps(record), flush=True)
                lines.append(record)
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
