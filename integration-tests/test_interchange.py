"""Models in other runtimes: as ONNX models in ONNX Runtime, as StableHLO text in XLA, both beside eager.

The runtimes are optional: without them the tests are skipped. So is nothing of what needs none
(packages/compile-api/tests/test_stablehlo.py).
"""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch
import zoo

import compile_api

TESTS = Path(__file__).parents[1] / "packages" / "compile-api" / "tests"
sys.path.insert(0, str(TESTS))

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")), reason="needs onnx and onnxruntime"
)
needs_xla = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "jaxlib")), reason="needs jax and jaxlib"
)


class UNet(torch.nn.Module):
    """Two levels, with a transposed convolution, a concatenation and an interpolation."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, groups=2), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x):
        a = self.down(x)
        b = self.middle(torch.nn.functional.max_pool2d(a, 2))
        wide = torch.nn.functional.interpolate(b, scale_factor=2, mode="bilinear")
        return self.last(torch.cat([a, self.up(b)], 1)) + wide[:, :8]


class Tagger(torch.nn.Module):
    """A recurrent network over a batch of sequences."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Language(torch.nn.Module):
    """A model of transformers that returns one tensor."""

    def __init__(self, model, result):
        super().__init__()
        self.model, self.result = model, result

    def forward(self, input_ids, attention_mask):
        more = {} if self.result == "last_hidden_state" else {"use_cache": False}
        return getattr(self.model(input_ids=input_ids, attention_mask=attention_mask, **more), self.result)


def images(model):
    """A model of images, examples, and the dimensions that may differ."""
    argument = next(iter(inspect.signature(model.forward).parameters))
    size = 16 if isinstance(model, UNet) else 64
    given = [(torch.randn(n, 3, size, size),) for n in (2, 5)]
    return model, given, {argument: {0: "batch"}}


def vision(name):
    zoo.import_torchvision()
    import timm

    more = {"img_size": 64, "depth": 2} if name.startswith("vit") else {}
    return images(timm.create_model(name, pretrained=False, **more).eval())


def language(kind, result, **config):
    zoo.import_torchvision()
    import transformers

    settings = getattr(transformers, f"{kind[0]}Config")(vocab_size=99, **config)
    model = Language(getattr(transformers, kind[1])(settings).eval(), result).eval()
    given = []
    for batch, length in ((2, 7), (3, 11)):
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length - 3 :] = 0
        given.append((torch.randint(0, 99, (batch, length)), mask))
    sizes = {0: "batch", 1: compile_api.Dim("length", 2, 32)}
    return model, given, {"input_ids": sizes, "attention_mask": sizes}


def sequences():
    given = [(torch.randn(b, t, 8),) for b, t in ((2, 5), (3, 9))]
    return Tagger().eval(), given, {"x": {0: "batch", 1: "time"}}


MODELS = {
    "ResNet-18": lambda: vision("resnet18"),
    "MobileNetV3": lambda: vision("mobilenetv3_small_050"),
    "ViT": lambda: vision("vit_tiny_patch16_224"),
    "BERT": lambda: language(("Bert", "BertModel"), "last_hidden_state", hidden_size=32, num_hidden_layers=2,
                             num_attention_heads=4, intermediate_size=37),
    "GPT-2": lambda: language(("GPT2", "GPT2LMHeadModel"), "logits", n_embd=32, n_layer=2, n_head=4, n_positions=64,
                              bos_token_id=0, eos_token_id=1),
    "Llama": lambda: language(("Llama", "LlamaForCausalLM"), "logits", hidden_size=32, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, intermediate_size=37),
    "UNet": lambda: images(UNet().eval()),
    "LSTM": sequences,
}  # fmt: skip


def exported(name, dynamic):
    """The model, its program, and the calls to compare."""
    torch.manual_seed(0)
    model, given, shapes = MODELS[name]()
    program = compile_api.export(model, given[0], dynamic_shapes=shapes if dynamic else None)
    return model, program, given if dynamic else given[:1]


def check(model, program, given, results):
    tensors = [leaf for leaf in program.contract.leaves(given, {}) if isinstance(leaf, torch.Tensor)]
    with torch.no_grad():
        wanted = model(*given)
    (got,) = results([t.numpy() for t in tensors])
    torch.testing.assert_close(torch.from_numpy(got.copy()), wanted, rtol=1e-4, atol=2e-6 * float(wanted.abs().max()))


@needs_onnx
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", list(MODELS))
def test_onnx(name, dynamic, tmp_path):
    import onnx
    import onnxruntime

    model, program, calls = exported(name, dynamic)
    file = compile_api.to_onnx(program, tmp_path / "model.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    loaded = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [i.name for i in loaded.get_inputs()]
    for given in calls:
        check(model, program, given, lambda tensors: loaded.run(None, dict(zip(names, tensors, strict=True))))


# ---- StableHLO -------------------------------------------------------------------------------------------------------


@needs_xla
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["ResNet-18", "ViT", "BERT", "GPT-2", "Llama", "UNet", "LSTM"])
def test_stablehlo(name, dynamic):
    import hlo

    model, program, calls = exported(name, dynamic)
    if name == "LSTM" and dynamic:
        with pytest.raises(compile_api.errors.UserError, match=r"mkldnn_rnn_layer\.default: its steps"):
            compile_api.to_stablehlo(program)
        return
    text = compile_api.to_stablehlo(program)
    weights = [program.weights[what].numpy() for kind, what in program.contract.sources if kind == "weight"]
    for given in calls:
        check(model, program, given, lambda tensors: hlo.run(text, [*tensors, *weights]))


def test_the_document_names_what_does_not_map():
    from compile_api.deploy.interchange.stablehlo.table import STABLEHLO

    said = (TESTS.parents[2] / "docs" / "deployment.md").read_text().split("## Other runtimes")[1]
    unmapped = set(STABLEHLO.unmapped)
    if importlib.util.find_spec("onnx") is not None:
        from compile_api.deploy.interchange.onnx.table import ONNX

        unmapped |= set(ONNX.unmapped)
    assert all(f"`{name}`" in said for name in unmapped)


@needs_xla
def test_stablehlo_with_weights_inside():
    import hlo

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.BatchNorm1d(8)).eval()
    x = torch.randn(3, 4)
    text = compile_api.to_stablehlo(compile_api.export(model, (x,)), constants=True)
    (got,) = hlo.run(text, [x.numpy()])
    torch.testing.assert_close(torch.from_numpy(got.copy()), model(x).detach())
