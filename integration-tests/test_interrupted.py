"""Ctrl-C, the end of the program or a lack of memory at any point of the first compile: the next compile works."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("interrupted.py")


@pytest.mark.parametrize(
    ("mode", "first", "step"),
    [("signal", 700, 2900), ("exit", 2500, 3700), ("memory", 1500, 4100), ("raise-signal", 300, 1900),
     ("raise-exit", 900, 2300), ("raise-memory", 1300, 2700)],
)  # fmt: skip
def test_the_next_compile_works(mode, first, step):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), mode, str(first), "100000", str(step)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-4]) >= 3, done.stdout


def test_an_interrupted_module_of_rows():
    """Ctrl-C in the middle of the module of reductions, whose first rows are in the table by then."""
    code = """
import sys, torch, compile_api
class Finder:
    struck = False
    def find_spec(self, name, path=None, target=None):
        if name == "prims.ops.reduction" and not self.struck:
            row = sys.modules["prims.ops.row"]
            plain = row.define
            def define(name, *args, **kwargs):
                if not self.struck and name == "amax":
                    self.struck = True
                    row.define = plain
                    raise KeyboardInterrupt
                return plain(name, *args, **kwargs)
            row.define = define
finder = Finder()
sys.meta_path.insert(0, finder)
f = lambda x: (x.sin() @ x.T).softmax(-1)
x = torch.rand(3, 3)
try:
    compile_api.compile(f)(x)
except KeyboardInterrupt:
    assert finder.struck
else:
    raise SystemExit("not interrupted")
c = compile_api.compile(f)
torch.testing.assert_close(c(x), f(x))
assert c.report().kernels and not c.report().fallbacks, c.report()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
