"""What an exported program takes and gives, as plain data, and the check of a call against it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from compile_api.deploy import trees
from prims.errors import StoredGraphError, UserError
from prims.records import record
from prims.spec.exprtext import parse

__all__ = ["Contract", "Dim", "Input", "Result", "Size", "as_strides", "dtype_name", "dtype_of"]

#: A size in a contract: a number, or the text of an expression of dimensions' names.
Size = int | str


@record
class Dim:
    """A size that may differ between calls; dimensions of one name have one size.

    Attributes:
        min, max: what it may be, both ends included; ``max`` None is no limit.
    """

    name: str
    min: int = 2
    max: int | None = None

    def __str__(self) -> str:
        return f"{self.name} in [{self.min}, {'inf' if self.max is None else self.max}]"


@record
class Input:
    """One leaf of the arguments: a tensor, or a value that every call has to pass as it was when exporting.

    Attributes:
        name: how a person writes it, such as ``batch['ids']``.
        dtype, device, shape: of a tensor; sizes that may differ are names of dimensions.
        value: of what is no tensor.
    """

    name: str
    dtype: str | None = None
    device: str | None = None
    shape: tuple[Size, ...] = ()
    value: Any = None

    def __str__(self) -> str:
        if self.dtype is None:
            return f"{self.name} = {self.value!r}"
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}] {self.device}"


@record
class Result:
    """One leaf of the result.

    Attributes:
        kind: ``"output"`` (output ``index`` of the graph), ``"input"`` (input ``index`` of it), ``"size"`` (``value``
            is the text of an expression), ``"literal"`` (``value`` itself).
        dtype, shape: of a tensor.
        strides, offset: of a view of what ``kind`` and ``index`` name, in elements; None for all of it.
    """

    kind: str
    index: int = -1
    value: Any = None
    dtype: str | None = None
    shape: tuple[Size, ...] = ()
    strides: tuple[Size, ...] | None = None
    offset: Size = 0


@record
class Contract:
    """What goes in and out of a program.

    Attributes:
        positional: names of the arguments by place, then ``keywords`` of those by name.
        takes: the structure of the arguments, ``{"tuple": [positional..., keywords...]}``.
        inputs: its leaves.
        gives, results: the same of the result.
        dims: the sizes that may differ.
        sources: of each input of the graph ``["argument", leaf]``, ``["weight", name]``, ``["number", name]`` (a weight
            of no dimensions, given as a number) or ``["seed", device]``.
        bound: symbol of the graph -> the dimension that it is.
        writes: the leaves that the program writes.
        needs: what has to hold of the graph's numbers: an expression of its symbols, and the same for people.
    """

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    takes: trees.Structure
    inputs: tuple[Input, ...]
    gives: trees.Structure
    results: tuple[Result, ...]
    dims: tuple[Dim, ...] = ()
    sources: tuple[tuple[str, Any], ...] = ()
    bound: Mapping[str, str] = field(default_factory=dict)
    writes: tuple[int, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()

    # ---- a call ---------------------------------------------------------------------------------------------------

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments, in the contract's order, checked.

        Raises:
            UserError: an argument is missing or too many, or is not what the contract says; the message names it.
        """
        names = (*self.positional, *self.keywords)
        if len(args) > len(self.positional):
            raise UserError(
                f"the program takes {len(self.positional)} arguments by place and was given {len(args)}",
                todo=f"They are {', '.join(self.positional) or 'none'}.",
            )
        given = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise UserError(f"the argument {name} is given twice")
            if name not in names:
                raise UserError(f"the program has no argument {name!r}", todo=f"It takes {', '.join(names) or 'none'}.")
            given[name] = value
        parts = self.takes["tuple"]
        found: list[Any] = []
        for name, part in zip(names, parts, strict=True):
            if name in given:
                trees.matches(part, given[name], found, name)
            elif isinstance(part, int) and self.inputs[part].dtype is None:
                found.append(self.inputs[part].value)
            else:
                raise UserError(f"the argument {name} is missing", todo=f"The program takes {', '.join(names)}.")
        self.sizes(found)
        if self.writes:
            self._check_apart(found)
        return found

    def _check_apart(self, leaves: Sequence[Any]) -> None:
        """The program takes an argument that it writes to be apart from the others."""
        tensors = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        memory_of = {k: leaf.untyped_storage()._cdata for k, leaf in tensors}
        for at in self.writes:
            for k, memory in memory_of.items():
                if k != at and memory == memory_of[at]:
                    raise UserError(
                        f"{self.inputs[at].name}, which the program writes, shares memory with {self.inputs[k].name}",
                        todo="Pass a copy of one of them.",
                    )

    def sizes(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The value of each dimension in a call.

        Raises:
            UserError: a leaf is not what the contract says.
        """
        values: dict[str, int] = {}
        ranges = {dim.name: dim for dim in self.dims}
        for what, value in zip(self.inputs, leaves, strict=True):
            if what.dtype is None:
                if not _is_same(value, what.value):
                    raise UserError(
                        f"{what.name} is {value!r}, but the program was exported for {what.value!r}",
                        todo="Only tensors may differ between calls; export again with this value.",
                    )
                continue
            _check(what, value)
            for at, (size, wanted) in enumerate(zip(value.shape, what.shape, strict=True)):
                if isinstance(wanted, int):
                    if size != wanted:
                        raise UserError(
                            f"{what.name} has size {size} in dimension {at}, expected {wanted}: {what}",
                            todo="Export with dynamic_shapes for sizes that differ between calls.",
                        )
                    continue
                low, high = ranges[wanted].min, ranges[wanted].max
                if size < low or (high is not None and size > high):
                    raise UserError(f"{what.name} has size {size} in dimension {at}, expected {ranges[wanted]}")
                if values.setdefault(wanted, size) != size:
                    raise UserError(
                        f"{what.name} has size {size} in dimension {at}, but {wanted} is {values[wanted]} elsewhere"
                    )
        return values

    def result(self, outputs: Sequence[Any], given: Sequence[Any], laid: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """The user's result of the graph's outputs.

        Args:
            given: the graph's inputs.
            laid: these, in the strides that its views are of.
            leaves: the call's.
        """
        values = self.sizes(leaves) if any(r.strides is not None or r.kind == "size" for r in self.results) else {}
        symbols = {symbol: values[dim] for symbol, dim in self.bound.items() if dim in values}

        def number(size: Size) -> int:
            return size if isinstance(size, int) else int(parse(size).evaluate(symbols))

        found: list[Any] = []
        for r in self.results:
            if r.kind in ("literal", "size"):
                found.append(r.value if r.kind == "literal" else number(r.value))
                continue
            base = outputs[r.index] if r.kind == "output" else (given if r.strides is None else laid)[r.index]
            if r.strides is not None:
                wanted = dtype_of(r.dtype or "")
                base = base if base.dtype == wanted else base.view(wanted)
                shape, strides = [number(n) for n in r.shape], [number(n) for n in r.strides]
                base = base.as_strided(shape, strides, base.storage_offset() + number(r.offset))
            found.append(base)
        return trees.build(self.gives, found)

    # ---- as text --------------------------------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {row.name: _plain(getattr(self, row.name)) for row in dataclasses.fields(self)}

    @staticmethod
    def from_data(data: Any) -> Contract:
        """The contract of :meth:`to_data`.

        Raises:
            StoredGraphError: it is none.
        """
        try:
            made = {row.name: data[row.name] for row in dataclasses.fields(Contract) if row.name in data}
            for name, kind in (("inputs", Input), ("results", Result), ("dims", Dim)):
                made[name] = tuple(kind(**{k: _tuples(v) for k, v in one.items()}) for one in made[name])
            for name in ("positional", "keywords", "sources", "writes", "needs"):
                made[name] = _tuples(made.get(name, []))
            contract = Contract(**made)
            if sorted(_leaves(contract.takes)) != list(range(len(contract.inputs))):
                raise ValueError("the structure of the arguments has other leaves than inputs")
            if sorted(_leaves(contract.gives)) != list(range(len(contract.results))):
                raise ValueError("the structure of the result has other leaves than results")
            for what in contract.inputs:
                if what.dtype is not None:
                    dtype_of(what.dtype)
        except StoredGraphError:
            raise
        except Exception as error:
            raise StoredGraphError("FILE-C2", f"the contract is not one: {type(error).__name__}: {error}") from error
        return contract

    def __str__(self) -> str:
        lines = [f"takes {what}" for what in self.inputs]
        lines += [f"where {dim}" for dim in self.dims]
        for path, r in zip(trees.paths(self.gives, "result"), self.results, strict=True):
            text = f"{r.dtype}[{', '.join(map(str, r.shape))}]" if r.dtype is not None else str(r.value)
            text = re.sub(r"\b[a-z]\d+\b", lambda found: self.bound.get(found[0], found[0]), text)
            view = f" (of {self._argument(r.index)})" if r.kind == "input" else ""
            lines.append(f"gives {path}: {text}{view}")
        return "\n".join(lines)

    def _argument(self, index: int) -> str:
        kind, what = self.sources[index]
        return self.inputs[what].name if kind == "argument" else str(what)


def _is_same(value: Any, told: Any) -> bool:
    """Whether a value is the one that was told: zeros by their sign, and a NaN is a NaN."""
    if type(value) is not type(told):
        return False
    if isinstance(told, complex):
        return _is_same(value.real, told.real) and _is_same(value.imag, told.imag)
    if isinstance(told, float):
        same = value == told and math.copysign(1.0, value) == math.copysign(1.0, told)
        return same or (math.isnan(value) and math.isnan(told))
    return bool(value == told)


def _check(what: Input, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise UserError(f"{what.name} is a {type(value).__name__}, expected a tensor: {what}")
    if value.layout is not torch.strided:
        raise UserError(f"{what.name} is a {value.layout} tensor on {value.device}, expected one with memory: {what}")
    if dtype_name(value.dtype) != what.dtype:
        raise UserError(
            f"{what.name} has dtype {dtype_name(value.dtype)}, expected {what.dtype}: {what}",
            todo=f"Convert it: {what.name}.to(torch.{what.dtype}).",
        )
    wanted = torch.device(what.device or "cpu")
    if value.device.type != wanted.type or (wanted.index is not None and value.device.index != wanted.index):
        raise UserError(
            f"{what.name} is on {value.device}, expected {what.device}", todo=f"Move it: .to({what.device!r})."
        )
    if value.dim() != len(what.shape):
        raise UserError(f"{what.name} has {value.dim()} dimensions, expected {len(what.shape)}: {what}")


def as_strides(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with these strides, copied unless it has them."""
    if x.stride() == tuple(strides) or not x.numel():
        return x
    return torch.empty_strided(x.shape, tuple(strides), dtype=x.dtype, device=x.device).copy_(x)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name such as ``float32``.

    Raises:
        StoredGraphError: there is none.
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise StoredGraphError("FILE-C2", f"no dtype is named {str(name)[:80]!r}")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (Input, Result, Dim)):
        return {row.name: _plain(getattr(value, row.name)) for row in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        json.dumps(value, allow_nan=True)
        return value
    raise UserError(f"a contract cannot hold {value!r}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _leaves(structure: trees.Structure) -> list[int]:
    if isinstance(structure, int):
        return [structure]
    ((kind, parts),) = structure.items()
    inner = parts[2] if kind == "namedtuple" else [p for _, p in parts] if kind == "dict" else parts
    return [leaf for p in inner for leaf in _leaves(p)]
