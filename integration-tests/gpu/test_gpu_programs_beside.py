"""Compiled programs beside other streams, captures, threads and devices; operands that are strange but legal."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from on_gpu import DEVICE
from torch import nn

import compile_api

MODES = [None, "reduce-overhead", "max-autotune-no-cudagraphs"]


def chain(x, w):
    """Two kernels with a product between them."""
    return ((x.sin() + 1) @ w).relu().sum(0)


def operands(rows=512):
    return torch.randn(rows, 256, device=DEVICE), torch.randn(256, 128, device=DEVICE)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def no_fallback(compiled):
    report = compiled.report()
    assert report.kernels and not report.fallbacks, report.fallbacks


# --- streams --------------------------------------------------------------------------------------------------------


def slowly(x):
    """Fill ``x`` on the current stream, after a wait that a kernel on another stream would not see."""
    torch.cuda._sleep(20_000_000)
    return x.copy_(torch.arange(x.numel(), device=DEVICE, dtype=x.dtype))


@pytest.mark.parametrize("mode", MODES)
def test_kernels_run_on_the_current_stream(mode):
    """Each reads what this stream wrote just before, slowly."""
    compiled = compile_api.compile(lambda x: x * 2 + 1, mode=mode)
    buffer = torch.empty(1 << 20, device=DEVICE)
    wanted = torch.arange(1 << 20, device=DEVICE, dtype=torch.float32) * 2 + 1
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(4):
            buffer.zero_()
            torch.testing.assert_close(compiled(slowly(buffer)), wanted, rtol=0, atol=0)
    torch.cuda.current_stream().wait_stream(stream)
    no_fallback(compiled)


@pytest.mark.parametrize("mode", MODES)
def test_training_on_another_stream(mode):
    model, twin = (nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(DEVICE) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    compiled = compile_api.compile(model, mode=mode)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            x = torch.randn(32, 64, device=DEVICE)
            for net, call in ((model, compiled), (twin, twin)):
                net.zero_grad()
                torch.cuda._sleep(2_000_000)
                call(x * 1.5).square().mean().backward()
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                close(ours.grad, theirs.grad)
    torch.cuda.current_stream().wait_stream(stream)
    no_fallback(compiled)


def test_capture_by_the_user():
    """A compiled program within the user's own CUDA graph, forward alone and a whole training step."""
    x, w = operands()
    compiled = compile_api.compile(chain)
    with torch.no_grad():
        for _ in range(2):
            compiled(x, w)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = compiled(x, w)
        for _ in range(3):
            x.normal_()
            graph.replay()
            close(out, chain(x, w))
    no_fallback(compiled)


