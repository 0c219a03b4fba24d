"""Exceptions on their way through context managers and generators: a table of (error, manager, what is around it).

Every cell runs eagerly and captured; what its handler sees (type, text, cause, context, suppressed or not) is the same.
The generators' owner turns a ``StopIteration`` that leaves a generator into a ``RuntimeError`` caused by it (PEP 479),
and ``contextlib`` looks at that cause.
"""

from __future__ import annotations

import itertools

import pytest
import torch


class Stop(StopIteration):
    pass


ERRORS = {
    "StopIteration": "next(iter([]))",
    "StopIteration with a value": "raise StopIteration(3)",
    "a subclass of StopIteration": "raise Stop('own')",
    "ValueError": "raise ValueError('v')",
    "RuntimeError from StopIteration": "raise RuntimeError('r') from StopIteration('s')",
    "RuntimeError": "raise RuntimeError('generator raised StopIteration')",
    "KeyError of a dictionary": "{}['k']",
    "StopIteration of a generator": "next(empty())",
    "a generator that raises it": "list(raises_stop())",
    "a generator that raises a subclass": "list(raises_stop(Stop))",
    "a generator that is thrown one": "thrown(StopIteration('t'))",
    "a generator that is thrown a subclass": "thrown(Stop('t'))",
    "a generator that delegates": "list(delegates())",
}
MANAGERS = {
    "passes": "yield 1",
    "has a finally": "try:\n        yield 1\n    finally:\n        log.append('finally')",
    "swallows": "try:\n        yield 1\n    except Exception as e:\n        log.append(see(e))",
    "raises it again": "try:\n        yield 1\n    except Exception as e:\n        log.append(see(e))\n        raise",
    "raises another": "try:\n        yield 1\n    except Exception as e:\n        raise IndexError('i')",
    "raises another from it": "try:\n        yield 1\n    except Exception as e:\n        raise IndexError('i') from e",
    "raises a stop": "try:\n        yield 1\n    except Exception as e:\n        raise StopIteration('own')",
    "yields again": "try:\n        yield 1\n    except Exception as e:\n        yield 2",
}
AROUND = {
    "alone": "with managed(log): {error}",
    "with another": "with managed(log), Plain(): {error}",
    "inside another": "with Plain(), managed(log): {error}",
    "twice": "with managed(log), managed(log): {error}",
    "in a stack": "with contextlib.ExitStack() as stack:\n            stack.enter_context(managed(log)); {error}",
    "suppressed": "with contextlib.suppress(StopIteration), managed(log): {error}",
    "in a callee": "entered(log)",
}
HELPERS = """
import contextlib
class Plain:
    def __enter__(self): return self
    def __exit__(self, *what): return False

def empty():
    return
    yield

def raises_stop(cls=StopIteration):
    yield 1
    raise cls('inside')

def delegates():
    yield from raises_stop()

def waits():
    yield 1

def thrown(error):
    g = waits()
    next(g)
    g.throw(error)

def see(e):
    if e is None: return None
    cause = e.__cause__
    return type(e).__name__, str(e), e.args, type(cause).__name__, e.__suppress_context__, \\
        cause is not None and str(cause)
"""
TEMPLATE = """
@contextlib.contextmanager
def managed(log):
    {manager}

def entered(log):
    with managed(log): {error}

def f(x, log):
    y = x + 1
    try:
        {around}
    except Exception as e:
        log.append(see(e))
        log.append('handled')
    return y * 2
"""


def written(error: str, manager: str, around: str):
    """The cell's function, made from source, with what it refers to."""
    names = {"Stop": Stop, "torch": torch}
    text = HELPERS + TEMPLATE.format(
        error=ERRORS[error], manager=MANAGERS[manager], around=AROUND[around].format(error=ERRORS[error])
    )
    exec(compile(text, f"<{error}, {manager}, {around}>", "exec"), names)
    return names["f"]


def outcome(fn):
    """What a call returns, writes down and raises."""
    log: list = []
    try:
        value = fn(torch.arange(3.0), log).tolist()
    except Exception as e:
        value = repr(e)
    return value, log


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("error", ERRORS)
def test_what_the_handler_sees(error, manager, capture):
    ran = 0
    for around in AROUND:
        fn = written(error, manager, around)
        expected = outcome(fn)
        captured = capture(fn, strict=False)
        for _ in range(2):
            assert outcome(captured) == expected, around
        assert not [f.reason for f in captured.report.fallbacks if "internal error" in f.reason], around
        ran += bool(captured.graphs)
    assert ran >= len(AROUND) - 2


def test_the_cells_differ():
    """The table tells managers and errors apart."""
    seen = {
        (error, manager): str(outcome(written(error, manager, "alone")))
        for error, manager in itertools.product(ERRORS, MANAGERS)
    }
    assert len(set(seen.values())) >= 40
