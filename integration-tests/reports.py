"""What a test may ask of ``compiled.report()``: that the work was done in generated kernels.

A run that quietly falls back to eager passes every numerical comparison, so the tests look here too.
"""

from __future__ import annotations

from typing import Any

#: Library calls that a CPU graph may keep; every other operator must be inside a generated kernel. ``library.linear`` is
#: oneDNN's product, which computes a few convolutions.
LIBRARY_CALLS = {
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten.max_pool2d_with_indices",
    "aten._scaled_dot_product_flash_attention_for_cpu", "aten.convolution_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward", "aten.max_pool2d_with_indices_backward",
    "library.linear", "aten.cat",
}  # fmt: skip

#: The same for a GPU graph; ``_addmm_activation`` is a product whose library kernel ends with its activation.
CUDA_LIBRARY_CALLS = {
    "aten.mm", "aten.addmm", "aten._addmm_activation", "aten.bmm", "aten.baddbmm", "aten.convolution",
    "aten.convolution_backward", "aten.max_pool2d_with_indices", "aten.max_pool2d_with_indices_backward",
    "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_cudnn_attention_backward",
}  # fmt: skip


def captured(report: Any) -> list[Any]:
    """The graphs that capture made (each later stage records its own forms of them too)."""
    return [graph for graph in report.graphs if graph.dialect == "torch"]


def kernel_count(report: Any) -> int:
    """Generated kernels over all graphs; those pasted into one launch count each."""
    return sum(kernel.parts for kernel in report.kernels)


def extern_names(report: Any) -> set[str]:
    """The library calls by operator name without overload."""
    return {".".join(record.name.split(".")[:2]) for record in report.externs}


def assert_all_generated(
    report: Any, *, graphs: int | None = None, kernels: int | None = None, allowed: set[str] = LIBRARY_CALLS
) -> None:
    """Assert that nothing fell back to eager and that library calls are only ``allowed`` ones.

    Args:
        graphs: the exact number of captured graphs.
        kernels: the exact number of generated kernels.
    """
    assert not report.fallbacks, report.fallbacks
    assert report.kernels, "no kernel was generated"
    assert extern_names(report) <= allowed, extern_names(report) - allowed
    if graphs is not None:
        assert len(captured(report)) == graphs, captured(report)
    if kernels is not None:
        assert kernel_count(report) == kernels, report.kernels
