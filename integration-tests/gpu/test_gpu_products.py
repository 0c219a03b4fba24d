"""Products that go to cuBLASLt directly: the same numbers as eager's, in every layout, state and place of operands."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from on_gpu import DEVICE

import compile_api
from inductor_gen.compiled import CompiledGraph


@pytest.fixture
def sources(monkeypatch: Any) -> list[str]:
    """The texts of the graphs' functions that are made."""
    made: list[str] = []
    original = CompiledGraph.__init__

    def init(self: CompiledGraph, call: Any, source: str, *rest: Any, **kw: Any) -> None:
        made.append(source)
        original(self, call, source, *rest, **kw)

    monkeypatch.setattr(CompiledGraph, "__init__", init)
    return made


def operand(rows: int, columns: int, turned: bool, dtype: torch.dtype, padding: int = 0) -> torch.Tensor:
    shape = (columns, rows + padding) if turned else (rows, columns + padding)
    x = torch.randn(shape, device=DEVICE, dtype=dtype)
    x = x[:, : shape[1] - padding]
    return x.t() if turned else x


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """With a generated kernel beside it, for a graph without one keeps to PyTorch's functions."""
    return torch.mm(a, b) * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(128, 64, 192), (16, 16, 16), (100, 72, 33), (64, 64, 20000)])
def test_every_layout_equals_eager(sources: list[str], dtype: Any, left: bool, right: bool, shape: Any) -> None:
    m, n, k = shape
    a, b = operand(m, k, left, dtype), operand(k, n, right, dtype)
    compiled = compile_api.compile(product, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            # The order of the sum may be another one, rounded to 16 bits where it is split.
            torch.testing.assert_close(compiled(a, b), product(a, b), rtol=1e-2, atol=2e-3 * k**0.5)
    assert "or product" in sources[0]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(128, 64, 192), (32, 1024, 1024), (100, 72, 40), (1024, 768, 3072)])
def test_a_bias_in_every_layout(sources: list[str], left: bool, right: bool, shape: Any) -> None:
    def biased(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, a, b) * 2

    m, n, k = shape
    a, b = operand(m, k, left, torch.bfloat16), operand(k, n, right, torch.bfloat16)
    compiled = compile_api.compile(biased, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            bias = 100 * torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
            torch.testing.assert_close(compiled(a, b, bias), biased(a, b, bias), rtol=2e-2, atol=2e-3 * k**0.5)
    assert "or product" in sources[0]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(3, 128, 64, 192), (48, 256, 256, 64), (2, 24, 40, 72)])
def test_pairs_in_every_layout(sources: list[str], left: bool, right: bool, shape: Any) -> None:
    def pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b) * 2

    count, m, n, k = shape
    a = torch.stack([operand(m, k, False, torch.bfloat16) for _ in range(count)])
    b = torch.stack([operand(k, n, False, torch.bfloat16) for _ in range(count)])
    a, b = a.mT.contiguous().mT if left else a, b.mT.contiguous().mT if right else b
    compiled = compile_api.compile(pairs, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(a, b), pairs(a, b), rtol=1e-2, atol=2e-3 * k**0.5)
    assert "or product" in sources[0]


def test_threads_with_biases_of_their_own() -> None:
    """The library's description of a product holds the place of the bias, and threads share the description."""
    weight = operand(64, 64, True, torch.bfloat16)

    @compile_api.compile
    def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight).relu()

    wrong = []
    x = torch.zeros(32, 64, device=DEVICE, dtype=torch.bfloat16)

    def work(value: float) -> None:
        bias = torch.full((64,), value, device=DEVICE, dtype=torch.bfloat16)
        with torch.no_grad():
            wrong.extend(value for _ in range(200) if not bool((biased(x, bias) == value).all()))

    work(1.0)
    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_padded_rows_and_pieces_of_buffers(sources: list[str]) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = (a * 2).relu()
        return torch.mm(c[64:], b) + torch.mm(c[:64], b)

    a, b = operand(128, 64, False, torch.bfloat16, 8), operand(64, 48, True, torch.bfloat16, 16)
    compiled = compile_api.compile(fn, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(a, b), fn(a, b))
    assert sources[0].count("or product") == 2


def test_operands_that_begin_anywhere(sources: list[str]) -> None:
    """The library's rules hold for aligned operands; others are PyTorch's."""
    compiled = compile_api.compile(product, fullgraph=True, dynamic=False)
    block = torch.randn(64 * 64 + 300, device=DEVICE, dtype=torch.bfloat16)
    b = operand(64, 64, False, torch.bfloat16)
    with torch.no_grad():
        for start in (0, 128, 8, 1, 0):
            a = block[start : start + 64 * 64].view(64, 64)
            torch.testing.assert_close(compiled(a, b), product(a, b))
    assert "or product" in sources[0]


def test_flags_of_a_later_call_count() -> None:
    a, b = operand(64, 4096, False, torch.float16), operand(4096, 64, False, torch.float16)
    compiled = compile_api.compile(product, fullgraph=True)
    flags = torch.backends.cuda.matmul
    before = flags.allow_fp16_reduced_precision_reduction
    with torch.no_grad():
        compiled(a, b)
        try:
            flags.allow_fp16_reduced_precision_reduction = False
            torch.testing.assert_close(compiled(a, b), product(a, b), rtol=0, atol=0)
        finally:
            flags.allow_fp16_reduced_precision_reduction = before


def test_training_threads_and_streams(sources: list[str]) -> None:
    """Gradients are products too, in the engine's thread; two threads and a side stream share a compiled graph."""
    a, b = operand(256, 128, False, torch.bfloat16), operand(128, 512, False, torch.bfloat16)

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.mm(a, b).relu() * 3).float().sum()

    def gradients(f: Any) -> Any:
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        return torch.autograd.grad(f(x, y), (x, y))

    compiled = compile_api.compile(fn, fullgraph=True)
    wanted = gradients(fn)
    torch.testing.assert_close(gradients(compiled), wanted)
    assert sum(source.count("or product") for source in sources) == 3
    results: list[Any] = []

    def many() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(20):
                got = gradients(compiled)
            torch.cuda.current_stream().synchronize()
            results.append(got)

    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for got in results:
        torch.testing.assert_close(got, wanted)


def test_recorded_for_replay(sources: list[str]) -> None:
    a, b = operand(64, 20000, False, torch.bfloat16), operand(20000, 64, False, torch.bfloat16)
    compiled = compile_api.compile(lambda a, b: torch.mm(a, b) + 1, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            a.normal_()
            torch.testing.assert_close(compiled(a, b), torch.mm(a, b) + 1)
    assert not compiled.report().fallbacks


def test_symbolic_sizes_are_pytorchs(sources: list[str]) -> None:
    compiled = compile_api.compile(product, dynamic=True)
    b = operand(64, 64, False, torch.bfloat16)
    with torch.no_grad():
        for rows in (32, 48, 80):
            a = operand(rows, 64, False, torch.bfloat16)
            torch.testing.assert_close(compiled(a, b), product(a, b), rtol=0, atol=0)
    assert "or product" not in sources[0]
