"""The README's examples, run top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inductor_gen.runtime.compiler import forget_loaded


def test_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))
    forget_loaded()  # other tests have loaded kernels that this cache does not hold
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), space)
