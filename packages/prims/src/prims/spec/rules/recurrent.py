"""Recurrent layers and cells.

``quintet::lstm_layer`` is oneDNN's LSTM layer in training. ATen's own operator, ``aten::mkldnn_rnn_layer``, keeps what
its backward call needs only while gradients are enabled; inside a compiled forward graph they are not.
"""

from __future__ import annotations

from typing import Any

import torch

from prims.registry import define_operator
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec

_LSTM_LAYER = (
    "lstm_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx, Tensor cx, "
    "bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, bool bidirectional, "
    "bool batch_first, bool train) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _lstm_layer(*args: Any) -> Any:
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args))


define_operator(_LSTM_LAYER, _lstm_layer)

_RECURRENT = (
    "recurrent(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, bool bidirectional, "
    "str kind) -> (Tensor, Tensor)"
)


def _recurrent(
    x: torch.Tensor, hx: torch.Tensor, params: Any, has_biases: bool, num_layers: int, bidirectional: bool, kind: str
) -> Any:
    """A layer of ``torch.gru`` and its like, of padded sequences, the steps first; not differentiated."""
    layer = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}[kind]
    with torch.no_grad():
        return layer(x, hx, params, has_biases, num_layers, 0.0, False, bidirectional, False)


define_operator(_RECURRENT, _recurrent)


@meta_rule("quintet.recurrent.default")
def recurrent(
    x: TensorSpec, hx: TensorSpec, params: Any, has_biases: bool, num_layers: int, bidirectional: bool, kind: str
) -> tuple[TensorSpec, TensorSpec]:
    """The results of all steps, and the last ones of each layer and direction.

    Raises:
        RuntimeError: sizes that do not fit.
    """
    ways = 2 if bidirectional else 1
    steps, batch, width = x.shape
    wanted = (num_layers * ways, batch, hx.shape[-1])
    if any(a != b for a, b in zip(hx.shape, wanted, strict=True)):
        raise RuntimeError(f"{kind}: expected a hidden state of size {list(wanted)}, got {list(hx.shape)}")
    if params[0].shape[1] != width:
        raise RuntimeError(f"{kind}: input of size {width} for weights of {params[0].shape[1]}")
    out = TensorSpec((steps, batch, hx.shape[-1] * ways), x.dtype, x.device)
    return out, TensorSpec(hx.shape, x.dtype, x.device)


@meta_rule("aten._thnn_fused_lstm_cell.default")
def fused_lstm_cell(
    input_gates: TensorSpec, hidden_gates: TensorSpec, cx: TensorSpec, *args: Any
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    out = TensorSpec(cx.shape, cx.dtype, cx.device)
    return out, out, TensorSpec(input_gates.shape, cx.dtype, cx.device)


@meta_rule("aten._thnn_fused_gru_cell.default")
def fused_gru_cell(
    input_gates: TensorSpec, hidden_gates: TensorSpec, hx: TensorSpec, *args: Any
) -> tuple[TensorSpec, TensorSpec]:
    workspace = TensorSpec((hx.shape[0], hx.shape[1] * 5), hx.dtype, hx.device)
    return TensorSpec(hx.shape, hx.dtype, hx.device), workspace


@meta_rule("aten._thnn_fused_gru_cell_backward.default")
def fused_gru_cell_backward(grad_hy: TensorSpec, workspace: TensorSpec, bias: bool) -> tuple[TensorSpec | None, ...]:
    """Gradients of the three gates, from the input's side and from the state's, of the state, and of both biases."""
    batch, width = workspace.shape[0], workspace.shape[1] // 5 * 3
    gates = TensorSpec((batch, width), workspace.dtype, workspace.device)
    grad_bias = TensorSpec((width,), workspace.dtype, workspace.device) if bias else None
    return gates, gates, TensorSpec(grad_hy.shape, grad_hy.dtype, grad_hy.device), grad_bias, grad_bias


@meta_rule("aten.mkldnn_rnn_layer.default", "quintet.lstm_layer.default")
def mkldnn_rnn_layer(x: TensorSpec, *args: Any) -> tuple[TensorSpec, ...]:
    """The last result is for the backward call alone; only the library knows its size, and nobody asks."""
    hx, cx, hidden_size = args[4], args[5], args[9]
    out = TensorSpec((x.shape[0], x.shape[1], hidden_size), x.dtype, x.device)
    workspace = TensorSpec((0,), torch.uint8, x.device)
    return out, TensorSpec(hx.shape, hx.dtype, hx.device), TensorSpec(cx.shape, cx.dtype, cx.device), workspace


@meta_rule("aten._thnn_fused_lstm_cell_backward_impl.default")
def fused_lstm_cell_backward(
    grad_hy: TensorSpec | None, grad_cy: TensorSpec | None, cx: TensorSpec, cy: Any, workspace: TensorSpec, bias: bool
) -> tuple[TensorSpec | None, ...]:
    gates = TensorSpec(workspace.shape, workspace.dtype, workspace.device)
    grad_bias = TensorSpec((workspace.shape[1],), workspace.dtype, workspace.device) if bias else None
    return gates, TensorSpec(cx.shape, cx.dtype, cx.device), grad_bias


@meta_rule("aten.mkldnn_rnn_layer_backward.default")
def mkldnn_rnn_layer_backward(x: TensorSpec, *args: Any) -> tuple[TensorSpec, ...]:
    """Gradients are float32, also those of 16-bit operands."""
    w1, w2, w3, w4, hx, cx = args[:6]
    return tuple(TensorSpec(t.shape, torch.float32, t.device) for t in (x, w1, w2, w3, w4, hx, cx))
