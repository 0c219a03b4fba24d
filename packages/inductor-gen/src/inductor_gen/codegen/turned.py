"""Loads along whose buffer another loop is contiguous than the one that vector lanes take: of a transposed operand.

Read where they are, a line of the cache is fetched anew for each of its elements where the lines in between push it out
before the next one is read: soon, where rows lie powers of two apart and so share places in the cache. Of such an
operand a patch at a time is brought into memory of its own first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inductor_gen.codegen.cexpr import storage_type
from inductor_gen.device.record import Device
from inductor_gen.kernel.body import Body, Val, linear
from inductor_gen.loops.index import ONE, ZERO, Hint
from prims.spec.expr import Expr

if TYPE_CHECKING:
    from inductor_gen.codegen.c import _Kernel

__all__ = ["LINE", "across", "allocate", "bring", "crowds", "strips", "turn", "turned"]

LINE = 64  # bytes of a line of the cache
APART = 4  # elements between the rows of a patch, which share no places in the cache then


def turned(body: Body, lane: Expr, u: Expr) -> list[Val]:
    """The loads that are contiguous along ``u`` and jump along ``lane``, under no condition."""
    return [
        v for v in body.vals
        if v.op == "load" and not v.args and v.at is not None and linear(body, v.at, u) is ONE
        and linear(body, v.at, lane) not in (None, ZERO, ONE)
    ]  # fmt: skip


def across(body: Body, lane: Expr, loops: Sequence[Expr]) -> Expr | None:
    """The loop along which a buffer is contiguous through which the lane jumps: a transposition."""
    for v in body.vals:
        if v.op == "load" and v.at is not None and linear(body, v.at, lane) not in (ZERO, ONE):
            for u in loops:
                if linear(body, v.at, u) is ONE:
                    return u
    return None


def crowds(body: Body, load: Val, lane: Expr, steps: int, device: Device, hint: Hint) -> bool:
    """Do the lines that so many steps of a lane read share places in a core's first cache, more than it has there?"""
    way, ways = device.first_cache
    stride = hint(linear(body, load.at, lane)) * load.dtype.itemsize  # type: ignore[arg-type]
    return len({k * stride % way // LINE for k in range(steps)}) * ways < steps


def bring(kernel: _Kernel, loads: Sequence[Val], u: Expr, lane: Expr, size: int) -> None:
    """Copy a patch of each operand, of the stretches of ``u`` and of the lane that are open, as it lies but for some
    elements between its rows. The loads read from there from then on."""
    w, names = kernel.w, kernel.names
    i, j = names.var(u), names.var(lane)
    place = f"({j} - {j}b)*{size + APART} + {i} - {i}b"
    for name, some in strips(loads, "patch").items():
        w.line(f"{storage_type(some[0].dtype)} {name}[{size * (size + APART)}];")
        kernel.loop(lane, f"{j}b", f"{j}e")
        w.line("#pragma omp simd")
        kernel.loop(u, f"{i}b", f"{i}e")
        _move(kernel, f"{name}[{place}]", some)
        w.close(2)


def turn(kernel: _Kernel, loads: Sequence[Val], u: Expr, lane: Expr) -> None:
    """Copy the rows along the lane of the stretch of ``u`` that is open, of each operand, into a strip per thread, in
    which they are contiguous. The loads read from there from then on."""
    w, names = kernel.w, kernel.names
    i, j = names.var(u), names.var(lane)
    place = f"({i} - {i}b)*{_pitch(names.extent(lane))} + {j}"
    for name, some in strips(loads).items():
        kernel.loop(lane)
        kernel.loop(u, f"{i}b", f"{i}e")
        _move(kernel, f"{name}[{place}]", some)
        w.close(2)


def _move(kernel: _Kernel, to: str, loads: Sequence[Val]) -> None:
    """Copy an element that these loads read, which read it there from then on."""
    kernel.w.line(f"{to} = {kernel.names.element(loads[0])};")
    kernel.names.elements |= {v.id: to for v in loads}


def allocate(kernel: _Kernel, loads: Sequence[Val], lane: Expr, rows: int) -> None:
    """The strips of a thread, of so many rows."""
    for name, some in strips(loads).items():
        ctype = storage_type(some[0].dtype)
        count = f"{rows} * ({_pitch(kernel.names.extent(lane))})"
        kernel.w.line(f"{ctype}* const {name} = ({ctype}*)malloc(sizeof({ctype}) * {count});")


def strips(loads: Sequence[Val], kind: str = "strip") -> dict[str, list[Val]]:
    """Names of strips, or of patches, with the loads of the same elements."""
    found: dict[tuple[object, Expr], list[Val]] = {}
    for v in loads:
        found.setdefault((v.attr, v.at), []).append(v)  # type: ignore[arg-type]
    return {f"{kind}{k}": some for k, some in enumerate(found.values())}


def _pitch(extent: str) -> str:
    """Elements between rows of a strip: they are not to share places in the cache, whatever the extent."""
    return f"({extent} + {LINE // 4})"
