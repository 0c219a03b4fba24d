"""Stand-alone scripts that reproduce what a captured graph does: its program as Python, its inputs as safetensors.

A graph that cannot be written as Python (it holds functions of the program's own, a branch's or a loop's bodies) is
stored as ``prims.ir.save`` stores it, where that can, and the script loads it.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from prims.debug import place_for
from prims.ir.tensors import write_tensors
from prims.options import Options
from prims.records import record

__all__ = ["Script", "function_script", "program_text", "write_script"]

#: What a line of generated code does beside its call: it lets go of values.
_RELEASES = re.compile(r";  .*")


@record
class Script:
    """Where a reproduction lies: the script, and the files that it reads."""

    path: str
    others: tuple[str, ...] = ()


def program_text(graph: torch.fx.Graph, name: str = "program") -> tuple[list[str], str] | None:
    """A graph as a Python function: its import lines and its text, each line with the user's line.

    None where it calls something that a fresh process could not import.
    """
    if any(node.op in ("get_attr", "call_module") for node in graph.nodes):
        return None
    code = graph.python_code("self")
    imports = {"import torch"}
    for used, value in code.globals.items():
        if not re.search(rf"\b{re.escape(used)}\b", code.src):
            continue
        line = _import_of(used, value)
        if line is None:
            return None
        imports.add(line)
    sources = {node.name: node.meta.get("source") for node in graph.nodes}
    lines = []
    for line in code.src.splitlines():
        text = _RELEASES.sub("", line.rstrip())
        if text.startswith("def forward"):
            text = text.replace("def forward(self, ", f"def {name}(").replace("def forward(self", f"def {name}(")
        made = text.strip().partition(" = ")[0]
        if sources.get(made) is not None:
            text += f"  # {sources[made]}"
        if text.strip():
            lines.append(text)
    return sorted(imports - {""}), "\n".join(lines)


def _import_of(used: str, value: Any) -> str | None:
    """The line that makes a global name of generated code known; empty where none is needed, None where none can."""
    if used == "torch":
        return ""
    known = torch.fx.graph._custom_builtins.get(used)
    if known is not None:
        return known.import_str
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or "." in name or module == "__main__":
        return None
    try:
        same = getattr(importlib.import_module(module), name, None) is value
    except ImportError:
        return None
    owned = module.partition(".")[0] in ("torch", "prims", "math", "operator", "_operator", "builtins")
    return f"from {module} import {name} as {used}" if same and owned else None


def write_script(
    what: str, why: str, gm: torch.fx.GraphModule, args: Sequence[Any], options: Options, backend: str,
    slow: float | None = None, sources: bool = False,
) -> Script | None:  # fmt: skip
    """Write a script that runs the graph compiled and eagerly on ``args`` and says how they differ; with ``slow``,
    whether compiled it takes so many times as long.

    Args:
        what: part of the file's name.
        why: the script's first line.
        args: the graph's inputs, tensors and numbers.
        sources: take kernels' sources from the folder beside it, where there is one.

    Returns:
        Where it is; None where nothing can be written.
    """
    path = place_for(options, what, ".py")
    if path is None:
        return None
    base, others = path[: -len(".py")], []
    text = program_text(gm.graph)
    if text is None:
        others.append(_stored(gm, base + ".json"))
        imports = ["import torch", "from prims import ir"]
        program = f"program = ir.load({_beside(base + '.json')}).module().forward"
    else:
        imports, program = text
    tensors, given = _inputs(args)
    if tensors:
        others.append(base + ".safetensors")
        write_tensors(tensors, others[-1])
    stored = others[-1] if tensors else None
    _write(
        path, why, imports, program, "program", given, stored, bool(others) or sources, _changed(options),
        backend, slow, sources,
    )  # fmt: skip
    return Script(path, tuple(others))


def function_script(path: str, why: str, text: str, name: str, args: Sequence[Any]) -> Script:
    """Write a script that runs the function ``name``, whose source is ``text``, compiled and eagerly on ``args``."""
    tensors, given = _inputs(args)
    stored = None
    if tensors:
        stored = path[: -len(".py")] + ".safetensors"
        write_tensors(tensors, stored)
    _write(path, why, ["import torch"], text, name, given, stored, bool(stored), {}, "inductor")
    return Script(path, (stored,) if stored else ())


def _write(
    path: str, why: str, imports: Sequence[str], program: str, name: str, given: Sequence[str], stored: str | None,
    reads: bool, options: dict[str, Any], backend: str, slow: float | None = None, sources: bool = False,
) -> None:  # fmt: skip
    does = "Compares the program below, compiled, with eager and float64; ends with 1 where they differ."
    call, ends = f"compile_api.compare({name}", "0 if found.same else 1"
    if slow is not None:
        does = f"Times the program below, compiled and eager; ends with 1 where it takes over {slow:g} times as long."
        call, ends = f"timed({name}", f"int(found.ratio > {slow!r})"
    lines = [
        f'"""{why.replace(chr(92), "/").replace(chr(34), chr(39))}', "",
        does,
        '"""', "",
        *(["import os"] if reads else []), "import sys", "", *imports,
        "", "import compile_api",
        *(["from compile_api.slow import timed"] if slow is not None else []),
        *(["from prims.ir.tensors import read_tensors"] if stored else []), "",
        *([f"tensors = read_tensors({_beside(stored)})"] if stored else []), "", "",
        program, "", "",
        _GIVEN if stored else "",
        "inputs = [", *(f"    {text}," for text in given), "]", "",
        f"options = {options!r}",
        *([f"sources = {_beside('sources')}  # of the kernels: edit them, and run this again",
           "options |= {'sources': sources} if os.path.isdir(sources) else {}"] if sources else []),
        f"found = {call}, *inputs, backend={backend!r}, options=options)",
        "print(found)",
        f"sys.exit({ends})", "",
    ]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


