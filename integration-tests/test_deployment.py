"""Models as packages: a client in C gets Python's bits."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zoo

import compile_api

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages" / "compile-api" / "tests"))

from test_package import as_file, run_client  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def check(model, args, shapes, others, taken, folder, threads):
    program = compile_api.export(model, args, dynamic_shapes=shapes)
    compile_api.package(program, folder)
    packed = compile_api.load_package(folder)
    said = subprocess.run(["ldd", folder / "native" / "libprogram.so"], capture_output=True, text=True).stdout
    assert "libpython" not in said and "libtorch_python" not in said
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for given in (args, *others):
            wanted = taken(program(*given))
            with torch.no_grad():
                eager = taken(model(*given))
            for a, b, c in zip(wanted, taken(packed(*given)), eager, strict=True):
                torch.testing.assert_close(a, c, atol=1e-3, rtol=1e-3)
                assert torch.equal(a, b)
            found, said, code = run_client(folder, given, threads=2, omp=str(threads))
            assert code == 0, said
            assert found == as_file(wanted) * 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_resnet18(tmp_path, threads):
    zoo.import_torchvision()
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    check(model, (torch.randn(2, 3, 64, 64),), None, (), lambda r: [r], tmp_path, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_bert(tmp_path, threads):
    zoo.import_torchvision()
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000
    )
    model = transformers.BertModel(config).eval()
    ids = [(torch.randint(0, 1000, (n, t)),) for n, t in ((2, 32), (3, 17), (5, 64))]
    shapes = {"input_ids": {0: "batch", 1: (2, 512)}}
    with pytest.raises(compile_api.errors.UserError, match=r"input_ids_1 <= 512"):
        compile_api.export(model, ids[0], dynamic_shapes={"input_ids": {0: "batch", 1: True}})
    taken = lambda r: [r["last_hidden_state"], r["pooler_output"]]
    check(model, ids[0], shapes, ids[1:], taken, tmp_path, threads)


def test_the_document_s_example(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "deployment.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert (tmp_path / "classifier" / "native" / "libprogram.so").exists()
