"""The thread beside the program: what ends with the process ends without a word."""

import subprocess
import sys
import types

import pytest

from prims import background

ENDS = """
import sys, time, weakref
from prims import background

def long():
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass

class Slow:
    def __del__(self):
        long()

class Plain:
    pass

def destructors():
    while True:
        Slow()

def callbacks():
    while True:
        held = weakref.ref(Plain(), lambda ref: long())

def hostile():
    while True:
        try:
            long()
        except Exception:
            pass

background.submit(background.Job(globals()[sys.argv[1]]))
time.sleep(0.1)
print("end", flush=True)
"""


@pytest.mark.parametrize("kind", ["destructors", "callbacks", "hostile"])
def test_the_stop_is_not_reported_wherever_it_meets_the_job(kind):
    done = subprocess.run([sys.executable, "-c", ENDS, kind], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


REPORTS = """
import time
from prims import background

class Bad:
    def __del__(self):
        raise ValueError("the user's own")

def job():
    while True:
        Bad()
        time.sleep(0.01)

background.submit(background.Job(job))
time.sleep(0.1)
"""


def test_what_others_raise_is_reported():
    done = subprocess.run([sys.executable, "-c", REPORTS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "the user's own" in done.stderr and "_Stopped" not in done.stderr
    told: list[type] = []
    hook = background._quiet(lambda args: told.append(args.exc_type))
    for kind in (KeyError, background._Stopped):
        hook(types.SimpleNamespace(exc_type=kind))
    assert told == [KeyError]
