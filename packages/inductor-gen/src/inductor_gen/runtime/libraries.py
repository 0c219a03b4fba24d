"""Libraries of kernels in this process, and the kernel cache that they lie in.

A kernel's function is known by its key in the cache, which stands for its text, the compiler, the flags and the
processor. A library that the cache cannot keep, or that must not be loaded from there, is kept in memory, so that what
was compiled can be stored with the programs that call it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from inductor_gen.device.cpu import facts
from prims.disk.cache import KernelCache, open_cache
from prims.disk.folders import read_private, warn_of
from prims.errors import UserError
from prims.forking import lock
from prims.options import Options
from prims.records import record

__all__ = [
    "FLAGS", "OF_GCC", "Function", "bring_in", "cache_of", "find_function", "forget_loaded", "function_at",
    "instructions", "libraries_of", "take_in", "workplace",
]  # fmt: skip

#: Nothing is contracted but what the text says: :mod:`inductor_gen.kernel.contract`. Nor are paths through a loop told
#: apart by what they know of a condition: a sum that adds nothing on one of them would be read and written on the other
#: only, and gcc (12, 13 and 14 seen) then takes the partial sums of ``omp simd reduction`` for an array that the loop
#: walks through; and what an unrolled step reads would be read on one of them only, and be a load under a mask (what
#: becomes of those in a group: :func:`inductor_gen.codegen.pieces.masked`).
FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fPIC", "-shared",
    "-std=gnu11", "-w", "-ffp-contract=off", "-fno-thread-jumps",
)  # fmt: skip
#: Those of them that gcc alone knows.
OF_GCC = frozenset(("-fno-thread-jumps",))

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}")


@record
class Function:
    """A kernel's function that is loaded.

    Attributes:
        key: of the kernel in the kernel cache.
        symbol: its name in the library.
        digest: the SHA-256 of the library.
    """

    key: str
    symbol: str
    digest: str
    address: int


#: The functions loaded in this process by key, and all that there ever were by address.
_LOADED: dict[str, Function] = {}
_AT: dict[int, Function] = {}
#: By digest: the libraries, never unloaded; where they are kept; the bytes of those that are kept nowhere.
_LIBRARIES: dict[str, ctypes.CDLL] = {}
_PLACES: dict[str, Path] = {}
_BYTES: dict[str, bytes] = {}
_LOCK = lock()


def instructions() -> str:
    """What of the processor decides which instructions a compiler may use."""
    said = facts()
    return said.get("model name", "") + said.get("flags", said.get("Features", "")) or platform.processor()


def cache_of(options: Options) -> KernelCache | None:
    """The cache of kernels for the CPU."""
    return open_cache(options.cache_dir, "cpu", options.cache_size_limit) if options.cache else None


# ---- finding and loading ----------------------------------------------------------------------------------------


def find_function(key: str, cache: KernelCache | None) -> Function | None:
    """A kernel's function, from this process or from the cache; None where it is in neither."""
    found = _LOADED.get(key)
    if found is None and cache is not None:
        found = _from_disk(cache, key)
    return found


def _from_disk(cache: KernelCache, key: str) -> Function | None:
    place = cache.find(key)
    if place is None or not _SYMBOL.fullmatch(place[1]):
        return None
    lib, symbol = place
    with _LOCK:
        if lib.stem not in _LIBRARIES and not cache.verified(lib):
            return None
        try:
            return _known(key, symbol, lib.stem, _open(lib))
        except (OSError, AttributeError) as error:
            _warn_unloadable(cache, error)
            return None


def take_in(built: Path, symbols: Mapping[str, str], cache: KernelCache | None) -> list[Function]:
    """Load the functions of a library that was just built, ``symbols`` by key; from the cache where that takes it and
    programs may be loaded from there.

    Raises:
        UserError: it cannot be loaded.
        AttributeError: a function is not in it.
    """
    with _LOCK:
        data = built.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        lib = _loaded(built, data, symbols, cache)
        return [_known(key, symbol, digest, lib) for key, symbol in symbols.items()]


