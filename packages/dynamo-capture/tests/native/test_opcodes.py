"""Every Python version's opcodes through the interpreter, without torch (see opcode_programs.py)."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("opcode_programs.py")
NAMES = re.findall(r"^@program\(.*\)\ndef (\w+)", SCRIPT.read_text(), re.M)


@pytest.fixture(scope="module")
def results():
    if importlib.util.find_spec("bytecode") is None:
        pytest.skip("needs the package bytecode")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_programs_ran(results):
    assert list(results) == NAMES
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
def test_program(results, name):
    assert results[name] == "ok", results[name]
