"""Builds the C extension `dynamo_capture._native` with the system's C compiler.

As a hatchling build hook it puts the extension into the wheel (also an editable one) and gives the wheel its
platform tag. `python hatch_build.py` builds it in place, into `src/dynamo_capture/`, for the Python that
runs it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script: hatchling is not needed
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
TARGET_DIR = Path("src", "dynamo_capture")
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"]
FLAGS += ["-Wall", "-Wextra"]
# Declarations in CPython's internal headers and the usual idioms of type slots trip these.
FLAGS += ["-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-cast-function-type"]


class BuildError(RuntimeError):
    """The extension cannot be built here; the message says why and what to do."""


def compiler() -> list[str]:
    """The C compiler's command: `CC`, else the one Python was built with, else what is on the path.

    Raises:
        BuildError: there is no C compiler.
    """
    configured = os.environ.get("CC")
    candidates = [configured] if configured else [sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    for candidate in candidates:
        command = shlex.split(candidate or "")
        if command and shutil.which(command[0]):
            return [part for part in command if part != "-pthread"] + ["-pthread"]
    raise BuildError(
        f"dynamo-capture needs a C compiler to build its frame hook; none of {candidates} was found. "
        "Install one (Debian/Ubuntu: apt install gcc; Fedora: dnf install gcc) or set CC to its command."
    )


def check_python() -> Path:
    """The include folder of this Python.

    Raises:
        BuildError: this Python is unsupported, or its headers are missing.
    """
    if not (3, 11) <= sys.version_info[:2] <= (3, 14) or sys.implementation.name != "cpython":
        raise BuildError(
            f"dynamo-capture supports CPython 3.11 to 3.14, not {sys.implementation.name} "
            f"{sys.version_info.major}.{sys.version_info.minor}"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("dynamo-capture does not support the free-threaded build of Python")
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "internal" / "pycore_frame.h").is_file():
        raise BuildError(
            f"Python's C headers are not in {include}. Install them "
            f"(Debian/Ubuntu: apt install python{sys.version_info.major}.{sys.version_info.minor}-dev)."
        )
    return include


def build(root: Path = ROOT) -> Path:
    """Compiles the extension into `root/src/dynamo_capture` if it is older than its sources.

    Returns:
        The extension's path.

    Raises:
        BuildError: no compiler, no headers, or the compilation failed.
    """
    target = root / TARGET_DIR / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = sorted((root / "csrc").glob("*.c"))
    inputs = [*sources, *(root / "csrc").glob("*.h"), Path(__file__)]
    if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in inputs):
        return target
    include = check_python()
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    command = [*compiler(), *FLAGS, f"-I{include}", *map(str, sources), "-o", str(scratch), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        scratch.unlink(missing_ok=True)
        text = shlex.join(command)
        raise BuildError(f"compiling dynamo-capture's extension failed:\n{text}\n{done.stderr}")
    sys.stderr.write(done.stderr)
    os.replace(scratch, target)
    return target


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles before the wheel is packed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the extension (wheels only) and asks for the platform's tag."""
        if self.target_name != "wheel":
            return
        target = build(Path(self.root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":  # an editable install imports from src/
            build_data["force_include"][str(target)] = f"dynamo_capture/{target.name}"


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        sys.exit(f"error: {error}")
