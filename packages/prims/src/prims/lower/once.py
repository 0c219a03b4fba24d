"""Decompositions that are run once for equal calls: what the first call emits is a template for those that follow.

A decomposition sees nothing of a graph: a handler, whose primitives it calls, and values that have a shape, a dtype and
a device. Within one graph its primitives are therefore a function of the operator, the literal arguments, the operands'
metadata and which of the operands are one value; the claims and the process's settings stay. That is the key, together
with the metadata in the aten graph, which says whether the decomposition is taken at all. Sizes in it are numbers:
symbols, about which a decomposition may ask and so guard, are never in a key, nor is a call with one recorded.

What is emitted again goes through the same hash-consing and the same rewrites, which do look at the graph. Whatever
else the first run touches, of its handler or of a value, is noted by those themselves, and the run is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.fx

from prims.decomp.registry import get
from prims.handlers import BaseHandler, GraphHandler, GraphValue
from prims.lower.composites import VECTORS
from prims.lower.strided import STRIDED
from prims.ops import PrimOp
from prims.spec import TensorSpec
from prims.spec.alike import Alike, NotAlike

__all__ = ["MISSING", "Call", "Once"]

MISSING: Any = object()
"""No result: the call is to be decomposed."""


class _Step:
    """One primitive of a template; operands are positions among the call's operands and the steps' results.

    Attributes:
        slots: ``(argument, operand)``; lists: ``(argument, operands)``.
        bound, key: the other arguments, and the handler's key of the application, in which operands are left open.
        derived: the primitive's metadata; given: that of the result, which a rewrite may have found elsewhere.
        same: the place of the operand or the result before it that the result is, or None.
    """

    __slots__ = ("bound", "derived", "given", "key", "lists", "op", "same", "slots")

    def __init__(
        self, op: PrimOp, bound: tuple[Any, ...], key: tuple[Any, ...], derived: Any, given: Any, same: int | None
    ) -> None:
        self.op, self.derived, self.given, self.same = op, derived, given, same
        self.slots = [(at, arg.place) for at, arg in enumerate(bound) if type(arg) is _Recorded]
        lists = [(at, arg) for at, arg in enumerate(bound) if type(arg) is tuple and _is_open(arg)]
        self.lists = [(at, [x.place for x in arg]) for at, arg in lists]
        self.bound, self.key = list(bound), list(key)


class _Template(NamedTuple):
    """What a call emits, in order, and its result: a tree with `_Recorded` values for operands and steps."""

    steps: list[_Step]
    result: Any


class Call(NamedTuple):
    """A call that may be recorded: its key, and the values among its arguments, each once."""

    key: Any
    operands: dict[GraphValue, int]


class Once(Alike):
    """The templates of one graph. `hits` counts the calls that were not decomposed, `kept` the templates."""

    def __init__(self, p: GraphHandler, claims: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.p = p
        self.claims = claims
        self.hits = 0
        self._decomposed: dict[int, bool] = {}
        self._templates: dict[Any, _Template] = {}
        self._by_node: dict[torch.fx.Node, Any] = {}

    @property
    def kept(self) -> int:
        """How many templates there are."""
        return len(self._templates)

    def call(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call of an aten node, whose arguments have been mapped; None where an argument is in no key."""
        target = node.target
        decomposed = self._decomposed.get(id(target))
        if decomposed is None:
            decomposed = self._decomposed[id(target)] = self._is_decomposed(target)
        if not decomposed:
            return None
        operands: dict[GraphValue, int] = {}
        self._operands = operands
        try:
            key = (
                id(target),  # an overload, which lives as long as the process
                self.argument(args),
                self.argument(tuple(kwargs.items())) if kwargs else None,
                self._metadata(node),
                tuple(map(self._metadata, node.all_input_nodes)),
            )
        except NotAlike:
            return None
        return Call(key, operands)

    def _is_decomposed(self, target: Any) -> bool:
        """Is an overload decomposed without a look at the graph around it?"""
        if not isinstance(target, torch._ops.OpOverload) or get(target) is None:
            return False
        name = str(target)
        return name not in self.claims and name not in STRIDED and name not in VECTORS

    def knows(self, call: Call) -> bool:
        """Was an equal call recorded?"""
        return call.key in self._templates

    def again(self, call: Call) -> Any:
        """The result of a call that was recorded before, emitted again; `MISSING` where a rewrite finds something else
        than it found then."""
        template = self._templates[call.key]
        p, known = self.p, self.p.known
        values, places = list(call.operands), call.operands.copy()
        for step in template.steps:
            bound, key = step.bound.copy(), step.key.copy()
            key[0] = p.late is None
            for at, place in step.slots:
                bound[at] = value = values[place]
                key[at + 2] = value.node
            for at, several in step.lists:
                bound[at] = tuple([values[place] for place in several])
                key[at + 2] = tuple([value.node for value in bound[at]])
            whole = tuple(key)
            found = known.get(whole)
            value = p.apply(step.op, tuple(bound), whole, step.derived) if found is None else found
            if places.setdefault(value, len(values)) != (len(values) if step.same is None else step.same):
                return MISSING
            if value.spec is not step.given and value.spec != step.given:
                return MISSING
            values.append(value)
        self.hits += 1
        return _mapped(template.result, _Recorded, lambda x: values[x.place])

    def record(self, call: Call, fn: Callable[..., Any], p: GraphHandler, *args: Any, **kwargs: Any) -> Any:
        """``fn(p, *args, **kwargs)``, kept as the template of calls with this key where it can be."""
        recorder = _Recorder(p)
        stands_for = {value: recorder.stand_in(value) for value in call.operands}
        args, kwargs = _mapped((args, kwargs), GraphValue, stands_for.__getitem__)
        result = fn(recorder, *args, **kwargs)
        if recorder.pure and _is_plain(result):
            self._templates[call.key] = _Template(recorder.steps, result)
        return _mapped(result, _Recorded, _value_of)

    def other(self, arg: Any) -> Any:
        if type(arg) is GraphValue:
            return self._operands.setdefault(arg, len(self._operands)), self.spec(arg.spec), GraphValue
        raise NotAlike

    def _metadata(self, node: torch.fx.Node) -> Any:
        found = self._by_node.get(node)
        if found is None:
            spec = node.meta.get("spec")
            many = type(spec) is tuple or type(spec) is list
            found = self._by_node[node] = tuple(map(self.spec, spec)) if many else self.spec(spec)
        return found


