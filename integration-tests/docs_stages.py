"""The stages of one small model, for ``docs/how-it-works.md``: texts and pictures made from what the stages make.

The model is the page's own first example. Nothing here depends on the machine: kernels are chosen for a processor whose
record is given. ``python docs_tables.py`` writes texts and pictures anew.
"""

from __future__ import annotations

import functools
import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from docs_svg import COLOURS, Drawing

from prims.report import many

DOCS = Path(__file__).parent.parent / "docs"
FILE = "block.py"
GREY = "#999999"


class Stages(NamedTuple):
    """What the stages make of the page's model."""

    program: str
    guards: list[str]
    captured: Any
    aten: Any
    prim: Any
    builder: Any
    steps: list[Any]
    lowered: Any
    parts: Any


def first_example() -> str:
    """The page's first block of Python."""
    page = (DOCS / "how-it-works.md").read_text()
    return re.search(r"^```python\n(.*?)^```", page, flags=re.S | re.M)[1]


@functools.cache
def stages() -> Stages:
    """The model, captured, traced, lowered and scheduled."""
    import aot_autograd
    import dynamo_capture
    import inductor_gen
    from inductor_gen.device.cpu import processor
    from inductor_gen.pipeline import lower_graph, planned
    from prims.lower import lower
    from prims.options import Options

    program = first_example()
    linecache.cache[FILE] = (len(program), None, program.splitlines(keepends=True), FILE)
    space: dict[str, Any] = {"__name__": "block"}
    exec(compile(program, FILE, "exec"), space)
    model, x = space["model"], space["x"]
    with torch.no_grad():
        found = dynamo_capture.explain(model)(x)
        captured = dynamo_capture.export_graph(model, x).envelope
    inputs = [torch.zeros([int(n) for n in d.spec.shape]) for d in captured.inputs]
    gm = captured.module()
    options = Options(verify="every_pass", threads=2)
    aten = aot_autograd.inference_graph(gm, inputs, options=options)
    prim = lower(aten, claims=inductor_gen.claims("cpu", options), options=options)
    machine = processor("two cores, AVX2", 2, 32, 1 << 20, 32 << 20)
    builder, steps = planned(prim, options, devices=lambda _: machine)
    lowered = lower_graph(prim, options, devices=lambda _: machine)
    for description, value in zip(captured.inputs, inputs):
        value.requires_grad_(description.kind == "parameter")
    joint = aot_autograd.joint_graph(gm, inputs, options=options)
    parts = aot_autograd.partition_joint(joint, aot_autograd.min_cut_partition)
    return Stages(program, found.guards, captured, aten, prim, builder, steps, lowered, parts)


