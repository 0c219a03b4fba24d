"""A compiled graph that is given up for the eager one when it fails where eager does not."""

from __future__ import annotations

import logging
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.artefact import Artefact, NotPortable, child_of, restore
from prims.coding import decoded, encoded
from prims.collectives import exchanges
from prims.eager import leave_to_eager, run_instead
from prims.errors import InvalidData, QuintetError, Refused, StoredGraphError, Unsupported
from prims.generators import RandomState
from prims.ir import Envelope
from prims.ir.blame import blaming
from prims.options import Options
from prims.report import Report
from prims.signals import comes_of_signal
from prims.spec import TensorSpec
from prims.stance import raises_defects

__all__ = ["KIND", "Guarded", "eager_graph", "eagerly_instead", "fall_back", "load"]

KIND = "compile_api.guarded"
_VERSION = "1"

log = logging.getLogger("quintet")


def fall_back(
    stage: str, error: Exception, options: Options, report: Report, *, refuses: bool = True, todo: str | None = None
) -> None:
    """Record and warn why a region runs eagerly; raises instead under ``strict``, and ``fullgraph`` (``refuses``).

    A stage's ``UserError`` (no C compiler, say) is something that the user can mend, and says how. ``todo``: what there
    is to do about this one.
    """
    reason, todo = _why(stage, error, options, report, todo)
    where = getattr(error, "where", None)
    leave_to_eager(report, options if refuses else None, stage, reason, where, todo=todo, cause=error)


def eagerly_instead(
    run: Callable[..., Any], stage: str, error: Exception, options: Options, report: Report, todo: str | None = None
) -> Callable[..., Any]:
    """As :func:`fall_back`, of a region that was never compiled: what runs, and warns (``prims.eager.run_instead``)."""
    reason, todo = _why(stage, error, options, report, todo)
    where = getattr(error, "where", None)
    return run_instead(run, report, options, stage, reason, where, todo=todo, cause=error)


def _why(
    stage: str, error: Exception, options: Options, report: Report, todo: str | None
) -> tuple[str, str | None]:  # fmt: skip
    """The reason, and what to do about it; raises the error where it is to be raised."""
    if raises_defects(options, report, error):
        raise error
    if isinstance(error, torch.OutOfMemoryError):
        reason, todo = _out_of_memory(error, report), _WITH_LESS_MEMORY
    else:
        reason = str(error) if isinstance(error, QuintetError) else f"{type(error).__name__}: {error}"
    log.info("%s failed, running eagerly: %s", stage, reason, exc_info=error)
    return reason, todo


_WITH_LESS_MEMORY = (
    "Such a call runs eagerly, later ones run compiled code again. To take less: a lower memory_budget, as in "
    "options={'memory_budget': 0.5} (of what a training step saves), or a smaller batch; report().memory and "
    "report().saved have who holds what."
)


def _out_of_memory(error: Exception, report: Report) -> str:
    """What ran out of memory, what was planned, and who holds most of that."""
    said = str(error).partition("\n")[0]
    planned = max(report.memory, key=lambda memory: memory.peak, default=None)
    if planned is None:  # loaded, not compiled here
        return f"out of memory: {said}"
    held = "; ".join(f"{size} {what}" + (f" at {where}" if where else "") for size, what, where in planned.held[:2])
    return f"out of memory: {said} The largest plan of its graphs takes {planned.peak} bytes at once, the most: {held}"


def eager_graph(env: Envelope) -> Callable[..., Any]:
    """The graph run operator by operator.

    A compiled forward graph may have laid out images that it saved otherwise than eager does, which neither a view nor
    a library's kernel in this graph may take: they are given the strides with which the graph was traced.
    """
    forward = blaming(env.module())
    saved = [k for k, desc in enumerate(env.inputs) if desc.kind == "saved" and _is_row_major(desc.spec)]
    if not saved:
        return forward

    def relaid(*inputs: Any) -> Any:
        given = list(inputs)
        for k in saved:
            given[k] = given[k].contiguous()
        return forward(*given)

    return relaid


