"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: the functions that they are given become graphs of their own.

The call is one node, of a :class:`prims.control.ControlFlow` that holds those graphs; what they read of the program
around them, they are given as further operands. What cannot be captured is left to PyTorch's own implementation by a
graph break before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import InnerEffects, SubgraphBuilder
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special, special_by_name
from prims.control import Body, ControlFlow, Form
from prims.records import record
from prims.spec import TensorSpec, from_torch

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Structure"]


@record
class Structure:
    """How tensors are nested: the container (None for a tensor) and the structures in it, by key in a dict."""

    kind: Any = None
    parts: tuple[Structure, ...] = ()
    keys: tuple[Any, ...] = ()

    def build(self, tx: Capture, leaves: Sequence[Value]) -> Value:
        """New containers around the leaves, which are consumed."""
        return self._build(tx, iter(leaves))

    def _build(self, tx: Capture, leaves: Any) -> Value:
        if self.kind is None:
            return next(leaves)  # type: ignore[no-any-return]
        items = [part._build(tx, leaves) for part in self.parts]
        if issubclass(self.kind, dict):
            return DictValue.of(tx, zip(map(ConstantValue, self.keys), items, strict=True), self.kind)
        return ListValue(items) if self.kind is list else TupleValue(items, self.kind)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        parts = [str(part) for part in self.parts]
        if issubclass(self.kind, dict):
            return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(self.keys, parts, strict=True)) + "}"
        text = ", ".join(parts)
        if self.kind is list:
            return f"[{text}]"
        name = "" if self.kind is tuple else self.kind.__name__
        return f"{name}({text}{',' if len(parts) == 1 else ''})"


_TENSOR = Structure()


def _flatten(tx: Capture, value: Value, what: str) -> tuple[list[TensorValue], Structure]:
    """The tensors in nested containers.

    Raises:
        GraphBreak: there is something else in them.
    """
    value = value.realize()
    if isinstance(value, TensorValue):
        return [value], _TENSOR
    if isinstance(value, (TupleValue, ListValue)):
        kind, keys, items = value.pytype, (), value.items
    elif isinstance(value, DictValue) and value.pytype is dict:
        pairs = value.whole(tx).values()
        kind, keys, items = dict, tuple(k.realize().const() for k, _ in pairs), [v for _, v in pairs]
    else:
        raise _refuse(f"{what} {display(value)}, not tensors")
    found = [_flatten(tx, item, what) for item in items]
    return [leaf for leaves, _ in found for leaf in leaves], Structure(kind, tuple(s for _, s in found), keys)


def _refuse(text: str) -> GraphBreak:
    return GraphBreak("QB22", text)


