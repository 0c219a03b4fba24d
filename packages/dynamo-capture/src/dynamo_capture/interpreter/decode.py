"""Code objects decoded once: instructions with resolved arguments, exception table, lines, liveness.

Positions are *instruction indices*: CACHE and EXTENDED_ARG are folded away, as the ``bytecode`` library does, so
that index ``i`` here is the ``i``-th instruction there.
"""

from __future__ import annotations

import dis
import itertools
import sys
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from dynamo_capture.codemap import CodeMap
from dynamo_capture.resume import cell_slots, implicit_reads, resume_info
from dynamo_capture.rules import is_library_file, is_users_file
from prims.ir import SourceLoc

__all__ = ["BACKWARD_JUMPS", "DecodedCode", "ExceptionEntry", "Instruction", "decode"]

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)

_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_CONST = frozenset(dis.hasconst)
_LOCAL = frozenset(dis.haslocal)
_NAME = frozenset(dis.hasname)
_FREE = frozenset(dis.hasfree)
_EXTENDED = dis.EXTENDED_ARG
#: Jumps that close loops.
BACKWARD_JUMPS = frozenset(name for name in dis.opmap if "JUMP_BACKWARD" in name)
_ENDS = frozenset(
    ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD",
     "JUMP_BACKWARD_NO_INTERRUPT")
)  # fmt: skip


#: Builtins that are about the frame where they are called without an argument.
_OF_NO_ARGUMENT = frozenset(("locals", "vars", "dir"))
_FRAME_FUNCTIONS = frozenset(("_getframe", "currentframe"))
#: How far below the end of the values that the handler of a ``with`` statement keeps its ``__exit__`` is: from 3.14 on
#: the NULL of a call is above it.
_BELOW_KEPT = 2 if PY314 else 1
#: How a ``with`` statement begins from 3.14 on, with the manager on the stack.
_ENTER = (("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", 0), ("CALL", 0))


class Instruction:
    """One instruction: ``arg`` is a name, a constant, a target's index ... whatever its handler wants."""

    __slots__ = ("arg", "handler", "index", "name")

    def __init__(self, name: str, arg: Any, index: int) -> None:
        self.name = name
        self.arg = arg
        self.index = index
        self.handler: Any = None

    def __repr__(self) -> str:
        return f"{self.index}: {self.name} {self.arg!r}"


