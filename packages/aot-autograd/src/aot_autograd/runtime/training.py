"""The callable for a graph through which gradients flow: two ``autograd.Function``s around two compiled graphs.

The engine holds the gradients that it hands to a node until that node returns, so that a backward pass in one node
would keep the gradients of its outputs (of logits, say) in memory to its end. Here the node of the outputs only
collects what the backward graph takes and passes it to a second node, that of the inputs, which owns it alone and
computes. What is passed travels as an attribute of the (empty) gradient between the two nodes.

All of it is put together from a plan (:mod:`.plans`), which is data, so that another process can do so too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any
from weakref import ref

import torch

from aot_autograd.runtime.again import RunAgain
from aot_autograd.runtime.apart import Apart, Shared, nothing_behind
from aot_autograd.runtime.emitted import apply_of, emitted_function, gate_tensor
from aot_autograd.runtime.handing import Buckets
from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.runtime.nested import make_link, nowhere
from aot_autograd.runtime.plans import AgainPlan, Emitted, TrainingPlan, checked
from aot_autograd.runtime.rests import Rests
from aot_autograd.runtime.stored import StoredProgram, check_version, names_from, names_of, text_of
from prims.artefact import Artefact, NotPortable, child_of, restore
from prims.coding import decoded, encoded
from prims.errors import StoredGraphError
from prims.options import Options
from prims.report import Report
from prims.undo import writes_when_done

__all__ = ["TRAINING", "build_training", "load_training"]

TRAINING = "aot_autograd.training"
_NONE: dict[int, Any] = {}
_EMITTED = ("run", "forward", "collect", "give", "forward_apart", "gather")
Lifted = Mapping[int, tuple[dict[str, Any], str]]


def build_training(
    plan: TrainingPlan, compiled: Callable[..., Sequence[Any]], backward: LazyBackward, eager: Callable[..., Any],
    lifted: Lifted = _NONE, still: Sequence[Callable[[], bool]] = (),
) -> Callable[..., Any]:  # fmt: skip
    """Wrap a compiled forward graph and a backward that is compiled at its first use.

    Args:
        eager: the program, which some calls are left to.
        lifted: by input, the program's own tensor: where it is, and its name there.
        still: what tells in a backward pass whether all is as it was that the compiled one rests on.
    """
    again = RunAgain(plan.again, eager, backward, lifted, still)
    whole = apply_of(_make_gate(plan, backward, again))
    parts = {"enter": whole, "apply": apply_of(_make_function(plan, compiled, again)), "eager": eager}
    parts["by_buckets"] = Buckets(plan, backward, again, whole).enter
    if plan.gates:
        parts.update(_apart(plan, compiled, backward, again))
    if plan.linked is not None:
        parts["link"] = make_link(again, plan.linked)
        parts["nowhere"] = nowhere()
    run = writes_when_done(_function(plan.run, parts))

    def artefact() -> Artefact:
        if lifted:
            raise NotPortable("the program has tensors of its own")
        if still:
            raise NotPortable("what its backward pass reads of the program's state is looked at again when it runs")
        files = {"eager": text_of(eager)}
        told = {each.name: _told(getattr(plan, each.name), each.name, files) for each in fields(plan)}
        children = {"compiled": child_of(compiled), "backward": child_of(backward)}
        return Artefact(TRAINING, "1", told, files, children)

    run.artefact = artefact
    return run


def _told(value: Any, name: str, files: dict[str, bytes]) -> Any:
    """A field of a plan as JSON."""
    if isinstance(value, Emitted):
        return {"text": value.text, "names": names_of(value.names, files, f"{name}.")}
    if isinstance(value, AgainPlan):
        return {each.name: encoded(getattr(value, each.name)) for each in fields(value)}
    return encoded(value)


def load_training(artefact: Artefact, options: Options, report: Report | None) -> Callable[..., Any]:
    """The callable of an artefact of :func:`build_training` (a loader).

    Raises:
        StoredGraphError: it is of another version, or no such plan.
    """
    check_version(artefact)
    text, eager = artefact.text, StoredProgram(artefact.files["eager"])

    def emitted(name: str) -> Emitted | None:
        told = text[name]
        if told is None:
            return None
        names = names_from(told["names"], artefact.files, f"{name}.", eager, options, report)
        return Emitted(told["text"], names)

    again = checked(AgainPlan(**{each.name: decoded(text["again"][each.name]) for each in fields(AgainPlan)}))
    known = {"again": again, **{name: emitted(name) for name in _EMITTED}}
    rest = {each.name: decoded(text[each.name]) for each in fields(TrainingPlan) if each.name not in known}
    plan = checked(TrainingPlan(**rest, **known))
    compiled = restore(artefact.children["compiled"], options=options, report=report)
    backward = restore(artefact.children["backward"], options=options, report=report)
    if not isinstance(backward, LazyBackward):
        raise StoredGraphError("ART-C5", f"a backward pass is a {type(backward).__name__}")
    return build_training(plan, compiled, backward, eager)


def _function(emitted: Emitted, parts: Mapping[str, Any]) -> Any:
    return emitted_function(emitted.text, {**emitted.names, **parts})


def _make_function(
    plan: TrainingPlan, compiled: Callable[..., Sequence[Any]], again: RunAgain
) -> type[torch.autograd.Function]:
    """The function that runs the forward graph."""
    forward = _function(plan.forward, {"compiled": compiled, "keep": again.keep})
    parts = {"own_results": again.own_results, "has_changed": again.has_changed, **_reading(plan)}
    back = _function(plan.collect, parts)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(back)}
    return type("CompiledFunction", (torch.autograd.Function,), methods)


def _apart(
    plan: TrainingPlan, compiled: Callable[..., Sequence[Any]], backward: LazyBackward, again: RunAgain
) -> dict[str, Any]:
    """What a call is made of whose inputs go through several gates."""
    assert plan.forward_apart is not None and plan.gather is not None
    reading = _reading(plan)
    gather = _function(plan.gather, reading)
    nodes = again.apart = Apart(plan, gather, backward, again, reading.get("leave"))
    forward = _function(plan.forward_apart, {"compiled": compiled, "keep": again.keep})
    methods = {"forward": staticmethod(forward)}
    holder = type("CompiledSaved", (torch.autograd.Function,), methods)
    parts: dict[str, Any] = {"call": apply_of(holder), "part": nodes.part}
    parts |= {"shared_by": Shared, "nothing_behind": nothing_behind}
    return parts | {f"enter{j}": enter for j, enter in enumerate(nodes.enter)}


def _make_gate(plan: TrainingPlan, backward: LazyBackward, again: RunAgain) -> type[torch.autograd.Function]:
    """The function through which the inputs go, whose backward runs the backward graph."""
    device, others = plan.device, plan.others

    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        ctx.second = None
        ctx.others = {k: ref(args[k]) for k in others} if others else _NONE
        return gate_tensor(device)

    back = _function(plan.give, {"run_backward": backward, "run_again": again.gradients})
    methods = {"forward": staticmethod(forward), "backward": staticmethod(back)}
    return type("CompiledInputs", (torch.autograd.Function,), methods)


def _reading(plan: TrainingPlan) -> dict[str, Any]:
    """What reads the saved tensors in a backward pass, for the functions that do so."""
    found: dict[str, Any] = {"saved_unless_written": _saved_unless_written(plan.needing)}
    if plan.sharing:
        rests = Rests(plan.sharing, plan.needed, plan.needing)
        found |= {"rest_of": rests.of, "leave": rests.leave}
    return found


def _saved_unless_written(
    needing: Sequence[frozenset[int]],
) -> Callable[[Any, tuple[torch.Tensor | None, ...], RuntimeError], list[torch.Tensor]]:
    """What reads the saved tensors one by one where one was written after the forward pass.

    Eager raises only where the backward pass comes to an operator that saved such a tensor, which is no result's matter
    but that of the gradients that come. What these do not need is not read.
    """

    def saved_unless_written(
        ctx: Any, tangents: tuple[torch.Tensor | None, ...], error: RuntimeError
    ) -> list[torch.Tensor]:
        held = ctx._raw_saved_tensors  # raises where the graph was freed
        found = []
        for one, version, needed_by in zip(held, ctx.versions, needing, strict=True):
            value = one.data
            if value._version != version and any(tangents[k] is not None for k in needed_by):
                raise error
            found.append(value)
        return found

    return saved_unless_written
