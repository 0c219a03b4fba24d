"""What the process sets between a call and its backward pass, or between an export and the program's calls, changes
neither: graphs are lowered late, for what was so when they were made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import compile_api
from prims.ir import parse_text


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS: dict[str, Callable[[], Any]] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "a default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "no_grad": torch.no_grad,
}


def numbers(x: torch.Tensor) -> torch.Tensor:
    """Floats of Python's, quotients of whole numbers, and tensors of no named dtype."""
    return x * torch.ones(x.shape[-1]) * (torch.arange(1, x.shape[-1] + 1) / 3) + torch.tensor(1.5) * x.sin()


def norms(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return torch.where(y > 0, y, 0.5) @ torch.eye(x.shape[-1]) + x.pow(2).mean()


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1:] += torch.linspace(0, 1, x.shape[-1])
    return y.cumsum(0) / torch.full((1,), 3.0)


PROGRAMS = {"numbers": numbers, "norms": norms, "written": written}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("begun", ["float32", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_between_a_call_and_its_backward_pass(name: str, begun: str, setting: str) -> None:
    program, dtype = PROGRAMS[name], getattr(torch, begun)
    compiled = compile_api.compile(program, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 8, dtype=dtype, requires_grad=True)
        with default_dtype(dtype):
            y, expected = compiled(x), program(x)
            assert y.dtype == expected.dtype
            g = torch.randn_like(expected)
        (wanted,) = torch.autograd.grad(expected, x, g)
        with SETTINGS[setting]():
            (found,) = torch.autograd.grad(y, x, g)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
    assert compiled.report().verdict == "compiled" and not compiled.report().fallbacks


@pytest.mark.parametrize("later", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("at_export", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_between_an_export_and_its_calls(
    name: str, at_export: torch.dtype, later: torch.dtype, tmp_path: Any
) -> None:
    x = torch.randn(4, 8, dtype=at_export)
    with default_dtype(at_export):
        program = compile_api.export(PROGRAMS[name], (x,))
        program.save(tmp_path / "program")
        expected = PROGRAMS[name](x)
    with default_dtype(later):
        for run in (program, compile_api.load_exported(tmp_path / "program")):
            torch.testing.assert_close(run(x), expected)
    text = str(program.envelope)
    assert ("default float64" in text) == (at_export == torch.float64)
    read = parse_text(text, program.envelope.constants)
    assert read.default_dtype == at_export and str(read) == text
