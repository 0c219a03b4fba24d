"""Exceptions as objects: causes, contexts, tracebacks, notes, and who handles what. Eager's answer in every case.

Each program also runs where a caller handles an exception, which gives new ones a context.
"""

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch

PROGRAMS = []


def program(fn):
    PROGRAMS.append(fn)
    return fn


@program
def cause(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise ValueError("b") from e
    except ValueError as v:
        seen = type(v.__cause__).__name__, v.__cause__.args, v.__suppress_context__
    return x + 1, seen


@program
def no_cause(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None
    except ValueError as v:
        seen = v.__cause__, v.__suppress_context__
    return x + 1, seen


@program
def context(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")  # noqa: B904
    except ValueError as v:
        seen = type(v.__context__).__name__
    return x + 1, seen


@program
def context_of_the_first(x):
    try:
        raise ValueError("b")
    except ValueError as v:
        seen = type(v.__context__).__name__
    return x + 1, seen


@program
def traceback_of(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        seen = e.__traceback__ is None, e.__traceback__.tb_lineno > 0
    return x + 1, seen


@program
def traceback_later(x):
    kept = None
    try:
        raise KeyError("a")
    except KeyError as e:
        kept = e
    x = x + 1
    return x, kept.__traceback__ is None


@program
def returned(x):
    kept = None
    try:
        raise KeyError("a")
    except KeyError as e:
        kept = e
    return x + 1, kept


@program
def returned_with_a_cause(x):
    kept = None
    try:
        raise KeyError("a") from ValueError("c")
    except KeyError as e:
        kept = e
    return x + 1, kept


@program
def never_raised(x):
    error = ValueError("q")
    error.add_note("first")
    error.add_note("second")
    error.__cause__ = KeyError("c")
    return x + 1, error


@program
def notes(x):
    try:
        error = ValueError("q")
        error.add_note("n")
        raise error
    except ValueError as v:
        seen = list(v.__notes__)
    return x + 1, seen


@program
def exc_info(x):
    try:
        raise KeyError("a")
    except KeyError:
        kind, value, tb = sys.exc_info()
        seen = kind.__name__, value.args, tb is None, sys.exception() is value
    return x + 1, seen


@program
def exc_info_outside(x):
    x = x * 2
    return x + 1, sys.exc_info()[0], sys.exception()


def raises_again():
    raise  # noqa: PLE0704


@program
def raised_again_by_a_callee(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raises_again()
    except KeyError as e:
        return x + 1, e.args


@program
def nothing_to_raise_again(x):
    try:
        raises_again()
    except Exception as e:
        return x + 1, str(e)


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        self.seen = kind.__name__, value.args, tb is None
        return True


@program
def context_manager(x):
    manager = Swallows()
    with manager:
        raise KeyError("z")
    return x + 1, manager.seen


class Looks(Swallows):
    def __exit__(self, kind, value, tb):
        self.seen = tb.tb_lineno > 0
        return True


@program
def context_manager_that_looks(x):
    manager = Looks()
    with manager:
        raise KeyError("z")
    return x + 1, manager.seen


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield 1
    except KeyError as e:
        log.append(e.args)
    finally:
        log.append("out")


@program
def generator_manager_swallows(x):
    log = []
    with managed(log) as one:
        raise KeyError("k")
    return x + one, log


@program
def generator_manager_passes_on(x):
    log = []
    try:
        with managed(log):
            raise ValueError("k")
    except ValueError as e:
        log.append(e.args)
    return x + 1, log


@program
def exit_stack(x):
    log = []
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, 1)
            stack.enter_context(managed(log))
            raise ValueError(3)
    except ValueError as e:
        log.append(str(e))
    return x + 1, log


OUTSIDE = KeyError("outside")


@program
def one_that_exists(x):
    try:
        raise OUTSIDE
    except KeyError as e:
        seen = e.args
    return x + 1, seen, OUTSIDE.__traceback__ is None


@program
def formatted(x):
    try:
        raise KeyError("a")
    except KeyError:
        text = traceback.format_exc()
    return x + 1, text.splitlines()[-1], "formatted" in text


@program
def arguments_set(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        e.args = ("n", 2)
        seen = e.args
    return x + 1, seen


@program
def with_the_traceback_of_another(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise ValueError("v").with_traceback(e.__traceback__) from None
    except ValueError as v:
        return x + 1, v.args


@program
def without_traceback(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise e.with_traceback(None) from None
    except KeyError as v:
        return x + 1, v.args


@program
def groups(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as g:
        seen = len(g.exceptions)
    except* KeyError:
        seen = 7
    return x + 1, seen


@program
def stored(x):
    class Holder:
        pass

    holder = Holder()
    try:
        raise KeyError("a")
    except KeyError as e:
        holder.error = e
    x = x * 2
    return x + 1, holder.error.__traceback__ is not None, holder.error.args


def breaks(x):
    """Cannot be captured, so that the rest is a capture of its own: with the handled exception as it is."""
    return bool(x.sum() > 0)


@program
def break_in_a_handler(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        x = x + breaks(x)
        kept = e
    return x + 1, kept


@program
def breaks_in_a_function_that_a_handler_calls(x):
    def late(x):
        x = x * 2
        y = x + breaks(x)
        try:
            raise IndexError("late")
        except IndexError as e:
            return y, e

    try:
        raise KeyError("a")
    except KeyError as e:
        first = e
        try:
            raise ValueError("b")  # noqa: B904
        except ValueError as second:
            y, third = late(x)
            return y, first, second, third


@program
def raised_through_handlers(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            x = x + breaks(x)
            {}[x.shape[0]]
    finally:
        x = x + breaks(x)
        raise ValueError("b")


@program
def raised_through_a_manager(x):
    with managed([]):
        try:
            breaks(x)
            raise IndexError("i")
        finally:
            [].index(x.shape[0])


@program
def raised_from_none_through_a_manager(x):
    try:
        with managed([]):
            raise TypeError("t")
    except TypeError as e:
        breaks(x)
        if e.args:
            raise Exception("last") from None  # noqa: TRY002
    finally:
        x = x + breaks(x)


@program
def suppressed_before(x):
    with contextlib.suppress(KeyError):
        x = x * 2
        raise StopIteration("s")
    return x


@program
def raised_in_a_handler_of_what_was_raised(x):
    with contextlib.suppress(IndexError):
        try:
            suppressed_before(x)
        except Exception:
            breaks(x)
            raise IndexError("q")  # noqa: B904
    try:
        suppressed_before(x)
    except Exception:
        x = x + breaks(x)
        suppressed_before(x)


def shown(value):
    if isinstance(value, BaseException):
        return (type(value).__name__, value.args, value.__traceback__ is None, shown(value.__cause__),
                shown(value.__context__), value.__suppress_context__, getattr(value, "__notes__", None))  # fmt: skip
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [shown(item) for item in value] if isinstance(value, (tuple, list)) else value


def run(fn):
    OUTSIDE.__traceback__ = OUTSIDE.__context__ = None
    try:
        return shown(fn(torch.ones(2)))
    except Exception as error:
        return "raised", shown(error)


@pytest.mark.parametrize("first", ["alone", "handling"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn, first, capture):
    compiled = capture(fn, strict=False)

    def handling(fn):
        try:
            raise TypeError("handled around the call")
        except TypeError:
            return run(fn)

    ways = [run, handling] if first == "alone" else [handling, run]
    for way in (*ways, *ways):
        assert way(compiled) == way(fn)
    assert not [f.reason for f in compiled.report.fallbacks if "internal error" in f.reason]


@pytest.mark.parametrize(
    "fn", [cause, no_cause, never_raised, notes, exc_info, raised_again_by_a_callee, context_manager,
           generator_manager_swallows, generator_manager_passes_on, arguments_set],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_captured_whole(fn, capture):
    compiled = capture(fn, fullgraph=True)
    assert run(compiled) == run(fn)
    assert len(compiled.graphs) == 1
