"""What each kind of control flow means, in plain Python.

::

    cond        (predicate, *operands)            -> results             bodies: if true, if false
    while_loop  (*carried, *others)               -> carried             bodies: condition, step
    scan        (*carried, *mapped, *others)      -> (*carried, *stacked)  body: step

The bodies of a ``cond`` take the operands; those of a ``while_loop`` take what it takes. A ``scan``'s takes the carried
values, a slice of each of the mapped tensors along their first dimension, and the others; it gives the next carried
values and slices of the stacked results. Without carried values it is a map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.control.losses import by_chunks
from prims.control.scored import attend, gradients
from prims.records import record

__all__ = ["Form", "run"]


@record
class Form:
    """The kind of control flow (``"cond"``, ``"while_loop"`` or ``"scan"``), of attention with a function of its scores
    (``"attention"``, ``"attention_backward"``: :mod:`prims.control.scored`), or of a loss that is a function of logits
    (``"linear_loss"``: :mod:`prims.control.losses`).

    Attributes:
        carried: how many values a loop hands from one step to the next.
        mapped: how many tensors a scan takes slices of.
        reverse: whether a scan begins with the last slice (and stacks its results from the last to the first).
        scale: factor of attention's products.
        tables: how many tensors of attention's say which blocks of its scores may differ from minus infinity.
        block: queries and keys of such a block.
        rows: of a chunk of a loss's logits.
        sliced: how many tensors a loss takes such rows of, beside its hidden states.
        biased: have the logits a bias?
        learns: which gradients a loss gives, beside its value: some of ``"hidden"``, ``"weight"`` and ``"bias"``.
    """

    kind: str
    carried: int = 0
    mapped: int = 0
    reverse: bool = False
    scale: float = 1.0
    tables: int = 0
    block: tuple[int, int] = (0, 0)
    rows: int = 0
    sliced: int = 0
    biased: bool = False
    learns: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[int, int]:
        """How many tensors the operator takes that are not its bodies', and how many these take first that it makes."""
        taken, made = _OWN.get(self.kind, (0, 0))
        return taken + self.tables + self.biased, made


#: By kind of form, as :attr:`Form.own`.
_OWN = {"cond": (1, 0), "attention": (3, 1), "attention_backward": (6, 2), "linear_loss": (2, 1)}


def run(form: Form, bodies: Sequence[Callable[..., Sequence[Any]]], args: Sequence[Any]) -> list[Any]:
    """The results; they may be arguments."""
    if form.kind == "linear_loss":
        return by_chunks(form, bodies[0], args)
    if form.kind == "cond":
        return list(bodies[not bool(args[0])](*args[1:]))
    if form.kind in ("attention", "attention_backward"):
        taken = form.own[0]
        operands = [*args[: taken - form.tables], *args[taken:]]
        return (attend if form.kind == "attention" else gradients)(form.scale, bodies[0], operands)
    if form.kind == "while_loop":
        carried, others = list(args[: form.carried]), args[form.carried :]
        going, step = bodies
        while bool(going(*carried, *others)[0]):
            carried = list(step(*carried, *others))
        return carried
    return _scan(form, bodies[0], args)


def _scan(form: Form, step: Callable[..., Sequence[Any]], args: Sequence[Any]) -> list[Any]:
    carried, others = list(args[: form.carried]), args[form.carried + form.mapped :]
    slices = list(zip(*(x.unbind(0) for x in args[form.carried : form.carried + form.mapped]), strict=True))
    rows: list[Sequence[Any]] = []
    for at in reversed(slices) if form.reverse else slices:
        found = step(*carried, *at, *others)
        carried = list(found[: form.carried])
        rows.append(found[form.carried :])
    if form.reverse:
        rows.reverse()
    return [*carried, *(torch.stack(column) for column in zip(*rows, strict=True))]