class _Recorded:
    """A value as a decomposition sees it. Whoever looks further sees the graph's, which its recorder notes."""

    __slots__ = ("place", "recorder", "value")

    def __init__(self, recorder: _Recorder, value: GraphValue, place: int) -> None:
        self.recorder, self.value, self.place = recorder, value, place

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes."""
        return self.value.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.value.spec.dtype

    @property
    def device(self) -> torch.device:
        """Device."""
        return self.value.spec.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.value.spec.shape)

    def __getattr__(self, name: str) -> Any:
        self.recorder.pure = False
        return getattr(self.value, name)


class _Recorder(BaseHandler):
    """The handler of a decomposition that is run for the first time: it passes primitives on, and notes them."""

    def __init__(self, p: GraphHandler) -> None:
        super().__init__(p.claims)
        self.p = p
        self.pure = True
        self.steps: list[_Step] = []
        self.count = 0
        self.seen: dict[GraphValue, _Recorded] = {}

    def stand_in(self, value: GraphValue) -> _Recorded:
        """What the decomposition is given for a value of the graph: one for each."""
        self.count += 1
        return self.seen.setdefault(value, _Recorded(self, value, self.count - 1))

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> _Recorded:
        """A primitive, applied by the handler of the graph."""
        noted = op.bind(*args, **kwargs)
        bound, key = self.p.keyed(op, _mapped(noted, _Recorded, _value_of))
        derived = op.meta(*_mapped(bound, GraphValue, _spec_of))
        value = self.p.known.get(key)
        if value is None:
            value = self.p.apply(op, bound, key, derived)
        seen = self.seen.get(value)
        same = None if seen is None else seen.place
        open_ = tuple([old if _is_open(old) else new for old, new in zip(noted, bound, strict=True)])
        self.steps.append(_Step(op, open_, key, derived, value.spec, same))
        return self.stand_in(value)

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        """An overload as it is: of these no template is made."""
        self.pure = False
        args, kwargs = _mapped((args, kwargs), _Recorded, _value_of)
        return _mapped(self.p.aten(op, *args, spec=spec, **kwargs), GraphValue, self.stand_in)


def _is_open(arg: Any) -> bool:
    """Is it a value, or values?"""
    return type(arg) is _Recorded or (type(arg) is tuple and len(arg) > 0 and type(arg[0]) is _Recorded)


def _spec_of(value: GraphValue) -> TensorSpec:
    return value.spec


def _value_of(recorded: _Recorded) -> GraphValue:
    return recorded.value


def _is_plain(result: Any) -> bool:
    """Is it of values alone, which a template can give again?"""
    if type(result) is tuple or type(result) is list:
        return all(map(_is_plain, result))
    return type(result) is _Recorded or result is None


def _mapped(tree: Any, kind: type, fn: Callable[[Any], Any]) -> Any:
    """``fn`` on what is of that type in nested tuples, lists and dictionaries, which keep their types."""
    if type(tree) is kind:
        return fn(tree)
    if type(tree) is tuple or type(tree) is list:
        return type(tree)([_mapped(x, kind, fn) for x in tree])
    if type(tree) is dict:
        return {name: _mapped(x, kind, fn) for name, x in tree.items()}
    return tree
