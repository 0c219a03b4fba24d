"""Stand-alone scripts that reproduce what a captured graph does: its program as Python, its inputs as safetensors.

A graph that cannot be written as Python (it holds functions of the program's own, a branch's or a loop's bodies) is
stored as ``prims.ir.save`` stores it, where that can, and the script loads it.

What the graph was compiled for is part of the defect: modes and settings (:mod:`.surroundings`), inputs that share
memory, and sizes that were symbolic, which the script marks. An integer that was symbolic is given as a tensor's size.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from compile_api.surroundings import Modes
from prims.debug import place_for
from prims.ir.tensors import write_tensors
from prims.options import Options
from prims.records import record
from prims.spec import Sym, TensorSpec

__all__ = ["Script", "function_script", "program_text", "symbolic_dims", "write_script"]

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


def symbolic_dims(node: torch.fx.Node) -> tuple[int, ...] | bool:
    """The dimensions of a value whose sizes were symbolic when the graph was captured; of a number, whether it was."""
    told: tuple[int, ...] | bool | None = node.meta.get("symbolic")
    if told is not None:
        return told
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        return tuple(d for d, n in enumerate(spec.shape) if isinstance(n, Sym))
    return isinstance(spec, Sym)


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
    slow: float | None = None, sources: bool = False, modes: Modes | None = None,
) -> Script | None:  # fmt: skip
    """Write a script that runs the graph compiled and eagerly on ``args`` and says how they differ; with ``slow``,
    whether compiled it takes so many times as long.

    Args:
        what: part of the file's name.
        why: the script's first line.
        args: the graph's inputs, tensors and numbers.
        sources: take kernels' sources from the folder beside it, where there is one.
        modes: those in which the graph was compiled; by default those of this moment.

    Returns:
        Where it is; None where nothing can be written.
    """
    path = place_for(options, what, ".py")
    if path is None:
        return None
    base, others = path[: -len(".py")], []
    varying = [symbolic_dims(node) for node in gm.graph.find_nodes(op="placeholder")]
    text = program_text(gm.graph)
    if text is None:
        others.append(_stored(gm, base + ".json"))
        imports = ["import torch", "from prims import ir"]
        program = f"program = ir.load({_beside(base + '.json')}).module().forward"
        varying = [() if v is True else v for v in varying]  # there is no text that takes a number as a size
    else:
        imports, program = text[0], _with_numbers(text[1], varying)
    given = _inputs(args, varying)
    if given.tensors:
        others.append(base + ".safetensors")
        write_tensors(given.tensors, others[-1])
    stored = others[-1] if given.tensors else None
    _write(
        path, why, imports, program, "program", given, stored, bool(others) or sources, _changed(options),
        backend, modes or Modes.now(), slow, sources,
    )  # fmt: skip
    return Script(path, tuple(others))


def function_script(path: str, why: str, text: str, name: str, args: Sequence[Any]) -> Script:
    """Write a script that runs the function ``name``, whose source is ``text``, compiled and eagerly on ``args``."""
    given = _inputs(args, ())
    stored = None
    if given.tensors:
        stored = path[: -len(".py")] + ".safetensors"
        write_tensors(given.tensors, stored)
    _write(path, why, ["import torch"], text, name, given, stored, bool(stored), {}, "inductor", Modes.now())
    return Script(path, (stored,) if stored else ())


def _with_numbers(program: str, varying: Sequence[tuple[int, ...] | bool]) -> str:
    """A program's text, whose symbolic numbers are the sizes of what it is given."""
    head, _, body = program.partition("\n")
    names = [name.partition(":")[0].strip() for name in head.partition("(")[2].rpartition(")")[0].split(",")]
    taken = [name for name, v in zip(names, varying, strict=False) if v is True]
    return "\n".join([head, *(f"    {name} = {name}.shape[0]  # a number that varies" for name in taken), body])


