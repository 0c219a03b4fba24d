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

A generator that is suspended is rebuilt the same way: a generator function whose prologue restores the stack and
jumps to the very `YIELD_VALUE` at which it stands, with something to yield once.

Formats: CPython's `Objects/exception_handling_notes.txt`, `Objects/locations.md` (3.11; unchanged to 3.14).
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

__all__ = [
    "ResumePoint", "cell_slots", "generator_code", "implicit_reads", "parameters", "resume_code", "resume_info",
    "resume_point", "super_here",
]  # fmt: skip

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
        stack: for each stack value, bottom first: True for a real value, False for the NULL of a call, None for what
            `PUSH_EXC_INFO` left below the first exception that is being handled. In the place of that one the resume
            code takes the exception that is handled now; what its caller handles is found when it runs.
        locals: the live variables that have a value, cells not counted. The others are unbound.
    """

    index: int
    stack: tuple[bool | None, ...]
    locals: tuple[str, ...]


_infos: CodeMap[ResumeInfo] = CodeMap()
_points: CodeMap[tuple[ResumePoint, int]] = CodeMap()
#: The codes that continue a code object; they live as long as it does.
_made: CodeMap[dict[ResumePoint | None, CodeType]] = CodeMap()


def parameters(code: CodeType) -> tuple[str, ...]:
    """The names of all local slots in order: variables, cells that are no arguments, free variables."""
    names = code.co_varnames
    return (*names, *(n for n in code.co_cellvars if n not in names), *code.co_freevars)


def resume_info(code: CodeType) -> ResumeInfo | None:
    """Where a code made by `resume_code` comes from; None for any other code."""
    return _infos.get(code)


def resume_point(code: CodeType) -> tuple[ResumePoint, int]:
    """Where a code made by `resume_code` continues the original, and the user's line there.

    Raises:
        ValueError: it was not made so.
    """
    found = _points.get(code)
    if found is None:
        raise ValueError(f"{code.co_qualname} continues nothing")
    return found


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


def generator_code(code: CodeType, point: ResumePoint | None) -> CodeType:
    """The code of generators that stand where one of `code` does; the same one for the same arguments.

    Args:
        code: a generator function's.
        point: the `YIELD_VALUE` at which it is suspended, and the state there without what is yielded; None for a
            generator that has ended.

    Returns:
        Code with the original's name and the parameters of :func:`resume_code` (none where the generator has ended),
        whose generators yield None when they are first advanced, and are then suspended there (or end at once).

    Raises:
        ValueError: see :func:`resume_code`.
    """
    codes = _made.get(code)
    if codes is None:
        codes = _made[code] = {}
    made = codes.get(point)
    if made is None:
        made = codes[point] = _ended(code) if point is None else _suspended(code, point)
    return made


def _make(code: CodeType, point: ResumePoint, line: int) -> CodeType:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise ValueError(f"{code.co_qualname} is a generator or coroutine: it cannot be resumed")
    name = f"resume_in_{code.co_name.strip('<>')}_at_{line}"
    body, consts, grown, growth = _body(code)
    new, count = _continued(code, point, name, body, consts, _instruction("RESUME"), b"")
    _infos[new] = ResumeInfo(weakref.ref(code), point.index, count, tuple(grown), growth)
    _points[new] = point, line
    return new


#: How the code of a generator function begins: with the making of the generator, which is then advanced.
_GENERATOR_BEGIN = ("RETURN_GENERATOR", "POP_TOP", "RESUME")


def _suspended(code: CodeType, point: ResumePoint) -> CodeType:
    body, consts, _, _ = _body(code)
    begin = b"".join(map(_instruction, _GENERATOR_BEGIN))
    end = _instruction("LOAD_CONST", len(consts))
    return _continued(code, point, code.co_name, body, (*consts, None), begin, end)[0]


def _ended(code: CodeType) -> CodeType:
    begin = b"".join(map(_instruction, _GENERATOR_BEGIN))
    return code.replace(
        co_argcount=0, co_posonlyargcount=0, co_kwonlyargcount=0, co_nlocals=0, co_varnames=(), co_cellvars=(),
        co_freevars=(), co_flags=code.co_flags & ~_DROPPED_FLAGS, co_consts=(None,), co_exceptiontable=b"",
        co_code=begin + _instruction("LOAD_CONST") + _instruction("RETURN_VALUE"),
        co_linetable=_no_location(len(begin) // 2 + 2), co_stacksize=2,
    )  # fmt: skip


def _body(code: CodeType) -> tuple[bytes, tuple[Any, ...], list[int], int]:
    """The original's bytecode and constants, with `super()` replaced; which instructions grew, by how many."""
    if "__class__" in code.co_freevars and "super" in code.co_names:
        consts = (*code.co_consts, super_here)
        body, grown, growth = _replace_super(code.co_code, code.co_names.index("super"), len(consts) - 1)
        return body, consts, grown, growth
    return code.co_code, code.co_consts, [], 0


def _continued(
    code: CodeType, point: ResumePoint, name: str, body: bytes, consts: tuple[Any, ...], begin: bytes, end: bytes
) -> tuple[CodeType, int]:
    """The body behind a prologue that starts with `begin`, restores the state, and jumps after `end`.

    Returns:
        The code, and the number of instructions of the prologue.
    """
    slots = parameters(code)
    unknown = set(point.locals).difference(slots)
    if unknown:
        raise ValueError(f"{code.co_qualname} has no variables {sorted(unknown)}")
    unbound = frozenset(slots).difference(point.locals, cell_slots(code))
    offset = _offset_of(code.co_code, point.index)  # which is the same in `body`
    if offset is None:
        raise ValueError(f"{code.co_qualname} has no instruction {point.index}")
    restore = _restoring(slots, point.stack, unbound)
    prologue = begin + restore + end + _instruction("JUMP_FORWARD", offset // 2)
    count = sum(op != _EXTENDED_ARG for op in prologue[::2])
    shift = len(prologue)
    values = sum(kind is not False for kind in point.stack)
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
        co_stacksize=max(code.co_stacksize, len(point.stack) + 2),
        co_consts=consts,
        co_code=prologue + body,
        co_exceptiontable=_shift_exceptions(code.co_exceptiontable, shift // 2),
        co_linetable=_no_location(shift // 2) + code.co_linetable,
    )
    return new, count


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


def _restoring(slots: tuple[str, ...], stack: tuple[bool | None, ...], unbound: frozenset[str]) -> bytes:
    """Unbinds, and fills the stack (emptying the parameters it comes from)."""
    parts = [_instruction("DELETE_FAST", i) for i, name in enumerate(slots) if name in unbound]
    parameter = len(slots)
    for value in stack:
        if value is False:
            parts.append(_instruction("PUSH_NULL"))
            continue
        parts += [_instruction("LOAD_FAST", parameter), _instruction("DELETE_FAST", parameter)]
        if value is None:
            parts += [_instruction("PUSH_EXC_INFO"), _instruction("POP_TOP")]
        parameter += 1
    return b"".join(parts)


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
