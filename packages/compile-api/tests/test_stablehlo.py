"""Programs as StableHLO text: what every machine can check of it; integration-tests/test_interchange.py runs it."""

import re

import pytest
import torch
from interchange import program_of_samples, samples_of

import compile_api
from compile_api.deploy.interchange.stablehlo.table import STABLEHLO
from compile_api.deploy.interchange.stablehlo.text import text_of
from prims.errors import UserError
from prims.ops import TABLE


def test_every_primitive_has_a_row_or_a_reason():
    assert set(STABLEHLO.rows) | set(STABLEHLO.unmapped) == set(TABLE)
    assert not set(STABLEHLO.rows) & set(STABLEHLO.unmapped)
    assert all(STABLEHLO.unmapped.values())
    assert set(STABLEHLO.composites) == set(STABLEHLO.takes)


@pytest.mark.parametrize("name", list(STABLEHLO.rows))
def test_primitive_in_single_assignment(name):
    """Each value is defined once, before it is read, and has one type wherever it stands."""
    op, written = TABLE[name], 0
    for dtype in op.dtypes:
        samples = samples_of(op, dtype) if dtype in STABLEHLO.dtypes else []
        if not samples:
            continue
        program, _ = program_of_samples(op, samples)
        text = text_of(program, False)
        known = set(re.findall(r"(%arg\d+):", text))
        for line in text.splitlines():
            if not line.startswith("    "):
                continue
            made, _, made_of = line.partition(" = ") if " = " in line else ("", "", line)
            inner = set(re.findall(r"(%[a-z]+): tensor", made_of)) | set(re.findall(r"(%[a-z]+) = ", made_of))
            read = {v.split("#")[0] for v in re.findall(r"%\w+(?:#\d+)?", made_of)} - inner
            assert read <= known, line
            name_made = made.strip().split(":")[0]
            assert name_made not in known, line
            known |= {name_made} - {""}
        written += len(samples)
    assert written


def test_arguments_results_and_sizes():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 6)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.count += 1
            return {"y": self.layer(x).relu(), "n": x.shape[0] * 2}

    program = compile_api.export(Model().eval(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    text = compile_api.to_stablehlo(program)
    assert text.splitlines()[:7] == [
        "// argument 0: x: float32[n, 4]",
        "// argument 1: count: int64[] (weight)",
        "// argument 2: layer.weight: float32[6, 4] (weight)",
        "// argument 3: layer.bias: float32[6] (weight)",
        "// result 0: result['y']: float32[n, 6]",
        "// result 1: result['n']: int64[]",
        "// result 2: count.new: int64[]",
    ]
    assert '%arg0: tensor<?x4xf32> loc("x")' in text
    assert f'loc("{__file__}":' in text
    inside = compile_api.to_stablehlo(program, constants=True)
    assert "layer.weight" not in inside and "// argument 1: count" in inside
    assert 'stablehlo.constant dense<"0x' in inside


def test_all_that_does_not_map_is_listed():
    def fn(x, y):
        return torch.special.i0(x) + x.cumsum(0), torch.linalg.inv(y)

    program = compile_api.export(fn, (torch.randn(3), torch.eye(3)), dynamic_shapes={"x": {0: "n"}})
    with pytest.raises(UserError) as raised:
        compile_api.to_stablehlo(program)
    text = str(raised.value)
    assert all(name in text for name in ("cumsum: ", "aten.i0.default: ", "aten.linalg_inv_ex.default: "))
    assert text.count("test_stablehlo.py") >= 3
    with pytest.raises(UserError, match="complex numbers are not mapped"):
        compile_api.to_stablehlo(compile_api.export(lambda x: torch.fft.fft(x), (torch.randn(4),)))
    with pytest.raises(UserError, match=r"random_uniform: .*test_\w+\.py:\d+"):
        compile_api.to_stablehlo(compile_api.export(lambda x: x + torch.rand(4), (torch.randn(4),)))
