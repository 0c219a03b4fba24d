"""The kinds of devices: a row each, which names what does the work for it.

A new kind of device is one more row, and modules that hold what the row names. They are imported when they are needed:
a program without a GPU imports no Triton. A row from another package holds functions (``docs/devices.md``).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

from prims.errors import Unsupported
from prims.forking import compiling
from prims.records import record

__all__ = ["BACKENDS", "Backend", "backend", "exchanged"]

#: A name, which is imported when it is needed, or what it would name: for rows from elsewhere.
Named: TypeAlias = str | Callable[..., Any]


@record
class Backend:
    """Who does what for a kind of device: names as ``module:attribute``, within this package, or functions.

    Attributes:
        kind: torch's name for it.
        language: of its generated kernels, ``"c"`` or ``"triton"``.
        ask: ``(torch.device) -> Device``, its record.
        claims: ``(deterministic) -> names of operators`` that are called as they are, beside those that every device's
            are.
        renderer: ``(hint, layouts, device, options, tiling) -> Renderer``, for its generated kernels.
        call: ``(node) -> (name, callable) | None``, its own way to call an operator.
        load: ``(units, options) -> (addresses by name, how many were compiled)``, what compiles C texts for it. Each is
            called as ``int kernel(void* const* buffers, const int64_t* sizes)``.
        begin: ``(torch.device, options) -> build | None``, what compiles kernels while a graph is still being lowered.
    """

    kind: str
    language: str
    ask: Named
    claims: Named
    renderer: Named
    call: Named | None = None
    load: Named | None = None
    begin: Named | None = None

    def __getitem__(self, what: str) -> Callable[..., Any]:
        """The function that the row names; one that returns None where it names none."""
        given = getattr(self, what)
        return given if callable(given) else _named(given)


@functools.cache
def _named(name: str | None) -> Callable[..., Any]:
    if name is None:
        return lambda *_: None
    module, _, attribute = name.partition(":")
    with compiling():
        return getattr(importlib.import_module(f"inductor_gen.{module}"), attribute)  # type: ignore[no-any-return]


BACKENDS = {
    row.kind: row
    for row in (
        Backend(
            "cpu", "c", ask="device.cpu:ask", claims="device.cpu:claims", renderer="codegen.c:CRenderer",
            load="runtime.compiler:load_kernels",
        ),
        Backend(
            "cuda", "triton", ask="device.cuda:ask", claims="device.cuda:claims",
            renderer="codegen.triton:TritonRenderer", call="extern.cuda:cuda_function",
            begin="runtime.triton_build:begin",
        ),
    )
}  # fmt: skip

_OURS = dict(BACKENDS)


def exchanged() -> bool:
    """Whether a row is not as this module has it, or is another's."""
    return BACKENDS != _OURS


def backend(kind: str) -> Backend:
    """The row of a kind of device.

    Raises:
        Unsupported: there is none.
    """
    if kind not in BACKENDS:
        raise Unsupported(f"no kernels are generated for {kind} devices, only for {' and '.join(BACKENDS)}")
    return BACKENDS[kind]
