"""``torch.Generator`` objects: what is drawn from one is drawn before the graph runs, and is an input of the graph.

A generator of the program's own is advanced by nothing that a graph does, so that its draws may come before the graph:
PyTorch makes them, in the program's order and with eager's numbers, and what only the program sees of them, the state
that they leave, is eager's. A draw that takes what the graph computes (probabilities) has to be made where it stands.
The default generators are the graph's too, and are told from others by a guard.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import EarlierEnd, GraphBreak
from dynamo_capture.first_calls import FirstCall
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.callables import MethodHandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.construct import constructor
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.identity import identity_key
from dynamo_capture.values.tensor import SymValue, TensorValue
from prims.spec import TensorSpec

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["GeneratorValue", "draw_into", "drawn_tensor", "generator_in", "torch_generator"]

_INTS = {"dtype": torch.int64}
#: Functions that draw by sizes and numbers -> which arguments are the size (all of them: None), what else `torch.empty`
#: takes as they do.
_BY_SIZE: dict[Any, tuple[int | None, dict[str, Any]]] = {
    torch.rand: (None, {}), torch.randn: (None, {}), torch.randint: (-1, _INTS), torch.randperm: (0, _INTS),
    torch.normal: (-1, {}),
}  # fmt: skip
#: Methods that fill a tensor with draws.
_FILLS = frozenset(
    ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "log_normal_", "cauchy_")
)
_OF_EMPTY = frozenset(("size", "dtype", "layout", "device", "pin_memory"))


class GeneratorValue(Value):
    """A generator: one that exists, or one that the region makes, by a call that comes before the graph (``local``)."""

    __slots__ = ("device", "local", "obj")

    mutable = True

    def __init__(self, device: torch.device, obj: Any = None, source: Source | None = None, local: str = "") -> None:
        self.source = source
        self.obj = obj
        self.device = device
        self.local = local

    @property
    def pytype(self) -> type:
        return torch.Generator

    def real(self) -> Any:
        if self.obj is None:
            raise GraphBreak("QB06", "a torch.Generator made here, as a real object")
        return self.obj

    @property
    def is_default(self) -> bool:
        """Whether the graph draws from it too."""
        return self.obj is not None and _is_default(self.obj)

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        return True

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "device":
            return ConstantValue(self.device)
        if name == "__class__":
            return tx.from_python(torch.Generator)
        if name == "manual_seed":
            return MethodHandlerValue(self._manual_seed, name, self)
        raise GraphBreak("QB06", f"attribute {name!r} of a torch.Generator")

    def _manual_seed(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        seeds = [value.realize() for value in (*args, *kwargs.values())]
        known = len(seeds) == 1 and not kwargs.keys() - {"seed"} and seeds[0].pytype is int and not self.is_default
        if not known or (type(seeds[0]) is ConstantValue and not _is_seed(seeds[0].value)):
            raise GraphBreak("QB06", "Generator.manual_seed() of these arguments")
        _make_first(tx, self, torch.Generator.manual_seed, [self, _at_run_time(tx, seeds[0])], {}, None)
        return self

    def reconstruct(self, cg: CodeGen) -> None:
        cg.emit("LOAD_FAST", self.local)

    def describe(self) -> str:
        return "a torch.Generator"


def _is_seed(seed: int) -> bool:
    return -(2**63) <= seed < 2**64  # eager refuses others


def torch_generator(tx: Capture, obj: Any, source: Source | None) -> Value:
    """An existing generator."""
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, type(obj))
    tx.guards.equals(source.attr("device"), obj.device)
    if _is_default(obj):
        tx.guards.is_object(source, obj)
    else:
        tx.guards.predicate(source, _is_own, f"{source} is no default generator")
    return GeneratorValue(obj.device, obj, source)


def _is_default(generator: Any) -> bool:
    return generator is torch.default_generator or any(generator is each for each in torch.cuda.default_generators)


def _is_own(generator: Any) -> bool:
    return not _is_default(generator)


@constructor(torch.Generator)
def _make(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [value.realize() for value in (*args, *kwargs.values())]
    if len(given) > 1 or kwargs.keys() - {"device"} or not all(type(value) is ConstantValue for value in given):
        raise GraphBreak("QB06", "torch.Generator() of these arguments")
    device = tx.exact(torch.device, given[0].const()) if given else torch.device("cpu")
    if device.type != "cpu" and (device.type != "cuda" or device.index is None or not torch.cuda.is_initialized()):
        raise GraphBreak("QB06", f"making a torch.Generator of the device {device}")
    made = GeneratorValue(device, local=tx.first.new_name())
    _make_first(tx, made, torch.Generator, [ConstantValue(device)], {}, made.local)
    return made


def generator_in(
    kwargs: dict[str, Value], tensor: torch.device | None = None
) -> tuple[GeneratorValue | None, dict[str, Value]]:
    """The generator that a call is to draw from, if it is the program's own, and the arguments of the call.

    Of a default generator the graph draws where no generator is given.

    Args:
        tensor: the device of the tensor whose method is called.

    Raises:
        GraphBreak: it is the default generator of another device than a CPU, or given to an operator there.
    """
    value = kwargs["generator"].realize()
    if not isinstance(value, GeneratorValue):
        return None, kwargs
    if not value.is_default:
        return value, kwargs
    device = kwargs["device"].realize().const() if "device" in kwargs else None
    if value.device.type != "cpu" or (tensor or torch.device(device or "cpu")).type != "cpu":
        raise GraphBreak("QB08", f"the default generator of {value.device} is given to an operator")
    return None, {name: given for name, given in kwargs.items() if name != "generator"}


def drawn_tensor(tx: Capture, fn: Any, generator: GeneratorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``fn(*args, generator=generator, **kwargs)``, of a function of torch.

    Raises:
        GraphBreak: the draw cannot come before the graph.
    """
    spec = _spec(tx, fn, args, {name: value for name, value in kwargs.items() if name != "generator"})
    if spec is None:
        raise GraphBreak("QB08", f"torch.{fn.__name__}() of a generator, by what the graph computes")
    at = _size_at(fn)
    sizes = [arg for k, arg in enumerate(args) if at is None or k == at % len(args)]
    numbers = [_known(arg) for arg in args if arg not in sizes]
    options = {name: _known(value) for name, value in kwargs.items() if name != "generator"}
    _try(fn, generator, *numbers, 2 if fn is torch.randperm else (1,), **options)
    given = [_at_run_time(tx, arg) if arg in sizes else ConstantValue(_known(arg)) for arg in args]
    named: dict[str, Value] = {name: ConstantValue(value) for name, value in options.items()}
    return _drawn(tx, generator, fn, given, {**named, "generator": generator}, spec)


