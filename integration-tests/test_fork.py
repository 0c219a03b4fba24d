"""fork while other threads compile: neither the parent nor the child hangs, and the child compiles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAD = """
import faulthandler, os, signal, sys, threading, time, torch, compile_api
faulthandler.register(signal.SIGALRM, chain=True)  # what hangs says where, before the alarm ends it; in children, too
signal.alarm(200)
torch.set_num_threads(1)
x = torch.ones(4)

def busy(count, first=0):
    for k in range(first, first + count):
        f = eval(f"lambda x: (x.sin() * {k} + {k}.5).cumsum(0)")
        y = x.clone().requires_grad_()
        compile_api.compile(f)(y).sum().backward()
        assert torch.allclose(y.grad, torch.autograd.grad(f(y).sum(), y)[0])

def child_compiles():
    signal.alarm(60)
    c = compile_api.compile(lambda q: q.tan().sum())
    y = x.clone().requires_grad_()
    c(y).backward()
    assert torch.allclose(y.grad, 1 + x.tan() ** 2), y.grad
    report = c.report()
    assert len(report.kernels) >= 2 and not report.fallbacks, report
"""

FORKS = """
threads = [threading.Thread(target=busy, args=(6, 100 * n)) for n in range(2)]
for t in threads:
    t.start()
for k in range(6):
    time.sleep(0.01 + 0.13 * k)
    pid = os.fork()
    if pid == 0:
        try:
            child_compiles()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print("fork", k, "status", status)
        os._exit(1)
for t in threads:
    t.join()
print("fine")
"""

WORKERS = """
import multiprocessing
def work(number):
    child_compiles()
    busy(1, number)
    return os.getpid()
t = threading.Thread(target=busy, args=(5, 500))
t.start()
with multiprocessing.get_context("fork").Pool(2) as pool:
    pids = pool.map_async(work, range(4), chunksize=1).get(120)  # a worker that is killed never answers
t.join()
assert os.getpid() not in pids
print("fine")
"""

CUT_OFF = """
import prims.forking
prims.forking._WAIT = 0.2
compile_api.compile(lambda q: q + 1)(x)
inside, done = threading.Event(), threading.Event()
def slow(gm, inputs):
    inside.set()
    done.wait(60)
    return gm.forward
t = threading.Thread(target=lambda: compile_api.compile(lambda q: q.sin() + 2, backend=slow)(x))
t.start()
inside.wait(60)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        c = compile_api.compile(lambda q: q.tan().sum())
        right = c(x) == x.tan().sum()
    reasons = [f.reason for f in c.report().fallbacks]
    os._exit(0 if right and len(reasons) == 1 and "forked while another thread compiled" in reasons[0] else 1)
status = os.waitpid(pid, 0)[1]
done.set()
t.join()
c = compile_api.compile(lambda q: q.tan().sum())
assert torch.allclose(c(x), x.tan().sum()) and c.report().kernels
print("fine" if status == 0 else status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("program", [FORKS, WORKERS, CUT_OFF], ids=["forks", "workers", "cut_off"])
@pytest.mark.parametrize("cold", [False, True])
def test_fork_while_threads_compile(program, cold, tmp_path):
    """``cold``: nothing was compiled before, so that threads import the stages while the program forks."""
    warm = "" if cold else "busy(1, 7)\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + warm + program],
        env={**os.environ, "QUINTET_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith("fine"), done.stdout + done.stderr


LATE = """
import os, sys, tempfile, threading, traceback, torch, compile_api
from prims.forking import COMPILING

late = {}

def look(event, what):
    if event != "import" or COMPILING._is_owned() or what[0] in sys.modules:
        return
    frames = [f for f in traceback.extract_stack() if f.name != "<module>" and "importlib" not in f.filename]
    by = frames[-2].filename if len(frames) > 1 else ""  # the last is this function
    if any(f"{os.sep}{name}{os.sep}" in by for name in PACKAGES) and frames[-2].name != "__getattr__":
        late.setdefault(by, f"{what[0]}\\n" + "".join(traceback.format_list(frames[-6:-1])))

PACKAGES = ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")
sys.addaudithook(look)
x = torch.ones(4, 4)
folder = tempfile.mkdtemp(dir=os.environ["QUINTET_CACHE_DIR"])

def f(q):
    return (q.sin() @ q).cumsum(0)

def gradient(fn):
    y = x.clone().requires_grad_()
    out = fn(y)
    (out[0] if isinstance(out, (list, tuple)) else out).sum().backward()
"""

USES = {
    "compile": """
c = compile_api.compile(f)
gradient(c), c(x), c(torch.ones(5, 5)), c(torch.ones(6, 6))
gradient(compile_api.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())))
gradient(compile_api.compile(lambda q: q.cos() * q.sum().item()))
""",
    "checked": """
for options in ({"check": "shadow"}, {"check": "nan"}, {"verify": "every_pass"}, {"program_cache": True}):
    for again in range(2):
        gradient(compile_api.compile(lambda q: (q.sin() @ q).cumsum(0), options=options))
""",
    "stages": """
import aot_autograd, dynamo_capture, inductor_gen
from prims.lower import lower
dynamo_capture.optimize(f, lambda gm, inputs: gm.forward)(x)
gm = torch.fx.symbolic_trace(f)
def compiler(env, report):
    return inductor_gen.compile_graph(lower(env, claims=inductor_gen.claims("cpu")))
gradient(aot_autograd.aot_function(gm, [x.clone().requires_grad_()], fw_compiler=compiler))
""",
    "export": """
e = compile_api.export(torch.nn.Linear(4, 4), (x,))
e(x)
e.save(folder + "/exported")
""",
    "package": """
compile_api.package(compile_api.export(torch.nn.Linear(4, 4), (x,)), folder + "/packaged")
compile_api.load_package(folder + "/packaged")(x)
""",
    "load": """
import subprocess
subprocess.run([sys.executable, "-c", f"import torch, compile_api; compile_api.export(torch.nn.Linear(4, 4),"
                f"(torch.ones(4, 4),)).save({folder!r} + '/e')"], check=True)
compile_api.load_exported(folder + "/e")(x)
""",
    "compare": "assert compile_api.compare(f, x)\n",
}


@pytest.mark.parametrize("use", USES)
def test_what_is_imported_late_is_imported_while_forks_wait(use, tmp_path):
    """A module that a thread is importing is never finished in a child that is forked meanwhile."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LATE + USES[use] + "print(*late.values(), 'fine', sep='\\n')"],
        env={**os.environ, "QUINTET_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "fine\n", done.stdout + done.stderr


COLLECTOR = """
import gc, threading
from prims.forking import compiling

def elsewhere(fn):
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()

before = gc.get_threshold()
with compiling():
    with compiling():
        assert gc.get_threshold() == (0, *before[1:])
    assert gc.get_threshold() == (0, *before[1:]) and gc.isenabled()
    elsewhere(gc.disable)
assert not gc.isenabled() and gc.get_threshold() == before  # as the other thread has it
gc.enable()
with compiling():
    elsewhere(lambda: gc.set_threshold(500, 7, 7))
assert gc.get_threshold() == (500, 7, 7)
gc.set_threshold(0)
with compiling():
    pass
assert gc.get_threshold()[0] == 0
print("done")
"""


def test_the_collector_is_as_the_program_set_it() -> None:
    out = subprocess.run([sys.executable, "-c", COLLECTOR], capture_output=True, text=True, timeout=100)
    assert out.stdout == "done\n", out.stderr
