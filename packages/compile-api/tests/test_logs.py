"""What the stages log: each subject by its name, once, with the user's line; nothing where nobody asked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

import compile_api
from prims import logs
from prims.errors import UserError
from prims.options import Options
from prims.report import Report


@pytest.fixture(autouse=True)
def quiet():
    yield
    logs.set_logs()


def program(x, n):
    y = x.sin() * n
    if y.sum() > 0:  # breaks here
        y = y + 1
    return y.cos()


def plain(x):
    return x.sin() * 2


def call():
    made = compile_api.compile(program, options={"cache": False})
    made(torch.ones(8), 2)
    made(torch.ones(8), 2.5)
    return made


def said(caplog, name):
    return [record.getMessage() for record in caplog.records if record.name == f"quintet.{name}"]


def test_every_stage_says_something_with_the_users_line(caplog):
    compile_api.set_logs("all")
    call()
    for name in logs.LOGS:
        assert said(caplog, name), name
    (brk,) = said(caplog, "breaks")
    assert "[QB01]" in brk and "hint: " in brk and "if y.sum() > 0:" in brk and f"{__file__}:" in brk
    recompiled = said(caplog, "recompiles")[0]
    assert "n" in recompiled and __file__ in recompiled
    assert any("n == 2" in text and __file__ in text for text in said(caplog, "guards"))
    graphs = "\n".join(said(caplog, "graphs"))
    assert all(f"envelope {dialect}" in graphs for dialect in ("torch", "aten", "prim"))
    code = "\n".join(said(caplog, "code"))
    assert "sinf" in code and f"of {__file__}:" in code
    assert any("fused" in text for text in said(caplog, "schedule"))
    assert any("compiled" in text for text in said(caplog, "cache"))


def test_equal_messages_of_one_report_come_once(caplog):
    compile_api.set_logs("code", "graphs")

    def layers(x):
        for _ in range(6):
            x = torch.sort(x.sin() + 1).values  # six equal kernels, and six library calls
        return x

    made = compile_api.compile(layers, options={"cache": False})
    made(torch.ones(64))
    assert len(made.report().kernels) >= 6
    kernels = [text for text in said(caplog, "code") if text.startswith("kernel")]
    assert len(kernels) == len({k.source for k in made.report().kernels}) < len(made.report().kernels)
    report = Report()
    logs.say("code", report, "one")
    logs.say("code", report, "one")
    logs.say("code", Report(), "one")
    assert said(caplog, "code").count("one") == 2


def test_the_log_of_caches_tells_of_programs(caplog, tmp_path):
    compile_api.set_logs("cache")
    for _ in range(2):
        made = compile_api.compile(plain, options={"cache_dir": str(tmp_path), "program_cache": True})
        made(torch.ones(3))
    texts = said(caplog, "cache")
    assert [text.split(" (")[0].split(" at ")[0] for text in texts if text.startswith("program")] == [
        "program plain: missed", "program plain: stored", "program plain: loaded",
    ]  # fmt: skip
    assert any("missed (code: none is stored of this code" in text and __file__ in text for text in texts), texts


def test_off_makes_no_text(caplog):
    logs.say("code", None, lambda: pytest.fail("a message was made for nobody"))
    call()
    assert not any(said(caplog, name) for name in logs.LOGS)


def test_a_loggers_level_is_the_switch(caplog):
    caplog.set_level(logging.DEBUG, "quintet.breaks")
    call()
    assert said(caplog, "breaks") and not said(caplog, "code")


def test_names():
    assert logs.parse_logs(" breaks, code,breaks ,") == ("breaks", "code")
    assert logs.parse_logs("all") == tuple(logs.LOGS)
    with pytest.raises(UserError, match="Did you mean 'recompiles'"):
        compile_api.set_logs("recompile")
    with pytest.raises(UserError, match="Did you mean 'graphs'"):
        compile_api.compile(program, options={"logs": "graph"})
    with pytest.raises(UserError, match="Did you mean 'breaks'"):
        Options.from_environment({"QUINTET_LOGS": "break"})
    with pytest.raises(UserError, match="option 'logs'"):
        Options(logs=3)


def test_set_logs_turns_the_others_off():
    compile_api.set_logs("code")
    compile_api.set_logs("breaks")
    assert logs.wanted("breaks") and not logs.wanted("code")


@pytest.mark.parametrize("own", [False, True])
def test_by_environment(tmp_path, own):
    """To standard error in a program without logging of its own; through its handlers, once, in one with."""
    script = tmp_path / "program.py"
    setup = "import logging; logging.basicConfig(format='mine %(message)s')\n" if own else ""
    script.write_text(
        f"import torch, compile_api\n{setup}"
        "def f(x):\n    if x.sum() > 0:\n        x = x + 1\n    return x * 2\n"
        "compile_api.compile(f, backend='eager')(torch.ones(3))\n"
    )
    env = {**os.environ, "QUINTET_LOGS": "breaks"}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "graph break" in line]
    assert len(lines) == 1 and lines[0].startswith("mine " if own else "[quintet.breaks] ")
    assert "if x.sum() > 0:" in done.stderr
