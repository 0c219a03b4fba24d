"""``set_stance``: what all compiled callables of the process do with calls, as a function, a context or a decorator."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dynamo_capture import _native
from prims import stance as stances
from prims.errors import UserError

__all__ = ["get_stance", "set_stance"]

F = TypeVar("F", bound=Callable[..., Any])


class set_stance:
    """Set what compiled callables do with calls: for good, in a ``with`` statement, or while a decorated function runs.

    It is one for all threads. Where it ends, the one that was there before it counts again; what its thread has set for
    good within a ``with`` statement ends with that. Calls that are under way go on, but for what is captured in them.

    Args:
        stance: ``"default"``; ``"eager"`` (PyTorch's name is ``"force_eager"``): run as if nothing were compiled;
            ``"fail_on_recompile"``: an error where something would be captured, for the first time or again;
            ``"eager_on_recompile"``: run eagerly instead; ``"strict"``: an error where something would be left to
            eager. What was left to eager before stays so, until ``reset()``.
        skip_guard_eval_unsafe, force_backend: of PyTorch's function; not offered.

    Raises:
        UserError: there is no such stance; called inside a compiled region.
    """

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if skip_guard_eval_unsafe:
            raise UserError(
                "set_stance() drops no guards: a call that a dropped guard would have told apart gives wrong results",
                todo="Guards cost microseconds; 'fail_on_recompile' tells of calls that they do not let pass.",
            )
        if force_backend is not None:
            raise UserError("set_stance() chooses no backend", todo="Give it to compile(): backend=...")
        self.stance = stances.named(stance)
        _refuse_inside()
        self._pending: stances.Setting | None = stances.add(self.stance, self)
        self._entered: list[stances.Setting] = []

    def __enter__(self) -> set_stance:
        _refuse_inside()
        pending, self._pending = self._pending, None
        if pending is not None and pending.thread == threading.get_ident():
            pending.entered = True
        else:
            pending = stances.add(self.stance, self, entered=True)
        self._entered.append(pending)
        return self

    def __exit__(self, *error: object) -> None:
        mine = threading.get_ident()
        at = next(k for k in reversed(range(len(self._entered))) if self._entered[k].thread == mine)
        stances.remove(self._entered.pop(at))

    def __call__(self, fn: F) -> F:
        """``fn`` that runs under the stance."""
        pending, self._pending = self._pending, None
        if pending is not None:
            stances.remove(pending)
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise UserError(
                f"set_stance() on {fn!r}, which runs after its call has returned",
                todo="Write `with set_stance(...)` inside of it.",
            )
        name = self.stance

        @functools.wraps(fn)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(name):
                return fn(*args, **kwargs)

        return under_stance  # type: ignore[return-value]


def get_stance() -> str:
    """The stance of now."""
    return stances.current()


def _refuse_inside() -> None:
    if _native.get_active() is not None:
        raise UserError(
            "set_stance() was called inside a compiled region",
            todo="Call it around the compiled function, or in a function under disable() that the region calls.",
        )
