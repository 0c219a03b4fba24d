"""Triton kernels to machine code: compiled in parallel, kept on disk, loaded without importing Triton."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inductor_gen.codegen.triton import TritonSource
from inductor_gen.codegen.tritonexpr import prelude
from inductor_gen.runtime.cache import KernelCache
from prims.errors import InternalError, Unsupported
from prims.options import Options

__all__ = ["Loaded", "check_gpu", "compile_kernel", "load_module_text", "load_triton", "module_text", "triton_version"]


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch: its function's handle, threads per program and bytes of shared memory."""

    function: int
    threads: int
    shared: int


_LOADED: dict[str, Loaded] = {}
_LOCK = threading.Lock()


@functools.lru_cache(maxsize=1)
def triton_version() -> str | None:
    """The installed Triton's version, found without importing it; None where there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("triton")
        return "unknown" if spec is not None and spec.origin is not None else None


def check_gpu(device: torch.device) -> tuple[int, int]:
    """The device's compute capability.

    Raises:
        Unsupported: no Triton, no GPU, or one older than compute capability 8.0.
    """
    if triton_version() is None:
        raise Unsupported("Triton is not installed, so no GPU kernels can be generated; pip install triton")
    if not torch.cuda.is_available():
        raise Unsupported("PyTorch finds no usable CUDA device")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise Unsupported(f"{torch.cuda.get_device_name(device)} has compute capability "
                          f"{capability[0]}.{capability[1]}; generated kernels need 8.0")  # fmt: skip
    return capability


def module_text(sources: Sequence[TritonSource]) -> str:
    """One Python module with all kernels, each once."""
    unique = {s.name: s for s in sources}
    parts = [prelude("\n".join(s.text for s in unique.values()))]
    for s in unique.values():
        comment = "".join(f"# {line}\n" for line in s.comment.splitlines())
        parts.append("\n\n" + comment + s.text.replace("KERNEL", s.name, 1))
    return "".join(parts)


def load_module_text(text: str, folder: Path) -> Any:
    """The module, imported from a file: Triton reads its functions' source."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = "quintet_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    path = folder / f"{name}.py"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks its globals up there
    spec.loader.exec_module(module)
    return module


def compile_kernel(module: Any, source: TritonSource, capability: tuple[int, int]) -> tuple[bytes, str, int]:
    """``(cubin, function name, bytes of shared memory)`` of a kernel.

    Raises:
        InternalError: Triton refused the text.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: kind for name, kind, _ in source.signature}
    attrs = {(k,): [["tt.divisibility", 16]] for k, (_, _, aligned) in enumerate(source.signature) if aligned}
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    try:
        made = triton.compile(
            ASTSource(fn=getattr(module, source.name), signature=signature, constexprs={}, attrs=attrs),
            target=target,
            options={"num_warps": source.warps},
        )
    except Exception as error:
        raise InternalError(f"Triton refused kernel {source.name}: {error}\n{source.text[:6000]}") from error
    if getattr(made.metadata, "global_scratch_size", 0):
        raise InternalError(f"kernel {source.name} wants scratch memory, which the launcher does not give")
    return made.asm["cubin"], made.metadata.name, made.metadata.shared


def _key(source: TritonSource, capability: tuple[int, int]) -> str:
    parts = (source.text, prelude(source.text), str(capability), str(triton_version()), "1")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _cache(options: Options) -> KernelCache | None:
    if not options.cache:
        return None
    cache = KernelCache(os.path.join(options.cache_dir, "cuda"), options.cache_size_limit, ".cubin")
    try:
        cache.prepare()
    except OSError:
        return None
    return cache


def load_triton(
    sources: Sequence[TritonSource], device: torch.device, options: Options
) -> tuple[dict[str, Loaded], int]:
    """The loaded kernel of each source, by name, and how many had to be compiled.

    Raises:
        Unsupported: no Triton or no suitable GPU.
        InternalError: Triton or the driver refused a kernel.
    """
    capability = check_gpu(device)
    cache = _cache(options)
    found: dict[str, Loaded] = {}
    missing: dict[str, TritonSource] = {}
    keys: dict[str, str] = {}
    for source in {s.name: s for s in sources}.values():
        key = keys[source.name] = _key(source, capability)
        place = f"{key}:{device.index}"
        loaded = _LOADED.get(place)
        if loaded is None and cache is not None:
            loaded = _from_disk(cache, key, device)
        if loaded is None:
            missing[source.name] = source
        else:
            _LOADED[place] = found[source.name] = loaded
    if missing:
        for name, (cubin, symbol, shared) in _compile(list(missing.values()), capability, options).items():
            source = missing[name]
            entry = {"name": symbol, "shared": shared, "threads": 32 * source.warps}
            if cache is not None:
                _keep(cache, cubin, keys[name], entry)
            found[name] = _LOADED[f"{keys[name]}:{device.index}"] = _load(cubin, entry, device)
    return found, len(missing)


def _load(cubin: bytes, entry: dict[str, Any], device: torch.device) -> Loaded:
    from inductor_gen.runtime.cuda import load_module

    return Loaded(load_module(cubin, entry["name"], entry["shared"], device), entry["threads"], entry["shared"])


def _keep(cache: KernelCache, cubin: bytes, key: str, entry: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            cache.add(Path(file.name), {key: json.dumps(entry)})
        except OSError:
            pass  # a cache that cannot be written is no reason to fail


def _from_disk(cache: KernelCache, key: str, device: torch.device) -> Loaded | None:
    place = cache.find(key)
    if place is None or not cache.verified(place[0]):
        return None
    try:
        return _load(place[0].read_bytes(), json.loads(place[1]), device)
    except (OSError, ValueError, KeyError, InternalError):
        return None


def _compile(
    sources: Sequence[TritonSource], capability: tuple[int, int], options: Options
) -> dict[str, tuple[bytes, str, int]]:
    workers = options.compile_workers or len(os.sched_getaffinity(0))
    with _LOCK:
        if options.cache:
            module = load_module_text(module_text(sources), Path(options.cache_dir) / "cuda" / "source")
            made = _compile_all(module, sources, capability, workers)
        else:
            with tempfile.TemporaryDirectory(prefix="quintet-") as folder:
                module = load_module_text(module_text(sources), Path(folder))
                made = _compile_all(module, sources, capability, workers)
    return {s.name: m for s, m in zip(sources, made, strict=True)}


def _compile_all(
    module: Any, sources: Sequence[TritonSource], capability: tuple[int, int], workers: int
) -> list[tuple[bytes, str, int]]:
    if len(sources) == 1 or workers == 1:
        return [compile_kernel(module, s, capability) for s in sources]
    with ThreadPoolExecutor(min(workers, len(sources))) as pool:
        return list(pool.map(lambda s: compile_kernel(module, s, capability), sources))


def forget_loaded() -> None:
    """Forget the kernels loaded in this process, so that the disk is asked again (for tests)."""
    _LOADED.clear()


__all__ += ["forget_loaded"]
