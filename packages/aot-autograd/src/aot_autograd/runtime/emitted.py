"""What emitted code is made with and calls. Nothing here knows of graphs, so that stored programs load fast."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prims.eager import leave_to_eager
from prims.options import Options
from prims.report import Report
from prims.undo import undoing

__all__ = [
    "SIZE_FUNCTIONS", "RunEagerly", "aligned", "apply_of", "as_made", "as_strided_from", "copy_all", "counter_of",
    "emitted_function", "gate_tensor", "lead_nowhere", "loses_its_views", "new_seed", "of_value_alone",
    "refuses_writes", "shares_memory", "write_over", "written",
]  # fmt: skip

SIZE_FUNCTIONS = {
    "min": builtins.min,
    "max": builtins.max,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}


def emitted_function(text: str, names: Mapping[str, Any]) -> Any:
    """The function that a text ``def name(...):`` defines, with what it names; it keeps the text as ``__source__``."""
    name = text.partition("(")[0].removeprefix("def ")
    # By its module's name capture knows that this is not the user's code.
    namespace = {"__name__": __name__, **names}
    exec(compile(text, f"<aot_autograd {name}>", "exec"), namespace)
    function = namespace[name]
    function.__source__ = text
    return function


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """A function's ``apply`` without what its Python part does for transforms of functions, at every argument."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc,no-any-return]


def copy_all(targets: list[torch.Tensor], inputs: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy new values into written inputs, but for those that the compiled graph has written itself."""
    left = [(t, v) for t, x, v in zip(targets, inputs, values, strict=True) if v is not x]
    if len(left) < len(targets):
        written(*(t for t, x, v in zip(targets, inputs, values, strict=True) if v is x))
    if left:
        torch._foreach_copy_([t for t, _ in left], [v for _, v in left])


def written(*tensors: torch.Tensor) -> None:
    """Let autograd know that tensors were written, as an operator in place would."""
    counted = [x for x in tensors if not x.is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)


def write_over(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a new value, computed from the old one, into a written input.

    The old one's gradient is what the region's backward pass gives. Autograd has zeros for it beside that, as nothing
    of it goes through the copy: added to a gradient of -0.0 they would make it 0.0, at the price of a sum.
    """
    before = target.grad_fn
    target.copy_(value)
    node = target.grad_fn
    if node is not None and node is not before and not target._is_view():  # a view's node is not the copy's
        node.register_hook(of_value_alone)


def of_value_alone(gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
    """A hook on a copy's node: nothing for what was written over, not zeros. It watches nothing."""
    return None, *gradients[1:]


def as_strided_from(base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    """``as_strided`` with an offset relative to ``base``'s own."""
    return base.as_strided(size, stride, base.storage_offset() + offset)


def as_made(view: torch.Tensor, how: str) -> torch.Tensor:
    """A view that autograd takes to be made in a way by which eager refuses writes to it: as one of several, say."""
    if view._is_view():
        torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, how))
    return view


def gate_tensor(device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    """An empty tensor that stands between two nodes, or the gradient for it, which carries what the next node takes as
    attributes. Both are of one dtype whatever the default has become: autograd would cast, and give another tensor."""
    return torch.empty(0, dtype=torch.float32, device=device, requires_grad=requires_grad)


class _LeadsNowhere(torch.autograd.Function):
    """Results that need gradients, on account of leaves that only the program could see."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *(None for _ in gradients)


def lead_nowhere(*results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Runs in the emitted code: the results as tensors with a history, at the end of which nothing takes a gradient."""
    with torch.enable_grad():
        return _LeadsNowhere.apply(gate_tensor(requires_grad=True), *results)  # type: ignore[no-any-return]


def new_seed(device: torch.device) -> torch.Tensor:
    """A seed from the default generator of ``device``, so that ``torch.manual_seed`` repeats a run."""
    return torch.empty((), dtype=torch.int64, device=device).random_()


class RunEagerly:
    """Runs in the emitted code: a call that is left to eager, which the report says."""

    def __init__(
        self, eager: Callable[..., Any], written: tuple[int, ...], reason: str, options: Options, report: Report | None
    ) -> None:
        self.eager = eager
        self.written = written
        self.reason = reason
        self.options = options
        self.report = report

    def __call__(self, *args: Any) -> Any:
        leave_to_eager(self.report, self.options, "aot_autograd", self.reason)
        # Not the module: a call of it prints where in its text an error is, which is the program's own here.
        run = getattr(self.eager, "forward", self.eager)
        return undoing(run, self.written)(*args)


def refuses_writes(args: Sequence[Any], written: tuple[int, ...]) -> bool:
    """Whether autograd forbids to write one of these arguments: a leaf, a view of one, or a view of a kind (one of
    several results, made without a history) that no other form of its base can stand for."""
    for i in written:
        x = args[i]
        if x.requires_grad and x.is_leaf:
            return True
        if x._is_view() and (
            x.requires_grad and x._base.is_leaf or _creation_meta(x) != torch._C._autograd.CreationMeta.DEFAULT
        ):
            return True
    return False


_creation_meta = torch._C._autograd._get_creation_meta  # type: ignore[attr-defined]


def shares_memory(args: Sequence[Any], tensors: tuple[int, ...], written: tuple[int, ...]) -> bool:
    """Whether one of the ``written`` arguments has the same storage as another of the ``tensors``."""
    keys = [args[i].untyped_storage()._cdata for i in tensors]
    if len(set(keys)) == len(keys):
        return False
    at = dict(zip(tensors, keys, strict=True))
    return any(keys.count(at[i]) > 1 for i in written)


def loses_its_views(args: Sequence[Any], written: tuple[int, ...]) -> bool:
    """Whether one of the ``written`` arguments is a view of a tensor that needs no gradient.

    Autograd derives the history of its own views anew from that tensor, once they were written: they have none then.
    """
    return any(args[i]._is_view() and not args[i]._base.requires_grad for i in written)


def counter_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the version counter of another, and none of its memory."""
    watched = tensor.detach()
    watched.data = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
    return watched


def aligned(tangent: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The gradient in the layout for which the backward graph was compiled, its numbers in memory as they are; a batch
    of gradients, which is left to eager, as it is."""
    kinds = torch._C._functorch
    if kinds.is_legacy_batchedtensor(tangent) or kinds.is_batchedtensor(tangent):
        return tangent
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    with torch.no_grad():
        if tangent._is_zerotensor():  # which has no memory
            return torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device).zero_()
        tangent = tangent.resolve_conj().resolve_neg()
    if all(
        size <= 1 or have == want for size, have, want in zip(tangent.shape, tangent.stride(), strides, strict=True)
    ):
        return tangent
    with torch.no_grad():
        made = torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device)
        return made.copy_(tangent)
