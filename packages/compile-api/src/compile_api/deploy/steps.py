"""What a training step works on: the modules, optimizers and tensors that its function holds, their names, and what a
capture of it, in which nothing is computed, may not leave changed.

An exported step keeps parameters, buffers and an optimizer's state as weights of its own; learning rates, betas and
what else the optimizer's groups say in numbers are weights of no dimensions, which the graph takes as numbers.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from prims.errors import UserError
from prims.records import record
from prims.spec.expr import float_of_bits

__all__ = ["Number", "StepState", "number_named"]


@record
class Number:
    """A number that a graph takes: as it is, or a float by its bits.

    Attributes:
        path: where the program has it, as capture names it.
        of_tensor: whether it is the number in a tensor there.
    """

    path: str
    as_bits: bool
    of_tensor: bool

    def value(self, given: int) -> float | int:
        """The number that the graph was given when it was captured."""
        return float_of_bits(given) if self.as_bits else given


def number_named(source: str | None) -> Number:
    """The number of a graph's input by what the input says of its source."""
    text, wrapped = source or "", set()
    while found := re.fullmatch(r"(bits_of_float|number_of)\((.*)\)", text):
        wrapped.add(found[1])
        text = found[2]
    return Number(text, "bits_of_float" in wrapped, "number_of" in wrapped)


