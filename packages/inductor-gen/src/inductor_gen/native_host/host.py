"""The C text of a lowered graph's host side: memory, kernels, operators and results, in the plan's order.

It reads what the Python wrapper reads (:class:`inductor_gen.codegen.lowered.Lowered`): the order, the memory plan, the
layouts, and which function of PyTorch computes an operator. So both compute the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from inductor_gen.codegen.lowered import Lowered, Rendered
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.layout.record import ViewRef, extent, strides_of
from inductor_gen.loops.index import contiguous_strides
from inductor_gen.native_host.calls import Calls
from inductor_gen.native_host.interface import Interface, Output, code_of
from inductor_gen.plan.memory import Piece
from prims.errors import Unsupported
from prims.spec import expr as ex
from prims.spec.expr import Expr, bits_of_float

__all__ = ["host_text"]

#: Bytes of the constants that stand in the text.
CONSTANTS = 4 << 20


def host_text(lowered: Lowered, interface: Interface) -> tuple[str, bool]:
    """The C text, and whether it calls PyTorch.

    Raises:
        Unsupported: something in the graph cannot run without Python, on the CPU; the error names it.
    """
    host = _Host(lowered, interface)
    return host.text(), host.torch


class _Host(Calls):
    def __init__(self, lowered: Lowered, interface: Interface) -> None:
        super().__init__(lowered)
        self.interface = interface
        self.tables: list[str] = []
        self.owned = 0

    # ---- the whole ------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Everything but what ``runtime.c``, ``torch.c`` and ``entry.c`` say."""
        self._symbols()
        self._inputs()
        self._constants()
        self._arena()
        for step, call in enumerate(self.lowered.calls):
            self.step = step
            if isinstance(call, Rendered):
                for source in call.sources:
                    self._launch(source)
            else:
                self._operator(call)
            for handle in self.ending.pop(step, ()):
                self.lines.append(f"qr_delete(&h[{handle}]);")
        self._results()
        body = "\n".join(f"    {line}" for line in self.lines)
        tables = self._tables()
        names = dict.fromkeys(source.name for source in self.lowered.sources())
        kernels = "\n".join(f"int {name}(void* const* p, const int64_t* n);" for name in names)
        program = _PROGRAM.replace("HANDLES", str(max(self.count, 1))).replace("BODY", body)
        views = _VIEWS.replace("BODY", "\n".join(self.view_lines)) if self.torch else ""
        head = "#define QR_TORCH 1\n" if self.torch else ""
        head += '#include "runtime.c"\n' + ('#include "torch.c"\n' if self.torch else "")
        return "\n".join([head, tables, kernels, *self.tables, views, program, '#include "entry.c"', ""])

    def _tables(self) -> str:
        i = self.interface
        dims = {name: k for k, (name, _, _) in enumerate(i.dims)}
        lines = []
        for k, x in enumerate(i.inputs):
            sizes = [n if isinstance(n, int) else -1 - dims[n] for n in x.shape]
            lines.append(f"static const int64_t qi{k}[] = {_braces(sizes)};")
        inputs = [f"{{{_quoted(x.name)}, {code_of(x.dtype)}, {len(x.shape)}, qi{k}}}" for k, x in enumerate(i.inputs)]
        placed = {at: node for node, at in zip(self.prepared.graph.inputs, range(len(i.sources)), strict=False)}
        strides = {what: placed[at] for at, (kind, what) in enumerate(i.sources) if kind == "weight"}
        weights = []
        for k, x in enumerate(i.weights):
            node = strides.get(k)
            rows = contiguous_strides(tuple(map(ex.const, x.shape)))  # type: ignore[arg-type]
            steps = rows if node is None else strides_of(self.layouts, node)
            lines.append(f"static const int64_t qw{k}[] = {_braces(x.shape)}, qx{k}[] = {_braces(map(self.c, steps))};")
            weights.append(f"{{{_quoted(x.name)}, {code_of(x.dtype)}, {len(x.shape)}, qw{k}, qx{k}}}")
        ranges = [f"{{{_quoted(n)}, {low}, {-1 if high is None else high}}}" for n, low, high in i.dims]
        names = [_quoted(o.name) for o in i.outputs]
        writes = any(i.sources[at][0] == "weight" for at, _ in i.mutations)
        for name, kind, values in (
            ("qr_dim_table", "qr_dim", ranges), ("qr_input_table", "qr_input", inputs),
            ("qr_weight_table", "qr_weight", weights), ("qr_output_names", "char* const", names),
        ):  # fmt: skip
            lines.append(f"static const {kind} {name}[] = {{{', '.join([*values, _NOTHING[kind]])}}};")
        counts = {
            "DIMS": len(dims), "INPUTS": len(inputs), "WEIGHTS": len(weights), "OUTPUTS": len(names),
            "OWNED": self.owned + len(i.inputs) + len(names), "HELD": len(self.kept_handles),
            "VIEWS": len(self.views), "WRITES": int(writes),
        }  # fmt: skip
        lines += [f"#define QR_{name} {count}" for name, count in counts.items()]
        return "\n".join(lines)

    # ---- sizes ----------------------------------------------------------------------------------------------------

    def _word(self, e: Expr) -> str:
        if e.is_float:
            if not e.is_const:
                raise Unsupported(f"a kernel takes the number {e}, which only Python computes")
            return f"{bits_of_float(e.value)}LL"
        return self.c(e)

    def _symbols(self) -> None:
        dims = {name: k for k, (name, _, _) in enumerate(self.interface.dims)}
        for entry in self.lowered.env.symbols:
            binding = entry.binding
            if binding is None or binding.dim is None:
                raise Unsupported(f"the size {entry.name} is known only by the program's data")
            kind, what = self.interface.sources[binding.input_index]
            size = (self.interface.inputs if kind == "argument" else self.interface.weights)[what].shape[binding.dim]
            value = str(size) if isinstance(size, int) else f"d[{dims[size]}]"
            self.lines.append(f"const int64_t {entry.name} = {value};")

    # ---- buffers --------------------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        """Where the graph's inputs are; a copy where an argument lies in other strides than the kernels count on."""
        for at, (node, (kind, what)) in enumerate(zip(self.prepared.graph.inputs, self.interface.sources, strict=True)):
            if node.device is None or node.device.type != "cpu":
                raise Unsupported(f"an input is on {node.device}; without Python programs run on the CPU only")
            name = self.names[node] = f"a{at}"
            if kind == "weight":
                self.lines.append(f"char* const {name} = m->weights[{what}]; /* {self.interface.weights[what].name} */")
                self.held[node] = f"m->weights[{what}]"
                continue
            strides = self._array(strides_of(self.layouts, node))
            self.lines.append(f"char* const {name} = qr_laid(&in[{what}], {strides}, r);")
            self.lines.append(f"if (!{name}) goto memory;")

        for made, given in self.memory.renewed.items():
            self.names[made] = self.names[given]

    def _constants(self) -> None:
        total = 0
        for node in self.prepared.graph.nodes:
            if node.kind != "constant":
                continue
            value: torch.Tensor = node.target
            strides = tuple(s.value for s in strides_of(self.layouts, node))
            laid = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
            raw = bytes(laid.untyped_storage())[: extent(node.shape, strides_of(self.layouts, node), value.dtype).value]
            total += len(raw)
            if total > CONSTANTS:
                raise Unsupported(
                    f"the program holds more than {CONSTANTS >> 20} MiB of constants: make them buffers of the model"
                )
            raw += bytes(-len(raw) % 8)
            numbers = (int.from_bytes(raw[k : k + 8], "little") for k in range(0, len(raw), 8))
            words = ", ".join(f"{number:#x}ULL" for number in numbers) or "0"
            name = self.names[node] = f"qc{len(self.tables)}"
            self.tables.append(f"static uint64_t {name}[] __attribute__((aligned(64))) = {{{words}}};")
            self.names[node] = f"(char*){name}"
            self.held[node] = f"(char*){name}"

    def _arena(self) -> None:
        """Memory for the buffers of kernels: pieces that do not live at once share a row of one block; what is returned
        has a block of its own."""
        returned = {self.memory.place[node][0] for node in self.prepared.returned() if node in self.memory.place}
        rows: list[list[Piece]] = []
        for piece in self.memory.pieces:
            if not piece.own:
                continue
            for node in piece.nodes:
                self.names[node] = f"b{len(rows)}" if piece not in returned else ""
            if piece in returned:
                name = f"r{self.owned}"
                self.lines.append(f"char* const {name} = qr_new({self.c(self._bytes(piece))});")
                self.lines += [f"if (!{name}) goto memory;", f"r->memory[r->owned++] = {name};"]
                self.owned += 1
            else:
                free = [k for k, row in enumerate(rows) if row[-1].end < piece.begin]
                best = min(free, key=lambda k: abs(max(p.size for p in rows[k]) - piece.size), default=len(rows))
                rows[best:best] = [] if best < len(rows) else [[]]
                rows[best].append(piece)
                name = f"b{best}"
            for node in piece.nodes:
                self.names[node] = name
        if not rows:
            return
        for k, row in enumerate(rows):
            size = self.c(self._bytes(row[0]))
            for other in dict.fromkeys(self.c(self._bytes(piece)) for piece in row[1:]):
                size = f"qt_max({size}, {other})" if other != size else size
            self.lines.append(f"const int64_t z{k} = UP({size});")
        total = " + ".join(f"z{k}" for k in range(len(rows)))
        self.lines += [f"if (!(*arena = qr_arena_take(m, {total}))) goto memory;"]
        for k in range(len(rows)):
            before = f"b{k - 1} + z{k - 1}" if k else "(*arena)->memory"
            self.lines.append(f"char* const b{k} = {before};")

    def _bytes(self, piece: Piece) -> Expr:
        for node in piece.nodes:
            size = extent(node.shape, strides_of(self.layouts, node), node.dtype)  # type: ignore[arg-type]
            if not self.memory.place[node][1] and self.lowered.hint(size) == piece.reach:
                return size
        return ex.const(piece.size)

    # ---- kernels --------------------------------------------------------------------------------------------------

    def _launch(self, source: KernelSource) -> None:
        if source.language != "c":
            raise Unsupported("a kernel is not for the CPU; without Python programs run there only")
        places = ", ".join(self._place(node) for node in source.buffers)
        sizes = ", ".join(self._word(e) for e in source.sizes)
        numbers = f"(const int64_t[]){{{sizes}}}" if sizes else "0"
        self.lines.append(f"if ((bad = {source.name}((void* const[]){{{places}}}, {numbers}))) goto data;")

    # ---- results --------------------------------------------------------------------------------------------------

    def _results(self) -> None:
        for index, output in self.interface.mutations:
            self._write_back(index, self.prepared.outputs[output])
        for handle in self.kept_handles:
            self.lines.append(f"r->handles[r->held++] = h[{handle}]; h[{handle}] = NULL;")
        for at, out in enumerate(self.interface.outputs):
            self._output(at, out)

    def _write_back(self, index: int, new: Any) -> None:
        node = self.prepared.graph.inputs[index]
        place, steps = self._place(new.base, new.offset), self._array(new.strides)
        sizes, own = self._array(new.shape), self._array(strides_of(self.layouts, node))
        width = node.dtype.itemsize  # type: ignore[union-attr]
        if place != f"a{index}":  # else kernels have written it themselves
            self.lines.append(f"qr_rows(a{index}, {own}, {place}, {steps}, {sizes}, {len(new.shape)}, {width});")
        kind, what = self.interface.sources[index]
        if kind == "argument":
            self.lines.append(f"qr_give_back(&in[{what}], a{index}, {own});")

    def _output(self, at: int, out: Output) -> None:
        if out.kind == "size":
            self.lines.append(f"if (qr_output_size(r, {at}, {self.c(out.value)})) goto memory;")
            return
        if out.kind == "input":
            node = self.prepared.graph.inputs[out.index]
            kind, what = self.interface.sources[out.index]
            if out.strides is None and kind == "argument":
                self.lines.append(f"qr_output_given(r, {at}, &in[{what}]);")
                return
            place = f"a{out.index}"
            shape, strides = node.shape, strides_of(self.layouts, node)
        else:
            ref = self.prepared.outputs[out.index]
            if not isinstance(ref, ViewRef):
                self.lines.append(f"if (qr_output_size(r, {at}, {self.c(ref)})) goto memory;")
                return
            place, shape, strides = self._place(ref.base, ref.offset), ref.shape, ref.strides
        code = code_of(out.dtype)
        if out.strides is not None:
            width = out.dtype.itemsize  # type: ignore[union-attr]
            place = f"{place} + {width} * {self.c(out.offset)}"
            shape, strides = out.shape, out.strides  # type: ignore[assignment]
        self.lines.append(
            f"qr_output_set(r, {at}, {place}, {code}, {len(shape)}, {self._array(shape)}, {self._array(strides)});"
        )


