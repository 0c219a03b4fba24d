"""Real models on a GPU, random weights: every precision and mode, in generated kernels, as accurate as eager."""

from __future__ import annotations

import functools

import pytest
import torch
from on_gpu import DEVICE, all_generated, blockwise, gpu_case, inference, training, working_dtype

MODELS = [
    "transformer", "convnet", "densenet121", "resnet18", "resnet50", "resnext101_32x8d", "convnext_tiny",
    "efficientnet_b0", "bert", "gpt2", "llama", "t5_encoder", "vit_b_16",
]  # fmt: skip
MODES = ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
HALVES = [torch.bfloat16, torch.float16]

#: Batch norm over a few values amplifies rounding without bound: these models train on a batch of several images.
BATCH = {"resnet18": 4, "resnet50": 4, "densenet121": 4, "resnext101_32x8d": 4, "efficientnet_b0": 4}


@pytest.mark.parametrize("tf32", [False, True], ids=["ieee", "tf32"])
@pytest.mark.parametrize("name", MODELS)
def test_float32(name, tf32):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    all_generated(inference(gpu_case(name, small=True)), graphs=1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_low_precision(name, dtype):
    all_generated(inference(gpu_case(name, dtype, small=True)), graphs=1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_autocast(name, dtype):
    around = functools.partial(torch.autocast, "cuda", dtype)
    all_generated(inference(gpu_case(name, small=True), around=around), graphs=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_modes(name, mode):
    all_generated(inference(gpu_case(name, torch.bfloat16, small=True), calls=4, mode=mode), graphs=1)


@pytest.mark.parametrize("name", ["bert", "resnet50", "densenet121", "gpt2", "llama", "t5_encoder", "vit_b_16"])
def test_full_size(name):
    all_generated(inference(gpu_case(name, torch.bfloat16, batch=2), calls=2), graphs=1)


@pytest.mark.parametrize("tf32", [False, True], ids=["ieee", "tf32"])
@pytest.mark.parametrize("name", MODELS)
def test_training_float32(name, tf32):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    training(gpu_case(name, small=True, **_batch(name)), working=torch.float16 if tf32 else None)


@pytest.mark.parametrize("name", MODELS)
def test_training_bfloat16(name):
    training(gpu_case(name, torch.bfloat16, small=True, **_batch(name)), working=torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_training_autocast(name, dtype):
    around = functools.partial(torch.autocast, "cuda", dtype)
    training(gpu_case(name, small=True, **_batch(name)), around=around, working=dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_training_modes(name, mode):
    case = gpu_case(name, small=True, **_batch(name))
    training(case, steps=4, mode=mode, working=working_dtype(case))


#: Statistics over a few values leave too little of a block's gradients to tell damage from rounding.
IMAGES = {name: {"batch": 16} for name in BATCH} | {"convnext_tiny": {"batch": 4}, "efficientnet_b0": {"batch": 64}}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_blocks_low_precision(name, dtype):
    blockwise(gpu_case(name, dtype, small=True, **IMAGES.get(name, {})))


@pytest.mark.parametrize("name", MODELS)
def test_blocks_autocast(name):
    around = functools.partial(torch.autocast, "cuda", torch.bfloat16)
    blockwise(gpu_case(name, small=True, **IMAGES.get(name, {})), around=around, working=torch.bfloat16)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["transformer", "resnet18", "bert", "llama"])
def test_blocks_modes(name, mode):
    blockwise(gpu_case(name, torch.bfloat16, small=True, **IMAGES.get(name, {})), steps=4, mode=mode)


def _batch(name):
    return {"batch": BATCH[name]} if name in BATCH else {}


def test_the_sine_loop():
    case = gpu_case("sine")
    all_generated(inference(case), graphs=1, kernels=1)
    assert case.args[0].device.type == DEVICE.type
