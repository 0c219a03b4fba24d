"""Resume functions: the rest of a function after a graph break, as a function of its own.

A resume function has the original's instructions, lines and exception table. Its parameters are the values that
stood on the stack and the live locals; it pushes the former and jumps to where the original goes on. All cells of
the original (its own and its free variables) are free variables of it.
"""

from __future__ import annotations

import types
from dataclasses import dataclass

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label

__all__ = ["ResumePoint", "resume_code"]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where and with what a function goes on.

    Attributes:
        index: the instruction to continue at.
        stack: for each stack value, deepest first, whether it is a real value (not the NULL of a call).
        locals: the live locals that have a value.
    """

    index: int
    stack: tuple[bool, ...]
    locals: tuple[str, ...]


def resume_code(code: types.CodeType, point: ResumePoint, line: int) -> types.CodeType:
    """The code of a resume function; its parameters are the real stack values, then the locals."""
    original = Bytecode.from_code(code)
    target = Label()
    body: list[object] = []
    index = -1
    for item in original:
        if isinstance(item, Instr):
            index += 1
            if index == point.index:
                body.append(target)
            item = _with_free_cells(item)
        body.append(item)

    result = Bytecode()
    depth = _depth_of(code)
    stack_names = [f"___stack{depth}_{i}" for i, real in enumerate(point.stack) if real]
    result.argnames = [*stack_names, *point.locals]
    result.argcount = len(result.argnames)
    result.freevars = [*code.co_cellvars, *code.co_freevars]
    result.name = f"resume_in_{_bare_name(code.co_name)}_at_{line}"
    result.qualname = code.co_qualname.removesuffix(code.co_name) + result.name
    result.filename = code.co_filename
    result.first_lineno = code.co_firstlineno
    result.flags = 0x03 | (0x10 if result.freevars else 0)
    prologue: list[object] = []
    if result.freevars:
        prologue.append(Instr("COPY_FREE_VARS", len(result.freevars), lineno=line))
    prologue.append(Instr("RESUME", 0, lineno=line))
    names = iter(stack_names)
    for real in point.stack:
        prologue.append(Instr("LOAD_FAST", next(names), lineno=line) if real else Instr("PUSH_NULL", lineno=line))
    prologue.append(Instr("JUMP_FORWARD", target, lineno=line))
    result.extend(prologue)  # type: ignore[arg-type]
    result.extend(body)  # type: ignore[arg-type]
    return result.to_code(
        stacksize=code.co_stacksize + len(point.stack) + 2, compute_exception_stack_depths=False
    )


def _with_free_cells(inst: Instr) -> Instr:
    if inst.name in ("MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR"):
        return Instr("NOP", location=inst.location)
    if isinstance(inst.arg, CellVar):
        return Instr(inst.name, FreeVar(inst.arg.name), location=inst.location)
    return inst


def _bare_name(name: str) -> str:
    """The original function's name, also for a resume function of a resume function."""
    while name.startswith("resume_in_") and "_at_" in name:
        name = name.removeprefix("resume_in_").rpartition("_at_")[0]
    return name.strip("<>")


def _depth_of(code: types.CodeType) -> int:
    """How many breaks lie before this code, so that its stack parameters keep names of their own."""
    depth = 0
    for name in code.co_varnames[: code.co_argcount]:
        if name.startswith("___stack"):
            depth = max(depth, int(name.removeprefix("___stack").partition("_")[0]) + 1)
    return depth
