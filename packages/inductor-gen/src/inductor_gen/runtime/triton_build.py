"""Triton kernels to machine code: compiled in parallel while others are rendered, kept on disk, loaded without
importing Triton."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.codegen.tritonexpr import prelude
from inductor_gen.runtime import cubins
from inductor_gen.runtime.compiler import load_kernels
from inductor_gen.runtime.cubins import Loaded, forget_loaded
from inductor_gen.runtime.launch import GPU_LAUNCHER
from inductor_gen.runtime.triton_check import OLDEST, broken_triton, check_gpu, triton_version
from inductor_gen.runtime.triton_pool import WorkerLost, shared_pool
from inductor_gen.runtime.triton_worker import compile_function, import_file
from prims.disk.folders import private_folder, read_private, warn_of, write_private
from prims.errors import InternalError, QuintetError, UserError
from prims.forking import lock
from prims.options import Options
from prims.report import Report
from prims.spec.tensorspec import as_device

__all__ = [
    "Begun", "Build", "Loaded", "begin", "compile_kernel", "forget_loaded", "get_ready", "load_module_text",
    "module_text",
]  # fmt: skip


#: Kernels compiled side by side where no number is asked for: each takes a process.
MOST_WORKERS = 32

_LOCK = lock()


def module_text(sources: Sequence[TritonSource]) -> str:
    """One Python module with all kernels, each once."""
    unique = {s.name: s for s in sources}
    return "\n\n".join([prelude("\n".join(s.text for s in unique.values())), *(s.named() for s in unique.values())])


def load_module_text(text: str, folder: Path) -> Any:
    """The module of a text, imported from a file in ``folder``: Triton reads its functions' source."""
    path = _written(text, folder)
    return import_file(path.stem, str(path))


def _written(text: str, folder: Path) -> Path:
    """The file in ``folder`` that holds a text."""
    path = folder / f"quintet_{hashlib.sha256(text.encode()).hexdigest()[:20]}.py"
    try:
        there = read_private(path)
    except OSError:
        there = b""
    if there != text.encode():  # what is there will run
        write_private(path, text.encode())
    return path


def compile_kernel(module: Any, source: TritonSource, capability: tuple[int, int]) -> tuple[bytes, str, int]:
    """``(cubin, function name, bytes of shared memory)`` of a kernel, compiled in this process.

    Raises:
        InternalError: Triton refused the text.
        UserError: Triton does not work here.
    """
    try:
        return compile_function(getattr(module, source.name), source.signature, capability, _settings(source))
    except Exception as error:
        raise _refusal(source, error, capability) from error


def _settings(source: TritonSource) -> dict[str, int]:
    settings = {"num_warps": source.warps}
    if not source.contract:
        settings["enable_fp_fusion"] = False
    if source.stages:
        settings["num_stages"] = source.stages
    if source.registers:
        settings["maxnreg"] = source.registers
    if "tl.device_assert(" in source.text:
        settings |= {"debug": True, "sanitize_overflow": False}  # assertions are left out otherwise
    return settings


def _refusal(source: TritonSource, error: Exception, capability: tuple[int, int]) -> QuintetError:
    """Whose fault it is that a kernel did not compile: Triton's, where it compiles nothing, else the kernel's."""
    return broken_triton(capability) or InternalError(
        f"Triton refused kernel {source.name}: {type(error).__name__}: {error}\n{source.text[:6000]}"
    )


