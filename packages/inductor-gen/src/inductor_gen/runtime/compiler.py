"""Kernel texts to callable functions, through the system's C compiler and the disk cache."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from inductor_gen.codegen.cexpr import prelude
from inductor_gen.codegen.renderer import Unit
from inductor_gen.device.cpu import facts
from prims.disk.cache import KernelCache, open_cache
from prims.disk.folders import warn_of
from prims.errors import InternalError, UserError
from prims.forking import lock
from prims.options import Options
from prims.records import record

__all__ = ["Compiler", "find_compiler", "forget_loaded", "load_kernels"]

FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fPIC", "-shared",
    "-std=gnu11", "-w",
)  # fmt: skip

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}")

#: Kernel functions already loaded in this process, by key.
_LOADED: dict[str, int] = {}
_LIBRARIES: dict[str, ctypes.CDLL] = {}  # by digest; never unloaded
_LOCK = lock()


@record
class Compiler:
    """A C compiler's command and what identifies its output."""

    command: tuple[str, ...]
    identity: str


#: Seconds within which a compiler must say its version.
_ANSWER = 20


def _works(command: Sequence[str]) -> tuple[str | None, str]:
    """What a command says of its version, or None and why it is no compiler."""
    try:
        job = _start([*command, "--version"])
        return _finish(job, _ANSWER)
    except (OSError, ValueError) as error:
        return None, str(error)
    except subprocess.TimeoutExpired:
        return None, f"it gave no answer to --version within {_ANSWER} seconds"


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Begin a process of its own session, so that it can be ended with all that it started."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip


def _finish(job: subprocess.Popen[str], seconds: float | None) -> tuple[str | None, str]:
    """``(output, "")`` of a process that succeeded, ``(None, output)`` of one that failed.

    Raises:
        TimeoutExpired: it took longer, and was ended.
    """
    try:
        output, _ = job.communicate(timeout=seconds)
    except BaseException:
        _end(job)
        raise
    return (output, "") if job.returncode == 0 else (None, output)


def _end(job: subprocess.Popen[str]) -> None:
    """End a process and all that it started."""
    if job.poll() is None:
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except OSError:
            job.kill()
        job.wait()
    if job.stdout is not None:
        job.stdout.close()


@functools.lru_cache(maxsize=8)
def _find(cc: str | None, path: str | None) -> Compiler | UserError:
    """The compiler, or what is wrong: that too is found out once."""
    if cc and cc.strip():
        todo = "Set CC to a C compiler, such as gcc, or unset it."
        try:
            command = tuple(shlex.split(cc))
        except ValueError as error:
            return UserError(f"the environment variable CC is {cc!r}, which is no command: {error}", todo=todo)
        version, why = _works(command)
        if version is not None:
            return Compiler(command, version)
        detail = f" ({why.strip().splitlines()[0][:200]})" if why.strip() else ""
        return UserError(
            f"no C compiler found: tried {cc!r}, which the environment variable CC names{detail}", todo=todo
        )
    candidates = [(p,) for name in ("gcc", "clang", "cc") if (p := shutil.which(name, path=path))]
    zig = [(sys.executable, "-m", "ziglang", "cc")] if importlib.util.find_spec("ziglang") is not None else []
    for command in (*candidates, *zig):
        version, _ = _works(command)
        if version is not None:
            return Compiler(command, version)
    return UserError(
        "no C compiler found: tried gcc, clang and cc on the PATH, and the Python package ziglang",
        todo="Install one (apt install gcc, or pip install ziglang), or name one in the CC environment variable.",
    )


def find_compiler() -> Compiler:
    """The C compiler: ``CC``, else gcc, clang or cc on the PATH, else the pip package ``ziglang``.

    Raises:
        UserError: there is none.
    """
    found = _find(os.environ.get("CC"), os.environ.get("PATH"))
    if isinstance(found, UserError):
        raise UserError(found.what, todo=found.todo)
    return found


def _cpu() -> str:
    """What of the processor decides which instructions a compiler may use."""
    said = facts()
    return said.get("model name", "") + said.get("flags", said.get("Features", "")) or platform.processor()


def _flags(options: Options) -> tuple[str, ...]:
    """The compiler's flags. Outside of ``numerics="fast"`` a product is rounded before it is added to something."""
    return FLAGS if options.numerics == "fast" else (*FLAGS, "-ffp-contract=off")


