"""Attention masks about which something is known before the attention runs.

A mask built inside the region of constants alone is known when the graph is compiled. One that allows everything is
left out, and one that hides exactly what comes later becomes the kernel's own causal mode. What it hides follows from
how it is made, whatever its sizes (``maskproof``); where it does not, and all sizes are numbers, the mask is evaluated.

A mask that depends on inputs, on the padding of a batch say, is evaluated for the likely contents of what it depends
on: nothing padded. Where that gives such a mask, a graph compiled for it serves all calls in which a small tensor has
those contents (``extern.questions``), and another graph the rest. The small tensor is an input, or truth values on the
way from the inputs to the mask that everything passes through: then any number that is true will do.

What the operator computes stays the same; the kernels that would have made the mask go away with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import torch

from inductor_gen.extern.attention import BACKWARD, FORWARD, spare_mask_of, without_mask
from inductor_gen.extern.questions import Condition, Question, Slot, pattern_of
from inductor_gen.loops.graph import Graph, Node, reached
from inductor_gen.loops.index import Hint, size
from inductor_gen.rewrite.maskproof import Form, Same, Split, Unknown, described, diagonal, has_both, hides
from inductor_gen.rewrite.row import Context, Editor
from prims.dtypes import HALVES
from prims.handlers.base import map_values
from prims.ir import Envelope
from prims.ops import PrimOp
from prims.records import record

__all__ = ["MaskPlan", "has_masks", "known_mask", "plan_masks", "settle"]

#: Elements of the largest mask that is evaluated, by device type.
_LARGEST = {"cuda": 1 << 28, "cpu": 1 << 24}
#: Elements and operations that finding out what a mask depends on may take, in every call.
_ASKED, _STEPS = 1 << 22, 8
#: Columns of a mask on the CPU from which it is worth compiling a graph for what is usual. For 2 x 8 heads of 2048 x 64
#: on two cores the kernel takes 67 ms with the causal flag, 122 with such a mask, but for 512 as much with either.
LONG = 1024
#: Kinds of nodes that the primitives' references compute, and of inputs that a mask may depend on. Parameters change a
#: mask to anything, and so do intermediate results of operators.
_KINDS = frozenset({"create", "pointwise", "view", "reduce", "scan"})
_INPUTS = frozenset({"input", "buffer"})
#: What PyTorch puts for "hidden" where it makes a mask of truth values additive for cuDNN, instead of minus infinity.
_CUDNN_HIDDEN = -65536.0


def _lowest(dtype: torch.dtype) -> float:
    """What, added to a score, leaves nothing beside the diagonal's."""
    return max(torch.finfo(dtype).min, -1e30)


@record
class MaskPlan:
    """Verdicts by the attention operator's place in the graph: ``"free"`` or ``"causal"``.

    Attributes:
        constant: those that hold in every call.
        assumed: those that hold where the answer to ``question`` is yes.
    """

    constant: Mapping[int, str] = field(default_factory=dict)
    assumed: Mapping[int, str] = field(default_factory=dict)
    question: Question | None = None


def has_masks(env: Envelope) -> bool:
    """Is there an attention operator in the graph at all? Looking closer takes time."""
    names = {name.split(".")[1] for name in (*FORWARD, *BACKWARD)}
    return any(getattr(getattr(n.target, "_schema", None), "name", "")[6:] in names for n in env.graph.nodes)


def known_mask(node: Node, c: Context) -> str | None:
    """The verdict about an attention operator's mask."""
    return c.masks.get(node.id)


def settle(p: Editor, node: Node, verdict: str) -> None:
    """Leave out the mask, or turn it into the causal flag."""
    at = FORWARD.get(node.op) or BACKWARD[node.op]
    kwargs = dict(node.kwargs)
    p.change(node, without_mask(at, verdict, node.args, kwargs), kwargs)
    node.unmasked = verdict


