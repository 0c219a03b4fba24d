"""The README's examples run, top to bottom, in a fresh process."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) >= 8
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    # What the comments promise to be printed.
    for promised in (
        "add x: V, y: V binary same",
        "tensor operands have one shape",
        "[DOT-C2] dot of (2, 3) and (4, 5): 3 != 4",
        "(2*s0, 3)",
        "((int64_t)q_frem(a[i], b[i]))",
        "round float32 sample",
    ):
        assert promised in done.stdout, promised


def test_the_count_is_true():
    from prims.ops import TABLE

    assert f"a closed set of {len(TABLE)} primitives" in README.read_text()


def test_the_reference_page_is_current():
    from prims.ops.document import markdown

    page = markdown()
    assert (README.parent / "PRIMITIVES.md").read_text() == page, "run: python -m prims.ops.document > PRIMITIVES.md"
    from prims.ops import TABLE

    for op in TABLE.values():
        assert f"### `{op.name}({op.signature})`" in page
