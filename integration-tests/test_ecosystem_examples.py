"""The examples of ``examples/`` that train, sample and serve, most by other libraries: each compares itself with eager."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
#: The example and what it imports beside torch.
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "accelerate_loop": ("accelerate",),
    "lightning_module": ("lightning",),
    "peft_lora": ("peft", "transformers"),
    "diffusion_pipeline": ("diffusers",),
    "piecewise_capture": (),
}
#: These libraries import torchvision where it is: beside a CPU build of torch it needs `zoo`'s help.
RUN = """
import runpy, sys
from importlib.util import find_spec
if find_spec("torchvision") is not None:
    sys.path.insert(0, sys.argv[2])
    import zoo
    zoo.import_torchvision()
sys.argv = sys.argv[1:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", NEEDS)
def test_example(name, tmp_path):
    missing = [each for each in NEEDS[name] if find_spec(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    command = [sys.executable, "-c", RUN, str(EXAMPLES / f"{name}.py"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("verdict: compiled"), done.stdout
    assert "CompileWarning" not in done.stderr, done.stderr
    assert not [*tmp_path.iterdir()]  # it leaves nothing behind where it runs
