"""The Triton templates of all elementwise rows conform to the references, on a GPU."""

import pytest
import torch

from prims.conformance import check_backend
from prims.ops import TABLE

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("dtype", TABLE["eq"].dtypes, ids=str)
def test_templates_conform(dtype, tmp_path):
    from prims_triton_harness import TritonBackend

    report = check_backend(TritonBackend(tmp_path), dtypes=[dtype])
    assert report.ok, str(report)
