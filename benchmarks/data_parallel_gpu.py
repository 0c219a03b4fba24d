"""DistributedDataParallel on GPUs by NCCL: ``python benchmarks/data_parallel_gpu.py --devices 1 2 --out FILE``.

Every cell (model x stack x number of devices) is a fresh set of processes, one a device, with caches of their own.
A step is forward, loss, backward and fused AdamW on a batch of random tokens of each rank's own; the model is in
bfloat16. Stacks: ``eager``, ``torch`` (``torch.compile(DDP(m))``) and ``quintet`` (``compile(DDP(m))``). A JSON line
holds tokens per second of all ranks together (median step, the slowest rank's), the peak of memory of a rank, seconds of
the first step, the losses of the first steps, the largest difference between the ranks' parameters after the last one
(0: they are the same bits), and what the report says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STACKS = ("eager", "torch", "quintet")
STEPS, LOSSES = 30, 5


def build(name: str) -> tuple[Any, int, int]:
    """A module from tokens to their loss, and the batch and length of a rank's tokens."""
    import torch
    import transformers
    from torch.nn import functional as F

    if name == "gpt2":
        config = transformers.GPT2Config(use_cache=False)
        model, batch, length = transformers.GPT2LMHeadModel(config), 8, 1024
    else:
        config = transformers.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, use_cache=False,
        )  # fmt: skip
        model, batch, length = transformers.LlamaForCausalLM(config), 4, 1024

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = self.model(tokens).logits[:, :-1]
            return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Loss(), batch, length


def rank(name: str, stack: str) -> dict[str, Any]:
    """One process's part of a cell."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", device_id=torch.device("cuda", number))
    torch.manual_seed(0)
    module, batch, length = build(name)
    module.to("cuda", torch.bfloat16).train()
    parallel = DistributedDataParallel(module, device_ids=[number], gradient_as_bucket_view=True)
    step_of: Any = parallel
    if stack == "torch":
        step_of = torch.compile(parallel)
    elif stack == "quintet":
        import compile_api

        step_of = compile_api.compile(parallel)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(number)
    tokens = torch.randint(0, 32000, (batch, length), device="cuda")
    times, losses = [], []
    for k in range(STEPS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = step_of(tokens)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        if k < LOSSES:
            losses.append(float(loss.detach()))
        if k == 2:
            torch.cuda.reset_peak_memory_stats()
    apart = 0.0
    for parameter in module.parameters():
        other = parameter.detach().clone()
        dist.broadcast(other, 0)
        apart = max(apart, float((other.float() - parameter.detach().float()).abs().max()))
    found = {
        "step": statistics.median(times[5:]), "first": times[0], "peak": torch.cuda.max_memory_allocated(),
        "losses": losses, "apart": apart, "tokens": batch * length * count,
    }  # fmt: skip
    if stack == "quintet":
        report = step_of.report()
        found.update(verdict=report.verdict, graphs=len(report.graphs), breaks=len(report.breaks))
    dist.destroy_process_group()
    return found


def cell(name: str, stack: str, devices: list[int], limit: float) -> dict[str, Any]:
    """One cell, on these devices."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        processes = []
        for number in range(len(devices)):
            environment = {
                **os.environ, "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(len(devices)),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "QUINTET_CACHE_DIR": f"{folder}/q{number}",
                "TORCHINDUCTOR_CACHE_DIR": f"{folder}/t{number}", "TRITON_CACHE_DIR": f"{folder}/r{number}",
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
            }  # fmt: skip
            command = [sys.executable, __file__, "--here", name, stack]
            with open(f"{folder}/{number}.txt", "w") as said:
                processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True))
        try:
            outputs = [p.communicate(timeout=limit)[0] for p in processes]
            ranks = [json.loads(text.splitlines()[-1]) for text in outputs]
        except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError):
            for p in processes:
                p.kill()
            return {"error": Path(f"{folder}/0.txt").read_text()[-1500:]}
    slowest = max(r["step"] for r in ranks)
    told = {k: ranks[0][k] for k in ("verdict", "graphs", "breaks") if k in ranks[0]}
    return {
        "tokens_per_second": round(ranks[0]["tokens"] / slowest), "step_ms": round(slowest * 1e3, 2),
        "peak_mib": round(max(r["peak"] for r in ranks) / 2**20), "first_s": round(max(r["first"] for r in ranks), 2),
        "losses": [r["losses"] for r in ranks], "apart": max(r["apart"] for r in ranks), **told,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["gpt2", "llama"], choices=["gpt2", "llama"])
    parser.add_argument("--stack", nargs="+", default=list(STACKS), choices=STACKS)
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2], help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first device to use")
    parser.add_argument("--limit", type=float, default=240, help="seconds that a cell may take")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file")
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(rank(*options.here)))
        return
    from bench import facts

    options.device = "cuda"
    known = {**facts(options), "command": "python benchmarks/data_parallel_gpu.py " + " ".join(sys.argv[1:])}
    for name, count, stack in itertools.product(options.model, options.devices, options.stack):
        found = cell(name, stack, list(range(options.first, options.first + count)), options.limit)
        line = json.dumps({"model": name, "stack": stack, "devices": count, **found, **known})
        print({"model": name, "stack": stack, "devices": count, **found}, flush=True)
        if options.out:
            with options.out.open("a") as stream:
                stream.write(line + "\n")


if __name__ == "__main__":
    main()
