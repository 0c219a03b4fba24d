"""Whether results are eager's, by the project's judge: see ``judge.py``.

Results that are not within a few roundings of eager's are compared with a float64 run: they may be about as far from it
as eager's are. Where float64 says little (it does not run, or computes something else), and where one rounding turns a
result, eager's own runs on rounded numbers say how far from it eager itself might have been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from judge import RATIO, ROUNDINGS, RUNS, assert_same_metadata, error

__all__ = ["Beside", "judge_results"]

#: A float64 run is no reference where eager's results are this share of their size away from it.
ELSEWHERE = 1e-3

Results = Sequence[torch.Tensor]


class Beside:
    """What results are judged by, computed when it is asked for.

    Args:
        exact: gives float64's results, or None.
        run: gives the results of eager on numbers rounded in the way of that seed, and from ``RUNS`` on with what rounding
            leaves open drawn by lot (``corpora/lots.py``); None where there are none.
    """

    def __init__(self, exact: Callable[[], Results | None], run: Callable[[int], Results | None]) -> None:
        self._exact, self._run = exact, run
        self._runs: list[Results | None] = []

    @cached_property
    def exact(self) -> Results | None:
        return self._exact()

    def runs(self) -> Iterator[Results]:
        """As many of eager's runs on rounded numbers and by lot as are asked for."""
        for seed in range(2 * RUNS):
            if seed == len(self._runs):
                self._runs.append(self._run(seed))
            found = self._runs[seed]
            if found is not None:
                yield found


def judge_results(ours: Results, theirs: Results, beside: Beside) -> tuple[str, str]:
    """How the results were found right (``same``, ``close``, ``float64``, ``rounded``), or ``wrong``, and why."""
    if len(ours) != len(theirs):
        return "wrong", f"{len(ours)} tensors, eager has {len(theirs)}"
    order = ("same", "close", "float64", "rounded")
    worst = 0
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        try:
            assert_same_metadata(a, b, f"tensor {index}")
        except AssertionError as reason:
            return "wrong", f"{reason}: {_text(a)}, eager {_text(b)}"
        how, why = _judge(index, _dense(a), _dense(b), beside)
        if how == "wrong":
            return how, f"tensor {index} {tuple(b.shape)}: {why}"
        worst = max(worst, order.index(how))
    return order[worst], ""


def _text(t: torch.Tensor) -> str:
    strides = tuple(t.stride()) if t.layout is torch.strided else t.layout
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)} strides {strides} grad {t.requires_grad}"


def _dense(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    if any(getattr(t, "names", ())):  # few operators take them
        t = t.rename(None)
    if t.is_quantized:
        t = t.dequantize()
    if t.is_nested:
        return torch.cat([part.reshape(-1) for part in t.unbind()]) if t.size(0) else torch.zeros(0)
    t = t.to_dense() if t.layout is not torch.strided else t
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _judge(index: int, ours: torch.Tensor, theirs: torch.Tensor, beside: Beside) -> tuple[str, str]:
    if torch.equal(ours, theirs):
        return "same", ""
    if not theirs.is_floating_point():
        # An argmax of values that are as good as equal, a comparison with a rounded number: eager itself turns there.
        wrong = ours != theirs
        for run in beside.runs():
            if _comparable(run, index, theirs):
                wrong &= _dense(run[index]) == theirs
            if not wrong.any():
                return "rounded", ""
        return "wrong", f"{int(wrong.sum())} of {theirs.numel()} {theirs.dtype} values differ"
    got = error(ours, theirs)
    scale = _scale(theirs)
    slack = ROUNDINGS * torch.finfo(theirs.dtype).eps * scale
    if got <= slack:
        return "close", ""
    reference, allowed = _reference(index, theirs, beside)
    found = error(ours, reference)
    if found <= RATIO * allowed + slack:
        return "float64", ""
    for run in beside.runs():
        if _comparable(run, index, theirs):
            allowed = max(allowed, error(_dense(run[index]), reference))
        if found <= RATIO * allowed + slack:
            return "rounded", ""
    allowed = RATIO * allowed + slack
    return "wrong", f"error {found:.3e}, allowed {allowed:.3e}, scale {scale:.3e}, from eager {got:.3e}"


def _reference(index: int, theirs: torch.Tensor, beside: Beside) -> tuple[torch.Tensor, float]:
    """What errors are measured against, and eager's own error."""
    exact = beside.exact
    if exact is not None and _comparable(exact, index, theirs):
        reference = _dense(exact[index])
        own = error(theirs, reference)
        if own <= ELSEWHERE * _scale(theirs):
            return reference, own
    return theirs, 0.0


def _comparable(results: Results, index: int, theirs: torch.Tensor) -> bool:
    return index < len(results) and _dense(results[index]).shape == theirs.shape


def _scale(t: torch.Tensor) -> float:
    return float(t.double().abs().nan_to_num(nan=0.0, posinf=0.0).max()) if t.numel() else 0.0