def draw_into(
    tx: Capture, tensor: TensorValue, name: str, generator: GeneratorValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """``tensor.normal_(..., generator=generator)`` and its like: the tensor takes what is drawn for one like it.

    Raises:
        GraphBreak: the draw cannot come before the graph.
    """
    spec = tensor.example.spec  # type: ignore[attr-defined]
    if name not in _FILLS or not spec.is_contiguous():
        raise GraphBreak("QB08", f"Tensor.{name}() of a generator, of this tensor")
    shape = TupleValue([_number(tx, size) for size in spec.shape])
    fixed = [ConstantValue(name), shape, ConstantValue(spec.dtype), ConstantValue(spec.device)]
    numbers = [_known(arg) for arg in args]
    options = {key: _known(value) for key, value in kwargs.items() if key != "generator"}
    _try(functools.partial(_filled, name, (1,), spec.dtype, spec.device), generator, *numbers, **options)
    given = [*fixed, *map(ConstantValue, numbers)]
    named: dict[str, Value] = {key: ConstantValue(value) for key, value in options.items()}
    like = TensorSpec(spec.shape, spec.dtype, spec.device)
    drawn = _drawn(tx, generator, _filled, given, {**named, "generator": generator}, like)
    return tx.graph_call("copy_", [tensor, drawn], {}, method=True)


def _known(value: Value) -> Any:
    """A number, dtype or device of a draw; a symbolic one is guarded to be what it is.

    Raises:
        GraphBreak: it is computed by the graph.
    """
    value = value.realize()
    if isinstance(value, TensorValue):
        raise GraphBreak("QB08", "a torch.Generator is used with a tensor")
    return value.const()


def _try(fn: Any, generator: GeneratorValue, *args: Any, **kwargs: Any) -> None:
    """Make a small draw from a generator of our own.

    Raises:
        GraphBreak: it is refused, which the program is to see where it draws.
    """
    try:
        with _disable_current_modes():
            fn(*args, **kwargs, generator=torch.Generator(generator.device))
    except Exception as error:
        raise GraphBreak("QB08", f"a draw from a torch.Generator raised {type(error).__name__}") from None


def _filled(name: str, shape: Any, dtype: torch.dtype, device: torch.device, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Runs in the emitted code."""
    return getattr(torch.empty(shape, dtype=dtype, device=device), name)(*args, **kwargs)  # type: ignore[no-any-return]


def _spec(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> TensorSpec | None:
    """What a draw gives; None where it is not by sizes and numbers alone."""
    given = [value.realize() for value in (*args, *kwargs.values())]
    if any(isinstance(value, TensorValue) for value in given):
        return None
    if fn not in _BY_SIZE or kwargs.keys() - _OF_EMPTY or "size" in kwargs or not args:
        return None
    if fn is torch.normal and len(args) != 3:
        return None
    at, otherwise = _size_at(fn), _BY_SIZE[fn][1]
    sizes = args if at is None else [TupleValue([args[0]])] if fn is torch.randperm else [args[at]]
    lowered = [tx.graph.lower(value)[1] for value in sizes]
    options = {**otherwise, **{name: tx.graph.lower(value)[1] for name, value in kwargs.items()}}
    made = tx.exact(torch.empty, *lowered, **options)
    return made.spec if hasattr(made, "spec") else TensorSpec(made.shape, made.dtype, made.device)


def _size_at(fn: Any) -> int | None:
    return _BY_SIZE[fn][0]


def _drawn(
    tx: Capture, generator: GeneratorValue, fn: Any, args: list[Value], kwargs: dict[str, Value], spec: TensorSpec
) -> Value:
    if generator.device.type != spec.device.type:
        raise GraphBreak("QB08", f"a generator of the device {generator.device} for a tensor on {spec.device}")
    name = tx.first.new_name()
    _make_first(tx, generator, fn, args, kwargs, name)
    return tx.graph.drawn_input(name, fn.__name__.strip("_"), spec)


def _make_first(
    tx: Capture, generator: GeneratorValue, fn: Any, args: list[Value], kwargs: dict[str, Value], result: str | None
) -> None:
    if not tx.graph.is_outermost:
        raise GraphBreak("QB08", "a torch.Generator is used inside of another graph")
    if tx.inference.entered:
        tx.inference.check_operator(tx)
        tx.graph.op_count += 1  # what is drawn is an inference tensor, as all that the graph computes
        fn, args = _inferring, [ConstantValue(fn), *args]
    step = tx.frames[0].call_step()  # type: ignore[attr-defined]
    brk = GraphBreak("QB08", "a torch.Generator is used, where the graph runs code that may draw from it as well")
    brk.where = tx.location()
    if tx.raising.met is None:
        tx.raising.met = step
    tx.side.epoch += 1
    end = EarlierEnd(step, brk)
    kept = generator if generator.obj is not None else None
    tx.first.add(FirstCall(fn, tuple(args), kwargs, result, generator=kept, end=end, number=False))


def _inferring(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs in the emitted code: a draw in the mode that the region enters."""
    with torch.inference_mode():
        return fn(*args, **kwargs)


# --- arguments before the graph runs ----------------------------------------------------------------------------------


class _Computed(Value):
    """A size that is computed of those of the frame's tensors and its ints, before the graph runs."""

    __slots__ = ("expr", "operands")

    def __init__(self, expr: Any, operands: dict[str, Value]) -> None:
        self.source = None
        self.expr = expr
        self.operands = operands

    def children(self) -> Any:
        return iter(self.operands.values())

    def reconstruct(self, cg: CodeGen) -> None:
        evaluate = functools.partial(_evaluated, self.expr, tuple(self.operands))
        cg.call_const(evaluate, list(self.operands.values()))


def _evaluated(expr: Any, names: tuple[str, ...], *values: Any) -> int:
    """Runs in the emitted code."""
    return int(expr.evaluate(dict(zip(names, values, strict=True))))


class _Handed(Value):
    """A number that is handed over with the frame's objects."""

    __slots__ = ()


def _at_run_time(tx: Capture, value: Value) -> Value:
    """An argument as it can be given before the graph runs.

    Raises:
        GraphBreak: it is computed by the graph.
    """
    value = value.realize()
    if isinstance(value, (TupleValue, ListValue)):
        return TupleValue([_at_run_time(tx, item) for item in value.items])
    if isinstance(value, SymValue):
        if isinstance(value.example, torch.SymInt):
            return _number(tx, value.example)
        return value if value.source is not None else ConstantValue(value.const())
    if value.is_const or isinstance(value, GeneratorValue):
        return value
    raise GraphBreak("QB08", f"a torch.Generator is used with {display(value)}")


def _number(tx: Capture, size: Any) -> Value:
    """An int, or what a symbolic one is made of."""
    if type(size) is int:
        return ConstantValue(size)
    expr = tx.symbols.simplify((size.node if isinstance(size, torch.SymInt) else size).expr)
    if expr.is_const:
        return ConstantValue(int(expr.value))
    known = _sources(tx)
    names = sorted(expr.free_symbols())
    if not known.keys() >= set(names):
        raise GraphBreak("QB08", "a torch.Generator is used with a number that the graph computes")
    if expr.is_symbol:
        return _Handed(known[names[0]])
    return _Computed(expr, {name: _Handed(known[name]) for name in names})


def _sources(tx: Capture) -> dict[str, Source]:
    """Where the frame has the symbolic sizes and ints, by their names."""
    found: dict[str, Source] = {}
    for inp in tx.graph.input_list():
        spec = inp.node.meta["spec"]
        if inp.source.kind == "first":
            continue
        if isinstance(inp.value, TensorValue):
            for dim, size in enumerate(spec.shape):
                if not isinstance(size, int) and size.expr.is_symbol:
                    found.setdefault(size.expr.symbol_name, inp.source.attr("shape").item(dim))
        elif isinstance(inp.value.example, torch.SymInt):
            found.setdefault(spec.expr.symbol_name, inp.source)
    return found
