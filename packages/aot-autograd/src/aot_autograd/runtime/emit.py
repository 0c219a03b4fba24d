"""Generating the Python that runs on every call, specialised to one compilation.

A call must cost microseconds, so what is known at compile time (which results are plain outputs, which inputs are
written, which views are replayed) is written out as straight-line code. ``function.__source__`` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch

from aot_autograd.runtime.emitted import (
    SIZE_FUNCTIONS,
    as_made,
    as_strided_from,
    copy_all,
    emitted_function,
    write_over,
    written,
)  # fmt: skip
from aot_autograd.trace.outcome import Leaf, Outcome
from aot_autograd.trace.views import ViewStep
from prims.errors import InternalError
from prims.ir.symbols import expr_of, symbols_in

__all__ = ["Source", "emit_mutations", "emit_results", "emit_symbols", "emit_view"]

aten = torch.ops.aten


class Source:
    """Lines of a function body and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.globals: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def line(self, text: str) -> None:
        """Append a line (with its own indentation)."""
        self.lines.append(text)

    def name(self, value: Any, hint: str = "k") -> str:
        """A global name for an object; the same object keeps its name."""
        known = self._names.get(id(value))
        if known is None:
            known = self._names[id(value)] = f"{hint}{len(self._names)}"
            self.globals[known] = value
        return known

    def literal(self, value: Any) -> str:
        """Text for a constant: itself if Python can write it, a global name otherwise."""
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        return self.name(value)

    def text(self, head: str) -> str:
        """``def <head>:`` with the lines as its body."""
        return f"def {head}:\n" + "".join(f"    {line}\n" for line in self.lines or ["pass"])

    def function(self, head: str) -> Any:
        """Compile ``def <head>:`` with the lines as its body; returns the function."""
        return emitted_function(self.text(head), self.globals)

    def size(self, value: Any) -> str:
        """Text for a size whose symbols are local variables."""
        expr = expr_of(value)
        if expr is None:
            return self.literal(value)
        names = sorted(symbols_in(value))
        text = str(expr)
        try:
            hints = dict.fromkeys(names, 8)
            if eval(text, {"__builtins__": {}, **SIZE_FUNCTIONS}, hints) != expr.evaluate(hints):
                raise InternalError(f"the text of size {text} has another value")
        except (NameError, SyntaxError, TypeError):
            evaluate = self.name(expr.evaluate, "size")
            return f"{evaluate}({{{', '.join(f'{n!r}: {n}' for n in names)}}})"
        self.globals.update(SIZE_FUNCTIONS)
        return f"({text})"

    def sizes(self, values: Any) -> str:
        """Text for a tuple of sizes."""
        return "(" + "".join(f"{self.size(v)}, " for v in values) + ")"

    def argument(self, value: Any) -> str:
        """Text for an operator argument."""
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.argument(v) for v in value) + "]"
        return self.size(value)


def emit_symbols(source: Source, outcome: Outcome, names: Set[str], args: str = "args") -> None:
    """Local variables for the symbols in ``names``, read from the inputs."""
    if not names:
        return
    from prims.ir import SymbolTable

    inputs = tuple(desc for desc in outcome.program.tracer.inputs if desc.kind != "tangent")
    table = SymbolTable.from_inputs(inputs, outcome.program.context)
    for entry in table:
        if entry.name in names and entry.binding is not None:
            at = f"{args}[{entry.binding.input_index}]"
            dim = entry.binding.dim
            source.line(f"{entry.name} = {at}" + ("" if dim is None else f".shape[{dim}]"))


def emit_mutations(
    source: Source, triples: list[tuple[str, str, Any]], *, no_grad: bool, differentiable: bool = False,
    over: Set[str] = frozenset(),
) -> None:  # fmt: skip
    """Copy new values into written inputs: ``(input expression, value expression, input's spec)`` triples.

    Args:
        over: the inputs whose new values have a gradient for the old ones.
    """
    if not triples:
        return
    indent = ""
    if no_grad:
        source.globals["no_grad"] = torch.no_grad
        source.line("with no_grad():")
        indent = "    "
    if differentiable:
        source.globals.update({"write_over": write_over} if over else {})
        for target, value, _ in triples:
            text = f"write_over({target}, {value})" if target in over else f"{target}.copy_({value})"
            source.line(f"{indent}{text}")
        return
    source.globals["written"] = written
    # The list copy takes one launch for many tensors only where all have one dtype and device.
    groups: dict[Any, list[tuple[str, str]]] = {}
    for target, value, spec in triples:
        groups.setdefault((spec.dtype, spec.device), []).append((target, value))
    for pairs in groups.values():
        if len(pairs) == 1:
            target, value = pairs[0]
            source.line(f"{indent}if {value} is not {_tensor(target)}: {target}.copy_({value})")
            source.line(f"{indent}else: written({target})")
            continue
        source.globals["copy_all"] = copy_all
        targets = ", ".join(target for target, _ in pairs)
        inputs = ", ".join(_tensor(target) for target, _ in pairs)
        values = ", ".join(value for _, value in pairs)
        source.line(f"{indent}copy_all([{targets}], [{inputs}], [{values}])")


