"""The README's example runs."""

from __future__ import annotations

import pathlib
import re


def test_readme_example(capsys):
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert "envelope prim 1.0" in capsys.readouterr().out
