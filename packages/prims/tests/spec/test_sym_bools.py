"""Symbolic ints beside bools, which are the numbers 0 and 1 to arithmetic and comparisons."""

from __future__ import annotations

import operator

import pytest
import torch

from prims.spec import SymbolContext

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, min, max]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("hint", [1, 2, 3])
@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS], ids=lambda op: op.__name__)
def test_results_are_those_of_the_hint(op, hint, low, first, flag):
    for wrap in (lambda sym: sym, torch.SymInt):
        symbol = wrap(SymbolContext().new_symbol(hint, "n", min=low))
        given, known = ((flag, symbol), (flag, hint)) if first else ((symbol, flag), (hint, flag))
        if known[1] == 0 and op in (operator.floordiv, operator.mod):
            with pytest.raises(ZeroDivisionError):
                op(*given)
            continue
        convert = bool if op in COMPARISONS else int
        assert convert(op(*given)) == convert(op(*known))
