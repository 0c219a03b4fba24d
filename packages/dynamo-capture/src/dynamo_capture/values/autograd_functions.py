"""``torch.autograd.Function``: its forward is inlined, its backward is captured beside it.

``Scale.apply(x)`` becomes the forward's operators, run without gradients, and one call of an :class:`AttachBackward`
on their results. That call gives the results the user's own backward, captured as a graph for each set of gradients
that it can be called with, so that a later stage which runs the call on abstract tensors traces the user's backward
rather than the derivative of the forward. Run as it is, the graph behaves under autograd as the program does.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.autograd.function import FunctionCtx

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import InnerEffects, SubgraphBuilder
from dynamo_capture.values.base import ObservedError, Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.later import LaterReads
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.own_backward import OwnBackward, own_backward
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import set_mode, special
from prims.spec import TensorSpec

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["AttachBackward", "Hooked"]

#: Backwards that tell absent gradients from zeros are captured for each set of them, up to this many results.
_MAX_RESULTS = 3
#: Derivatives of which a backward captures those of the functions that it calls; it may call the one it belongs to.
_MOST_DERIVATIVES = 3


class AttachBackward:
    """Gives computed tensors a custom backward: ``attach(*inputs, *results, *others) -> results``.

    The target of a graph node. ``inputs`` are the arguments of the function's ``apply`` (None for those that are no
    tensors), ``results`` what its forward computed from them without gradients, and ``others`` what else its
    backward reads. The results are returned as tensors of their own over the same memory; a gradient of theirs
    runs ``graphs`` and reaches the inputs.

    Args:
        name: the name of the user's class, by which autograd's errors and graphs show it.
        inputs: number of inputs.
        results: number of results.
        plain: results that are never differentiable.
        materialize: absent gradients are given as zeros.
        graphs: for each set of present gradients (a flag per result), the backward with the arguments it reads
            after the gradients.
        saved: the arguments that are saved for the backward with autograd's checks, the rest is merely kept.
        differentiable: the graphs may be differentiated; not so where the backward turns gradients on or off itself.
        own: calls the program's own backward where what the graphs rest on has changed since the region ran. Whether it
            has is ``still_holds`` of the autograd node: a stage that traces the backward pass is to ask it too.
            ``tells_absent`` of the node says that an absent gradient is another thing than zeros to the backward.
        is_hook: it passes its first argument on, and stands for hooks on that. Where a tensor has data these are set on
            it: what is saved for a derivative is the hooked tensor, whose hooks gradients of gradients pass too.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        results: int,
        plain: frozenset[int],
        materialize: bool,
        graphs: dict[tuple[bool, ...], tuple[torch.fx.GraphModule, tuple[int, ...]]],
        saved: frozenset[int],
        differentiable: bool,
        own: OwnBackward | None = None,
        is_hook: bool = False,
    ) -> None:
        self.own = own
        self.is_hook = is_hook
        self._read_by_hook = graphs[True,][1] if is_hook else ()
        self.__name__ = self.__qualname__ = f"attach_{name}"
        self.__module__ = __name__
        self.graphs = {flags: graph for flags, (graph, _) in graphs.items()}
        reads = {flags: read for flags, (_, read) in graphs.items()}
        needed = sorted({at for read in reads.values() for at in read}.union(own.positions if own else ()))
        saved_at = [at for at in needed if at in saved]
        kept_at = [at for at in needed if at not in saved]
        first = self._first = inputs + results

        def forward(ctx: Any, *args: Any) -> Any:
            outs = tuple(out.detach() for out in args[inputs:first])
            given = (*args[:inputs], *outs, *args[first].values)
            ctx.save_for_backward(*[given[at] for at in saved_at])
            ctx.kept = [given[at] for at in kept_at]
            ctx.mark_non_differentiable(*[outs[i] for i in plain])
            ctx.set_materialize_grads(materialize)
            ctx.tells_absent = len(graphs) > 1
            if own is not None:
                ctx.still_holds = own.still
            return outs

        def backward(ctx: Any, *gradients: Any) -> Any:
            flags = tuple(gradient is not None for gradient in gradients)
            values = dict(zip((*saved_at, *kept_at), (*ctx.saved_tensors, *ctx.kept), strict=True))
            if own is not None and not own.still():
                found = own(gradients, values, inputs)
                return (*found, *itertools.repeat(None, len(ctx.needs_input_grad) - inputs))
            present = [gradient for gradient in gradients if gradient is not None]
            found = self.graphs[flags](*present, *(values[at] for at in reads[flags]))
            if torch.is_grad_enabled() and not differentiable:
                found = _once(found, present, name)
            return (*found, *itertools.repeat(None, len(ctx.needs_input_grad) - inputs))

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.function: Any = type(name, (torch.autograd.Function,), methods)

    def __call__(self, *args: Any) -> Any:
        if self.is_hook and type(args[0]) is torch.Tensor:
            return self._hooked(args)
        return self.function.apply(*args[: self._first], _Others(args[self._first :]))

    def _hooked(self, args: Any) -> tuple[torch.Tensor]:
        read = [args[at] for at in self._read_by_hook]
        if args[0].requires_grad:
            args[0].register_hook(lambda gradient: self.graphs[True,](gradient, *read)[0])
        return (args[0],)

    def __repr__(self) -> str:
        return self.__name__


