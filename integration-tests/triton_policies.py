"""``batch_invariant`` in kernels for a GPU, run by Triton's interpreter (``TRITON_INTERPRET=1`` must be set).

Of sums the bits are compared: a row alone, and among others. Of products only the values: the interpreter multiplies
tiles by NumPy, whose product of a row depends on its place in the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import aot_autograd
import compile_api
import inductor_gen
from prims.lower import lower
from prims.options import Options

#: More rows than a program of a sum takes; each row of a product is a program, of which the interpreter is slow.
ROWS, MULTIPLIED = 33, 9
WEIGHT, BIAS = torch.randn(40, 50), torch.randn(40)
OPTIONS = Options(batch_invariant=True, strict=True, verify="every_pass")

#: Whether it multiplies, and the shape of a row.
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool, tuple[int, ...]]] = {
    "a softmax": (lambda x: torch.softmax(x * 2, -1), False, (50,)),
    "a norm": (lambda x: F.gelu(F.layer_norm(x, (50,))), False, (50,)),
    "a long sum": (lambda x: (x * x).sum(1), False, (9000,)),
    "sums along columns": (lambda x: x.transpose(1, 2).sum(2) + x.var((1, 2))[:, None], False, (7, 21)),
    "a mean over rows": (lambda x: x.mean(1) * 2, False, (30, 12)),
    "the batch in the second dimension": (lambda x: x.transpose(0, 1).contiguous().sum((0, 2)), False, (5, 6)),
    "a product and a softmax": (lambda x: torch.softmax(F.linear(x, WEIGHT, BIAS), -1), True, (50,)),
    "products of rows": (lambda x: torch.softmax(x @ x.transpose(1, 2) * 0.2, -1) @ x, True, (9, 20)),
}


@compile_api.supports_dynamic_shapes
def backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """As the ``"inductor"`` backend, without its falling back, and with Triton kernels on the CPU."""

    def generate(env: Any, report: Any = None) -> Any:
        lowered = lower(env, claims=inductor_gen.claims("cpu", OPTIONS), options=OPTIONS)
        compiled = inductor_gen.compile_graph(lowered, options=OPTIONS, triton=True)
        assert compiled.kernels and not compiled.externs
        return compiled

    return aot_autograd.aot_function(
        gm, example_inputs, fw_compiler=generate, bw_compiler=generate, options=OPTIONS,
        partition_fn=aot_autograd.min_cut_partition,
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    for name, (program, multiplies, shape) in PROGRAMS.items():
        for dynamic in (False, True):
            settings = {"backend": backend, "fullgraph": True, "dynamic": dynamic, "options": {"strict": True}}
            made = compile_api.compile(program, **settings)
            size = MULTIPLIED if multiplies else ROWS
            batch = torch.randn(size, *shape)
            whole = made(batch)
            torch.testing.assert_close(whole, program(batch), rtol=1e-4, atol=1e-4)
            for rows in (1, 7):
                for at in (0, size - rows):
                    part, wanted = made(batch[at : at + rows].clone()), whole[at : at + rows]
                    if multiplies:
                        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-5)
                    else:
                        assert torch.equal(part, wanted), (name, dynamic, rows, at)
            print("ok", name, dynamic)


if __name__ == "__main__":
    main()