class _Bodies:
    """The functions that one call is given, as graphs.

    Attributes:
        name: how the program calls the operator.
        operands: the specs of what each function takes.
        lifted: the values around that any of them reads besides.
    """

    def __init__(self, tx: Capture, name: str, operands: Sequence[TensorSpec]) -> None:
        self.tx = tx
        self.name = name
        self.operands = operands
        self.lifted: list[Value] = []
        self.bodies: list[Body] = []

    def add(
        self, role: str, function: Value, call: Callable[[list[Value]], tuple[list[Value], dict[str, Value]]]
    ) -> tuple[list[TensorValue], Structure]:
        """Capture a function; its results.

        Args:
            role: what it is to the operator ("the true function").
            call: its arguments, made of stand-ins for the operands.
        """
        tx = self.tx
        outer, effects, modes = tx.graph, tx.side, dict(tx.modes)
        builder = tx.graph = SubgraphBuilder(tx, outer)
        side = tx.side = InnerEffects(effects)
        try:
            given = [builder.new_input(f"operand_{k}", spec) for k, spec in enumerate(self.operands)]
            args, kwargs = call(list(given))
            result = function.realize().call(tx, args, kwargs)
            found, structure = _flatten(tx, result, f"{role} of {self.name} returns")
            written = any(not x.example.is_inference() and x.example._version for x in given)
            if written or builder.writes_outside():
                raise _refuse(f"{role} of {self.name} writes to a tensor that it did not make")
            changed = any(modes.get(key, (first, first))[1] != now for key, (first, now) in tx.modes.items())
            if changed or side.reached([function, *args, *kwargs.values()]):
                raise _refuse(f"{role} of {self.name} changes what is outside of it")
            builder.graph.output(tuple(builder.lower(value)[0] for value in found))
        except GraphBreak as error:
            if error.number == "QB22":
                raise
            wrapped = _refuse(f"{role} of {self.name}: {error.text}")
            wrapped.where = error.where
            raise wrapped from None
        except ObservedError as error:
            text = getattr(error.value, "text", lambda: "an exception")()
            raise _refuse(f"{role} of {self.name} raises {text}") from None
        finally:
            tx.graph, tx.side = outer, effects
            effects.epoch += side.epoch
        graph = torch.fx.GraphModule(torch.nn.Module(), builder.graph, self.name.rpartition(".")[2].title())
        self.bodies.append(Body(graph, (*range(len(given)), *map(self._position, builder.lifted))))
        return found, structure

    def _position(self, value: Value) -> int:
        at = next((at for at, known in enumerate(self.lifted) if known is value), None)
        if at is None:
            at = len(self.lifted)
            self.lifted.append(value)
        return len(self.operands) + at

    def call(self, form: Form, operands: Sequence[Value], results: Sequence[TensorSpec]) -> list[Value]:
        """The node of the call, in the graph around."""
        flow = ControlFlow(self.name, form, self.bodies, results)
        return self.tx.graph_call(flow, [*operands, *self.lifted], {}).unpack(self.tx)


def _spec(value: TensorValue) -> TensorSpec:
    return value.example.spec  # type: ignore[attr-defined,no-any-return]


def _dense(spec: TensorSpec, *leading: Any) -> TensorSpec:
    """The metadata of contiguous memory, with further dimensions first."""
    return TensorSpec((*leading, *spec.shape), spec.dtype, spec.device)


def _describe(spec: TensorSpec) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)} on {spec.device}"


#: The metadata of the tensors in nested containers, and the containers.
_Nested = tuple[list[TensorSpec], Structure]


def _check_alike(name: str, left: str, first: _Nested, right: str, other: _Nested) -> None:
    """Refuse what differs in structure, shape, dtype or device."""
    if first[1] != other[1]:
        raise _refuse(f"{name}: {left} {first[1]}, {right} {other[1]}")
    for k, (a, b) in enumerate(zip(first[0], other[0], strict=True)):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            where = f"result {k} of " if len(first[0]) > 1 else ""
            raise _refuse(f"{name}: {where}{left} {_describe(a)}, {right} {_describe(b)}")


def _specs(found: tuple[list[TensorValue], Structure]) -> _Nested:
    return [_spec(value) for value in found[0]], found[1]