def plan_masks(graph: Graph, env: Envelope, hint: Hint) -> MaskPlan:
    """What is known about the masks of a graph's attention operators; ``hint`` gives a likely number for a size.

    A backward graph asks nothing: it does as its forward did (``inductor_gen.extern.attention``).
    """
    context = env.symbols.context
    settled = lambda e: e if context is None else size(context.make(e))
    equal = lambda a, b: a is b or settled(a) is settled(b)
    kinds = {node: desc.kind for node, desc in zip(graph.inputs, env.inputs, strict=True)}
    asks = not {"saved", "tangent"} & set(kinds.values())
    allowed = {node for node, kind in kinds.items() if kind in _INPUTS and asks}
    constant: dict[int, str] = {}
    assumed: dict[int, str] = {}
    conditions: dict[tuple[Node, str], None] = {}
    found: dict[Node, tuple[str, dict[Node, str]] | None] = {}
    masks = [(node, mask) for node in graph.nodes if (mask := spare_mask_of(node)) is not None]
    for node, mask in masks:
        if mask not in found:
            on_cpu = mask.device == torch.device("cpu")
            asking = set() if on_cpu and hint(mask.shape[-1]) < LONG else allowed
            found[mask] = _verdict(mask, asking, hint, equal)
        known = found[mask]
        if known is None:
            continue
        verdict, needed = known
        if needed:
            assumed[node.id] = verdict
            conditions.update(dict.fromkeys(needed.items()))
        else:
            constant[node.id] = verdict
    if not assumed:
        return MaskPlan(constant)
    places = {node: k for k, node in enumerate(graph.inputs)}
    device = next(mask.device for node, mask in masks if node.id in assumed)
    assert device is not None
    question = Question(tuple(_condition(node, pattern, places) for node, pattern in conditions), device)
    return MaskPlan(constant, assumed, question)


# ---- verdicts -------------------------------------------------------------------------------------------


def _verdict(
    mask: Node, allowed: set[Node], hint: Hint, equal: Callable[[Any, Any], bool]
) -> tuple[str, dict[Node, str]] | None:
    """``"free"`` for a mask that hides nothing, ``"causal"`` for one that hides exactly what comes later, and what has
    to hold for that: nodes and the patterns of their contents. None where neither can be expected."""
    try:
        cone = _cone(mask, allowed, hint)
    except Unknown:
        return None
    constant = all(map(_is_constant, cone))
    inputs = [x for x in cone if x.kind == "input"]
    for known in _assumptions(mask, cone, inputs, hint) if inputs else ({},):
        kind = _proved(mask, known, equal)
        if kind is None and constant:
            kind = _kind_if(cone, known)
        if kind in ("free", "causal"):
            return kind, known
    return None


def _cone(mask: Node, allowed: set[Node], hint: Hint) -> list[Node]:
    """All that a mask is computed of, in the graph's order: primitives and allowed inputs only."""
    cone = reached([mask], lambda x: x.ins if _is_known(x, allowed, hint) else ())
    return sorted(cone, key=lambda x: x.id)


def _is_known(x: Node, allowed: set[Node], hint: Hint) -> bool:
    """Is it an allowed input, or a primitive that can be evaluated?

    Raises:
        Unknown: it is neither.
    """
    computed = x.kind in _KINDS and not x.op.startswith("random_") and isinstance(x.target, PrimOp)
    here = x.device is not None and (x.device.type != "cuda" or torch.cuda.is_available())
    usable = here and (x in allowed if x.kind == "input" else computed)
    if not usable or _elements(x, hint) > _LARGEST.get(x.device.type, 0):  # type: ignore[union-attr]
        raise Unknown
    return True


def _elements(x: Node, hint: Hint) -> int:
    return math.prod(map(hint, x.shape))


def _is_constant(x: Node) -> bool:
    """Are there numbers for its sizes and all other arguments?"""
    return all(s.is_const for s in x.shape) and _has_numbers(x.args)


def _has_numbers(args: Any) -> bool:
    if isinstance(args, (tuple, list)):
        return all(map(_has_numbers, args))
    return args is None or isinstance(args, (Node, bool, int, float, str, torch.dtype, torch.device))


def _assumptions(mask: Node, cone: list[Node], inputs: list[Node], hint: Hint) -> Iterable[dict[Node, str]]:
    """What might be usual, the cheapest to find out first."""
    inside = set(cone)
    varying = set(reached(inputs, lambda x: inside.intersection(x.users)))
    cuts = [x for x in cone if x in varying and x.dtype == torch.bool and not _reaches(mask, set(inputs), x)]
    for cut in [x for x in cuts if _affordable(x, hint)][:3]:
        yield from ({cut: pattern} for pattern in _patterns(cut))
    if len(inputs) > 2 or not all(_affordable(x, hint) for x in inputs):
        return
    for patterns in itertools.product(*(_patterns(x) for x in inputs)):
        if not (len(inputs) == 1 and inputs[0] in cuts):
            yield dict(zip(inputs, patterns, strict=True))


