"""PyTorch's own compiler stays out: nobody of ours imports it, and programs of torch alone never load it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAMS = {
    "functions": """
        f = lambda x, y: torch.sin(x) + torch.cos(y)
        compile_api.compile(f, fullgraph=True)(torch.randn(4), torch.randn(4))
        compile_api.compile(lambda x, n: x + n)(torch.randn(4), 3)
        """,
    "breaks": """
        def bar(a, b):
            x = a / (torch.abs(a) + 1)
            if b.sum() < 0:
                b = b * -1
            return x * b
        c = compile_api.compile(bar)
        c(torch.randn(4), torch.ones(4)), c(torch.randn(4), -torch.ones(4))
        compile_api.explain(bar)(torch.randn(4), torch.ones(4))
        """,
    "disable": """
        @compile_api.disable(recursive=False)
        def inner(a, b):
            return torch.complex(a, b).conj()
        compile_api.compile(lambda a, b: inner(a, b).real + 1)(torch.randn(4), torch.randn(4))
        """,
    "numpy": """
        compile_api.compile(lambda x: torch.from_numpy(x.numpy() * 2) + 1)(torch.randn(4))
        """,
    "transformer": """
        case = zoo.build("transformer", small=True)
        compile_api.compile(case.model, fullgraph=True)(*case.args)
        compile_api.compile(case.model, dynamic=True)(*case.args)
        """,
    "convnet": """
        case = zoo.build("convnet", small=True)
        compile_api.compile(case.model, fullgraph=True)(*case.args)
        """,
}

#: Asks, at each import of a forbidden module, whether a file of ours is the one that asked.
WATCH = """
    import sys
    FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch.partitioners",
                 "torch._prims", "torch._refs", "torch._decomp", "torch._export", "torch.export", "torch._subclasses",
                 "torch.fx.experimental.proxy_tensor", "torch.fx.experimental.symbolic_shapes")
    OURS = ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")
    asked = []
    class Watch:
        def find_spec(self, name, path=None, target=None):
            if name.startswith(FORBIDDEN):
                frame = sys._getframe(1)
                while frame and (frame.f_globals.get("__name__") or "").startswith("importlib"):
                    frame = frame.f_back
                if frame and (frame.f_globals.get("__name__") or "").split(".")[0] in OURS:
                    asked.append((name, frame.f_code.co_filename, frame.f_lineno))
            return None
    import torch
    sys.meta_path.insert(0, Watch())
    before = {name for name in sys.modules if name.startswith(FORBIDDEN)}
    import compile_api, zoo
"""


def run(body: str) -> str:
    here = os.path.dirname(__file__)
    script = textwrap.dedent(WATCH) + "\n" + textwrap.dedent(body)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_torch_alone(name):
    run(
        "with torch.no_grad():\n"
        + textwrap.indent(textwrap.dedent(PROGRAMS[name]), "    ")
        + """
assert not asked, asked
for name in ("torch._dynamo", "torch._inductor"):
    assert name not in sys.modules, name
"""
    )


def test_gradients_of_torch_alone():
    run(
        """
        case = zoo.build("transformer", small=True)
        compile_api.compile(case.model)(*case.args).square().mean().backward()
        assert not asked, asked
        for name in ("torch._dynamo", "torch._inductor"):
            assert name not in sys.modules, name
        """
    )


TRAINING = """
    from torch import nn
    import torch.nn.functional as F

    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result)
            return result
        @staticmethod
        def backward(ctx, tangent):
            return tangent * ctx.saved_tensors[0]

    images = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4), nn.Tanh(),
    )
    words = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    pixels, embedded = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 16, requires_grad=True)
    longer = compile_api.compile(words, dynamic=True)

    def cast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return images(x)

    def step(x):
        loss = images(x).square().mean()
        loss.backward()
        return loss.detach()

    runs = [
        lambda: compile_api.compile(images)(pixels), lambda: compile_api.compile(words)(embedded),
        lambda: longer(embedded[:, :3]).sum() + longer(embedded[:, :4]).sum() + longer(embedded).sum(),
        lambda: compile_api.compile(cast)(pixels).float(), lambda: compile_api.compile(Exponential.apply)(embedded),
        lambda: compile_api.compile(lambda x: F.cross_entropy(x.flatten(0, 1), torch.arange(10)))(embedded),
        lambda: compile_api.compile(lambda x: x.cumsum(1).sigmoid().logsumexp(0))(embedded),
        lambda: compile_api.compile(lambda x: (x * 2).mul(x)[0].sigmoid_())(embedded),
        lambda: compile_api.compile(nn.LSTM(16, 8))(embedded)[0],
    ]
    for run in runs:
        run().sum().backward()
    compile_api.compile(step)(pixels)
    assert not asked, asked
    for name in ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor", "sympy"):
        assert name not in sys.modules, name
    compile_api.compile(lambda: torch.optim.AdamW(images.parameters()).step())()  # which loads PyTorch's compiler itself
    assert not asked, asked
    """


def test_training_loads_no_symbolic_shapes():
    """PyTorch's parts that import them, and sympy with them (0.3 s), are not met on the way to gradients."""
    run(TRAINING)


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_library_models(name):
    """torchvision and transformers import PyTorch's compiler themselves; we never ask for it."""
    run(
        f"""
        case = zoo.build("{name}", small=True)
        with torch.no_grad():
            compile_api.compile(case.model)(*case.args, **case.kwargs)
        assert not asked, asked
        """
    )


def test_import_is_light():
    """Nothing heavy rides along with ``import compile_api``."""
    run(
        """
        for name in ("sympy", "networkx", "rich", "triton", "torch._dynamo", "torch._inductor", "numpy.testing"):
            assert name not in sys.modules or name in before, name
        """.replace("import compile_api, zoo", "import compile_api")
    )
