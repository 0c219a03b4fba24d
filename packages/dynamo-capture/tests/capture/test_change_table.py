"""Each kind of change, at each depth, after n clean calls, is noticed by the guards in the very next call.

The guards are those of a captured model. They are checked until they rest on trails, n times more with nothing changed,
and once after the change: the answer is what evaluation without trails gives, and is no wherever it must be. It does not
matter who makes the change (another thread, a forked process), nor whether dicts can be watched (``python
test_change_table.py`` takes all watchers and runs the table).
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import test_changes_after_clean_checks as stack
import torch
from test_changes_after_clean_checks import CHANGES, Held, Level, Undo, attribute
from torch import nn

import dynamo_capture
from dynamo_capture import _native as native
from dynamo_capture import optimize
from prims.options import Options
from prims.report import Report

CLEAN = (1, 2, 3, 5, 70)
DEPTHS = range(3)


class Marked(nn.Parameter):
    """A subclass of the same layout."""


def reborn(table: Any, key: str, make: Callable[[Any], Any]) -> Undo:
    """Lets go of an item, and puts another object in its place, at its address where the allocator gives it."""
    old = table.pop(key)
    address, copied = id(old), make(old)
    spoken_for = [copied]
    kept = table.__class__({key: old}) if isinstance(old, torch.Tensor) else None  # autograd may hold a tensor anyway
    source = dict(old) if isinstance(old, dict) else old
    del old
    while id(spoken_for[-1]) != address and len(spoken_for) < 500:
        spoken_for.append(make(source))
    table[key] = spoken_for[-1]

    def undo() -> None:
        table[key] = kept[key] if kept is not None else source

    return undo


def in_place(tensor: torch.Tensor, change: Callable[[torch.Tensor], Any], back: Callable[[torch.Tensor], Any]) -> Undo:
    with torch.no_grad():
        change(tensor)

    def undo() -> None:
        with torch.no_grad():
            back(tensor)

    return undo


def computed(level: Level) -> Undo:
    """A buffer becomes the result of an operator on a parameter, and requires gradients by that."""
    level.shift.add_(level.linear.bias)
    return level.shift.detach_


def swapped(level: Level) -> Undo:
    other = nn.Parameter(torch.randn(2, 3))
    torch.utils.swap_tensors(level.linear.weight, other)
    return lambda: torch.utils.swap_tensors(level.linear.weight, other)


def moved(level: Level) -> Undo:
    old = dict(level.linear._parameters)
    level.linear.to("meta")
    return lambda: level.linear._parameters.update(old)


def updated(level: Level) -> Undo:
    old = dict(level.__dict__)
    level.__dict__ |= {"gain": 6.5}
    return lambda: level.__dict__.update(old)


def emptied(level: Level) -> Undo:
    old = dict(level.table)
    level.table.clear()
    return lambda: level.table.update(old)


def everywhere(level: Level) -> Undo:
    return torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 3).remove


def base_class(level: Level) -> Undo:
    def call(self: Any, *args: Any) -> Any:
        return args[0]

    Level.__call__ = call
    return lambda: delattr(Level, "__call__")


def hidden(level: Level) -> Undo:
    """An attribute that no instance had, in place of the class's."""
    level.linear.__dict__["forward"] = lambda x: x
    return lambda: level.linear.__dict__.pop("forward")


MORE: dict[str, Callable[[Level], Undo]] = {
    "resized": lambda m: in_place(m.shift, lambda t: t.resize_(4), lambda t: t.resize_(3)),
    "more dimensions": lambda m: in_place(m.shift, lambda t: t.unsqueeze_(0), lambda t: t.squeeze_(0)),
    "transposed in place": lambda m: in_place(m.linear.weight, lambda t: t.t_(), lambda t: t.t_()),
    "strides": lambda m: in_place(
        m.linear.weight, lambda t: t.as_strided_((3, 3), (0, 1)), lambda t: t.as_strided_((3, 3), (3, 1))
    ),
    "a larger .data": lambda m: stack.data(m.linear.bias, torch.randn(1, 3)),
    "computed in place": computed,
    "swapped": swapped,
    "the parameter's class": lambda m: attribute(m.linear.weight, "__class__", Marked),
    "device": moved,
    "forward hook": lambda m: m.register_forward_hook(lambda module, args, out: out * 3).remove,
    "forward pre-hook": lambda m: m.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,)).remove,
    "backward hook": lambda m: m.linear.register_full_backward_hook(lambda module, got, out: None).remove,
    "backward pre-hook": lambda m: m.linear.register_full_backward_pre_hook(lambda module, out: None).remove,
    "hook put into its dict": lambda m: Held(m.linear._forward_hooks, 7).set(lambda module, args, out: out * 3),
    "global hook": everywhere,
    "training of all": lambda m: [m.eval()] and m.train,
    "dict updated": updated,
    "dict emptied": emptied,
    "dict replaced by its like": lambda m: Held(m.__dict__, "table").set(dict(m.table)),
    "instance's entry that was not there": hidden,
    "class's call added": base_class,
    "another dict at the address": lambda m: reborn(m.__dict__, "table", lambda old: {**dict(old), "bias": 3.25}),
    "another parameter at the address": lambda m: reborn(
        m.linear._parameters, "bias", lambda old: nn.Parameter(torch.randn(3), requires_grad=False)
    ),
    "another module at the address": lambda m: reborn(m._modules, "linear", lambda old: nn.Identity()),
    "function's default": lambda m: attribute(stack.scaled, "__defaults__", (torch.ones(3),)),
}  # fmt: skip