_GIVEN = '''def given(name, strides, requires_grad=False, leaf=True):
    """An input with the strides that it had."""
    value = tensors[name]
    value = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
    value.requires_grad_(requires_grad)
    return value if leaf else value.clone()

'''


def _beside(path: str) -> str:
    return f"os.path.join(os.path.dirname(os.path.abspath(__file__)), {os.path.basename(path)!r})"


def _stored(gm: torch.fx.GraphModule, path: str) -> str:
    from prims import ir

    ir.save(gm.meta["envelope"], path)
    return path


def _inputs(args: Sequence[Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """What is stored, and the expression that makes each input again."""
    tensors: dict[str, torch.Tensor] = {}
    texts = []
    for index, value in enumerate(args):
        if not isinstance(value, torch.Tensor):
            texts.append(f"float({str(value)!r})" if isinstance(value, float) else repr(value))
            continue
        name, plain = f"input_{index}", value.detach()
        back = ""
        if plain.is_complex():
            plain, back = torch.view_as_real(plain.resolve_conj()), ", complex"
        tensors[name] = plain.resolve_neg()
        if back:
            texts.append(f"torch.view_as_complex(tensors[{name!r}]).requires_grad_({value.requires_grad})")
            continue
        needs = ", requires_grad=True" if value.requires_grad else ""
        text = f"given({name!r}, {tuple(value.stride())!r}{needs}{'' if value.is_leaf else ', leaf=False'})"
        texts.append(text + (f".to({str(value.device)!r})" if value.device.type != "cpu" else ""))
    return tensors, texts


def _changed(options: Options) -> dict[str, Any]:
    """The options that are not the defaults, but for those about where things are written and what is looked at."""
    plain = Options()
    left_out = ("cache_dir", "check", "debug", "logs", "progress", "sources", "fullgraph", "strict")
    return {
        name: getattr(options, name) for name in Options.names()
        if name not in left_out and getattr(options, name) != getattr(plain, name)
    }  # fmt: skip
