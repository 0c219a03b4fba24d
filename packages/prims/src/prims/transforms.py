"""Differentiation and batching inside a torch-dialect graph.

``torch.func`` and ``torch.autograd.grad`` come down to four calls, which a graph holds as nodes and which run on
tensors without any compiler::

    distinct(x)                      a tensor of x's values that gradients can be taken to
    require_gradient(x)              the same tensor, a leaf of autograd if it has no history
    gradient(outputs, inputs, v)     what autograd gives: v times the Jacobian of outputs by inputs
    Vmap(graph, ...)(*args)          the graph, written for one example, on a batch of examples

Reverse mode is that of PyTorch's autograd, beneath the batching: gradients of one example do not depend on the others,
so that those of a batch are the gradients of the whole batch's sum. For this each example needs a tensor of its own to
take gradients to, and ``distinct`` makes it. Forward mode is reverse mode twice: ``g(u) = u J`` is linear, and ``J t``
is its gradient for ``t``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._C._functorch
import torch.fx

from prims.errors import Unsupported

__all__ = ["TRANSFORMS", "Vmap", "distinct", "gradient", "require_gradient"]

functorch: Any = torch._C._functorch
#: The most examples that an operator without a batching rule is run for one by one.
_ONE_BY_ONE = 16


def distinct(x: torch.Tensor, batched: Sequence[int] = ()) -> torch.Tensor:
    """A view of all of ``x``, which gradients can be taken to.

    Args:
        batched: the batches in which each example gets a tensor of its own even where all share ``x``; counted from
            the innermost :class:`Vmap` around, 0, outwards.
    """
    if not batched:
        return x.view_as(x)
    around = _batches()
    memory, levels = _open(x)
    for depth in sorted(batched, reverse=True):
        level, size = around[-1 - depth]
        if level not in levels:
            memory = memory.unsqueeze(0).expand(size, *memory.shape)
            levels = [level, *levels]
    return _close(memory.view_as(memory), levels)


def require_gradient(x: torch.Tensor) -> torch.Tensor:
    """``x`` itself, which from now on needs a gradient, for the sake of a derivative: ``is_for_derivative`` is set."""
    memory, _ = _open(x)
    allowed = functorch.get_inplace_requires_grad_allowed()
    try:
        functorch.set_inplace_requires_grad_allowed(True)
        memory.requires_grad_()
        memory.is_for_derivative = True  # type: ignore[attr-defined]
    finally:
        functorch.set_inplace_requires_grad_allowed(allowed)
    return x


def gradient(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor | None],
    retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    materialize_grads: bool = False, contiguous: Sequence[bool] = (),
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """``torch.autograd.grad``, which also works inside a :class:`Vmap`.

    Args:
        grad_outputs: one per output, of its shape; None for ones, where the output has a single element.
        contiguous: of which inputs one example's gradient is contiguous; a batch of such is.

    Raises:
        Unsupported: examples share an input that their outputs differ in.
        RuntimeError: as ``torch.autograd.grad``.
    """
    settings = {"retain_graph": retain_graph, "create_graph": create_graph}
    with torch.autograd.set_multithreading_enabled(False):
        if not _batches():
            return torch.autograd.grad(
                outputs,
                inputs,
                grad_outputs,
                allow_unused=allow_unused,
                materialize_grads=materialize_grads,
                **settings,
            )
        found = _batched_gradient(outputs, inputs, grad_outputs, allow_unused or materialize_grads, settings)
        results = [
            _in_rows(g) if g is not None and at < len(contiguous) and contiguous[at] else g
            for at, g in enumerate(found)
        ]
        return tuple(
            torch.zeros_like(x) if g is None and materialize_grads else g for g, x in zip(results, inputs, strict=True)
        )


def _batched_gradient(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor | None],
    allow_unused: bool, settings: dict[str, Any],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients in the memory beneath the batches that the inputs belong to."""
    opened = [_open(x) for x in inputs]
    own = {level for _, levels in opened for level in levels if level is not None}
    roots, seeds = [], []
    for output, seed in zip(outputs, grad_outputs, strict=True):
        memory, levels = _open(output)
        if not memory.requires_grad:
            if allow_unused:
                continue
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        if not set(levels) - {None} <= own:
            raise Unsupported("a gradient to a tensor that the examples of a vmap share")
        roots.append(memory)
        seeds.append(_seed(seed if seed is not None else torch.ones_like(output), memory.shape, levels))
    found: Sequence[Any] = [None] * len(inputs)
    if roots:
        found = torch.autograd.grad(roots, [m for m, _ in opened], seeds, allow_unused=allow_unused, **settings)
    results: list[torch.Tensor | None] = []
    for value, (_, levels) in zip(found, opened, strict=True):
        if value is None:
            results.append(None)
            continue
        inner, outside = _open(value)
        rest = iter(levels)
        results.append(_close(inner, [next(rest) if level is None else level for level in outside]))
    return tuple(results)


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """The values of ``x`` in contiguous memory, one example after the other."""
    memory, levels = _open(x)
    order = sorted(range(len(levels)), key=lambda at: (levels[at] is None, levels[at] or 0))
    return _close(memory.permute(order).contiguous(), [levels[at] for at in order])


