"""``functools.singledispatch``, texts of dataclasses and of dicts that exist outside: in one graph, and as they change."""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections import OrderedDict

import pytest
import torch


@functools.singledispatch
def scaled(value):
    raise TypeError(type(value).__name__)


@scaled.register
def _(value: int):
    return torch.full((2,), float(value))


@scaled.register
def _(value: list):
    return torch.stack([scaled(each) for each in value]).sum(0)


@scaled.register(torch.Tensor)
def _(value):
    return value * 2


class Scaler:
    @functools.singledispatchmethod
    def scale(self, value):
        return torch.zeros(2)

    @scale.register
    def _(self, value: str):
        return torch.ones(2) * len(value)


class Abstract(abc.ABC):  # noqa: B024
    pass


class Mine:
    pass


def test_single_dispatch(capture):
    def fn(x, value):
        return scaled(x) + scaled([1, x, 2]) + scaled(True) + Scaler().scale("abc") + Scaler().scale(value)

    compiled = capture(fn)
    for value in (1, "ab", 1):
        assert torch.equal(compiled(torch.ones(2), value), fn(torch.ones(2), value))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 2


def test_a_function_that_is_registered_later(capture):
    @functools.singledispatch
    def chosen(value):
        return 1

    def fn(x, value):
        return x * chosen(value)

    compiled, mine = capture(fn), Mine()
    for change in (lambda: None, lambda: chosen.register(Abstract, lambda value: 2), lambda: Abstract.register(Mine),
                   lambda: chosen.register(Mine, lambda value: 3)):  # fmt: skip
        change()
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2), mine), fn(torch.ones(2), mine))
    assert compiled.report.breaks == []


def test_a_class_without_a_function(capture):
    compiled = capture(lambda x: scaled(Mine()) + x, strict=False)
    with pytest.raises(TypeError, match="Mine"):
        compiled(torch.ones(2))


@dataclasses.dataclass
class Config:
    width: int = 4
    name: str = "a"
    rates: dict = dataclasses.field(default_factory=lambda: {"x": [1, 2.5]})
    inner: object = None


def test_texts_of_dataclasses(capture):
    def fn(x, config):
        return x * config.width, repr(config), f"{config}", str(Config(3))

    compiled = capture(fn, strict=False)
    for config in (Config(), Config(5, "b"), Config(rates={}), Config()):
        assert repr(compiled(torch.ones(2), config)) == repr(fn(torch.ones(2), config))
    assert compiled.report.breaks == []
    nested, endless = Config(inner=Config(2)), Config()
    endless.inner = endless
    for config in (nested, endless, nested):
        assert repr(compiled(torch.ones(2), config)) == repr(fn(torch.ones(2), config))


def test_texts_of_dicts(capture):
    def fn(x, table):
        table["n"] = x.shape[0]
        text = f"{table} {table['k']!r} {[table]}"
        table["m"] = 1
        return x + len(text), text, "%s" % table, str({"a": table})

    for kind in (dict, OrderedDict):
        compiled = capture(fn)
        for value in ([1, (2, {"z": 3})], "text", [1, (2, {"z": 4})]):
            found, wanted = kind(k=value), kind(k=value)
            assert repr(compiled(torch.ones(2), found)) == repr(fn(torch.ones(2), wanted)) and found == wanted
        assert kind is OrderedDict or compiled.report.breaks == []


def test_threads(capture):
    def fn(x, config):
        return repr(config), scaled(x)

    compiled, found = capture(fn), {}

    def work(at):
        found[at] = [compiled(torch.ones(2), Config(at))[0] for _ in range(10)]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {at: [repr(Config(at))] * 10 for at in range(3)}
