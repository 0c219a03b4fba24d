"""The reference level: run a pass's input and output on sampled inputs and compare.

Slow and literal: both envelopes run operator by operator (:meth:`Envelope.module`). Meant for finding which pass
miscompiles, together with fuel.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from prims.errors import VerifierError
from prims.generators import may_draw
from prims.ir.constraints import CONSTRAINTS
from prims.ir.envelope import Envelope
from prims.ir.symbols import expr_of
from prims.spec import TensorSpec

if TYPE_CHECKING:
    from prims.report import Report

__all__ = ["compare", "drawn_devices", "draws", "sample_inputs"]

#: Largest difference allowed, relative to the largest reference value of the output: what reordered sums may cost.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def sample_inputs(env: Envelope, seed: int = 0) -> list[Any]:
    """Random inputs of the descriptors' metadata, with symbolic sizes at their hints.

    Integers are 0 or 1, so that they are valid indices almost everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_sample(desc.spec, generator) for desc in env.inputs]


def _hint(size: Any) -> Any:
    expr = expr_of(size)
    return size if expr is None else size.hint


def _sample(spec: Any, generator: torch.Generator) -> Any:
    if not hasattr(spec, "strides"):
        return _hint(spec)
    shape = [int(_hint(size)) for size in spec.shape]
    strides = [int(_hint(stride)) for stride in spec.strides]
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(spec.dtype)
    else:
        values = torch.randint(0, 2, shape, generator=generator).to(spec.dtype)
    return torch.empty_strided(shape, strides, dtype=spec.dtype, device=spec.device).copy_(values)


def draws(node: torch.fx.Node) -> bool:
    """Does the operator advance a random generator? The tag says so of attention that drops nothing out, too."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags and may_draw(node.target, node.args, node.kwargs)


def drawn_devices(env: Envelope) -> frozenset[torch.device]:
    """The devices whose generators the graph's operators advance; seeds that are inputs are not drawn by them."""
    specs = [node.meta.get("spec") for node in env.graph.nodes if draws(node)]
    flat = [part for spec in specs for part in (spec if isinstance(spec, (tuple, list)) else (spec,))]
    return frozenset(spec.device for spec in flat if isinstance(spec, TensorSpec))


def _is_seed(node: Any) -> bool:
    """An integer result of an operator that may draw, such as attention's seed: undefined where it draws nothing."""
    if not isinstance(node, torch.fx.Node) or node.target is not operator.getitem:
        return False
    spec = node.meta.get("spec")
    made_by = node.args[0].target  # type: ignore[union-attr]
    is_whole = isinstance(getattr(spec, "dtype", None), torch.dtype) and not spec.dtype.is_floating_point
    return is_whole and torch.Tag.nondeterministic_seeded in getattr(made_by, "tags", ())


def compare(before: Envelope, after: Envelope, name: str, report: Report | None = None) -> None:
    """Check that the pass ``name`` changed no output.

    Graphs that draw from PyTorch's generator are not compared, which ``report`` is told: the same seed gives other
    numbers in another form.

    Raises:
        VerifierError: ``ENV-C14``; names the output and the difference.
    """
    random = sorted({str(node.target) for env in (before, after) for node in env.graph.nodes if draws(node)})
    if random:
        if report is not None:
            why = f"{', '.join(random)} draws random numbers, which come out differently in another form"
            report.fallback("verify", f"pass {name!r} was not compared with the reference: {why}", eager=False)
        return
    inputs = sample_inputs(before)
    with torch.no_grad():
        expected = before.module()(*inputs)
        actual = after.module()(*inputs)
    if len(expected) != len(actual):
        _fail(f"{len(expected)} outputs became {len(actual)}", None, name)
    for index, (node, x, y) in enumerate(zip(before.results(), actual, expected, strict=True)):
        if _is_seed(node):
            continue
        problem = _difference(x, y)
        if problem is not None:
            _fail(problem, f"output {index}", name)


def _fail(message: str, node: str | None, name: str) -> None:
    raise VerifierError("ENV-C14", f"{message}. {CONSTRAINTS['ENV-C14']}", node=node, after=name)


def _difference(actual: Any, expected: Any) -> str | None:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return None if actual == expected else f"{actual!r}, was {expected!r}"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype}{tuple(actual.shape)}, was {expected.dtype}{tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if torch.equal(actual, expected) else "integer or boolean values differ"
    x, y = actual.double(), expected.double()
    finite = torch.isfinite(y)
    # Equality holds for infinities of one sign; NaNs must stand in the same places.
    same_nans = torch.equal(torch.isnan(x), torch.isnan(y))
    if not same_nans or not torch.equal(x[~finite].nan_to_num(), y[~finite].nan_to_num()):
        return "infinities or NaNs differ"
    if not finite.any():
        return None
    error = (x[finite] - y[finite]).abs().max().item()
    allowed = _TOLERANCE[expected.dtype] * max(1.0, y[finite].abs().max().item())
    return None if error <= allowed else f"a difference of {error:.3g}, allowed is {allowed:.3g}"
