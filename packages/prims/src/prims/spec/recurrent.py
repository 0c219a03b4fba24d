"""Recurrent layers of padded sequences on the CPU, as PyTorch runs them there.

C++ decomposes a layer into its steps before our dispatch sees anything, and reads the batch size as a plain number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

aten = torch.ops.aten
#: Steps that are spelt out: each becomes nodes of the graph, forward and backward. 64 steps of a GRU compile in 20 s
#: and gain a third of a training step's time. A longer layer that is not differentiated, or one of a length that is
#: not known, is one call of PyTorch's: 128 steps in inference took 6.8 s to compile and as long to run as eager's.
MAX_STEPS = 64


def lstm(
    x: torch.Tensor, hx: Any, weights: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """``torch.lstm`` of padded sequences on the CPU: oneDNN's layers, one after the other, where PyTorch takes them."""
    if not _is_onednn_lstm(x, hx, weights):
        return torch.lstm(x, hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    ways = 2 if bidirectional else 1
    per_way = 4 if has_biases else 2
    h0, c0 = hx[0].contiguous(), hx[1].contiguous()
    layer = (x.transpose(0, 1) if batch_first else x).contiguous()
    hidden, cells = [], []
    for depth in range(num_layers):
        outputs = []
        for way in range(ways):
            at = depth * ways + way
            w_in, w_hidden, *biases = weights[at * per_way : (at + 1) * per_way]
            if not biases:
                biases = [torch.zeros(w_in.shape[0], dtype=w_in.dtype, device=w_in.device)] * 2
            flags = (has_biases, bidirectional, batch_first, train)
            out, h, c, _ = aten.mkldnn_rnn_layer(
                layer, w_in, w_hidden, *biases, h0[at], c0[at], way == 1, [], 2, h0.shape[2], num_layers, *flags
            )
            outputs.append(out)
            hidden.append(h)
            cells.append(c)
        layer = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and depth < num_layers - 1:
            layer = torch.dropout(layer, dropout, True)
    out = layer.transpose(0, 1) if batch_first else layer
    return out, torch.stack(hidden), torch.stack(cells)


def _is_onednn_lstm(x: torch.Tensor, hx: Any, weights: Any) -> bool:
    """Would PyTorch take oneDNN's kernel? A projection gives hidden and cell states of different sizes."""
    if isinstance(hx, torch.Tensor) or not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (x, *hx, *weights))
    return plain and hx[0].shape[2] == hx[1].shape[2]


def _gru_step(inputs: torch.Tensor, hidden: torch.Tensor, hidden_gates: torch.Tensor) -> torch.Tensor:
    (reset_in, update_in, new_in), (reset_h, update_h, new_h) = inputs.chunk(3, 1), hidden_gates.chunk(3, 1)
    reset, update = (reset_h + reset_in).sigmoid(), (update_h + update_in).sigmoid()
    new = (new_in + new_h * reset).tanh()
    return (hidden - new) * update + new


def _tanh_step(inputs: torch.Tensor, hidden: torch.Tensor, hidden_gates: torch.Tensor) -> torch.Tensor:
    return (hidden_gates + inputs).tanh()


def _relu_step(inputs: torch.Tensor, hidden: torch.Tensor, hidden_gates: torch.Tensor) -> torch.Tensor:
    return (hidden_gates + inputs).relu()


def _layers(original: Callable[..., Any], step: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    name = original.__name__

    def call(
        input: torch.Tensor, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any = None,
        train: Any = None, bidirectional: Any = None, batch_first: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        rest = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        if batch_first is None or not _is_padded(input, hx, params):  # packed sequences have other arguments
            return original(input, hx, params, *(rest if batch_first is not None else rest[:-1]))  # type: ignore[no-any-return]
        layer = input.transpose(0, 1) if batch_first else input
        per_way, ways = 4 if has_biases else 2, 2 if bidirectional else 1
        drops = bool(dropout and train and num_layers > 1)
        if not drops and not _differentiates(input, hx, params) and not _is_short(layer.shape[0]):
            given = (layer, hx, params, has_biases, num_layers, bidirectional, name)
            out, hidden = torch.ops.quintet.recurrent(*given)
            return out.transpose(0, 1) if batch_first else out, hidden
        states, last = hx.unbind(0), []
        for depth in range(num_layers):
            outputs = []
            for way in range(ways):
                at = depth * ways + way
                w_in, w_hidden, *biases = params[at * per_way : (at + 1) * per_way]
                b_in, b_hidden = biases or (None, None)
                hidden, found = states[at], []
                steps = linear(layer, w_in, b_in).unbind(0)
                for gates in steps if way == 0 else steps[::-1]:
                    hidden = step(gates, hidden, linear(hidden, w_hidden, b_hidden))
                    found.append(hidden)
                outputs.append(torch.stack(found if way == 0 else found[::-1]))
                last.append(hidden)
            layer = torch.cat(outputs, -1) if ways == 2 else outputs[0]
            if drops and depth < num_layers - 1:
                layer = torch.dropout(layer, dropout, True)
        return layer.transpose(0, 1) if batch_first else layer, torch.stack(last)

    return call


def _is_padded(x: Any, hx: Any, weights: Any) -> bool:
    """Whether they are the arguments for a padded sequence, of sizes that PyTorch accepts, on the CPU."""
    if not isinstance(hx, torch.Tensor) or not isinstance(weights, (list, tuple)) or x.ndim != 3 or hx.ndim != 3:
        return False
    return all(t.device.type == "cpu" and t.dtype == x.dtype for t in (x, hx, *weights)) and x.is_floating_point()


def _differentiates(x: torch.Tensor, hx: torch.Tensor, weights: Any) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (x, hx, *weights))


def _is_short(steps: Any) -> bool:
    return isinstance(steps, int) and steps <= MAX_STEPS


gru = _layers(torch.gru, _gru_step)
rnn_tanh = _layers(torch.rnn_tanh, _tanh_step)
rnn_relu = _layers(torch.rnn_relu, _relu_step)