def _seed(seed: torch.Tensor, shape: Sequence[Any], levels: Sequence[int | None]) -> torch.Tensor:
    """A gradient in the layout of an output's memory; batches that the output does not belong to stay around it."""
    memory, given = _open(seed)
    others = [level for level in given if level is not None and level not in levels]
    places = iter([dim for dim, level in enumerate(given) if level is None])
    order = [given.index(level) for level in others]
    missing = []
    for dim, level in enumerate(levels):
        if level is None:
            order.append(next(places))
        elif level in given:
            order.append(given.index(level))
        else:
            missing.append(len(others) + dim)
    memory = memory.permute(order)
    for dim in missing:
        memory = memory.unsqueeze(dim)
    memory = memory.expand(*memory.shape[: len(others)], *shape)
    return _close(memory, [*others, *[None] * len(levels)])


# --- tensors that belong to batches -----------------------------------------------------------------------------------


def _batches() -> list[tuple[int, Any]]:
    """The batches around, outermost first: level and size."""
    stack = functorch.get_interpreter_stack() or ()
    return [
        (frame.level(), functorch.CVmapInterpreterPtr(frame).batchSize())
        for frame in stack if frame.key() == functorch.TransformType.Vmap
    ]  # fmt: skip


def _open(x: torch.Tensor) -> tuple[torch.Tensor, list[int | None]]:
    """The memory behind a tensor that belongs to batches, and for each of its dimensions the batch's level or None."""
    wrappers: list[tuple[int, int]] = []
    while functorch.is_batchedtensor(x):
        wrappers.append((functorch.maybe_get_level(x), functorch.maybe_get_bdim(x)))
        x = functorch.get_unwrapped(x)
    levels: list[int | None] = [None] * x.ndim
    for level, dim in reversed(wrappers):
        levels[[at for at, known in enumerate(levels) if known is None][dim]] = level
    return x, levels


def _close(memory: torch.Tensor, levels: Sequence[int | None]) -> torch.Tensor:
    """The inverse of :func:`_open`."""
    left = list(levels)
    for level in sorted(level for level in levels if level is not None):
        at = left.index(level)
        memory = functorch._add_batch_dim(
            memory, at - sum(other is not None and other < level for other in left[:at]), level
        )
    return memory


# --- batching ---------------------------------------------------------------------------------------------------------


