"""What is known about the calls of a graph under the policies about bits, ``Options.deterministic`` and
``Options.batch_invariant``.

A library's products choose their kernel, and with it the order of a sum, by sizes; its elementwise kernels compute the
last elements of a tensor by scalar functions that round otherwise than the vector ones. So a call counts as independent
of the batch only where it is an own kernel, or moves and compares values without computing any.
"""

from __future__ import annotations

import torch

from inductor_gen.extern.ordered import FUNCTIONS
from inductor_gen.loops.graph import Node
from prims.collectives import is_collective, is_wait
from prims.control import control_of
from prims.errors import Unsupported
from prims.lower.numerics import EXACT
from prims.options import Options
from prims.report import Report

__all__ = ["DECIDED", "not_invariant", "note_policies"]

# One row, one image or one place is looked at by itself, and nothing is added up but in one order.
_MOVING = """
sort sort.stable topk kthvalue mode median median.dim nanmedian nanmedian.dim max_pool2d_with_indices
max_pool2d_with_indices_backward max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
adaptive_max_pool3d_backward fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d
nonzero nonzero_static _unique2 unique_dim unique_consecutive _unique bincount repeat_interleave.Tensor
searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bucketize.Scalar cummax cummin gcd lcm _chunk_cat _int_mm clone
view_as_real view_as_complex
empty.memory_format empty_strided
"""

# Sums over the whole batch by their nature: of no row's.
_OVER_THE_BATCH = """
embedding_dense_backward _embedding_bag_dense_backward
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in text.split())


_KNOWN = _names(_MOVING + _OVER_THE_BATCH)

#: Products, whose kernels the library chooses by sizes.
_PRODUCTS = _names("mm bmm addmm baddbmm _addmm_activation _scaled_mm") | {"dot"}

#: Calls for which ``torch.use_deterministic_algorithms`` takes another algorithm, or raises; products are none, of
#: which it only asks for a workspace of cuBLAS's that streams do not share.
DECIDED = _names("""
convolution convolution_backward index_put _unsafe_index_put index_add index_copy put scatter_add
embedding_dense_backward scatter.src scatter.reduce scatter_reduce.two index_reduce
kthvalue median median.dim nanmedian.dim mode histc histogram.bin_ct bincount cumsum
adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool3d_backward max_pool2d_with_indices_backward
max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d
fractional_max_pool2d_backward fractional_max_pool3d_backward
grid_sampler_2d_backward grid_sampler_3d_backward _ctc_loss _ctc_loss_backward
_embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward
_embedding_bag_per_sample_weights_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward
_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention_backward
""") | {"scatter", "index_put"}

def _is_random(node: Node) -> bool:
    """Does the operator take random numbers from PyTorch's generators?"""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def not_invariant(node: Node, called: str) -> str | None:
    """Why a row of a call's result may depend on the batch; None where it does not."""
    if called in FUNCTIONS or node.op in _KNOWN:
        return None
    if node.op in EXACT and not any(x.dtype is not None and x.dtype.is_complex for x in (node, *node.ins)):
        return None
    if _is_random(node):
        return "random numbers are drawn for a batch as a whole"
    dtypes = [x.dtype for x in (node, *node.ins) if x.dtype is not None]
    if dtypes and not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        return None  # integers have one sum
    if control_of(node.target) is not None or is_wait(node.target):
        return None  # its bodies are graphs of their own
    if is_collective(node.target):
        return "it adds up what several processes have"
    if node.op in _PRODUCTS or node.op.startswith("aten.convolution"):
        return "the library chooses its kernel by the sizes"
    return "the library's kernel is not known to compute each row by itself"


def note_policies(call: Node, name: str, options: Options, report: Report) -> None:
    """Record what the policies come to at a call.

    Raises:
        Unsupported: a row of its result may depend on the batch, under ``Options.strict``.
    """
    if options.deterministic and call.op in DECIDED:
        report.policy("deterministic", call.op, "called as under torch.use_deterministic_algorithms", call.source)
    if not options.batch_invariant:
        return
    if name in FUNCTIONS:
        report.policy("batch_invariant", call.op, "an own kernel with one order of its sums", call.source)
    why = not_invariant(call, name)
    if why is None:
        return
    if options.strict:
        raise Unsupported(f"{call.op} under batch_invariant: {why}", where=call.source)
    report.policy("batch_invariant", call.op, why, call.source, held=False)
