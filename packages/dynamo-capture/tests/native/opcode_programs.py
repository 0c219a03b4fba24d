"""Runs the interpreter on pure-Python programs with stand-ins for torch and prims; a script for test_opcodes.py.

`python opcode_programs.py` prints one JSON object: program -> "ok" or what went wrong. torch need not be installed:
an import hook answers every import of torch and prims with modules whose attributes are inert classes. Each program
runs plainly and through the whole of capture (hook, interpreter, guards, code generation, resume functions), twice.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import sysconfig
import threading
import traceback
import types
from pathlib import Path
from time import sleep

# ---------------------------------------------------------------- stand-ins


class InertMeta(type):
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found = InertMeta(name, (Inert,), {"__module__": cls.__module__})
        setattr(cls, name, found)
        return found

    def __iter__(cls):
        return iter(())


class Inert(metaclass=InertMeta):
    """Does nothing, whatever is asked of it."""

    def __init__(self, *args, **kwargs):
        self.__dict__.update(kwargs)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Inert()

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else Inert()

    def __iter__(self):
        return iter(())

    def __reversed__(self):
        return iter(())

    def __len__(self):
        return 0

    def __bool__(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def __class_getitem__(cls, item):
        return cls

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        return NotImplemented

    def __lt__(self, other):
        return False

    __gt__ = __le__ = __ge__ = __lt__


class Module:
    """nn.Module, as far as its definition is looked at."""

    def __getattr__(self, name):
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def __call__(self):
        raise NotImplementedError

    _call_impl = __call__


class DistributedDataParallel(Module):
    """Whose ``forward`` is known by its code."""

    def forward(self):
        raise NotImplementedError


class Function:
    """torch.autograd.Function."""

    @classmethod
    def apply(cls):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SourceLoc:
    filename: str
    line: int
    function: str = ""


def record(cls=None, **settings):
    return dataclasses.dataclass(**{"frozen": True, **settings})(cls) if cls else functools.partial(record, **settings)


class Options:
    """What these programs depend on; every other option is off."""

    fullgraph, strict, dynamic, recompile_limit, verify = False, True, False, 8, "off"

    def __getattr__(self, name):
        return None


class Report:
    """Keeps breaks and fallbacks; whatever else it is told, it forgets."""

    def __init__(self):
        self.sites, self.fallbacks = {}, []

    @property
    def breaks(self):
        return list(self.sites.values())

    def graph_break(self, reason, where, hint=None):
        self.sites[reason, where] = reason

    def fallback(self, stage, reason, where):
        self.fallbacks.append(reason)

    def phase(self, name):
        return contextlib.nullcontext()

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


SPECIAL = {
    "torch.__file__": "/nowhere/torch/__init__.py",
    "prims.__file__": "/nowhere/prims/__init__.py",
    "torch.__version__": "2.13.0",
    "torch.nn.Module": Module,
    "torch.nn.modules.module.Module": Module,
    "torch.nn.parallel.DistributedDataParallel": DistributedDataParallel,
    "torch.autograd.Function": Function,
    "torch._C._len_torch_function_stack": lambda: 0,
    "torch.is_inference_mode_enabled": lambda: False,
    "prims.transforms.TRANSFORMS": frozenset(),
    "torch._C._functorch.peek_interpreter_stack": lambda: None,
    "torch.autograd.forward_ad._current_level": -1,
    "torch.is_grad_enabled": lambda: True,
    "prims.ir.SourceLoc": SourceLoc,
    "prims.options.Options": Options,
    "prims.records.record": record,
    "prims.report.Report": Report,
    "prims.forking.compiling": threading.RLock,
    "prims.forking.lock": threading.Lock,
    "prims.forking.why_cut_off": lambda: None,
    "prims.eager.leave_to_eager": lambda report, options, stage, reason, where, **_: report.fallback(stage, reason, where),
}
for _name in ("QuintetError", "Unsupported", "UserError", "DataDependentError", "VerifierError", "InternalError"):
    SPECIAL[f"prims.errors.{_name}"] = type(_name, (Exception,), {})


SUBMODULES = {
    "torch.nn", "torch.nn.functional", "torch.nn.modules", "torch.nn.modules.module", "torch.nn.parallel",
    "torch.fx", "torch.overrides", "torch._C", "torch._ops", "torch.utils", "torch.utils._pytree", "torch.autograd",
    "torch.autograd.forward_ad", "torch.random", "torch.functional",
}  # fmt: skip


class InertModule(types.ModuleType):
    def __getattr__(self, name):
        full = f"{self.__name__}.{name}"
        if full in SPECIAL:
            found = SPECIAL[full]
        elif name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        elif full in sys.modules or full in SUBMODULES:
            found = importlib.import_module(full)
        else:
            found = InertMeta(name, (Inert,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "prims", "numpy"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return InertModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
SRC = Path(__file__).parents[2] / "src"
sys.path.insert(0, str(SRC))
assert (SRC / "dynamo_capture" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}").is_file(), "build it first"

from dynamo_capture import frontend, guards, hook, language  # noqa: E402

frontend.hook = types.SimpleNamespace(init_torch=lambda: {})
hook.init_torch = lambda: {}
guards.GuardSet.global_state = lambda self: None


def translate(*args, real=language.translate):
    """Keep what has no tensors in it too: its code is what is tested."""
    result = real(*args)
    captured = result.captured
    captured = dataclasses.replace(captured, graph=captured.graph or object())
    return dataclasses.replace(result, captured=captured)


language.translate = translate

# ---------------------------------------------------------------- programs

PROGRAMS = []


def program(*args, breaks=0):
    def register(fn):
        PROGRAMS.append((fn, args, breaks))
        return fn

    return register


@program(5)
def arithmetic(n):
    k = n
    k += 2
    k **= 2
    k -= 1
    k //= 3
    k <<= 2
    k |= 1
    k ^= 3
    k &= 0xFF
    k >>= 1
    return k, -n, +n, ~n, not n, n / 2, n % 3, n @ 2 if False else n * 2, divmod(n, 2), n < 3 < 9, n is None, n == 5


@program(4)
def loops(n):
    out = []
    for i in range(n):
        if i == 1:
            continue
        if i == 3:
            break
        out.append(i)
    else:
        out.append("else")
    while n:
        n -= 1
        if n == 2:
            continue
        out.append(n)
    else:
        out.append("while else")
    for a, (b, *c) in [(1, (2, 3, 4))]:
        out.append((a, b, tuple(c)))
    return tuple(out)


@program(3)
def comprehensions(n):
    x = "outer"
    a = [x * n for x in range(n) if x != 1]
    b = {x: [y for y in range(x)] for x in range(n)}
    c = {x % 2 for x in range(n)}
    d = sum(x for x in range(n))
    e = [(x, y) for x in range(2) for y in "ab"]
    fns = [lambda x=x: x for x in range(n)]
    late = [lambda: x for x in range(n)]
    nested = [[z + n for z in range(w)] for w in range(n)]
    return x, tuple(a), tuple((k, tuple(v)) for k, v in b.items()), sorted(c), d, e, [f() for f in fns], [f() for f in late], nested


@program(1, 2)
def calls(a, b):
    def f(p, /, q, *rest, k=3, **extra):
        return p, q, rest, k, tuple(sorted(extra.items()))

    args, kwargs = (a, b), {"k": 9, "z": 1}
    return (
        f(a, b), f(a, q=b), f(*args), f(*args, 5, *args), f(*args, **kwargs), f(a, b, k=4, w=1), f(1, **{"q": 2}),
        (lambda *v, **w: (v, tuple(w)))(1, x=2), "abc".upper(), "a-b".split("-"), max(a, b, key=lambda v: -v),
        f"{a} {b}", sorted([3, 1, 2], reverse=True), dict(p=1, **{"q": 2}), print is not None,
    )  # fmt: skip


@program(7)
def closures(n):
    total = n

    def add(v):
        nonlocal total
        total += v

        def inner():
            return total + n

        return inner

    fns = [add(i) for i in range(3)]
    del fns[0]

    def counter():
        count = 0

        def step():
            nonlocal count
            count += 1
            return count

        return step

    s = counter()
    return total, [f() for f in fns], s(), s(), s()


@program(2)
def defaults_and_annotations(n):
    def f(a: int, b: str = "x", *, c: int = n, d=None) -> tuple:
        return a, b, c, d

    return f(1), f(1, "y", c=3), f.__defaults__, sorted(f.__kwdefaults__), f.__name__


@program(0)
def exceptions(n):
    log = []
    try:
        1 // n
    except (KeyError, ZeroDivisionError) as error:
        log.append(str(error))
    else:
        log.append("no")
    finally:
        log.append("finally")
    try:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise KeyError("outer") from error
    except KeyError as error:
        log.append((repr(error.__cause__), str(error), str(KeyError("k", 1)), repr(KeyError("k", 1))))
    try:
        try:
            {}["k"]
        finally:
            log.append("cleanup")
    except KeyError:
        log.append("key")

    def f():
        try:
            return "returned"
        finally:
            log.append("after return")

    def g():
        for i in range(3):
            try:
                if i == 0:
                    continue
                break
            finally:
                log.append(i)

    log.append(f())
    g()
    try:
        try:
            raise TypeError("t")
        except TypeError:
            log.append("again")
            raise
    except TypeError as error:
        log.append(str(error))
    try:
        assert n, "assertion"
    except AssertionError as error:
        log.append(str(error))
    return tuple(log)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return 5

    def __exit__(self, kind, value, tb):
        self.log.append(kind.__name__ if kind else None)
        return self.swallow


@program(1)
def with_blocks(n):
    log = []
    with Manager(log) as a, Manager(log, True) as b:
        log.append(a + b + n)
        raise ValueError
    with Manager(log):
        result = n
    for _ in range(2):
        with Manager(log):
            break
    return tuple(log), result


@program(3)
def generators(n):
    def count(k):
        for i in range(k):
            yield i
        return "end"

    def delegate():
        got = yield from count(2)
        yield got

    def echo():
        received = None
        while received != "stop":
            received = yield received

    e = echo()
    next(e)
    return tuple(count(n)), tuple(delegate()), e.send("x"), next(count(0), "none"), list(zip(count(2), "ab"))


@program(3)
def matching(n):
    def f(v):
        match v:
            case 0 | 1:
                return "small"
            case int(k) if k > 5:
                return k
            case [a, b]:
                return a + b
            case [a, *rest]:
                return a, tuple(rest)
            case {"k": k, **others}:
                return k, tuple(others)
            case str() as s:
                return s
            case None | True:
                return "none"
            case _:
                return "other"

    return [f(v) for v in (0, 9, [1, 2], (1, 2, 3), {"k": 1, "z": 2}, "s", None, 2.5, n)]


class Base:
    scale = 2

    def __init__(self, v):
        self.v = v

    def value(self):
        return self.v * self.scale

    @property
    def half(self):
        return self.v / 2

    @half.setter
    def half(self, new):
        self.v = new * 2

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def plus(a, b):
        return a + b

    def __add__(self, other):
        return type(self)(self.v + other.v)

    def __getitem__(self, i):
        return i

    def __len__(self):
        return 4

    def __contains__(self, x):
        return x == 1


class Child(Base):
    scale = 3

    def __init__(self, v, extra=0):
        super().__init__(v)
        self.extra = extra

    def value(self):
        return super().value() + self.extra

    @property
    def half(self):
        return super().half + 1


@program(4)
def objects(n):
    c = Child.make(n)
    c.extra = 1
    d = c + Base(2)
    b = Base(n)
    b.half = 8
    b.new = [1]
    b.new.append(2)
    b.scale += 5
    del b.new[0]
    found = getattr(b, "nope", "default"), hasattr(b, "v"), isinstance(c, Base), c[1:2], c[0], len(c), 1 in c, 2 not in c
    return c.value(), d.value(), c.half, b.v, Base.plus(1, 2), tuple(b.new), b.scale, Base.scale, found


@program("w")
def strings(s):
    n = 3
    return f"{s}{n!r:>4}{n:03d}{s!s}{n=}{1.5:.{n}f}", "%s-%d" % (s, n), s * n, s in "word", f"{s}" f"{n}", rf"\{s}"


@program([1, 2], {"a": 1}, {5})
def containers(lst, d, st):
    lst.append(3)
    lst[0] = 10
    lst[1:2] = [7, 8]
    lst += [9]
    d["b"] = 2
    d.update(c=3)
    del d["a"]
    st.add(6)
    a, *b = lst
    e = [*lst, *b]
    g = {**d, "z": 1}
    h = {*st, 7}
    t = (*lst, 1)
    return a, tuple(b), len(e), tuple(g), sorted(h), t, lst[::-1], lst[1:], lst[-1], d.get("q"), sorted(d.items())


@program(5)
def walrus_and_conditionals(n):
    if (m := n * 2) > 5 and not n > 9 or n == 1:
        r = "yes" if m else "no"
    else:
        r = None
    return m, r, [y for x in range(4) if (y := x * 2) > 2], n and 0 or "or", None if n is not None else 1, (n or 1) and n


@program(5)
def delete_and_unbound(n):
    x = n
    del x
    try:
        return x
    except NameError as error:
        return type(error).__name__


COUNTER = [0]
GLOBAL = 1


@program(2)
def globals_and_imports(n):
    global GLOBAL
    import math
    from os import path as p

    GLOBAL = GLOBAL + 0
    COUNTER.append(n)
    COUNTER.pop()
    return GLOBAL + n, math.floor(2.5), p is not None, len(COUNTER)


def quiet():
    sleep(0)


@program(3, [1], breaks=1)
def break_in_the_middle(n, lst):
    a = n + 1
    lst.append(a)
    f = lambda: a + n
    sleep(0)
    a += 1
    lst.append(2)
    return a, f(), lst


@program(3, breaks=1)
def break_in_an_expression(n):
    return [n, sleep(0), n + 1], f"{n}{n + 1}", {"k": n}


@program(3, breaks=1)
def break_in_try(n):
    log = []
    try:
        k = n
        sleep(0)
        raise ValueError(k)
    except ValueError as error:
        log.append(error.args[0])
    finally:
        log.append("finally")
    return log


@program(3, breaks=1)
def break_in_with(n):
    log = []
    with Manager(log) as k:
        n += k
        sleep(0)
        n += 1
    return n, log


@program(3, breaks=1)
def break_with_keywords(n):
    a = [n]
    print(n, n, sep="", end="", file=Sink())
    a.append(n)
    return a


class Sink:
    def write(self, text):
        return len(text)


class Breaking(Base):
    def value(self):
        k = self.v
        sleep(0)
        return super().value() + k


@program(3, breaks=1)
def break_in_a_method(n):
    b = Breaking(n)
    return b.value() + n


@program(3, breaks=1)
def break_before_a_loop(n):
    sleep(0)
    total = 0
    for i in range(n):
        total += i
    return total, [i for i in range(n)], tuple(x for x in "ab")


@program(4, breaks=1)
def break_in_a_for_loop(n):
    out = ""
    for i in range(n):
        out += f"{i}"
        sleep(0)
        out += "-"
    else:
        out += "else"
    return out


@program(5, breaks=1)
def break_in_a_while_loop(n):
    total = 0
    while n:
        n -= 1
        if n == 3:
            continue
        sleep(0)
        total += n
        if n == 1:
            break
    return total, n


@program([3, 1, 2], breaks=1)
def break_in_nested_loops(items):
    seen = []
    for i, item in enumerate(items, 5):
        for letter, k in zip("abc", range(item)):
            sleep(0)
            seen.append((i, letter, k))
        seen.append(item)
    return tuple(seen)


@program(3, breaks=2)
def breaks_in_a_loop_with_handlers(n):
    log = []
    for i in range(n):
        try:
            with Manager(log) as k:
                sleep(0)
                if i == 1:
                    raise ValueError(k)
                log.append(i)
        except ValueError as error:
            log.append(str(error))
        finally:
            sleep(0)
            log.append("finally")
        if i == 2:
            return log
    return None


@program([1, 2], breaks=1)
def a_loop_over_a_list_that_grows(items):
    for item in items:
        sleep(0)
        if len(items) < 5:
            items.append(item * 2)
    return items


@program(3, breaks=1)
def break_in_a_comprehension(n):
    x = "kept"
    return [(x, sleep(0)) for x in range(n)], x


@program(2000, breaks=1)
def a_long_loop(n):
    total = 0
    for i in range(n):
        sleep(0)
        total = i
    return total


@program([1, 2, 3], breaks=2)
def break_in_a_loop_over_an_iterator(items):
    it = iter(items)
    for item in map(lambda v: v + 1, it):
        sleep(0)
        items.append(item)
        if item == 3:
            break
    return items, list(it)


@program({"a": 1, "b": 2}, breaks=1)
def break_in_a_loop_over_a_dict(d):
    out = ()
    for key, value in d.items():
        sleep(0)
        out += (key, value)
    return out


@program(4, breaks=1)
def break_in_a_loop_in_a_closure(n):
    total = 0

    def add(k):
        nonlocal total
        total += k

    for i in range(n):
        add(i)
        sleep(0)
    return total, add(5), total


@program(3)
def raises(n):
    k = [n]
    raise KeyError(k[0])


# ---------------------------------------------------------------- running


def freeze(value):
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(freeze, value))
    if isinstance(value, dict):
        return ("dict", *((freeze(k), freeze(v)) for k, v in value.items()))
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(map(repr, value)))
    if isinstance(value, (int, float, str, type(None))):
        return (type(value).__name__, repr(value))
    return type(value).__name__


def copies(args):
    return [a.copy() if isinstance(a, (list, dict, set)) else a for a in args]


def outcome(fn, args):
    try:
        result = fn(*args)
    except Exception as error:
        return "raised", type(error).__name__, str(error), freeze(list(args))
    return "returned", freeze(result), freeze(list(args))


def judge(fn, args, breaks):
    expected = outcome(fn, copies(args))
    report = Report()
    translations = []
    compiled = frontend.optimize(fn, lambda gm, inputs: gm.forward, options=Options(), report=report)
    optimizer = compiled.__quintet_optimizer__
    plain = type(optimizer)._translate

    def counted(request, entries):
        answer = plain(optimizer, request, entries)
        translations.append((request.code.co_name, type(answer).__name__))
        return answer

    optimizer._translate = counted
    for _ in range(2):
        got = outcome(compiled, copies(args))
        if got != expected:
            return f"got {got}, expected {expected}"
    if report.fallbacks or len(report.breaks) != breaks:
        return f"breaks {report.breaks}, fallbacks {report.fallbacks}"
    if expected[0] == "returned" and (fn.__name__, "Entry") not in translations:
        return f"not translated: {translations}"
    return "ok"


def main():
    results = collections.OrderedDict()
    for fn, args, breaks in PROGRAMS:
        try:
            results[fn.__name__] = judge(fn, args, breaks)
        except Exception:
            results[fn.__name__] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