class _Others:
    """Tensors that a backward reads, out of autograd's sight: the function is no function of them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


class Hooked(torch.autograd.Function):
    """Passes a tensor on, and its gradient to hooks, one after the other."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *hooks: Any) -> torch.Tensor:
        ctx.hooks = hooks
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        for hook in ctx.hooks:
            changed = hook(gradient)
            if changed is not None:
                if changed.shape != gradient.shape or changed.dtype != gradient.dtype:
                    raise RuntimeError("the engine refuses what the hook gives")
                gradient = changed
        return gradient, *[None] * len(ctx.hooks)


class _NoSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and explains itself when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *values: torch.Tensor) -> Any:
        ctx.function_name = name
        return tuple(value.view_as(value) for value in values[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"the second derivative of the autograd function {ctx.function_name} was asked for, and compiled code "
            "has only its first. Run the part of the program that needs second derivatives eagerly."
        )


def _once(found: Sequence[Any], gradients: list[torch.Tensor], name: str) -> list[Any]:
    places = [i for i, value in enumerate(found) if value is not None]
    guarded = _NoSecondDerivative.apply(name, len(places), *(found[i] for i in places), *gradients)
    results = list(found)
    for place, value in zip(places, guarded, strict=True):
        results[place] = value
    return results


# --- capture ----------------------------------------------------------------------------------------------------------


class _ContextValue(ObjectValue):
    """The ``ctx`` of a forward and a backward."""

    __slots__ = ("function",)

    def __init__(self, function: type) -> None:
        super().__init__(FunctionCtx)
        self.function = function

    def missing_attribute(self, tx: Capture, name: str) -> Value:
        if hasattr(self.function._backward_cls, name):  # type: ignore[attr-defined]
            raise GraphBreak("QB12", f"{name!r} of an autograd function's context")
        return super().missing_attribute(tx, name)

    def getattr(self, tx: Capture, name: str) -> Value:
        found = super().getattr(tx, name)
        if tx.later is not None and self.attrs.get(name) is found:
            tx.later.of_context(found, f"{name!r} of its context")
        return found

    def reconstruct(self, cg: CodeGen) -> None:
        raise GraphBreak("QB10", "the context of an autograd function")


@special(torch.autograd.Function.apply.__func__)
def _apply(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``MyFunction.apply(...)``."""
    cls = args[0].realize()
    function = cls.real()
    inputs = _bound(tx, function, [a.realize() for a in args[1:]], kwargs)
    if getattr(function, "clear_saved_tensors_on_access", False) or getattr(function, "boxed_grads_call", False):
        raise GraphBreak("QB12", f"{cls.describe()} asks for another way of calling its backward")
    context = _ContextValue(function)
    # The backward of another function runs with gradients or without, as its gradients are differentiated or not.
    behind = _behind(tx)
    needed = [isinstance(v, TensorValue) and _may_need(v.example, behind) for v in inputs]
    context.attrs["needs_input_grad"] = TupleValue([ConstantValue(flag) for flag in needed])
    enabled = torch.is_grad_enabled()
    setter = torch._C._set_grad_enabled
    set_mode(tx, setter, [False])
    try:
        result = _forward(tx, cls, context, inputs)
    finally:
        set_mode(tx, setter, [enabled])
        if behind is not None:
            del tx.modes[(setter,)]
    if (enabled or behind is not None) and any(needed):
        return _tracked(tx, cls, context, inputs, needed, result)
    if isinstance(result, TensorValue) and any(result is v for v in inputs):
        return tx.graph_call("view_as", [result, result], {}, method=True)
    return result


def _behind(tx: Capture) -> _BackwardCapture | None:
    """The captured backward that is being run, whose gradient mode its caller sets: not where it sets one itself, nor
    in the forward of a function that it calls, nor deeper than somebody may differentiate."""
    at: Any = tx.graph
    capture = at.backward if isinstance(at, _BackwardBuilder) else None
    if capture is None or (torch._C._set_grad_enabled,) in tx.modes:
        return None
    if capture.depth < _MOST_DERIVATIVES:
        return capture  # type: ignore[no-any-return]
    capture.differentiable = False
    return None


def _may_need(example: Any, behind: _BackwardCapture | None) -> bool:
    if behind is None:
        return example.requires_grad  # type: ignore[no-any-return]
    return example.is_floating_point() or example.is_complex()  # type: ignore[no-any-return]


def _bound(tx: Capture, function: type, inputs: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments by position, as ``apply`` binds them where the class has a ``setup_context``."""
    if function.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
        if kwargs:
            raise GraphBreak("QB12", f"{function.__name__}.apply with keyword arguments")
        return inputs
    # The values are bound, not looked at.
    bound = tx.exact(inspect.signature(function.forward).bind, *inputs, **kwargs)  # type: ignore[attr-defined]
    bound.apply_defaults()
    if bound.kwargs:
        raise GraphBreak("QB12", f"{function.__name__}.apply with keyword-only arguments")
    return [v.realize() if isinstance(v, Value) else tx.from_python(v).realize() for v in bound.args]


def _forward(tx: Capture, cls: Value, context: _ContextValue, inputs: list[Value]) -> Value:
    forward = cls.getattr(tx, "forward").realize()
    if context.function.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
        return forward.call(tx, [context, *inputs], {}).realize()
    result = forward.call(tx, list(inputs), {}).realize()
    cls.getattr(tx, "setup_context").realize().call(tx, [context, TupleValue(list(inputs)), result], {})
    return result


def _tracked(
    tx: Capture, cls: Value, context: _ContextValue, inputs: list[Value], needed: list[bool], result: Value
) -> Value:
    """The results with the user's backward attached."""
    if context.attrs.get("dirty_tensors") is not None:
        raise GraphBreak("QB12", f"{cls.describe()} marks tensors as dirty")
    is_tuple = isinstance(result, TupleValue)
    items = [item.realize() for item in result.items] if isinstance(result, TupleValue) else [result]
    places = [i for i, item in enumerate(items) if isinstance(item, TensorValue)]
    outs = [item for item in items if isinstance(item, TensorValue)]
    if len({id(out) for out in outs}) != len(outs):
        raise GraphBreak("QB12", f"{cls.describe()} returns a tensor twice")
    marked = [id(v) for v in _tensors(context, "non_differentiable")]
    plain = frozenset(
        i for i, out in enumerate(outs)
        if id(out) in marked or not (out.example.is_floating_point() or out.example.is_complex())
    )  # fmt: skip
    if len(plain) == len(outs) and not any(out is v for out in outs for v in inputs):
        return result
    materialize = context.attrs.get("materialize_grads")
    backward = _BackwardCapture(tx, cls, context, inputs, needed, outs)
    flags = _flag_sets(cls, len(outs), plain, materialize is None or materialize.realize().truth(tx))
    graphs = {present: backward.capture(present, places, len(items)) for present in flags}
    own = backward.own(places, len(items))
    attach = AttachBackward(
        context.function.__name__,
        len(inputs),
        len(outs),
        plain,
        materialize is None or materialize.realize().truth(tx),
        graphs,
        frozenset(at for v in _tensors(context, "to_save") if (at := backward.find(v)) is not None),
        backward.differentiable,
        own,
        is_hook=context.function is Hooked,
    )
    given = [v if isinstance(v, (TensorValue, SymValue)) else ConstantValue(None) for v in inputs]
    attached = tx.graph_call(attach, [*given, *outs, *backward.others], {}).unpack(tx)
    if not is_tuple:
        return attached[0]
    for place, out in zip(places, attached, strict=True):
        items[place] = out
    return TupleValue(items, result.pytype)


def _flag_sets(cls: Value, count: int, plain: frozenset[int], materialize: bool) -> list[tuple[bool, ...]]:
    """The sets of present gradients that the backward can be called with."""
    if materialize:
        return [(True,) * count]
    if count > _MAX_RESULTS:
        raise GraphBreak("QB12", f"{cls.describe()} has {count} results whose gradients may be absent")
    choices = [(False,) if i in plain else (True, False) for i in range(count)]
    return [flags for flags in itertools.product(*choices) if any(flags)]


def _tensors(context: _ContextValue, name: str) -> list[TensorValue]:
    """What the forward has handed to one of the context's methods."""
    value = context.attrs.get(name)
    if value is None:
        return []
    items = [item.realize() for item in value.realize().items]  # type: ignore[attr-defined]
    if not all(isinstance(v, TensorValue) or (type(v) is ConstantValue and v.value is None) for v in items):
        raise GraphBreak("QB12", f"a value that is no tensor is passed on to the context ({name})")
    return [v for v in items if isinstance(v, TensorValue)]


class _BackwardBuilder(SubgraphBuilder):
    """Builds the graph of a backward."""

    makes_leaves = True

    def __init__(self, tx: Capture, outer: Any, backward: _BackwardCapture) -> None:
        super().__init__(tx, outer)
        self.backward = backward


class _BackwardCapture:
    """Captures one function's backward, and collects what it reads of the graph around it.

    Attributes:
        others: the tensors and sizes read that are neither inputs nor results of the function.
        reads: what it reads that may be another when it runs.
        differentiable: the backward leaves the gradient mode alone.
        depth: which derivative of the program it is a part of.
    """

    def __init__(
        self, tx: Capture, cls: Value, context: _ContextValue, inputs: list[Value], needed: list[bool],
        outs: list[TensorValue],
    ) -> None:  # fmt: skip
        self.tx = tx
        self.cls = cls
        self.context = context
        self.inputs = inputs
        self.needed = needed
        self.outs = outs
        around: Any = tx.graph
        self.depth: int = around.backward.depth + 1 if isinstance(around, _BackwardBuilder) else 1
        self.others: list[Value] = []
        self.differentiable = True
        # What hooks read has been looked at, where they were set.
        self.reads = None if context.function is Hooked else LaterReads(tx, cls.describe(), tx.later)

    def own(self, places: list[int], count: int) -> OwnBackward | None:
        """What calls the program's own backward; None where the captured one reads nothing that may be another."""
        if self.reads is None:
            return None
        tx, what = self.tx, self.cls.describe()
        brk = GraphBreak("QB12", f"{what}, whose backward reads what the region changes after its call")
        brk.where = tx.location()
        tx.backwards.append((tx.frames[0].call_step(), brk, self.reads))  # type: ignore[attr-defined]
        still = self.reads.still()
        if still is None:
            return None
        return own_backward(self.context.function, still, self.context.attrs, self.position, places, count, what)

    def find(self, value: Value) -> int | None:
        """Which argument of the attaching call a value of the graph around is."""
        # A saved result is the one with the backward attached, as autograd's own check asks.
        known = [*self.inputs, *self.outs, *self.others]
        order = (*range(len(self.inputs), len(known)), *range(len(self.inputs)))
        return next((at for at in order if known[at] is value), None)

    def position(self, value: Value) -> int:
        """As :meth:`find`, with a new argument if need be."""
        at = self.find(value)
        if at is None:
            at = len(self.inputs) + len(self.outs) + len(self.others)
            self.others.append(value)
        return at

    def capture(
        self, present: tuple[bool, ...], places: list[int], count: int
    ) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
        """The backward for one set of gradients, and the positions of what it reads after them.

        Args:
            places: where the results are among the ``count`` values that the forward returns.
        """
        tx = self.tx
        outer, effects, modes, reads = tx.graph, tx.side, dict(tx.modes), tx.later
        builder = tx.graph = _BackwardBuilder(tx, outer, self)
        side = tx.side = InnerEffects(effects)
        mode = (torch._C._set_grad_enabled, torch.is_grad_enabled())
        autocast = [(d, torch.is_autocast_enabled(d)) for d in ("cpu", "cuda")]
        try:
            # Autograd runs a backward without gradients, and outside the forward's autocast.
            torch._C._set_grad_enabled(False)
            tx.modes = {key: modes[key] for key in modes if key != (torch._C._set_grad_enabled,)}
            for device, _ in autocast:
                torch.set_autocast_enabled(device, False)
            gradients: list[Value] = [ConstantValue(None)] * count
            for out, place, given in zip(self.outs, places, present, strict=True):
                if given:
                    spec = out.example.spec  # type: ignore[attr-defined]
                    gradients[place] = builder.new_input("gradient", TensorSpec(spec.shape, spec.dtype, spec.device))
            tx.later = self.reads
            found = self._run(gradients)
            if side.reached([self.context, *self.inputs]):
                raise GraphBreak("QB12", f"the backward of {self.cls.describe()} has side effects")
            if (torch._C._set_grad_enabled,) in tx.modes:
                self.differentiable = False
            left = torch.is_grad_enabled() or any(torch.is_autocast_enabled(device) for device, _ in autocast)
            if left or builder.writes_outside():
                raise GraphBreak("QB12", f"the backward of {self.cls.describe()} changes what is outside of it")
            builder.graph.output(tuple(builder.lower(value)[0] for value in found))
        finally:
            tx.graph, tx.side, tx.modes, tx.later = outer, effects, modes, reads
            effects.epoch += side.epoch
            torch._C._set_grad_enabled(mode[1])
            for device, enabled in autocast:
                torch.set_autocast_enabled(device, enabled)
        graph = torch.fx.GraphModule(torch.nn.Module(), builder.graph, f"{self.context.function.__name__}Backward")
        return graph, tuple(self.position(value) for value in builder.lifted)

    def _run(self, gradients: list[Value]) -> list[Value]:
        """Interpret the backward; one gradient (or None) per input of the function."""
        tx, context = self.tx, self.context
        value = context.attrs.get("to_save")
        saved = value.realize() if value is not None else TupleValue([])
        own = context.function.backward is not torch.autograd.Function.backward  # type: ignore[attr-defined]
        method = self.cls.getattr(tx, "backward" if own else "vjp").realize()
        context.attrs["saved_tensors"] = saved
        try:
            result = method.call(tx, [context, *gradients], {}).realize()
        except ObservedError as error:
            text = getattr(error.value, "text", lambda: "an exception")()
            raise GraphBreak("QB12", f"the backward of {self.cls.describe()} raises {text}") from None
        finally:
            del context.attrs["saved_tensors"]
        items = [v.realize() for v in result.items] if isinstance(result, TupleValue) else [result]
        wrong = len(items) < len(self.inputs) or any(not _is_none(v) for v in items[len(self.inputs) :])
        found: list[Value] = []
        for given, wanted, item in zip(self.inputs, self.needed, items, strict=False):
            wrong = wrong or not (_is_none(item) or (isinstance(item, TensorValue) and isinstance(given, TensorValue)))
            found.append(item if wanted else ConstantValue(None))
        if wrong:
            raise GraphBreak("QB12", f"the backward of {self.cls.describe()} returns other than a gradient per input")
        return found


def _is_none(value: Value) -> bool:
    return type(value) is ConstantValue and value.value is None
