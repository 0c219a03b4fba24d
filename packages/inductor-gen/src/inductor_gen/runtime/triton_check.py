"""Can kernels be generated for a GPU here? Each reason why not is one message that says what to do."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import tempfile
from pathlib import Path

import torch

from inductor_gen.runtime.triton_worker import compile_function, import_file
from prims.errors import UserError

__all__ = ["OLDEST", "broken_triton", "check_gpu", "triton_version"]

OLDEST = (8, 0)

_PROBE = """
import triton
import triton.language as tl


@triton.jit
def probe(out0):
    tl.store(out0, 1)
"""


@functools.lru_cache(maxsize=1)
def triton_version() -> str | None:
    """The installed Triton's version, found without importing it; None where there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("triton")
        return "unknown" if spec is not None and spec.origin is not None else None


def _requirement() -> str:
    """What to ask pip for: the Triton that the installed PyTorch names, where it does."""
    try:
        wanted = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    found = [m[0] for text in wanted if (m := re.match(r"triton\s*==\s*[\w.]+", text))]
    return found[0].replace(" ", "") if found else "triton"


def check_gpu(device: torch.device) -> tuple[int, int]:
    """The device's compute capability.

    Raises:
        UserError: no usable GPU, one older than compute capability 8.0, or no Triton.
    """
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        raise UserError(
            f"PyTorch finds no usable CUDA device{build}, and {device} is one",
            todo="Check the driver with nvidia-smi and install a CUDA build of PyTorch, or move the model to the CPU.",
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        raise UserError(
            f"{device} is a {torch.cuda.get_device_name(device)} of compute capability {_dotted(capability)}, and "
            f"kernels are generated for {_dotted(OLDEST)} and newer",
            todo="Use a newer GPU, or compile with backend='aot_eager', which generates no kernels.",
        )
    if triton_version() is None:
        raise UserError(
            f"Triton is not installed, and kernels for {device} are generated in it",
            todo=f"pip install {_requirement()}",
        )
    return capability


@functools.lru_cache(maxsize=4)
def broken_triton(capability: tuple[int, int]) -> UserError | None:
    """What is wrong with the installed Triton, found by compiling the smallest kernel; None where it works.

    To be asked when a kernel did not compile: importing Triton takes half a second.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="quintet-") as folder:
            path = Path(folder) / "quintet_probe.py"
            path.write_text(_PROBE)
            module = import_file(path.stem, str(path))
            compile_function(module.probe, [("out0", "*i32", True)], capability, {"num_warps": 1})
    except Exception as error:
        return UserError(
            f"Triton {triton_version()} is installed but does not work: {type(error).__name__}: {error}",
            todo=f"pip install --force-reinstall {_requirement()}",
        )
    return None


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
