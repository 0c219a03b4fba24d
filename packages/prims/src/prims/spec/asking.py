"""What types an operator's kernel takes, no rule knows: eager's kernel is asked, with one element, once for each.

On the CPU alone: a GPU's kernels take others. Which numbers a random operator takes (a probability, a deviation, an
interval) is asked in the same way, with a generator of its own: these checks are one for all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from prims.spec.tensorspec import TensorSpec

__all__ = ["asking_the_kernel"]

_Rule: TypeAlias = Callable[..., Any]
_OpOverload: TypeAlias = Any  # torch._ops.OpOverload
_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

#: What is no pointwise operator, is computed by our own code whatever the type, and whose kernel refuses some: shapes
#: of the tensors that the kernel is asked with, and the other arguments.
_SMALL: dict[str, tuple[_Shapes, tuple[Any, ...]]] = {
    "aten.argmax.default": (((1,),), ()),
    "aten.argmin.default": (((1,),), ()),
    "aten.isin.Tensor_Tensor": (((1,), (1,)), ()),
    "aten.trace.default": (((1, 1),), ()),
    "aten.im2col.default": (((1, 1, 1, 1),), ([1, 1], [1, 1], [0, 0], [1, 1])),
    "aten.col2im.default": (((1, 1, 1),), ([1, 1], [1, 1], [1, 1], [0, 0], [1, 1])),
    "aten.avg_pool3d.default": (((1, 1, 1, 1, 1),), ([1, 1, 1],)),
    **{f"aten.{pad}_pad{n}d.default": (((1, 1, *[1] * n),), ([0] * 2 * n,)) for n in (1, 2, 3)
       for pad in ("reflection", "replication")},
    **{f"aten.{name}{n}d.default": (((1, 1, *[1] * n),), ([1] * n,)) for n in (1, 2, 3)
       for name in ("upsample_nearest", "_upsample_nearest_exact")},
}  # fmt: skip


def asking_the_kernel(name: str, func: _OpOverload, rule: _Rule) -> _Rule:
    """The rule of an overload, before which the types of its operands are tried where its kernel may refuse them."""
    if name in _SMALL:
        return _asking(func, rule, *_SMALL[name])
    if torch.Tag.nondeterministic_seeded in func.tags:
        return _asking_for_numbers(func, rule) if _draws_by_numbers(func) else rule
    if torch.Tag.pointwise in func.tags or rule.__module__ == "prims.spec.rules.elementwise":
        return _asking(func, rule)
    return rule


def _asking(func: _OpOverload, rule: _Rule, shapes: _Shapes | None = None, rest: tuple[Any, ...] = ()) -> _Rule:
    accepted: set[Any] = set()
    in_place = func._schema.name.endswith("_")

    def asking(*args: Any, **kwargs: Any) -> Any:
        made = rule(*args, **kwargs) if in_place else None  # whether sizes fit, which one element does not say
        given = (*args, *kwargs.values())
        kinds = tuple([(x.dtype, x.device, not x.shape) if type(x) is TensorSpec else type(x) for x in given])
        if kinds not in accepted:
            if shapes is not None:
                _ask_small(func, [x for x in given if type(x) is TensorSpec], shapes, rest)
            elif all(map(_can_be_tried, given)):
                _ask(func, tuple(map(_one, args)), {name: _one(value) for name, value in kwargs.items()})
            accepted.add(kinds)
        return made if in_place else rule(*args, **kwargs)

    return asking


def _draws_by_numbers(func: _OpOverload) -> bool:
    """Whether a random operator fills a tensor, its first argument and only one, by numbers alone."""
    arguments = func._schema.arguments
    kinds = [str(argument.type) for argument in arguments]
    return (
        kinds[:1] == ["Tensor"] and kinds[-1] == "Optional[Generator]" and len(kinds) > 2
        and all(kind in ("float", "int", "Optional[int]") for kind in kinds[1:-1])
    )  # fmt: skip


def _asking_for_numbers(func: _OpOverload, rule: _Rule) -> _Rule:
    accepted: set[Any] = set()

    def asking(x: TensorSpec, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if type(x) is TensorSpec and x.dtype in _COMMON and all(type(v) in _PLAIN for v in given):
            asked = (x.dtype, *args, *kwargs.items())
            if asked not in accepted:
                one = torch.ones((1,), dtype=x.dtype)
                _ask(func, (one, *args), {**kwargs, "generator": torch.Generator()})
                accepted.add(asked)
        return rule(x, *args, generator=generator, **kwargs)

    return asking


def _ask_small(func: _OpOverload, specs: list[TensorSpec], shapes: _Shapes, rest: tuple[Any, ...]) -> None:
    if len(specs) == len(shapes) and all(map(_can_be_tried, specs)):
        _ask(func, (*(torch.ones(shape, dtype=x.dtype) for x, shape in zip(specs, shapes, strict=True)), *rest), {})


def _ask(func: _OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    with _disable_current_modes(), torch.no_grad():
        func(*args, **kwargs)


def _can_be_tried(x: Any) -> bool:
    if type(x) is TensorSpec:
        return x.device.type == "cpu" and x.dtype in _COMMON
    return type(x) in _PLAIN


def _one(x: Any) -> Any:
    return torch.ones((1,) if x.shape else (), dtype=x.dtype) if type(x) is TensorSpec else x


_COMMON = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
     torch.float32, torch.float64, torch.complex64, torch.complex128)
)  # fmt: skip
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, str})
