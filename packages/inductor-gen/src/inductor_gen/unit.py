"""What is agreed between generated kernels and those who compile and run them."""

from __future__ import annotations

from prims.records import record

__all__ = ["BAD_DIVISOR", "BAD_INDEX", "Least", "Unit"]

#: What a kernel returns that met an index out of range, or an integer division by zero (both: their sum).
BAD_INDEX, BAD_DIVISOR = 1, 2


@record
class Unit:
    """A function to compile.

    Attributes:
        name: a readable name, unique by content: equal texts have equal names.
        text: the source, with ``KERNEL`` for the name.
        comment: of a kernel the operators and the user's source lines, of the first use.
    """

    name: str
    text: str
    comment: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines in the comment."""
        return tuple(line[5:] for line in self.comment.splitlines() if line.startswith("from "))

    def named(self) -> str:
        """The text with its name and comment."""
        return (f"/* {self.comment} */\n" if self.comment else "") + self.text.replace("KERNEL", self.name, 1)


@record
class Least:
    """The bytes that a graph has to move, however it is fused: its inputs read once, its results written once.

    Attributes:
        inputs: of inputs that come with the call.
        parameters: of parameters, buffers and constants.
        outputs: of results, and of what is written into inputs.
    """

    inputs: int = 0
    parameters: int = 0
    outputs: int = 0

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.inputs + self.parameters + self.outputs
