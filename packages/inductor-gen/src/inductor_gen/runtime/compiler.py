"""Kernel texts to callable functions, through the system's C compiler and the disk cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inductor_gen.codegen.cexpr import prelude
from inductor_gen.runtime.cache import KernelCache
from prims.errors import InternalError, UserError
from prims.options import Options

__all__ = ["Compiler", "Unit", "find_compiler", "load_kernels"]

FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fPIC", "-shared",
    "-std=gnu11", "-w",
)  # fmt: skip

#: Kernel functions already loaded in this process, by key.
_LOADED: dict[str, int] = {}
_LIBRARIES: dict[str, ctypes.CDLL] = {}  # by digest; never unloaded
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Unit:
    """One kernel to compile: the function's name and its text (with ``KERNEL`` for the name)."""

    name: str
    text: str
    comment: str = ""


@dataclass(frozen=True)
class Compiler:
    """A C compiler's command and what identifies its output."""

    command: tuple[str, ...]
    identity: str


def _works(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


@functools.lru_cache(maxsize=8)
def _find(cc: str | None, path: str | None) -> Compiler:
    candidates: list[tuple[str, ...]] = []
    if cc:
        candidates.append(tuple(shlex.split(cc)))
    else:
        candidates += [(p,) for name in ("gcc", "clang", "cc") if (p := shutil.which(name, path=path))]
        if importlib.util.find_spec("ziglang") is not None:
            candidates.append((sys.executable, "-m", "ziglang", "cc"))
    for command in candidates:
        version = _works(command)
        if version is not None:
            return Compiler(command, version)
    tried = " ".join(candidates[0]) if cc else "gcc, clang and cc on the PATH"
    raise UserError(
        f"no C compiler found: tried {tried}" + ("" if cc else ", and the Python package ziglang"),
        todo="Install one (apt install gcc, or pip install ziglang), or name one in the CC environment variable.",
    )


def find_compiler() -> Compiler:
    """The C compiler: ``CC``, else gcc, clang or cc on the PATH, else the pip package ``ziglang``.

    Raises:
        UserError: there is none.
    """
    return _find(os.environ.get("CC"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=1)
def _cpu() -> str:
    """What of the processor decides which instructions a compiler may use."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = {line.split(":", 1)[0].strip(): line.split(":", 1)[1].strip() for line in file if ":" in line}
        return lines.get("model name", "") + lines.get("flags", lines.get("Features", ""))
    except OSError:
        return platform.processor()


def _flags(options: Options) -> tuple[str, ...]:
    """The compiler's flags. Outside of ``numerics="fast"`` a product is rounded before it is added to something."""
    return FLAGS if options.numerics == "fast" else (*FLAGS, "-ffp-contract=off")


def _key(unit: Unit, compiler: Compiler, flags: Sequence[str]) -> str:
    parts = (unit.text, prelude(unit.text), *compiler.command, compiler.identity, *flags, _cpu(), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _source(units: Sequence[Unit]) -> str:
    functions = [(f"/* {u.comment} */\n" if u.comment else "") + u.text.replace("KERNEL", u.name, 1) for u in units]
    return "\n".join([prelude("\n".join(u.text for u in units)), *functions])


def _build(
    units: Sequence[Unit], compiler: Compiler, flags: Sequence[str], folder: str, number: int
) -> subprocess.Popen[str]:
    source = Path(folder) / f"k{number}.c"
    source.write_text(_source(units))
    command = [*compiler.command, *flags, str(source), "-o", str(source.with_suffix(".so")), "-lm"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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
        UserError: there is no C compiler.
        InternalError: the compiler refused the generated text.
    """
    compiler = find_compiler()
    cache = _usable_cache(options)
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
        workers = options.compile_workers or len(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory(prefix="quintet-") as folder:
            _compile(missing, compiler, flags, workers, cache, folder)
        # Units of other names may have the same text.
        found = {name: _LOADED[key] for name, key in keys.items()}
    return found, len(missing)


def _usable_cache(options: Options) -> KernelCache | None:
    if not options.cache:
        return None
    cache = KernelCache(os.path.join(options.cache_dir, "cpu"), options.cache_size_limit)
    try:
        cache.prepare()
    except OSError:
        return None  # a cache that cannot be written is no reason to fail
    return cache


def _from_disk(cache: KernelCache, key: str) -> int | None:
    place = cache.find(key)
    if place is None:
        return None
    lib, symbol = place
    with _LOCK:
        if lib.stem not in _LIBRARIES and not cache.verified(lib):
            return None
        try:
            return _address(_open(lib), symbol)
        except (OSError, AttributeError):
            return None


def _compile(
    missing: dict[str, Unit], compiler: Compiler, flags: Sequence[str], workers: int, cache: KernelCache | None,
    folder: str,
) -> None:  # fmt: skip
    key_of = {unit.name: key for key, unit in missing.items()}
    shares = _shares(list(missing.values()), workers)
    jobs = [_build(share, compiler, flags, folder, n) for n, share in enumerate(shares)]
    for n, (share, job) in enumerate(zip(shares, jobs, strict=True)):
        output, _ = job.communicate()
        if job.returncode != 0:
            raise InternalError(f"{' '.join(compiler.command)} refused generated code:\n{output[:4000]}")
        built = Path(folder) / f"k{n}.so"
        with _LOCK:
            if cache is not None:
                try:
                    lib = _open(cache.add(built, {key_of[u.name]: u.name for u in share}))
                except OSError:
                    lib = ctypes.CDLL(str(built))
            else:
                lib = ctypes.CDLL(str(built))
            for unit in share:
                _LOADED[key_of[unit.name]] = _address(lib, unit.name)


def forget_loaded() -> None:
    """Forget the functions loaded in this process, so that the disk is asked again (for tests). The libraries stay
    mapped, so functions in use keep working."""
    _LOADED.clear()
    _LIBRARIES.clear()


__all__ += ["forget_loaded"]
