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


def test_of_nothing_and_out_of_range():
    """An index into nothing, and floats beyond a small integer's range, which eager wraps."""
    import hlo

    import compile_api

    def fn(x, i, y):
        return x[i], x.gather(1, i.reshape(0, 1)), y.to(torch.uint8), y.to(torch.int8)

    given = torch.ones(0, 2), torch.zeros(0, dtype=torch.int64), torch.tensor([-1.0, 300.0, 3.7])
    text = compile_api.to_stablehlo(compile_api.export(fn, given))
    for got, want in zip(hlo.run(text, [t.numpy() for t in given]), fn(*given), strict=True):
        assert torch.equal(torch.from_numpy(got.copy()), want)