# What is compiled serves these too: another value in the same kind of place, one that the call does not use.
EQUAL = {
    "_parameters entry", "_buffers entry", "parameter by .data", "parameter by set_", "parameter in place", "module",
    "dict replaced by its like", "function's default",
}  # fmt: skip
# These are no matter of the guards: who calls the outermost module comes to other code; the innermost has no child.
ELSEWHERE = {(0, "method in the instance"), (0, "forward hook"), (len(DEPTHS) - 1, "child removed")}


class Captured:
    """A captured stack of modules, and what its guards are about."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.x = Level(len(DEPTHS) - 1), torch.randn(2, 3)
        dynamo_capture.reset()
        compiled = optimize(self.model, lambda gm, inputs, **options: gm.forward, options=Options(), report=Report())
        compiled(self.x)
        (entry,) = native.entries(Level.forward.__code__)
        self.tree = entry.guards
        self.given = ((self.model, self.x), vars(stack), vars(builtins))

    def holds(self) -> bool:
        return self.tree.check(*self.given)

    def rest_on_trails(self) -> None:
        for _ in range(2000):
            assert self.holds()
            trails = self.tree.trails()
            if len(trails) >= 2 and any(tensors == 9 for _, tensors, _ in trails):  # globals and classes; the model
                return
        raise AssertionError(f"no trails: {self.tree.trails()}")

    def handed_over(self) -> None:
        """The values that the compiled code gets are the model's own of now."""
        values = self.tree.collected(*self.given)
        now = {id(t) for t in [self.x, *self.model.parameters(), *self.model.buffers()]}
        assert values is not None and all(id(v) in now for v in values if isinstance(v, torch.Tensor))

    def after(self, name: str, depth: int, change: Callable[[], Undo], what: str) -> None:
        undo = change()
        try:
            noticed, reason = not self.holds(), self.tree.explain_failure(*self.given)
            assert noticed == (reason is not None), f"{name}, {what}: {reason}"
            assert noticed or name in EQUAL or (depth, name) in ELSEWHERE, f"{name}, {what}: no guard is about it"
            if not noticed:
                self.handed_over()
        finally:
            undo()
        assert self.holds() == (self.tree.explain_failure(*self.given) is None), f"{name}, {what}: taken back"


def by_thread(change: Callable[[], Undo]) -> Undo:
    made: list[Undo] = []
    thread = threading.Thread(target=lambda: made.append(change()))
    thread.start()
    thread.join()
    return made[0]


def run(depth: int, clean: tuple[int, ...], trails: bool = True, make: Any = lambda change: change()) -> None:
    for (name, change), n in itertools.product({**CHANGES, **MORE}.items(), clean):
        captured = Captured()  # anew, as what has changed twice is evaluated from then on
        level = captured.model
        for _ in range(depth):
            level = level.child
        if trails:
            captured.rest_on_trails()
        for _ in range(n):
            assert captured.holds(), f"{name}: nothing had changed"
        captured.after(name, depth, lambda change=change, level=level: make(lambda: change(level)),
                       f"at depth {depth} after {n} clean calls")  # fmt: skip


@pytest.mark.parametrize("depth", DEPTHS)
def test_changes_are_noticed_in_the_next_call(depth: int) -> None:
    run(depth, CLEAN)


def test_changes_by_another_thread_are_noticed() -> None:
    run(1, (2,), make=by_thread)


def test_changes_in_a_forked_process_are_noticed() -> None:
    captured = Captured()
    captured.rest_on_trails()
    for name, change in {**CHANGES, **MORE}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which do nothing here
            child = os.fork()
        if child == 0:
            status = 1
            try:
                captured.after(name, 0, lambda change=change: change(captured.model), "in a child")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
        assert captured.holds()


def test_changes_are_noticed_where_dicts_cannot_be_watched() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "held" in done.stdout, done.stderr[-2000:]


def take_all_watchers() -> int:
    """How many watchers of dicts there were to be had."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    take_all_watchers.callback = kind(lambda event, owner, key, value: 0)  # type: ignore[attr-defined]
    taken = 0
    try:
        while True:
            ctypes.pythonapi.PyDict_AddWatcher(take_all_watchers.callback)  # type: ignore[attr-defined]
            taken += 1
    except RuntimeError:  # no more
        return taken


def main() -> None:
    watched = sys.version_info >= (3, 12)
    if watched:
        assert take_all_watchers() > 0
    run(1, (1, 3), trails=not watched)
    assert not watched or not any(words > 30 for words, _, _ in Captured().tree.trails())
    print("held")


if __name__ == "__main__":
    main()
