# ruff: noqa: RET504
"""Functions cut at every instruction and continued must do what they do uncut."""

from __future__ import annotations

import dis
import importlib.util
import sys
import traceback
import types
from pathlib import Path

import pytest


def load_resume():
    """The module without the package, whose import needs torch."""
    for part in ("codemap", "resume"):
        name = f"dynamo_capture.{part}"
        if name not in sys.modules:
            path = Path(__file__).parents[2] / "src" / "dynamo_capture" / f"{part}.py"
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return sys.modules["dynamo_capture.resume"]


resume = load_resume()


def cut(code, index, stack=(), unbound=()):
    """The resume code with everything bound but `unbound`."""
    locals_ = tuple(name for name in resume.parameters(code) if name not in unbound)
    return resume.resume_code(code, resume.ResumePoint(index, tuple(stack), locals_), 1)


class Cut(Exception):
    pass


def instructions(code):
    return [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]


# ---------------------------------------------------------------- a tiny machine that knows the state everywhere
#
# The stack is not visible from Python, so the state at a cut is taken where it is known: statement starts outside
# of any block have an empty stack, and f_locals has the variables. `sys.settrace` stops there.


def states(fn, args):
    """(instruction index, local values) at every line event of `fn(*args)`, and the result."""
    code = fn.__code__
    index_of = {inst.offset: i for i, inst in enumerate(instructions(code))}
    found = []

    def tracer(frame, event, arg):
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lasti in index_of:
            values = {name: copy_of(value) for name, value in frame.f_locals.items()}
            found.append((index_of[frame.f_lasti], values, stack_depth_is_zero(code, frame.f_lasti)))
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        result = outcome(fn, args)
    finally:
        sys.settrace(old)
    return found, result


def copy_of(value):
    """Later statements append to the very list that f_locals shows."""
    return list(value) if isinstance(value, list) else value


