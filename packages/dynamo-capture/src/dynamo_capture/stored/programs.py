"""What capture asks of a store of whole programs, and under which key."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dynamo_capture import __version__
from dynamo_capture.stored.facts import code_digest
from dynamo_capture.stored.surroundings import of_torch, settings
from dynamo_capture.whynot import place_of
from prims.artefact import Artefact, NotPortable
from prims.options import Options
from prims.records import record
from prims.stance import raises_defects

if TYPE_CHECKING:
    from dynamo_capture.request import FrameRequest
    from dynamo_capture.state import CodeState
    from dynamo_capture.stored.reading import Restored
    from dynamo_capture.stored.writing import Kept
    from prims.report import Report

__all__ = [
    "NOT_IN_KEY", "Programs", "Unfinished", "begin_storing", "frame_key", "options_text", "store_program",
    "stored_program",
]  # fmt: skip

#: Options under which a frame comes to the same program.
NOT_IN_KEY = frozenset((
    "cache", "cache_dir", "cache_size_limit", "program_cache", "compile_workers", "compile_timeout", "debug",
    "recompile_limit", "verify", "strict", "logs", "progress", "background",
))  # fmt: skip


class Programs(Protocol):
    """A store. None of its methods raises.

    Attributes:
        backend: whose programs these are: the backend's name, and the text of the packages that make them.
    """

    backend: str

    def find(self, key: str) -> Sequence[Artefact]:
        """The entries under a key, the newest first."""

    def put(self, key: str, entry: Artefact) -> None:
        """Keep one more entry.

        Raises:
            NotPortable: it may not be kept.
        """

    def used(self, key: str, entry: Artefact) -> None:
        """Be told that an entry serves."""

    def note(self, name: str, status: str, reason: str | None, where: str | None) -> None:
        """Be told what became of a frame: ``"loaded"``, ``"missed"``, ``"stored"`` or ``"not stored"``, and why."""


def frame_key(request: FrameRequest, options: Options, backend: str) -> str:
    """The key of a frame's programs: its code and module, whose it is, the options and the backend, and what all
    captures rest on.

    Raises:
        NotPortable: the code holds a constant that is no plain value, or torch holds something strange.
    """
    module = request.globals.get("__name__")
    whose = (code_digest(request.code), str(module), *_owners(request))
    parts = (*whose, options_text(options), backend, *_surroundings())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _owners(request: FrameRequest) -> Iterator[str]:
    """Names that tell frames of one code apart: of the module's class and of functions that a decorator wraps.

    All models of a library may go through one wrapper; a key has place for a few programs.
    """
    first = next(iter(request.args.values()), None)
    if isinstance(first, torch.nn.Module):
        yield f"{type(first).__module__}.{type(first).__qualname__}"
    for cell in request.closure:
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if type(held) is types.FunctionType:
            yield f"{held.__module__}.{held.__qualname__}"


def options_text(options: Options) -> str:
    """The options and torch's settings that a program depends on, for its key."""
    values = {name: getattr(options, name) for name in sorted(options.names()) if name not in NOT_IN_KEY}
    values["threads"] = options.threads or torch.get_num_threads()
    return repr((values, settings()))


def _surroundings() -> tuple[str, ...]:
    """Python, torch, and what is patched in it."""
    return (*_versions(), of_torch())


@functools.cache
def _versions() -> tuple[str, ...]:
    return (
        sys.version, sys.implementation.cache_tag or "", torch.__version__, str(torch.version.git_version), __version__,
        str(sys.flags.optimize),
    )  # fmt: skip


def stored_program(
    programs: Programs, request: FrameRequest, options: Options, report: Report, state: CodeState
) -> Restored | None:
    """The first program of a store that serves a frame; None where none does, and the store is told why."""
    from dynamo_capture.stored.reading import Missed, read

    code = request.code
    name, where = code.co_qualname, place_of(code)
    if request.devices:
        programs.note(name, "missed", "state: there is a default device", where)
        return None
    try:
        key = frame_key(request, options, programs.backend)
        entries = programs.find(key)
    except NotPortable as error:
        programs.note(name, "missed", error.reason, where)
        return None
    if not entries:
        programs.note(name, "missed", "code: none is stored of this code, with these options and versions", where)
    found = None
    for entry in entries:
        try:
            found = read(entry, request, options, report)
            programs.used(key, entry)
            state.sizes.take(found.sizes, same=True)
            break
        except Missed as missed:
            programs.note(name, "missed", str(missed), where)
        except Exception as error:  # likewise
            if raises_defects(options):
                raise
            programs.note(name, "missed", f"entry: {type(error).__name__}: {error}", where)
    if entries and not state.informed:
        state.informed = True
        sizes = entries[0].text.get("sizes")
        if isinstance(sizes, dict):  # of the last capture: what changed then is symbolic from the first capture here
            state.sizes.take(sizes, same=False)
    if found is not None:
        programs.note(name, "loaded", None, where)
    return found


def store_program(programs: Programs, kept: Kept, options: Options, state: CodeState) -> None:
    """Put a translation into a store, or tell it why it cannot be."""
    unfinished = begin_storing(programs, kept, options, state)
    if unfinished is not None:
        unfinished.put()


def begin_storing(programs: Programs, kept: Kept, options: Options, state: CodeState) -> Unfinished | None:
    """Write down a translation for a store; None where it cannot be, and the store is told why."""
    from dynamo_capture.stored.writing import entry_of

    code = kept.request.code
    name, where = code.co_qualname, place_of(code)
    try:
        key = frame_key(kept.request, options, programs.backend)
        entry = entry_of(kept, state.sizes.known())
    except NotPortable as error:
        programs.note(name, "not stored", error.reason, str(error.where or where))
        return None
    except Exception as error:  # what the program's own objects raise when they are looked at
        if raises_defects(options):
            raise
        programs.note(name, "not stored", f"{type(error).__name__}: {error}", where)
        return None
    return Unfinished(programs, key, entry, name, where)


@record
class Unfinished:
    """A translation that is written down, and refers to nothing of the call that it was captured in."""

    programs: Programs
    key: str
    entry: Artefact
    name: str
    where: str | None

    def put(self) -> None:
        """Put it into the store."""
        try:
            self.programs.put(self.key, self.entry)
        except NotPortable as error:
            self.programs.note(self.name, "not stored", error.reason, self.where)
        else:
            self.programs.note(self.name, "stored", None, self.where)

    def finish(self, compiled: Callable[..., Any], late: bool) -> None:
        """Put it into the store with the graph that was compiled since.

        Args:
            late: guards came up meanwhile, which are not written down.
        """
        from dynamo_capture.stored.writing import finished

        try:
            if late:
                raise NotPortable("the background has asked about sizes, of which no guard is written down")
            replace(self, entry=finished(self.entry, compiled)).put()
        except NotPortable as error:
            self.programs.note(self.name, "not stored", error.reason, str(error.where or self.where))
