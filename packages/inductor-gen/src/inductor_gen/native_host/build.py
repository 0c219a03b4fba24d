"""Texts to one shared library."""

from __future__ import annotations

import ctypes
import platform
import shutil
from pathlib import Path

import torch

from inductor_gen.codegen.cexpr import prelude
from inductor_gen.codegen.lowered import Lowered
from inductor_gen.device.cpu import facts
from inductor_gen.native_host.host import host_text
from inductor_gen.native_host.interface import Interface
from inductor_gen.runtime.compiler import find_compiler, run_compiler
from prims.errors import Unsupported

__all__ = ["LIBRARY", "build_library", "calls_can_be_made", "processor"]

LIBRARY = "libprogram.so"

#: What of an x86 processor decides which instructions the compiler has used, as it and the kernel name it.
_FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

#: Functions of PyTorch's C interface that calls of its operators need, and 2.11 has not.
_NEEDED = ("torch_exception_get_what_without_backtrace", "torch_new_stable_ivalue")

#: The files that stand beside a program's own.
_COMMON = ("quintet.h", "runtime.c", "torch.c", "entry.c")


def processor() -> list[str]:
    """The features of this machine's processor that code compiled here may rely on."""
    flags = facts().get("flags", "").split() if platform.machine() == "x86_64" else []
    return [name for name in _FEATURES if name in flags]


def calls_can_be_made() -> bool:
    """Does this PyTorch's C interface have what calls of its operators without Python need?"""
    library = ctypes.CDLL(str(_libraries() / "libtorch_cpu.so"))
    return all(hasattr(library, name) for name in _NEEDED)


def _libraries() -> Path:
    return Path(torch.__file__).parent / "lib"


def build_library(lowered: Lowered, interface: Interface, folder: Path) -> bool:
    """Write a program's C files and the library made of them into a folder; tells whether it calls PyTorch.

    Raises:
        Unsupported: something in the graph cannot run without Python, on the CPU.
        UserError: there is no C compiler, or it does not work or takes too long.
        InternalError: it refused the text.
    """
    text, calls_torch = host_text(lowered, interface)
    if calls_torch and not calls_can_be_made():
        raise Unsupported(
            f"the program calls PyTorch's operators, for which the C interface of torch {torch.__version__} does not "
            "suffice; that of 2.13 does"
        )
    sources = {s.name: s for s in lowered.sources()}
    head = prelude("\n".join(s.text for s in sources.values()), not lowered.options.batch_invariant)
    kernels = "\n".join([head, *(s.named() for s in sources.values())])
    needs = " ".join(f'QR_NEEDS("{name}")' for name in processor())
    (folder / "kernels.c").write_text(kernels or "\n", encoding="utf-8")
    (folder / "program.c").write_text(f"#define QR_PROCESSOR {needs}\n{text}", encoding="utf-8")
    for name in _COMMON:
        shutil.copyfile(Path(__file__).parent / name, folder / name)
    compiler = find_compiler()
    flags = [f for f in compiler.flags if f != "-shared"]
    objects = []
    for name in ("kernels", "program"):
        made = folder / f"{name}.o"
        hidden = ["-fvisibility=hidden"]
        command = [*compiler.command, *flags, *hidden, "-c", str(folder / f"{name}.c"), "-o", str(made)]
        run_compiler(command, compiler, made, lowered.options)
        objects.append(made)
    made_of = [*map(str, objects), "-o", str(folder / LIBRARY)]
    threads = [f for f in flags if f == "-fopenmp"]
    link = [*compiler.command, "-shared", *threads, *made_of, "-lm", "-lpthread"]
    if calls_torch:
        place = _libraries()
        link += [f"-L{place}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
        link += ["-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,{place}"]  # what lies beside the library comes first
    run_compiler(link, compiler, folder / LIBRARY, lowered.options)
    for made in objects:
        made.unlink()
    return calls_torch

