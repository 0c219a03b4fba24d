"""Calls of decomposable overloads as eager makes them, and their comparison with the decomposition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import prims.decomp as decomp
from prims.errors import Unsupported, VerifierError
from prims.handlers import GraphHandler, MetaHandler, TorchHandler
from prims.spec import TensorSpec, infer

EAGER_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)
Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


def _copied(tree: Any) -> Any:
    """Copies of all tensors; one tensor in two places is one copy."""
    copies: dict[int, torch.Tensor] = {}

    def copy(x: Any) -> Any:
        return copies.setdefault(id(x), x.detach().clone()) if isinstance(x, torch.Tensor) else x

    return tree_map(copy, tree)


class Recorder(TorchDispatchMode):
    """Keeps arguments and results of every call that has a decomposition."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = decomp.get(func) is not None and not func._schema.is_mutable
        before = _copied((args, kwargs)) if known else None
        out = func(*args, **kwargs)
        if known and before is not None:
            self.calls.append((func, before[0], before[1], _copied(out)))
        return out


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(trees)[0] if isinstance(x, torch.Tensor)]


def plain(call: Call) -> bool:
    """Are all tensors strided and real?"""
    return all(x.layout == torch.strided and not x.is_complex() and not x.is_quantized for x in tensors_in(*call[1:]))


def record(op: Any, sample: Any, gradients: bool) -> Iterator[Call]:
    """The calls that one sample input of an OpInfo makes, forward and (if asked) backward."""
    with Recorder() as recorder:
        try:
            out = op.op(sample.input, *sample.args, **sample.kwargs)
            if gradients:
                leaves = [x for x in tensors_in(sample.input, sample.args, sample.kwargs) if x.requires_grad]
                results = [x for x in tensors_in(out) if x.requires_grad and not x.is_complex()]
                if leaves and results:
                    seeds = [torch.randn_like(r) for r in results]
                    torch.autograd.grad(results, leaves, seeds, allow_unused=True)
        except EAGER_ERRORS:
            pass  # eager itself rejects some samples; what it ran before that still counts
    yield from filter(plain, recorder.calls)


def specs(tree: Any, device: str = "cpu") -> Any:
    """Metadata in place of tensors, on a device; one tensor in two places is one spec."""
    made: dict[int, TensorSpec] = {}
    place = torch.device(device)

    def one(x: Any) -> Any:
        if isinstance(x, torch.device):
            return place
        if not isinstance(x, torch.Tensor):
            return x
        return made.setdefault(id(x), TensorSpec(tuple(x.shape), x.dtype, place, tuple(x.stride())))

    return tree_map(one, tree)


def check_metadata(call: Call, device: str) -> str | None:
    """Where `prims.spec.infer` and the decomposition into a graph disagree about a call on a device."""
    func, *rest = call[:3]
    args, kwargs = specs(tuple(rest), device)
    fn = decomp.get(func)
    assert fn is not None
    graph = GraphHandler(torch.fx.Graph())
    values: dict[int, Any] = {}

    def value(x: Any) -> Any:
        if not isinstance(x, TensorSpec):
            return x
        if id(x) not in values:
            values[id(x)] = graph.placeholder(f"x{len(values)}", x)
        return values[id(x)]

    try:
        stated = listed(infer(func, args, kwargs))
        out = fn(graph, *(tree_map(value, a) for a in args), **{k: tree_map(value, v) for k, v in kwargs.items()})
        derived = [x if x is None else x.spec for x in listed(out)]
    except (Unsupported, VerifierError):
        return None
    for i, (a, b) in enumerate(zip(stated, derived, strict=True)):
        if (a is None) != (b is None):
            return f"result {i}: infer says {a}, the decomposition {b}"
        if a is not None and (tuple(a.shape), a.dtype, a.device) != (tuple(b.shape), b.dtype, b.device):
            return f"result {i}: infer says {a}, the decomposition {b}"
    return None


