"""``to_onnx()`` and ``to_stablehlo()``."""

from __future__ import annotations

import os
from pathlib import Path

from compile_api.deploy.exported import Exported
from prims.errors import UserError
from prims.forking import compiling

__all__ = ["to_onnx", "to_stablehlo"]


@compiling()
def to_onnx(
    exported: Exported, path: str | os.PathLike[str], *, opset: int = 18, external_data: bool | None = None
) -> Path:
    """Write a program as an ONNX model. Needs the package ``onnx`` (``pip install quintet-compile-api[onnx]``).

    Inputs and outputs have the contract's names, sizes that may differ the names of its dimensions. Weights are
    initializers under their qualified names. A tensor that the program writes has its new value as one more output,
    ``<name>.new``; a buffer that it writes is an input as well, whose default is its value now.

    Args:
        exported: what :func:`compile_api.export` returns.
        path: the file.
        opset: the version of ONNX's operators, at least 18.
        external_data: weights in a file of their own, ``<path>.data``; by default where they are too large for one file
            (2 GB).

    Returns:
        The file.

    Raises:
        UserError: operators of the program do not map; the error lists all of them, with the program's lines.
    """
    try:
        import onnx  # noqa: F401 - asked for here, so that the error says what to install
    except ImportError as error:
        raise UserError("to_onnx() needs the package onnx", todo="pip install quintet-compile-api[onnx]") from error
    from compile_api.deploy.interchange.onnx.model import write

    return write(exported, path, opset, external_data)


@compiling()
def to_stablehlo(exported: Exported, *, constants: bool = False) -> str:
    """A program as the text of a StableHLO module with one function, ``@main``.

    Its arguments are the contract's tensors in their order, then the weights as ``exported.contract.sources`` has them;
    its results those of the contract that are tensors or sizes, then the new values of what the program writes.
    Comments at the top name all of them. Sizes that may differ are ``?``; what depends on them is computed from them.

    Args:
        exported: what :func:`compile_api.export` returns.
        constants: weights that the program does not write stand in the text instead.

    Raises:
        UserError: operators of the program do not map; the error lists all of them, with the program's lines.
    """
    from compile_api.deploy.interchange.stablehlo.text import write

    return write(exported, constants)
