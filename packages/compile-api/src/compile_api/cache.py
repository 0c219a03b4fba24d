"""Whole programs from process to process: what became of them, and one file to take to another machine.

>>> import compile_api
>>> model = compile_api.compile(model, options={"program_cache": True})  # doctest: +SKIP
>>> print(compile_api.cache.explain(model))  # doctest: +SKIP
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from compile_api import programs
from prims.artefact import Artefact, from_bytes, to_bytes
from prims.disk.folders import write_private
from prims.errors import StoredGraphError, UserError
from prims.report import ProgramRecord, Report

__all__ = ["Explained", "explain", "load_artifacts", "save_artifacts"]

_KIND, _VERSION = "compile_api.programs", "1"


class Explained(list[ProgramRecord]):
    """What became of each frame, in the order of the calls; as text, a line for each."""

    def __str__(self) -> str:
        if not self:
            why = "the option program_cache is off, the stages are to be seen, or nothing was called yet"
            return f"no frame was looked for: {why}"
        return "\n".join(map(str, self))


def explain(compiled: Any) -> Explained:
    """Which frames of a compiled function or module came from the store, and why others did not.

    A record has a function's ``name``, a ``status`` and a ``reason``: ``"loaded"``; ``"missed"``, with the field that
    is different (``code``, ``class``, ``guard``, ``tensor``, ``state``, ``library``, ...), once for each stored
    variant; ``"stored"``; or ``"not stored"``, with what ties it to its process.

    Raises:
        UserError: it is not compiled.
    """
    report = getattr(compiled, "report", None)
    found = report() if callable(report) else None
    if not isinstance(found, Report):
        raise UserError(f"{compiled!r} is not compiled", todo="Give what compile_api.compile returned.")
    return Explained(found.programs)


def save_artifacts(path: str | os.PathLike[str]) -> int:
    """Write all programs that this process has made or loaded into one file.

    Another machine of the same kind, with the same versions, loads it by :func:`load_artifacts`; the folder and the
    user may be others.

    Returns:
        How many programs it holds.

    Raises:
        OSError: it cannot be written.
    """
    made = programs.made_here()
    children: dict[str, Artefact] = {}
    keys: list[str] = []
    for key, entry in made:
        name = str(len(keys))
        children[name] = entry
        keys.append(key)
    whole = Artefact(_KIND, _VERSION, {"keys": keys}, {}, children)
    try:
        write_private(Path(path), to_bytes(whole))
    except OSError as error:  # of a file beside it, which nobody has named
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
    return len(keys)


def load_artifacts(path: str | os.PathLike[str]) -> int:
    """Read a file of :func:`save_artifacts`: functions that are compiled with ``program_cache`` find its programs.

    The file holds programs, which are run: take it from whom you would take a program from.

    Returns:
        How many programs it holds.

    Raises:
        UserError: it is no such file, or was damaged.
        OSError: it cannot be read.
    """
    try:
        whole = from_bytes(Path(path).read_bytes())
        keys = whole.text.get("keys")
        if whole.kind != _KIND or whole.version != _VERSION or not isinstance(keys, list):
            raise StoredGraphError("ART-C4", f"it is of the kind {whole.kind!r}, version {whole.version!r}")
        found = [(str(key), whole.children[str(number)]) for number, key in enumerate(keys)]
    except (StoredGraphError, KeyError) as error:
        what = f"{os.fspath(path)} holds no programs: {error}"
        raise UserError(what, todo="Make it anew by save_artifacts.") from None
    with programs._lock:
        for key, entry in found:
            programs._loaded.setdefault(key, []).append(entry)
    return len(found)
