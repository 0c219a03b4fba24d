"""The largest and smallest of computed values: gradients are shared out among those that equal it, of which there is one.

The value and what it is compared with must be one number, however kernels are cut: made twice, by a loop that works with
vectors and by one that does not, it differs in its last place, none is the largest, and the gradient is divided by none.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

#: What is computed of halves of a product's rows, so that kernels read it through a view.
VALUES = {
    "concatenated": lambda a, b: torch.cat([b, a * b.sigmoid()]),
    "concatenated columns": lambda a, b: torch.cat([a * b.tanh(), b.exp() * a], 1),
    "flipped": lambda a, b: (a * b.sigmoid() + a).flip(0),
    "sliced": lambda a, b: (a * b.sigmoid() + a)[:, 1:],
    "padded": lambda a, b: F.pad(a * b.sigmoid() + 0.1 * a, (1, 1)),
    "stacked": lambda a, b: torch.stack([a * b.sigmoid(), b * a.sigmoid()]),
    "as it is": lambda a, b: a * b.sigmoid() + b.tanh(),
}
SELECTIONS = {
    "amax": lambda x: x.amax(),
    "amin": lambda x: x.amin(),
    "amax of rows": lambda x: x.amax(-1).sum(),
    "amin of columns": lambda x: x.amin(-2).sum(),
    "max": lambda x: x.max(),
    "aminmax": lambda x: sum(torch.aminmax(x)),
    "infinite norm": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "counted": lambda x: (x == x.amax()).sum() + x.amax(),
    "with itself": lambda x: (x.amax(-1, keepdim=True) - x).square().mean() + x.amax(),
}


@pytest.mark.parametrize(
    ("value", "select", "dynamic"),
    [(value, select, False) for value in VALUES for select in SELECTIONS] + [(value, "amax", True) for value in VALUES],
)
def test_gradients_of_the_selected(value, select, dynamic):
    def program(x, w):
        a, b = F.linear(x, w * 0.5).chunk(2)
        return SELECTIONS[select](VALUES[value](a, b))

    compiled = compile_api.compile(program, dynamic=dynamic)
    for rows, columns in ((2, 16), (6, 33), (40, 7)):
        torch.manual_seed(rows)
        x, w = torch.randn(rows, columns), torch.randn(columns, columns)
        found = []
        for call in (program, compiled):
            leaf = w.clone().requires_grad_()
            result = call(x, leaf)
            result.backward()
            found.append((result.detach(), leaf.grad))
        torch.testing.assert_close(*found, rtol=2e-4, atol=2e-5)
    assert compiled.report().kernels and not compiled.report().fallbacks