def _bind(name: str, names: Sequence[str], args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """The arguments by name."""
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not kwargs.keys() <= set(names) - given.keys():
        raise _refuse(f"{name} with these arguments")
    return given | kwargs


def _given(name: str, given: dict[str, Value], wanted: str) -> Value:
    if wanted not in given:
        raise _refuse(f"{name} without {wanted}")
    return given[wanted].realize()


@special(getattr(torch, "cond", None))
def _cond(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.cond(pred, true_fn, false_fn, operands)``."""
    name = "torch.cond"
    given = _bind(name, ("pred", "true_fn", "false_fn", "operands"), args, kwargs)
    operands = given["operands"].realize() if "operands" in given else TupleValue([])
    if not isinstance(operands, (TupleValue, ListValue)):
        raise _refuse(f"{name} is given {display(operands)} as operands, not a tuple or list")
    predicate = _given(name, given, "pred")
    if not isinstance(predicate, TensorValue):
        if predicate.pytype not in (bool, int, float):
            raise _refuse(f"{name} is given {display(predicate)} as its predicate, not a tensor or bool")
        chosen = _given(name, given, "true_fn" if predicate.truth(tx) else "false_fn")
        return chosen.call(tx, list(operands.items), {})
    if any(size != 1 for size in predicate.example.shape):
        raise _refuse(f"{name}: its predicate is {_describe(_spec(predicate))}, not a single element")
    leaves, structure = _flatten(tx, operands, f"{name} is given")
    bodies = _Bodies(tx, name, [_spec(value) for value in leaves])

    def arguments(values: list[Value]) -> tuple[list[Value], dict[str, Value]]:
        return list(structure.build(tx, values).items), {}  # type: ignore[attr-defined]

    true = bodies.add("the true function", _given(name, given, "true_fn"), arguments)
    false = bodies.add("the false function", _given(name, given, "false_fn"), arguments)
    sides = (_specs(true), _specs(false))
    _check_alike(name, "the true function returns", sides[0], "the false function", sides[1])
    if not true[0]:
        raise _refuse(f"{name}: its functions return no tensor")
    results = [a if a.strides == b.strides and _is_dense(a) else _dense(a) for a, b in zip(sides[0][0], sides[1][0])]
    return true[1].build(tx, bodies.call(Form("cond"), [predicate, *leaves], results))


def _is_dense(spec: TensorSpec) -> bool:
    """Whether the memory has neither gaps nor elements that share it."""
    if not all(isinstance(n, int) for n in (*spec.shape, *spec.strides)):
        return bool(spec == _dense(spec))
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(spec.strides, spec.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return spec.storage_offset == 0


@special_by_name("torch._higher_order_ops.while_loop", "while_loop")
def _while_loop(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``while_loop(cond_fn, body_fn, carried_inputs)``."""
    name = "while_loop"
    given = _bind(name, ("cond_fn", "body_fn", "carried_inputs"), args, kwargs)
    carried = _given(name, given, "carried_inputs")
    if not isinstance(carried, (TupleValue, ListValue)):
        raise _refuse(f"{name} is given {display(carried)} to carry, not a tuple or list")
    leaves, structure = _flatten(tx, carried, f"{name} carries")
    if torch.is_grad_enabled() and any(value.example.requires_grad for value in leaves):
        raise _refuse(f"{name} carries what needs a gradient, through a number of steps that is not known")
    specs = [_dense(_spec(value)) for value in leaves]
    bodies = _Bodies(tx, name, specs)

    def arguments(values: list[Value]) -> tuple[list[Value], dict[str, Value]]:
        return list(structure.build(tx, values).items), {}  # type: ignore[attr-defined]

    going = bodies.add("the condition", _given(name, given, "cond_fn"), arguments)[0]
    if len(going) != 1 or _spec(going[0]).dtype != torch.bool or any(n != 1 for n in going[0].example.shape):
        what = ", ".join(_describe(_spec(value)) for value in going)
        raise _refuse(f"{name}: the condition returns {what}, not a single bool")
    step = _specs(bodies.add("the body", _given(name, given, "body_fn"), arguments))
    either = step[1].kind in (tuple, list) and structure.kind in (tuple, list)
    found = (step[0], replace(step[1], kind=structure.kind) if either else step[1])
    _check_alike(name, "it carries", (specs, structure), "the body returns", found)
    if torch.is_grad_enabled() and any(isinstance(v, TensorValue) and v.example.requires_grad for v in bodies.lifted):
        raise _refuse(f"{name} reads what needs a gradient, through a number of steps that is not known")
    return structure.build(tx, bodies.call(Form("while_loop", len(leaves)), leaves, specs))


def _slices(name: str, leaves: Sequence[TensorValue], dim: int) -> list[TensorSpec]:
    """The metadata of what each step is given of the tensors that a loop goes through along a dimension."""
    if not leaves:
        raise _refuse(f"{name} over no tensors")
    lengths = {str(leaf.example.shape[dim]) if leaf.example.ndim > dim else "none" for leaf in leaves}
    if len(lengths) > 1 or lengths & {"none", "0"}:
        raise _refuse(f"{name} over dimension {dim} of {', '.join(_describe(_spec(leaf)) for leaf in leaves)}")
    return [TensorSpec((*s.shape[:dim], *s.shape[dim + 1 :]), s.dtype, s.device) for s in map(_spec, leaves)]


@special_by_name("torch._higher_order_ops.scan", "scan")
def _scan(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``scan(combine_fn, init, xs, *, dim=0, reverse=False) -> (carry, stacked)``."""
    name = "scan"
    given = _bind(name, ("combine_fn", "init", "xs", "dim", "reverse"), args, kwargs)
    carried, carried_structure = _flatten(tx, _given(name, given, "init"), f"{name} carries")
    mapped, mapped_structure = _flatten(tx, _given(name, given, "xs"), f"{name} goes through")
    if not carried:
        raise _refuse(f"{name} without anything to carry")
    settings = [given[key].realize().const() if key in given else default for key, default in _SCAN_SETTINGS]
    dim, reverse = settings
    if type(dim) is not int or type(reverse) is not bool or not mapped:
        raise _refuse(f"{name} with dim={dim!r} and reverse={reverse!r}, over {len(mapped)} tensors")
    dim += mapped[0].example.ndim if dim < 0 else 0
    specs = [_dense(_spec(value)) for value in carried]
    bodies = _Bodies(tx, name, [*specs, *_slices(name, mapped, dim)])

    def arguments(values: list[Value]) -> tuple[list[Value], dict[str, Value]]:
        own = carried_structure.build(tx, values[: len(carried)])
        return [own, mapped_structure.build(tx, values[len(carried) :])], {}

    found, structure = bodies.add("the function", _given(name, given, "combine_fn"), arguments)
    if structure.kind is not tuple or len(structure.parts) != 2:
        raise _refuse(f"{name}: the function returns {structure}, not a pair of what is carried and what is stacked")
    rows = [_spec(value) for value in found]
    _check_alike(
        name, "it carries", (specs, carried_structure), "the function", (rows[: len(specs)], structure.parts[0])
    )
    moved = [_moved(tx, value, dim, 0) for value in mapped]
    length = moved[0].example.shape[0]
    results = [*specs, *(_dense(spec, from_torch(length)) for spec in rows[len(specs) :])]
    made = bodies.call(Form("scan", len(carried), len(mapped), reverse), [*carried, *moved], results)
    stacked: list[Value] = [
        _moved(tx, value, 0, dim) if dim < value.example.ndim else value  # type: ignore[attr-defined, arg-type]
        for value in made[len(carried) :]
    ]
    return TupleValue(
        [carried_structure.build(tx, made[: len(carried)]), structure.parts[1].build(tx, stacked)]
    )


_SCAN_SETTINGS = (("dim", 0), ("reverse", False))


def _moved(tx: Capture, value: TensorValue, source: int, destination: int) -> TensorValue:
    if source == destination:
        return value
    places = [ConstantValue(source), ConstantValue(destination)]
    return tx.graph_call(torch.movedim, [value, *places], {})  # type: ignore[return-value]


@special_by_name("torch._higher_order_ops.map", "map")
def _map(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``map(f, xs, *args)``: ``f`` of each slice of ``xs`` along its first dimension, stacked."""
    name = "map"
    if len(args) < 2 or kwargs:
        raise _refuse(f"{name} with these arguments")
    function, (mapped, structure) = args[0], _flatten(tx, args[1], f"{name} goes through")
    bodies = _Bodies(tx, name, _slices(name, mapped, 0))

    def arguments(values: list[Value]) -> tuple[list[Value], dict[str, Value]]:
        return [structure.build(tx, values), *args[2:]], {}

    found, stacked = bodies.add("the function", function, arguments)
    if not found:
        raise _refuse(f"{name}: the function returns no tensor")
    length = from_torch(mapped[0].example.shape[0])
    results = [_dense(_spec(value), length) for value in found]
    return stacked.build(tx, bodies.call(Form("scan", 0, len(mapped)), mapped, results))