class StepState:
    """The state that a step's function reaches.

    Attributes:
        modules: by the name that the function has for them, the outermost only.
        optimizers: the same.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        held = dict(_held(step))
        modules = {name: value for name, value in held.items() if isinstance(value, torch.nn.Module)}
        inner = {id(m) for module in modules.values() for m in list(module.modules())[1:]}
        self.modules = {name: m for name, m in modules.items() if id(m) not in inner}
        self.optimizers = {name: v for name, v in held.items() if isinstance(v, torch.optim.Optimizer)}
        self._tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
        self.names = self._named()

    # ---- names ----------------------------------------------------------------------------------------------------

    def _named(self) -> dict[int, str]:
        """Qualified names by tensor, each of one alone: a single module's as its ``state_dict`` has them."""
        found: dict[int, str] = {}
        taken: set[str] = set()

        def name(tensor: Any, text: str) -> None:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in found:
                while text in taken:
                    text += "_"
                taken.add(text)
                found[id(tensor)] = text

        for variable, module in self.modules.items():
            prefix = "" if len(self.modules) == 1 else f"{variable}."
            for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                name(tensor, prefix + path)
        for variable, tensor in self._tensors.items():
            name(tensor, variable)
        for variable, optimizer in self.optimizers.items():
            for k, group in enumerate(optimizer.param_groups):
                for at, parameter in enumerate(group["params"]):
                    name(parameter, f"{variable}.param_groups.{k}.params.{at}")
                for key, value in group.items():
                    name(value, f"{variable}.param_groups.{k}.{key}")
            for parameter, state in optimizer.state.items():
                of = found.get(id(parameter), "parameter")
                for key, value in state.items():
                    name(value, f"{variable}.state.{of}.{key}")
        for parameter in self.parameters():
            name(parameter.grad, f"{found[id(parameter)]}.grad")
        return found

    def parameters(self) -> Iterator[torch.Tensor]:
        """Leaves that need a gradient, each once."""
        seen: set[int] = set()
        groups = [group["params"] for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        for many in (*(m.parameters() for m in self.modules.values()), *groups, self._tensors.values()):
            for tensor in many:
                if tensor.requires_grad and tensor.is_leaf and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor

    # ---- what a capture leaves as it was ------------------------------------------------------------------------

    def mark_gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        """Give every parameter a gradient of zeros that only a step which goes on from it would read; by parameter."""
        marks = {p: torch.zeros_like(p) for p in self.parameters()}
        for parameter, mark in marks.items():
            parameter.grad = mark
        return marks

    def gradients(self) -> dict[torch.Tensor, torch.Tensor | None]:
        """The gradient of every parameter."""
        return {p: p.grad for p in self.parameters()}

    def optimizer_states(self) -> dict[str, Any]:
        """What optimizers hold, to be told apart by identity."""
        return {
            name: (
                [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
                {parameter: dict(state) for parameter, state in optimizer.state.items()},
            )
            for name, optimizer in self.optimizers.items()
        }

    def is_of_optimizer(self, owner: Any) -> bool:
        """Whether an object is an optimizer, or what one keeps: its groups, its state, and a parameter's."""
        return any(
            owner is part for optimizer in self.optimizers.values()
            for part in (optimizer, optimizer.__dict__, optimizer.state, optimizer.param_groups,
                         *optimizer.param_groups, *optimizer.state.values())
        )  # fmt: skip

    def put_back(self, gradients: Mapping[torch.Tensor, Any], states: Mapping[str, Any]) -> None:
        """Undo what the capture set.

        Raises:
            UserError: an optimizer made state or changed its groups, which the program would not do.
        """
        for parameter, grad in gradients.items():
            parameter.grad = grad
        problem: UserError | None = None
        for name, optimizer in self.optimizers.items():
            groups, state = states[name]
            if len(optimizer.param_groups) > len(groups):
                problem = problem or _sets(f"{name}.param_groups", "the making of groups")
                del optimizer.param_groups[len(groups) :]
            for k, (group, before) in enumerate(zip(optimizer.param_groups, groups, strict=False)):
                for key, old in before.items():
                    if group[key] is not old and group[key] != old:
                        problem = problem or _sets(f"{name}.param_groups[{k}][{key!r}]", "the learning rate's schedule")
                    group[key] = old
            for parameter in list(optimizer.state):
                entry, before = optimizer.state[parameter], state.get(parameter)
                if before is None or entry.keys() != before.keys():
                    problem = problem or _makes(name)
                elif any(entry[key] is not old and not _equal(entry[key], old) for key, old in before.items()):
                    problem = problem or _sets(f"the state of {name}", "what is no tensor there")
                if before is None:
                    del optimizer.state[parameter]
                else:
                    entry.clear()
                    entry.update(before)
        if problem is not None:
            raise problem


def _equal(now: Any, old: Any) -> bool:
    return type(now) is type(old) and not isinstance(now, torch.Tensor) and bool(now == old)


def _sets(what: str, kind: str) -> UserError:
    return UserError(
        f"the step cannot be exported: running it sets {what}, which an exported program does not have",
        todo=f"Leave {kind} out of the step, and write new values into the program's weights between calls.",
    )


def _makes(name: str) -> UserError:
    return UserError(
        f"the step cannot be exported: {name} makes its state in its first step",
        todo="Run the step once before exporting it.",
    )


# ---- what a function holds -----------------------------------------------------------------------------------------


#: Parts of a container that are looked at for names; what is in a longer one is a constant's.
_MOST_PARTS = 256


def _held(step: Callable[..., Any], depth: int = 4) -> Iterator[tuple[str, Any]]:
    """What a function reaches by a name: variables around it, globals, parts of the object that it is a method of."""
    if isinstance(step, functools.partial):
        yield from ((f"args_{k}", v) for k, v in enumerate(step.args))
        yield from step.keywords.items()
        yield from _held(step.func, depth)
        return
    owner = getattr(step, "__self__", None)
    function = getattr(step, "__func__", step)
    if not isinstance(function, types.FunctionType):
        call = vars(type(step)).get("__call__")
        owner, function = (step, call) if isinstance(call, types.FunctionType) else (owner, function)
    if isinstance(owner, torch.nn.Module):
        yield "self", owner
    elif owner is not None:
        yield from _parts("", getattr(owner, "__dict__", {}), depth)
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield from _parts("", {name: cell.cell_contents}, depth)
        except ValueError:  # not set yet
            continue
    named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    yield from _parts("", named, depth)
    yield from _parts("", function.__kwdefaults__ or {}, depth)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _parts(prefix: str, values: Mapping[str, Any], depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Values, those in lists, tuples, dictionaries and plain objects among them, and those that functions hold."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
            yield path, value
        elif isinstance(value, types.FunctionType) and value.__closure__ and not prefix and depth:
            yield from _held(value, depth - 1)
        elif depth and (parts := _inside(value)):
            yield from _parts(f"{path}.", parts, depth - 1)


def _inside(value: Any) -> dict[str, Any]:
    """What a container or a plain object has inside, by name."""
    if isinstance(value, (list, tuple, dict)):
        found = value if isinstance(value, dict) else dict(enumerate(value[: _MOST_PARTS + 1]))
    else:
        plain = not isinstance(value, (type, types.ModuleType, types.FunctionType)) and hasattr(value, "__dict__")
        found = vars(value) if plain else {}
    return {str(key): part for key, part in found.items()} if len(found) <= _MOST_PARTS else {}
