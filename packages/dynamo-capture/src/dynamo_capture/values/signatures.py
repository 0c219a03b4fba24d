"""The calls of builtin functions that capture's own versions know the meaning of.

They look at the arguments that they know. What else a call has, they would leave out, where Python uses it or refuses
the call; so it breaks the graph.
"""

from __future__ import annotations

import operator
from typing import Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.iterating import Signature

__all__ = ["check_arguments"]

_KNOWN: dict[Any, Signature] = {
    **dict.fromkeys((len, abs, repr, hash, callable, id, operator.not_, operator.truth, operator.index),
                    Signature(1, 1)),
    **dict.fromkeys((hasattr, delattr, isinstance, issubclass, operator.getitem, operator.contains, operator.is_,
                     operator.is_not), Signature(2, 2)),
    **dict.fromkeys((getattr, pow), Signature(2, 3)),
    **dict.fromkeys((setattr, operator.setitem), Signature(3, 3)),
    vars: Signature(0, 1), globals: Signature(0, 0), next: Signature(1, 2),
}  # fmt: skip


def check_arguments(fn: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Break the graph at a call with arguments that capture's version of ``fn`` does not look at.

    Raises:
        GraphBreak: there are such arguments, or too few.
    """
    signature = _KNOWN.get(fn)
    if signature is not None and not signature.admits(args, kwargs):
        raise GraphBreak("QB07", f"{fn.__name__}() with these arguments")
