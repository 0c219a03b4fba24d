"""``check="shadow"``: sampled calls of each compiled graph are compared with eager before the program gets a result.

A sampled call runs three times beside the program's own: compiled, eagerly and, where these are not close, in float64,
all on copies of the inputs, with the random generators put back. So nothing of the program is touched, and where
results differ the program gets eager's: the region is left to eager from this call on, with one warning, a finding in
the report and a script in the debug folder that shows the difference again.

What is compared is each captured graph with what was compiled of it. Whether capture has understood the program is
asked by :func:`compile_api.compare`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from compile_api.judge import Difference, Ran, judge
from compile_api.script import write_script
from compile_api.trial import in_float64, trial
from prims.eager import leave_to_eager
from prims.errors import InternalError
from prims.ir import Envelope
from prims.options import Options
from prims.report import Report
from prims.stance import raises_defects
from prims.undo import undoing, writes_when_done

__all__ = ["EVERY", "FIRST", "compared", "place_of", "shadowed"]

log = logging.getLogger("quintet")

#: The first calls of a graph are compared, then one in so many.
FIRST, EVERY = 3, 64


def shadowed(
    compiled: Callable[..., Any], gm: torch.fx.GraphModule, options: Options, report: Report, backend: str
) -> Callable[..., Any]:
    """``compiled``, compared with ``gm`` on sampled calls."""
    made = _Shadow(compiled, gm, options, report, backend)

    def call(*args: Any) -> Any:
        return made(*args)

    return writes_when_done(call) if getattr(compiled, "writes_when_done", False) is True else call


def compared(
    compiled: Callable[..., Any], gm: Callable[..., Any], args: Sequence[Any], *, eager_random: bool
) -> tuple[list[Difference], Ran] | None:
    """The differences of one call, and eager's run of it; None where both draw other random numbers.

    Raises:
        Unsupported: an input cannot be copied.
        Exception: what the program raises.
    """
    eager = trial(gm, args)
    return None if eager.drew and not eager_random else (_differences(compiled, gm, args, eager), eager)


def _differences(
    compiled: Callable[..., Any], gm: Callable[..., Any], args: Sequence[Any], eager: Ran
) -> list[Difference]:
    return judge(trial(compiled, args), eager, lambda: in_float64(gm, args))


def place_of(gm: torch.fx.GraphModule, difference: Difference) -> tuple[str, Any]:
    """A difference's name and the user's line that computes it, or the name of the input that it is about."""
    if difference.what == "call":
        return "a call", None
    if difference.what == "output":
        results = gm.graph.output_node().args[0]
        node: Any = results[difference.index] if isinstance(results, (tuple, list)) else results
        return f"output {difference.index}", getattr(node, "meta", {}).get("source")
    env: Envelope | None = gm.meta.get("envelope")
    descs = [] if env is None else list(env.inputs)
    if difference.what == "gradient":
        descs = [desc for desc in descs if desc.requires_grad]
    name = descs[difference.index].source if difference.index < len(descs) else None
    about = "the gradient of" if difference.what == "gradient" else "what is written to"
    return f"{about} {name or f'input {difference.index}'}", None


class _Shadow:
    def __init__(
        self, compiled: Callable[..., Any], gm: torch.fx.GraphModule, options: Options, report: Report, backend: str
    ) -> None:
        self.compiled: Callable[..., Any] | None = compiled
        self.gm = gm
        self.options = options
        self.report = report
        self.backend = backend
        self.calls = 0
        self.eager: Callable[..., Any] = gm.forward

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            return self.eager(*args)
        number = self.calls
        self.calls = number + 1
        if (number < FIRST or number % EVERY == 0) and _plain():
            self._look(args)
            if self.compiled is None:
                return self.eager(*args)
        return self.compiled(*args)

    def _look(self, args: Sequence[Any]) -> None:
        eager: Ran | None = None
        try:
            eager = trial(self.gm.forward, args)
            if eager.drew and not self.options.eager_random:
                self._untold("it draws random numbers; with the option fallback_random they would be eager's")
                return
            found = _differences(self.compiled, self.gm.forward, args, eager)  # type: ignore[arg-type]
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            full = isinstance(error, torch.OutOfMemoryError)  # of three runs at once
            if eager is None or full or raises_defects(self.options, self.report, error):
                self._untold(told, error)  # the call itself is next, and raises what is to be raised
                return
            log.info("check='shadow': a compiled graph raises what eager does not", exc_info=error)
            found = [Difference("call", 0, f"it raises {told.splitlines()[0]}")]
        if found:
            self._revert(found, eager, args)

    def _untold(self, reason: str, error: Exception | None = None) -> None:
        """This graph cannot be compared, which the report says once."""
        log.info("check='shadow' compares nothing: %s", reason, exc_info=error)
        reason = reason.splitlines()[0]
        self.report.finding("shadow", f"a graph was not compared: {reason}", self.gm.meta.get("name"))

    def _revert(self, found: list[Difference], eager: Ran, args: Sequence[Any]) -> None:
        difference = found[0]
        name, where = place_of(self.gm, difference)
        others = f" ({len(found) - 1} further results differ too)" if len(found) > 1 else ""
        reason = f"check='shadow': {name} of the compiled graph is not eager's: {difference.detail}{others}"
        path = None
        try:
            script = write_script("wrong result", reason, self.gm, args, self.options, self.backend)
            path = None if script is None else script.path
        except Exception as error:  # a reproduction is a help, and its failure no reason to fail
            log.info("a reproduction could not be written", exc_info=error)
        written = [k for k, (x, y) in enumerate(zip(args, eager.state, strict=False)) if _written(x, y)]
        self.eager = undoing(self.gm.forward, written)
        self.compiled = None
        self.report.finding("shadow", f"{name}: {difference.detail}{others}", where, path)
        if raises_defects(self.options, self.report):
            raise InternalError(reason + (f"\n  at {where}" if where else ""))
        todo = f"To see it again: python {path}" if path else ""
        leave_to_eager(self.report, None, "check", reason, where, todo=todo)


def _written(before: Any, after: Any) -> bool:
    """Whether a run has changed a copy of this input."""
    return isinstance(before, torch.Tensor) and not (
        before.shape == after.shape and torch.equal(before.detach(), after.detach())
    )


def _plain() -> bool:
    """Whether a call may be repeated here: no mode or transform watches it."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_function_stack() == 0
    )