def _write(
    path: str, why: str, imports: Sequence[str], program: str, name: str, given: _Given, stored: str | None,
    reads: bool, options: dict[str, Any], backend: str, modes: Modes, slow: float | None = None, sources: bool = False,
) -> None:  # fmt: skip
    does = "Compares the program below, compiled, with eager and float64; ends with 1 where they differ."
    call, ends = f"compile_api.compare({name}", "0 if found.same else 1"
    if slow is not None:
        does = f"Times the program below, compiled and eager; ends with 1 where it takes over {slow:g} times as long."
        call, ends = f"timed({name}", f"int(found.ratio > {slow!r})"
    context = modes.context()
    found = f"found = {call}, *inputs, backend={backend!r}, options=options)"
    lines = [
        f'"""{why.replace(chr(92), "/").replace(chr(34), chr(39))}', "",
        does,
        '"""', "",
        *(["import os"] if reads else []), "import sys", "", *imports,
        "", "import compile_api",
        *(["from compile_api.slow import timed"] if slow is not None else []),
        *(["from prims.ir.tensors import read_tensors"] if stored else []), "",
        *modes.settings,
        *([f"tensors = read_tensors({_beside(stored)})"] if stored else []), "", "",
        program, "", "",
        _GIVEN if stored else "",
        *given.memory,
        "inputs = [", *(f"    {text}," for text in given.texts), "]", *given.marks, "",
        f"options = {options!r}",
        *([f"sources = {_beside('sources')}  # of the kernels: edit them, and run this again",
           "options |= {'sources': sources} if os.path.isdir(sources) else {}"] if sources else []),
        *([f"with {context}:", f"    {found}"] if context else [found]),
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


@record(eq=False)
class _Given:
    """Inputs as a script has them.

    Attributes:
        tensors: what is stored.
        memory: lines that make the memory that several inputs share.
        texts: the expression that makes each input again.
        marks: lines that mark sizes as symbolic.
    """

    tensors: dict[str, torch.Tensor]
    memory: list[str]
    texts: list[str]
    marks: list[str]


def _inputs(args: Sequence[Any], varying: Sequence[tuple[int, ...] | bool]) -> _Given:
    """``varying``: by input, the dimensions that are symbolic; of a number, whether it is."""
    found = _Given({}, [], [], [])
    shared = _shared(args)
    for first in dict.fromkeys(shared.values()):
        name, of = f"memory_{first}", args[first]
        found.tensors[name] = torch.empty(0, dtype=of.dtype, device=of.device).set_(of.untyped_storage())
        found.memory.append(f"{name} = given({name!r}, (1,))" + _onto(of))
    for index, value in enumerate(args):
        dims = varying[index] if index < len(varying) else ()
        if isinstance(value, torch.Tensor):
            found.texts.append(_tensor(index, value, found, shared))
        elif dims is True and type(value) is int and value > 1:
            found.texts.append(f"torch.empty(1).expand({value})")
            dims = (0,)
        else:
            found.texts.append(f"float({str(value)!r})" if isinstance(value, float) else repr(value))
            continue
        if isinstance(dims, tuple) and dims:
            found.marks.append(f"compile_api.maybe_mark_dynamic(inputs[{index}], {list(dims)})")
    return found


def _tensor(index: int, value: torch.Tensor, found: _Given, shared: Mapping[int, int]) -> str:
    """The expression that makes a tensor again."""
    if index in shared:
        place = f"{tuple(value.shape)}, {tuple(value.stride())}, {value.storage_offset()}"
        return f"memory_{shared[index]}.as_strided({place})"
    name, plain = f"input_{index}", value.detach()
    back = ""
    if plain.is_complex():
        plain, back = torch.view_as_real(plain.resolve_conj()), ", complex"
    found.tensors[name] = plain.resolve_neg()
    if back:
        return f"torch.view_as_complex(tensors[{name!r}]).requires_grad_({value.requires_grad})"
    needs = ", requires_grad=True" if value.requires_grad else ""
    text = f"given({name!r}, {tuple(value.stride())!r}{needs}{'' if value.is_leaf else ', leaf=False'})"
    return text + _onto(value)


def _onto(value: torch.Tensor) -> str:
    return f".to({str(value.device)!r})" if value.device.type != "cpu" else ""


def _shared(args: Sequence[Any]) -> dict[int, int]:
    """By input, the first one in the same memory, of those that share theirs and need no gradients."""
    inside: dict[Any, list[int]] = {}
    for index, value in enumerate(args):
        plain = isinstance(value, torch.Tensor) and not (value.requires_grad or value.is_complex() or value.is_neg())
        if plain:
            inside.setdefault((value.untyped_storage()._cdata, value.dtype), []).append(index)
    return {index: some[0] for some in inside.values() if len(some) > 1 for index in some}


def _changed(options: Options) -> dict[str, Any]:
    """The options that are not the defaults, but for those about where things are written and what is looked at."""
    plain = Options()
    left_out = ("cache_dir", "check", "debug", "logs", "progress", "sources", "fullgraph", "strict")
    return {
        name: getattr(options, name) for name in Options.names()
        if name not in left_out and getattr(options, name) != getattr(plain, name)
    }  # fmt: skip
