"""Programs that set, register and delete what modules hold: results, and the module's tables afterwards, are eager's."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

#: Statements about an attribute ``a`` (a buffer at first), ``b`` (a plain tensor) or ``c`` (not there).
STATEMENTS = """
m.{n} = x * {k}
m.{n} = None
m.{n} = {k}
m.{n} = m.a
m.{n} = nn.Identity()
m.{n} = m.free
setattr(m, "{n}", x)
del m.{n}
m.register_buffer("{n}", x + {k})
m.register_buffer("{n}", None)
m.register_buffer("{n}", x, persistent=False)
m.register_parameter("{n}", None)
m.add_module("{n}", nn.Tanh())
m._buffers["{n}"] = x - {k}
m._buffers.pop("{n}", None)
m._modules.pop("{n}", None)
m.__dict__["{n}"] = x * {k}
m.__dict__.pop("{n}", None)
m.eval()
seen.append(m.{n})
seen.append(getattr(m, "{n}", None))
seen.append(hasattr(m, "{n}"))
seen.append("{n}" in m._buffers)
seen.append(sorted(m.__dict__.keys() & set("abc")))
seen.append([list(m._buffers), list(m._modules), list(m._parameters), sorted(m._non_persistent_buffers_set)])
seen.append([name for name, _ in m.named_buffers()])
seen.append([name for name, _ in m.named_modules()])
seen.append(list(m.state_dict()))
""".strip().splitlines()
ERRORS = ("AttributeError", "(KeyError, TypeError)", "Exception")


def text_of(seed):
    """A program: some statements, of which half stand in a ``try``."""
    draw = random.Random(seed)
    lines = ["def fn(m, x):", "    seen = []"]
    for _ in range(draw.randint(2, 7)):
        statement = draw.choice(STATEMENTS).format(n=draw.choice("abc"), k=draw.randint(1, 5))
        if draw.random() < 0.5:
            lines += ["    try:", f"        {statement}", f"    except {draw.choice(ERRORS)} as error:"]
            lines.append("        seen.append(str(error))")
        else:
            lines.append(f"    {statement}")
    return "\n".join([*lines, "    return x + 1, seen", ""])


class Holder(nn.Module):
    """A module of one buffer, one parameter and one plain tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.ones(2))
        self.free = nn.Parameter(torch.ones(2))
        self.b = torch.zeros(2)


def shown(value):
    """A result as what is compared."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.tolist()
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return type(value).__name__ if isinstance(value, nn.Module) else value


def outcome(fn, module, x):
    """What a call gives or raises, and what the module holds then."""
    try:
        result = shown(fn(module, x))
    except (AttributeError, KeyError, TypeError) as error:
        result = type(error).__name__, str(error)
    own = [(name, shown(value)) for name, value in module.__dict__.items() if name in "abc"]
    tables = [(name, shown(value)) for name, value in (*module._buffers.items(), *module._modules.items())]
    names = [list(module._buffers), list(module._modules), list(module._parameters)]
    return result, own, tables, names, module._non_persistent_buffers_set


@pytest.mark.parametrize("seed", range(120))
def test_tables_are_eagers(capture, seed):
    namespace = {"torch": torch, "nn": nn}
    exec(compile(text_of(seed), f"program {seed}", "exec"), namespace)
    compiled = capture(namespace["fn"], strict=False)
    mine, eager = Holder(), Holder()
    for k in (1, 2):
        x = torch.ones(2) * k
        assert outcome(compiled, mine, x) == outcome(namespace["fn"], eager, x), text_of(seed)


def test_what_is_registered_and_deleted_stays_in_the_graph(capture):
    def fn(m, x):
        m.register_buffer("last", x * 2)
        m.act = nn.Sequential(nn.Tanh(), nn.ReLU())
        y = m.act(m.last) + m.a
        m.a = y.detach()
        del m.last
        del m.act
        return y, list(m._buffers)

    compiled = capture(fn)
    mine, eager = Holder(), Holder()
    for _ in range(2):
        assert outcome(compiled, mine, torch.ones(2)) == outcome(fn, eager, torch.ones(2))
    assert not compiled.report.breaks and len(compiled.graphs) == 1
