"""Operators that return nothing are run for their effect: what they write is written, what they refuse raises.

The calls are generated from the schemas: every ``aten`` operator without results, with arguments by their types.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

#: They print, warn, write a file or set a mode of the process.
_OUTSIDE = ("save", "warn", "manual_seed", "set_grad_enabled", "_print")


def operators() -> list[Any]:
    found = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten" and not schema.returns and name not in _OUTSIDE:
            packet = getattr(torch.ops.aten, name, None)
            overload = getattr(packet, schema.overload_name or "default", None)
            if overload is not None:
                found.append((overload, schema))
    return found


def argument(kind: str) -> Any:
    if "List[" in kind and "Tensor" in kind:
        return [torch.full((3,), 2.0), torch.full((3,), 3.0)]
    if "Tensor" in kind:
        return torch.full((3,), 2.0)
    plain = {"number": 2.0, "float": 2.0, "int": 1, "bool": True, "str": "text", "List[int]": [3]}
    return plain.get(kind, [2.0, 3.0] if kind in ("List[number]", "List[float]") else None)


def arguments(schema: Any) -> tuple[list[Any], dict[str, Any]]:
    needed = [a for a in schema.arguments if a.is_out or not a.has_default_value()]
    return (
        [argument(str(a.type)) for a in needed if not a.kwarg_only],
        {a.name: argument(str(a.type)) for a in needed if a.kwarg_only},
    )


def outcome(fn: Any, schema: Any) -> tuple[Any, str]:
    args, kwargs = arguments(schema)
    try:
        result = fn(torch.ones(3), args, kwargs).tolist()
    except Exception as error:
        result = type(error).__name__, str(error).partition("\n")[0]
    return result, repr((args, kwargs))


def test_operators_without_results(capture):
    found = operators()
    assert len(found) > 180
    wrong = []
    for operator, schema in found:

        def region(x, args, kwargs, operator=operator):
            y = x + 1
            operator(*args, **kwargs)
            return y * 2

        compiled = capture(region, strict=False)
        eager = outcome(region, schema)
        wrong += [
            f"{operator}: {ours}, eager {eager}" for _ in range(2) if (ours := outcome(compiled, schema)) != eager
        ]
        if not compiled.graphs:
            wrong.append(f"{operator}: no graph")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize(
    "name", ["_assert_async", "_assert", "_check_tensor_all", "_check", "_check_value", "_check_index", "_check_type"]
)
def test_assertions(capture, name, holds):
    def about_data(x, y):
        return (y.sum() > 0) if holds else (y.sum() < 0)

    def about_sizes(x, y):
        return y.shape[0] == (3 if holds else 4)

    question = about_sizes if name.startswith("_check") and name != "_check_tensor_all" else about_data
    check, more = getattr(torch, name), {"_assert": ("no",), "_assert_async": ("no",)}.get(name, (lambda: "no",))

    def fn(x):
        y = x + 1
        check(question(x, y), *more)
        return y * 2

    compiled = capture(fn, strict=False)
    for _ in range(2):
        if holds:
            assert compiled(torch.ones(3)).tolist() == [4.0] * 3
        else:
            with pytest.raises(Exception) as eager:
                fn(torch.ones(3))
            with pytest.raises(type(eager.value), match=r"^no|Expected"):
                compiled(torch.ones(3))
    assert compiled.graphs or not holds