def _in_float64(call: Call) -> list[torch.Tensor] | None:
    """The same call in float64, or None where eager cannot make it."""
    func, args, kwargs, _ = call

    def wide(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.double() if x.is_floating_point() else x
        return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x

    try:
        out = func(*(tree_map(wide, a) for a in args), **{k: tree_map(wide, v) for k, v in kwargs.items()})
    except EAGER_ERRORS:
        return None
    return listed(out)


def listed(out: Any) -> list[Any]:
    """All results, those of lists of lists included."""
    return [x for part in out for x in listed(part)] if isinstance(out, (tuple, list)) else [out]


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, torch.zeros_like(a), (a - b).abs())


# Differences of nearly equal products: the error is in proportion to the inputs, not to the result.
CANCELLING = frozenset({"aten._softmax_backward_data.default", "aten.tanh_backward.default"})


def compare_floats(got: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, scale: float = 0.0) -> str | None:
    """Is `got` as close to the float64 reference as eager is, up to a few roundings?

    Per element: four times eager's error there, plus twice eager's largest error, plus two roundings of the
    reference and two of its largest element (sums lose that much to their order). In float64 the reference is
    eager itself, so that both errors count: sixteen roundings. `scale` stands for a larger largest element.
    """
    ours, theirs = _distance(got, reference), _distance(eager, reference)
    eps = torch.finfo(eager.dtype).eps
    size = reference.double().abs().nan_to_num(0, 0, 0)
    largest = max(scale, size.max().item() if size.numel() else 0.0)
    finite = theirs[theirs.isfinite()]
    worst = finite.max().item() if finite.numel() else 0.0
    roundings = 16 if eager.dtype == torch.float64 else 2
    allowed = 4 * theirs.nan_to_num(0, 0, 0) + 2 * worst + 2 * eps * size + roundings * eps * largest + 1e-30
    agrees = (got == eager) | (got.isnan() & eager.isnan())
    bad = ~((ours <= allowed) | agrees)
    if not bad.any():
        return None
    at = int(bad.flatten().nonzero()[0])
    values = ", ".join(
        f"{name} {x.flatten()[at].item()!r}" for name, x in (("got", got), ("eager", eager), ("float64", reference))
    )
    return f"{int(bad.sum())} of {bad.numel()} elements: {values}"


def _scale(call: Call) -> float:
    if str(call[0]) not in CANCELLING:
        return 0.0
    sizes = [x.abs().nan_to_num(0, 0, 0).max().item() for x in tensors_in(call[1]) if x.numel()]
    return float(max(sizes, default=0.0))


def check(call: Call) -> str | None:
    """What is wrong with the decomposition of a call: None for nothing, ``unsupported: ...`` where it says so."""
    func, args, kwargs, eager = call
    fn = decomp.get(func)
    assert fn is not None
    try:
        got = listed(fn(TorchHandler(), *args, **kwargs))
    except Unsupported as error:
        return f"unsupported: {error.reason}"
    abstract_args, abstract_kwargs = specs((args, kwargs))
    meta = listed(fn(MetaHandler(), *abstract_args, **abstract_kwargs))
    expected = listed(eager)
    if not len(got) == len(expected) == len(meta):
        return f"{len(got)} results and {len(meta)} specs, eager has {len(expected)}"
    reference: list[Any] | None = None
    for i, (ours, theirs, spec) in enumerate(zip(got, expected, meta, strict=True)):
        if theirs is None:
            continue
        for what, a, b in (
            ("shape", tuple(ours.shape), tuple(theirs.shape)),
            ("dtype", ours.dtype, theirs.dtype),
            ("abstract shape", tuple(spec.shape), tuple(theirs.shape)),
            ("abstract dtype", spec.dtype, theirs.dtype),
        ):
            if a != b:
                return f"result {i}: {what} {a}, eager has {b}"
        if "empty" in str(func):
            continue
        if not theirs.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                return f"result {i}: {ours.flatten()[:8].tolist()}, eager has {theirs.flatten()[:8].tolist()}"
            continue
        if reference is None:
            reference = _in_float64(call) or expected
        exact = reference[i] if reference[i].shape == theirs.shape else theirs
        wrong = compare_floats(ours, theirs, exact, _scale(call))
        if wrong:
            return f"result {i}: {wrong}"
    return None
