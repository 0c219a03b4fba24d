"""``examples/serve.py``: a package behind HTTP, whose requests are computed in batches."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import compile_api

SCRIPT = Path(__file__).parents[1] / "examples" / "serve.py"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 3)

    def forward(self, image, scale):
        y = self.inner(image).tanh() * scale[:, None]
        return {"scores": y, "best": y.argmax(-1)}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The model and the address of its server."""
    torch.manual_seed(0)
    model = Model().eval()
    folder = tmp_path_factory.mktemp("served") / "package"
    sizes = {name: {0: compile_api.Dim("batch", 1, 16)} for name in ("image", "scale")}
    program = compile_api.export(model, (torch.randn(4, 8), torch.randn(4)), dynamic_shapes=sizes)
    compile_api.package(program, folder)
    command = [sys.executable, str(SCRIPT), str(folder), "--port", "0", "--batch", "16", "--wait", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield model, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def ask(address, path, content=None):
    data = None if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
    try:
        with urllib.request.urlopen(address + path, data, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_requests_are_computed_in_batches(served):
    model, address = served
    before = ask(address, "/statistics")[1]
    images, scales = torch.randn(40, 8), torch.randn(40)
    with ThreadPoolExecutor(40) as pool:
        requests = [{"image": image.tolist(), "scale": float(scale)} for image, scale in zip(images, scales, strict=True)]
        answers = list(pool.map(lambda request: ask(address, "/predict", request), requests))
    wanted = model(images, scales)
    for row, (status, answer) in enumerate(answers):
        assert status == 200
        torch.testing.assert_close(torch.tensor(answer["result"]["scores"]), wanted["scores"][row])
        assert answer["result"]["best"] == wanted["best"][row]
    after = ask(address, "/statistics")[1]
    assert after["requests"] - before["requests"] == 40 and 3 <= after["batches"] - before["batches"] <= 20


@pytest.mark.parametrize("content", [
    b"nonsense", b"[1, 2]", {}, {"image": [1.0] * 8}, {"image": [1.0] * 8, "scale": 1.0, "more": 2},
    {"image": [1.0] * 7, "scale": 1.0}, {"image": "text", "scale": 1.0}, {"image": [[1.0], [1.0, 2.0]], "scale": 1.0},
    {"image": [[1.0] * 8], "scale": 1.0},
])  # fmt: skip
def test_a_request_that_is_not_in_the_contract_is_answered_with_what_is_wrong(served, content):
    _, address = served
    status, answer = ask(address, "/predict", content)
    assert status == 400 and len(answer["error"]) > 8
    good = {"image": [1.0] * 8, "scale": 1.0}
    assert ask(address, "/predict", good)[0] == 200


def test_contract_and_other_paths(served):
    _, address = served
    assert [each["name"] for each in ask(address, "/contract")[1]["inputs"]] == ["image", "scale"]
    assert ask(address, "/nowhere")[0] == 404 and ask(address, "/nowhere", {})[0] == 404
