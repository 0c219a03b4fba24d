"""Settings of the process by which PyTorch chooses how an operator is computed, and that a region may set for a while.

``torch.nn.attention.sdpa_kernel`` sets which kernels attention may use, ``torch.backends.cudnn.flags`` whether cuDNN is
used at all. Captured, the former are calls of the graph like those that set the mode of gradients: what is traced under
them obeys them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = [
    "ATTENTION", "CUDNN", "GET_PRECISION", "SETTINGS", "SET_PRECISION", "kept_settings", "says_nothing_to_graphs",
]  # fmt: skip


def _of_torch(pairs: dict[str, str]) -> dict[Callable[[Any], None], Callable[[], Any]]:
    found = {getattr(torch._C, setter, None): getattr(torch._C, reader, None) for setter, reader in pairs.items()}
    return {setter: reader for setter, reader in found.items() if setter is not None and reader is not None}


#: Setter -> reader. Attention's kernels are chosen while a graph is traced.
ATTENTION = _of_torch({
    f"_set_sdp_use_{name}": f"_get_{name}_sdp_enabled"
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3")
})  # fmt: skip
#: cuDNN's are read when an operator runs: without a GPU they say nothing.
CUDNN = _of_torch({
    **{f"_set_cudnn_{name}": f"_get_cudnn_{name}"
       for name in ("enabled", "benchmark", "deterministic", "allow_tf32", "depthwise_kernel")},
    "_cuda_set_cudnn_benchmark_limit": "_cuda_get_cudnn_benchmark_limit",
})  # fmt: skip
SETTINGS = {**ATTENTION, **CUDNN}
#: The precision of float32 products, by backend and operator ("cuda", "all"): those of CUDA are like cuDNN's.
SET_PRECISION = getattr(torch._C, "_set_fp32_precision_setter", None)
GET_PRECISION = getattr(torch._C, "_get_fp32_precision_getter", None)
_PRECISIONS = [("cuda", name) for name in ("all", "conv", "rnn", "matmul")]


def says_nothing_to_graphs(setter: Any) -> bool:
    """Whether a setting is of CUDA's libraries, which read it when an operator runs."""
    return setter in CUDNN or (setter is SET_PRECISION and setter is not None)


@contextlib.contextmanager
def kept_settings() -> Iterator[None]:
    """The settings afterwards are those before, whatever is run or traced in between."""
    before = [(setter, reader, reader()) for setter, reader in SETTINGS.items()]
    precisions = [(*which, GET_PRECISION(*which)) for which in _PRECISIONS] if GET_PRECISION is not None else []
    try:
        yield
    finally:
        for setter, reader, value in before:
            if reader() != value:
                setter(value)
        for backend, name, kept in precisions:
            if GET_PRECISION(backend, name) != kept:  # type: ignore[misc]
                SET_PRECISION(backend, name, kept)  # type: ignore[misc]