def _key(source: TritonSource, capability: tuple[int, int]) -> str:
    settings = (str(capability), str(triton_version()), str(source.stages), str(source.contract), str(source.registers))
    parts = (source.text, prelude(source.text), *settings)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Build:
    """The kernels of one graph on their way to a device: looked up, or begun, as they come in; collected at the end.

    Raises:
        UserError: no Triton or no suitable GPU.
    """

    def __init__(self, device: torch.device, options: Options) -> None:
        self.device = device
        self.options = options
        self.capability = check_gpu(device)
        self.workers = _workers(options)
        self.cache = cubins.cache_of(options)
        self.found: dict[str, Loaded] = {}
        self.missing: dict[str, TritonSource] = {}
        self.begun: dict[str, Future[tuple[bytes, str, int]]] = {}
        self.keys: dict[str, str] = {}
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, source: TritonSource) -> None:
        """Look a kernel up, and begin to compile it where it is nowhere."""
        if source.name in self.keys:
            return
        key = self.keys[source.name] = _key(source, self.capability)
        loaded = cubins.find(key, self.cache, self.device)
        if loaded is not None:
            self.found[source.name] = loaded
            return
        self.missing[source.name] = source
        pool = shared_pool(self.capability) if self.workers > 1 else None
        if pool is not None:
            folder = self._folder()
            path = _written(module_text([source]), folder)
            out = folder / f".{os.getpid()}-{id(self)}-{source.name}.cubin"
            self.begun[source.name] = pool.submit(
                path, source.name, source.signature, _settings(source), out, self.workers
            )

    def _folder(self) -> Path:
        """Where the texts of kernels are kept: with the cache, else until the end."""
        if self.cache is not None:
            try:
                return private_folder(self.cache.root, "source")
            except OSError as error:
                warn_of(self.cache.root, f"sources are not kept in it ({error})", "Remove it, so that it is made anew.")
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory(prefix="quintet-")
        return Path(self.folder.name)

    def collect(self, report: Report | None = None) -> tuple[dict[str, Loaded], int]:
        """The loaded kernel of each source, by name, and how many had to be compiled; the report shows how far it is.

        Raises:
            InternalError: Triton or the driver refused a kernel.
            UserError: Triton does not work here.
        """
        try:
            with (report or Report()).counting("compiling kernels", len(self.missing)) as more:
                here = [source for name, source in self.missing.items() if not self._waited(name, source, more)]
                if here:
                    made = _compile_here(here, self.capability, self.workers, self._folder())
                    for source, result in zip(here, made, strict=True):
                        self._take(source.name, result)
        finally:
            if self.folder is not None:
                self.folder.cleanup()
        return self.found, len(self.missing)

    def _waited(self, name: str, source: TritonSource, more: Callable[..., None]) -> bool:
        """Wait for a kernel that was begun, and keep it; whether there is one."""
        if name not in self.begun:
            return False
        try:
            self._take(name, self.begun[name].result(timeout=self.options.compile_timeout or None))
        except WorkerLost:
            return False
        except TimeoutError:
            raise UserError(
                f"Triton took more than {self.options.compile_timeout} seconds for kernel {name}",
                todo="Give it longer by the option compile_timeout (QUINTET_COMPILE_TIMEOUT, in seconds; 0 is "
                "no limit).",
            ) from None
        except InternalError as error:
            raise _refusal(source, error, self.capability) from None
        more()
        return True

    def _take(self, name: str, made: tuple[bytes, str, int]) -> None:
        """Keep a compiled kernel and load it."""
        cubin, symbol, shared = made
        entry = json.dumps({"name": symbol, "shared": shared, "threads": 32 * self.missing[name].warps})
        self.found[name] = cubins.take_in(cubin, self.keys[name], entry, self.cache, self.device)


def get_ready(device: torch.device | None, options: Options) -> None:
    """Start the process that compiles kernels, which then imports Triton while a graph is captured and lowered.

    Not where kernels lie on disk already: these are probably the ones that will be asked for.
    """
    if triton_version() is None or _workers(options) == 1 or not torch.cuda.is_available():
        return
    cache = cubins.cache_of(options)
    if cache is None or next(cache.entries.folder.iterdir(), None) is None:
        capability = torch.cuda.get_device_capability(device)
        if capability >= OLDEST:
            shared_pool(capability)


def _workers(options: Options) -> int:
    return options.compile_workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)


class Begun:
    """What is done for a graph's kernels on a GPU before the graph is lowered completely: the worker that compiles them
    and the launcher are got ready at once, and every kernel is begun when it is rendered."""

    def __init__(self, device: torch.device, options: Options) -> None:
        self.options = options
        self.builds: dict[torch.device, Build] = {}
        get_ready(device, options)
        threading.Thread(target=self._launchers, name="quintet-launchers", daemon=True).start()

    def _launchers(self) -> None:
        try:
            load_kernels([GPU_LAUNCHER], self.options)
        except QuintetError:
            pass  # the graph's own thread meets the same and reports it

    def add(self, source: KernelSource) -> None:
        """Begin a rendered kernel."""
        if isinstance(source, TritonSource):
            self.on(as_device(source.buffers[0].device)).add(source)

    def on(self, device: torch.device) -> Build:
        """The graph's kernels on a device."""
        if device not in self.builds:
            self.builds[device] = Build(device, self.options)
        return self.builds[device]


def begin(device: torch.device, options: Options) -> Begun:
    """Get ready for a graph with values on a GPU."""
    return Begun(as_device(device), options)


def _compile_here(
    sources: Sequence[TritonSource], capability: tuple[int, int], workers: int, folder: Path
) -> list[tuple[bytes, str, int]]:
    """Compile in this process, in threads."""
    with _LOCK:
        try:
            module = load_module_text(module_text(sources), folder)
        except Exception as error:
            raise _refusal(sources[0], error, capability) from error
        if len(sources) == 1 or workers == 1:
            return [compile_kernel(module, s, capability) for s in sources]
        with ThreadPoolExecutor(min(workers, len(sources))) as pool:
            return list(pool.map(lambda s: compile_kernel(module, s, capability), sources))
