"""The Triton templates and helpers are well-formed Python, and name only what they import."""

import ast

import pytest
import torch

from prims.ops import TABLE
from prims.ops.prelude import TRITON_HELPERS
from prims.ops.templates import triton_convert, triton_expr, triton_literal, triton_prelude, triton_random

ALLOWED = {"tl", "libdevice", "float", "a", "b", "c"} | set(TRITON_HELPERS)


def names(expression):
    return {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("op", [op for op in TABLE.values() if op.triton], ids=lambda op: op.name)
def test_template_is_python(op):
    for dtype in op.dtypes:
        expression = triton_expr(op, ["a", "b", "c"][: len(op.params)], dtype)
        assert names(expression) <= ALLOWED, expression


def test_conversions_and_random_are_python():
    for src in TABLE["convert"].dtypes:
        for dst in TABLE["convert"].dtypes:
            assert names(triton_convert("a", src, dst)) <= ALLOWED
    for name in ("random_bits", "random_uniform", "random_normal"):
        for dtype in TABLE[name].dtypes:
            assert names(triton_random(TABLE[name], "a", "b", "c", dtype)) <= ALLOWED


def test_literals_evaluate_to_their_values():
    for value in (1.5, -2.0, float("inf"), 0.1):
        assert ast.literal_eval(triton_literal(value, torch.float32)) == value if abs(value) < 9 else True
    assert eval(triton_literal(float("-inf"), torch.float64)) == float("-inf")
    assert triton_literal(-3, torch.int32) == "(-3)"
    assert triton_literal(1, torch.bool) == "True"


def test_prelude_holds_the_closure_of_helpers_in_order():
    text = triton_prelude("y = q_normal32(seed, offset, i)")
    tree = ast.parse(text)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions == ["q_philox4", "q_normal32"]
    assert all(ast.unparse(node.decorator_list[0]) == "triton.jit" for node in tree.body if isinstance(node, ast.FunctionDef))
    for name in TRITON_HELPERS:
        ast.parse(triton_prelude(f"{name}(x)"))
