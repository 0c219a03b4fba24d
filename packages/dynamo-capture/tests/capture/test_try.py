"""Expressions in ``try`` and its like: the outcome, its type and the exception's text are eager's.

Every expression runs plainly and where its exception would be swallowed, on constants and on ints that change from call
to call. What capture cannot simulate must not be taken for what the program raises.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
from typing import NamedTuple

import pytest
import torch

import dynamo_capture

pytestmark = pytest.mark.filterwarnings("ignore")

FORMS = {
    "plain": "    value = {}\n",
    "try": "    try: value = {}\n    except Exception as e: value = (type(e).__name__, str(e), len(e.args))\n",
    "finally": "    try:\n        try: value = {}\n        finally: log = 'finally'\n"
               "    except Exception as e: value = (type(e).__name__, log)\n",
    "suppress": "    value = 'suppressed'\n    with contextlib.suppress(Exception): value = {}\n",
    "exit": "    value = 'swallowed'\n    with Swallow() as s: value = {}\n    value = (value, s.seen)\n",
    "helper": "    def helper():\n        try: return {}\n        except (TypeError, ValueError) as e: return ('caught', str(e))\n"
              "        except LookupError as e: return ('lookup', str(e), e.args)\n"
              "        except ArithmeticError as e: return ('arithmetic', str(e))\n    value = helper()\n",
    "hasattr": "    value = guarded(lambda: {})\n",
}  # fmt: skip


class Swallow:
    def __init__(self):
        self.seen = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.seen = None if kind is None else (kind.__name__, str(error))
        return True


def guarded(fn):
    try:
        return fn()
    except Exception as error:
        return type(error).__name__, str(error)


class Pair(NamedTuple):
    a: int
    b: int = 2


Plain = collections.namedtuple("Plain", "x y")


@dataclasses.dataclass
class Data:
    a: int


class Color(enum.Enum):
    RED = 1


class Missing(dict):
    def __missing__(self, key):
        return ("missing", key)


class Property:
    @property
    def broken(self):
        raise AttributeError("inner")

    def __getattr__(self, name):
        return "fallback_" + name


class Made:
    def __new__(cls, value):
        self = object.__new__(cls)
        self.value = value
        return self


class NoArguments:
    pass


class Slotted:
    __slots__ = ("a",)


class Reflected:
    def __radd__(self, other):
        return ("radd", other)

    def __rmod__(self, other):
        return ("rmod", other)


class Texts:
    def __str__(self):
        return "text"

    def __format__(self, spec):
        return "formatted" + spec


class BadBool:
    def __bool__(self):
        return 1


class BadLen:
    def __len__(self):
        return -1


class BadIter:
    def __iter__(self):
        return 3


class Abstract(__import__("abc").ABC):
    @__import__("abc").abstractmethod
    def method(self): ...


class Tup(tuple):
    def __new__(cls, *args):
        return super().__new__(cls, args)


def two(a, b, /, c, *, d=1, e):
    return a


EXPRESSIONS = """
'%d' % n;; '%s' % (n,);; '%d-%d' % (n, n + 1);; '%dx%d' % x.shape;; '%s' % [n];; '%(a)d' % {'a': n};; b'%d' % n
'%c' % n;; '%d' % 'a';; '%s %s' % (n,);; '%d' % (n, 1);; '%*d' % (5, n);; 'x' % Reflected();; '%s' % Texts()
f'{n}';; f'{n:>5}';; f'{n:zz}';; f'{n!r:>4}';; f'{Texts():q}';; f'{Texts()}';; f'{x.shape}';; format(n, 'x');; str(n)
f'{[n]:>3}';; f'{x.shape[0]:c}';; f'{NoArguments():q}';; str(n, 'x');; int(n, 2);; int('x%d' % n);; int('%d' % n)
'ab' * n;; [0] * n;; (n,) * 2;; [1] + (n,);; (1,) + [n];; [x] + (n,);; 'a' + n;; n + 'a';; [1, 2] + [n];; {} + n
[] < ();; n < 'a';; (n, 'a') < (n, 1);; {n} | [n];; {n} | {1};; {'a': n} | [1];; -'a';; ~1.5;; -[n];; not n
1 // (n - n);; n % (n - n);; n / (n - n);; 0 ** -n;; n ** -1;; (-n) ** 0.5;; n << -n;; math.sqrt(-n);; math.sqrt(n)
math.log(n - n);; int(n * float('inf'));; round(n / 7, 2);; divmod(n, 0);; pow(2, n, 0);; math.factorial(-n);; n @ n
(1, 2)[n];; [1][n];; 'abc'[n];; range(3)[n];; {}[n];; {n: 1}[n];; {1: 2}[(n,)];; n[0];; (1, 2)['a'];; [1, 2][1.5]
[1, 2, 3][n:'a'];; torch.Size([n])[4];; {[]: n};; {n, []};; hash([n]);; n in [n];; n in 5;; 'a' in 'abc';; n in 'abc'
[n].index(0);; (n,).index(0);; [].pop();; [n].pop(5);; {}.popitem();; [n].remove(0);; {n}.remove(0);; set().pop()
collections.deque().popleft();; collections.OrderedDict().popitem();; collections.Counter('a')['zz'];; Missing()[n]
collections.Counter('aab') + collections.Counter('b');; collections.defaultdict(list)[n];; dict(n);; dict([(1, 2, 3)])
n.foo;; [n].foo;; {}.foo;; (n,).foo;; 'a'.foo;; x.foo;; getattr(x, 'no%d' % n);; Data(n).b;; Color.RED.foo;; Color['NO']
Color(7);; NoArguments().a;; Slotted().a;; Property().broken;; Property().other;; len(n);; iter(n);; next(n);; n()
len(NoArguments());; NoArguments()[0];; NoArguments()();; list(NoArguments());; 1 in NoArguments();; -NoArguments()
NoArguments() + 1;; 1 + NoArguments();; NoArguments() < 1;; NoArguments() == 1;; 3 + Reflected();; 'a' + Reflected()
bool(BadBool());; len(BadLen());; list(BadIter());; next(iter([]));; next(iter([]), n);; max([]);; min(n);; max([], default=n)
sum(['a']);; sorted([n, 'a']);; zip([n], [], strict=True).__next__();; list(zip([n], [], [1], strict=True))
list(zip([], [n], strict=True));; functools.reduce(operator.add, []);; list(map(len, [n]));; chr(-n);; ord('ab')
two(1);; two(1, 2, 3, 4, e=5);; two(1, 2, 3, e=4, z=5);; two(1, 2, c=3);; two(a=1, b=2, c=3, e=4);; two(1, 2, 3, e=n)
Pair();; Pair(n);; Pair(n, 1, 2);; Pair(n, z=1);; Plain(1);; Plain(1, x=2);; Plain(n, 1)._replace(x=2);; Plain(n, 1).z
Data();; Data(n);; NoArguments(1);; Made(n).value;; Made();; Made(n).__dict__;; Abstract();; len(Tup(n, 2));; object(1)
fractions.Fraction(n, 3) + 1;; fractions.Fraction(1, 0);; sys.version_info >= (3, 8);; sys.version_info[:1] == (3,)
isinstance(n, 5);; isinstance(n, int);; issubclass(n, int);; operator.itemgetter(n)([1]);; operator.attrgetter('q')(n)
(lambda a, b: a)(*[n]);; (lambda **k: k)(**{'a': n});; (lambda a: a)(**[n]);; [*5];; {**[1]};; [a for a, b in [(n,)]]
[a for a, *b, c in [(n,)]];; unbound;; KeyError((n,)).args;; str(KeyError(n));; ValueError('%d' % n).args;; float('q')
[*(i for i in range(n) if 1 // (i - n + 1))];; list(itertools.islice([1, 2], -n));; itertools.repeat(n, 'a')
setattr(Slotted(), 'z', n);; delattr(Slotted(), 'a');; setattr(Property(), 'broken', n);; delattr(NoArguments(), 'z');; delattr(Property(), 'broken')
setattr(n, 'a', 1);; setattr([n], 'a', 1);; delattr(n, 'real');; setattr(NoArguments(), 5, n);; vars(Slotted());; vars(n)
x.view(n, n, n);; x.reshape(-1, 999);; x[7];; x[1.5];; x['a'];; x @ x.new_ones(n + 300);; x.sum(n + 5);; len(x.sum())
[*x.sum()];; torch.zeros(-n);; torch.cat([]);; x.tril(0).tril(0).sum() if x.ndim == 1 else 0;; x.flip(5);; -x.bool()
""".replace("\n", ";;").split(";;")
EXPRESSIONS = [e.strip() for e in EXPRESSIONS if e.strip()]

SPACE = {
    name: value for name, value in globals().items()
    if name in ("collections", "contextlib", "fractions", "functools", "itertools", "math", "operator", "sys", "torch")
    or isinstance(value, type) or name in ("two", "guarded")
}  # fmt: skip


def outcome(fn, x, n):
    try:
        result = fn(x, n)
    except Exception as error:
        return type(error), str(error)
    return result


def shown(value):
    """An outcome with the types of all that is in it."""
    if isinstance(value, tuple | list):
        return type(value).__name__, [shown(v) for v in value]
    if isinstance(value, dict):
        return type(value).__name__, [(shown(k), shown(v)) for k, v in value.items()]
    return type(value).__name__, repr(value).partition(" object at")[0].partition(" at 0x")[0]


@pytest.mark.parametrize("form", FORMS)
def test_table(capture, form):
    wrong = []
    for text in EXPRESSIONS:
        space = dict(SPACE, __name__="program")
        exec("def fn(x, n):\n" + FORMS[form].format(text) + "    return x * 2, value\n", space)
        for dynamic in (None, True):
            compiled = capture(space["fn"], dynamic=dynamic, strict=False)
            for n in (3, 4, 6):
                x = torch.arange(6.0)[:n]
                expected, got = shown(outcome(space["fn"], x, n)), shown(outcome(compiled, x, n))
                if expected != got:
                    wrong.append((text, dynamic, n, expected, got))
                    break
    assert not wrong, "\n".join(map(str, wrong))


# --- operators whose exception is found only when the graph runs ------------------------------------------------------


def looked_up(x, index):
    try:
        return x[index] * 2
    except IndexError:
        return x.sum()


def looked_up_within(x, index):
    def inner(i):
        return x.index_select(0, i).cos()

    try:
        y = inner(index)
    except (IndexError, RuntimeError) as error:
        y = x * len(str(error)[:5])
    return y + 1


def suppressed(x, index):
    y = x - 1
    with contextlib.suppress(IndexError):
        y = x[index]
    return y * 2


def swallowed(x, index):
    y = x - 1
    with Swallow() as s:
        y = x[index]
    return y * 2, s.seen is None


def decomposed(x, index):
    matrix = x[:4].reshape(2, 2) + torch.diag(index.float()[:2])
    try:
        factor = torch.linalg.cholesky(matrix)
    except torch.linalg.LinAlgError:
        factor = torch.eye(2)
    return factor * 2


def divided(x, index):
    counts = [0]
    try:
        counts[0] += 1
        y = index // (index - index[0])
    except RuntimeError:
        counts[0] += 10
        y = index
    return y + counts[0], counts


def with_everything(x, index, *rest, flag=1, **named):
    for i in range(2):
        try:
            x = x[index + i] + flag + len(rest) + named["k"]
        except IndexError:
            x = x * 3
    return x


def closure():
    scale = torch.tensor(3.0)
    count = 0

    def fn(x, index):
        nonlocal count
        try:
            return x[index] * scale
        except IndexError:
            count += 1
            return x * scale * count

    return fn


class Timer:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@contextlib.contextmanager
def cleaning():
    try:
        yield
    finally:
        pass


def timed(x, index):
    with Timer(), torch.no_grad(), cleaning():
        y = x[index] + 1
    return y * 2


PROGRAMS = [looked_up, looked_up_within, suppressed, swallowed, decomposed, divided, closure()]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__qualname__.partition(".")[0])
def test_operators_that_raise_when_they_run(capture, fn):
    compiled = capture(fn)
    reference = fn if fn.__closure__ is None else closure()
    for last in (1, 9, 2, 8, 0):
        x, index = torch.arange(5.0) + 1, torch.tensor([3, 1, last])
        expected, got = reference(x, index), compiled(x, index)
        assert shown(expected) == shown(got)


def test_all_kinds_of_parameters(capture):
    compiled = capture(with_everything)
    for last in (1, 9, 2):
        args = torch.arange(5.0), torch.tensor([0, 1, last]), 7, 8
        assert shown(with_everything(*args, flag=2, k=5)) == shown(compiled(*args, flag=2, k=5))


def test_a_call_that_runs_again_is_reported(capture):
    compiled = capture(looked_up)
    compiled(torch.arange(5.0), torch.tensor([1]))
    assert not compiled.report.fallbacks
    compiled(torch.arange(5.0), torch.tensor([9]))
    assert any("an operator raised" in f.reason for f in compiled.report.fallbacks)


def test_context_managers_that_let_exceptions_pass_cost_nothing(capture):
    compiled = capture(timed, fullgraph=True)
    x = torch.arange(5.0)
    assert torch.equal(compiled(x, torch.tensor([1, 3])), timed(x, torch.tensor([1, 3])))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 9]))
    assert torch.is_grad_enabled()
    assert len(compiled.graphs) == 1


def test_inputs_that_the_graph_writes_into_are_written_once(capture):
    def fn(x, index):
        x.add_(1)
        try:
            return x[index]
        except IndexError:
            return x * 2

    compiled = capture(fn)
    for last in (1, 9, 2):
        a, b = torch.arange(5.0), torch.arange(5.0)
        assert torch.equal(fn(a, torch.tensor([last])), compiled(b, torch.tensor([last])))
        assert torch.equal(a, b)


class Counted:
    calls = 0


SEEN: list[int] = []


def adds(x, at, log, box):
    log.append(1)
    h = x[at] * 2
    log.append(2)
    return h


def stores(x, at, log, box):
    box.calls += 1
    box.last = x * 2
    h = x[at].sin()
    box.calls += 10
    return h


def of_globals(x, at, log, box):
    global SEEN
    SEEN = [*SEEN, len(log)]
    return x.index_select(0, at) + len(SEEN)


def in_a_closure(x, at, log, box):
    count = 0

    def inner():
        nonlocal count
        count += 1
        log.append(count)
        return x[at]

    return inner() + inner()


def after_a_break(x, at, log, box):
    log.append(1)
    dynamo_capture.graph_break()
    log.append(2)
    return x[at].exp()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [adds, stores, of_globals, in_a_closure, after_a_break], ids=lambda f: f.__name__)
def test_what_was_changed_before_an_operator_raises(program, dynamic, capture):
    """What comes before it is done, what comes after it is not, and calls that do not raise run the graph."""
    compiled = capture(program, dynamic=dynamic, strict=False)
    for bad in (False, True, False, True):
        found = []
        for function in (program, compiled):
            SEEN.clear()
            log, box = [0], Counted()
            try:
                result = function(torch.ones(3), torch.tensor([0, 7 if bad else 1]), log, box)
            except IndexError as error:
                result = str(error)
            found.append((str(result), log, box.calls, str(getattr(box, "last", None)), list(globals()["SEEN"])))
            globals()["SEEN"] = []
        assert found[0] == found[1]
    assert compiled.graphs


# --- operators that may raise, and writes into inputs ----------------------------------------------------------------


def write_then_read(x, at):
    x.add_(1)
    y = x.sin()
    try:
        z = y.gather(0, at) + 1
    except RuntimeError:
        z = y.sum()
    return z + x.sum()


def read_then_write(x, at):
    y = x.sin()
    try:
        z = y.gather(0, at)
        x.mul_(2)
        z = z + 1
    except RuntimeError:
        z = y.sum()
    return z + x.sum()


def read_then_write_behind(x, at):
    try:
        z = x.gather(0, at)
    except RuntimeError:
        z = x.sum()
    x[1:].mul_(3)
    return z + x.sum()


def one_statement(x, at):
    try:
        x.add_(x.cos().gather(0, at).sum())
    except RuntimeError:
        x.sub_(1)
    return x.cos()


def in_a_loop(x, at):
    for _ in range(3):
        try:
            x.add_(x.cos().gather(0, at).sum())
        except RuntimeError:
            x.sub_(1)
    return x.cos()


def through_a_view(x, at):
    y = x.cos()
    part = x[:2]
    try:
        z = y.gather(0, at)
        part.copy_(z[:1].expand(2))
    except RuntimeError:
        part += 1
        z = y
    return z.sum() + x * 2


def in_a_callee(x, at):
    def read(y):
        try:
            return y.gather(0, at)
        except RuntimeError:
            return y.sum()

    x.add_(read(x.sin()).sum())
    return read(x.sin()) + x.sum()


WRITERS = [write_then_read, read_then_write, read_then_write_behind, one_statement, in_a_loop, through_a_view, in_a_callee]


@pytest.mark.parametrize("fn", WRITERS)
def test_operators_that_may_raise_and_writes_into_inputs_are_in_one_graph(fn):
    """What is written when an operator raises is what eager has written: no more, no less, and once."""
    compiled = dynamo_capture.optimize(fn, lambda module, inputs: module)
    for index in (1, 7, 2, -9, 0):
        results = []
        for run in (compiled, fn):
            x = torch.arange(3.0)
            try:
                result = run(x, torch.tensor([index]))
            except RuntimeError as error:
                result = str(error)
            results.append((x, result))
        (ours, first), (theirs, second) = results
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(first, second, rtol=0, atol=0) if isinstance(second, torch.Tensor) else None
        assert type(first) is type(second)
    found = dynamo_capture.explain(fn)(torch.arange(3.0), torch.tensor([1]))
    assert found.graph_count == 1
    assert not found.report.fallbacks
