"""The frame hook: which frames it sees, what callbacks get, what runs."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import warnings
import weakref

import pytest


class Thing:
    pass


def helper():
    return "new"


def make(source, name="f", **scope):
    exec(source, scope)
    return scope[name]


# ---------------------------------------------------------------- asking


def test_filter_is_asked_once_per_code_object(tracer, native):
    def inner():
        return 1

    def outer():
        return inner() + inner()

    assert tracer.run(outer) == 2
    assert tracer.run(outer) == 2
    assert tracer.filtered == ["outer", "inner"]
    assert native.marked(inner.__code__) == native.SKIP


def test_nothing_is_asked_while_inactive(tracer, native):
    def fn():
        return 1

    assert fn() == 1
    assert native.activate(fn, None)() == 1
    assert tracer.filtered == []


def test_run_is_not_remembered(tracer, native):
    def fn():
        return 1

    tracer.actions[fn.__code__] = native.RUN
    tracer.run(fn)
    tracer.run(fn)
    assert tracer.filtered == ["fn", "fn"]


def test_looking_again_finds_what_was_added_meanwhile(tracer, native):
    def fn():
        return 1

    asked = []

    def translate(args, entries):
        asked.append(len(entries))
        return native.TRACE if len(asked) < 3 else native.Entry((lambda: 7).__code__, None)

    tracer.trace(fn, translate)
    assert tracer.run(fn) == 7
    assert asked == [0, 0, 0]
    assert tracer.run(fn) == 7
    assert asked == [0, 0, 0]


def test_skip_recursive_hides_callees(tracer, native):
    def inner():
        return native.get_active()

    def outer():
        return inner()

    tracer.actions[outer.__code__] = native.SKIP_RECURSIVE
    assert tracer.run(outer) is None
    assert tracer.run(outer) is None
    assert tracer.filtered == ["outer"]

    def middle():
        outer()
        return inner()

    assert tracer.run(middle) is tracer.context


def test_translate_gets_every_kind_of_parameter(tracer):
    def fn(a, /, b, *rest, c, d=4, **extra):
        return "original"

    def new(a, b, c, d, rest, extra):
        return a, b, c, d, rest, extra

    tracer.replace(fn, new)
    expected = (1, 2, 3, 4, (8, 9), {"z": 5})
    assert tracer.run(fn, 1, 2, 8, 9, c=3, z=5) == expected
    assert tracer.run(fn, 1, 2, 8, 9, c=3, z=5) == expected
    (code, func, args, globals_, builtins_, closure, entries), = tracer.translated
    assert (code, func, closure, entries) == (fn.__code__, fn, (), [])
    assert args == {"a": 1, "b": 2, "c": 3, "d": 4, "rest": (8, 9), "extra": {"z": 5}}
    assert list(args) == ["a", "b", "c", "d", "rest", "extra"]
    assert globals_ is globals()
    assert builtins_["len"] is len


def test_translate_may_refuse_once_or_for_good(tracer, native):
    def fn(x):
        return x

    answers = [native.RUN, native.SKIP]
    tracer.trace(fn, lambda args, entries: answers.pop(0))
    assert [tracer.run(fn, i) for i in range(4)] == [0, 1, 2, 3]
    assert len(tracer.translated) == 2


def test_refusal_keeps_existing_entries(tracer, native):
    def fn(x):
        return "plain"

    def new(x):
        return "entry"

    def plan(args, entries):
        if entries:
            return native.SKIP
        tree = native.GuardTree()
        tree.check_equals(tree.local(0), 1)
        return native.Entry(new.__code__, tree)

    tracer.trace(fn, plan)
    assert [tracer.run(fn, x) for x in (1, 2, 3, 1)] == ["entry", "plain", "plain", "entry"]
    assert len(tracer.translated) == 2


def test_translate_skip_recursive(tracer, native):
    def inner():
        return native.get_active()

    def fn():
        return inner()

    tracer.trace(fn, lambda args, entries: native.SKIP_RECURSIVE)
    assert tracer.run(fn) is None
    assert tracer.run(fn) is None
    assert len(tracer.translated) == 1


def test_callbacks_run_with_the_hook_off(native):
    seen = []

    def helper():
        return native.get_active()

    def filter(code, globals):
        seen.append(helper())
        return native.TRACE

    def translate(code, func, args, globals, builtins, closure, entries):
        seen.append(helper())
        return native.SKIP

    context = native.Context(filter, translate)

    def fn():
        return native.get_active()

    assert native.activate(fn, context)() is context
    assert seen == [None, None]
    native.reset_code(fn.__code__)


def test_bad_answers_are_type_errors(native):
    def fn():
        return 1

    with pytest.raises(TypeError, match="filter must return"):
        native.activate(fn, native.Context(lambda *a: "no", lambda *a: 0))()
    with pytest.raises(TypeError, match="translate must return"):
        native.activate(fn, native.Context(lambda *a: native.TRACE, lambda *a: None))()
    with pytest.raises(TypeError, match="callable"):
        native.Context(1, 2)
    with pytest.raises(ValueError, match="unknown action"):
        native.mark(fn.__code__, 9)
    native.reset_code(fn.__code__)


def test_wrong_signature_of_entry_code_is_refused(tracer, native):
    def fn(x):
        return x

    for code in (lambda x, y: x, lambda x, **y: x, lambda x, *, y=1: x, lambda x, y, *z: x):
        tracer.replace(fn, code)
        with pytest.raises(ValueError, match="exactly 1 arguments, by position"):
            tracer.run(fn, 1)


def test_entry_code_may_take_the_last_values_as_a_tuple(tracer):
    def fn(x):
        return x

    tracer.replace(fn, lambda x, *rest: (x, rest))
    assert tracer.run(fn, 1) == (1, ())


# ---------------------------------------------------------------- running


def test_closure_cells_reach_the_new_code(tracer):
    def outer(value):
        def fn(x):
            return value, x

        def new(x):
            return "new", value, x

        return fn, new

    fn1, new = outer(1)
    fn2, _ = outer(2)
    tracer.replace(fn1, new)
    assert tracer.run(fn1, 10) == ("new", 1, 10)
    assert tracer.run(fn2, 10) == ("new", 2, 10)
    assert len(tracer.translated) == 1
    assert tracer.translated[0][5] == fn1.__closure__


def test_parameters_that_are_cells(tracer):
    def fn(x, y):
        return lambda: (x, y)

    def new(x, y):
        return lambda: ("new", x, y)

    tracer.replace(fn, new)
    assert tracer.run(fn, 1, 2)() == ("new", 1, 2)
    assert tracer.run(fn, 3, 4)() == ("new", 3, 4)


def test_same_code_under_other_globals(tracer):
    source = "def f():\n    return G\ndef new():\n    return 'new', G\n"
    scope1, scope2 = {"G": 1}, {"G": 2}
    code = compile(source, "<f>", "exec")
    exec(code, scope1)
    exec(code, scope2)
    assert scope1["f"].__code__ is scope2["f"].__code__
    tracer.replace(scope1["f"], scope1["new"])
    assert tracer.run(scope1["f"]) == ("new", 1)
    assert tracer.run(scope2["f"]) == ("new", 2)
    assert tracer.run(scope1["f"]) == ("new", 1)


def test_hook_is_active_inside_the_new_code(tracer):
    def inner():
        return "inner"

    def fn():
        return "fn"

    tracer.replace(inner, make("def f():\n    return 'new inner'"))
    tracer.replace(fn, make("def f():\n    return 'new', inner()", inner=inner))
    # the entry runs with the original's globals, so `inner` must be found there
    globals()["inner"] = inner
    try:
        assert tracer.run(fn) == ("new", "new inner")
        assert tracer.run(fn) == ("new", "new inner")
    finally:
        del globals()["inner"]


def test_contexts_do_not_mix(native):
    def fn():
        return "plain"

    def context(text):
        new = make(f"def f():\n    return {text!r}")
        return native.Context(lambda *a: native.TRACE, lambda *a: native.Entry(new.__code__))

    one, two = context("one"), context("two")
    run1, run2 = native.activate(fn, one), native.activate(fn, two)
    assert [run1(), run2(), run1(), run2(), fn()] == ["one", "two", "one", "two", "plain"]
    assert len(native.entries(fn.__code__)) == 2
    assert len(native.entries(fn.__code__, one)) == 1
    del run1, one
    gc.collect()
    assert len(native.entries(fn.__code__)) == 1
    assert run2() == "two"
    native.reset_code(fn.__code__)


def test_entries_move_to_the_front(tracer, native):
    def fn(x):
        return x

    def plan(args, entries):
        tree = native.GuardTree()
        tree.check_equals(tree.local(0, "x"), args["x"])
        return native.Entry((lambda x: ("new", x)).__code__, tree, tag=args["x"])

    tracer.trace(fn, plan)
    for x in (1, 2, 3):
        tracer.run(fn, x)
    assert [e.tag for e in native.entries(fn.__code__)] == [3, 2, 1]
    assert tracer.run(fn, 1) == ("new", 1)
    assert [e.tag for e in native.entries(fn.__code__)] == [1, 3, 2]
    assert [e.hits for e in native.entries(fn.__code__)] == [2, 1, 1]
    assert len(tracer.translated) == 3


def test_collected_values_are_extra_arguments(tracer, native):
    def fn(thing):
        return None

    def new(thing, weight, size):
        return weight, size

    def plan(args, entries):
        tree = native.GuardTree()
        thing = tree.local(0)
        tree.collect([tree.dict_attr(thing, "weight"), tree.attr(thing, "size")])
        return native.Entry(new.__code__, tree)

    tracer.trace(fn, plan)
    thing = Thing()
    thing.weight, thing.size = "w", 3
    assert tracer.run(fn, thing) == ("w", 3)
    thing.weight = "v"
    assert tracer.run(fn, thing) == ("v", 3)
    assert len(tracer.translated) == 1


def test_many_collected_values(tracer, native):
    names = [f"p{i}" for i in range(200)]
    new = make(f"def f(d, {', '.join(names)}):\n    return [{', '.join(names)}]")

    def fn(d):
        return None

    def plan(args, entries):
        tree = native.GuardTree()
        d = tree.local(0)
        tree.collect([tree.item(d, name) for name in names])
        return native.Entry(new.__code__, tree)

    tracer.trace(fn, plan)
    values = {name: object() for name in names}
    counts = [sys.getrefcount(v) for v in values.values()]
    for _ in range(10):
        assert tracer.run(fn, values) == list(values.values())
    assert [sys.getrefcount(v) for v in values.values()] == counts


def test_reset_and_invalidate(tracer, native):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: "new")
    assert tracer.run(fn) == "new"
    (entry,) = native.entries(fn.__code__)
    entry.invalidate()
    assert not entry.valid
    assert native.entries(fn.__code__) == []
    assert tracer.run(fn) == "new"
    native.reset_code(fn.__code__)
    assert native.marked(fn.__code__) == native.RUN
    assert native.entries(fn.__code__) == []
    assert tracer.run(fn) == "new"
    native.reset_all()
    assert native.entries(fn.__code__) == []
    assert tracer.filtered == ["fn"] * 2


def test_mark(tracer, native):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: "new")
    native.mark(fn.__code__, native.TRACE)
    assert tracer.run(fn) == "new"
    assert tracer.filtered == []
    native.mark(fn.__code__, native.SKIP)
    assert tracer.run(fn) == "plain"
    native.mark(fn.__code__, native.RUN)
    assert tracer.run(fn) == "new"
    assert tracer.filtered == ["fn"]


def test_entry_resetting_its_own_code_while_it_runs(tracer, native):
    def fn(reset):
        return "plain"

    def new(reset):
        reset()
        return "new"

    tracer.replace(fn, new)
    assert tracer.run(fn, lambda: native.reset_code(fn.__code__)) == "new"
    assert native.entries(fn.__code__) == []


def test_guard_that_resets_the_cache(tracer, native):
    def fn(x):
        return "plain"

    def lambda_guard(x):
        native.reset_code(fn.__code__)
        return True

    def plan(args, entries):
        tree = native.GuardTree()
        tree.check_lambda(tree.local(0), lambda_guard)
        return native.Entry((lambda x: "new").__code__, tree)

    tracer.trace(fn, plan)
    assert [tracer.run(fn, 1) for _ in range(4)] == ["new"] * 4


# ---------------------------------------------------------------- frames left alone


def test_generators_run_plainly(tracer):
    def gen(n):
        for i in range(n):
            received = yield i
            if received:
                yield received

    def fn():
        g = gen(3)
        return next(g), g.send("hello"), list(g)

    tracer.trace(gen, lambda args, entries: pytest.fail("a generator was translated"))
    assert tracer.run(fn) == (0, "hello", [1, 2])
    assert tracer.filtered == ["fn"]


def test_generator_throw_and_close(tracer):
    log = []

    def gen():
        try:
            yield 1
        except ValueError:
            yield "caught"
        finally:
            log.append("closed")

    def fn():
        g = gen()
        next(g)
        value = g.throw(ValueError)
        g.close()
        return value

    assert tracer.run(fn) == "caught"
    assert log == ["closed"]


def test_functions_called_in_generators_are_seen(tracer):
    def inner(x):
        return x

    def gen():
        yield inner(1)

    def fn():
        return list(gen())

    tracer.replace(inner, lambda x: ("new", x))
    assert tracer.run(fn) == [("new", 1)]


def test_coroutines_run_plainly(tracer):
    def helper(x):
        return x

    async def step(x):
        await asyncio.sleep(0)
        return helper(x)

    async def agen():
        for i in range(2):
            yield await step(i)

    async def main():
        return [x async for x in agen()]

    tracer.replace(helper, lambda x: ("new", x))
    assert tracer.run(lambda: asyncio.run(main())) == [("new", 0), ("new", 1)]
    assert len(tracer.translated) == 1


def test_class_bodies_and_modules_run_plainly(tracer):
    def fn():
        class Local:
            value = 3

        scope = {}
        exec("y = 4", scope)
        return Local.value, scope["y"]

    assert tracer.run(fn) == (3, 4)
    assert tracer.filtered == ["fn"]


def test_a_trace_function_sees_the_program_itself(tracer):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: "new")
    lines = []

    def trace(frame, event, arg):
        if event == "line" and frame.f_code is fn.__code__:
            lines.append(frame.f_lineno)
        return trace

    old, run = sys.gettrace(), tracer.run
    run(fn)
    sys.settrace(trace)
    try:
        result = run(fn)
    finally:
        sys.settrace(old)
    assert result == "plain" and len(lines) == 1
    assert run(fn) == "new"


def test_a_profiler_sees_the_new_code(tracer):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: helper())
    calls = []
    run = tracer.run
    run(fn)
    old = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        results = [run(fn) for _ in range(2)]
    finally:
        sys.setprofile(old)
    assert results == ["new", "new"]
    assert calls.count("helper") == 2
    # Neither the profile function nor what it calls was shown to the filter.
    assert tracer.filtered == ["fn", "helper"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize(("tool", "expected"), [("PROFILER_ID", "new"), ("COVERAGE_ID", "new"), ("DEBUGGER_ID", "plain")])
def test_a_debugger_in_monitoring_sees_the_program_itself(tracer, tool, expected):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: "new")
    run = tracer.run
    run(fn)
    number = getattr(sys.monitoring, tool)
    starts = []
    sys.monitoring.use_tool_id(number, "test")
    try:
        sys.monitoring.register_callback(number, sys.monitoring.events.PY_START, lambda code, at: starts.append(code))
        sys.monitoring.set_events(number, sys.monitoring.events.PY_START)
        assert [run(fn) for _ in range(2)] == [expected] * 2
    finally:
        sys.monitoring.set_events(number, 0)
        sys.monitoring.free_tool_id(number)
    assert starts and run(fn) == "new"


def noticing(native, tracer, **settings):
    seen = []
    context = native.Context(tracer.context.filter, tracer.context.translate, notice=seen.append, **settings)
    return context, seen


def test_a_call_without_compiled_code_is_noticed(tracer, native):
    def fn(x):
        if x < 0:
            raise ValueError(x)
        return x

    context, seen = noticing(native, tracer)
    call = native.activate(fn, context)
    native.mark(fn.__code__, native.SKIP)
    assert call(1) == 1 and seen == [native.RAN]
    with pytest.raises(ValueError, match="-1"):
        call(-1)
    assert seen == [native.RAN, native.RAISED]
    old = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert call(2) == 2
    finally:
        sys.settrace(old)
    assert seen[2:] == [native.BEFORE]
    context.plain = True
    assert call(3) == 3 and seen[3:] == [native.BEFORE]


@pytest.mark.parametrize("compiled", [True, False])
def test_entries_that_lead_to_no_graph_are_noticed(tracer, native, compiled):
    def fn():
        return 1

    def inner():
        return outer_seen[:]

    context, seen = noticing(native, tracer)
    outer_seen = seen
    tracer.trace(fn, lambda args, entries: native.Entry((lambda: 2).__code__, None, compiled=compiled))
    call = native.activate(fn, context)
    assert [call(), call()] == [2, 2]
    assert seen == ([] if compiled else [native.RAN] * 2)
    # A nested call of a compiled callable answers for itself.
    native.mark(inner.__code__, native.SKIP)
    seen.clear()
    native.activate(lambda: call() and inner(), context)()
    assert seen == ([native.RAN] if compiled else [native.RAN] * 2)


def test_a_notice_refuses(tracer, native):
    ran = []

    def fn():
        ran.append(1)

    def refuse(when):
        raise LookupError(when)

    context = native.Context(tracer.context.filter, tracer.context.translate, notice=refuse, plain=True)
    native.mark(fn.__code__, native.SKIP)
    with pytest.raises(LookupError, match=str(native.BEFORE)):
        native.activate(fn, context)()
    assert not ran
    context.plain = False
    with pytest.raises(LookupError, match=str(native.RAN)):
        native.activate(fn, context)()
    assert ran
    with pytest.raises(TypeError, match="callable"):
        native.Context(tracer.context.filter, tracer.context.translate, notice=3)


# ---------------------------------------------------------------- exceptions


def frames_of(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_exception_from_the_new_code_shows_the_function_once(tracer):
    def fn(x):
        return x

    def new(x):
        raise ValueError(x)

    tracer.replace(fn, new)

    def caller():
        fn(1)

    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            tracer.run(caller)
        assert frames_of(caught.value)[-2:] == ["caller", "new"]
        assert "fn" not in frames_of(caught.value)


def test_exception_from_translate_propagates(tracer):
    def fn(x):
        return x

    def plan(args, entries):
        raise KeyError("why")

    tracer.trace(fn, plan)

    def caller():
        try:
            fn(1)
        except KeyError as error:
            return error.args
        return None

    for _ in range(3):
        assert tracer.run(caller) == ("why",)


def test_exception_from_filter_propagates(native):
    def filter(code, globals):
        raise KeyError(code.co_name)

    context = native.Context(filter, filter)
    for _ in range(3):
        with pytest.raises(KeyError, match="lambda"):
            native.activate(lambda: 1, context)()
    assert native.get_active() is None


def test_exception_context_is_kept(tracer):
    def fn():
        return None

    def new():
        raise KeyError("inner")

    tracer.replace(fn, new)

    def caller():
        try:
            raise ValueError("outer")
        except ValueError:
            fn()

    with pytest.raises(KeyError) as caught:
        tracer.run(caller)
    assert isinstance(caught.value.__context__, ValueError)


def test_new_code_handling_its_own_exceptions(tracer):
    def fn(x):
        return x

    def new(x):
        try:
            return 1 / x
        except ZeroDivisionError:
            return sys.exc_info()[0].__name__

    tracer.replace(fn, new)
    assert tracer.run(fn, 0) == "ZeroDivisionError"
    assert tracer.run(fn, 2) == 0.5


def test_stack_shows_the_function_once(tracer):
    def fn():
        return None

    def new():
        return [frame.name for frame in traceback.extract_stack()]

    tracer.replace(fn, new)

    def caller():
        return fn()

    for _ in range(2):
        names = tracer.run(caller)
        assert names[-2:] == ["caller", "new"]
        assert names.count("caller") == 1
        assert "fn" not in names


def test_warnings_name_the_caller(tracer):
    def fn():
        return None

    def new():
        warnings.warn("careful", stacklevel=2)

    tracer.replace(fn, new)

    def caller():
        fn()

    line = caller.__code__.co_firstlineno + 1
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracer.run(caller)
        assert [w.lineno for w in caught] == [line]


def test_traceback_frame_has_the_locals(tracer):
    def fn(x):
        return x

    def new(x):
        y = x + 1
        raise ValueError(y)

    tracer.replace(fn, new)
    with pytest.raises(ValueError) as caught:
        tracer.run(fn, 1)
    frame = caught.value.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_locals == {"x": 1, "y": 2}


# ---------------------------------------------------------------- recursion


def fact(n):
    return 1 if n == 0 else n * fact(n - 1)


def fact_new(n):
    return 1 if n == 0 else n * fact(n - 1)


def test_recursion_through_the_hook(tracer):
    tracer.replace(fact, fact_new)
    assert tracer.run(fact, 50) == fact(50)
    assert len(tracer.translated) == 1


def endless(n):
    return endless(n + 1)


def endless_new(n):
    return endless(n + 1)


@pytest.mark.parametrize("replaced", [False, True])
def test_endless_recursion_is_a_recursion_error(tracer, replaced):
    if replaced:
        tracer.replace(endless, endless_new)
    for _ in range(3):
        with pytest.raises(RecursionError):
            tracer.run(endless, 0)
    assert tracer.run(fact, 20) == fact(20)


def depth_reached(run):
    deepest = [0]

    def down(n):
        deepest[0] = n
        down(n + 1)

    try:
        run(down, 0)
    except RecursionError:
        pass
    return deepest[0]


def test_recursion_depth_equals_the_plain_one(tracer):
    plain = depth_reached(lambda fn, n: fn(n))
    hooked = depth_reached(tracer.run)
    assert abs(plain - hooked) <= 8


def test_recursion_limit_at_every_depth(tracer):
    """The error may strike in the hook, in the entry, or while the frame is cleared."""

    def leaf(x):
        return x

    tracer.replace(leaf, lambda x: ("new", x))
    tracer.run(leaf, 1)

    def at_depth(n):
        return leaf(n) if n == 0 else at_depth(n - 1)

    old = sys.getrecursionlimit()
    results = set()
    for depth in range(150):
        try:
            sys.setrecursionlimit(old)
            base = len(traceback.extract_stack())
            sys.setrecursionlimit(base + 80)
            results.add(tracer.run(at_depth, depth)[0])
        except RecursionError:
            results.add("error")
        finally:
            sys.setrecursionlimit(old)
    assert results == {"new", "error"}


# ---------------------------------------------------------------- threads


def test_other_threads_are_not_touched(tracer):
    def fn():
        return "plain"

    tracer.replace(fn, lambda: "new")
    results = {}
    started, finish = threading.Event(), threading.Event()

    def other():
        started.wait(5)
        results["other"] = fn()
        finish.set()

    def body():
        started.set()
        finish.wait(5)
        return fn()

    thread = threading.Thread(target=other)
    thread.start()
    results["mine"] = tracer.run(body)
    thread.join()
    assert results == {"other": "plain", "mine": "new"}


def test_many_threads_with_their_own_contexts(native):
    def fn(x):
        return "plain"

    def context(i):
        def translate(code, func, args, globals, builtins, closure, entries):
            tree = native.GuardTree()
            tree.check_equals(tree.local(0), args["x"])
            return native.Entry(make(f"def f(x):\n    return {i}, x").__code__, tree)

        return native.Context(lambda code, g: native.TRACE if code is fn.__code__ else native.SKIP, translate)

    failures = []

    def work(i):
        run = native.activate(fn, context(i))
        for k in range(300):
            if run(k % 5) != (i, k % 5):
                failures.append((i, k))
            if k % 50 == 0:
                native.reset_code(fn.__code__)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert failures == []
    assert fn(1) == "plain"
    native.reset_code(fn.__code__)


# ---------------------------------------------------------------- lifetimes


def test_arguments_and_results_are_released(tracer, native):
    def fn(x, *rest):
        return x

    def new(x, rest):
        return [x, rest]

    tracer.replace(fn, new)
    tracer.run(fn, None)
    tracer.translated.clear()
    thing = Thing()
    alive = weakref.ref(thing)
    assert tracer.run(fn, thing, thing)[0] is thing
    del thing
    assert alive() is None


def test_exceptions_leak_nothing(tracer):
    def fn(x):
        return x

    def new(x):
        raise ValueError

    tracer.replace(fn, new)
    thing = Thing()
    for _ in range(2):
        try:
            tracer.run(fn, thing)
        except ValueError:
            pass
    tracer.translated.clear()
    gc.collect()
    count = sys.getrefcount(thing)
    for _ in range(50):
        try:
            tracer.run(fn, thing)
        except ValueError:
            pass
    gc.collect()
    assert sys.getrefcount(thing) == count


@pytest.mark.parametrize("outcome", ["hit", "error", "plain", "refuse"])
def test_reference_counts_stay(tracer, native, outcome):
    def fn(x):
        return x

    def new(x):
        if outcome == "error":
            raise ValueError
        return x

    def plan(args, entries):
        if outcome == "refuse":
            raise ValueError
        return native.RUN if outcome == "plain" else native.Entry(new.__code__)

    tracer.trace(fn, plan)
    thing = Thing()

    def once():
        try:
            tracer.run(fn, thing)
        except ValueError:
            pass
        tracer.translated.clear()

    once()
    gc.collect()
    watched = [thing, fn, fn.__code__, new.__code__, None, tracer.context, fn.__globals__]
    before = [sys.getrefcount(x) for x in watched]
    for _ in range(20):
        once()
    gc.collect()
    after = [sys.getrefcount(x) for x in watched]
    changes = [b - a for a, b in zip(before, after) if abs(b - a) > 5]
    assert changes == []


def test_code_object_death_frees_entries(tracer, native):
    fn = make("def f(x):\n    return x")
    entry_code = make("def f(x):\n    return 'new'").__code__
    tag = Thing()
    alive = weakref.ref(tag)

    def plan(args, entries, tag=tag):
        return native.Entry(entry_code, tag=tag)

    tracer.trace(fn, plan)
    assert tracer.run(fn, 1) == "new"
    tracer.plans.clear()
    tracer.translated.clear()
    del plan, tag
    assert alive() is not None
    del fn
    gc.collect()
    assert alive() is None


def test_context_death_frees_entries(native):
    def fn():
        return "plain"

    tag = Thing()
    alive = weakref.ref(tag)
    holder = [tag]
    new = (lambda: "new").__code__
    context = native.Context(lambda *a: native.TRACE, lambda *a: native.Entry(new, tag=holder[0]))
    assert native.activate(fn, context)() == "new"
    holder.clear()
    del tag
    assert alive() is not None
    del context
    gc.collect()
    assert alive() is None
    assert native.entries(fn.__code__) == []
    native.reset_code(fn.__code__)


def test_contexts_in_cycles_are_collected(native):
    class Compiler:
        def __init__(self):
            self.context = native.Context(self.filter, self.translate)

        def filter(self, code, globals):
            return native.SKIP

        def translate(self, *args):
            return native.SKIP

    compiler = Compiler()
    alive = weakref.ref(compiler)
    native.activate(lambda: 1, compiler.context)()
    del compiler
    gc.collect()
    assert alive() is None


def test_weakly_guarded_object_death_removes_the_entry(tracer, native):
    def fn(x):
        return "plain"

    def plan(args, entries):
        tree = native.GuardTree()
        tree.check_id(tree.local(0), args["x"])
        return native.Entry((lambda x: "new").__code__, tree)

    tracer.trace(fn, plan)
    things = [Thing() for _ in range(3)]
    assert [tracer.run(fn, t) for t in things] == ["new"] * 3
    tracer.translated.clear()
    assert len(native.entries(fn.__code__)) == 3
    alive = weakref.ref(things[1])
    del things[1]
    gc.collect()
    assert alive() is None
    assert len(native.entries(fn.__code__)) == 2


def test_closure_of_the_last_call_is_not_kept(tracer):
    def outer(value):
        def fn():
            return value

        def new():
            return "new", value

        return fn, new

    thing = Thing()
    fn, new = outer(thing)
    tracer.replace(fn, new)
    assert tracer.run(fn) == ("new", thing)
    tracer.translated.clear()
    alive = weakref.ref(thing)
    code = fn.__code__
    tracer.plans.clear()
    del fn, new, thing, outer
    gc.collect()
    assert alive() is None
    assert code.co_name == "fn"


# ---------------------------------------------------------------- activate


def test_set_active_nests(native):
    a = native.Context(lambda *x: 1, lambda *x: 1)
    b = native.Context(lambda *x: 1, lambda *x: 1)
    assert native.set_active(a) is None
    assert native.set_active(b) is a
    assert native.get_active() is b
    assert native.set_active(None) is b
    assert native.set_active(None) is None
    with pytest.raises(TypeError):
        native.set_active(1)


def test_activate_restores_after_an_exception(tracer, native):
    def fn():
        raise ValueError

    with pytest.raises(ValueError):
        tracer.run(fn)
    assert native.get_active() is None


def test_activate_binds_like_a_function(tracer, native):
    class Model:
        def forward(self, x):
            return self, x

    Model.forward = native.activate(Model.forward, tracer.context)
    model = Model()
    assert model.forward(3) == (model, 3)
    assert tracer.filtered == ["forward"]
    assert Model.forward.fn.__name__ == "forward"
    assert Model.forward.context is tracer.context
    Model.forward.note = 1
    assert Model.forward.__dict__ == {"note": 1}


def test_activate_checks_its_arguments(native):
    with pytest.raises(TypeError, match="not callable"):
        native.activate(1, None)
    with pytest.raises(TypeError, match="must be a Context"):
        native.activate(len, 1)


def test_evaluation_function_is_only_there_while_active(tracer, native):
    """Without any active context a Python call must not even reach the hook."""
    native.reset_stats()

    def fn():
        return 1

    fn()
    assert native.stats()["frames"] == 0
    tracer.run(fn)
    assert native.stats()["frames"] == 1
