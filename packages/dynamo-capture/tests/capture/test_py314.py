"""What Python 3.14 brought: template strings, annotations that are made when asked for, inlined ``all()`` and ``any()``.

The programs are text, as older Pythons cannot read them.
"""

from __future__ import annotations

import importlib.util
import sys
import threading

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="needs the language of Python 3.14")

PROGRAMS = '''
import functools
import inspect
import threading
from string.templatelib import Interpolation, Template, convert

import torch

import dynamo_capture

LOCK = threading.Lock()


def shown(template):
    out = []
    for part in template:
        match part:
            case str():
                out.append(part)
            case Interpolation(value, expression, conversion, spec):
                out.append(format(convert(value, conversion), spec) + "/" + expression)
    return "".join(out)


def formatted(x, n):
    y = x + 1
    return y * 2, shown(t"a{n!r:>{n}}b{n + 1}c")


def added(x, n):
    template = t"{n}, {n:.3f}" + t"!{x.shape[0]}"
    template += t"{n!s}"
    return x + n, template.strings, template.values, [i.conversion for i in template.interpolations]


def holds_a_tensor(x, n):
    template = t"{x.sin()}"
    return template.values[0] + n, isinstance(template, Template), bool(t""), template.strings


def returned(x, n):
    template = t"x = {x * n:{n}}"
    return x - 1, template.interpolations[0].value, template


def compared(x, n):
    a, b = t"{n}", t"{n}"
    return x + 1, a == b, a == a, {a: 1, b: 2}[a]


def no_text_beside(x, n):
    try:
        return t"{n}" + "text", x
    except TypeError as error:
        return x + n, str(error)


def missing_attribute(x, n):
    try:
        return t"{n}".none, x
    except AttributeError as error:
        return x + n, str(error)


def annotated(x, n):
    def inner(a: Missing, b: int = 2) -> torch.Tensor:
        return a * b

    return inner(x, n), inner.__name__


def asked_for(x, n):
    def inner(a: int, b: "text" = 2) -> n:
        return a * b

    names = sorted(inner.__annotations__)
    inner.__annotations__["b"] = float
    return inner(x, n), names, inner.__annotations__, inner.__annotations__ is inner.__annotations__


def annotate_called(x, n):
    def inner(a: n): ...

    def plain(a): ...

    return x + 1, inner.__annotate__(1), plain.__annotate__, plain.__annotations__


def wrapped(x, n):
    def inner(a: int) -> float:
        return a + n

    @functools.wraps(inner)
    def outer(*args):
        return inner(*args)

    return outer(x), outer.__name__, outer.__annotations__


def returns_a_function(x, n):
    def inner(a: n) -> float:
        return a

    return inner, x + 1


def docstrings(x, n):
    def without(a):
        return a + len("text")

    def having(a):
        "what it does"
        return a

    return without(x), without.__doc__, having.__doc__, (lambda: "text").__doc__


def signature(x, n):
    return x + len(inspect.signature(declared).parameters), str(inspect.signature(declared))


def declared(a: int, b: float = 2.0) -> None: ...


def all_and_any(x, n):
    y = x * 2 if all(i < 5 for i in range(n)) else x
    return y + any(i > 1 for i in [n, n + 1]), all([n]), any(i for i in ())


def tuple_of(x, n):
    return tuple(x[i] * n for i in range(2)), sum(a for a in tuple(i for i in range(n)))


def slices(x, n):
    return x[0:1], x[:, None], [1, 2, 3][1:], x[..., :n]


def finally_and_groups(x, n):
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(n), KeyError("k")])
    except* ValueError as group:
        log.append(len(group.exceptions))
    except* KeyError:
        log.append("key")
    finally:
        log.append("end")
    return x + n, log


def breaks_in_with(x, n):
    with torch.no_grad():
        y = x + n
        dynamo_capture.graph_break()
        z = y * 2
    return z, torch.is_grad_enabled()


def breaks_at_with(x, n):
    y = x + 1
    with LOCK:
        z = y * n
    return z + 1, LOCK.locked()


def raises_in_with(x, n):
    y = x + 1
    try:
        with LOCK:
            z = y * n
            raise ValueError(z.shape)
    except ValueError as error:
        return y, str(error), LOCK.locked()


def no_manager(x, n):
    found = []
    for manager in (1, Half(), Other()):
        try:
            with manager:
                pass
        except TypeError as error:
            found.append(str(error))
    return x + n, found


class Half:
    def __exit__(self, *args): ...


class Other:
    async def __aenter__(self): ...

    async def __aexit__(self, *args): ...


def unhashable(x, n):
    found = []
    for use in (
        lambda: {[]: n}, lambda: {(n, [])}, lambda: {1: 2}.get([]), lambda: {n}.intersection([[]]),
        lambda: hash([]), lambda: {n}.add({}), lambda: Half() in {Unhashed(): 1},
    ):
        try:
            found.append(use())
        except TypeError as error:
            found.append(str(error))
    return x + n, found


class Unhashed:
    def __hash__(self):
        raise TypeError("no hash of mine")


def unpacked(x, n):
    found = []
    for values in ((1, 2, 3), [1, 2, 3], {1: 1, 2: 2, 3: 3}, {1, 2, 3}, "abc", iter([1, 2, 3])):
        try:
            a, b = values
        except ValueError as error:
            found.append(str(error))
    return x + n, found


def generators(x, n):
    def counted(limit):
        try:
            for i in range(limit):
                received = yield x * i
        finally:
            log.append("closed")

    def all_of():
        yield from counted(n)
        return "done"

    log = []
    return [y + 1 for y in all_of()], log
'''
BREAKS = {"breaks_in_with", "breaks_at_with", "raises_in_with", "no_text_beside", "finally_and_groups"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "programs_of_314.py"
    path.write_text(PROGRAMS)
    spec = importlib.util.spec_from_file_location("programs_of_314", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def look(value):
    """As something that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return type(value), [look(item) for item in value]
    if callable(value) and not isinstance(value, type):
        return value.__name__, value.__annotations__, value.__annotate__ is None
    if type(value).__module__ == "string.templatelib":
        values = [(look(i.value), i.expression, i.conversion, i.format_spec) for i in value.interpolations]
        return value.strings, values
    return value


NAMES = [line[4 : line.index("(")] for line in PROGRAMS.splitlines() if line.startswith("def ") and "(x, n)" in line]


@pytest.mark.parametrize("name", NAMES)
def test_program(name, programs, capture):
    program = getattr(programs, name)
    compiled = capture(program)
    for n in (3, 3, 4):
        x = torch.arange(6.0).reshape(2, 3) / 4
        wanted = look(program(x, n))
        assert look(compiled(x, n)) == wanted
    assert not compiled.report.fallbacks
    assert bool(compiled.report.breaks) == (name in BREAKS), [each.reason for each in compiled.report.breaks]


def test_arguments_are_found_however_many(capture):
    """A frame's tagged references are untagged into a buffer, which many arguments are too many for."""

    def program(*args, **kwargs):
        return sum(args) + kwargs["k"]

    names = [f"a{i}" for i in range(60)]
    scope: dict[str, object] = {}
    exec(f"def many({', '.join(names)}):\n    return {' + '.join(names)}", scope)
    for fn, kwargs in ((program, {"k": 2}), (scope["many"], {})):
        compiled = capture(fn)
        for n in (2.0, 3.0):
            args = [torch.full((2,), n + i) for i in range(60)]
            assert torch.equal(compiled(*args, **kwargs), fn(*args, **kwargs))
        assert len(compiled.graphs) == 1


def test_deep_recursion_ends_as_in_eager(capture):
    """The C stack is measured from 3.14 on; a region within a recursion near its end raises what eager raises."""

    def down(x, n):
        return x + 1 if n == 0 else down(x, n - 1) * 1

    compiled = capture(down, strict=False)
    assert torch.equal(compiled(torch.ones(2), 50), torch.full((2,), 2.0))
    result = []

    def run():
        try:
            compiled(torch.ones(2), 10_000)
        except RecursionError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(result) == 1
