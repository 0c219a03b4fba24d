"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert blocks
    scope = {"__name__": "readme"}
    for i, block in enumerate(blocks):
        exec(compile(block, f"README block {i}", "exec"), scope)
    assert "placeholder" in capsys.readouterr().out  # the printed graph
