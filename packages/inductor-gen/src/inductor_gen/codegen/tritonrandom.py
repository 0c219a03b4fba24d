"""Uniform random numbers in Triton, four to a Philox call.

Philox gives four words for a counter, and number ``i`` is word ``i % 4`` of counter ``i // 4`` (``prims.ops.rng``).
Asked for number by number, it runs four times for the same words. Where a block's positions run through the numbers one
by one, it is run for every fourth position instead and its words are laid side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor_gen.codegen.tritonexpr import multiple_of
from inductor_gen.kernel.body import Val, linear
from inductor_gen.loops.index import ONE
from prims.dtypes import ROWS
from prims.spec import expr as ex
from prims.spec.expr import Expr

if TYPE_CHECKING:
    from inductor_gen.codegen.triton import Block

__all__ = ["uniform_in_fours"]


def _runs_in_fours(block: Block, at: Expr) -> bool:
    """Does every aligned group of four positions along the block's last axis hold four numbers of one counter?"""
    axis = block.axes[-1]
    if not axis.vars or axis.block < 4 or not multiple_of(block.body.space[axis.vars[-1]], 4):
        return False
    lane = axis.vars[-1]
    if linear(block.body, at, lane) is not ONE or any(s in block.body.atoms for s in at.symbols):
        return False
    rest = ex.sub(at, lane)
    return lane not in rest.symbols and multiple_of(rest, 4)


def uniform_in_fours(block: Block, v: Val) -> str | None:
    """The expression of a ``random_uniform`` value, after the lines that it needs; None where it must be made one by
    one."""
    at = v.args[2].at
    if block.group_start is None or v.dtype == torch.float64 or at is None or not _runs_in_fours(block, at):
        return None
    axis, names = block.axes[-1], block.names
    single = len(block.axes) == 1
    place = f"tl.arange(0, {axis.name.upper()}BLOCK // 4) * 4"
    own = {s: names.rename(s, f"{names.var(s)}q") for s in axis.vars}
    if not block.grouped:
        block.grouped = True
        block.line(f"{axis.name}q = {block.group_start} + {place if single else f'({place})[None, :]'}")
        block.decode(f"{axis.name}q", axis.vars)
    position = f"({names.index(at)}).to(tl.int64)"
    for s, name in own.items():
        names.rename(s, name)
    seed, offset = names.val(v.args[0]), names.val(v.args[1])
    words = "qt_words" if single else "qt_words2"
    bits = ROWS[v.dtype].bits
    text = f"{words}({seed}, {offset} + ({position} >> 2))"
    return f"({text} >> {32 - bits}).to(tl.int32).to(tl.float32) * {2.0**-bits!r}"
