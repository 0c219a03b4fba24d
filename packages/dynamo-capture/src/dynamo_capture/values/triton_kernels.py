"""A user's Triton kernel as a value: launching it becomes an operator of the graph."""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.triton_ops import (
    Launch,
    constexpr_names,
    kernel_chain,
    launch_operator,
    python_function,
    written_parameters,
)
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.callables import HandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["TritonKernelValue"]


class TritonKernelValue(Value):
    """A ``@triton.jit`` function, possibly autotuned."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Any, source: Any) -> None:
        self.source = source
        self.kernel = kernel

    @property
    def pytype(self) -> type:
        return type(self.kernel)

    def real(self) -> Any:
        return self.kernel

    def key(self, tx: Capture) -> Any:
        return self.kernel

    def truth(self, tx: Capture) -> bool:
        return True

    def getitem(self, tx: Capture, key: Value) -> Value:
        return TritonLauncherValue(self, key.realize())

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__getitem__":
            return self.getitem(tx, args[0])
        return super().call_method(tx, name, args, kwargs)

    def _run(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``kernel.run(*args, grid=grid, warmup=False, **kwargs)``."""
        rest = {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}
        if "grid" not in kwargs or ("warmup" in kwargs and kwargs["warmup"].realize().const() is not False):
            raise GraphBreak("QB03", f"a warm-up of {self.describe()}")
        return _launch(tx, self.kernel, kwargs["grid"].realize(), args, rest)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return ConstantValue(getattr(python_function(self.kernel), name))
        if name == "run":
            return HandlerValue(self._run, f"run of {self.describe()}")
        raise GraphBreak("QB06", f"attribute {name!r} of {self.describe()}")

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.kernel)

    def describe(self) -> str:
        return f"the Triton kernel {python_function(self.kernel).__name__!r}"


class TritonLauncherValue(Value):
    """``kernel[grid]``."""

    __slots__ = ("grid", "kernel")

    def __init__(self, kernel: TritonKernelValue, grid: Value) -> None:
        self.source = None
        self.kernel = kernel
        self.grid = grid

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return _launch(tx, self.kernel.kernel, self.grid, args, kwargs)

    def children(self) -> Any:
        yield self.kernel
        yield self.grid

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(operator.getitem, [self.kernel, self.grid])

    def describe(self) -> str:
        return f"a launcher of {self.kernel.describe()}"


def _launch(tx: Capture, kernel: Any, grid: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Record ``kernel[grid](*args, **kwargs)``."""
    names = list(inspect.signature(python_function(kernel)).parameters)
    if len(args) > len(names):
        raise GraphBreak("QB19", f"too many arguments for the Triton kernel {python_function(kernel).__name__!r}")
    fixed = constexpr_names(kernel)
    slots: list[tuple[str | None, str, Any]] = []
    operands: list[Value] = []
    tensors: list[str] = []
    named: dict[str, Value] = {}
    given = [*((None, name, v) for name, v in zip(names, args, strict=False)), *((k, k, v) for k, v in kwargs.items())]
    for keyword, name, lazy in given:
        value = lazy.realize()
        named[name] = value
        kind, constant = _kind(value, name in fixed or name not in names)
        slots.append((keyword, kind, constant))
        if kind != "constant":
            operands.append(value)
        if kind == "tensor":
            tensors.append(name)
    written = written_parameters(kernel)
    configs = _configurations(kernel)
    grids = [_grid(tx, kernel, grid, {**named, **{k: ConstantValue(v) for k, v in c.items()}}) for c in configs]
    if not callable_grid(grid):
        configs, grids = [{}], grids[:1]
    launch = Launch(
        kernel, tuple(slots), tuple(tensors),
        frozenset(tensors if written is None else written & set(tensors)), tuple(configs),
    )  # fmt: skip
    sizes = [size for sizes in grids for size in sizes]
    tx.graph_call(launch_operator(launch), [*operands, *sizes], {})
    return ConstantValue(None)


def callable_grid(grid: Value) -> bool:
    """Whether a grid is a function of the launch's arguments rather than sizes."""
    return not isinstance(grid, (TupleValue, ListValue))


def _kind(value: Value, fixed: bool) -> tuple[str, Any]:
    """How one argument of a launch is passed: as an operand of the operator, or as a constant of it."""
    if isinstance(value, TensorValue):
        return "tensor", None
    if isinstance(value, SymValue) and not fixed:
        kind = {int: "int", float: "float"}.get(value.pytype)
        if kind is not None:
            return kind, None
    if value.is_const or isinstance(value, SymValue):
        constant = value.const()
        if not fixed and type(constant) in (int, float):
            return type(constant).__name__, None
        return "constant", constant
    try:
        return "constant", value.real()
    except GraphBreak:
        raise GraphBreak("QB03", f"{display(value)} as an argument of a Triton kernel") from None


def _configurations(kernel: Any) -> list[dict[str, Any]]:
    """The arguments that autotuning may choose, one dict per configuration."""
    tuned = [k.configs for k in kernel_chain(kernel) if hasattr(k, "configs")]
    if len(tuned) > 1:
        raise GraphBreak("QB03", "a Triton kernel with two autotuners")
    distinct: list[dict[str, Any]] = []
    for config in tuned[0] if tuned else ():
        if config.kwargs not in distinct:
            distinct.append(dict(config.kwargs))
    return distinct or [{}]


def _grid(tx: Capture, kernel: Any, grid: Value, named: dict[str, Value]) -> list[Value]:
    """The three sizes of a launch's grid."""
    if callable_grid(grid):
        for parameter in inspect.signature(python_function(kernel)).parameters.values():
            if parameter.default is not inspect.Parameter.empty and parameter.name not in named:
                named[parameter.name] = tx.from_python(parameter.default)
        for outer in kernel_chain(kernel):
            for name, heuristic in getattr(outer, "values", {}).items():
                named[name] = tx.from_python(heuristic).realize().call(tx, [DictValue.named(named)], {})
        grid = grid.call(tx, [DictValue.named(named)], {}).realize()
    sizes = [size.realize() for size in grid.unpack(tx)]
    if not 1 <= len(sizes) <= 3:
        raise GraphBreak("QB19", f"a grid of {len(sizes)} dimensions")
    return [*sizes, *[ConstantValue(1)] * (3 - len(sizes))]


@special(torch._library.triton.wrap_triton)
def _wrap_triton(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.library.wrap_triton``: the kernel itself, whose launches are captured anyway."""
    kernel = [*args, *kwargs.values()][0].realize()
    if not isinstance(kernel, TritonKernelValue):
        raise GraphBreak("QB03", f"wrap_triton of {display(kernel)}")
    return kernel