def outcome(fn, args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def stack_depth_is_zero(code, offset):
    """By abstract interpretation of stack effects from the start (straight jumps only need one visit each)."""
    insts = list(dis.get_instructions(code))
    by_offset = {inst.offset: i for i, inst in enumerate(insts)}
    depths = {0: 0}
    work = [0]
    while work:
        i = work.pop()
        inst, depth = insts[i], depths[i]
        nexts = []
        jump = inst.opcode in dis.hasjrel
        if inst.opname not in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD",
                               "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
            nexts.append((i + 1, depth + dis.stack_effect(inst.opcode, inst.arg, jump=False if jump else None)))
        if jump:
            nexts.append((by_offset[inst.argval], depth + dis.stack_effect(inst.opcode, inst.arg, jump=True)))
        for target, d in nexts:
            if target < len(insts) and target not in depths:
                depths[target] = d
                work.append(target)
    return depths.get(by_offset[offset]) == 0


def continued(fn, index, values):
    code = fn.__code__
    slots = resume.parameters(code)
    cells = resume.cell_slots(code)
    unbound = [name for name in slots if name not in values and name not in cells]
    new = types.FunctionType(cut(code, index, [], unbound), fn.__globals__)
    closure = dict(zip(code.co_freevars, fn.__closure__ or ()))
    arguments = []
    for name in slots:
        if name in closure:
            arguments.append(closure[name])
        elif name in cells:
            arguments.append(types.CellType(values[name]) if name in values else types.CellType())
        else:
            arguments.append(values.get(name))
    return new, arguments


def straight(a, b):
    c = a + b
    d = c * 2
    del c
    e = [d, a]
    return e, d


def branches(a, b):
    if a > b:
        c = "more"
    elif a == b:
        c = "equal"
    else:
        c = "less"
    d = c + "!"
    return d


def early(a, b):
    if a > 1:
        x = a
    c = b
    return c + x


def loops(a, b):
    total = 0
    i = 0
    while i < a:
        i += 1
        if i == b:
            continue
        total += i
    else:
        total *= 10
    return total, i


def handlers(a, b):
    result = []
    try:
        result.append(a)
        result.append(a // b)
    except ZeroDivisionError as error:
        result.append(str(error))
    finally:
        result.append("finally")
    result.append("end")
    return result


def cells(a, b):
    c = a
    f = lambda: (a, c)
    c = b
    g = lambda: c
    a = 5
    return f(), g()


def rest(a, b, *more, key=3, **extra):
    c = (a, b, more, key)
    d = sorted(extra)
    return c, d


def many(a, b):
    v = [a] * 3
    x0 = x1 = x2 = x3 = a
    w = [x0 + i for i in range(3)]
    u = {k: v for k, v in zip("ab", w)}
    z = f"{a!r:>5}"
    return v, x1, x2, x3, w, u, z, b


def raises(a, b):
    c = a
    d = c / b
    return d


PLAIN = [straight, branches, early, loops, handlers, cells, rest, many, raises]


@pytest.mark.parametrize("fn", PLAIN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("args", [(3, 0), (1, 1), (2, 5)])
def test_cut_at_every_statement(fn, args):
    found, expected = states(fn, args)
    checked = 0
    for index, values, empty in found:
        if not empty:
            continue
        new, arguments = continued(fn, index, values)
        if fn is cells and any(callable(v) for v in values.values()):
            continue  # functions made before the cut share the original's cells
        assert outcome(new, arguments) == expected, (index, values)
        checked += 1
    assert checked >= 2


def test_closures():
    def outer(k):
        def fn(a, b):
            nonlocal k
            c = a + k
            k = c
            return c, b

        return fn

    fn = outer(10)
    names = [i.opname for i in instructions(fn.__code__)]
    index = names.index("STORE_FAST") + 1
    new, arguments = continued(fn, index, {"a": 1, "b": 2, "c": 77})
    assert new(*arguments) == (77, 2)
    assert fn.__closure__[0].cell_contents == 77
    assert new.__code__.co_freevars == ()


def test_values_on_the_stack():
    def fn(a, b):
        return [a, b(a), a]

    insts = instructions(fn.__code__)
    call = next(i for i, inst in enumerate(insts) if inst.opname == "CALL")
    code = cut(fn.__code__, call + 1, [True, True], ["b"])
    new = types.FunctionType(code, {})
    assert new(1, None, "first", "second") == ["first", "second", 1]


def test_nulls_on_the_stack():
    def fn(a, b):
        return a(b)

    insts = instructions(fn.__code__)
    call = next(i for i, inst in enumerate(insts) if inst.opname in ("PRECALL", "CALL"))
    stack = [True, False, True] if sys.version_info >= (3, 13) else [False, True, True]
    code = cut(fn.__code__, call, stack)
    assert code.co_argcount == 4
    assert types.FunctionType(code, {})(None, None, len, "abc") == 3


def test_inside_a_for_loop():
    def fn(xs):
        total = 0
        for x in xs:
            total += x
        return total

    insts = instructions(fn.__code__)
    index = next(i for i, inst in enumerate(insts) if inst.opname == "FOR_ITER")
    new = types.FunctionType(cut(fn.__code__, index, [True], ["xs", "x"]), {})
    assert new(None, 100, None, iter([1, 2, 3])) == 106


def test_inside_a_with_block():
    class Manager:
        def __init__(self):
            self.log = []

        def __enter__(self):
            return self

        def __exit__(self, kind, value, tb):
            self.log.append(kind)
            return kind is ZeroDivisionError

    def fn(m, a, b):
        with m:
            c = a // b
            return c
        return "swallowed"

    insts = instructions(fn.__code__)
    loads = (("LOAD_FAST", "a"), ("LOAD_FAST_LOAD_FAST", ("a", "b")), ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ("a", "b")))
    index = next(i for i, inst in enumerate(insts) if (inst.opname, inst.argval) in loads)
    kept = [True, False] if sys.version_info >= (3, 14) else [True]  # `__exit__`, with the NULL of a call
    code = cut(fn.__code__, index, kept, ["c"])
    new = types.FunctionType(code, {})
    manager = Manager()
    assert new(manager, 7, 2, None, manager.__exit__) == 3
    assert new(manager, 7, 0, None, manager.__exit__) == "swallowed"
    with pytest.raises(TypeError):
        new(manager, 7, "x", None, manager.__exit__)
    assert manager.log == [None, ZeroDivisionError, TypeError]


def test_unbound_variables_stay_unbound():
    def fn(a):
        if a:
            x = 1
        y = 2
        return x + y

    insts = instructions(fn.__code__)
    index = next(i for i, inst in enumerate(insts) if inst.opname == "STORE_FAST" and inst.argval == "y") + 1
    new = types.FunctionType(cut(fn.__code__, index, [], ["x"]), {})
    with pytest.raises(UnboundLocalError, match="'x'"):
        new(0, None, 2)


def test_lines_of_exceptions():
    def fn(a, b):
        c = a
        d = (
            c
            /
            b
        )
        return d

    first = fn.__code__.co_firstlineno
    insts = instructions(fn.__code__)
    index = next(i for i, inst in enumerate(insts) if inst.opname in ("STORE_FAST", "STORE_FAST_LOAD_FAST"))
    if insts[index].opname == "STORE_FAST_LOAD_FAST":
        new = types.FunctionType(cut(fn.__code__, index, [True], ["c", "d"]), {})
        arguments = (1, 0, None, None, 1)
    else:
        new = types.FunctionType(cut(fn.__code__, index + 1, [], ["d"]), {})
        arguments = (1, 0, 1, None)
    with pytest.raises(ZeroDivisionError) as resumed:
        new(*arguments)
    with pytest.raises(ZeroDivisionError) as plain:
        fn(1, 0)

    def places(caught):
        return [(f.lineno, f.end_lineno, f.colno) for f in traceback.extract_tb(caught.value.__traceback__)[1:]]

    assert places(resumed) == places(plain)
    assert places(plain)[0][0] in range(first + 2, first + 6)


def test_super_without_arguments():
    class Base:
        def fn(self, x):
            return "base", x

    class Child(Base):
        def fn(self, x):
            y = x + 1
            proxy = super()
            return proxy.fn(y), super().fn(y)

        def celled(self, x):
            y = x + 1
            f = lambda: self
            return super().fn(y), f() is self

    child = Child()
    for fn in (Child.fn, Child.celled):
        insts = instructions(fn.__code__)
        index = next(i for i, inst in enumerate(insts) if inst.opname == "STORE_FAST" and inst.argval == "y")
        slots = resume.parameters(fn.__code__)
        new = types.FunctionType(
            cut(fn.__code__, index, [True], [n for n in ("proxy", "f") if n in slots]), globals()
        )
        values = {"self": child, "x": 1, "__class__": types.CellType(Child)}
        if "self" in fn.__code__.co_cellvars:
            values["self"] = types.CellType(child)
        assert new(*[values.get(name) for name in slots], 2) == fn(child, 1)


def test_far_jumps_and_many_slots():
    """More than 255 slots and a body longer than 255 units: EXTENDED_ARG in prologue and body."""
    lines = [f"    v{i} = a + {i}" for i in range(300)]
    scope = {}
    exec("def fn(a):\n" + "\n".join(lines) + "\n    return " + " + ".join(f"v{i}" for i in range(300)), scope)
    fn = scope["fn"]
    insts = instructions(fn.__code__)
    index = next(i for i, inst in enumerate(insts) if inst.opname == "STORE_FAST" and inst.argval == "v299")
    code = cut(fn.__code__, index, [True])
    new = types.FunctionType(code, {})
    assert new(1, *range(1, 300), None, 300) == fn(1)


def test_a_resume_code_does_not_keep_the_original():
    names = {}
    exec("def f(x):\n    y = x + 1\n    return y", names)
    made = cut(names["f"].__code__, 3)
    assert cut(names["f"].__code__, 3) is made
    info = resume.resume_info(made)
    assert info.original is names["f"].__code__
    names.clear()
    with pytest.raises(ReferenceError, match="no longer exists"):
        info.original  # noqa: B018


def test_resuming_a_resume_code_resumes_the_original():
    first = cut(straight.__code__, 3, [True, True])
    info = resume.resume_info(first)
    assert (info.original, info.index) == (straight.__code__, 3)
    body = instructions(straight.__code__)
    shifted = instructions(first)[info.shift :]
    assert [(i.opname, i.arg) for i in shifted] == [(i.opname, i.arg) for i in body]
    locals_ = tuple(resume.parameters(straight.__code__))
    second = resume.resume_code(first, resume.ResumePoint(5 + info.shift, (), locals_), 1)
    assert second is cut(straight.__code__, 5, [])
    assert second is not first
    with pytest.raises(ValueError, match="prologue"):
        cut(first, 0, [])
    assert resume.resume_info(straight.__code__) is None


def test_bad_requests():
    def gen():
        yield 1

    with pytest.raises(ValueError, match="generator"):
        cut(gen.__code__, 1, [])
    with pytest.raises(ValueError, match="no instruction 999"):
        cut(straight.__code__, 999, [])
    with pytest.raises(ValueError, match="no variables"):
        resume.resume_code(straight.__code__, resume.ResumePoint(1, (), ("nope",)), 1)


def test_parameters_of_the_resumed_are_released():
    class Thing:
        pass

    def fn(a, b):
        return [a, b(a), a]

    insts = instructions(fn.__code__)
    call = next(i for i, inst in enumerate(insts) if inst.opname == "CALL")
    new = types.FunctionType(cut(fn.__code__, call + 1, [True, True], ["b"]), {})
    thing = Thing()
    before = sys.getrefcount(thing)
    result = new(1, None, thing, thing)
    assert sys.getrefcount(thing) == before + 2
    del result
    assert sys.getrefcount(thing) == before