class Vmap:
    """A graph written for one example, run on a batch: the target of a graph node.

    Called with the number of examples and the graph's arguments it runs by PyTorch's batching rules, with autograd
    beneath them. A result that may differ between examples has the batch as its first dimension.

    Args:
        graph: takes the arguments, and returns a tuple of tensors.
        in_dims: by argument, the dimension that the examples are in; None where all share the argument.
        randomness: ``"error"``, ``"different"`` or ``"same"``: what random numbers the examples get.

    Attributes:
        varies: by result, whether it may differ between examples.
    """

    def __init__(self, graph: torch.fx.GraphModule, in_dims: Sequence[int | None], randomness: str) -> None:
        self.__name__ = self.__qualname__ = "vmap"
        self.__module__ = __name__
        self.graph = graph
        self.in_dims = tuple(in_dims)
        self.randomness = randomness
        self.varies = _find_varying(graph, [dim is not None for dim in in_dims], randomness == "different")

    def __call__(self, size: Any, *args: Any) -> tuple[torch.Tensor, ...]:
        return self.run(self.graph.forward, size, args)  # without FX's words on standard error where it raises

    def run(self, body: Callable[..., Sequence[Any]], size: Any, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Run with ``body`` in place of the graph.

        Args:
            size: how many examples there are.

        Raises:
            Unsupported: an operator has no batching rule, and there are too many examples to run it for each.
            RuntimeError: what PyTorch's batching rules raise.
        """
        few = isinstance(size, int) and size <= _ONE_BY_ONE
        allowed = functorch._is_vmap_fallback_enabled()
        level = functorch._vmap_increment_nesting(size, self.randomness)
        try:
            functorch._set_vmap_fallback_enabled(few and allowed)
            given = [
                x if dim is None else functorch._add_batch_dim(x, dim, level)
                for x, dim in zip(args, self.in_dims, strict=True)
            ]
            results = zip(body(*given), self.varies, strict=True)
            return tuple(functorch._remove_batch_dim(x, level, size, 0) if varies else x for x, varies in results)
        except RuntimeError as error:
            if few or "vmap fallback" not in str(error):
                raise
            name = str(error).partition(" ")[0]
            raise Unsupported(f"PyTorch has no batching rule for {name}, and the batch is large") from None
        finally:
            functorch._set_vmap_fallback_enabled(allowed)
            functorch._vmap_decrement_nesting()

    def __repr__(self) -> str:
        return self.__name__


def _find_varying(graph: torch.fx.GraphModule, batched: Sequence[bool], different: bool) -> tuple[bool, ...]:
    """Which results may differ between examples; calls of :func:`distinct` that must are told so.

    A tensor that gradients are taken to must be one per example where what is differentiated is.

    Args:
        different: random numbers differ between examples.
    """
    varying: set[torch.fx.Node] = set()
    grows = True
    while grows:
        before = len(varying)
        given = iter(batched)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                if next(given):
                    varying.add(node)
            elif any(arg in varying for arg in node.all_input_nodes) or (different and node.op != "output"):
                varying.add(node)
                varying.update(arg for arg in _differentiated_to(node) if arg.op != "placeholder")
        grows = len(varying) > before
    for node in varying:
        if node.target is distinct:
            _give_each_its_own(node, 0)
        elif isinstance(node.target, Vmap):
            _give_all_their_own(node.target.graph, 1)
    graph.recompile()
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    return tuple(x in varying for x in output.args[0])  # type: ignore[union-attr]


def _differentiated_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments of a call that it takes gradients to."""
    if node.target is gradient:
        return list(node.args[1])  # type: ignore[arg-type]
    if not isinstance(node.target, Vmap):
        return []
    inner = node.target.graph.graph
    found = {to for each in inner.nodes for to in _differentiated_to(each)}
    places = [at for at, each in enumerate(inner.find_nodes(op="placeholder")) if each in found]
    return [node.args[1 + at] for at in places]  # type: ignore[misc]


def _give_each_its_own(node: torch.fx.Node, depth: int) -> None:
    given = node.args[1] if len(node.args) > 1 else ()
    if depth not in given:  # type: ignore[operator]
        node.args = (node.args[0], (*given, depth))  # type: ignore[misc]


def _give_all_their_own(graph: torch.fx.GraphModule, depth: int) -> None:
    """In a vmap inside: the tensors that gradients are taken to are one per example of the batch around as well."""
    for node in graph.graph.nodes:
        if node.target is distinct:
            _give_each_its_own(node, depth)
        elif isinstance(node.target, Vmap):
            _give_all_their_own(node.target.graph, depth + 1)
    graph.recompile()


#: The functions that a graph may hold, besides :class:`Vmap`.
TRANSFORMS = frozenset((distinct, gradient, require_gradient))
