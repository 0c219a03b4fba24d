"""Code objects that continue a function in the middle.

After a graph break the rest of the function runs as a function of its own, whose parameters are the state at
that point. Since Python 3.11 every jump is relative and the exception table is separate, so the original
bytecode can be kept byte for byte: the new code is a prologue that restores the value stack and jumps,
followed by the old body, with the exception and line tables shifted.

Local slots keep their indices: *all* of the original's slots (locals, cells, free variables) become
parameters, in order, and the slots of cell and free variables take cell objects, which is what `LOAD_DEREF`
and the like expect to find there. So a resumed function needs no closure. Example: ``def f(x): a = x + 1;
print(a); return a * x`` continued behind the call of `print` is ``def f(x, a, <result of print>): <pop it>;
return a * x``.

Formats: CPython's `Objects/exception_handling_notes.txt`, `Objects/locations.md` (3.11; unchanged to 3.13).
"""

from __future__ import annotations

import builtins
import inspect
import opcode
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CellType, CodeType
from typing import Any

from dynamo_capture.codemap import CodeMap

__all__ = ["ResumePoint", "cell_slots", "implicit_reads", "parameters", "resume_code", "resume_info", "super_here"]

_OP = opcode.opmap
_EXTENDED_ARG = _OP["EXTENDED_ARG"]
_LOAD_GLOBAL = _OP["LOAD_GLOBAL"]
_LOAD_SUPER_ATTR = _OP.get("LOAD_SUPER_ATTR", -1)
_DROPPED_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_NESTED


