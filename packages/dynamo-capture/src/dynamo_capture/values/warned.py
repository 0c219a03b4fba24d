"""``warnings.warn``: the warning is given when the region's graph has run.

The region sees nothing of that as long as no warning is raised as an exception, which is guarded, and the text can be
told now. Anything else breaks the graph.
"""

from __future__ import annotations

import types
import warnings
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.text import TextValue
from dynamo_capture.values.written import write_later

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__: list[str] = []


def _raises() -> bool:
    """Whether a warning may be raised as an exception, or shown by a function of the program's."""
    shown = warnings.showwarning is not warnings._showwarning_orig  # type: ignore[attr-defined]
    return shown or any(action == "error" for action, *_ in warnings.filters)


@builtin(warnings.warn)
def _warn(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message = given["message"].realize() if "message" in given else None
    category = given.get("category", ConstantValue(None)).realize()
    level = given.get("stacklevel", ConstantValue(1)).realize()
    if isinstance(category, ConstantValue) and category.value is None:
        category = ClassValue(UserWarning)
    text = isinstance(message, TextValue) or (type(message) is ConstantValue and type(message.value) is str)
    if not text or not isinstance(category, ClassValue) or given.keys() - {"message", "category", "stacklevel"}:
        raise GraphBreak("QB11", "warnings.warn")
    depth = level.value if type(level) is ConstantValue and type(level.value) is int else 0
    if not 1 <= depth <= len(tx.frames) or not issubclass(category.obj, Warning):
        raise GraphBreak("QB11", "warnings.warn")
    if tx.guards.now(_raises, "a warning is raised, or shown by another function") or not tx.graph.is_outermost:
        raise GraphBreak("QB11", "warnings.warn")
    frame = tx.frames[-depth]
    line = frame.location().line
    place = types.SimpleNamespace(names=frame.globals, filename=frame.code.co_filename, line=line)
    assert message is not None
    return write_later(tx, _warn_later, [message, ConstantValue(category.obj), _Place(place)], {}, "warnings.warn")


class _Place(ConstantValue):
    """Where a warning is given, put into the code's constants."""

    __slots__ = ()


def _warn_later(message: str, category: type[Warning], place: Any) -> None:
    """Runs in the emitted code: the warning, as at its place in the program."""
    registry = place.names.setdefault("__warningregistry__", {})
    module = place.names.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, place.filename, place.line, module, registry)
