"""What the stages export is stored and loaded again, by a process that knows nothing of the program, and computes the same."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import aot_autograd
import dynamo_capture
import inductor_gen
from prims import ir
from prims.errors import StoredGraphError
from prims.lower import lower


@torch.library.custom_op("stored_graphs::twice", mutates_args=())
def twice(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


@twice.register_fake
def _(x, by=2.0):
    return torch.empty_like(x)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


@dynamo_capture.allow_in_graph
def whole(x):
    return x + 1


def attention(q, k, v):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, -math.inf)
    return F.dropout(torch.softmax(scores, -1), 0.1, training=False) @ v


def operators_and_methods(x):
    y = (x.T.contiguous() - 1) ** 2 // 3 % 2
    y = abs(-y) @ x.to(torch.float64).float()
    return y.view(-1)[1:], y > 0, x.real, torch.where(x > 0, x, torch.tensor(0.5)), x.max(0).values, x.mT


def written(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    y[0] += 1
    y.mul_(2).clamp_(min=0)
    return y, y.new_full((2, 3), math.inf, dtype=torch.float16)


def modes(x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x.T
    return y, z


def library(x):
    x = F.conv1d(x[None], torch.ones(3, 3, 2), padding=1)
    x = F.interpolate(F.max_pool1d(F.gelu(x, approximate="tanh"), 2), scale_factor=2.0, mode="linear")
    x = F.layer_norm(x, x.shape[-1:]) + torch.einsum("bij,bkj->bik", x, x).sum()
    return F.pad(x, (1, 2), value=-1.0), torch.linalg.vector_norm(x, dim=-1), torch.fft.rfft(x).abs(), torch.special.expit(x)


def custom(x):
    return twice(x.sin(), 3.0) + torch.ops.stored_graphs.twice(x)


def lengths(x, y):
    return torch.cat([x, y]).view(-1, 2)[: x.shape[0] // 2] * x.shape[0], torch.arange(x.numel() + y.numel())


def square():
    return torch.randn(3, 3)


PROGRAMS = {
    "attention": (attention, lambda: [torch.randn(2, 4, 8) for _ in range(3)]),
    "operators": (operators_and_methods, lambda: [square()]),
    "written": (written, lambda: [square()]),
    "modes": (modes, lambda: [square()]),
    "library": (library, lambda: [torch.randn(3, 8)]),
    "custom": (custom, lambda: [square()]),
    "allowed": (lambda x: whole(x) * 2, lambda: [square()]),
    "sizes": (lengths, lambda: [torch.randn(8), torch.randn(6)]),
    "float": (lambda x, by: x * by + by**2, lambda: [square(), 1.5]),
    "module": (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LSTM(4, 2)), lambda: [square()]),
}


def captured(function, args, dynamic=None):
    """The torch dialect graphs of two calls, with their inputs."""
    found = []

    @dynamo_capture.supports_dynamic_shapes
    @dynamo_capture.supports_dynamic_shapes
    def backend(gm, inputs):
        found.append((gm, inputs))
        return gm.forward

    from prims.options import Options

    compiled = dynamo_capture.optimize(function, backend, options=Options(fullgraph=True, dynamic=dynamic))
    with torch.no_grad():
        compiled(*args)
        if len(args) > 1 and isinstance(args[1], float):
            compiled(args[0], args[1] + 1)  # a changing float becomes an input
    return found


def same_after_storing(env, inputs, path):
    ir.save(env, path)
    back = ir.load(path)
    assert ir.structural_difference(env, back) is None
    copies = [[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2)]
    with torch.no_grad():
        expected, got = env.module()(*copies[0]), back.module()(*copies[1])
    for a, b in zip((*expected, *copies[0]), (*got, *copies[1]), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_can_be_stored(name, dynamic, tmp_path):
    function, make = PROGRAMS[name]
    graphs = captured(function, make(), dynamic)
    assert graphs
    for number, (gm, inputs) in enumerate(graphs):
        same_after_storing(gm.meta["envelope"], inputs, tmp_path / f"torch{number}.json")
        aten = aot_autograd.inference_graph(gm, inputs)
        ir.save(aten, tmp_path / f"aten{number}.json")
        assert ir.structural_difference(aten, ir.load(tmp_path / f"aten{number}.json")) is None
        prim = lower(aten, claims=inductor_gen.claims("cpu"))
        ir.save(prim, tmp_path / f"prim{number}.json")
        assert ir.structural_difference(prim, ir.load(tmp_path / f"prim{number}.json")) is None


def test_a_program_that_knows_only_the_contract_runs_a_stored_graph(tmp_path):
    x = square()
    for name in ("operators", "library", "modes"):
        function, make = PROGRAMS[name]
        args = make()
        ((gm, inputs),) = captured(function, args)
        ir.save(gm.meta["envelope"], tmp_path / f"{name}.json")
        torch.save((inputs, gm.meta["envelope"].module()(*inputs)), tmp_path / f"{name}.pt")
    gm, inputs = captured(*[PROGRAMS["float"][0], [x, 1.5]])[-1]
    assert any(desc.kind == "size" for desc in gm.meta["envelope"].inputs)
    ir.save(gm.meta["envelope"], tmp_path / "float.json")
    torch.save((inputs, gm.meta["envelope"].module()(*inputs)), tmp_path / "float.pt")
    code = f"""
import sys, torch
from prims import ir
for name in ("operators", "library", "modes", "float"):
    inputs, expected = torch.load({str(tmp_path)!r} + "/" + name + ".pt")
    got = ir.load({str(tmp_path)!r} + "/" + name + ".json").module()(*inputs)
    torch.testing.assert_close(got, tuple(expected), rtol=0, atol=0, equal_nan=True)
print([m for m in sys.modules if m.split(".")[0] in ("dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr


def test_training_graphs_and_a_custom_backward_can_be_stored(tmp_path):
    found = []

    def compiler(env, report=None):
        found.append(env)
        return env.module().forward

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm, inputs):
        if not found:  # the torch dialect holds the backward as a Python object
            with pytest.raises(StoredGraphError, match="later stage") as caught:
                ir.save(gm.meta["envelope"], tmp_path / "torch.json")
            assert caught.value.label == "FILE-C1" and not (tmp_path / "torch.json").exists()
        return aot_autograd.aot_function(gm, inputs, fw_compiler=compiler, bw_compiler=compiler)

    compiled = dynamo_capture.optimize(lambda x, w: (Cube.apply(x @ w).sin() * w).sum(), backend)
    x, w = square(), square().requires_grad_()
    compiled(x, w).backward()
    assert len(found) == 2
    for number, env in enumerate(found):
        ir.save(env, tmp_path / f"{number}.json")
        assert ir.structural_difference(env, ir.load(tmp_path / f"{number}.json")) is None
