"""A number that changes becomes a symbol, for numbers of its own type: a bool, or a member of an enumeration, is another
program's, though it is equal."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dynamo_capture
from prims.options import Options

X = torch.arange(6.0).reshape(2, 3)


class Kind(enum.IntEnum):
    ONE = 1
    TWO = 2


class Odd(int):
    def __mul__(self, other: Any) -> Any:
        return other * 10

    __rmul__ = __mul__


class Half(float):
    def __mul__(self, other: Any) -> Any:
        return other * 10

    __rmul__ = __mul__


INTS = (2, 1, 0, 3, 1)
FLOATS = (0.5, 1.5, 2.5, 1.5)
OTHERS: dict[str, Any] = {
    "True": True, "False": False, "member": Kind.ONE, "subclass": Odd(2), "float": 1.0, "float subclass": Half(0.5),
}  # fmt: skip

MODULE = SimpleNamespace(k=0)


def of_type(x: Any, k: Any) -> Any:
    return x + 1, type(k).__name__, k is True, isinstance(k, bool)


def product(x: Any, k: Any) -> Any:
    return x * k


def made(x: Any, k: Any) -> Any:
    return torch.full((2,), k), (x > 1) + k


def chosen(x: Any, k: Any) -> Any:
    return x * 2 if k is True else x + 2 * k


def text(x: Any, k: Any) -> Any:
    return x + 1, f"{k}", str(k)


PROGRAMS = {"type": of_type, "product": product, "made": made, "chosen": chosen, "text": text}


def held(holder: str, program: Any) -> tuple[Any, Any]:
    """A function, and what makes its arguments."""
    if holder == "argument":
        return program, lambda k: (X, k)
    if holder == "item":
        return (lambda x, d: program(x, d["k"])), lambda k: (X, {"k": k})
    if holder == "attribute":
        return (lambda x, o: program(x, o.k)), lambda k: (X, SimpleNamespace(k=k))

    def of_global(x: Any) -> Any:
        return program(x, MODULE.k)

    def arguments(k: Any) -> tuple[Any, ...]:
        MODULE.k = k
        return (X,)

    return of_global, arguments


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("holder", ["argument", "item", "attribute", "global"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_not_the_symbols(name: str, other: str, holder: str, dynamic: bool | None) -> None:
    program, arguments = held(holder, PROGRAMS[name])

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm: Any, inputs: Any) -> Any:
        return gm.forward

    captured = dynamo_capture.optimize(program, backend, options=Options(dynamic=dynamic))
    numbers = FLOATS if isinstance(OTHERS[other], float) else INTS
    for k in (*numbers, OTHERS[other], numbers[0], OTHERS[other]):
        expected = program(*arguments(k))
        assert_same(captured(*arguments(k)), expected)
