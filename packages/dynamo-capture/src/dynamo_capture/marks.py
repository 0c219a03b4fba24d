"""Functions that mean something to capture, and next to nothing where the program runs eagerly."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["breaks_refused", "cudagraph_mark_step_begin", "error_on_graph_break", "graph_break", "is_compiling",
           "is_dynamo_compiling", "is_exporting", "nested_compile_region", "refuse_breaks"]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def graph_break(msg: str = "") -> None:
    """Break the graph here; does nothing when the program runs eagerly."""


def is_compiling() -> bool:
    """Whether the program is being captured: True inside captured code, False when it runs eagerly."""
    return False


def is_dynamo_compiling() -> bool:
    """The same as :func:`is_compiling`, under PyTorch's name: there is one capture."""
    return False


def is_exporting() -> bool:
    """Whether the program is being captured to run without its code (``export``); False elsewhere."""
    return False


def cudagraph_mark_step_begin() -> None:
    """Does nothing: results of CUDA graphs are copied out of the graphs' memory, so no step needs announcing."""


def nested_compile_region(fn: F | None = None, **options: Any) -> Any:
    """``fn`` as it is. Not needed: equal kernels are compiled once, whichever part of the program they come from.

    Usable as a decorator, with or without arguments, which are those of PyTorch's function and mean nothing here.
    """
    return (lambda given: given) if fn is None else fn


# --- breaks as errors -----------------------------------------------------------------------------------------------

_local = threading.local()


def refuse_breaks(wanted: bool | None) -> bool | None:
    """Make graph breaks errors on this thread, or not (None: nothing is said); what was said before."""
    before: bool | None = getattr(_local, "refused", None)
    _local.refused = wanted
    return before


def breaks_refused() -> tuple[bool | None, bool]:
    """Whether graph breaks are errors on this thread, by our function and by PyTorch's of the same name.

    Ours counts where it says something.
    """
    theirs = getattr(sys.modules.get("torch._dynamo.utils"), "_error_on_graph_break", False)
    return getattr(_local, "refused", None), bool(theirs)


class error_on_graph_break:
    """Make graph breaks errors (:class:`prims.errors.NotCompiled`), or not.

    In a ``with`` statement, or while a decorated function runs; inside a compiled region, or around its first call.

    It counts when something is captured: what is captured already is not looked at again. ``fullgraph=True`` refuses
    more, and whatever this says.
    """

    def __init__(self, error_on_graph_break: bool = True) -> None:
        self.wanted = error_on_graph_break
        self._before: list[bool | None] = []

    def __enter__(self) -> None:
        self._before.append(refuse_breaks(self.wanted))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        refuse_breaks(self._before.pop())

    def __call__(self, fn: F) -> F:
        """``fn``, in which graph breaks are errors, or not."""
        wanted = self.wanted

        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(wanted):
                return fn(*args, **kwargs)

        return inside  # type: ignore[return-value]