class ExceptionEntry(NamedTuple):
    """Instructions ``[start, end)`` are covered by the handler at ``target``, entered with ``depth`` values kept."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool


class Around(NamedTuple):
    """The handlers of a function that an exception may meet, from inside to the first that may end it.

    Attributes:
        catches: there is an ``except`` clause.
        cleans: there is a ``finally`` clause, which runs and lets it pass.
        managers: the stack positions of the ``__exit__`` of ``with`` statements.
    """

    catches: bool
    cleans: bool
    managers: tuple[int, ...]


class DecodedCode:
    """What the interpreter needs of a code object (which it does not keep alive)."""

    __slots__ = ("_around", "_asks", "_code", "_lines", "_liveness", "_locations", "_offset_index", "_places",
                 "cells", "exceptions", "in_library", "instructions", "is_users")  # fmt: skip

    def __init__(self, code: CodeType) -> None:
        self._code = weakref.ref(code)
        self.instructions, self._offset_index = _decode_instructions(code)
        self.exceptions = [
            ExceptionEntry(self._offset_index[s], self._end_index(e), self._offset_index[t], d, lasti)
            for s, e, t, d, lasti in _exception_table(code)
        ]
        self.cells = cell_slots(code)
        self._asks: bool | None = None
        self._lines: list[int] | None = None
        self._around: dict[int, Around] = {}
        self._liveness: list[frozenset[str]] | None = None
        self._places: dict[int, SourceLoc] = {}
        self._locations: dict[int, SourceLoc] = {}
        #: The code is torch's or the standard library's.
        self.in_library = is_library_file(code.co_filename)
        self.is_users = is_users_file(code.co_filename)

    @property
    def code(self) -> CodeType:
        """The code object, which a frame of it keeps alive."""
        code = self._code()
        if code is None:
            raise AssertionError("decoded code is used after its code object has died")
        return code

    @property
    def shown(self) -> CodeType:
        """The program's code that this is or continues."""
        info = resume_info(self.code)
        return self.code if info is None else info.original

    @property
    def asks_for_frame(self) -> bool:
        """Whether the code may read its variables by other ways than its instructions: ``locals()``, ``eval(text)``."""
        if self._asks is None:
            self._asks = any(self._asks_at(i) for i in range(len(self.instructions)))
        return self._asks

    def _asks_at(self, index: int) -> bool:
        inst = self.instructions[index]
        name = inst.arg[0] if isinstance(inst.arg, tuple) and inst.arg else inst.arg
        if inst.name in ("LOAD_ATTR", "LOAD_METHOD"):
            name = inst.arg[0] if isinstance(inst.arg, tuple) else inst.arg
            return name in _FRAME_FUNCTIONS
        if inst.name not in ("LOAD_GLOBAL", "LOAD_NAME"):
            return False
        if name in _OF_NO_ARGUMENT:
            after = self.instructions[index + 1 : index + 4]
            return any(other.name == "CALL" and other.arg == 0 for other in after)
        return name in _FRAME_FUNCTIONS or name in ("eval", "exec")

    def location(self, index: int) -> SourceLoc:
        """The source location of an instruction; one object for each line."""
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = self._location(self.line(index))
        return place

    def _location(self, line: int) -> SourceLoc:
        found = self._locations.get(line)
        if found is None:
            code = self.shown
            found = self._locations[line] = SourceLoc(code.co_filename, line, code.co_qualname)
        return found

    def _end_index(self, offset: int) -> int:
        return self._offset_index.get(offset, len(self.instructions))

    def line(self, index: int) -> int:
        """The source line of an instruction; the function's first line when it has none."""
        if self._lines is None:
            lines = [0] * len(self.instructions)
            ranges = self.code.co_lines()  # ascending, as the offsets are
            end, line = 0, None
            for offset, i in self._offset_index.items():
                while offset >= end:
                    _, end, line = next(ranges, (end, offset + 1, None))
                if line is not None and not lines[i]:
                    lines[i] = line
            self._lines = lines
        return self._lines[index] or self.code.co_firstlineno

    def handler_for(self, index: int) -> ExceptionEntry | None:
        """The innermost exception table entry that covers an instruction."""
        for entry in self.exceptions:
            if entry.start <= index < entry.end:
                return entry
        return None

    def lets_pass(self, index: int) -> bool:
        """Whether the handler there only leaves ``except`` or ``with``, and raises what came on to the caller."""
        names = [inst.name for inst in self.instructions[index : index + 3]]
        return names == ["COPY", "POP_EXCEPT", "RERAISE"] and self.handler_for(index + 2) is None

    def handlers_around(self, index: int) -> Around:
        """What an exception of an instruction may meet in the function."""
        found = self._around.get(index)
        if found is None:
            found = self._around[index] = self._look_around(index)
        return found

    def _look_around(self, index: int) -> Around:
        managers: list[int] = []
        cleans = False
        seen: set[int] = set()
        while (entry := self.handler_for(index)) is not None and entry.target not in seen:
            seen.add(entry.target)
            index = entry.target
            names = [inst.name for inst in self.instructions[index:]]
            if names[0] != "PUSH_EXC_INFO":
                continue
            if names[1] == "WITH_EXCEPT_START":
                managers.append(entry.depth - _BELOW_KEPT)
                index += 1
                continue
            for name, following in itertools.pairwise(names):
                if name == "RERAISE":
                    break
                if name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH") or (name == "POP_EXCEPT" and following != "RERAISE"):
                    return Around(True, cleans, tuple(managers))
            cleans = True
            index += 1  # what the clause itself raises goes further out
        return Around(False, cleans, tuple(managers))

    def assigned_once(self, name: str) -> bool:
        """Whether a local variable is assigned at most once, outside of loops, and never deleted."""
        writes = [i for i, inst in enumerate(self.instructions) if name in _effect(inst)[1] or _deletes(inst, name)]
        return not any(_deletes(self.instructions[i], name) or self.in_loop(i) for i in writes) and len(writes) <= 1

    def in_loop(self, index: int) -> bool:
        """Whether a backward jump encloses the instruction."""
        return any(inst.name in BACKWARD_JUMPS and inst.arg <= index for inst in self.instructions[index:])

    def live_locals(self, index: int) -> frozenset[str]:
        """The local variables that may be read at or after an instruction (exception edges included)."""
        if self._liveness is None:
            implicit = implicit_reads(self.code)
            self._liveness = [live | implicit for live in _liveness(self)]
        return self._liveness[index]


_cache: CodeMap[DecodedCode] = CodeMap()


def decode(code: CodeType) -> DecodedCode:
    """The decoded form of a code object, made once."""
    decoded = _cache.get(code)
    if decoded is None:
        decoded = _cache[code] = DecodedCode(code)
    return decoded


