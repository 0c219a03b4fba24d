"""When DistributedDataParallel's buckets are complete, and what a step takes: two gloo ranks, one thread each.

    python benchmarks/data_parallel.py [--models mlp,blocks] [--steps 15] [--out benchmarks/results/data_parallel.jsonl]

Per model and stack one JSON line. ``shares``: of each bucket, when it was ready, as a share of the backward pass, by a
communication hook that sends nothing, so that the pass is computation alone; the median over the steps and the later of
the two ranks. ``backward_ms`` is that pass, ``step_ms`` a whole step with gloo's reduction. Stacks: ``eager``,
``around`` (``compile(DDP(m))``), ``inside`` (``DDP(compile(m))``), and ``at once``: compiled with all gradients from one
node, as outside of DDP. All stacks of a model run in one process per rank, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import json
import os
import pathlib
import platform
import socket
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).parents[1]
STACKS = ("eager", "around", "inside", "at once")
WARM = 3


def build(model: str):
    """A module and what gives it a batch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if model == "mlp":
        layers = [layer for _ in range(8) for layer in (nn.Linear(768, 768), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(768, 10)), lambda: torch.randn(512, 768)

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2048, 256)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(6)
            )
            self.head = nn.Linear(256, 2048)

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Blocks(), lambda: torch.randint(0, 2048, (4, 128))


class Clock:
    """A communication hook that notes when buckets are ready, and sends nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def hook(self, state, bucket):
        import torch

        self.times.append(time.perf_counter())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


@contextlib.contextmanager
def _at_once():
    """Without the record by which compiled regions know of DDP."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    inside = DDP._inside_ddp_forward
    DDP._inside_ddp_forward = lambda self: contextlib.nullcontext()
    try:
        yield
    finally:
        DDP._inside_ddp_forward = inside


def prepare(module, stack: str, hook=None):
    """A module under DDP, as a stack runs it, and its report."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    import compile_api

    module = copy.deepcopy(module)
    if stack == "inside":
        module = compile_api.compile(module)
        wrapped = called = DDP(module, bucket_cap_mb=CAP)
        report = module.report()
    else:
        wrapped = called = DDP(module, bucket_cap_mb=CAP)
        report = None
        if stack != "eager":
            called = compile_api.compile(wrapped)
            report = called.report()
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return called, wrapped, report


CAP = None


def shares(module, batch, stack: str, steps: int):
    """By bucket the median share of the backward pass at which it is ready; the pass in ms; the report."""
    clock = Clock()
    called, wrapped, report = prepare(module, stack, clock.hook)
    found, took = [], []
    for step in range(steps + WARM):
        wrapped.zero_grad()
        with _at_once() if stack == "at once" else contextlib.nullcontext():
            loss = called(batch()).float().square().mean()
        clock.times = []
        begin = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        if step >= WARM:
            found.append([(t - begin) / (end - begin) for t in clock.times])
            took.append(1e3 * (end - begin))
    return [statistics.median(column) for column in zip(*found, strict=True)], statistics.median(took), report


def times(module, batch, steps: int):
    """By stack the median of a step with gloo's reduction, in ms; the stacks in turn."""
    import torch
    import torch.distributed as dist

    made = {stack: prepare(module, stack) for stack in STACKS}
    optimizers = {stack: torch.optim.SGD(wrapped.parameters(), lr=1e-3) for stack, (_, wrapped, _) in made.items()}
    took = {stack: [] for stack in STACKS}
    for step in range(steps + WARM):
        for stack, (called, wrapped, _) in made.items():
            x = batch()
            dist.barrier()
            begin = time.perf_counter()
            wrapped.zero_grad()
            with _at_once() if stack == "at once" else contextlib.nullcontext():
                loss = called(x).float().square().mean()
            loss.backward()
            optimizers[stack].step()
            if step >= WARM:
                took[stack].append(1e3 * (time.perf_counter() - begin))
    return {stack: statistics.median(ms) for stack, ms in took.items()}


def rank_main(rank: int, port: int, models: list[str], steps: int, out: str) -> None:
    """What one rank does."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for model in models:
        module, batch = build(model)
        torch.manual_seed(rank)
        lines = []
        for stack in STACKS:
            ready, ms, report = shares(module, batch, stack, steps)
            both = [None, None]
            dist.all_gather_object(both, (ready, ms))
            line = {"model": model, "stack": stack, "shares": [round(max(pair), 3) for pair in zip(both[0][0], both[1][0])],
                    "backward_ms": round(max(b[1] for b in both), 1)}  # fmt: skip
            if report is not None:
                line["graphs"] = sum(graph.dialect == "torch" for graph in report.graphs)
                line["breaks"] = len(report.breaks)
                line["fallbacks"] = len(report.fallbacks)
            lines.append(line)
        steps_ms = times(module, batch, steps)
        both = [None, None]
        dist.all_gather_object(both, steps_ms)
        if rank:
            continue
        parameters = sum(p.numel() for p in module.parameters())
        about = {"parameters": parameters, "ranks": 2, "threads": 1, "torch": torch.__version__,
                 "python": platform.python_version(), "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
                 "load": round(os.getloadavg()[0], 1), "date": str(datetime.date.today())}  # fmt: skip
        for line in lines:
            line["step_ms"] = round(max(one[line["stack"]] for one in both), 1)
            text = json.dumps(line | about)
            print(text, flush=True)
            if out:
                with open(out, "a") as file:
                    file.write(text + "\n")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    import torch.multiprocessing as mp

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="mlp,blocks")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank_main, args=(port, options.models.split(","), options.steps, options.out), nprocs=2)


if __name__ == "__main__":
    sys.exit(main())
