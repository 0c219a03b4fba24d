"""Each message with an id is provoked by a user's program: it says what, at which of the user's lines, and what to do.

A program marks the line that is to be named by ``# HERE``; it runs to the same result as eager.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import random
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import compile_api
from dynamo_capture.breaks import REASONS

PROGRAMS = []
SOURCE = open(__file__)  # noqa: SIM115
X = torch.linspace(-2, 3, 16).reshape(4, 4)


def says(number, *texts):
    """Register a program: ``texts`` are in the reason of its break."""

    def register(program):
        PROGRAMS.append(pytest.param(program, number, texts, id=f"{number}-{program.__name__}"))
        return program

    return register


class Resource:
    def __del__(self):
        pass


@compile_api.disable
def left_alone(x):
    return x + 1


def deep(x, n):
    return x if n == 0 else deep(x + 1, n - 1)


@says("QB01", "truth value of a tensor")
def branch(x):
    y = x * 2
    if y.sum() > 0:  # HERE
        y = y.sin()
    return y + 1


@says("QB02", "Tensor.item()")
def read(x):
    return x * x.abs().sum().item()  # HERE


@says("QB02", "getitem")
def mask(x):
    y = x[x > 0]  # HERE
    return y * 2


@says("QB03", "zlib.crc32")
def unknown(x):
    import zlib

    return x.sin() * (zlib.crc32(b"abc") % 7)  # HERE


@says("QB03", "_ctypes.sizeof")
def of_ctypes(x):
    return x.sin() * ctypes.sizeof(ctypes.c_int)  # HERE


@says("QB04")
def disabled(x):
    y = left_alone(x * 2)  # HERE
    return y * 2


@says("QB03", "_thread.allocate_lock")
def locked(x):
    with threading.Lock():  # HERE
        x = x + 1
    return x * 2


@says("QB05", "CHECK_EG_MATCH")
def exception_groups(x):
    y = x * 2
    try:
        raise ExceptionGroup("several", [ValueError("mine")])
    except* ValueError:  # HERE
        y = y + 1
    return y


@says("QB06", "Tensor.share_memory_()")
def shared(x):
    y = (x * 2).share_memory_()  # HERE
    return y + 1


@says("QB07", "inspect.signature() with options")
def signature(x):
    y = x * 2
    return y * len(inspect.signature(left_alone, follow_wrapped=False).parameters)  # HERE


@says("QB08", "mat1 and mat2 shapes cannot be multiplied (4x4 and 3x3)")
def mismatch(x):
    y = x.sin()
    return y @ torch.ones(3, 3)  # HERE


@says("QB09", "numpy")
def of_numpy(x):
    y = x.sin()
    return y * float(np.array(["1", "2"]).size)  # HERE


@says("QB10", "a list that contains itself", "where the graph would end because of this: data-dependent branch")
def cyclic(x):
    kept = [x]
    kept.append(kept)
    if x.sum() > 0:  # HERE
        x = x + 1
    return x * len(kept)


@says("QB07", "'__next__' of builtins.dict_keyiterator")
def walked(x):
    names = iter({"a": 1, "bc": 2})
    y = x * len(next(names))
    compile_api.graph_break()
    return y * len(next(names))  # HERE


@says("QB11", "open")
def file(x):
    y = x + 1
    with open(__file__) as source:  # HERE
        n = len(source.read(5))
    return y * n


@says("QB11", "'read' of _io.TextIOWrapper")
def file_given(x):
    SOURCE.seek(0)
    return x.sin() * len(SOURCE.read(5))


@says("QB12")
def backward(x):
    y = x.detach().requires_grad_()
    z = (y * 2).sum()
    handle = y.register_hook(lambda grad: grad * left_alone(grad))
    z.backward()  # HERE
    handle.remove()
    return y.grad


@says("QB13", "Python's limit")
def recursion(x):
    return deep(x, 700) * 2


@says("QB14", "instructions")
def long_loop(x):
    n = 0
    for k in range(10_000_000):
        n += k % 3
        if n > 2_000_000:
            break
    return x * n


@says("QB15")
def class_at_run_time(x):
    y = x * 2

    class Scale(torch.nn.Module):  # HERE
        by = 3

    return y * Scale.by, Scale


@says("QB16", "f0 < 2.0 is needed, but is known only at run time (control flow on a float)")
def drawn(x):
    y = x * 2
    if random.random() < 2:  # HERE
        y = y + 1
    return y


@says("QB16", "time.time()")
def clock(x):
    y = x * 2
    return y * (time.time() > 0)  # HERE


@says("QB17", "Tensor.to_sparse()")
def sparse(x):
    y = x.sin().to_sparse()  # HERE
    return y.to_dense() * 2


@says("QB18", "coroutine")
def coroutine(x):
    async def three():
        return 3

    return x.sin() * asyncio.run(three())  # HERE


@says("QB18", "'__next__' of builtins.generator")
def generator_given(x):
    made = (k for k in range(3))
    y = x + next(made)
    if y.sum() > 0:
        y = y * 2
    return y + next(made)  # HERE


@says("QB19", "ValueError: mine")
def raising(x):
    y = x * 2
    if y.shape[0] == 4:
        raise ValueError("mine")  # HERE
    return y


@says("QB20", "for a look")
def broken(x):
    y = x * 2
    compile_api.graph_break("for a look")  # HERE
    return y * 2


@says("QB21", "locals()")
def own_variables(x):
    y = x * 2
    return y * len(locals())  # HERE


@says("QB21", "sys._getframe()")
def own_frame(x):
    y = x * 2
    return y * sys._getframe().f_lineno  # HERE


@says("QB22", "the true function of torch.cond changes what is outside of it")
def cond(x):
    seen = []

    def yes(v):
        seen.append(v)
        return v.sin()

    return torch.cond(x.sum() > 0, yes, torch.cos, (x * 2,))  # HERE


@says("QB23", "aten::expand")
def scores(x):
    q = x.view(1, 1, 4, 4)
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s.expand(2))  # HERE


@says("QB24")
def mapped(x):
    total = torch.zeros(4)

    def row(v):
        total.add_(1)
        return v * 2

    return torch.vmap(row)(x) + total  # HERE


@says("QB25", "torch.distributed.barrier")
def waiting(x):
    y = x * 2
    torch.distributed.barrier()  # HERE
    return y * 2


@says("QB26")
def marked(x):
    y = x * 2
    torch._dynamo.mark_dynamic(x, 0)  # HERE
    return y


@says("QB27", "side effects")
def checkpointed(x):
    seen = torch.zeros(4)

    def block(h):
        seen.add_(1)
        return h.sin()

    y = x.detach().requires_grad_()
    return checkpoint(block, y, use_reentrant=False) + seen  # HERE


@says("QB03", "compile()", "looks at its own variables by name")
def evaluated(x):
    y = x * 2
    return y * eval(compile("1 + 2", "f", "eval"))  # HERE


@says(None, "an instance of Resource is made, whose __del__ runs")
def finalised(x):
    y = x.sin()
    made = Resource()  # HERE
    del made
    return y


def eager_or_error(program, x):
    try:
        return program(x)
    except Exception as error:
        return type(error), str(error)


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    init = f"file://{tmp_path_factory.mktemp('group') / 'init'}"
    torch.distributed.init_process_group("gloo", init_method=init, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    SOURCE.close()


def marked_line(program):
    """The number of the line that is to be named; None where any line of the program will do."""
    lines, first = inspect.getsourcelines(program)
    return next((first + k for k, line in enumerate(lines) if "# HERE" in line), None)


@pytest.mark.parametrize(("program", "number", "texts"), PROGRAMS)
def test_a_break_says_what_where_and_what_to_do(program, number, texts):
    compiled = compile_api.compile(program, options={"cache": False})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = eager_or_error(compiled, X.clone())
        expected = eager_or_error(program, X.clone())
    if not isinstance(expected, tuple):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected[0], torch.Tensor):  # beside a class, made anew by each call
        torch.testing.assert_close(got[0], expected[0])
    else:
        assert got == expected
    report = compiled.report()
    wanted = f"[{number}]" if number else ""
    found = [b for b in report.breaks if wanted in b.reason and all(text in b.reason for text in texts)]
    assert found, report.breaks
    line = marked_line(program)
    assert all(b.where.startswith(f"{__file__}:") for b in report.breaks), report.breaks
    assert line is None or any(b.where.startswith(f"{__file__}:{line} in ") for b in found), (line, found)
    assert all(b.hint for b in report.breaks) and all(f.todo for f in report.fallbacks), report
    assert report.verdict.startswith(("partly: ", "eager: "))
    for shown in (str(report), report.to_json()):
        assert found[0].where in shown and found[0].hint in shown
    for warning in said:  # of what runs eagerly whole; a break is no loss that is warned of
        if issubclass(warning.category, compile_api.CompileWarning):
            assert __file__ in str(warning.message) and warning.filename == __file__
            assert any(f.todo in str(warning.message) for f in report.fallbacks)


def test_every_id_is_provoked():
    assert {number for _, number, _ in (program.values for program in PROGRAMS)} - {None} == set(REASONS)


class Switched(torch.nn.Module):
    def forward(self, x, **scales):
        y = x * (2 if self.training else 3)
        for scale in scales.values():
            y = y * scale
        return y


RECOMPILED = {
    "a size": (lambda made: made(torch.ones(7, 4)), "L['x']: size [4, 4], now [7, 4]"),
    "a type": (lambda made: made(X.double()), "L['x']: dtype torch.float32, now torch.float64"),
    "a flag": (lambda made: made.eval()(X), "['training'] is True (found False)"),
    "keywords": (lambda made: made(X, by=2.0), "tuple(L['scales']) == () (found ('by',))"),
    "a mode": (lambda made: torch.no_grad()(made)(X), "the global torch state is unchanged (changed: grad or inference mode)"),
}


@pytest.mark.parametrize("name", RECOMPILED)
def test_a_recompilation_says_what_differed(name):
    call, text = RECOMPILED[name]
    compiled = compile_api.compile(Switched(), options={"cache": False})
    compiled(X)
    call(compiled)
    (record,) = compiled.report().recompiles
    assert text in record.reason and record.code == "Switched.forward" and record.where.startswith(f"{__file__}:")
    assert "0x" not in record.reason


def test_an_operator_that_writes_in_secret_is_named_at_the_users_line():
    @torch.library.custom_op("messages::secret", mutates_args=())
    def secret(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    secret.register_fake(torch.empty_like)
    compiled = compile_api.compile(lambda x: secret(x.sin()) + 1)
    with pytest.warns(compile_api.CompileWarning, match="messages.secret.default writes to an argument") as said:
        compiled(X)
    assert {warning.filename for warning in said} == {__file__}


def wave(x):
    return x.sin() * 2


def generated(x):
    yield x.sin()


async def awaited(x):
    return x.sin()


def failing_backend(gm, inputs):
    raise RuntimeError("mine")


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
        return fn(*args, **(kwargs or {}))


def traced(made):
    before = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        made(X)
    finally:
        sys.settrace(before)


def dispatched(made):
    with Passes():
        made(X)


def dual(made):
    with forward_ad.dual_level():
        made(forward_ad.make_dual(X, X))


def one_by_one(made):
    for text in ("a", "bb", "ccc"):
        made(X, text)


WHOLE = {
    "a generator": (generated, lambda made: list(made(X)), "a generator function runs after its call has returned",
                    "Compile the function that computes one step"),
    "a coroutine": (awaited, lambda made: asyncio.run(made(X)), "a coroutine (async def)", "Compile the plain functions"),
    "a debugger": (wave, traced, "a trace function is set (sys.settrace", "Run without it"),
    "a mode": (wave, dispatched, "called under a dispatch mode", "outside of that"),
    "vmap": (wave, lambda made: torch.vmap(made)(X), "called inside a transform of torch.func", "outside of that"),
    "forward mode": (wave, dual, "called with forward-mode differentiation", "outside of that"),
    "disable()": (compile_api.disable(wave), lambda made: made(X), "it is marked by disable()", "Remove the disable()"),
    "a sparse tensor": (wave, lambda made: made(X.to_sparse()), "a tensor of layout torch.sparse_coo [QB17]", "x.to_dense()"),
    "the limit": (lambda x, text: x * len(text), one_by_one, "recompile limit of 2 reached; last miss: L['text'] == 'bb' (found",
                  "raise the option recompile_limit"),
    "a backend": (wave, lambda made: made(X), "RuntimeError: mine", "an error of the backend 'failing_backend'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_call_that_is_left_to_eager_says_why_where_and_what_to_do(name):
    function, call, reason, todo = WHOLE[name]
    backend = failing_backend if name == "a backend" else "inductor"
    made = compile_api.compile(function, backend=backend, options={"cache": False, "recompile_limit": 2})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call(made)
    (message,) = [str(w.message) for w in said if issubclass(w.category, compile_api.CompileWarning)]
    assert reason in message and todo in message
    (record,) = [f for f in made.report().fallbacks if reason in f.reason]
    assert todo in record.todo and reason in made.report().verdict and f"hint: {record.todo}" in str(made.report())
    if name != "a backend":  # whose error has a traceback of its own
        assert record.where.startswith(f"{__file__}:") and record.where in message
