"""Kernels' sources as files: written for people, and taken from there where somebody has edited them.

An edited source is a kernel of another text, and so of another name and another key in the kernel cache: no other
compilation finds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable
from typing import TypeVar

from inductor_gen.codegen.renderer import KernelSource
from prims.debug import folder_of
from prims.eager import warn_user
from prims.errors import UserError
from prims.logs import say
from prims.options import Options
from prims.report import Report

__all__ = ["FOLDER", "edited", "write_sources"]

S = TypeVar("S", bound=KernelSource)

#: The debug folder's folder of sources.
FOLDER = "sources"
_SUFFIX = {"c": ".c", "triton": ".py"}
_MARK = "_edited_"


def write_sources(sources: Iterable[KernelSource], options: Options, report: Report) -> None:
    """Under ``Options.debug`` write each kernel's source into the debug folder, as ``sources/NAME.c`` or ``.py``."""
    root = folder_of(options.cache_dir) if options.debug else None
    if root is None:
        return
    folder = os.path.join(root, FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for source in sources:
            with open(_place(folder, source), "w", encoding="utf-8") as file:
                file.write(_as_generated(source))
    except OSError as error:
        warn_user(f"debug=True cannot write kernels' sources into {folder}: {error}")
        return
    if not any(record.path == folder for record in report.kept):
        report.keep(FOLDER, folder)


def edited(source: S, options: Options, report: Report) -> S:
    """The source, or what ``Options.sources`` has in its place.

    Raises:
        UserError: the file does not define the kernel.
    """
    path = _place(options.sources, source)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if not any(record.stage == FOLDER for record in report.fallbacks):
            report.fallback(FOLDER, f"{path} is not there: such kernels run as they were generated", eager=False)
        return source
    made = source.named()
    if text == made:
        return source
    if not re.search(rf"\b{source.name}\b", text):
        raise UserError(f"{path} defines no {source.name}", todo="Leave the kernel's name and arguments as they are.")
    name = f"{source.name}{_MARK}{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    head = made.removesuffix(source.text.replace("KERNEL", source.name, 1))  # the comment, which is kept apart
    body = re.sub(rf"\b{source.name}\b", name, text.removeprefix(head))
    if source.language == "c":  # by which a compiler names what is wrong
        body = f'#line {1 + head.count(chr(10)) * text.startswith(head)} "{path}"\n{body}'
    say("code", report, f"kernel {name} is compiled from {path}")
    return dataclasses.replace(source, name=name, text=body)


def _as_generated(source: KernelSource) -> str:
    """The text, of an edited kernel under the name of the generated one, in whose place it is found again."""
    text = source.named().replace(source.name, source.name.partition(_MARK)[0])
    return re.sub(r'^#line \d+ ".*"\n', "", text, flags=re.M)


def _place(folder: str, source: KernelSource) -> str:
    return os.path.join(folder, source.name.partition(_MARK)[0] + _SUFFIX[source.language])