def fenced(text: str, language: str = "text") -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```"


def guards_text() -> str:
    """The guards without the program's line, which each of them repeats."""
    return fenced("\n".join(dict.fromkeys(g.split("  #")[0].rstrip() for g in stages().guards)))


def torch_text() -> str:
    """The captured graph."""
    return fenced(str(stages().captured))


def aten_text() -> str:
    """The ATen graph."""
    return fenced(str(stages().aten))


def prim_text() -> str:
    """The graph of primitives."""
    return fenced(str(stages().prim))


def kernel_text() -> str:
    """The C of the kernel with most operators."""
    source = max(stages().lowered.sources(), key=lambda s: len(s.ops))
    return fenced(re.sub(r"\n{3,}", "\n\n", source.text.replace("KERNEL", "kernel")), "c")


def saved_text() -> str:
    """What the forward graph hands to the backward graph."""
    parts = stages().parts
    rows = []
    for kind, index in parts.saved:
        description = (parts.forward.inputs if kind == "input" else parts.forward.outputs)[index]
        what = f"input `{description.name}`" if kind == "input" else "computed"
        shape = ", ".join(map(str, description.spec.shape))
        rows.append(f"| {what} | {str(description.spec.dtype).removeprefix('torch.')}[{shape}] |")
    return "\n".join(["| saved for the backward graph | |", "|---|---|", *rows])


def counts() -> str:
    """How many operators there are at each stage."""
    s = stages()
    calls = sum(1 for step in s.steps if not hasattr(step, "nests"))
    rows = [
        ("torch", len(list(s.captured.op_nodes)), "operations as the program calls them"),
        ("aten", len(list(s.aten.op_nodes)), "functional ATen operators"),
        ("prim", len(list(s.prim.op_nodes)), "primitives, and operators that the back end claims"),
        ("kernels", len(s.steps), f"{len(s.steps) - calls} generated kernels, {calls} calls of the matrix library"),
    ]
    return "\n".join(["| dialect | nodes | which are |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)])


def _line(source: Any) -> int | None:
    found = re.match(rf"{re.escape(FILE)}:(\d+)", str(source)) if source is not None else None
    return int(found[1]) if found else None


def _name(node: Any) -> str:
    target = node.target
    name = getattr(target, "__name__", None) if not hasattr(target, "_overloadpacket") else None
    return str(getattr(target, "name", name) if name is None and not hasattr(target, "_overloadpacket") else name or target)


def _shape(spec: Any) -> str:
    return f"[{', '.join(map(str, spec.shape))}]" if hasattr(spec, "shape") else ""


def picture_of_stages() -> str:
    """Columns, a stage each: every operator in the colour of the user's line that it comes from."""
    s = stages()
    columns = [
        ("torch", [(_name(n), [_line(n.meta.get("source"))]) for n in s.captured.op_nodes]),
        ("aten", [(_name(n), [_line(n.meta.get("source"))]) for n in s.aten.op_nodes]),
        ("prim", [(_name(n), [_line(n.meta.get("source"))]) for n in s.prim.op_nodes]),
        ("kernels and calls", [_step(step) for step in s.steps]),
    ]
    lines = sorted({line for _, column in columns for _, found in column for line in found if line is not None})
    colour = dict(zip(lines, COLOURS))
    picture = Drawing("One model, stage by stage")
    text = s.program.splitlines()
    y = 18.0
    for line in lines:
        picture.box(10, y - 10, 12, 12, colour[line])
        picture.text(28, y, f"{line:3d}  {text[line - 1].strip()}")
        y += 18
    top, x = y + 12, 10.0
    for title, column in columns:
        wide = max(7.3 * max(len(label) for label, _ in column) + 18, 7.3 * len(title) + 10)
        picture.text(x, top, f"{title}: {len(column)}", "b")
        at = top + 10
        for label, found in column:
            shown = [line for line in dict.fromkeys(found) if line is not None]
            for k, line in enumerate(shown):
                picture.box(x + k * 6, at, 6, 16, colour[line])
            picture.text(x + 6 * max(len(shown), 1) + 5, at + 12, label)
            at += 19
        x += wide + 22
    return str(picture)


def _step(step: Any) -> tuple[str, list[int | None]]:
    if not hasattr(step, "nests"):
        return f"call {step.node.op}", [_line(step.node.source)]
    return f"kernel of {many(len(step.nodes), 'primitive')}", [_line(node.source) for node in step.nodes]


def picture_of_fusion() -> str:
    """The graph of primitives after rewriting, an operator a row, in the order of the steps; arcs are values that
    stay in a kernel (in its colour) or go through memory (dashed)."""
    s = stages()
    home = {}
    rows = []
    for k, step in enumerate(s.steps):
        for node in step.nodes if hasattr(step, "nests") else (step.node,):
            home[node], kernel = k, hasattr(step, "nests")
            rows.append((node, k, kernel))
    views = [n for n in s.builder.prepared.graph.nodes if n.kind == "view"]
    picture = Drawing("Which primitives are fused")
    picture.text(10, 18, "one row an operator; solid: stays in registers; dashed: goes through memory", "s")
    left, y, places = 150.0, 34.0, {}
    for k in range(len(s.steps)):
        mine = [node for node, j, _ in rows if j == k]
        kernel = hasattr(s.steps[k], "nests")
        fill = COLOURS[k % 6] if kernel else GREY
        picture.box(left - 6, y - 2, 330, 17 * len(mine) + 4, fill, 0.15)
        picture.box(left - 6, y - 2, 4, 17 * len(mine) + 4, fill)
        moved = f"kernel: {s.steps[k].moved:,} bytes moved" if kernel else "library"
        picture.text(left + 318, y + 12, moved, "s r")
        for node in mine:
            picture.text(left + 4, y + 12, f"{node.op} {_shape(node.spec)}")
            places[node] = y + 8
            y += 17
        y += 8
    for node, place in places.items():
        for taken in _taken(node, set(views)):
            if taken in places:
                same = home[taken] == home[node]
                begin, bulge = places[taken], min(12 + 0.33 * abs(place - places[taken]), 130)
                colour = COLOURS[home[node] % 6] if same and hasattr(s.steps[home[node]], "nests") else "#555"
                picture.path(f"M{left - 8:g} {begin:g}C{left - 8 - bulge:.1f} {begin:g} {left - 8 - bulge:.1f} {place:g} "
                             f"{left - 8:g} {place:g}", colour, dashed=not same)  # fmt: skip
    return str(picture)


def _taken(node: Any, views: set[Any]) -> list[Any]:
    """The operators that a node takes values of, through views."""
    found = []
    for x in node.ins:
        found += _taken(x, views) if x in views else [x]
    return list(dict.fromkeys(found))


def picture_of_memory() -> str:
    """When each buffer is needed, and which lie at the same place."""
    s = stages()
    plan, steps = s.lowered.memory, s.lowered.calls
    picture = Drawing("When each buffer is alive")
    picture.text(10, 18, f"peak {plan.peak:,} bytes, the least that this order needs is {plan.bound:,}", "s")
    left, step_width, y = 270.0, 110.0, 44.0
    for k, call in enumerate(steps):
        name = "call" if not hasattr(call, "launch") else "kernel"
        picture.text(left + step_width * (k + 0.5), 36, f"{k} {name}", "s m")
    for number, piece in enumerate(plan.pieces):
        for node in piece.nodes:
            begin, end = _begin(node, steps), min(plan.dies[node], len(steps) - 1)
            picture.text(10, y + 12, f"{node.op} {_shape(node.spec)}")
            picture.box(left + step_width * begin + 2, y, step_width * (end - begin + 1) - 4, 16, COLOURS[number % 6], 0.5)
            picture.text(left + step_width * begin + 8, y + 12, f"piece {number}, at {plan.place[node][1]}")
            y += 20
    for k in range(len(steps) + 1):
        picture.line(left + step_width * k, 40, left + step_width * k, y)
    return str(picture)


def _begin(node: Any, steps: Any) -> int:
    for k, call in enumerate(steps):
        written = call.written() if hasattr(call, "launch") else call.writes
        if node in written:
            return k
    return 0


def _programs() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Programs that are trained, with the arguments of a call."""
    nn = torch.nn

    class Classifier(nn.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any, y: Any) -> Any:
            return nn.functional.cross_entropy(self.body(x), y)

    mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    convnet = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer, self.out = nn.Embedding(50, 32), layer, nn.Linear(32, 10)

        def forward(self, ids: Any) -> Any:
            return self.out(self.layer(self.embed(ids)).mean(1))

    y = torch.zeros(4, dtype=torch.int64)
    return {
        "a perceptron": (Classifier(mlp), (torch.randn(4, 32), y)),
        "a convolution net with batch norms": (Classifier(convnet), (torch.randn(4, 3, 16, 16), y)),
        "a transformer layer with an embedding": (Classifier(Transformer()), (torch.zeros(4, 8, dtype=torch.int64), y)),
    }  # fmt: skip


def needed() -> str:
    """The primitives that training steps of small models are made of, for a device that claims what CPUs do."""
    import aot_autograd
    import dynamo_capture
    import inductor_gen
    from prims.lower import lower
    from prims.ops import TABLE, PrimOp

    rows, everything = [], set()
    for name, (model, args) in _programs().items():
        found: list[Any] = []

        def kept(gm: Any, example_inputs: Any) -> Any:
            found.append((gm, example_inputs))
            return gm.forward

        dynamo_capture.optimize(model, kept)(*args)
        ((gm, inputs),) = found
        joint = aot_autograd.joint_graph(gm, inputs)
        parts = aot_autograd.partition_joint(joint, aot_autograd.min_cut_partition)
        targets = {
            node.target for env in (parts.forward, parts.backward)
            for node in lower(env, claims=inductor_gen.claims("cpu")).op_nodes
        }  # fmt: skip
        ops = {t.name for t in targets if isinstance(t, PrimOp)}
        called = {str(t) for t in targets if not isinstance(t, PrimOp) and str(t).startswith("aten.")}
        everything |= ops
        whole = " ".join(f"`{t.removeprefix('aten.').removesuffix('.default')}`" for t in sorted(called))
        rows.append(f"| {name} | {len(ops)}: {' '.join(f'`{op}`' for op in sorted(ops))} | {whole} |")
    head = ["| training step of | primitives | operators claimed |", "|---|---|---|"]
    return "\n".join([*head, *rows, f"| together | {len(everything)} of {len(TABLE)} | |"])


#: Texts of the page by name, and pictures by the name of their file.
TEXTS = {"guards": guards_text, "torch": torch_text, "aten": aten_text, "prim": prim_text, "kernel": kernel_text,
         "saved": saved_text, "counts": counts}  # fmt: skip
PICTURES = {"stages": picture_of_stages, "fusion": picture_of_fusion, "memory": picture_of_memory}
