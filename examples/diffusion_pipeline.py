"""A pipeline of diffusers with Quintet: the network of all its steps is compiled, in place.

    python examples/diffusion_pipeline.py

``compile_api.compile_(pipeline.unet)``: the pipeline keeps the object that it has, ``save_pretrained()`` writes what it
always writes, and the time of a step is a tensor, so that all steps are one graph. From the same noise, pictures are
eager's but for rounding.
"""

from __future__ import annotations

import sys
import tempfile
import time

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

import compile_api

STEPS = 10


def pipeline() -> DDIMPipeline:
    """A small random network with attention, and a schedule."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    made = DDIMPipeline(unet=unet.eval(), scheduler=DDIMScheduler(num_train_timesteps=1000))
    made.set_progress_bar_config(disable=True)
    return made


def pictures(pipe: DDIMPipeline, count: int, seed: int = 1) -> torch.Tensor:
    """Numbers from 0 to 1, by picture, row, column and colour."""
    noise = torch.Generator().manual_seed(seed)
    found = pipe(batch_size=count, generator=noise, num_inference_steps=STEPS, output_type="np").images
    return torch.from_numpy(found)


def timed(pipe: DDIMPipeline) -> float:
    """Milliseconds of a step."""
    start = time.perf_counter()
    pictures(pipe, 2)
    return (time.perf_counter() - start) / STEPS * 1000


def main() -> int:
    """0 where the network was compiled and the pictures are eager's."""
    pipe = pipeline()
    wanted = {count: pictures(pipe, count) for count in (2, 4)}
    before = timed(pipe)
    compile_api.compile_(pipe.unet)  # the only line that is new
    report = compile_api.report_of(pipe.unet)
    for count in (2, 4):  # another number of pictures is a size that changes
        found = pictures(pipe, count)
        print(f"{count} pictures, {STEPS} steps: {(found - wanted[count]).abs().max():.2g} from eager's at most")
        torch.testing.assert_close(found, wanted[count], atol=1e-3, rtol=0)
    print(f"a step: {before:.1f} ms eager, {timed(pipe):.1f} ms compiled")

    with tempfile.TemporaryDirectory() as folder:
        pipe.save_pretrained(folder)
        again = DDIMPipeline.from_pretrained(folder)
    assert again.unet.state_dict().keys() == pipe.unet.state_dict().keys()
    assert all(torch.equal(value, again.unet.state_dict()[key]) for key, value in pipe.unet.state_dict().items())

    for each in report.recompiles:
        print(f"captured again: {each.reason}")
    print(f"verdict: {report.verdict}")
    return 0 if report.verdict == "compiled" and len(report.recompiles) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
