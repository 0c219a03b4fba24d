"""Reading a tensor at a position that changes from call to call, a diffusion's step or a token's place, is one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compile_api

TABLE = torch.arange(7.0 * 2 * 4 * 5).reshape(7, 2, 4, 5)
PLACES, MASK = torch.tensor([1, 0]), torch.tensor([True, False])

KEYS: dict[str, Callable[[Any], Any]] = {
    "t": lambda t: t,
    "t,": lambda t: (t,),
    "t, :": lambda t: (t, slice(None)),
    "..., t": lambda t: (..., t % 5),
    "t, ..., t": lambda t: (t, ..., t % 5),
    ":, t": lambda t: (slice(None), t % 2),
    "None, t": lambda t: (None, t),
    "t, None": lambda t: (t, None),
    "t, places": lambda t: (t, PLACES),
    "places, t": lambda t: (PLACES, t % 2),
    "places, :, t": lambda t: (PLACES, slice(None), t % 4),
    "t, :, places": lambda t: (t, slice(None), PLACES),
    "from the end": lambda t: -t - 1,
    "t, 1": lambda t: (t, 1),
    "1, t": lambda t: (1, t % 2),
    "t - 1": lambda t: t - 1,
    "a slice too": lambda t: (t, slice(0, 1), slice(t % 4, None)),
    "all": lambda t: (t, t % 2, t % 4, t % 5),
}


def calls(program: Callable[..., Any], steps: Any) -> Any:
    compiled = compile_api.compile(program)
    for t in steps:
        x = torch.randn(())
        expected = program(x, t)
        found = compiled(x, t)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
    return compiled.report()


@pytest.mark.parametrize("name", KEYS)
def test_one_graph_for_all_positions(name: str) -> None:
    report = calls(lambda x, t: TABLE[KEYS[name](t)] * x, (2, 3, 4, 5, 6, 3, 2, 5))
    assert report.verdict == "compiled" and len(report.recompiles) <= 2, report.verdict


@pytest.mark.parametrize("name", KEYS)
def test_gradients_and_writes_are_at_the_position(name: str) -> None:
    def program(x: torch.Tensor, t: int) -> torch.Tensor:
        table = (TABLE * x).clone()
        table[KEYS[name](t)].mul_(2) if "places" not in name else None
        return table.sin().sum() + table[KEYS[name](t)].sum()

    compiled = compile_api.compile(program)
    for t in (2, 3, 4, 6):
        x, y = (torch.tensor(0.5, requires_grad=True) for _ in range(2))
        compiled(x, t).backward()
        program(y, t).backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("key", [lambda t: (t, MASK), lambda t: (t, True), lambda t: (t, [0, 1])], ids=["mask", "bool", "list"])
def test_other_keys_are_as_eager(key: Callable[[Any], Any]) -> None:
    calls(lambda x, t: TABLE[key(t)] * x, (2, 3, 4, 5))


def test_positions_out_of_range_are_eagers_errors() -> None:
    program = lambda x, t: TABLE[t] * x
    compiled = compile_api.compile(program)
    for t in (1, 2, 3, 4, -7):
        torch.testing.assert_close(compiled(torch.ones(()), t), program(torch.ones(()), t))
    for t in (7, -8):
        with pytest.raises(IndexError, match="out of bounds for dimension 0"):
            compiled(torch.ones(()), t)
