"""Tensor programs: straight lines of operators on tensors of every type and layout, with gradients.

Sizes are the same in every call or change with it; a statement stays in a program when eager runs it for the sizes of
every call. Integer divisions by zero and uninitialised memory are kept out, for they have no answer to compare; so are medians along
an expanded dimension, for which PyTorch's CPU kernel reads other memory, and on a GPU what depends on the order in which threads
come: writes in place to a tensor whose elements share memory, and gradients by the place of a median, of which equal elements have several.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Collection, Iterable
from typing import Any

import torch

from fuzz.inputs import LAYOUTS
from fuzz.program import load, settled
from fuzz.reference import overlaps
from fuzz.tensor_ops import GROUPS

__all__ = ["generate"]

HEAD = """import torch
import torch.nn.functional as F
from fuzz.inputs import make, ramp

"""
TAIL = """
def inputs(call):
    {names} = {sizes}[call]
    {made}
    return [{given}]


def program(compile, see):
    g = compile(f, dynamic={dynamic})
    for call in range({calls}):
        see.call(f"call {{call}}", g, *inputs(call), backward={backward})
"""
_DTYPES = ["float32"] * 8 + [
    "float64",
    "float16",
    "bfloat16",
    "bfloat16",
    "int64",
    "int64",
    "int32",
    "uint8",
    "int8",
    "bool",
    "bool",
]
_DTYPES += ["complex64", "int16"]
_HOLE = re.compile(r"\{(\w)\}")
_LARGEST = 20_000


def generate(seed: int, device: str = "cpu", asserting: Collection[str] = ()) -> str:
    """The program of a seed; the same statements on every device, as far as eager runs them there.

    ``asserting``: statements at which a kernel's assertion failed, which is how eager refuses them on a GPU.

    Raises:
        AssertedError: one more statement is such; the process can do nothing more on the GPU.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Tensors(seed, device, asserting).write()