def _reaches(mask: Node, inputs: set[Node], cut: Node) -> bool:
    """Can the mask depend on an input otherwise than through ``cut``?"""
    return not (inputs - {cut}).isdisjoint(reached([mask], lambda x: () if x is cut else x.ins))


def _affordable(x: Node, hint: Hint) -> bool:
    """Can it be computed in every call, outside of the graph?"""
    seen = reached([x])
    small = len(seen) <= _STEPS and sum(_elements(n, hint) for n in seen) <= _ASKED
    return small and all(n.kind == "input" or _has_numbers(n.args) for n in seen)


def _patterns(x: Node) -> tuple[str, ...]:
    assert x.dtype is not None
    square = len(x.shape) >= 2 and x.shape[-1] is x.shape[-2] and not (x.shape[-1].is_const and x.shape[-1].value <= 1)
    more = ("triangle",) if square else ()
    if x.dtype == torch.bool:
        return ("ones", "zeros", *more)
    return ("zeros", "ones", *more) if x.dtype.is_floating_point else ("ones",)


def _filled(args: Any, values: Mapping[Node, Any]) -> Any:
    return map_values(lambda a: values[a] if isinstance(a, Node) else a, args)


def _kind_if(cone: list[Node], known: Mapping[Node, str]) -> str | None:
    """The verdict about the last of the nodes, each evaluated by the primitives' references."""
    values: dict[Node, torch.Tensor] = {}
    with torch.no_grad():
        for x in cone:
            if x in known:
                shape = [s.value for s in x.shape]
                values[x] = pattern_of(known[x], shape, x.dtype, x.device)  # type: ignore[arg-type]
            elif x.kind != "input" and all(n in values for n in x.ins):  # else a pattern stands for what needs it
                values[x] = x.target(*_filled(x.args, values))  # type: ignore[operator]
    return _kind_of(values[cone[-1]])


def _proved(mask: Node, known: Mapping[Node, str], equal: Callable[[Any, Any], bool]) -> str | None:
    """The verdict about a mask of any size, ``"neither"`` too; None where nothing can be said."""
    form = described(mask, {node: _form(node, pattern) for node, pattern in known.items()})
    if form is None or mask.dtype is None or not mask.dtype.is_floating_point:
        return None
    lowest, halves = _lowest(mask.dtype), mask.dtype in HALVES
    kind = hides(form, mask.shape, lambda v: v <= lowest or (halves and v == _CUDNN_HIDDEN))
    if kind is not None and (kind == "free" or equal(*mask.shape[-2:])):
        return kind
    return None if isinstance(form, Split) and not has_both(form, mask.shape) else "neither"


def _form(x: Node, pattern: str) -> Form:
    true = x.dtype == torch.bool
    if pattern == "triangle":
        return diagonal(x.shape, *((True, False) if true else (0, -math.inf)))
    return Same(pattern == "ones" if true else int(pattern == "ones"))


def _kind_of(mask: torch.Tensor) -> str | None:
    """``"free"`` for a mask of zeros, ``"causal"`` for one that hides just what comes later, else None."""
    if not mask.dtype.is_floating_point:
        return None
    if not bool(mask.any()):
        return "free"
    rows, columns = mask.shape[-2:]
    if rows != columns:
        return None
    later = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).triu(1)
    hidden = mask <= _lowest(mask.dtype)
    if mask.dtype in HALVES:
        hidden |= mask == _CUDNN_HIDDEN
    causal = torch.where(later, hidden, mask == 0)
    return "causal" if bool(causal.all()) else None


# ---- questions ------------------------------------------------------------------------------------------


def _condition(node: Node, pattern: str, places: Mapping[Node, int]) -> Condition:
    """How the node is computed when the graph runs, outside of it."""
    cone = _cone(node, set(places), lambda size: 0)
    inputs = [x for x in cone if x.kind == "input"]
    slots = {x: Slot(k) for k, x in enumerate([*inputs, *(x for x in cone if x.kind != "input")])}
    steps = tuple((x.target.name, _filled(x.args, slots)) for x in slots if x.kind != "input")
    return Condition(tuple(places[x] for x in inputs), steps, pattern)
