"""A decoder for serving, captured once and compiled piecewise, split at its attention, as vLLM does it.

    python examples/piecewise_capture.py

Attention looks into caches whose layout changes with every batch: it stays an operator that the server writes itself,
and reads what it needs from a context beside the graph. All else is captured once, for any number of tokens, split at
the attention into pieces, and each piece compiled for a few sizes of the batch, to which it is padded. A step then runs
the pieces, one behind the other: no guards are checked, and nothing is looked up but the size.

``export_graph`` captures, ``torch.fx`` splits, and the backend compiles pieces as it does what ``compile()`` captures.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.split_module import split_module

import compile_api

WIDTH, HEADS, LAYERS, WORDS, LONGEST = 64, 4, 3, 100, 64
#: Tokens of a step for which there is compiled code.
SIZES = (1, 4, 16)


class Context:
    """What attention needs beside its operands: the sequence and position of each token, and the caches."""

    def __init__(self, sequences: int) -> None:
        self.keys = torch.zeros(LAYERS, sequences, LONGEST, HEADS, WIDTH // HEADS)
        self.values = torch.zeros_like(self.keys)
        self.sequence = self.position = torch.zeros(0, dtype=torch.int64)


CONTEXT: Context


@torch.library.custom_op("piecewise::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    """Attention of each token, ``[tokens, heads, width]``, to its own sequence up to its position; 0 for padding."""
    keys, values, count = CONTEXT.keys[layer], CONTEXT.values[layer], len(CONTEXT.position)
    keys[CONTEXT.sequence, CONTEXT.position] = k[:count]
    values[CONTEXT.sequence, CONTEXT.position] = v[:count]
    seen = torch.arange(LONGEST) <= CONTEXT.position[:, None]
    k, v = (cache[CONTEXT.sequence].transpose(1, 2) for cache in (keys, values))
    found = F.scaled_dot_product_attention(q[:count, :, None], k, v, attn_mask=seen[:, None, None])
    return torch.cat([found[:, :, 0], q.new_zeros(len(q) - count, *q.shape[1:])])


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    return q.new_empty(q.shape)


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(attention(q, k, v, self.layer).flatten(1))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for layer in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Piecewise:
    """A model's graph, split at ``attention``, with compiled pieces for each of ``SIZES``."""

    def __init__(self, model: nn.Module, tokens: torch.Tensor) -> None:
        compile_api.mark_dynamic(tokens, 0)
        exported = compile_api.export_graph(model, tokens)
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.weights = [weights[_name(d.source)] for d in exported.envelope.inputs if d.kind in ("parameter", "buffer")]
        self.stages = split_module(exported.graph_module, None, _pieces(exported.graph), keep_original_order=True)
        self.compiled: dict[tuple[str, int], Any] = {}

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        size = next(size for size in SIZES if size >= len(tokens))
        padded = F.pad(tokens, (0, size - len(tokens)))
        return _Run(self, size).run(padded, *self.weights)[0][: len(tokens)]

    def piece(self, name: str, size: int, inputs: tuple[Any, ...]) -> Any:
        """A piece for a number of tokens, compiled when it first runs."""
        if (name, size) not in self.compiled:
            stage = self.stages.get_submodule(name)
            if _has_attention(stage.graph):
                self.compiled[name, size] = stage
            else:
                self.compiled[name, size] = compile_api.lookup_backend("inductor")(stage, list(inputs))
        return self.compiled[name, size]


class _Run(torch.fx.Interpreter):
    def __init__(self, model: Piecewise, size: int) -> None:
        super().__init__(model.stages)
        self.model, self.size = model, size

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.model.piece(target, self.size, args)(*args)


def _name(source: str | None) -> str:
    """``self.blocks._modules['0'].out.bias`` as ``blocks.0.out.bias``."""
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", source or "").partition(".")[2]


def _has_attention(graph: torch.fx.Graph) -> bool:
    return any("piecewise.attention" in str(node.target) for node in graph.nodes)


def _pieces(graph: torch.fx.Graph) -> Any:
    """The number of each node's piece: attention is one of its own."""
    found, number = {}, 0
    for node in graph.nodes:
        is_attention = "piecewise.attention" in str(node.target)
        number += is_attention
        found[node] = number
        number += is_attention
    return found.__getitem__


def generate(model: Any, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy decoding of all prompts together: a step takes the tokens that have not been computed."""
    global CONTEXT
    CONTEXT = Context(len(prompts))
    texts, fresh = [list(prompt) for prompt in prompts], [list(prompt) for prompt in prompts]
    for step in range(steps):
        counts = [len(tokens) for tokens in fresh]
        CONTEXT.sequence = torch.arange(len(texts)).repeat_interleave(torch.tensor(counts))
        ends = [len(text) for text in texts]
        CONTEXT.position = torch.cat([torch.arange(e - n, e) for e, n in zip(ends, counts, strict=True)])
        logits = model(torch.tensor([token for tokens in fresh for token in tokens]))
        last = torch.tensor(counts).cumsum(0) - 1
        fresh = [[int(token)] for token in logits[last].argmax(-1)]
        for text, new in zip(texts, fresh, strict=True):
            text += new
        if step == 0:
            print(f"prefill of {sum(counts)} tokens, then {len(texts)} a step")
    return texts


def main() -> int:
    warnings.simplefilter("error", compile_api.CompileWarning)  # a piece that would run eagerly
    torch.manual_seed(0)
    model = Decoder().eval()
    prompts = [[3, 14, 15, 92, 65], [35, 89], [79, 32, 38, 46]]
    with torch.no_grad():
        expected = generate(model, prompts, 12)
        piecewise = Piecewise(model, torch.zeros(8, dtype=torch.int64))
        got = generate(piecewise, prompts, 12)
    compiled = [run for run in piecewise.compiled.values() if not isinstance(run, torch.nn.Module)]
    print("the same tokens as eager" if got == expected else f"other tokens: {got}, eager {expected}")
    sizes = len(compiled) // (LAYERS + 1)
    print(f"verdict: compiled, {len(compiled)} pieces: {LAYERS + 1} for each of {sizes} sizes, captured once")
    return 0 if got == expected and len(compiled) == 2 * (LAYERS + 1) else 1


if __name__ == "__main__":
    sys.exit(main())
