"""What it takes to run one instruction of the original natively at a graph break."""

from __future__ import annotations

import sys
import types
from typing import Any

import bytecode
from bytecode import BinaryOp, Compare

from dynamo_capture.interpreter.decode import DecodedCode, Instruction
from dynamo_capture.values.base import NULL
from prims.records import record

__all__ = ["NativeOp", "native_op"]

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)


@record(frozen=False)
class NativeOp:
    """An instruction (with its KW_NAMES and PRECALL) as it is emitted, and its effect on the stack.

    Attributes:
        pops: how many stack values it takes.
        pushes: how many it leaves.
        instructions: what to emit, as (name, argument).
        targets: where the function continues: (next,) or, for a branch, (not taken, taken).
        jump: the branch instruction.
        keeps_when_taken: a taken branch leaves its operand on the stack.
        null: where among its results the call protocol's NULL is: "below", "above", "second" (where the
            instruction itself leaves something there, which is dropped), "between" the two results, or None.
        terminal: the instruction never continues.
        peeks: how many values below those that it pops it looks at.
        handles: its first result is the exception that is handled from then on, unless it is None.
        advances: the instruction is FOR_ITER: it leaves its operand, with the next element, or goes to the second
            target without it.
    """

    pops: int
    pushes: int
    instructions: list[tuple[Any, ...]]
    targets: tuple[int, ...]
    line: int
    jump: str | None = None
    keeps_when_taken: bool = False
    null: str | None = None
    terminal: bool = False
    advances: bool = False
    peeks: int = 0
    handles: bool = False

    def layout(self, results: list[str]) -> list[Any]:
        """The stack values that the instruction leaves, the call protocol's NULL among them."""
        if self.null == "below":
            return [NULL, *results]
        if self.null == "between":
            return [results[0], NULL, results[1]]
        if self.null == "second":
            return [results[0], NULL, *results[2:]]
        return [*results, NULL] if self.null == "above" else list(results)


#: Instructions without argument: (pops, pushes).
_PLAIN = {
    "BINARY_SUBSCR": (2, 1), "STORE_SUBSCR": (3, 0), "DELETE_SUBSCR": (2, 0), "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1), "UNARY_INVERT": (1, 1), "UNARY_NOT": (1, 1), "TO_BOOL": (1, 1), "GET_ITER": (1, 1),
    "BEFORE_WITH": (1, 2), "LOAD_BUILD_CLASS": (0, 1), "BINARY_SLICE": (3, 1), "STORE_SLICE": (4, 0),
    "FORMAT_SIMPLE": (1, 1), "FORMAT_WITH_SPEC": (2, 1), "LIST_TO_TUPLE": (1, 1), "GET_LEN": (1, 2), "POP_TOP": (1, 0),
}  # fmt: skip
#: Instructions with a name: (pops, pushes).
_NAMED = {"STORE_ATTR": (2, 0), "DELETE_ATTR": (1, 0), "IMPORT_NAME": (2, 1), "IMPORT_FROM": (1, 2)}
#: Instructions with a number: argument -> (pops, pushes).
_COUNTED = {
    "BUILD_STRING": lambda n: (n, 1),
    "BUILD_SET": lambda n: (n, 1),
    "BUILD_MAP": lambda n: (2 * n, 1),
    "UNPACK_SEQUENCE": lambda n: (1, n),
    "UNPACK_EX": lambda n: (1, (n & 0xFF) + 1 + (n >> 8)),
    "CALL_FUNCTION_EX": lambda n: (4 if PY314 else 3 + (n & 1), 1),
    "FORMAT_VALUE": lambda n: (2 if n & 4 else 1, 1),
    "CONVERT_VALUE": lambda n: (1, 1),
    "CALL_INTRINSIC_1": lambda n: (1, 1),
    "CALL_INTRINSIC_2": lambda n: (2, 1),
    "CONTAINS_OP": lambda n: (2, 1),
    "IS_OP": lambda n: (2, 1),
    "CALL_KW": lambda n: (n + 3, 1),
}
#: Instructions about exceptions: (pops, pushes, peeks).
_CATCHING = {
    "WITH_EXCEPT_START": (0, 1, 5 if PY314 else 4), "CHECK_EXC_MATCH": (1, 1, 1), "CHECK_EG_MATCH": (2, 2, 0),
    "PREP_RERAISE_STAR": (2, 1, 0),
}  # fmt: skip
_ON_TOP = ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE")