def _tensor(target: str) -> str:
    """The expression of the tensor that a graph is given, of which ``target`` may be ``.data``."""
    return target.removesuffix(".data")


def _replay(source: Source, base: str, leaf: Leaf, base_needs_grad: bool) -> str:
    text = base
    detached = False
    for step in _of_conjugates(leaf.steps):
        detached = detached or step.func is aten.detach.default
        text = _step_text(source, text, step)
    if base_needs_grad and not leaf.requires_grad and not detached:
        source.globals["detach"] = torch.Tensor.detach
        text = f"detach({text})"
    return text


def _of_conjugates(steps: Sequence[ViewStep]) -> list[ViewStep]:
    """Views in which a part of a conjugate is, as in eager, that part of the numbers, negated where it is imaginary:
    there is no view of a lazy conjugate's parts."""
    found: list[ViewStep] = []
    conjugate: ViewStep | None = None  # of an odd number of them, the last one
    negated = False
    for step in steps:
        if step.func is aten.conj_physical.default:
            conjugate = None if conjugate is not None else step
        elif step.func is aten.view_as_real.default and conjugate is not None:
            found.append(conjugate)  # once more, which undoes it
            conjugate, negated = None, True
        found.append(step)
        if negated and step.func is aten.select.int:
            if step.args[1] == 1:
                found.append(ViewStep(aten.neg.default, (), {}, step.result, step.result))
            negated = False
    return found


def _step_text(source: Source, text: str, step: ViewStep) -> str:
    func = step.func
    if func is aten.as_strided.default:
        # The base has at run time an offset of its own.
        size, stride, offset = step.args
        relative = offset - step.source.storage_offset
        source.globals["as_strided_from"] = as_strided_from
        return f"as_strided_from({text}, {source.argument(size)}, {source.argument(stride)}, {source.size(relative)})"
    if func is aten.conj_physical.default:
        return f"{source.name(torch.conj, 'conj')}({text})"
    if func is aten.neg.default:
        return f"{source.name(torch._neg_view, 'neg_view')}({text})"
    parts = [text, *(source.argument(a) for a in step.args)]
    parts += [f"{name}={source.argument(value)}" for name, value in step.kwargs.items()]
    return f"{source.name(func, 'op')}({', '.join(parts)})"


def emit_view(source: Source, outcome: Outcome, at: int, outputs: list[str], made: dict[int, str]) -> str:
    """The name of the view that is leaf ``at`` of the user's result.

    Args:
        outputs: the expression of each graph output.
        made: the names of those that are there already.
    """
    if at not in made:
        leaf = outcome.leaves[at]
        holder = outcome.tensors if leaf.kind == "output" else outcome.program.tracer.input_tensors
        tensor = holder[leaf.index]
        assert tensor is not None
        base = outputs[leaf.index] if leaf.kind == "output" else f"args[{leaf.index}]"
        if leaf.of is not None:
            base = emit_view(source, outcome, leaf.of, outputs, made)
        text = _replay(source, base, leaf, tensor.requires_grad)
        if leaf.made is not None and leaf.steps:
            source.globals["as_made"] = as_made
            text = f"as_made({text}, {leaf.made!r})"
        source.line(f"v{at} = {text}")
        made[at] = f"v{at}"
    return made[at]


def emit_results(source: Source, outcome: Outcome, outputs: list[str], made: dict[int, str] | None = None) -> str:
    """The expression of the user's result, with its nested structure.

    Args:
        outputs: the expression of each graph output.
        made: the names of views that are there already.
    """
    made = {} if made is None else made
    texts: list[str] = []
    for at, leaf in enumerate(outcome.leaves):
        if leaf.kind == "literal":
            texts.append(source.literal(leaf.value))
        elif leaf.kind == "size":
            texts.append(source.size(leaf.value))
        elif leaf.kind == "same":
            texts.append(texts[leaf.index])
        elif leaf.steps:
            texts.append(emit_view(source, outcome, at, outputs, made))
        else:
            texts.append(outputs[leaf.index] if leaf.kind == "output" else f"args[{leaf.index}]")
    return _structured(source, outcome.structure, texts)


def _structured(source: Source, structure: Any, texts: list[str]) -> str:
    if isinstance(structure, int):
        return texts[structure]
    kind, detail, parts = structure
    inner = [_structured(source, part, texts) for part in parts]
    if kind == "tuple":
        return "(" + "".join(f"{text}, " for text in inner) + ")"
    if kind == "list":
        return "[" + ", ".join(inner) + "]"
    if kind == "namedtuple":
        return f"{source.name(detail, 'made')}({', '.join(inner)})"
    return "{" + ", ".join(f"{source.literal(key)}: {text}" for key, text in zip(detail, inner, strict=True)) + "}"