@dataclass(frozen=True, slots=True)
class ResumeInfo:
    """Where a resume code comes from.

    Args:
        code: the code it continues (never itself a resume code: resuming one resumes its original). A weak reference:
            the original's cache entries refer to the resume code.
        index: the instruction of `original` at which it continues.
        shift: the number of instructions before the copy of the body.
        grown: the instructions of `original`, ascending, that are `growth` more in the copy.
    """

    code: weakref.ref[CodeType]
    index: int
    shift: int
    grown: tuple[int, ...] = ()
    growth: int = 0

    @property
    def original(self) -> CodeType:
        """The code that is continued.

        Raises:
            ReferenceError: its function is gone, so that a frame that still runs cannot be continued again.
        """
        code = self.code()
        if code is None:
            raise ReferenceError("the function that this continues no longer exists")
        return code

    def here(self, index: int) -> int:
        """Where an instruction of `original` is in the resume code."""
        return index + self.shift + self.growth * sum(1 for place in self.grown if place < index)

    def there(self, index: int) -> int:
        """Which instruction of `original` the one at `index` of the resume code, behind the prologue, comes from."""
        index -= self.shift
        for place in self.grown:
            if index > place:
                index = max(index - self.growth, place)
        return index


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where and with what a function goes on.

    Args:
        index: the instruction to continue at (counted without CACHE and EXTENDED_ARG).
        stack: for each stack value, bottom first, whether it is a real value (not the NULL of a call).
        locals: the live variables that have a value, cells not counted. The others are unbound.
    """

    index: int
    stack: tuple[bool, ...]
    locals: tuple[str, ...]


_infos: CodeMap[ResumeInfo] = CodeMap()
#: The codes that continue a code object; they live as long as it does.
_made: CodeMap[dict[ResumePoint, CodeType]] = CodeMap()


def parameters(code: CodeType) -> tuple[str, ...]:
    """The names of all local slots in order: variables, cells that are no arguments, free variables."""
    names = code.co_varnames
    return (*names, *(n for n in code.co_cellvars if n not in names), *code.co_freevars)


def resume_info(code: CodeType) -> ResumeInfo | None:
    """Where a code made by `resume_code` comes from; None for any other code."""
    return _infos.get(code)


def cell_slots(code: CodeType) -> frozenset[str]:
    """The names whose local slot holds a cell once the function runs.

    In a resume code these slots are parameters and the cells come in from outside.
    """
    info = resume_info(code)
    original = info.original if info is not None else code
    return frozenset(original.co_cellvars) | frozenset(original.co_freevars)


def implicit_reads(code: CodeType) -> frozenset[str]:
    """The variables that a function may read without an instruction that says so: `super()` reads the first."""
    info = resume_info(code)
    original = info.original if info is not None else code
    if "__class__" in original.co_freevars and "super" in original.co_names:
        return frozenset(original.co_varnames[:1])
    return frozenset()


def resume_code(code: CodeType, point: ResumePoint, line: int) -> CodeType:
    """A code object that continues `code` at a point; the same one for the same arguments.

    Args:
        code: the original, or a resume code (then the index counts its own instructions, behind the prologue).
        point: where, and the shape of the state there.
        line: the user's line, for the name.

    Returns:
        Code with plain positional parameters: one per slot of the original in the order of `parameters` (whatever
        is passed for an unbound one is dropped), then one per real value of `point.stack`. It has no cell or free
        variables: pass cell objects in the slots of `cell_slots`.

    Raises:
        ValueError: the index or a name is not in the code, or the code is a generator or coroutine.
    """
    info = resume_info(code)
    if info is not None:
        if point.index < info.shift:
            raise ValueError(f"instruction {point.index} is in the prologue of the resumed {code.co_qualname}")
        return resume_code(info.original, replace(point, index=info.there(point.index)), line)
    codes = _made.get(code)
    if codes is None:
        codes = _made[code] = {}
    made = codes.get(point)
    if made is None:
        made = codes[point] = _make(code, point, line)
    return made


def _make(code: CodeType, point: ResumePoint, line: int) -> CodeType:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise ValueError(f"{code.co_qualname} is a generator or coroutine: it cannot be resumed")
    index, stack = point.index, point.stack
    slots = parameters(code)
    unknown = set(point.locals).difference(slots)
    if unknown:
        raise ValueError(f"{code.co_qualname} has no variables {sorted(unknown)}")
    unbound = frozenset(slots).difference(point.locals, cell_slots(code))
    body = code.co_code
    offset = _offset_of(body, index)
    if offset is None:
        raise ValueError(f"{code.co_qualname} has no instruction {index}")
    consts = code.co_consts
    grown: list[int] = []
    growth = 0
    if "__class__" in code.co_freevars and "super" in code.co_names:
        consts = (*consts, super_here)
        body, grown, growth = _replace_super(body, code.co_names.index("super"), len(consts) - 1)
    prologue, count = _prologue(slots, stack, unbound, offset)
    shift = len(prologue)
    values = sum(stack)
    name = f"resume_in_{code.co_name.strip('<>')}_at_{line}"
    new = code.replace(
        co_name=name,
        co_qualname=code.co_qualname.removesuffix(code.co_name) + name,
        co_argcount=len(slots) + values,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_nlocals=len(slots) + values,
        co_varnames=(*slots, *(f"<stack {i}>" for i in range(values))),
        co_cellvars=(),
        co_freevars=(),
        co_flags=code.co_flags & ~_DROPPED_FLAGS,
        co_stacksize=max(code.co_stacksize, len(stack) + 1),
        co_consts=consts,
        co_code=prologue + body,
        co_exceptiontable=_shift_exceptions(code.co_exceptiontable, shift // 2),
        co_linetable=_no_location(shift // 2) + code.co_linetable,
    )
    _infos[new] = ResumeInfo(weakref.ref(code), index, count, tuple(grown), growth)
    return new


# ---------------------------------------------------------------------- bytecode


def _offset_of(body: bytes, index: int) -> int | None:
    """The byte offset of an instruction, its EXTENDED_ARGs included."""
    start = position = 0
    size = len(body)
    while position < size:
        op = body[position]
        if op == 0:  # CACHE belongs to the instruction before
            position += 2
            start = position
            continue
        if op != _EXTENDED_ARG:
            if index == 0:
                return start
            index -= 1
            start = position + 2
        position += 2
    return None


def _instruction(name: str, arg: int = 0) -> bytes:
    out = bytes((_OP[name], arg & 0xFF))
    arg >>= 8
    while arg:
        out = bytes((_EXTENDED_ARG, arg & 0xFF)) + out
        arg >>= 8
    return out


def _prologue(
    slots: tuple[str, ...], stack: tuple[bool, ...], unbound: frozenset[str], offset: int
) -> tuple[bytes, int]:
    """Unbinds, fills the stack (emptying the parameters it comes from), jumps; with its instruction count."""
    parts = [_instruction("RESUME")]
    parts += [_instruction("DELETE_FAST", i) for i, name in enumerate(slots) if name in unbound]
    parameter = len(slots)
    for value in stack:
        if value:
            parts += [_instruction("LOAD_FAST", parameter), _instruction("DELETE_FAST", parameter)]
            parameter += 1
        else:
            parts.append(_instruction("PUSH_NULL"))
    parts.append(_instruction("JUMP_FORWARD", offset // 2))
    return b"".join(parts), len(parts)


def _replace_super(body: bytes, name: int, const: int) -> tuple[bytes, list[int], int]:
    """Makes `super()` work without free variables, among which it looks for `__class__`.

    A load of the global `super` that precedes a call becomes a load of the constant `super_here`: it has
    inline caches, whose room takes the instructions that replace it. `LOAD_SUPER_ATTR` (from 3.12) has class
    and instance on the stack; bit 1 of its argument makes it pass them.

    Returns:
        The new body; the instructions that became several; by how many each grew.
    """
    out = bytearray(body)
    grown: list[int] = []
    growth = 0
    count = -1
    extended = 0
    position = start = 0
    while position < len(body):
        op, arg = body[position], body[position + 1] | extended
        end = position + 2
        if op == _EXTENDED_ARG:
            extended = arg << 8
            position = end
            continue
        extended = 0
        count += 1
        while end < len(body) and body[end] == 0:
            end += 2
        # The low bit asks for a NULL beside the value, which only a call wants.
        if op == _LOAD_GLOBAL and arg == name << 1 | 1:
            load = _instruction("LOAD_CONST", const)
            null = _instruction("PUSH_NULL")
            new = load + null if sys.version_info >= (3, 13) else null + load
            filler = _instruction("NOP") * ((end - start - len(new)) // 2)
            out[start:end] = new + filler
            grown.append(count)
            growth = sum(out[at] != _EXTENDED_ARG for at in range(start, end, 2)) - 1
        elif op == _LOAD_SUPER_ATTR:
            out[position + 1] |= 2
        position = start = end
    return bytes(out), grown, growth


# ---------------------------------------------------------------------- tables


def _exception_entries(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(start, length, target, depth and lasti), in code units."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for i in range(0, len(numbers), 4):
        yield numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]


def _varint(value: int, first: int = 0) -> bytes:
    """Big endian, six bits a byte, bit 6 set on all but the last; `first` is or-ed into the first byte."""
    digits = [value & 63]
    while value := value >> 6:
        digits.append(value & 63 | 64)
    digits[-1] |= first
    return bytes(reversed(digits))


def _shift_exceptions(table: bytes, units: int) -> bytes:
    out = bytearray()
    for start, length, target, depth_lasti in _exception_entries(table):
        out += _varint(start + units, 128) + _varint(length) + _varint(target + units) + _varint(depth_lasti)
    return bytes(out)


def _no_location(units: int) -> bytes:
    """Line table entries for code units without a location: kind 15, up to eight units each."""
    whole, rest = divmod(units, 8)
    return bytes((0x80 | 15 << 3 | 7,)) * whole + (bytes((0x80 | 15 << 3 | rest - 1,)) if rest else b"")


# ---------------------------------------------------------------------- run time


def super_here(*args: Any) -> Any:
    """`super(...)` for a resumed method: class and instance come from the caller's slots if not given."""
    frame = sys._getframe(1)
    function = frame.f_globals.get("super", builtins.super)
    if args or function is not builtins.super:
        return function(*args)
    values = frame.f_locals
    instance = values[frame.f_code.co_varnames[0]]
    if isinstance(instance, CellType):
        instance = instance.cell_contents
    return function(values["__class__"].cell_contents, instance)
