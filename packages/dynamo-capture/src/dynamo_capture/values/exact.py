"""Telling what the program is known to raise from what capture cannot simulate.

A real operation runs only on real objects (:func:`fold <dynamo_capture.values.constant.fold>`, ``Capture.exact``).
Where a value has no real object yet, but the error of an operation depends on the types of its operands alone
(``[x] + (3,)``), the operation runs on *samples*, other objects of the same types: :func:`type_error`.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.classes import full_name, lookup

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["sample", "type_error"]

_SAMPLES: dict[type, Callable[[], Any]] = {
    **{cls: cls for cls in (list, tuple, dict, set, frozenset, int, float, bool, str, torch.Size, collections.deque,
                            collections.OrderedDict, collections.defaultdict)},
    types.FunctionType: lambda: lambda: None,
    types.MethodType: lambda: types.MethodType(len, ()),
    types.GeneratorType: lambda: (x for x in (1,)),
}  # fmt: skip
#: What C functions look for in the objects of any class.
_ASKED_FOR = (
    "__index__", "__int__", "__float__", "__complex__", "__iter__", "__next__", "__getitem__", "__len__",
    "__length_hint__", "__contains__", "__bool__", "__array__", "__buffer__", "__fspath__", "__class_getitem__",
    "__setitem__", "__delitem__", "__call__", "__missing__", "__trunc__", "__bytes__", "__await__",
)  # fmt: skip
_HEAP_TYPE = 1 << 9


def sample(value: Value) -> Any:
    """An object of the value's type: the value's own if it is known, else another one.

    Raises:
        GraphBreak: none can be made that C functions treat like the value.
    """
    value = value.realize()
    if value.is_const:
        return value.const()
    cls = value.pytype
    make = _SAMPLES.get(cls)
    if make is not None:
        return make()
    if all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__) and type(cls) is type:
        if not any(lookup(cls, name)[1] for name in _ASKED_FOR):
            return type(full_name(cls), (), {})()
    raise GraphBreak("QB06", f"an operation on {display(value)}")


def type_error(tx: Capture, fn: Callable[..., Any], *values: Value) -> NoReturn:
    """Raise the ``TypeError`` that ``fn`` gives for objects of the values' types, whatever they hold.

    For an operation that their classes' own methods have no part in (or have declined).

    Raises:
        ObservedError: that error, with Python's own text.
        GraphBreak: ``fn`` takes such objects.
    """
    samples = [sample(value) for value in values]
    try:
        fn(*samples)
    except TypeError as error:
        raise tx.observed(error) from None
    except Exception:  # another error, which may be due to what the samples hold
        pass
    name = getattr(fn, "__name__", "an operation")
    raise GraphBreak("QB06", f"{name} of {' and '.join(display(value.realize()) for value in values)}")