def _is_row_major(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and all(isinstance(s, int) for s in spec.shape) and spec.is_contiguous()


#: The last graph of which an artefact was made, which is stored by itself and then with its frame.
_last: tuple[weakref.ref[Guarded] | None, Any] = (None, None)


class Guarded:
    """A compiled graph that is given up for the eager one when it fails where eager does not.

    A compiled graph applies no mutations (the ahead-of-time runtime does) but those that may be applied twice, so that
    running the region again is safe.
    An error that eager raises too is the program's own and is raised as eager raises it.
    """

    __slots__ = ("__weakref__", "_env", "_stored", "compiled", "drawn", "options", "proved", "report", "said")

    def __init__(
        self, compiled: Callable[..., Any], env: Envelope | bytes, drawn: frozenset[torch.device], options: Options,
        report: Report,
    ) -> None:  # fmt: skip
        self.compiled = compiled
        self._env = env
        self.drawn = drawn
        self.options = options
        self.report = report
        self.proved = False
        self._stored: Callable[..., Any] | None = None  # what the artefact was made of
        self.said = False  # the report has why a call was left to eager alone

    @property
    def env(self) -> Envelope:
        """The graph that was compiled; that of a stored program is read when it is first asked for."""
        if isinstance(self._env, bytes):
            from prims.ir.serial import from_json

            self._env = from_json(self._env.decode())
        return self._env

    def artefact(self) -> Artefact:
        """The compiled graph, and the eager one as text."""
        global _last
        graph, made = _last
        if graph is None or graph() is not self or self.compiled is not self._stored:
            files, children = {"eager": self._text()}, {"graph": child_of(self.compiled)}
            made = Artefact(KIND, _VERSION, {"drawn": encoded(self.drawn)}, files, children)
            self._stored = self.compiled
            _last = weakref.ref(self), made
        return made

    def _text(self) -> bytes:
        if isinstance(self._env, bytes):
            return self._env
        if self._env.constants:
            raise NotPortable("a graph with constants is not stored")
        from prims.ir.serial import to_json

        return to_json(self._env, indent=None).encode()

    def boxed(self, inputs: list[Any]) -> Any:
        """Run on a list of inputs that is given up, so that each can be freed after its last use.

        The first call keeps the inputs, so that the region can be run again if it fails. A later failure is mended so
        too, unless inputs were freed by then: the error is raised, and the region runs eagerly from the next call on.
        """
        direct = getattr(self.compiled, "boxed", None)
        if not self.proved or direct is None:
            results = self(*inputs)
            inputs.clear()
            return results
        before = RandomState(self.drawn)
        try:
            return direct(inputs)
        except Exception as error:
            if self._raises(error):
                raise
            before.put_back()
            kept = self.compiled.surviving_inputs(error) if hasattr(self.compiled, "surviving_inputs") else None
            if kept is None and not isinstance(error, (torch.OutOfMemoryError, InvalidData)):
                self.compiled = eager_graph(self.env)
                fall_back("run", error, self.options, self.report, refuses=False)
                error.add_note(
                    "This came from a compiled graph whose inputs were partly freed by then, so that this call cannot "
                    "be repeated eagerly. The next ones run eagerly."
                )
            if kept is None:
                raise
            failure = error
        return self._instead(failure, kept)

    def __call__(self, *inputs: Any) -> Any:
        before = RandomState(self.drawn)
        try:
            results = self.compiled(*inputs)
        except Exception as error:
            batched = _is_batched(inputs)
            if not batched and self._raises(error):
                raise
            before.put_back()
            failure = Unsupported(_BATCHED) if batched else error
        else:
            if not self.proved:
                self.proved = True
                self.report.status("graph", "compiled")
            return results
        # Outside the handler: what eager raises is the program's own error, not one that came of handling this one.
        return self._instead(failure, inputs)

    def _raises(self, error: Exception) -> bool:
        """Whether the error is to be seen as it is. Other processes do not run a region again because this one does."""
        if exchanges(self.env.graph) or comes_of_signal(error):
            return True
        if self.options.deterministic and _NOT_DETERMINISTIC in str(error):  # eager would run it all the same
            return True
        if isinstance(error, (Refused, InvalidData)):
            return isinstance(error, Refused)
        return raises_defects(self.options, self.report, error)

    def _instead(self, error: Exception, inputs: Sequence[Any]) -> Any:
        """The results by the eager graph, which takes over if it succeeds; its error is the program's own.

        After running out of memory it serves for this call only: there may be more the next time. So it does for a
        batch of tangents.
        """
        full = isinstance(error, torch.OutOfMemoryError)
        once = full or _is_batched(inputs)
        _let_go(error)
        if full:
            generated = sys.modules.get("inductor_gen")  # no import here: another thread may be compiling
            if generated is not None:
                generated.free_memory()
        eager = eager_graph(self.env)
        with torch.no_grad():
            results = eager(*inputs)
        if not once:
            self.compiled = eager
            self.proved = True
        if not (once and self.said):
            todo = _FOR_THIS_CALL if once and not full else None
            fall_back("run", error, self.options, self.report, refuses=not once, todo=todo)
        self.said = self.said or once
        return results


_NOT_DETERMINISTIC = "does not have a deterministic implementation"
_FOR_THIS_CALL = "Such a call runs eagerly, later ones run compiled code again."
_BATCHED = "gradients for a batch of tangents at once (is_grads_batched, functional.jacobian with vectorize)"


def _is_batched(inputs: Sequence[Any]) -> bool:
    """Whether autograd calls a backward pass for many tangents at once, by tensors that stand for a batch."""
    kinds = torch._C._functorch
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(kinds.is_legacy_batchedtensor(x) or kinds.is_batchedtensor(x) for x in tensors)


def load(artefact: Artefact, options: Options, report: Report | None) -> Guarded:
    """The callable of an artefact of :meth:`Guarded.artefact` (a loader).

    Raises:
        StoredGraphError: it is of another version.
    """
    if artefact.version != _VERSION:
        raise StoredGraphError("ART-C4", f"a {KIND} of version {artefact.version!r}")
    compiled = restore(artefact.children["graph"], options=options, report=report)
    drawn = decoded(artefact.text["drawn"])
    return Guarded(compiled, artefact.files["eager"], drawn, options, Report() if report is None else report)


def _let_go(error: BaseException | None) -> None:
    """Free the tensors that the frames of a failed run hold, those that closures and looked-up locals in them hold too;
    where the error came from is logged now."""
    if log.isEnabledFor(logging.INFO):
        log.info("a compiled graph failed:\n%s", "".join(traceback.format_exception(error)))
    outside = sys.exception()  # what the program is handling
    while error is not None and error is not outside:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
