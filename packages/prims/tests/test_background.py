"""The thread beside the program: what ends with the process ends without a word."""

import subprocess
import sys

import pytest

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
import threading, time
from prims import background

class Bad:
    def __del__(self):
        raise ValueError("the user's own")

def job():
    while True:
        Bad()
        time.sleep(0.01)

def other():
    time.sleep(0.3)
    raise KeyError("another thread's")

background.submit(background.Job(job))
threading.Thread(target=other).start()
"""


def test_what_others_raise_meanwhile_is_reported():
    done = subprocess.run([sys.executable, "-c", REPORTS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "the user's own" in done.stderr and "another thread's" in done.stderr and "_Stopped" not in done.stderr
