"""What an interpreted frame consists of; the opcode handlers work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_capture.interpreter.decode import DecodedCode
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.functions import CellValue
from prims.ir import SourceLoc

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["FrameState"]


class FrameState:
    """The state of a frame; the handlers are in the version mixins."""

    __slots__ = ("builtins", "cells", "code", "decoded", "finished", "function", "globals", "handled", "ip",
                 "kw_names", "locals", "result", "running", "send_result", "stack", "started", "tx",
                 "yielded")  # fmt: skip

    def __init__(
        self,
        tx: Capture,
        decoded: DecodedCode,
        globals_: dict[str, Any],
        builtins: dict[str, Any],
        locals_: dict[str, Value],
        cells: dict[str, CellValue],
    ) -> None:
        self.tx = tx
        self.code = decoded.code
        self.decoded = decoded
        self.globals = globals_
        self.builtins = builtins
        self.locals = locals_
        self.cells = cells
        self.stack: list[Value] = []
        self.ip = 0
        self.kw_names: tuple[str, ...] = ()
        #: The exception being handled (``sys.exception()``).
        self.handled: Value | None = None
        self.running = False
        self.started = False
        self.finished = False
        self.result: Value = ConstantValue(None)
        self.yielded: Value | None = None
        self.send_result: Value = ConstantValue(None)

    def release(self) -> None:
        """Let go of everything; the capture has ended."""
        for name in FrameState.__slots__:
            setattr(self, name, None)

    def location(self) -> SourceLoc:
        """The source line being interpreted."""
        return self.decoded.location(max(self.ip - 1, 0))

    def pop(self) -> Value:
        """Pop a value and look at it."""
        return self.stack.pop().realize()

    def popn(self, n: int) -> list[Value]:
        """Pop ``n`` values, deepest first, without looking at them."""
        if n == 0:
            return []
        items = self.stack[-n:]
        del self.stack[-n:]
        return items
