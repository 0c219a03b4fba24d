"""Calls of tensors alike are run once in a capture: the graph is the same as if all were, and every fact is in the key."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn

import dynamo_capture
from dynamo_capture import called, graph_builder, repeated
from dynamo_capture.called import facts_of
from prims.spec import AbstractMode


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q = self.first(y).view(2, -1, 2, 4).transpose(1, 2)
        y = torch.softmax(q @ q.transpose(-1, -2) * 0.5, dim=-1) @ q
        return x + self.second(torch.cat([y.transpose(1, 2).reshape(x.shape) * 2, x], 0)[: len(x)])


def _blocks(x: torch.Tensor, blocks: Any = None) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


def _pairs(first: Any, second: Any, *fns: Any) -> Any:
    """Each function of one tensor after the other."""
    return [fn(x) for fn in fns for x in (first, second)]


def _under(mode: Any, fn: Any, x: torch.Tensor) -> list[torch.Tensor]:
    before = fn(x)
    with mode:
        within = fn(x)
    return [before, within, fn(x)]


_X = torch.arange(12.0).reshape(3, 4)
_LEAF = _X.clone().requires_grad_()
_INTS = torch.arange(12).reshape(3, 4)
_DOUBLE = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)

#: Programs whose calls differ in one thing, by which part of the key tells them apart, where one does.
_PROGRAMS: dict[str, tuple[str | None, Any, tuple[Any, ...]]] = {
    "shape": ("tensor", lambda x, y: _pairs(x, y, torch.sin, torch.exp), (_X, torch.ones(5))),
    "strides": ("tensor", lambda x, y: _pairs(x, y, torch.sin), (_X, _X.reshape(4, 3).t())),
    "dtype": ("tensor", lambda x, y: _pairs(x, y, torch.sin, lambda z: z * 2), (_X, _DOUBLE)),
    "gradient": ("tensor", lambda x, y: _pairs(x, y, torch.sin), (_X, _LEAF)),
    "type of a number": ("literal", lambda x: [x * 2, x * 2.0, x * True, x + 1, x + 1.5], (_INTS,)),
    "value of a number": ("literal", lambda x: [x.sum(0), x.sum(1), x.sum(0, True), torch.cat([x, x], 1)], (_X,)),
    "list": ("literal", lambda x: [x.repeat([1, 2]), x.repeat([2, 1]), torch.cat([x]), torch.cat([x, x])], (_X,)),
    "function": ("function", lambda x: [torch.sin(x), torch.sum(x), x > 1, x * 1, x.sum(), x.double()], (_X,)),
    "keyword": ("keywords", lambda x: [x.sum(dim=0), x.sum(dim=1), x.sum(dtype=torch.float64)], (_X,)),
    "grad mode": ("state", lambda x: _under(torch.no_grad(), torch.sin, x), (_LEAF,)),
    "autocast": ("state", lambda x: _under(torch.autocast("cpu", torch.bfloat16), lambda y: y @ y, x), (_X[:, :3],)),
    "same tensor": (None, lambda x, y: [x @ x.t(), x @ y, x * x, x + x.sin()], (_X, _X.t().contiguous())),
    "views": (None, lambda x: [x.view(-1), x.t(), x[0], x.view(-1).add_(1), x[0], x.view(-1), x.sin()], (_X.clone(),)),
    "writes": (None, lambda x: [x.add_(1), x.sin(), x.add_(1), x.sin(), torch.relu_(x), torch.relu_(x)], (_X.clone(),)),
    "arguments": (None, lambda x: [x.contiguous(), x.to(torch.float32), x.contiguous() is x, +x, x.float(), x.sin()], (_X,)),
}  # fmt: skip


def _text(graphs: list[torch.fx.GraphModule]) -> str:
    """Calls with all that is known of their results."""
    return "\n".join(
        f"{node.format_node()} {node.meta.get('spec')!r}" for gm in graphs for node in gm.graph.nodes
    )  # fmt: skip


def _captured(capture: Any, fn: Any, args: tuple[Any, ...]) -> tuple[str, list[str], Any]:
    compiled = capture(fn)
    result = compiled(*map(_fresh, args))
    guards = [str(guard) for guard in dynamo_capture.explain(fn)(*map(_fresh, args)).guards]
    return _text(compiled.graphs), guards, result


def _fresh(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_builder, "key_of", lambda *args: None)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_graphs_are_those_of_running_every_call(name, capture, monkeypatch):
    part, program, args = _PROGRAMS[name]
    with_key, guards, result = _captured(capture, program, args)
    _without(monkeypatch)
    every, guards_of_every, _ = _captured(capture, program, args)
    assert with_key == every and guards == guards_of_every and with_key and guards
    if name not in ("views", "writes"):  # which change their argument
        for got, expected in zip(result, program(*args), strict=True):
            assert type(got) is not torch.Tensor or (got.dtype == expected.dtype and torch.equal(got, expected))
            assert type(got) is not torch.Tensor or got.requires_grad == expected.requires_grad


def _without_numbers(arg: Any, seen: dict[int, int]) -> Any:
    kind = type(arg)
    if kind in (list, tuple):
        return kind, *[_without_numbers(x, seen) for x in arg if isinstance(x, torch.Tensor)][:1]
    return _PART(arg, seen) if isinstance(arg, torch.Tensor) else None


_PART, _KEY = repeated._part, repeated.key_of


def _without_function(tx: Any, fn: Any, method: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
    key = _KEY(tx, fn, method, args, kwargs)
    return key and key[2:]


def _without_keywords(tx: Any, fn: Any, method: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _KEY(tx, fn, method, args, {})


_DAMAGES: dict[str, tuple[Any, str, Any]] = {
    "tensor": (repeated, "_of_tensor", lambda x: None),
    "literal": (repeated, "_part", _without_numbers),
    "state": (repeated, "_state", lambda tx: ()),
    "function": (graph_builder, "key_of", _without_function),
    "keywords": (graph_builder, "key_of", _without_keywords),
}


@pytest.mark.parametrize("name", [name for name, (part, *_) in _PROGRAMS.items() if part is not None])
def test_a_key_without_the_fact_gives_another_graph(name, capture, monkeypatch):
    part, program, args = _PROGRAMS[name]
    right, _, _ = _captured(capture, program, args)
    monkeypatch.setattr(*_DAMAGES[part])
    if name == "grad mode":  # a tensor that asks for a gradient has no key where gradients are on
        monkeypatch.setattr(repeated, "_of_tensor", lambda x: x.spec)
        program = lambda x: _under(torch.enable_grad(), torch.sin, x)
        with torch.no_grad():
            wrong = _gradients(capture, program)
            monkeypatch.undo()
            assert wrong != _gradients(capture, program) == [False, True, False]
        return
    if name == "gradient":
        assert _gradients(capture, program, _X, _LEAF) == [False, False]
        monkeypatch.undo()
        assert _gradients(capture, program, _X, _LEAF) == [False, True]
        return
    assert _captured(capture, program, args)[0] != right


def _gradients(capture: Any, program: Any, *args: torch.Tensor) -> list[bool]:
    """Which results capture takes to ask for a gradient."""
    compiled = capture(lambda *given: [x.requires_grad for x in program(*given)] + [given[0].sum()])
    return list(compiled(*(args or (_LEAF,))))[:-1]


_LINEAR = "target=torch._C._nn.linear]"


def test_layers_run_once_what_does_not_write(capture, monkeypatch):
    runs: list[Any] = []
    inner = AbstractMode.__torch_dispatch__
    monkeypatch.setattr(AbstractMode, "__torch_dispatch__",
                        lambda self, func, *rest: (runs.append(func), inner(self, func, *rest))[1])  # fmt: skip

    def asked(n: int) -> tuple[int, str]:
        runs.clear()
        blocks = nn.ModuleList([_Block() for _ in range(n)])
        x = torch.ones(2, 3, 8)
        with torch.no_grad():
            compiled = capture(lambda x: _blocks(x, blocks))
            torch.testing.assert_close(compiled(x), _blocks(x, blocks))
        return sum(func is torch.ops.aten.mm.default for func in runs), _text(compiled.graphs)

    few, many = asked(1), asked(4)
    assert few[0] == many[0] > 0 and many[1].count(_LINEAR) == 4 * few[1].count(_LINEAR) > 0
    _without(monkeypatch)
    assert asked(4) == (4 * few[0], many[1])


def test_what_draws_writes_or_has_a_history_is_not_kept(capture, monkeypatch):
    kept: list[Any] = []
    inner = graph_builder.made_alone
    monkeypatch.setattr(graph_builder, "made_alone", lambda *args: kept.append(inner(*args)) or kept[-1])
    mean, var = torch.zeros(3), torch.ones(3)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (torch.dropout(x, 0.5, True), torch.rand_like(x), torch.bernoulli(x), x.exponential_(), x.add_(1),
                torch.instance_norm(x[None], None, None, mean, var, True, 0.1, 1e-5, False), x.detach(), x.view(-1),
                y.sin(), torch.add(x, 1, out=torch.empty(3, 4)), x.unbind(), x.max(0))  # fmt: skip

    capture(program, strict=False)(torch.rand(3, 4), _LEAF)
    assert kept and not any(kept)


def test_facts_of_a_function_follow_its_name(monkeypatch):
    def size(x: Any) -> Any:
        return x

    for module in ("torch.somewhere", "somewhere"):
        function = types.FunctionType(size.__code__, {}, "size")
        function.__module__ = module
        assert facts_of(function).may_give_argument and not facts_of(function).reads_offset
        function.__name__ = "as_strided"
        assert facts_of(function).reads_offset and not facts_of(function).may_give_argument
        function.__module__ = "math"
        assert not facts_of(function).takes_plain_bools and not facts_of(function).only_computes
        assert (id(function) in called._FACTS) is (module == "torch.somewhere")


def test_methods_in_python_are_no_operators_in_c():
    assert facts_of("sin").is_in_c and facts_of(torch.sin).is_in_c and facts_of(torch.ops.aten.sin.default).is_in_c
    for fn in ("split", "norm", "no_such_method", torch.nn.functional.silu, torch.einsum, len, getattr, [].append):
        assert not facts_of(fn).is_in_c, fn
