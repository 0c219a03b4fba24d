"""``python -m inductor_gen show FILE``: what a stored graph of the prim dialect becomes, stage by stage.

``FILE`` is what :func:`prims.ir.save` writes. ``--stage`` takes ``graph``, ``fused``, ``kernels`` (the Kernel IR in the
order in which it runs), ``code`` or ``memory`` (its peak, the lower bound, which buffers share it); without it all are
printed. ``--triton`` shows Triton kernels also for values on the CPU.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from prims.errors import QuintetError

__all__ = ["main", "stages"]

STAGES = ("graph", "fused", "kernels", "code", "memory")


def stages(path: str, triton: bool = False) -> dict[str, Callable[[], str]]:
    """What makes the text of each stage of a stored graph.

    Raises:
        UserError: the file cannot be read, or holds no graph of the prim dialect.
    """
    from inductor_gen.fuse import check
    from inductor_gen.kernel import ir
    from inductor_gen.pipeline import lower_graph, planned
    from inductor_gen.plan import memory
    from prims.errors import UserError
    from prims.ir import load
    from prims.options import Options

    env = load(path)
    if env.dialect != "prim":
        raise UserError(f"{path} holds a graph of the {env.dialect} dialect; lower it first (prims.lower.lower)")
    options = Options(verify="off")
    plan = planned(env, options)

    @functools.cache
    def lowered() -> Any:
        return lower_graph(env, options, triton=triton)

    def code() -> str:
        return "\n".join(f"# {s.name}\n{s.text}" for s in {s.name: s for s in lowered().sources()}.values())

    return {
        "graph": lambda: str(env), "fused": lambda: check.text(plan.fusion), "kernels": lambda: ir.text(plan.steps),
        "code": code, "memory": lambda: memory.text(lowered().memory),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser("python -m inductor_gen", description=__doc__)
    show = parser.add_subparsers(required=True).add_parser("show", help="print the stages of a stored graph")
    show.add_argument("file")
    show.add_argument("--stage", choices=STAGES)
    show.add_argument("--triton", action="store_true")
    options = parser.parse_args(arguments)
    try:
        texts = stages(options.file, options.triton)
        for name in (options.stage,) if options.stage else STAGES:
            print(texts[name]() if options.stage else f"==== {name}\n{texts[name]()}\n")
    except (QuintetError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
