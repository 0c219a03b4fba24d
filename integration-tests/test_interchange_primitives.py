"""Each primitive as StableHLO text, run by XLA on the CPU beside eager; as ONNX models, see compile-api's test_onnx.py."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from prims.ops import TABLE

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "compile-api" / "tests"))

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "jaxlib")), reason="needs jax and jaxlib"
)

#: What is written otherwise for some dtypes, or in other words for all of them: these are run with each.
_ALL = ("convert", "where", "full", "index_put", "scatter", "amax", "floor_div", "shift_right")


@pytest.mark.parametrize("name", [name for name in TABLE if not name.startswith("random_")])
def test_primitive(name):
    import hlo
    from interchange import difference, program_of_samples, samples_of

    from compile_api.deploy.interchange.stablehlo.table import STABLEHLO
    from compile_api.deploy.interchange.stablehlo.text import text_of

    op = TABLE[name]
    some = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.bool)
    ran = 0
    for dtype in op.dtypes:
        samples = samples_of(op, dtype) if dtype in (STABLEHLO.dtypes if name in _ALL else some) else []
        if not samples:
            continue
        program, given = program_of_samples(op, samples)
        for args, got in zip(samples, hlo.run(text_of(program, False), [t.numpy() for t in given]), strict=True):
            wrong = difference(got, op.torch_ref(*args))
            assert not wrong, (dtype, args, wrong)
            ran += 1
    assert ran