_NOTHING = {"qr_dim": "{0}", "qr_input": "{0}", "qr_weight": "{0}", "char* const": "0"}

_VIEWS = """\
/* Tensors of weights that operators take, made once. */
static int qr_views(quintet_model* m) {
BODY
    (void)m;
    return 0;
}
"""

_PROGRAM = """\
static int qr_program(quintet_model* m, const quintet_tensor* in, const int64_t* d, quintet_result* r, qr_arena** arena,
                      char** error) {
    qr_handle h[HANDLES] = {0};
    const char* at = "";
    int bad = 0, failed = 1;
    (void)m, (void)in, (void)d, (void)h, (void)at, (void)arena;
BODY
    failed = 0;
    goto end;
data:
    qr_fail(error, "the program met %s", bad & 1 ? "an index out of range" : "an integer division by zero");
    goto end;
#ifdef QR_TORCH
torch:
    qr_fail(error, "PyTorch's operator %s failed: %s", at, qr_said());
    goto end;
#endif
memory:
    qr_fail(error, "there is no memory for the program's buffers");
end:
#ifdef QR_TORCH
    for (int k = 0; failed && k < HANDLES; k++) qr_delete(&h[k]);
#endif
    return failed;
}
"""


def _braces(values: Iterable[Any]) -> str:
    texts = [str(v) for v in values]
    return "{" + (", ".join(texts) or "0") + "}"


def _quoted(text: str) -> str:
    return json.dumps(text)