def _decode_instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    raw = code.co_code
    n = len(raw)
    opname = dis.opname
    instructions: list[Instruction] = []
    offset_index: dict[int, int] = {}
    jumps: list[tuple[Instruction, int]] = []
    i = extended = 0
    start = 0
    while i < n:
        op, arg = raw[i], raw[i + 1] | extended
        if op == _EXTENDED:
            extended = arg << 8
            offset_index[i] = len(instructions)
            i += 2
            continue
        extended = 0
        index = len(instructions)
        offset_index[start] = offset_index[i] = index
        i += 2
        while i < n and raw[i] == 0:  # CACHE
            i += 2
        name = opname[op]
        inst = Instruction(name, arg, index)
        if op in _JUMPS:
            target = i - 2 * arg if "BACKWARD" in name or name == "END_ASYNC_FOR" else i + 2 * arg
            jumps.append((inst, target))
        elif op in _CONST:
            inst.arg = code.co_consts[arg]
        elif op in _NAME:
            inst.arg = _name_argument(code, name, arg)
        elif op in _LOCAL:
            inst.arg = _local_argument(code, name, arg)
        elif op in _FREE:
            inst.arg = code._varname_from_oparg(arg)  # type: ignore[attr-defined]
        instructions.append(inst)
        start = i
    for inst, target in jumps:
        inst.arg = offset_index[target]
    if PY314:
        _join_enters(instructions)
    return instructions, offset_index


def _join_enters(instructions: list[Instruction]) -> None:
    """The first of the instructions that enter a ``with`` statement stands for them all, as BEFORE_WITH did.

    A graph can break before them or after them: between them there may be a NULL on the stack or not, as
    ``__exit__`` is a plain method or not. The argument is the instruction behind them.
    """
    for i in range(len(instructions) - len(_ENTER) + 1):
        if instructions[i].name != "COPY":
            continue
        part = instructions[i : i + len(_ENTER)]
        if tuple((inst.name, inst.arg) for inst in part) == _ENTER:
            instructions[i] = Instruction("BEFORE_WITH", i + len(_ENTER), i)


def _name_argument(code: CodeType, name: str, arg: int) -> Any:
    if name == "LOAD_GLOBAL":
        return code.co_names[arg >> 1], bool(arg & 1)
    if PY312 and name == "LOAD_ATTR":
        return code.co_names[arg >> 1], bool(arg & 1)
    if name == "LOAD_SUPER_ATTR":
        return code.co_names[arg >> 2], bool(arg & 1), bool(arg & 2)
    return code.co_names[arg]


def _local_argument(code: CodeType, name: str, arg: int) -> Any:
    varname = code._varname_from_oparg  # type: ignore[attr-defined]
    if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST",
                "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):  # fmt: skip
        return varname(arg >> 4), varname(arg & 15)
    return varname(arg)


def _exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int, bool]]:
    """Byte offsets (start, end, target), depth and lasti flag (CPython, Objects/exception_handling_notes.txt)."""
    table = iter(code.co_exceptiontable)

    def varint() -> int:
        byte = next(table)
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    try:
        while True:
            start, length, target, depth_lasti = varint() * 2, varint() * 2, varint() * 2, varint()
            yield start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)
    except StopIteration:
        return


def _effect(inst: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The locals that an instruction reads and writes, in that order of events as far as liveness cares."""
    name, arg = inst.name, inst.arg
    if name in ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF",
                "MAKE_CELL"):  # fmt: skip
        return (arg,), ()
    if name in ("STORE_DEREF", "DELETE_DEREF", "LOAD_FROM_DICT_OR_DEREF"):
        return (arg,), ()  # the cell itself is needed
    if name == "STORE_FAST":
        return (), (arg,)
    if name in ("LOAD_FAST_AND_CLEAR", "DELETE_FAST"):
        return (arg,), ()
    if name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
        return arg, ()
    if name == "STORE_FAST_STORE_FAST":
        return (), arg
    if name == "STORE_FAST_LOAD_FAST":
        return ((arg[1],) if arg[0] != arg[1] else ()), (arg[0],)
    return (), ()


def _deletes(inst: Instruction, name: str) -> bool:
    return inst.name in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR") and inst.arg == name


def _liveness(decoded: DecodedCode) -> list[frozenset[str]]:
    """Backward data flow over the instructions; iterated until nothing changes (loops need a few rounds)."""
    insts = decoded.instructions
    n = len(insts)
    empty: frozenset[str] = frozenset()
    live: list[frozenset[str]] = [empty] * (n + 1)
    effects = [_effect(inst) for inst in insts]
    jump_names = frozenset(dis.opname[op] for op in _JUMPS)
    targets = [inst.arg if inst.name in jump_names else None for inst in insts]
    handlers: list[list[int]] = [[] for _ in range(n)]
    for entry in decoded.exceptions:
        for i in range(entry.start, entry.end):
            handlers[i].append(entry.target)
    changed = True
    while changed:
        changed = False
        for i in range(n - 1, -1, -1):
            out = empty if insts[i].name in _ENDS else live[i + 1]
            target = targets[i]
            if target is not None:
                out |= live[target]
            reads, writes = effects[i]
            new = (out.difference(writes) if writes else out).union(reads) if reads or writes else out
            for handler in handlers[i]:
                new |= live[handler]
            if new != live[i]:
                live[i] = new
                changed = True
    return live