def native_op(decoded: DecodedCode, index: int) -> NativeOp | None:
    """How to run the instruction at ``index`` natively; None when a function cannot break there."""
    inst = decoded.instructions[index]
    line = decoded.line(index)
    name, arg = inst.name, inst.arg
    if name in ("KW_NAMES", "PRECALL", "CALL"):
        return _call(decoded, index, line)
    if "JUMP" in name:
        return _branch(inst, index, line)
    if name == "FOR_ITER":
        after = arg + (2 if PY313 else 1 if PY312 else 0)
        return NativeOp(1, 2, [], (index + 1, after), line, advances=True)
    if name == "BEFORE_WITH" and PY314:
        return NativeOp(1, 2, _ENTER_WITH, (arg,), line, null="between")
    if name in _PLAIN:
        pops, pushes = _PLAIN[name]
        return NativeOp(pops, pushes, [(name,)], (index + 1,), line)
    if name in _NAMED:
        pops, pushes = _NAMED[name]
        return NativeOp(pops, pushes, [(name, arg)], (index + 1,), line)
    if name in _COUNTED:
        pops, pushes = _COUNTED[name](arg)
        value = (name,) if PY314 and name == "CALL_FUNCTION_EX" else (name, _enum_argument(name, arg))
        return NativeOp(pops, pushes, [value], (index + 1,), line)
    if name == "BINARY_OP":
        return NativeOp(2, 1, [(name, BinaryOp(arg))], (index + 1,), line)
    if name == "COMPARE_OP":
        return NativeOp(2, 1, [(name, _compare_argument(arg))], (index + 1,), line)
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return _load_attr(inst, index, line)
    if name == "LOAD_GLOBAL":
        null = ("above" if PY313 else "below") if arg[1] else None
        return NativeOp(0, 1, [(name, (False, arg[0]))], (index + 1,), line, null=null)
    if name == "DICT_MERGE" and arg == 1:
        # Its errors name the function that is about to be called, which it finds below the dict and the arguments.
        below = 2 if not PY313 else 3
        return NativeOp(below + 2, below + 1, [(name, 1)], (index + 1,), line, null="second" if PY313 else None)
    if name in _ON_TOP and arg == 1:
        return NativeOp(2, 1, [(name, 1)], (index + 1,), line)
    if name in _CATCHING:
        pops, pushes, peeks = _CATCHING[name]
        handles = name == "CHECK_EG_MATCH"
        return NativeOp(pops, pushes, [(name,)], (index + 1,), line, peeks=peeks, handles=handles)
    if name == "RAISE_VARARGS":
        return NativeOp(arg, 0, [(name, arg)], (), line, terminal=True)
    return None


def _bound(*method: Any) -> Any:
    """Runs in the emitted code: what LOAD_SPECIAL has found, as one object; ``(self, function)`` or ``(callable,)``."""
    return types.MethodType(method[1], method[0]) if len(method) == 2 else method[0]


#: The library's names, which came with 3.14.
_ENTER, _EXIT = (bytecode.instr.SpecialMethod(i) for i in (0, 1)) if PY314 else (0, 1)
#: Enters a ``with`` statement as Python 3.14 does, in its order, with ``__exit__`` as one object.
_ENTER_WITH: list[tuple[Any, ...]] = [
    ("COPY", 1), ("LOAD_SPECIAL", _EXIT), ("LOAD_CONST", _bound), ("SWAP", 3), ("CALL", 1),
    ("SWAP", 2), ("LOAD_SPECIAL", _ENTER), ("CALL", 0),
]  # fmt: skip


def _enum_argument(name: str, arg: Any) -> Any:
    """The argument as the ``bytecode`` library wants it."""
    if name == "CALL_INTRINSIC_1":
        return bytecode.Intrinsic1Op(arg)
    if name == "CALL_INTRINSIC_2":
        return bytecode.Intrinsic2Op(arg)
    return arg


def _compare_argument(arg: int) -> Any:
    return Compare(arg if not PY312 else (arg >> 5 | (arg & 16)) if PY313 else arg >> 4)


def _load_attr(inst: Instruction, index: int, line: int) -> NativeOp:
    arg = inst.arg
    if inst.name == "LOAD_METHOD":
        return NativeOp(1, 1, [("LOAD_ATTR", arg)], (index + 1,), line, null="below")
    if not PY312:
        return NativeOp(1, 1, [("LOAD_ATTR", arg)], (index + 1,), line)
    name, is_method = arg
    null = ("above" if PY313 else "below") if is_method else None
    return NativeOp(1, 1, [("LOAD_ATTR", (False, name))], (index + 1,), line, null=null)


def _call(decoded: DecodedCode, index: int, line: int) -> NativeOp:
    instructions: list[tuple[Any, ...]] = []
    while True:
        inst = decoded.instructions[index]
        instructions.append((inst.name, inst.arg))
        if inst.name == "CALL":
            return NativeOp(inst.arg + 2, 1, instructions, (index + 1,), line)
        index += 1


def _branch(inst: Instruction, index: int, line: int) -> NativeOp | None:
    name = inst.name
    if "_OR_POP" in name:
        jump = "POP_JUMP_FORWARD_" + name.removeprefix("JUMP_").removesuffix("_OR_POP")
        return NativeOp(1, 0, [], (index + 1, inst.arg), line, jump=jump, keeps_when_taken=True)
    if not name.startswith("POP_JUMP"):
        return None
    return NativeOp(1, 0, [], (index + 1, inst.arg), line, jump=name.replace("BACKWARD", "FORWARD"))
