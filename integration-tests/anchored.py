"""Gradients judged block by block, each block on eager's own inputs and gradients.

Rounding grows on its way through a deep network: in a ResNet in bfloat16 eager's gradients of the first layers are so far
from float64's that a gradient of zero is no further. So each block's result is replaced by what eager computed there, and the
gradient that comes back to it by eager's: a block's error is then its own, a few roundings, against which damage shows.
The network is still compiled as a whole; only what could be fused across two blocks is not.

In float16 a gradient can be too small for the type's precision, and then nobody can tell it from a damaged one: behind
ConvNeXt's layer scales of 1e-6 gradients have one or two bits, or none. That says nothing of a compiler. So what comes back
to each block is multiplied by a power of two of the block's own (as a loss scale is, by which float16 is trained), which
changes no digit of what has its full precision.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from judge import error, to_float64
from torch import nn
from zoo import tensors

#: A result's error may be this many times that of eager, at the worst element ...
LARGEST = 4.0
#: ... and this many times over all,
NORM = 2.0
#: plus this many roundings of its largest value, and of all values: where there are few, eager's error is small by luck.
ROUNDINGS = 4.0

#: The share of planted damage that a judge must see for its verdict to count.
LEAST_POWER = 0.95

Around = Callable[[], Any]


class Replace(torch.autograd.Function):
    """``value`` in the place of ``x``; the gradient of ``x`` is ``gradient``, and ``value``'s is what came back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, coming: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, coming, None


@dataclass
class Record:
    """What eager had at the end of a block: its result, and the gradient that came back to it."""

    value: torch.Tensor
    gradient: torch.Tensor


