"""The disk store of whole programs: what capture wrote of frames, under the keys of their code.

``<cache_dir>/programs/<key>/<digest>.program`` is one program; a key has one for each variant of the frame (other
types, other sizes). A file is named by the SHA-256 of its content, appears by an atomic rename, and says itself under
which key it stands, so that writers do not disturb each other and no program can be exchanged for another's. Folders
are their owner's only, and the programs that were used least recently go when the size limit is passed. Losing any file
at any time, or finding anything else in its place, costs doing its work again and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
import weakref
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from prims.artefact import Artefact, NotPortable, artefact_of, from_bytes, register_loader, restore, to_bytes
from prims.disk.cache import Entries
from prims.disk.folders import UnsafeFolder, check_private, private_folder, read_private, warn_of, write_private
from prims.disk.room import Room
from prims.errors import StoredGraphError
from prims.forking import lock
from prims.ir import Envelope
from prims.logs import parse_logs, shown
from prims.options import Options
from prims.report import Report

__all__ = ["DiskGraphs", "DiskPrograms", "ProgramFolder", "graphs_of", "programs_of", "text_of_packages"]

_KEY = re.compile(r"[0-9a-f]{64}")
_MAX_PROGRAM = 1 << 30
#: Variants of one frame that are kept.
_MAX_VARIANTS = 16
_SUFFIX = ".program"


class ProgramFolder:
    """The files.

    Args:
        root: the folder ``programs``.
        limit: bytes that they may take.
    """

    def __init__(self, root: str | os.PathLike[str], limit: int) -> None:
        self.root = Path(root)
        self._room = Room(self.root, f"*/*{_SUFFIX}", limit)

    def find(self, key: str) -> Iterator[Artefact]:
        """The programs under a key, the newest first, which count as used. What is damaged or another's is left out."""
        return (entry for _, entry in self.found(key))

    def found(self, key: str) -> Iterator[tuple[Path, Artefact]]:
        """The same with the files that they are in."""
        if not _KEY.fullmatch(key) or not self._is_safe(self.root / key):
            return
        for path in self._files(self.root / key):
            try:
                data = read_private(path, _MAX_PROGRAM)
            except FileNotFoundError:
                continue
            except OSError:
                self._strange(f"{path.name} is no file of this user's")
                continue
            entry = self._entry(path, key, data)
            if entry is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)
                yield path, entry

    def _is_safe(self, folder: Path) -> bool:
        """Whether a folder is there that nobody else could have filled; where somebody could, there is a warning."""
        try:
            check_private(Path(os.path.realpath(folder)))
        except UnsafeFolder as error:
            self.refuse(error)
            return False
        except OSError:
            return False
        return True

    def refuse(self, error: UnsafeFolder) -> None:
        """Warn that nothing of the cache is used, and why."""
        warn_of(self.root.parent, f"it is not used, because {error}", "Set QUINTET_CACHE_DIR to another folder.")

    def put(self, key: str, entry: Artefact) -> Path:
        """Keep one more program; returns its file.

        Raises:
            OSError: it cannot be written.
        """
        data = to_bytes(Artefact(entry.kind, entry.version, {**entry.text, "key": key}, entry.files, entry.children))
        private_folder(self.root, key)
        path = self._place(key, data)
        write_private(path, data)
        for old in self._files(self.root / key)[_MAX_VARIANTS:]:
            _unlink(old)
        self._room.written(path, len(data))
        return path

    def contents(self, key: str, path: Path) -> Artefact | None:
        """The program of a file; None where it is there no longer."""
        try:
            return self._entry(path, key, read_private(path, _MAX_PROGRAM))
        except OSError:
            return None

    def everything(self) -> Iterator[tuple[str, bytes]]:
        """All programs that can be read, each with its key."""
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if _KEY.fullmatch(folder.name):
                for path in self._files(folder):
                    with contextlib.suppress(OSError):
                        yield folder.name, read_private(path, _MAX_PROGRAM)

    def _place(self, key: str, data: bytes) -> Path:
        return self.root / key / f"{hashlib.sha256(data).hexdigest()}{_SUFFIX}"

    def _entry(self, path: Path, key: str, data: bytes) -> Artefact | None:
        try:
            if hashlib.sha256(data).hexdigest() != path.stem:
                raise StoredGraphError("ART-C2", "the content is not what the name says")
            entry = from_bytes(data)
            if entry.text.get("key") != key:
                raise StoredGraphError("ART-C3", "it is of another key")
        except StoredGraphError:
            self._strange(f"{path.name} is damaged")
            _unlink(path)
            return None
        return entry

    def _files(self, folder: Path) -> list[Path]:
        """The files of a folder, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for each in os.scandir(folder):
                if each.name.endswith(_SUFFIX):
                    with contextlib.suppress(OSError):
                        found.append((each.stat(follow_symlinks=False).st_mtime_ns, each.path))
        return [Path(path) for _, path in sorted(found, reverse=True)]

    def _strange(self, what: str) -> None:
        warn_of(str(self.root), what, "Remove it, so that it is made anew.")


class DiskPrograms:
    """The store of one compiled function or module (``dynamo_capture.stored.programs.Programs``).

    Args:
        backend: whose programs these are.
        folder: where they are kept.
        report: is told what becomes of each frame.
    """

    def __init__(self, backend: str, folder: ProgramFolder, report: Report) -> None:
        self.backend = backend
        self.folder = folder
        self.report = report
        self._found: list[tuple[Path, Artefact]] = []

    def find(self, key: str) -> Sequence[Artefact]:
        """The programs under a key, the newest first, those of ``load_artifacts`` behind those of the disk."""
        if exchanged():
            return ()
        self._found = [*self.folder.found(key)]
        return [*(entry for _, entry in self._found), *_loaded.get(key, ())]

    def put(self, key: str, entry: Artefact) -> None:
        """Keep one more program, also for ``save_artifacts``.

        Raises:
            NotPortable: it was not made by the packages alone.
        """
        if exchanged():
            raise NotPortable("a device's row, or a decomposition, is this process's own")
        try:
            _note(key, self.folder, self.folder.put(key, entry))
        except UnsafeFolder as error:
            self.folder.refuse(error)
        except OSError as error:
            why = f"nothing can be written into it ({error.strerror or error})"
            warn_of(self.folder.root.parent, why, "Make room, or set QUINTET_CACHE_DIR to another folder.")

    def note(self, name: str, status: str, reason: str | None, where: str | None) -> None:
        """Be told what became of a frame."""
        self.report.program(name, status, reason, where)

    def used(self, key: str, entry: Artefact) -> None:
        """A program has served; ``save_artifacts`` takes it along."""
        path = next((path for path, one in self._found if one is entry), None)
        _note(key, self.folder, entry if path is None else path)
        self._found = []


class DiskGraphs:
    """Compiled graphs in the same store, by the text of what was compiled: for frames that are captured anew, for
    backward passes, which are compiled when they are first run, and for graphs that several programs have.

    Args:
        programs: the store.
        options: those that graphs are compiled with.
    """

    def __init__(self, programs: DiskPrograms, options: Options) -> None:
        self.programs = programs
        self.options = options

        self._digests: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()

    def digest(self, env: Envelope) -> str:
        """The name of a graph: its text, constants by their digests, and what the text does not say of its nodes and of
        its sizes."""
        sizes, known = self._digests.get(env.graph, (None, ""))
        if sizes != env.symbols.entries:  # one graph may be compiled for several sizes
            from prims.ir.conditions import facts

            beside = [[node.meta.get(key) for key in _BESIDE] for node in env.graph.nodes]
            plain = [[sorted(x) if isinstance(x, frozenset) else x for x in values] for values in beside]
            known = hashlib.sha256("\n".join((env.hash(), repr(plain), *facts(env))).encode()).hexdigest()
            self._digests[env.graph] = env.symbols.entries, known
        return known

    def _key(self, digest: str, in_place: bool) -> str:
        """The key of a graph of that name: all that a compiler is told beside it."""
        from dynamo_capture.stored.programs import options_text  # packages run where nothing captures

        told = options_text(self.options), self.programs.backend, torch.__version__
        return hashlib.sha256("\n".join(("graph", digest, str(in_place), *told)).encode()).hexdigest()

    def find(self, digest: str, in_place: bool) -> Any:
        """The compiled graph of a name; None where there is none that serves here."""
        key = self._key(digest, in_place)
        for entry in self.programs.find(key):
            try:
                with self.programs.report.phase("restore"):
                    compiled = restore(entry, options=self.options, report=self.programs.report)
            except StoredGraphError as error:
                self.programs.note("a graph", "missed", str(error), None)
                continue
            self.programs.used(key, entry)
            return compiled
        return None

    def keep(self, digest: str, in_place: bool, compiled: Any) -> None:
        """Keep a compiled graph, where it can be."""
        try:
            entry = artefact_of(compiled)
            if isinstance(entry, NotPortable):
                raise entry
            self.programs.put(self._key(digest, in_place), entry)
        except NotPortable as error:
            self.programs.note("a graph", "not stored", error.reason, None)


#: What is noted at nodes and not in the text: which are late, and what stands for absent gradients.
_BESIDE = ("late", "called_by", "beside_zeros")
#: What this process has made or used, for ``save_artifacts``: keys, and the files that hold the programs, or those that
#: ``load_artifacts`` has read.
_made: list[tuple[str, ProgramFolder, Path | Artefact]] = []
_loaded: dict[str, list[Artefact]] = {}
_lock = lock()


def _note(key: str, folder: ProgramFolder, place: Path | Artefact) -> None:
    with _lock:
        same = [known for other, _, known in _made if other == key]
        if not any(known is place or (isinstance(known, Path) and known == place) for known in same):
            _made.append((key, folder, place))


def made_here() -> list[tuple[str, Artefact]]:
    """What this process has made or used and is still there, with its keys."""
    with _lock:
        made = list(_made)
    found = [(key, folder.contents(key, at) if isinstance(at, Path) else at) for key, folder, at in made]
    return [(key, entry) for key, entry in found if entry is not None]


#: Backends whose code is that of the packages, by which programs are told apart.
OURS = ("inductor", "aot_eager", "eager")


def exchanged() -> bool:
    """Whether this process has put something in the place of a part of the packages: the row of a kind of device, or a
    decomposition. What is made with that is no program of theirs, which no key says."""
    rows = sys.modules.get("inductor_gen.device.backends")
    decompositions = sys.modules.get("prims.decomp.registry")
    return (rows is not None and rows.exchanged()) or (decompositions is not None and decompositions.added_to())


def programs_of(backend: object, options: Options, report: Report) -> DiskPrograms | None:
    """The store for one ``compile()`` call; None where none is asked for, or the backend is not one of the packages'.

    Under ``check`` graphs are compared with eager, for which they have to be captured; and who wants to see what the
    stages make must have them make it.
    """
    ours = isinstance(backend, str) and backend in OURS
    if not (options.program_cache and options.cache and ours and options.check == "off"):
        return None
    if options.debug or options.sources or options.fuel is not None or options.verify in ("every_pass", "reference"):
        return None
    if not {"cache", "perf", "recompiles"}.issuperset((*parse_logs(options.logs), *shown())):
        return None
    root = os.path.join(options.cache_dir, "programs")
    return DiskPrograms(f"{backend} {text_of_packages(root)}", ProgramFolder(root, options.cache_size_limit), report)


for _kind, _place in {
    "compile_api.guarded": "compile_api.guarded:load",
    "compile_api.captured": "compile_api.backends:load_captured",
    "compile_api.compiler": "compile_api.backends:load_compiler",
    "aot_autograd.training": "aot_autograd.runtime.training:load_training",
    "aot_autograd.backward": "aot_autograd.runtime.lazy:load_backward",
    "aot_autograd.partial_backward": "aot_autograd.runtime.lazy:load_partial",
    "aot_autograd.run": "aot_autograd.runtime.stored:load",
    "aot_autograd.outside_autocast": "aot_autograd.runtime.stored:load_outside_autocast",
    "inductor_gen.graph": "inductor_gen.runtime.stored:load",
}.items():
    register_loader(_kind, _place)

def graphs_of(options: Options, report: Report) -> DiskGraphs | None:
    """The store of compiled graphs for one ``compile()`` call; None where none is asked for."""
    programs = programs_of("inductor", options, report)
    return None if programs is None else DiskGraphs(programs, options)


_PACKAGES = ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")


@functools.cache
def text_of_packages(root: str) -> str:
    """A digest of the text of the packages that make programs.

    To read them all takes 0.1 s, so that the digest is kept under names, sizes and times of the files, also
    that of their last change of any kind, which nobody sets.
    """
    places = [p for name in _PACKAGES for p in getattr(find_spec(name), "submodule_search_locations", None) or ()]
    files = sorted(path for place in places for path in _files_below(place))
    seen = hashlib.sha256(repr(files).encode()).hexdigest()
    entries = Entries(Path(root) / "text")
    with contextlib.suppress(ValueError):
        known = entries.find(seen)
        if known is not None and isinstance(known.get("text"), str):
            return str(known["text"])
    held = hashlib.sha256()
    for path, *_ in files:
        place = next(place for place in places if path.startswith(place))
        held.update(f"{os.path.basename(place)}/{os.path.relpath(path, place)}\0".encode())
        held.update(hashlib.sha256(Path(path).read_bytes()).digest())
    with contextlib.suppress(OSError):
        private_folder(root, "text")
        entries.keep(seen, {"text": held.hexdigest()})
        entries.limit(64)
    return held.hexdigest()


def _files_below(folder: str) -> Iterator[tuple[str, int, int, int]]:
    for each in os.scandir(folder):
        if each.name.endswith(".py"):
            info = each.stat()
            yield each.path, info.st_size, info.st_mtime_ns, info.st_ctime_ns
        elif each.is_dir() and each.name != "__pycache__":
            yield from _files_below(each.path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