def bring_in(data: bytes, symbols: Mapping[str, str], cache: KernelCache | None) -> list[Function]:
    """As :func:`take_in`, of a library that was built in another process.

    Raises:
        OSError: there is no place for it.
    """
    if not all(map(_SYMBOL.fullmatch, symbols.values())):
        raise AttributeError("a symbol is no name of C")
    with workplace(cache) as folder:
        built = Path(folder) / "kernels.so"
        built.write_bytes(data)
        return take_in(built, symbols, cache)


def _known(key: str, symbol: str, digest: str, lib: ctypes.CDLL) -> Function:
    address = ctypes.cast(getattr(lib, symbol), ctypes.c_void_p).value or 0
    found = _LOADED[key] = _AT[address] = Function(key, symbol, digest, address)
    return found


def _open(lib: Path) -> ctypes.CDLL:
    """A library of the cache."""
    found = _LIBRARIES.get(lib.stem)
    if found is None:
        found = _LIBRARIES[lib.stem] = ctypes.CDLL(str(lib))
    _PLACES[lib.stem] = lib
    return found


def _loaded(built: Path, data: bytes, symbols: Mapping[str, str], cache: KernelCache | None) -> ctypes.CDLL:
    if cache is not None:
        try:
            return _open(cache.add(data, dict(symbols)))
        except OSError as error:  # add has warned
            _warn_unloadable(cache, error)
    try:
        lib = ctypes.CDLL(str(built))
    except OSError as error:
        forbidden = [str(f) for f in (built.parent, *([cache.root] if cache else [])) if _noexec(f)]
        where = f", because {' and '.join(forbidden)} is mounted noexec" if forbidden else ""
        raise UserError(
            f"a compiled library cannot be loaded{where}: {error}",
            todo="Set TMPDIR or QUINTET_CACHE_DIR to a folder from which programs may be run."
            if forbidden else "Set the CC environment variable to a C compiler for this machine, or unset it.",
        ) from error  # fmt: skip
    _BYTES[hashlib.sha256(data).hexdigest()] = data
    return lib


def _noexec(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def _warn_unloadable(cache: KernelCache, error: BaseException) -> None:
    if _noexec(cache.root):
        what = "programs may not be loaded from it (it is mounted noexec)"
        warn_of(cache.root, what, "Set QUINTET_CACHE_DIR to a folder without that.")
    else:
        warn_of(cache.root, f"a library of it cannot be loaded ({error})", "Remove it, so that it is made anew.")


@contextlib.contextmanager
def workplace(cache: KernelCache | None) -> Iterator[str]:
    """A folder to compile in: temporary, or in the cache where there is no temporary one.

    Raises:
        UserError: it cannot be made, or is full.
    """
    try:
        try:
            place = tempfile.TemporaryDirectory(prefix="quintet-")
        except OSError:
            if cache is None:
                raise
            place = tempfile.TemporaryDirectory(prefix="quintet-", dir=cache.root)
        with place as folder:
            yield folder
    except OSError as error:
        raise UserError(
            f"there is no place to compile kernels in: {error}",
            todo="Make room there, or set TMPDIR to a folder that can be written.",
        ) from error


# ---- what is loaded ---------------------------------------------------------------------------------------------


def function_at(address: int) -> Function | None:
    """The function at an address, if it is a kernel's."""
    return _AT.get(address)


def libraries_of(functions: Iterable[Function]) -> dict[str, bytes]:
    """The bytes of the libraries that hold functions, by digest; those that are there no longer are left out."""
    found: dict[str, bytes] = {}
    for digest in dict.fromkeys(function.digest for function in functions):
        data = _BYTES.get(digest)
        if data is None and digest in _PLACES:
            with contextlib.suppress(OSError):
                data = read_private(_PLACES[digest])
        if data is not None and hashlib.sha256(data).hexdigest() == digest:
            found[digest] = data
    return found


def forget_loaded() -> None:
    """Forget the functions loaded in this process, so that the disk is asked again (for tests). The libraries stay
    mapped, so functions in use keep working."""
    _LOADED.clear()
    _LIBRARIES.clear()
