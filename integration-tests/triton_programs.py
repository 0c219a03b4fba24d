"""Programs compiled as for a GPU, their kernels run by Triton's interpreter (``TRITON_INTERPRET=1`` must be set).

Captured, traced and lowered as ever; only the code generator is told to write Triton although the values live on the
CPU. Results and gradients are judged against float64 relative to eager.
"""

from __future__ import annotations

import contextlib
import copy
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from judge import assert_as_good, to_float64
from zoo import build, tensors

import aot_autograd
import compile_api
import inductor_gen
from prims.lower import lower
from prims.options import Options

KERNELS: list[str] = []


@compile_api.supports_dynamic_shapes
def backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """As the ``"inductor"`` backend, without its falling back, and with Triton kernels on the CPU."""
    options = Options(strict=True, verify="every_pass")

    def generate(env: Any, report: Any = None) -> Any:
        lowered = lower(env, claims=inductor_gen.claims("cpu"), options=options)
        compiled = inductor_gen.compile_graph(lowered, options=options, triton=True)
        assert all("tl." in kernel.source for kernel in compiled.kernels)
        KERNELS.extend(kernel.name for kernel in compiled.kernels)
        return compiled

    return aot_autograd.aot_function(
        gm, example_inputs, fw_compiler=generate, bw_compiler=generate,
        partition_fn=aot_autograd.min_cut_partition, options=options,
    )  # fmt: skip


def compiled(function: Any, **kw: Any) -> Any:
    return compile_api.compile(function, backend=backend, fullgraph=True, options={"strict": True}, **kw)


def function(name: str, fn: Callable[..., Any], *calls: tuple[torch.Tensor, ...], **kw: Any) -> None:
    """Forward and gradients of a function for several calls."""
    call = compiled(fn, **kw)
    for args in calls:
        results = []
        for run, inputs in ((call, args), (fn, args), (fn, to_float64(args))):
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
            outs = tensors(run(*leaves))
            floating = [x for x in outs if x.requires_grad]
            grads = torch.autograd.grad(floating, [x for x in leaves if x.requires_grad], floating) if floating else ()
            results.append([*(x.detach() for x in outs), *grads])
        assert_as_good(*results)
    print("ok", name, flush=True)


def model(name: str, dtype: torch.dtype = torch.float32, training: bool = True, **settings: Any) -> None:
    """Outputs, and with ``training`` the parameters' gradients, of a small case of the zoo."""
    case = build(name, small=True, **settings)
    case.model.train(training).to(dtype)
    case.args = tuple(x.to(dtype) if x.is_floating_point() else x for x in case.args)
    eager, exact = copy.deepcopy(case.model), to_float64(case.model)
    results = []
    with contextlib.nullcontext() if training else torch.no_grad():
        for run, net, convert in (
            (compiled(case.model), case.model, lambda x: x), (eager, eager, lambda x: x), (exact, exact, to_float64),
        ):  # fmt: skip
            outs = tensors(run(*convert(case.args), **convert(case.kwargs)))
            grads = []
            if training:
                outs[0].float().square().mean().backward()
                grads = [p.grad for p in net.parameters() if p.grad is not None]
            results.append([*(x.detach() for x in outs), *grads])
    assert_as_good(*results)
    print("ok", name, dtype, "training" if training else "inference", flush=True)


def rotary(q: torch.Tensor, k: torch.Tensor, angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys turned by angles, as language models do, and each key repeated for two queries."""
    turned = [x * angle.cos() + torch.cat((-x[..., 4:], x[..., :4]), -1) * angle.sin() for x in (q, k)]
    return turned[0], turned[1].repeat_interleave(2, 1)


def joined(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """States of a recurrence, stacked and side by side: kernels write their parts of the results."""
    states = [torch.tanh(x @ w)]
    for _ in range(3):
        states.append(torch.tanh(states[-1] @ w))
    wide = torch.cat([states[0], states[1], torch.softmax(states[2], 1)], 1)
    return torch.stack(states), wide, states[-1].sum()


def patches(x: torch.Tensor) -> torch.Tensor:
    """Images cut into patches, normalised, and put together again."""
    b, c, h, w = x.shape
    y = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    y = nn.functional.layer_norm(y, (16 * c,)).view(b, h // 4, w // 4, 4, 4, c)
    return y.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Windows of shifted images, and back."""
    b, h, w, c = x.shape
    y = x.roll((-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    y = nn.functional.gelu(y).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return y.roll((2, 2), (1, 2)) + x


def main() -> None:
    torch.manual_seed(0)
    index = torch.randint(0, 20, (7,))
    target = torch.randint(0, 33, (5,))
    function("pointwise", lambda x, y: (x.sin() * y + 2, (x > y).int()), (torch.randn(3, 17), torch.randn(3, 17)))
    function("sum of a constant", lambda x: x.new_full((2,), 2.5).sum() * x, (torch.randn(3),))
    function(
        "softmax", lambda x: (x * 2).softmax(-1), (torch.randn(5, 33),), (torch.randn(4, 70),), (torch.randn(4, 9),)
    )
    function("layer_norm", lambda x: nn.functional.layer_norm(x, (33,)).tanh(), (torch.randn(6, 33),))
    function("cross_entropy", lambda x: nn.functional.cross_entropy(x, target), (torch.randn(5, 33),))
    function("embedding", lambda t: t[index].sum(0) * t.index_select(0, index), (torch.randn(20, 6),))
    function("dynamic", lambda x: (x.softmax(-1), x.sum(0)), (torch.randn(4, 6),), (torch.randn(9, 33),), dynamic=True)
    function("rotary", rotary, (torch.randn(2, 2, 6, 8), torch.randn(2, 1, 6, 8), torch.randn(6, 8)))
    function("parts", joined, (torch.randn(8, 8), torch.randn(8, 8)))
    sizes = ((1, 8, 8), (2, 12, 8), (2, 16, 12))
    for dynamic in (False, None):
        kind = "of any size" if dynamic is None else "of one size"
        images = sizes if dynamic is None else sizes[:1]
        function(f"patches {kind}", patches, *[(torch.randn(b, 3, h, w),) for b, h, w in images], dynamic=dynamic)
        function(f"windows {kind}", shifted, *[(torch.randn(b, h, w, 4),) for b, h, w in images], dynamic=dynamic)
    model("transformer", length=16)
    model("transformer", torch.bfloat16, length=16)
    model("convnet", side=16)
    model("convnet", torch.float16, training=False, side=16)
    assert len(KERNELS) > 40, len(KERNELS)
    print(len(KERNELS), "kernels", flush=True)


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s")
