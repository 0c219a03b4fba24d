"""The generated Python function that runs a graph: allocations, kernel launches, extern calls, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from inductor_gen.codegen.lowered import KEPT, Lowered, Rendered
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.device.backends import backend
from inductor_gen.extern.attention import BACKWARD, LOGSUMEXP, spare_mask_of
from inductor_gen.extern.calls import by_transpose, function_of
from inductor_gen.extern.custom import EMPTY, is_custom, reported_name
from inductor_gen.kernel.ir import Call as OperatorCall
from inductor_gen.kernel.traffic import Traffic
from inductor_gen.layout.record import ViewRef, extent, strides_of
from inductor_gen.loops.graph import Node, instances
from inductor_gen.loops.index import ONE, ZERO
from inductor_gen.plan.memory import Piece
from inductor_gen.runtime.helpers import FRESH, HELPERS, function_of_text
from inductor_gen.runtime.launch import Call, Launcher, Layout, Program
from inductor_gen.runtime.products import Product
from inductor_gen.runtime.steps import Parts, Step
from prims.errors import InternalError
from prims.ir import Envelope
from prims.ir.symbols import expr_of
from prims.spec import expr as ex
from prims.spec.expr import Expr, bits_of_float

__all__ = ["Wrapper", "labelled_call"]

LABEL = 400  # characters of what a profiler shows


def labelled_call(run: str, given: Sequence[str], sources: Sequence[KernelSource]) -> str:
    """The text of a call of kernels, which profilers see with the kernels' names and the user's lines."""
    lines = dict.fromkeys(line for s in sources for line in s.lines)
    label = " ".join(dict.fromkeys(s.name for s in sources)) + (": " + ", ".join(lines) if lines else "")
    label = label if len(label) <= LABEL else label[: LABEL - 3] + "..."
    return f"{run}({', '.join(given)}) if not profiled() else labelled({', '.join([repr(label), run, *given])})"


class Wrapper:
    """Writes ``call(args)`` for a lowered graph.

    Attributes:
        source: the text of the function.
        externs: the names of the operators called, in order.
        steps: the kernels and operators that run, in order.
    """

    def __init__(self, lowered: Lowered, addresses: dict[str, int], launch: Launcher) -> None:
        self.lowered = lowered
        self.env: Envelope = lowered.env
        self.prepared = lowered.prepared
        self.layouts = lowered.layouts
        self.memory = lowered.memory
        self.calls = lowered.calls
        self.addresses = addresses
        self.launcher = launch
        self.lines: list[str] = []
        self.space: dict[str, Any] = dict(HELPERS)
        self.programs: dict[str, Program | Layout | Product] = {}
        self.names: dict[Node, str] = {}
        self.externs: list[str] = []
        self.steps: list[Step] = []
        self.checks = False  # whether the first call looks at operators' results
        #: What kernels read or write, as opposed to what is only handed from operator to operator.
        self.loaded = {
            self.prepared.storage(node)
            for call in self.calls if isinstance(call, Rendered) for source in call.sources for node in source.buffers
        }  # fmt: skip
        self.packed: dict[Expr, str] = {}
        self.made: dict[str, Any] = {}
        self.step = 0
        self.moved = lowered.traffic()
        #: What each source moves; equal ones may move other buffers.
        self.moved_by: dict[int, Traffic] = {
            id(source): one for call, some in zip(self.calls, self.moved, strict=True) if isinstance(call, Rendered)
            for source, one in zip(call.sources, some, strict=False)
        }  # fmt: skip

    # ---- entry ------------------------------------------------------------------------------------------

    def build(self) -> Callable[[list[Any]], list[Any]]:
        """Compile the function and return it."""
        self._inputs()
        self._lifetimes()
        pending: list[KernelSource] = []
        first = 0
        for k, call in enumerate(self.calls):
            self.step = k
            if isinstance(call, Rendered):
                self._allocate(call)
                pending.extend(call.sources)
            else:
                self._extern(call)
            if k in self.memory.launch_after:
                if pending:
                    self._launch(pending)
                pending = []
                self._release(first, k)
                first = k + 1
        results = f"return [{', '.join(self._result(o) for o in self.prepared.outputs)}]"
        if self.checks:
            self.lines.append(f"{FRESH}.clear()")
        self.lines.append(results)
        self.source = "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)
        return function_of_text(self.source, self.space, Parts(tuple(self.steps), self.programs, self.launcher))

    def values(self) -> dict[str, Any]:
        """What the text names beside helpers and kernels."""
        taken = {"__builtins__", "call", FRESH, *HELPERS, *self.programs}
        return {name: value for name, value in self.space.items() if name not in taken}

    # ---- sizes ------------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> str:
        """A size as Python text over the symbols bound at the top of the function."""
        return str(e.args[0]) if e.kind == "const" else str(e)

    def sizes_text(self, sizes: Any) -> str:
        parts = [self.expr(s) for s in sizes]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"

    def _inputs(self) -> None:
        used = list(self.prepared.graph.inputs)
        kinds = (desc.kind for desc in self.env.inputs)
        self.held = {n for n, kind in zip(used, kinds, strict=True) if kind in KEPT}
        names = [f"a{k}" for k in range(len(used))]
        if names:
            self.lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = args")
        # A list is given up by its owner (CompiledGraph.boxed).
        self.lines.append("if type(args) is list: args.clear()")
        self.lines.append("args = None")
        for node, name in zip(used, names, strict=True):
            self.names[node] = name
        for node in self.prepared.graph.nodes:
            if node.kind == "constant":
                name = f"c{len(self.names)}"
                self.names[node] = name
                self.space[name] = node.target
        for entry in self.env.symbols:
            binding = entry.binding
            if binding is None:
                raise InternalError(f"symbol {entry.name} is bound by no input")
            source = names[binding.input_index]
            where = source if binding.dim is None else f"{source}.shape[{binding.dim}]"
            self.lines.append(f"{entry.name} = {where}")

    # ---- buffers ----------------------------------------------------------------------------------------

    def name(self, node: Node) -> str:
        """The variable in whose memory a node's value is."""
        return self.names[self.prepared.storage(node)]

    def _slot(self, node: Node) -> tuple[str, int]:
        """The variable in whose memory a node's value is, and at which byte of it."""
        return self.names[self.prepared.storage(node)], self._start(node)

    def _start(self, node: Node) -> int:
        """The byte of its variable's memory at which a node's value begins."""
        base = self.prepared.storage(node)
        start = node.args[1] * node.dtype.itemsize if node.kind == "part" else 0  # type: ignore[union-attr]
        return start + (self.memory.place[base][1] if base in self.memory.place else 0)

    def tensor(self, node: Node) -> str:
        """A tensor expression for a buffer."""
        return self.view(ViewRef(node, node.shape, strides_of(self.layouts, node), ZERO))

    def _lifetimes(self) -> None:
        """What is given back after each step: memory, and inputs."""
        self.read = {node for call in self.calls for node in self._needed(call)}
        self.read.update(self.prepared.returned())
        for made, given in self.memory.renewed.items():
            self.names[made] = self.names[given]
            self.made[self.names[given]] = self._layout_key(given)
        self.variables: dict[Piece, str] = {}
        self.ending: dict[int, list[Piece | Node]] = {}
        for node, last in self.memory.dies.items():
            stays = node.kind == "constant" or node in self.held or node in self.memory.renewed.values()
            if node not in self.memory.place and not stays and node not in self.memory.renewed:
                self.ending.setdefault(last, []).append(node)
        for piece in self.memory.pieces:
            self.ending.setdefault(piece.end, []).append(piece)

    @staticmethod
    def _needed(call: Rendered | OperatorCall) -> tuple[Node, ...]:
        return call.launch.reads if isinstance(call, Rendered) else call.reads

    def _layout_key(self, node: Node) -> Any:
        return (node.shape, strides_of(self.layouts, node), node.dtype)

    def _allocate(self, call: Rendered) -> None:
        for node in call.written():
            if node in self.names:
                continue
            piece = self.memory.place[node][0]
            name = self.variables.get(piece)
            if name is None:
                name = self.variables[piece] = f"b{len(self.names)}"
                self._allocate_piece(piece, name)
            self.names[node] = name

    def _allocate_piece(self, piece: Piece, name: str) -> None:
        """Allocate a piece as the buffer that takes all of it, or as a row of elements."""
        sizes = [(node, self.memory.place[node][1], self.lowered.hint(self._extent(node))) for node in piece.nodes]
        node = next((node for node, offset, size in sizes if not offset and size == piece.reach), None)
        key = self._layout_key(piece.nodes[0] if node is None else node)
        if node is None:
            key = ((ex.const(piece.size // key[2].itemsize),), (ONE,), key[2])
        self.made[name] = key
        device = piece.nodes[0].device
        place = "" if str(device) == "cpu" else f", device={self._object(device)}"
        self.lines.append(
            f"{name} = empty_strided({self.sizes_text(key[0])}, {self.sizes_text(key[1])}, dtype={key[2]}{place})"
        )

    def _extent(self, node: Node) -> Expr:
        return extent(node.shape, strides_of(self.layouts, node), node.dtype)  # type: ignore[arg-type]

    def _release(self, first: int, step: int) -> None:
        """Drop what ended with these steps."""
        gone = [x for k in range(first, step + 1) for x in self.ending.get(k, ())]
        dropped = [self.variables.get(x) if isinstance(x, Piece) else self.names.get(x) for x in gone]
        if any(dropped):
            self.lines.append(" = ".join(dict.fromkeys(filter(None, dropped))) + " = None")

    def _object(self, value: Any) -> str:
        name = f"o{len(self.space)}"
        self.space[name] = value
        return name

    # ---- kernels ----------------------------------------------------------------------------------------

    def _launch(self, sources: Sequence[KernelSource]) -> None:
        run, operands, numbers = self._run(sources, lambda s: (self.addresses[s.name], 0, 0), self._on_cpu)
        call = labelled_call(run, [*operands, *numbers], sources)
        self.lines.append(f"if bad := ({call}): refuse(bad)")

    def _on_cpu(self, node: Node) -> tuple[str, int]:
        """As :meth:`_slot`, of a buffer that is there, or where kernels in C are called in the same way."""
        if node.device is not None and node.device.type != "cpu" and backend(node.device.type).language != "c":
            raise InternalError(f"a kernel on the CPU takes a buffer on {node.device}")
        return self._slot(node)

    def _run(
        self, sources: Sequence[KernelSource], function: Callable[[KernelSource], tuple[int, int, int]],
        slot: Callable[[Node], tuple[str, int]], gpu: Sequence[int] = (),
    ) -> tuple[str, list[str], list[str]]:  # fmt: skip
        """The name of a function that runs kernels, and the texts of the tensors and the sizes that it takes.

        ``function`` gives a kernel's address, threads and shared memory, ``slot`` where a buffer is; ``gpu`` is what
        the driver is called by.
        """
        found = {n: slot(n) for n in dict.fromkeys(n for source in sources for n in source.buffers)}
        slots = {place: k for k, place in enumerate(dict.fromkeys(found.values()))}
        calls: list[Call] = []
        sizes: list[Expr] = []
        for source in sources:
            own = [slots[found[n]] for n in source.buffers]
            calls.append((*function(source), own, len(source.sizes), len(sizes), source.words))
            sizes += [*source.sizes, *source.grid]
            self.lines.append(f"# {source.name}: {' '.join(source.ops[:12])}")
        operands = {name: k for k, name in enumerate(dict.fromkeys(name for name, _ in slots))}
        places = [(operands[name], offset) for name, offset in slots]
        fixed = all(e.is_const for e in sizes)
        values = [bits_of_float(e.value) if e.is_float else e.value for e in sizes] if fixed else len(sizes)
        texts = [] if fixed else [self._number(e) for e in sizes]
        name = f"run{len(self.space)}"
        self._program(name, Program(len(operands), places, values, calls, gpu))
        for source in sources:
            self._note_kernel(source, name)
        return name, list(operands), texts

    def _note_kernel(self, source: KernelSource, call: str) -> None:
        moved, device = self.moved_by[id(source)], source.buffers[0].device
        self.steps.append(
            Step("kernel", source.name, (call,), source.ops, moved.read, moved.written, source.lines, str(device))
        )

    def _note_operator(self, call: OperatorCall, name: str, *calls: str) -> None:
        if call.node.op == EMPTY:
            return
        (moved,) = self.moved[self.step]
        device = next((n.device for n in (*call.writes, *call.reads) if n.device is not None), "cpu")
        where = () if call.node.source is None else (str(call.node.source),)
        self.externs.append(name)
        self.steps.append(Step("library", name, calls, (), moved.read, moved.written, where, str(device)))

    def _number(self, e: Expr) -> str:
        """A size as the integer that a kernel takes: of a float its bits."""
        if e.kind == "fbits":
            return self.expr(e.args[0])
        if not e.is_float:
            return self.expr(e)
        if e.is_const:
            return str(bits_of_float(e.value))
        name = self.packed.get(e)  # many kernels take the same ones, as an optimizer's do
        if name is None:
            name = self.packed[e] = f"q{len(self.packed)}"
            self.lines.append(f"{name} = pack_float({self.expr(e)})")
        return name

    # ---- externs ----------------------------------------------------------------------------------------

    def _extern(self, call: OperatorCall) -> None:
        node = call.node
        owned = self._owned(node)
        args, kwargs = self.prepared.externs[node]
        name, function = call.chosen or self._function(node, owned)
        turned = by_transpose(function, args) if not kwargs else None
        parts = [self._value(a) for a in args]
        if turned is not None and parts[-1].endswith(".t()"):
            name, function = turned
            parts = [*parts[-2:-1], parts[-1].removesuffix(".t()"), *parts[:-2]]
        key = f"f_{name.replace('.', '_')}" + (f"_{len(self.space)}" if owned else "")
        if self.space.setdefault(key, function) is not function:
            key = self._object(function)
        self._note_operator(call, reported_name(node), key)
        parts += [f"{k}={self._value(v)}" for k, v in kwargs.items()]
        target = self.names[node] = self.variables[self.memory.place[node][0]] = f"x{len(self.names)}"
        self.lines.append(f"{target} = {self._call(node, key, parts)}  # {name}")
        if node in self.layouts:
            self.made[target] = self._layout_key(node)
            self._planned_layout(node, target, name)
        for item in node.users:
            if item.kind == "item" and item in self.layouts and item in self.read:
                self.names[item] = self.variables[self.memory.place[item][0]] = f"{target}_{item.args[1]}"
                self.lines.append(f"{self.names[item]} = {target}[{item.args[1]}]")
                self.made[self.names[item]] = self._layout_key(item)
                self._planned_layout(item, self.names[item], name)
                if node.unmasked and item.args[1] == LOGSUMEXP:
                    self.lines.append(f"note({self.names[item]}, {node.unmasked!r})")
        if any(item.kind == "item" for item in node.users):
            self.lines.append(f"{target} = None")

    def _owned(self, node: Node) -> list[int]:
        """Positions of the operands whose buffers end with this call of a custom operator, and become its to write."""
        if not is_custom(node):
            return []
        args, kwargs = self.prepared.externs[node]
        operands = instances(ViewRef, (args, kwargs))
        bases = [self.prepared.storage(ref.base) for ref in operands]
        owned = []
        for i, (ref, base) in enumerate(zip(operands, bases, strict=True)):
            if base.op != EMPTY and (base not in self.memory.place or not self.memory.place[base][0].own):
                continue
            whole = ref.shape == base.shape and ref.strides == self.layouts[ref.base].strides
            if whole and self.memory.dies.get(base) == self.step and bases.count(base) == 1:
                owned.append(i)
        return owned

    def _function(self, node: Node, owned: list[int]) -> tuple[str, Callable[..., Any]]:
        """``(readable name, callable)`` for an operator."""
        return function_of(node, *self.prepared.call_of(node), self.lowered.options, owned)

    def _call(self, node: Node, function: str, parts: list[str]) -> str:
        """The text of an operator's call."""
        if node.op in BACKWARD and spare_mask_of(node) is not None:
            return f"as_the_forward({node.op!r}, {function}, {', '.join(parts)})"
        return f"{function}({', '.join(parts)})"

    def _planned_layout(self, node: Node, name: str, operator: str = "") -> None:
        """Never read a result with other strides than those the kernels were written for, or (an ``operator``'s, in the
        first call) of another shape or dtype."""
        known = operator and node.device is not None and all(isinstance(n, int) for n in node.spec.shape)
        if known and self.prepared.storage(node) in self.loaded:
            self.checks = True
            shape = tuple(node.spec.shape)
            self.lines.append(f"if {FRESH}: agrees({name}, {shape}, {node.dtype}, {operator!r})")
        if node.device is not None and node.spec.shape:
            planned = self.layouts[node].strides
            strides = self.sizes_text(planned)
            test = f"{name}.stride() != {strides}"
            if all(step.is_const for step in planned):
                test = f"{self._moved(tuple(step.value for step in planned))}({name})"
            self.lines.append(f"if {test}: {name} = relayout({name}, {strides})")

    def _moved(self, strides: tuple[int, ...]) -> str:
        """The name of a function that tells whether a tensor has other strides than these, or may have."""
        name = "moved_" + "_".join(map(str, strides))
        if name not in self.space:
            self._program(name, Layout(strides))
        return name

    def _program(self, name: str, program: Program | Layout | Product) -> None:
        self.programs[name] = program
        self.space[name] = self.launcher(program)

    def _value(self, x: Any) -> str:
        if isinstance(x, ViewRef):
            return self.view(x)
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(self._value(v) for v in x) + "]"
        if x is None or isinstance(x, (bool, int, str)):
            return repr(x)
        if isinstance(x, float):
            return repr(x) if math.isfinite(x) else self._object(x)
        inner = expr_of(x)
        return self._object(x) if inner is None else self.expr(inner)

    def view(self, ref: ViewRef, result: bool = False) -> str:
        """A tensor expression for a view of a buffer; a ``result`` in a buffer's place is no view for autograd."""
        base, at = self._slot(ref.base)
        node = self.prepared.storage(ref.base)
        made = self.made.get(base, self._layout_key(node))
        offset = ex.add(ref.offset, ex.const(at // node.dtype.itemsize))  # type: ignore[union-attr]
        if offset is ZERO and made[2] == node.dtype:
            if made[:2] == (ref.shape, ref.strides):
                return base
            if len(ref.shape) == 2 and made[:2] == (ref.shape[::-1], ref.strides[::-1]):
                return f"{base}.t()"
        shape, strides = self.sizes_text(ref.shape), self.sizes_text(ref.strides)
        own = node in self.memory.place and self.memory.place[node][0].own
        start = self.expr(offset) if own else f"{base}.storage_offset() + {self.expr(offset)}"
        if made[2] != node.dtype or result and (ref.shape, ref.strides) == self._layout_key(node)[:2]:
            return f"retyped({base}, {node.dtype}, {shape}, {strides}, {start})"
        return f"as_strided({base}, {shape}, {strides}{'' if offset is ZERO else ', ' + start})"

    def _result(self, out: Any) -> str:
        return self.view(out, result=True) if isinstance(out, ViewRef) else self._value(out)
