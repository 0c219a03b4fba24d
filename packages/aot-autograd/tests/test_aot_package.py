"""The README's examples, imports, and what a call costs."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import timeit
from pathlib import Path

import torch
from test_aot_training import function_graph

from aot_autograd import aot_function
from prims.options import Options

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_readme_examples_run_and_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 3
    shown = re.search(r"<!-- output: forward -->\n```text\n(.*?)```", README, re.S)
    assert shown is not None
    printed = io.StringIO()
    namespace: dict = {"__name__": "readme"}
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), namespace)
    assert shown.group(1).strip() in printed.getvalue()
    # The backward graph was printed too, and only when it was needed.
    assert printed.getvalue().count("envelope aten") == 2


PROGRAM = """
import sys, torch
before = set(sys.modules)
import aot_autograd
assert not {"networkx", "sympy"} & (set(sys.modules) - before)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout())
graph = torch.fx.Graph()
x = graph.placeholder("x")
root = torch.nn.Module()
root.model = model
graph.output(graph.call_module("model", (x,)))
gm = torch.fx.GraphModule(root, graph)
data = torch.randn(2, 3, 8, 8)
compiled = aot_autograd.aot_function(
    gm, [data], fw_compiler=aot_autograd.run_eagerly, partition_fn=aot_autograd.min_cut_partition,
    options=__import__("prims.options").options.Options(strict=True),
)
compiled(data).sum().backward()
assert model[0].weight.grad is not None
bad = [m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd"))]
assert not bad, bad
"""


def test_nothing_of_torchs_compiler_is_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_overhead_of_a_call():
    x = torch.randn(4)
    compiled = aot_function(
        function_graph(lambda x: (x * 2, x + 1)), [x], fw_compiler=lambda env, report: lambda x: (x, x),
        options=Options(strict=True),
    )
    bare = lambda x: (x, x)
    cost = min(timeit.repeat(lambda: compiled(x), number=2000, repeat=7)) / 2000
    floor = min(timeit.repeat(lambda: bare(x), number=2000, repeat=7)) / 2000
    assert cost - floor < 2e-6


def test_wrapper_source_is_readable():
    compiled = aot_function(
        function_graph(lambda x: (x.add_(1), x.t())[1]), [torch.ones(2, 3)],
        fw_compiler=lambda env, report: env.module(), options=Options(strict=True),
    )
    assert "args[0].copy_(o0)" in compiled.__source__
    assert "return v0" in compiled.__source__
