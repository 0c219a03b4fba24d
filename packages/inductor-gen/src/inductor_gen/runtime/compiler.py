"""Kernel texts to callable functions, through the system's C compiler and the disk cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import math
import os
import platform
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from inductor_gen.codegen.cexpr import prelude
from inductor_gen.device.cpu import ask
from inductor_gen.runtime.launch import GPU_LAUNCHER, Launcher, as_launcher
from inductor_gen.runtime.libraries import (
    FLAGS,
    OF_GCC,
    cache_of,
    find_function,
    forget_loaded,
    instructions,
    take_in,
    workplace,
)
from inductor_gen.unit import Unit
from prims.disk.cache import KernelCache
from prims.disk.turns import Turns, turns_at
from prims.eager import warn_user
from prims.errors import InternalError, UserError
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["Compiler", "find_compiler", "forget_loaded", "launcher", "load_kernels", "run_compiler"]

@record
class Compiler:
    """A C compiler's command and what identifies its output."""

    command: tuple[str, ...]
    identity: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of :data:`FLAGS` that it knows, and those that the processor asks for."""
        if "Free Software Foundation" in self.identity:
            return (*FLAGS, *_whole_vectors())
        return _FOR_ANY if _shares_loops(self.command) else _ONE_THREAD

    def flags_of(self, text: str) -> tuple[str, ...]:
        """The flags for a kernel: no others than it needs, for what they prevent costs sums a tenth of their time."""
        needed = self.flags if _has_paths(text) else tuple(flag for flag in self.flags if flag not in OF_GCC)
        long = "Free Software Foundation" in self.identity and text.count("\n    ") > _LONG
        return (*needed, *_ONE_VECTOR) if long else needed


#: Lines of a kernel from which on its loops have no copies with shorter vectors for the last steps. Twelve steps of
#: a recurrence in bfloat16, 860 lines: gcc 12 takes 2.8 s of the processor rather than 11.7. For ResNet-50's kernels,
#: which are short, it takes 0.97 s rather than 1.03, and the last steps would be taken one by one.
_LONG = 300
_ONE_VECTOR = ("--param", "vect-epilogues-nomask=0")

_FOR_ANY = tuple(flag for flag in FLAGS if flag not in OF_GCC)
_ONE_THREAD = tuple("-fopenmp-simd" if flag == "-fopenmp" else flag for flag in _FOR_ANY)

_SHARED_LOOP = """\
int KERNEL(float* x, int n) {
    #pragma omp parallel for
    for (int i = 0; i < n; i++) x[i] *= 2;
    return 0;
}
"""


@functools.lru_cache(maxsize=8)
def _shares_loops(command: tuple[str, ...]) -> bool:
    """Can be loaded here what a compiler makes of a loop for several threads? Clang has the OpenMP library in a package
    of its own, the Python package ``ziglang`` has none. Says so where it cannot: kernels run on one thread then."""
    with tempfile.TemporaryDirectory(prefix="quintet-") as folder:
        source, made = Path(folder) / "shared.c", Path(folder) / "shared.so"
        source.write_text(_SHARED_LOOP)
        try:
            output, _ = _finish(_start([*command, *_FOR_ANY, str(source), "-o", str(made)]), _ANSWER)
            if output is not None:
                ctypes.CDLL(str(made))
                return True
        except (OSError, subprocess.TimeoutExpired):
            pass
    warn_user(
        f"Kernels run on one thread: the C compiler {' '.join(command)} comes without OpenMP's library. Install it "
        "(libomp), or gcc, or name another compiler in the CC environment variable."
    )
    return False


@functools.cache
def _whole_vectors() -> tuple[str, ...]:
    """The flag by which gcc uses vectors as wide as the record of the processor says. For the first Zen processors it
    prefers half of that: sums have half as many parts (1.55 times eager's error, not 1.15), and take 1.6 times as long.
    """
    return ("-mprefer-vector-width=256",) if ask(torch.device("cpu")).vector_bytes == 32 else ()


#: What tells paths through a loop apart, and lines that do so for the loop itself.
_APART, _OF_LOOPS = re.compile(r"[?<>!]|==|&&|\|\||\bif\b"), re.compile(r"\s*(for \(|const int64_t e_ = |[/#])")


@functools.lru_cache(maxsize=4096)
def _has_paths(text: str) -> bool:
    """Whether a text has sums of ``omp simd``, or unrolled steps, and more than arithmetic, its helpers included."""
    if "reduction(" not in text and "#pragma GCC unroll" not in text:
        return False
    lines = [*prelude(text, True).splitlines(), *text.splitlines()]
    return any(_APART.search(line) for line in lines if not _OF_LOOPS.match(line))


#: Kernels in a translation unit, at most: a compiler begins in the time that it takes for one (60 ms), and what is done
#: is seen when a whole unit is.
_TOGETHER = 8

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


def _key(unit: Unit, compiler: Compiler, simd: bool) -> str:
    maker = (*compiler.command, compiler.identity, *compiler.flags_of(unit.text))
    parts = (unit.text, prelude(unit.text, simd), *maker, instructions(), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _source(units: Sequence[Unit], simd: bool) -> str:
    return "\n".join([prelude("\n".join(u.text for u in units), simd), *(u.named() for u in units)])


def _build(
    units: Sequence[Unit], compiler: Compiler, flags: Sequence[str], simd: bool, folder: str, number: int
) -> subprocess.Popen[str]:
    source = Path(folder) / f"k{number}.c"
    source.write_text(_source(units, simd))
    return _start([*compiler.command, *flags, str(source), "-o", str(source.with_suffix(".so")), "-lm"])


def _shares(units: Sequence[Unit], workers: int) -> list[list[Unit]]:
    """The units dealt to ``workers`` translation units of about equal work, or to more where they are many."""
    count = max(workers, -(-len(units) // _TOGETHER), 1)
    shares: list[list[Unit]] = [[] for _ in range(min(count, len(units)))]
    work = [0] * len(shares)
    for unit in sorted(units, key=lambda u: (-_work(u), u.name)):
        at = work.index(min(work))
        shares[at].append(unit)
        work[at] += _work(unit)
    return shares


def _dealt(groups: Mapping[tuple[str, ...], list[Unit]], workers: int) -> list[tuple[tuple[str, ...], list[Unit]]]:
    """Translation units with their flags, the longest first, none of much more work than a worker's part of it all."""
    work = {flags: sum(map(_work, units)) for flags, units in groups.items()}
    counts = {flags: math.ceil(workers * some / sum(work.values()) - 0.2) for flags, some in work.items()}
    dealt = [(flags, share) for flags, units in groups.items() for share in _shares(units, counts[flags])]
    return sorted(dealt, key=lambda unit: -sum(map(_work, unit[1])))


def _work(unit: Unit) -> int:
    """What a compiler has to do for a unit, in letters: one with loops to be unrolled takes three times as long
    (gcc 12, the 39 kernels of a ResNet-18's step)."""
    return len(unit.text) * (3 if "#pragma GCC unroll" in unit.text else 1)


def load_kernels(
    units: Sequence[Unit], options: Options, report: Report | None = None
) -> tuple[dict[str, int], int]:  # fmt: skip
    """The address of each unit's function, by name, and how many had to be compiled; the report shows how far it is.

    Raises:
        UserError: there is no C compiler, it takes too long, or there is no place for what it makes.
        InternalError: the compiler refused the generated text.
    """
    compiler = find_compiler()
    cache = cache_of(options)
    found: dict[str, int] = {}
    missing: dict[str, Unit] = {}
    keys = {unit.name: _key(unit, compiler, not options.batch_invariant) for unit in units}
    for unit in units:
        function = find_function(keys[unit.name], cache)
        if function is None:
            missing.setdefault(keys[unit.name], unit)
        else:
            found[unit.name] = function.address
    compiled = 0
    if missing:
        counting = (report or Report()).counting("compiling kernels", len(missing))
        with turns_at(cache.root if cache is not None else None) as turns, workplace(cache) as folder, counting as more:
            made, compiled = _made_by_turns(missing, turns, compiler, options, cache, folder, more)
        # Units of other names may have the same text.
        found |= {name: made[key] for name, key in keys.items() if key in made}
    return found, compiled


#: Seconds between two looks at what another process is compiling.
_LOOK = 0.01


def _made_by_turns(
    missing: dict[str, Unit], turns: Turns, compiler: Compiler, options: Options, cache: KernelCache | None,
    folder: str, more: Callable[..., None],
) -> tuple[dict[str, int], int]:  # fmt: skip
    """The functions' addresses by key, and how many were compiled here; others compile what they have begun."""
    made: dict[str, int] = {}
    left = dict(missing)
    waited: set[str] = set()
    compiled = 0
    patience = time.monotonic() + (options.compile_timeout or math.inf)
    while left:
        late = time.monotonic() > patience
        mine = {key: unit for key, unit in left.items() if late or turns.take(key)}
        for key in list(left):
            # Looked for behind the turn: who had it before may have made it.
            function = find_function(key, cache)
            if function is not None:
                made[key] = function.address
                mine.pop(key, None)
                del left[key]
                more(1)
        if not waited.isdisjoint(mine):
            turns.leave()  # who had it could not keep it, or was ended: all that waited compile it, at once
        if mine:
            made |= _compile(mine, compiler, options, cache, folder, more)
            compiled += len(mine)
            left = {key: unit for key, unit in left.items() if key not in mine}
        turns.leave()
        waited |= left.keys()
        if left:
            time.sleep(_LOOK)
    return made, compiled


def launcher(options: Options) -> Launcher:
    """What turns a program of kernels on a GPU into a callable."""
    addresses, _ = load_kernels([GPU_LAUNCHER], options)
    return as_launcher(addresses[GPU_LAUNCHER.name])


def _compile(
    missing: dict[str, Unit], compiler: Compiler, options: Options, cache: KernelCache | None, folder: str,
    more: Callable[..., None],
) -> dict[str, int]:  # fmt: skip
    """Compile units and load them; gives the addresses of their functions by key. ``more`` is told how many it has."""
    made: dict[str, int] = {}
    key_of = {unit.name: key for key, unit in missing.items()}
    groups: dict[tuple[str, ...], list[Unit]] = {}
    for unit in missing.values():
        groups.setdefault(compiler.flags_of(unit.text), []).append(unit)
    workers = options.compile_workers or len(os.sched_getaffinity(0))
    shares = _dealt(groups, workers)
    seconds = options.compile_timeout or None
    waiting = list(enumerate(shares))[::-1]
    jobs: dict[int, subprocess.Popen[str]] = {}

    def begin() -> None:
        while waiting and len(jobs) < workers:
            n, (flags, share) = waiting.pop()
            jobs[n] = _build(share, compiler, flags, not options.batch_invariant, folder, n)

    try:
        begin()
        while jobs:
            n, late = _next_done(jobs, seconds)
            built, share = Path(folder) / f"k{n}.so", shares[n][1]
            _wait(jobs[n], compiler, built, seconds, late)
            del jobs[n]
            begin()
            made |= {f.key: f.address for f in take_in(built, {key_of[u.name]: u.name for u in share}, cache)}
            more(len(share))
    finally:
        for job in jobs.values():  # none is left behind, whatever ended this
            _end(job)
    return made


def _next_done(jobs: Mapping[int, subprocess.Popen[str]], seconds: float | None) -> tuple[int, bool]:
    """The first job that ends (or prints, which they do when they fail); the oldest one, and True, where none does so
    within ``seconds``."""
    with selectors.DefaultSelector() as selector:
        for n, job in jobs.items():
            selector.register(job.stdout, selectors.EVENT_READ, n)  # type: ignore[arg-type]
        ready = selector.select(seconds)
    return (ready[0][0].data, False) if ready else (next(iter(jobs)), True)


def _refuses_everything(compiler: Compiler, folder: Path) -> bool:
    """Whether not even a program of one line becomes a library: generated code is not to blame then."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        source = Path(made) / "one.c"
        source.write_text("int one(void) { return 1; }\n")
        job = _start([*compiler.command, *compiler.flags, str(source), "-o", str(source.with_suffix(".so")), "-lm"])
        try:
            return _finish(job, _ANSWER)[0] is None
        except subprocess.TimeoutExpired:
            return True


def run_compiler(command: Sequence[str], compiler: Compiler, built: Path, options: Options) -> None:
    """Run a compiler's command that makes a file; raises as :func:`_wait` does."""
    _wait(_start(command), compiler, built, options.compile_timeout or None)


def _wait(
    job: subprocess.Popen[str], compiler: Compiler, built: Path, seconds: float | None, late: bool = False
) -> None:
    """Wait for a compiler to make a library, unless it is late already.

    Raises:
        UserError: it takes too long, the disk is full, it compiles nothing at all, or it made none.
        InternalError: it refused the text.
    """
    command = " ".join(compiler.command)
    try:
        output, refusal = _finish(job, 0 if late else seconds)
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
        if _refuses_everything(compiler, built.parent):
            raise UserError(
                f"the C compiler {command} refuses even a program of one line: {refusal.strip()[:1000]}",
                todo="Set the CC environment variable to a C compiler that works, such as gcc, or unset it.",
            )
        raise InternalError(f"{command} refused generated code:\n{refusal[:4000]}")
    if not built.is_file():
        raise UserError(
            f"the C compiler {command} reported success and made no library",
            todo="Set the CC environment variable to a C compiler, such as gcc, or unset it.",
        )
