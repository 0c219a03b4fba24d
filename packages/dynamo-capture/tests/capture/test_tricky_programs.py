"""Programs at the edges: what a patched function, a module put in another's place or a second break must not spoil."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest
import torch

import dynamo_capture
from prims.report import Report

X = torch.arange(6.0)


def captured(fn: Any, report: Report | None = None) -> Any:
    return dynamo_capture.optimize(fn, dynamo_capture.supports_dynamic_shapes(lambda gm, inputs: gm.forward), report=report)


@pytest.mark.parametrize(("module", "name"), [(torch, "sin"), (torch.nn.functional, "silu"), (torch.special, "expit")])
def test_replaced_function_of_torch(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        run = [node.target for node in gm.graph.nodes if node.op == "call_function"]
        graphs.append(run)
        return lambda *args: tuple(gm(*args)) if len(run) > 1 else (run[0](*args),)

    program = dynamo_capture.optimize(lambda x: getattr(module, name)(x), backend)
    expected = getattr(module, name)(X)
    assert torch.equal(program(X), expected)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda x: x * 0 + 42)
        assert torch.equal(program(X), torch.full((6,), 42.0))
    assert torch.equal(program(X), expected)
    assert len(graphs) == 2


FACTOR = 2.0


def test_method_that_the_program_adds_to_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def scaled(self: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        seen.append(by)
        return self * FACTOR * by

    monkeypatch.setattr(torch.Tensor, "scaled", scaled, raising=False)
    report = Report()
    program = captured(lambda x: x.scaled(by=3.0) + 1, report)
    assert torch.equal(program(X), X * 6 + 1)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.equal(program(X), X * 15 + 1)
    monkeypatch.setattr(torch.Tensor, "scaled", lambda self, by: self - by)
    assert torch.equal(program(X), X - 3 + 1)
    assert seen == [3.0, 3.0] and not report.breaks and not report.fallbacks


def test_module_replaced_in_sys_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = types.ModuleType("tricky_settings"), types.ModuleType("tricky_settings")
    first.k, second.k = 2, 10  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tricky_settings", first)

    @captured
    def program(x: torch.Tensor) -> torch.Tensor:
        import tricky_settings  # type: ignore[import-not-found]

        return x * tricky_settings.k

    assert torch.equal(program(X), X * 2)
    monkeypatch.setitem(sys.modules, "tricky_settings", second)
    assert torch.equal(program(X), X * 10)


@dataclasses.dataclass
class Point:
    a: int
    b: Any


def test_dict_of_a_new_object() -> None:
    program = captured(lambda x: (vars(Point(1, x * 2)), Point(3, x).__dict__, x + 1))
    first, second, _ = program(X)
    assert list(first) == list(second) == ["a", "b"] and first["a"] == 1 and second["a"] == 3
    assert torch.equal(first["b"], X * 2) and second["b"] is X


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.extra = 10
        return made

    def named(cls) -> str:
        return cls.__name__ + str(super().__len__()) if hasattr(type, "__len__") else cls.__name__


class Made(metaclass=Meta):
    def __init__(self, a: float) -> None:
        self.a = a


def test_super_in_a_metaclass() -> None:
    report = Report()
    program = captured(lambda x: (x * Made(2.0).extra + Made(3.0).a, Made.named()), report)
    result, name = program(X)
    assert torch.equal(result, X * 10 + 3) and name == "Made"
    assert not report.fallbacks


def test_question_about_what_is_no_class() -> None:
    def program(x: Any, cls: Any) -> Any:
        try:
            found = isinstance(x, cls)
        except TypeError as error:
            return x + 1, str(error)
        return x + 2, found

    report = Report()
    compiled = captured(program, report)
    for cls in (1, (int, "str"), torch.Tensor, int):
        got, expected = compiled(X, cls), program(X, cls)
        assert torch.equal(got[0], expected[0]) and got[1] == expected[1]
    assert not report.fallbacks and report.graphs


class Parent:
    def __init__(self, k: float) -> None:
        self.k = k

    def value(self) -> float:
        return self.k


class Child(Parent):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(2.0)
        dynamo_capture.graph_break()
        self.first = x * self.k
        dynamo_capture.graph_break()
        self.second = self.first + super().value()
        for i in range(2):
            dynamo_capture.graph_break()
            self.second = self.second * (super().value() + i)
        dynamo_capture.graph_break()
        self.add("third", self.second - 1)

    def add(self, name: str, value: torch.Tensor) -> None:
        setattr(self, name, value)


def test_several_breaks_after_super() -> None:
    """`super` becomes several instructions in a function that goes on after a break; the next break counts them."""
    report = Report()

    def program(x: torch.Tensor) -> Any:
        return Child(x)

    for _ in range(2):
        got = captured(program, report)(X)
        assert torch.equal(got.first, X * 2) and torch.equal(got.third, (X * 2 + 2) * 2 * 3 - 1)
    assert not report.fallbacks and len(report.graphs) >= 4


def test_hooks_of_all_modules_are_not_called_for_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    program = captured(lambda x, i: x[i] + 1)
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(module))
    try:
        assert torch.equal(program(X, torch.tensor([2])), torch.tensor([3.0]))
    finally:
        handle.remove()
    assert not seen
    with pytest.raises(IndexError, match="out of bounds"):
        program(X, torch.tensor([7]))
    assert not capsys.readouterr().err


def test_hooks_for_saved_tensors_see_real_ones() -> None:
    seen = []
    program = captured(lambda x: x.exp().sin())
    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(type(t)), t)[1], lambda t: t):
        program(x).sum().backward()
    assert len(seen) == 2 and set(seen) == {torch.Tensor}


def test_method_of_a_function_compiled_before() -> None:
    class Scale:
        k = 2.0

        @captured
        def by(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

    scale = Scale()
    program = captured(scale.by)
    assert torch.equal(program(X), X * 2)
    scale.k = 5.0
    assert torch.equal(program(X), X * 5)


def read(x: torch.Tensor, i: int) -> float:
    return float(x[i])  # breaks the graph, with what is being built on the stack


def build_call(x: torch.Tensor) -> Any:
    def given(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    return given(read(x, 1), *[read(x, 2), 2], k=read(x, 3), **{"z": read(x, 4)}, **{"y": x + 1})


def build_displays(x: torch.Tensor) -> Any:
    more = [7.0, 8.0]
    a = [read(x, 1), *more, read(x, 2), *(x.sum() for _ in range(2))]
    b = {read(x, 1), *more, read(x, 3)}
    c = {"p": read(x, 1), **{"q": 2}, "r": read(x, 2), **{"p": 5}}
    d = (*more, read(x, 5), *[read(x, 4)])
    return a, b, c, d, [read(x, i) + j for i in range(2) for j in more if read(x, 3) > j - 5]


@pytest.mark.parametrize("program", [build_call, build_displays])
def test_breaks_while_a_container_is_built(program: Any) -> None:
    report = Report()
    compiled = captured(program, report)
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))
    assert report.breaks and not report.fallbacks
