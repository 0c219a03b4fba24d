"""Artefacts: compiled callables as values that can be kept, sent and restored in another process.

A stage's callable that can travel has a method ``artefact()``, which gives an :class:`Artefact`: what the stage's
loader makes the callable of again, without doing the stage's work. An artefact is a tree: each stage tells of its own
part, and holds those of the callables under it as ``children``. The loader of a kind is named where it is registered
(:func:`register_loader`) and imported when something of its kind is restored.

The serial form is JSON and bytes under one checksum::

    magic, 8 bytes: length of the JSON, 8 bytes: length of the bytes, 32 bytes: SHA-256 of all that follows
    JSON: the tree, with ``[offset, length]`` in the bytes for each file
    the bytes of all files

An artefact holds machine code and generated Python text, so that restoring one is running a program: take them from
whom you would take a program from. The checksum finds what was damaged, not what was forged. What breaks the form
raises :class:`prims.errors.StoredGraphError` with a label of :data:`RULES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from prims.errors import QuintetError, StoredGraphError, Unsupported
from prims.records import record

if TYPE_CHECKING:
    from prims.options import Options
    from prims.report import Report

__all__ = [
    "RULES", "Artefact", "NotPortable", "artefact_of", "child_of", "from_bytes", "known_kinds", "read_checked",
    "register_loader", "restore", "to_bytes",
]  # fmt: skip

RULES = {
    "ART-C1": "The magic and the version of the form are those of this module.",
    "ART-C2": "The lengths are those of the data, and the checksum is its.",
    "ART-C3": "The tree has its form: kinds and names are short texts, spans lie in the data.",
    "ART-C4": "The kind is known here, and its loader takes this version of it.",
    "ART-C5": "What the loader reads has the form that its stage writes.",
    "ART-C6": "It was made for this kind of machine, and for these versions.",
}

_MAGIC = b"quintet artefact 1\n"
_HEAD = struct.Struct("<QQ32s")
#: Bytes of the JSON, depth of the tree, characters of a name.
_MAX_TEXT, _MAX_DEPTH, _MAX_NAME = 256 << 20, 32, 1000


class NotPortable(Unsupported):
    """A compiled callable cannot travel; ``reason`` says why. It serves this process all the same."""


@record
class Artefact:
    """What a callable is made of again.

    Attributes:
        kind: whose it is, which decides the loader: ``"inductor_gen.graph"``.
        version: of what the loader reads; another is refused.
        text: values of JSON.
        files: bytes by name: machine code, constants, graphs that are seldom read.
        children: the artefacts of callables under it, by name.
    """

    kind: str
    version: str
    text: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    children: Mapping[str, Artefact] = field(default_factory=dict)


#: The loader of each kind, as ``module:function``.
_LOADERS: dict[str, str] = {
    "prims.graph": "prims.ir.blame:load", "prims.conditional": "prims.ir.conditions:load"
}  # fmt: skip


def register_loader(kind: str, place: str) -> None:
    """Name the loader of a kind: ``"module:function"``, which is imported when it is first needed.

    The function takes ``(artefact, options, report)`` and returns the callable; it raises ``StoredGraphError`` for what
    its stage has not written, or not for such a machine.
    """
    _LOADERS[kind] = place


def known_kinds() -> tuple[str, ...]:
    """The kinds that can be restored here."""
    return tuple(sorted(_LOADERS))


def artefact_of(compiled: Callable[..., Any]) -> Artefact | NotPortable:
    """The artefact of a compiled callable, or why there is none (returned, not raised)."""
    method = getattr(compiled, "artefact", None)
    if method is None:
        return NotPortable(f"a {type(compiled).__name__} cannot be stored")
    try:
        return method()  # type: ignore[no-any-return]
    except NotPortable as reason:
        return NotPortable(reason.reason, where=reason.where)  # without the frames, which hold what was to be stored
    except StoredGraphError as error:  # a graph that names something which no file may name
        return NotPortable(str(error))


def child_of(compiled: Callable[..., Any]) -> Artefact:
    """The artefact of a callable under another one, which travels only with it.

    Raises:
        NotPortable: there is none.
    """
    found = artefact_of(compiled)
    if isinstance(found, NotPortable):
        try:
            raise found
        finally:
            del found  # it refers to this frame
    return found


def restore(artefact: Artefact, *, options: Options, report: Report | None = None) -> Callable[..., Any]:
    """The callable of an artefact, which has itself a method ``artefact()`` again.

    Args:
        options: those of the process that restores it. What depends on options that change code is asked of the key
            under which the artefact is kept.
        report: receives what is loaded.

    Raises:
        StoredGraphError: no loader is known, or it refuses the artefact.
    """
    place = _LOADERS.get(artefact.kind)
    if place is None:
        raise StoredGraphError("ART-C4", f"nothing is known here of artefacts of the kind {artefact.kind!r}")
    module, _, name = place.partition(":")
    loader = getattr(importlib.import_module(module), name)
    with read_checked(artefact.kind):
        return loader(artefact, options, report)  # type: ignore[no-any-return]


@contextlib.contextmanager
def read_checked(what: str) -> Iterator[None]:
    """Any error in reading an artefact is one about its form.

    Raises:
        StoredGraphError: in place of any other error.
    """
    try:
        yield
    except QuintetError:
        raise
    except (Exception, RecursionError) as error:
        message = str(error).splitlines()[0][:200] if str(error) else ""
        raise StoredGraphError("ART-C5", f"{what}: {type(error).__name__}: {message}") from error


def to_bytes(artefact: Artefact) -> bytes:
    """The serial form."""
    files: list[bytes] = []
    tree = _tree(artefact, files, [0])
    text = json.dumps(tree, separators=(",", ":")).encode()
    body = b"".join(files)
    held = hashlib.sha256(text)
    held.update(body)
    return b"".join((_MAGIC, _HEAD.pack(len(text), len(body), held.digest()), text, body))


def _tree(artefact: Artefact, files: list[bytes], end: list[int]) -> dict[str, Any]:
    spans = {}
    for name, data in artefact.files.items():
        spans[name] = [end[0], len(data)]
        end[0] += len(data)
        files.append(data)
    children = {name: _tree(child, files, end) for name, child in artefact.children.items()}
    return {
        "kind": artefact.kind, "version": artefact.version, "text": artefact.text, "files": spans, "children": children,
    }  # fmt: skip


def from_bytes(data: bytes) -> Artefact:
    """The artefact of a serial form.

    Raises:
        StoredGraphError: it is none, or was damaged.
    """
    start = len(_MAGIC) + _HEAD.size
    if data[: len(_MAGIC)] != _MAGIC:
        raise StoredGraphError("ART-C1", "this is no artefact, or one of another version of the form")
    if len(data) < start:
        raise StoredGraphError("ART-C2", f"an artefact ends after {len(data)} bytes")
    words, rest, digest = _HEAD.unpack_from(data, len(_MAGIC))
    if words > _MAX_TEXT or len(data) != start + words + rest:
        raise StoredGraphError("ART-C2", f"an artefact has {len(data)} bytes, not the {start + words + rest} it states")
    view = memoryview(data)
    if hashlib.sha256(view[start:]).digest() != digest:
        raise StoredGraphError("ART-C2", "an artefact's checksum is that of other data")
    try:
        tree = json.loads(data[start : start + words])
    except (ValueError, RecursionError) as error:
        raise StoredGraphError("ART-C3", f"an artefact's text is no JSON: {error}") from error
    return _artefact(tree, view[start + words :], 0)


def _artefact(tree: Any, body: memoryview, depth: int) -> Artefact:
    if depth > _MAX_DEPTH or not isinstance(tree, dict):
        raise StoredGraphError("ART-C3", f"an artefact is a {type(tree).__name__} at depth {depth}")
    if tree.keys() != {"kind", "version", "text", "files", "children"}:
        raise StoredGraphError("ART-C3", f"an artefact has the fields {sorted(tree)}")
    parts = {name: tree[name] for name in ("text", "files", "children")}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise StoredGraphError("ART-C3", "an artefact's text, files or children are no names with values")
    files = {}
    for name, span in parts["files"].items():
        if not isinstance(span, list) or len(span) != 2 or not all(type(n) is int and n >= 0 for n in span):
            raise StoredGraphError("ART-C3", f"the file {name[:80]!r} has the place {str(span)[:80]}")
        if span[0] + span[1] > len(body):
            raise StoredGraphError("ART-C3", f"the file {name[:80]!r} ends behind the data")
        files[_name(name)] = bytes(body[span[0] : span[0] + span[1]])
    children = {_name(name): _artefact(child, body, depth + 1) for name, child in parts["children"].items()}
    return Artefact(_name(tree["kind"]), _name(tree["version"]), tree["text"], files, children)


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise StoredGraphError("ART-C3", f"a name is {str(value)[:80]!r}")
    return value
