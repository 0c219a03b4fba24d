"""Operands on another device than the result: numbers that eager takes from the CPU, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from prims.ir import parse_text
from prims.lower import UPDATES, lower
from prims.options import Options
from prims.reference import run_numpy
from prims.report import Report
from prims.spec import TensorSpec

GPU, CPU = "cuda:0", "cpu"

#: The call, the operands' types, and what it gives; ``x`` and the result are on one device, ``y`` is on the other.
CALLS = {
    "add": ("aten.add.Tensor(%x, %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "add of another type": ("aten.add.Tensor(%x, %y)", ("float32[3, 5]", "int64[]"), "float32[3, 5]"),
    "on the left": ("aten.sub.Tensor(%y, %x)", ("float32[3, 5]", "float64[]"), "float32[3, 5]"),
    "where": ("aten.where.self(%m, %y, %x)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "masked_fill": ("aten.masked_fill.Tensor(%x, %m, %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "fill": ("aten.fill.Tensor(%x, %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "copy": ("aten.copy.default(%x, %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "index": ("aten.index.Tensor(%x, [%y])", ("float32[3, 5]", "int64[2]"), "float32[2, 5]"),
    "index_put": ("aten.index_put.default(%x, [%i], %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "masked index_put": ("aten.index_put.default(%x, [%m], %y)", ("float32[3, 5]", "float32[]"), "float32[3, 5]"),
    "indices": ("aten.index_put.default(%x, [%y], %z)", ("float32[3, 5]", "int64[2]"), "float32[3, 5]"),
}


def lowered(lines, inputs, result, here=GPU, claims=()):
    text = "\n".join([
        "envelope aten 1.0 by tests 0",
        *(f"input %{name} : {kind} {device} kind=input" for name, kind, device in inputs),
        *lines, "return %r", f"output 0 : {result} {here} kind=mutation source=\"x\"", "mutation of input 0 by output 0",
    ])  # fmt: skip
    report = Report()
    env = lower(parse_text(text + "\n"), claims=claims, options=Options(verify="boundaries"), report=report)
    return env, [record.reason for record in report.fallbacks]


def homes(env):
    """Per primitive its name and the devices of its operands and result."""
    for node in env.op_nodes:
        specs = [n.meta["spec"] for n in (node, *node.all_input_nodes)]
        yield str(node.target), {s.device.type for s in specs if isinstance(s, TensorSpec)}


@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_come_to_the_result(name, constant):
    call, (x, y), result = CALLS[name]
    inputs = [("x", x, GPU), ("y", y, CPU), ("m", "bool[3, 5]", GPU), ("i", "int64[2]", GPU), ("z", "float32[5]", GPU)]
    lines = [f"%r = {call} : {result} {GPU}"]
    if constant:
        dtype, _, shape = y.partition("[")
        lines.insert(0, f"%y = aten.full.default([{shape}, 1, dtype=torch.{dtype}, device=device(\"cpu\")) : {y} cpu")
        del inputs[1]
    env, reasons = lowered(lines, inputs, result)
    assert not reasons
    moved = [name for name, devices in homes(env) if len(devices) > 1]
    assert moved == ([] if constant else ["aten._to_copy.default"])


def test_a_number_written_to_a_part():
    """``x[1] = 1``, whose number eager makes on the CPU."""
    lines = [
        '%n = aten.full.default([], 1, dtype=torch.int64, device=device("cpu")) : int64[] cpu',
        f"%p = aten.select.int(%x, 0, 1) : float32[5] {GPU}",
        f"%c = aten.copy.default(%p, %n) : float32[5] {GPU}",
        f"%r = aten.select_scatter.default(%x, %c, 0, 1) : float32[3, 5] {GPU}",
    ]
    for claims in ((), (UPDATES,)):
        env, reasons = lowered(lines, [("x", "float32[3, 5]", GPU)], "float32[3, 5]", claims=claims)
        assert not reasons
        assert {d for _, devices in homes(env) for d in devices} == {"cuda"}


@pytest.mark.parametrize("claims", [(), (UPDATES,)], ids=["values", "updates"])
@pytest.mark.parametrize(
    "call",
    ["aten.select_scatter.default(%x, %y, 0, 1)", "aten.index_put.default(%x, [%i], %y)", "aten.add.Tensor(%x, %y)",
     "aten.index_copy.default(%x, 0, %i, %w)", "aten.scatter_add.default(%x, 0, %j, %v)"],
)  # fmt: skip
@pytest.mark.parametrize("here", [CPU, GPU])
def test_what_eager_refuses_stays_its_operator(call, claims, here):
    """No primitive gets operands of two devices: a kernel on the one would read the other's memory."""
    there = GPU if here == CPU else CPU
    inputs = [("x", "float32[3, 5]", here), ("y", "float32[5]", there), ("i", "int64[2]", here),
              ("w", "float32[2, 5]", there), ("j", "int64[3, 5]", here), ("v", "float32[3, 5]", there)]  # fmt: skip
    env, reasons = lowered([f"%r = {call} : float32[3, 5] {here}"], inputs, "float32[3, 5]", here, claims)
    assert len(reasons) == 1 and there in reasons[0]
    mixed = [name for name, devices in homes(env) if len(devices) > 1]
    assert mixed == [call.partition("(")[0]]
    assert torch.device(here) == env.outputs[0].spec.device


@pytest.mark.parametrize("here", [CPU, GPU])
def test_the_zeros_of_softshrink(here):
    """Between its bounds a CPU's kernel multiplies by 0, a GPU's writes one."""
    env, _ = lowered([f"%r = aten.softshrink.default(%x) : float32[6] {here}"], [("x", "float32[6]", here)], "float32[6]", here)
    (got,) = run_numpy(env, [torch.tensor([-0.25, 0.25, -0.0, float("nan"), 2.0, -2.0])])
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, 0.0, float("nan"), 1.5, -1.5]), equal_nan=True)
    assert got.signbit().tolist()[:3] == ([True, False, True] if here == CPU else [False] * 3)


@pytest.mark.parametrize("shape,dim", [((3, 2), 0), ((2, 3), 1), ((3,), 0), ((1, 3), 1), ((3, 1), 0)])
@pytest.mark.parametrize("here", [CPU, GPU])
def test_the_zeros_of_running_sums(here, shape, dim):
    """Eager's begin with a zero, but for a single sequence on a GPU."""
    kind = f"float32{list(shape)}"
    env, _ = lowered([f"%r = aten.cumsum.default(%x, {dim}) : {kind} {here}"], [("x", kind, here)], kind, here)
    added = any("add" in str(n.target) for n in env.op_nodes)
    assert added == (here == GPU and 2 in shape)


def test_an_index_put_without_indices_stays_its_operator():
    env, reasons = lowered([f"%r = aten.index_put.default(%x, [], %y) : float32[] {CPU}"],
                           [("x", "float32[]", CPU), ("y", "float32[]", CPU)], "float32[]", CPU)  # fmt: skip
    assert [name for name, _ in homes(env)] == ["aten.index_put.default"] and "without an index" in reasons[0]