class Anchored(nn.Module):
    """A model whose blocks' results are replaced by records; gives the model's results and what the blocks computed."""

    def __init__(self, model: nn.Module, records: dict[str, Record], dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.seen: list[torch.Tensor] = []
        self.values = nn.ParameterDict()
        for name, record in records.items():
            key = name.replace(".", "_")
            self.values[key] = nn.Parameter(record.value.to(dtype or record.value.dtype))
            self.register_buffer("gradient_" + key, record.gradient.to(dtype or record.gradient.dtype), persistent=False)
            model.get_submodule(name).register_forward_hook(self._hook(key))

    def _hook(self, key: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, result: Any) -> Any:
            first = result if isinstance(result, torch.Tensor) else result[0]
            self.seen.append(first)
            replaced = Replace.apply(first, self.values[key], getattr(self, "gradient_" + key))
            return replaced if isinstance(result, torch.Tensor) else (replaced, *result[1:])

        return hook

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        self.seen = []
        return self.model(*args, **kwargs), self.seen


def blocks(model: nn.Module) -> list[str]:
    """The blocks of a model: members of sequences with several layers of their own, the smallest such."""
    found: list[str] = []

    def layers(module: nn.Module) -> int:
        return sum(1 for m in module.modules() if any(True for _ in m.parameters(recurse=False)))

    def visit(module: nn.Module, name: str) -> bool:
        inner = [visit(child, f"{name}.{key}" if name else key) for key, child in module.named_children()]
        if any(inner):
            return True
        parent = model.get_submodule(name.rpartition(".")[0])
        if name and isinstance(parent, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and layers(module) > 1:
            found.append(name)
            return True
        return False

    visit(model, "")
    return found


def loss_of(result: Any) -> torch.Tensor:
    """A loss that every result contributes to, with a gradient that is not constant; at least float32.

    It is large enough for float16's gradients, whose smallest numbers are 6e-8.
    """
    wide = [t if t.dtype == torch.float64 else t.float() for t in tensors(result) if t.requires_grad]
    return 1024 * sum((t.square().mean() for t in wide[1:]), wide[0].square().mean())


def recorded(
    model: nn.Module, names: list[str], args: Any, kwargs: Any, around: Around = contextlib.nullcontext
) -> dict[str, Record]:
    """Eager's records of the blocks that ran once and gave a gradient, from one step."""
    values: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    gradients: dict[str, torch.Tensor] = {}
    handles = []
    for name in names:

        def hook(module: nn.Module, given: Any, result: Any, name: str = name) -> None:
            first = result if isinstance(result, torch.Tensor) else result[0]
            values[name].append(first.detach().clone())
            if first.requires_grad:
                first.register_hook(lambda grad: gradients.update({name: grad.detach().clone()}))

        handles.append(model.get_submodule(name).register_forward_hook(hook))
    before = copy.deepcopy(list(model.buffers()))
    with around():
        loss = loss_of(model(*args, **kwargs))
    loss.backward()
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)
    model.zero_grad(set_to_none=True)
    return {
        name: Record(found[0], gradients[name]) for name, found in values.items() if len(found) == 1 and name in gradients
    }


#: The largest gradient of a block's parameters in float16, whose largest number is 65504: what other parameters than the
#: block's get of its scale, and what is between, may be this much larger.
HEADROOM = 2.0**4


def scaled(records: dict[str, Record], gradients: dict[str, torch.Tensor]) -> dict[str, Record]:
    """The records with gradients by which a block's own gradients are as large as float16 holds, with some headroom.

    Args:
        gradients: of the parameters, in float64, by the records as they are.
    """
    limit = torch.finfo(torch.float16).max / HEADROOM
    made = {}
    for name, record in records.items():
        own = [g for at, g in gradients.items() if at.startswith(name + ".")]
        largest = max(float(g.abs().max()) for g in (record.gradient, *own))
        power = math.floor(math.log2(limit / largest)) if largest > 0 else 0
        made[name] = Record(record.value, record.gradient * 2.0**power)
    return made


def step(call: Any, holder: Anchored, args: Any, kwargs: Any, around: Around) -> dict[str, torch.Tensor]:
    """Loss, blocks' results, all gradients and buffers of one step, by name."""
    holder.zero_grad(set_to_none=True)
    with around():
        result, seen = call(*args, **kwargs)
        value = loss_of(result)
    value.backward()
    found = {"the loss": value.detach()}
    found |= {f"the result of block {k}": t.detach() for k, t in enumerate(seen)}
    found |= {f"the gradient of {name}": p.grad for name, p in holder.named_parameters() if p.grad is not None}
    return found | {f"the buffer {name}": b.detach().clone() for name, b in holder.model.named_buffers()}


@dataclass
class Judgement:
    """What was found wrong, and which share of planted damage the judge sees."""

    wrong: list[str] = field(default_factory=list)
    planted: int = 0
    unseen: list[str] = field(default_factory=list)

    @property
    def power(self) -> float:
        """The share of damaged gradients that are seen."""
        return 1.0 - len(self.unseen) / max(self.planted, 1)


@contextlib.contextmanager
def squares_of_terms(holder: Anchored) -> Iterator[dict[str, torch.Tensor]]:
    """For the gradient of each bias that is added to every row or pixel: the sum of the squares of what it sums up."""
    found: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in holder.named_modules():
        if not isinstance(module, _ADDING) or module.bias is None:
            continue
        at = -1 if isinstance(module, (nn.Linear, nn.LayerNorm)) else 1

        def hook(module: nn.Module, args: Any, result: torch.Tensor, name: str = name, at: int = at) -> None:
            squares = lambda grad: grad.square().movedim(at, -1).flatten(0, -2).sum(0)
            key = f"the gradient of {name}.bias"
            if result.requires_grad:
                result.register_hook(lambda grad: found.update({key: found.get(key, 0) + squares(grad)}))

        hooks.append(module.register_forward_hook(hook))
    yield found
    for handle in hooks:
        handle.remove()


#: Layers whose bias is added to all of their results.
_ADDING = (nn.Linear, nn.LayerNorm, nn.modules.batchnorm._BatchNorm, nn.modules.conv._ConvNd)


def judge(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], eps: float = 0.0,
    squares: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> Judgement:  # fmt: skip
    """Compare a step with eager's and float64's, and with each gradient damaged.

    Args:
        eps: a rounding of the work.
        squares: of sums' terms, by the name of the sum (:func:`squares_of_terms`).
    """
    assert ours.keys() == theirs.keys() == exact.keys(), (ours.keys() ^ theirs.keys(), theirs.keys() ^ exact.keys())
    made = Judgement()
    for name, reference in exact.items():
        if not reference.is_floating_point():
            if not torch.equal(ours[name], theirs[name]):
                made.wrong.append(name)
            continue
        problem = not_as_good(ours[name], theirs[name], reference, eps)
        if problem is not None:
            made.wrong.append(f"{name}: {problem}")
        if not name.startswith("the gradient") or vanishes(theirs[name], reference):
            continue
        if name in squares and of_roundings(reference, squares[name], max(torch.finfo(theirs[name].dtype).eps, 8 * eps)):
            continue
        for kind, damaged in damages(theirs[name]):
            made.planted += 1
            if not_as_good(damaged, theirs[name], reference, eps) is None:
                made.unseen.append(f"{name}: {kind}")
    return made


def vanishes(theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    """Is a gradient zero but for roundings, as that of a bias which softmax or a normalisation takes away again?"""
    return float(exact.norm()) <= 0.1 * float((theirs.double() - exact).norm())


def of_roundings(exact: torch.Tensor, squares: torch.Tensor, eps: float) -> bool:
    """Is a sum no larger than what the rounding of its terms leaves of one that is zero? They are eager's own, rounded:
    the gradient of a bias that a batch norm behind the next layer takes away again, which eager's kernels have one way
    and float64 another."""
    return float(exact.norm()) <= 4 * eps * float(squares.sqrt().norm())


def damages(gradient: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Wrong gradients: none at all, a wrong factor, two blocks in each other's place."""
    yield "zero", torch.zeros_like(gradient)
    yield "a quarter too large", gradient * 1.25
    flat = gradient.reshape(-1)
    part = flat.numel() // 4
    if part and not torch.equal(flat[:part], flat[part : 2 * part]):
        yield "two blocks exchanged", torch.cat([flat[part : 2 * part], flat[:part], flat[2 * part :]]).view_as(gradient)


def not_as_good(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, eps: float = 0.0) -> str | None:
    """None if ``ours`` is about as close to float64 as eager's, at the worst element and over all."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {tuple(ours.shape)} instead of {theirs.dtype} {tuple(theirs.shape)}"
    eps = max(torch.finfo(ours.dtype).eps, eps)
    largest, norm = float(exact.abs().max()) if exact.numel() else 0.0, float(exact.norm())
    got, allowed = error(ours, exact), LARGEST * error(theirs, exact) + ROUNDINGS * eps * largest
    if not got <= allowed:
        return f"largest error {got:.3e}, allowed {allowed:.3e}"
    apart = [float((t.double() - exact).norm()) for t in (ours, theirs)]
    times = LARGEST if vanishes(theirs, exact) else NORM  # of roundings alone, where the exact value is zero
    allowed = times * apart[1] + ROUNDINGS * eps * norm
    return None if apart[0] <= allowed else f"error's norm {apart[0]:.3e}, allowed {allowed:.3e}"


def judged(
    model: nn.Module, compile_it: Callable[[nn.Module], Any], args: Any, kwargs: Any, *, steps: int = 1,
    around: Around = contextlib.nullcontext, working: torch.dtype | None = None,
) -> tuple[Judgement, Any]:  # fmt: skip
    """Judge training steps of a compiled model block by block; also gives the compiled callable.

    Args:
        steps: how many steps to take on the same inputs; the last one is judged (a replayed recording, say).
        around: entered around each forward pass (autocast).
        working: the dtype that products round to, where that is not the parameters'.
    """
    records = recorded(model, blocks(model), args, kwargs, around)
    assert records, "the model has no blocks"
    if any(record.gradient.dtype == torch.float16 for record in records.values()):
        exact = Anchored(to_float64(model), records, torch.float64)
        step(exact, exact, *to_float64((args, kwargs)), contextlib.nullcontext)
        found = {name: p.grad for name, p in exact.model.named_parameters() if p.grad is not None}
        records = scaled(records, found)
    eager, mine = (Anchored(copy.deepcopy(model), records) for _ in range(2))
    exact = Anchored(to_float64(model), records, torch.float64)
    call = compile_it(mine)
    for _ in range(steps):
        ours, theirs = (step(*both, args, kwargs, around) for both in ((call, mine), (eager, eager)))
        with squares_of_terms(exact) as squares:
            wanted = step(exact, exact, *to_float64((args, kwargs)), contextlib.nullcontext)
    return judge(ours, theirs, wanted, 0.0 if working is None else torch.finfo(working).eps / 8, squares), call


def assert_judged(judgement: Judgement, least: float = LEAST_POWER) -> None:
    """Nothing is wrong, by a judge that has just shown that it sees damage."""
    assert not judgement.wrong, f"{len(judgement.wrong)} wrong: {'; '.join(judgement.wrong[:5])}"
    assert judgement.planted >= 12
    assert judgement.power >= least, f"{judgement.power:.3f} of damage seen, not {'; '.join(judgement.unseen[:8])}"