def _key(unit: Unit, compiler: Compiler, flags: Sequence[str]) -> str:
    parts = (unit.text, prelude(unit.text), *compiler.command, compiler.identity, *flags, _cpu(), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _source(units: Sequence[Unit]) -> str:
    return "\n".join([prelude("\n".join(u.text for u in units)), *(u.named() for u in units)])


def _build(
    units: Sequence[Unit], compiler: Compiler, flags: Sequence[str], folder: str, number: int
) -> subprocess.Popen[str]:
    source = Path(folder) / f"k{number}.c"
    source.write_text(_source(units))
    return _start([*compiler.command, *flags, str(source), "-o", str(source.with_suffix(".so")), "-lm"])


def _shares(units: Sequence[Unit], workers: int) -> list[list[Unit]]:
    """The units dealt to ``workers`` translation units of about equal length."""
    shares: list[list[Unit]] = [[] for _ in range(max(1, min(workers, len(units))))]
    lengths = [0] * len(shares)
    for unit in sorted(units, key=lambda u: (-len(u.text), u.name)):
        at = lengths.index(min(lengths))
        shares[at].append(unit)
        lengths[at] += len(unit.text)
    return shares


def _open(lib: Path) -> ctypes.CDLL:
    found = _LIBRARIES.get(lib.stem)
    if found is None:
        found = _LIBRARIES[lib.stem] = ctypes.CDLL(str(lib))
    return found


def _address(lib: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(lib, symbol), ctypes.c_void_p).value or 0


def load_kernels(units: Sequence[Unit], options: Options) -> tuple[dict[str, int], int]:
    """The address of each unit's function, by name, and how many had to be compiled.

    Raises:
        UserError: there is no C compiler, it takes too long, or there is no place for what it makes.
        InternalError: the compiler refused the generated text.
    """
    compiler = find_compiler()
    cache = open_cache(options.cache_dir, "cpu", options.cache_size_limit) if options.cache else None
    found: dict[str, int] = {}
    missing: dict[str, Unit] = {}
    flags = _flags(options)
    keys = {unit.name: _key(unit, compiler, flags) for unit in units}
    for unit in units:
        key = keys[unit.name]
        address = _LOADED.get(key)
        if address is None and cache is not None:
            address = _from_disk(cache, key)
        if address is None:
            missing.setdefault(key, unit)
        else:
            _LOADED[key] = found[unit.name] = address
    if missing:
        with _workplace(cache) as folder:
            _compile(missing, compiler, flags, options, cache, folder)
        # Units of other names may have the same text.
        found = {name: _LOADED[key] for name, key in keys.items()}
    return found, len(missing)


@contextlib.contextmanager
def _workplace(cache: KernelCache | None) -> Iterator[str]:
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


def _from_disk(cache: KernelCache, key: str) -> int | None:
    place = cache.find(key)
    if place is None or not _SYMBOL.fullmatch(place[1]):
        return None
    lib, symbol = place
    with _LOCK:
        if lib.stem not in _LIBRARIES and not cache.verified(lib):
            return None
        try:
            return _address(_open(lib), symbol)
        except (OSError, AttributeError) as error:
            _warn_unloadable(cache, error)
            return None


def _compile(
    missing: dict[str, Unit], compiler: Compiler, flags: Sequence[str], options: Options, cache: KernelCache | None,
    folder: str,
) -> None:  # fmt: skip
    key_of = {unit.name: key for key, unit in missing.items()}
    shares = _shares(list(missing.values()), options.compile_workers or len(os.sched_getaffinity(0)))
    jobs: list[subprocess.Popen[str]] = []
    try:
        for n, share in enumerate(shares):
            jobs.append(_build(share, compiler, flags, folder, n))
        for n, (share, job) in enumerate(zip(shares, jobs, strict=True)):
            built = Path(folder) / f"k{n}.so"
            _wait(job, compiler, built, options.compile_timeout or None)
            with _LOCK:
                lib = _load(built, {key_of[u.name]: u.name for u in share}, cache)
                for unit in share:
                    _LOADED[key_of[unit.name]] = _address(lib, unit.name)
    finally:
        for job in jobs:  # none is left behind, whatever ended this
            _end(job)


def _wait(job: subprocess.Popen[str], compiler: Compiler, built: Path, seconds: float | None) -> None:
    """Wait for a compiler to make a library.

    Raises:
        UserError: it takes too long, the disk is full, or it made none.
        InternalError: it refused the text.
    """
    command = " ".join(compiler.command)
    try:
        output, refusal = _finish(job, seconds)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the C compiler {command} took more than {seconds:g} seconds and was ended",
            todo="Name another in the CC environment variable, or give it longer by the option compile_timeout "
            "(QUINTET_COMPILE_TIMEOUT, in seconds; 0 is no limit).",
        ) from None
    if output is None:
        if "No space left on device" in refusal:
            raise UserError(
                f"{built.parent} is full: {refusal.strip().splitlines()[-1][:200]}",
                todo="Make room there, or set TMPDIR to a folder with more of it.",
            )
        raise InternalError(f"{command} refused generated code:\n{refusal[:4000]}")
    if not built.is_file():
        raise UserError(
            f"the C compiler {command} reported success and made no library",
            todo="Set the CC environment variable to a C compiler, such as gcc, or unset it.",
        )


def _load(built: Path, symbols: dict[str, str], cache: KernelCache | None) -> ctypes.CDLL:
    """Load a library that was just built, from the cache where that takes it and programs may be loaded from there.

    Raises:
        UserError: it cannot be loaded.
    """
    if cache is not None:
        try:
            return _open(cache.add(built.read_bytes(), symbols))
        except OSError as error:  # add has warned
            _warn_unloadable(cache, error)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        forbidden = [str(f) for f in (built.parent, *([cache.root] if cache else [])) if _noexec(f)]
        where = f", because {' and '.join(forbidden)} is mounted noexec" if forbidden else ""
        raise UserError(
            f"a compiled library cannot be loaded{where}: {error}",
            todo="Set TMPDIR or QUINTET_CACHE_DIR to a folder from which programs may be run."
            if forbidden else "Set the CC environment variable to a C compiler for this machine, or unset it.",
        ) from error  # fmt: skip


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


def forget_loaded() -> None:
    """Forget the functions loaded in this process, so that the disk is asked again (for tests). The libraries stay
    mapped, so functions in use keep working."""
    _LOADED.clear()
    _LIBRARIES.clear()