def test_capture_of_a_training_step_by_the_user():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 8)).to(DEVICE)
    compiled = compile_api.compile(model)
    x = torch.randn(32, 64, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            compiled(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x)
        out.square().mean().backward()
    losses = set()
    for _ in range(3):
        graph.replay()
        close(model[3].bias.grad, (2 * out / out.numel()).sum(0))
        losses.add(float(out.square().mean()))
    assert len(losses) == 3, "each replay draws other random numbers"
    no_fallback(compiled)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_threads_on_streams_of_their_own(mode):
    compiled = compile_api.compile(chain, mode=mode)
    failures = []

    def work(seed):
        try:
            generator = torch.Generator(DEVICE).manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                for _ in range(20):
                    x = torch.randn(512, 256, device=DEVICE, generator=generator)
                    w = torch.randn(256, 128, device=DEVICE, generator=generator)
                    close(compiled(x, w), chain(x, w))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# --- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_cpu_numbers_and_indices_with_values_on_the_gpu(mode):
    """Zero-dimensional CPU tensors mix with the GPU's; CPU indices select from GPU values."""
    table, scale, at = torch.randn(50, 8, device=DEVICE), torch.tensor(3.0), torch.randint(0, 50, (7,))

    def function(table, scale, at):
        return table[at] * scale + torch.tensor(2.0), table.clone().index_put_((at,), scale.to(table.device))

    compiled = compile_api.compile(function, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            for ours, theirs in zip(compiled(table, scale, at), function(table, scale, at), strict=True):
                torch.testing.assert_close(ours, theirs)
            scale, at = scale + 1, torch.randint(0, 50, (7,))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_moves_inside_the_region(mode, pinned):
    """Host memory goes to the GPU, is computed with, and comes back; gradients too."""

    def function(x, w):
        y = (x + 1).to(w.device, non_blocking=True) @ w
        return y, y.sum(0).cpu() * 2

    x = torch.randn(16, 32)
    x = x.pin_memory() if pinned else x
    w = torch.randn(32, 8, device=DEVICE, requires_grad=True)
    compiled = compile_api.compile(function, mode=mode)
    for _ in range(4):
        grads = []
        for call in (compiled, function):
            y, host = call(x, w)
            assert y.device.type == "cuda" and host.device.type == "cpu"
            grads.append((y.detach(), host.detach(), torch.autograd.grad(y.sum() + host.sum().to(DEVICE), w)[0]))
        for ours, theirs in zip(*grads, strict=True):
            close(ours, theirs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_that_is_not_the_current_one(mode):
    """One compiled function on both GPUs in turn, whichever is current."""
    compiled = compile_api.compile(chain, mode=mode)
    with torch.no_grad():
        for current in (0, 1):
            for where in (1, 0, 1):
                with torch.cuda.device(current):
                    x, w = (t.to(f"cuda:{where}") for t in operands())
                    for _ in range(3):
                        got = compiled(x, w)
                        assert got.device == x.device and torch.cuda.current_device() == current
                        close(got, chain(x, w))
    no_fallback(compiled)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_training_on_a_gpu_that_is_not_the_current_one():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to("cuda:1")
    compiled = compile_api.compile(model)
    for _ in range(3):
        x = torch.randn(32, 64, device="cuda:1")
        grads = [torch.autograd.grad(call(x).square().mean(), list(model.parameters())) for call in (compiled, model)]
        for ours, theirs in zip(*grads, strict=True):
            close(ours, theirs)
    no_fallback(compiled)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_a_region_over_two_gpus():
    def function(x, y):
        return (x.sin() + 1).to(y.device) * y, x.cos()

    x, y = torch.randn(100, device="cuda:0"), torch.randn(100, device="cuda:1")
    compiled = compile_api.compile(function)
    for _ in range(3):
        for ours, theirs in zip(compiled(x, y), function(x, y), strict=True):
            assert ours.device == theirs.device
            torch.testing.assert_close(ours, theirs)


# --- operands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_nothing_to_compute(shape, mode):
    def function(x):
        return x * 2, x.sum(), x.sum(0), torch.cat([x, x]), x.reshape(-1), x.float().softmax(-1)

    x = torch.randn(shape, device=DEVICE)
    compiled = compile_api.compile(function, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            for ours, theirs in zip(compiled(x), function(x), strict=True):
                assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("inner", [0, 3])
def test_an_empty_product(inner):
    def function(x, y):
        return x @ y + 1, (x @ y).sum(0)

    x, y = torch.randn(4, inner, device=DEVICE), torch.randn(inner, 5, device=DEVICE)
    compiled = compile_api.compile(function)
    for _ in range(2):
        for ours, theirs in zip(compiled(x, y), function(x, y), strict=True):
            torch.testing.assert_close(ours, theirs)


def strange(base):
    yield base.t()
    yield base[::3, 1::2]
    yield base[5].expand(7, -1)
    yield base.as_strided((6, 7, 8), (1, 9, 2), 3)
    yield base.unfold(1, 4, 2)
    yield base[:, :1].squeeze(1)
    yield base[3, 3]
    yield base.unsqueeze(1).expand(-1, 3, -1).transpose(0, 1)


@pytest.mark.parametrize("mode", MODES)
def test_strides_of_all_kinds(mode):
    """Transposed, with gaps, expanded, overlapping and zero-dimensional operands; results have eager's strides."""

    def function(x):
        return x.sin() * 2, x.sum(-1) if x.ndim else x + 1, x.flip(0) if x.ndim else x

    compiled = compile_api.compile(function, mode=mode)
    base = torch.randn(40, 60, device=DEVICE)
    with torch.no_grad():
        for x in strange(base):
            for _ in range(3):
                for ours, theirs in zip(compiled(x), function(x), strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
                    assert not ours.numel() or ours.stride() == theirs.stride()


# --- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, float("inf"), 3.0])
def test_gradients_of_distances(p):
    def function(x, y):
        return torch.cdist(x, y, p=p).sin()

    x, y = (torch.randn(3, n, 5, device=DEVICE, requires_grad=True) for n in (7, 9))
    compiled = compile_api.compile(function)
    for _ in range(2):
        grads = [torch.autograd.grad(call(x, y).square().sum(), (x, y)) for call in (compiled, function)]
        for ours, theirs in zip(*grads, strict=True):
            close(ours, theirs)


def of_heads(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v).sin()


def of_tokens(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1).exp()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attentions_whose_gradients_lie_otherwise(dtype):
    """cuDNN's plans for equal queries, keys and values hold for one layout of the gradient; here two meet, three times."""
    operands = [torch.randn(2, 3, 64, 16, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in operands]
    compiled = {function: compile_api.compile(function) for function in (of_heads, of_tokens)}
    for _ in range(3):
        for function, call in compiled.items():
            exact = torch.autograd.grad(function(*wide).square().sum(), wide)
            found = torch.autograd.grad(call(*operands).float().square().sum(), operands)
            for ours, reference in zip(found, exact, strict=True):
                assert float((ours.double() - reference).abs().max()) <= 0.05 * float(reference.abs().max())
            no_fallback(call)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_sums_of_products_of_integers(dtype, mode):
    """Eager has no integer products on a GPU; written with a sum they are generated."""

    def function(x, y):
        return (x[:, :, None] * y[None]).sum(1), (x * 2 + 1) // 3

    x, y = torch.randint(-50, 50, (17, 33), device=DEVICE).to(dtype), torch.randint(-50, 50, (33, 9), device=DEVICE).to(dtype)
    compiled = compile_api.compile(function, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            for ours, theirs in zip(compiled(x, y), function(x, y), strict=True):
                assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    no_fallback(compiled)


def test_deterministic_algorithms():
    """What many rows add to one place is summed in eager's order, bit by bit the same."""

    def function(table, at, x):
        rows = nn.functional.embedding(at, table).sin()
        return rows, torch.zeros_like(table).index_add(0, at, rows + 1), table.clone().index_put((at,), x, accumulate=True)

    table, x = (torch.randn(n, 64, device=DEVICE, dtype=torch.float64) for n in (20, 50_000))
    table, at = table.requires_grad_(), torch.randint(0, 20, (50_000,), device=DEVICE)

    def gradients(call):
        outs = call(table, at, x)
        return [*outs[1:], *torch.autograd.grad([o.square().sum() for o in outs], table)]

    torch.use_deterministic_algorithms(True)
    try:
        compiled = compile_api.compile(function)
        wanted = gradients(function)
        runs = [gradients(compiled) for _ in range(4)]
        for run in runs:
            for ours, first, theirs in zip(run, runs[0], wanted, strict=True):
                assert torch.equal(ours, first)
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-6)
        no_fallback(compiled)
    finally:
        torch.use_deterministic_algorithms(False)


def test_paths_dropped_at_random():
    """torchvision's stochastic depth: rows vanish or are scaled, other ones in every call, alike in the backward pass."""
    ops = pytest.importorskip("torchvision.ops")
    layer = ops.StochasticDepth(0.5, "row").to(DEVICE).train()
    compiled = compile_api.compile(lambda x: layer(x.sin() + 2))
    x = torch.randn(64, 3, 5, 5, device=DEVICE, requires_grad=True)
    seen = set()
    for _ in range(4):
        out = compiled(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        kept = (out != 0).flatten(1)
        assert torch.equal(kept.all(1), kept.any(1)) and 10 < int(kept.all(1).sum()) < 54
        scale = 2.0 * kept.all(1)[:, None, None, None]
        close(out, (x.sin() + 2) * scale)
        close(grad, x.cos() * scale)
        seen.add(tuple(kept.all(1).tolist()))
    assert len(seen) == 4
    no_fallback(compiled)


# --- indices --------------------------------------------------------------------------------------------------------

INDEXED = {
    "gather": "lambda t, i: t.gather(0, i[:, None].expand(-1, 8)) * 2",
    "index": "lambda t, i: (t[i] * 2).sum(1)",
    "embedding": "lambda t, i: torch.nn.functional.embedding(i, t).softmax(-1)",
    "scatter": "lambda t, i: torch.zeros_like(t).scatter_add(0, i[:, None].expand(-1, 8), t[: len(i)])",
    "index_put": "lambda t, i: t.clone().index_put((i,), t[: len(i)], accumulate=True) + 1",
    "cross_entropy": "lambda t, i: torch.nn.functional.cross_entropy(t.t().contiguous()[:8], i[:8])",
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_is_an_error(name, tmp_path):
    """As in eager the device stops, here in a process of its own; nothing out of range is read or written before."""
    script = f"""
        import torch, compile_api
        function = {INDEXED[name]}
        t = torch.randn(50, 8, device="cuda")
        i = torch.randint(0, 50, (33,), device="cuda")
        compiled = compile_api.compile(function)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(t, i), function(t, i))
            report = compiled.report()
            assert report.kernels and not report.fallbacks, report.fallbacks
            i[5] = 50
            print("ready", flush=True)
            try:
                print("result", compiled(t, i).sum().item())
            except RuntimeError as error:
                print("stopped:", str(error).splitlines()[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "QUINTET_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert "ready" in done.stdout, done.stderr[-3000:]
    assert "result" not in done.stdout, done.stdout
    assert "device-side assert" in done.stdout + done.stderr, done.stdout + done.stderr[-2000:]
    assert "index out of range" in done.stdout + done.stderr, done.stderr[-2000:]
