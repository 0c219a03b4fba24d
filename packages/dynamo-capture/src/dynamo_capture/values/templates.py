"""Template strings, ``t"..."`` (from Python 3.14): texts and the values between them, not formatted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import IdentityKey, Value
from dynamo_capture.values.classes import no_attribute
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["InterpolationValue", "TemplateValue"]

_CONVERSIONS = (None, "s", "r", "a")


class FixedValue(Value):
    """An object of fixed parts, told apart by who it is."""

    __slots__ = ()

    def parts(self) -> dict[str, Value]:
        """The attributes that every object of the class has."""
        raise NotImplementedError

    def key(self, tx: Capture) -> Any:
        return IdentityKey(self)

    def truth(self, tx: Capture) -> bool:
        return True

    def getattr(self, tx: Capture, name: str) -> Value:
        found = self.parts().get(name)
        if found is not None:
            return found
        if not hasattr(self.pytype, name):
            raise tx.observed(no_attribute(f"{self.pytype.__module__}.{self.pytype.__name__}", name))
        raise GraphBreak("QB06", f"attribute {name!r} of {self.describe()}")

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        raise GraphBreak("QB06", f"setting attribute {name!r} of {self.describe()}, which is fixed")


class InterpolationValue(FixedValue):
    """``{value!conversion:spec}`` in a template."""

    __slots__ = ("conversion", "expression", "spec", "value")

    def __init__(self, value: Value, expression: Value, conversion: int, spec: Value) -> None:
        self.source = None
        self.value = value
        self.expression = expression
        self.conversion = ConstantValue(_CONVERSIONS[conversion])
        self.spec = spec

    @property
    def pytype(self) -> type:
        from string.templatelib import Interpolation  # type: ignore[import-not-found, unused-ignore]

        return Interpolation  # type: ignore[no-any-return, unused-ignore]

    def parts(self) -> dict[str, Value]:
        return {
            "value": self.value,
            "expression": self.expression,
            "conversion": self.conversion,
            "format_spec": self.spec,
        }

    def children(self) -> Iterator[Value]:
        return iter((self.value, self.spec))

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(self.pytype, list(self.parts().values()))


class TemplateValue(FixedValue):
    """A template: one text more than interpolations."""

    __slots__ = ("interpolations", "strings")

    def __init__(self, strings: list[Value], interpolations: list[Value]) -> None:
        self.source = None
        self.strings = strings
        self.interpolations = interpolations

    @property
    def pytype(self) -> type:
        from string.templatelib import Template  # type: ignore[import-not-found, unused-ignore]

        return Template  # type: ignore[no-any-return, unused-ignore]

    def parts(self) -> dict[str, Value]:
        held: list[Any] = self.interpolations
        return {
            "strings": TupleValue(self.strings),
            "interpolations": TupleValue(self.interpolations),
            "values": TupleValue([each.value for each in held]),
        }

    def iterate(self, tx: Capture) -> Iterator[Value]:
        """The texts that are not empty, and the interpolations, in their order."""
        return (part for part in self._in_turn() if not (part.is_const and part.const() == ""))

    def _in_turn(self) -> Iterator[Value]:
        for text, held in zip(self.strings, self.interpolations, strict=False):
            yield text
            yield held
        yield self.strings[-1]

    def plus(self, other: TemplateValue) -> TemplateValue:
        """``self + other``."""
        joined = ConstantValue(self.strings[-1].const() + other.strings[0].const())
        strings = [*self.strings[:-1], joined, *other.strings[1:]]
        return TemplateValue(strings, [*self.interpolations, *other.interpolations])

    def children(self) -> Iterator[Value]:
        return iter(self.interpolations)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(self.pytype, list(self._in_turn()))
