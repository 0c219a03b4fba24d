"""``python -m inductor_gen show FILE``: what a stored graph of the prim dialect becomes, stage by stage.

``FILE`` is what :func:`prims.ir.save` writes. ``--stage`` takes ``graph``, ``rewritten`` (with the rows that changed
it), ``fused``, ``kernels`` (the Kernel IR in the order in which it runs), ``code`` or ``memory`` (its peak, the lower
bound, which buffers share it); without it all are printed. ``--triton`` shows Triton kernels also for values on the
CPU, ``--device NAME`` what is generated for a GPU of that name. ``--fuel N`` stops after N rewrites and fusions.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from prims.errors import QuintetError

__all__ = ["main", "stages"]

STAGES = ("graph", "rewritten", "fused", "kernels", "code", "memory")


def stages(
    path: str, triton: bool = False, device: str | None = None, fuel: int | None = None
) -> dict[str, Callable[[], str]]:  # fmt: skip
    """What makes the text of each stage of a stored graph.

    Raises:
        UserError: the file cannot be read, or holds no graph of the prim dialect, or nothing is known of the device.
    """
    from inductor_gen.device.record import device_of, known
    from inductor_gen.fuse import check
    from inductor_gen.kernel import ir
    from inductor_gen.pipeline import lower_graph, planned, rewritten_graph
    from inductor_gen.plan import memory
    from prims.errors import UserError
    from prims.ir import load
    from prims.options import Options

    env = load(path)
    if env.dialect != "prim":
        raise UserError(f"{path} holds a graph of the {env.dialect} dialect; lower it first (prims.lower.lower)")
    options = Options(verify="off", fuel=fuel)
    devices = device_of if device is None else lambda _: known(device)
    builder, steps = planned(env, options, devices=devices)

    @functools.cache
    def lowered() -> Any:
        return lower_graph(env, options, triton=triton, devices=None if device is None else devices)

    def code() -> str:
        return "\n".join(f"# {s.name}\n{s.text}" for s in {s.name: s for s in lowered().sources()}.values())

    return {
        "graph": lambda: str(env), "rewritten": lambda: str(rewritten_graph(env, options, devices=devices)),
        "fused": lambda: check.text(builder.fusion), "kernels": lambda: ir.text(steps), "code": code,
        "memory": lambda: memory.text(lowered().memory),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser("python -m inductor_gen", description=__doc__)
    show = parser.add_subparsers(required=True).add_parser("show", help="print the stages of a stored graph")
    show.add_argument("file")
    show.add_argument("--stage", choices=STAGES)
    show.add_argument("--triton", action="store_true")
    show.add_argument("--device")
    show.add_argument("--fuel", type=int)
    options = parser.parse_args(arguments)
    try:
        texts = stages(options.file, options.triton, options.device, options.fuel)
        for name in (options.stage,) if options.stage else STAGES:
            print(texts[name]() if options.stage else f"==== {name}\n{texts[name]()}\n")
    except (QuintetError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