class _Tensors:
    def __init__(self, seed: int, device: str, asserting: Collection[str] = ()) -> None:
        self.asserting = asserting
        self.pick = random.Random(f"tensor {seed}")
        self.device = device
        self.calls = self.pick.choice([2, 2, 3])
        self.changing = self.pick.random() < 0.4
        self.dynamic = (
            self.pick.choice(["None", "None", "True"])
            if self.changing
            else self.pick.choice(["None", "None", "False", "True"])
        )
        small = [1, 2, 2, 3, 4, 5]
        self.sizes: list[tuple[int, ...]] = []
        self.wide = self.pick.random() < 0.2
        large = [8, 17, 33, 64, 100]
        pools = [large if self.wide else small] * 3
        if not self.wide and self.pick.random() < 0.3:  # rows of few numbers, and columns
            pools[self.pick.randrange(3)] = large
        first = tuple(self.pick.choice([*pool, *([0] if self.pick.random() < 0.1 else [])]) for pool in pools)
        for _ in range(self.calls):
            self.sizes.append(first)
            if self.changing:
                first = tuple(self.pick.choice([*pool, n, 7]) for n, pool in zip(first, pools, strict=True))
        self.wants_grad = self.pick.random() < 0.45

    def write(self) -> str:
        """The program's text."""
        count = self.pick.choice([1, 2, 2, 3])
        made, given = [], []
        for i in range(count):
            shape = [
                self.pick.choice("nmk") if self.pick.random() < 0.85 else str(self.pick.choice([1, 2, 3]))
                for _ in range(self.pick.choice([1, 2, 2] if self.wide else [0, 1, 1, 2, 2, 2, 3, 3, 4]))
            ]
            grad = self.wants_grad and self.pick.random() < 0.6
            text = f"make(({''.join(s + ', ' for s in shape)}), {self.pick.choice(_DTYPES)!r}, {self.pick.choice(['contiguous'] * 4 + list(LAYOUTS))!r}, seed=call * 9 + {i}"
            text += (
                ", grad=True" * grad
                + ", exact=True" * (self.pick.random() < 0.3)
                + f", device={self.device!r}" * (self.device != "cpu")
            )
            made.append(f"x{i} = {text})")
            given.append(f"x{i}")
        if self.pick.random() < 0.15:
            made.append(
                f"x{count} = {self.pick.choice(['x0', 'x0.view_as(x0)', 'x0[...]', 'x0[:1] if x0.dim() else x0', 'x0.detach()', 'x0.flatten()'])}"
            )
            given.append(f"x{count}")
        tail = TAIL.format(
            names="n, m, k", sizes=self.sizes, made="\n    ".join(made), given=", ".join(given), calls=self.calls,
            dynamic=self.dynamic, backward=self.wants_grad,
        )  # fmt: skip
        lines, results = self._statements(given, tail)
        body = "".join(f"    {line}\n" for line in lines)
        return f"{HEAD}\ndef f({', '.join(given)}):\n{body}    return {', '.join(results)},\n\n{tail}"

    def _scopes(self, given: list[str], tail: str, lines: list[str]) -> list[dict[str, Any]]:
        module = load(HEAD + tail, "<inputs>")
        scopes = []
        for call in range(self.calls):
            scope = dict(module)
            scope.update(zip(given, module["inputs"](call), strict=True))
            for line in lines:
                exec(line, scope)
            scopes.append(scope)
        return scopes

    def _statements(self, given: list[str], tail: str) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        names = list(given)
        scopes = self._scopes(given, tail, lines)
        wanted, made = self.pick.choice([2, 3, 5, 8]), 0
        groups = [name for name, (weight, _) in GROUPS.items() for _ in range(weight)]
        for _ in range(wanted * 10):
            if made == wanted:
                break
            group = self.pick.choice(groups)
            line = self._fill(self.pick.choice(GROUPS[group][1]), names, scopes[0])
            target = f"t{made}" if group != "write" else None
            if target is not None:
                line = f"{target} = {line}"
            if self._runs(line, target, scopes):
                lines.append(line)
                made += 1
                names += [target] if target else []
            elif target is None:
                scopes = self._scopes(given, tail, lines)
        results = [name for name in names if name.startswith("t")] or names[:1]
        return lines, sorted(self.pick.sample(results, min(len(results), self.pick.choice([1, 2, 3, 4]))))

    def _fill(self, template: str, names: list[str], scope: dict[str, Any]) -> str:
        chosen: dict[str, str] = {}

        def replace(found: re.Match[str]) -> str:
            hole = found[1]
            if hole not in chosen:
                chosen[hole] = self._operand(hole, names, scope)
            return chosen[hole]

        return _HOLE.sub(replace, template)

    def _operand(self, hole: str, names: list[str], scope: dict[str, Any]) -> str:
        if hole == "d":
            return self.pick.choice(["0", "0", "-1", "-1", "1"])
        if hole == "k":
            return self.pick.choice(["1", "2.5", "-1", "True", "0", "3", "0.1"])
        if hole == "z":
            return self.pick.choice(["2", "3", "-2", "1.5", "0.5", "-3"])
        fits = {
            "f": lambda t: t.dtype.is_floating_point, "g": lambda t: t.dtype.is_floating_point,
            "i": lambda t: not t.dtype.is_floating_point and not t.dtype.is_complex and t.dtype != torch.bool,
            "m": lambda t: t.dtype == torch.bool,
        }.get(hole, lambda t: True)  # fmt: skip
        good = [name for name in names if fits(scope[name])]
        if good:
            return self.pick.choice(good[-3:] + good)
        name = self.pick.choice(names)
        return name + {"f": ".float()", "g": ".float()", "i": ".to(torch.int64)", "m": ".gt(0)"}[hole]

    def _runs(self, line: str, target: str | None, scopes: list[dict[str, Any]]) -> bool:
        if line in self.asserting:
            return False
        for scope in scopes:
            raced = [(t, t._version) for t in scope.values() if isinstance(t, torch.Tensor) and overlaps(t)]
            try:
                exec(line, scope)
            except Exception as error:
                settled(line, [error])
                return False
            settled(line)
            if self.device != "cpu" and any(t._version != version for t, version in raced):
                return False
            if target is not None:
                value = scope[target]
                if not isinstance(value, torch.Tensor) or value.numel() > _LARGEST:
                    return False
                if self.device != "cpu" and value.requires_grad and _NAMES_A_PLACE.search(line):
                    return False
                if "as_strided(" in line and reads_beyond(value, [t for n, t in scope.items() if n != target]):
                    return False
        return True


#: What passes its gradient to the place of a number that equal ones may have too.
_NAMES_A_PLACE = re.compile(r"\.(median|kthvalue|mode)\(.*\)\.values")


def reads_beyond(view: torch.Tensor, others: Iterable[Any]) -> bool:
    """Whether a view has elements that no other tensor, or its base, has: what a kernel left behind the result it made.

    A sum of squares may lie in the memory that the squares took.
    """
    storage = view.untyped_storage()._cdata
    known = [t for t in others if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == storage]
    known += [t._base for t in known if t._base is not None]
    count = view.untyped_storage().nbytes()

    def places(t: torch.Tensor) -> torch.Tensor:
        first = torch.arange(count).as_strided(t.shape, t.stride(), t.storage_offset()).flatten() * t.itemsize
        return (first[:, None] + torch.arange(t.itemsize)).flatten()

    covered = torch.zeros(count, dtype=torch.bool)
    for t in known:
        covered[places(t)] = True
    return not bool(covered[places(view)].all())
