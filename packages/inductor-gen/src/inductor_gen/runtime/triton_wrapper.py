"""The wrapper of graphs with Triton kernels: launches on the current stream, or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from inductor_gen.codegen.lowered import Lowered
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import POSITIONS, TritonSource
from inductor_gen.extern.cuda import misaligned
from inductor_gen.extern.custom import reported_name
from inductor_gen.kernel.ir import Call as OperatorCall
from inductor_gen.layout.prepare import travels_channels_last
from inductor_gen.layout.record import ViewRef, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.runtime.cuda import driver_words
from inductor_gen.runtime.helpers import on_device
from inductor_gen.runtime.launch import Launcher
from inductor_gen.runtime.products import Product, plain, products_on
from inductor_gen.runtime.triton_build import Begun, Build, Loaded
from inductor_gen.runtime.triton_interpret import Interpreted, interpreted
from inductor_gen.runtime.wrapper import Wrapper, labelled_call
from prims.errors import Unsupported
from prims.options import Options
from prims.report import Report
from prims.spec.expr import Expr
from prims.spec.tensorspec import as_device

__all__ = ["TritonWrapper", "triton_wrapper"]

#: Products that a library is asked for, and PyTorch's functions that serve otherwise.
_PRODUCTS = {"aten.mm.default": "mm", "aten.addmm.default": "addmm", "aten.bmm.default": "bmm"}


class TritonWrapper(Wrapper):
    """As :class:`Wrapper`; ``kernels`` holds each Triton kernel, loaded or in the interpreter."""

    def __init__(
        self, lowered: Lowered, addresses: dict[str, int], launch: Launcher, kernels: Mapping[str, Any],
        gpu: Sequence[int], device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(lowered, addresses, launch)
        self.kernels = kernels
        self.gpu = gpu
        self.device = device
        self.chosen: dict[Node, Product] = {}
        self.said: set[str] = set()

    def build(self) -> Callable[[list[Any]], list[Any]]:
        """Compile the function and return it; it makes its device current where another is."""
        call = super().build()
        if self.device.type != "cuda":
            return call
        return on_device(call, self.device.index)

    def _inputs(self) -> None:
        super()._inputs()
        for node, desc in zip(self.prepared.graph.inputs, self.env.inputs, strict=True):
            if desc.kind == "saved" and travels_channels_last(desc.spec):
                self._planned_layout(node, self.names[node])

    def _launch(self, sources: Sequence[KernelSource]) -> None:
        for in_triton, some in groupby(sources, lambda s: isinstance(s, TritonSource)):
            if in_triton:
                self._launch_triton([s for s in some if isinstance(s, TritonSource)])
            else:
                super()._launch(list(some))

    def _launch_triton(self, sources: list[TritonSource]) -> None:
        for bound in dict.fromkeys(b for s in sources for b in s.bounds):
            self._once(f"if {self.expr(bound)} >= {POSITIONS}: too_large()")
        if isinstance(self.kernels[sources[0].name], Interpreted):
            self._interpret(sources)
        else:
            self._launch_cuda(sources)

    def _lifetimes(self) -> None:
        super()._lifetimes()
        products = plain() if self.device.type == "cuda" else False
        for call in self.calls if products else ():
            if isinstance(call, OperatorCall) and call.node.op in _PRODUCTS and call.chosen is None:
                product = self._product(call.node)
                if product is not None:
                    self.chosen[call.node] = product

    def _extern(self, call: OperatorCall) -> None:
        node = call.node
        product = self.chosen.get(node)
        if product is None:
            super()._extern(call)
            return
        operands = self.prepared.externs[node][0]
        piece = self.memory.place[node][0]
        name = self.names[node] = self.variables[piece] = f"x{len(self.names)}"
        self._allocate_piece(piece, name)
        self._take_stream()
        self._once("other = unusual()")
        if product.workspace and "space" not in self.said:
            # Products follow one another on the stream: they share their workspace.
            self.said.add("space")
            most = max(p.workspace for p in self.chosen.values())
            place = f"dtype=torch.uint8, device={self._object(self.device)}"
            self.lines.append(f"space = empty_strided(({most},), (1,), {place})")
        function = f"product{len(self.space)}"
        self._program(function, product)
        self._note_operator(call, reported_name(node), function, _PRODUCTS[node.op])
        *bias, left, right = (self.name(ref.base) for ref in operands)
        given = [name, left, right, *bias, "stream", *(["space"] if product.workspace else [])]
        views = ", ".join(map(self.view, operands))
        self.lines.append(
            f"if other or {function}({', '.join(given)}): {_PRODUCTS[node.op]}({views}, out={name})"
        )

    def _product(self, node: Node) -> Product | None:
        """The library's call for a product of matrices whose sizes are known, None where it is not a plain one."""
        args, kwargs = self.prepared.externs[node]
        if kwargs or misaligned(node):
            return None
        if self.lowered.options.numerics != "fast" or not all(isinstance(a, ViewRef) for a in args):
            return None
        if any(ref.base.dtype != node.dtype for ref in args):
            return None
        *bias, left, right = args
        layout = strides_of(self.layouts, node)
        fixed = [e for ref in args for e in (*ref.shape, *ref.strides, ref.offset)]
        if not all(e.is_const for e in (*fixed, *layout)):
            return None
        shape = (*numbers(left.shape[:-1]), *numbers(right.shape[-1:]), *numbers(left.shape[-1:]))
        *_, rows, columns, _ = shape
        plain_layout = numbers(layout) == (rows * columns, columns, 1)[-len(layout) :]
        if not plain_layout or any(numbers((*b.shape, *b.strides)) != (columns, 1) for b in bias):
            return None
        size = node.dtype.itemsize  # type: ignore[union-attr]
        offsets = [self._start(ref.base) + size * int(ref.offset.value) for ref in (left, right, *bias)]
        return products_on(self.device).product(
            node.dtype, shape, numbers(left.strides), numbers(right.strides), tuple(offsets)
        )

    def _take_stream(self) -> None:
        self._once(f"stream = cuda_stream({self.device.index})")

    def _once(self, line: str) -> None:
        """Write a line, the first time."""
        if line not in self.said:
            self.said.add(line)
            self.lines.append(line)

    # ---- interpreter ------------------------------------------------------------------------------------

    def _interpret(self, sources: list[TritonSource]) -> None:
        for source in sources:
            function = self._object(self.kernels[source.name])
            self._note_kernel(source, function)
            names = ", ".join(map(self.tensor, source.buffers))
            sizes = ", ".join(self._plain(e) for e in (*source.sizes, *source.grid))
            self.lines.append(f"# {source.name}: {' '.join(source.ops[:12])}")
            self.lines.append(f"{function}([{names}], [{sizes}])")

    def _plain(self, e: Expr) -> str:
        """A size as the interpreter takes it."""
        return repr(e.value) if e.is_const else self.expr(e)

    # ---- GPU --------------------------------------------------------------------------------------------

    def _on_device(self, node: Node) -> tuple[str, int]:
        """As :meth:`_slot`; numbers that live on the CPU are brought over."""
        base = self.prepared.storage(node)
        if base.device is None or base.device.type == "cuda":
            return self._slot(node)
        name = self.name(node)
        moved = f"{name}_gpu"
        self.lines.append(f"{moved} = {name}.to({self._object(self.device)})")
        return moved, 0

    def _loaded(self, source: KernelSource) -> tuple[int, int, int]:
        loaded: Loaded = self.kernels[source.name]
        return loaded.function, loaded.threads, loaded.shared

    def _launch_cuda(self, sources: list[TritonSource]) -> None:
        run, operands, numbers = self._run(sources, self._loaded, self._on_device, self.gpu)
        self._take_stream()
        self.lines.append(f"code = {labelled_call(run, [*operands, *numbers, 'stream'], sources)}")
        rest = "".join(f"{text}, " for text in (*numbers, "stream"))
        written = {self.name(n) for s in sources for n in s.buffers[: s.outputs]}
        kept = tuple(k for k, name in enumerate(operands) if name in written)
        self.lines.append(f"if code: relaunch({run}, code, ({', '.join(operands)},), ({rest}), {kept})")


def triton_wrapper(
    lowered: Lowered, addresses: dict[str, int], launch: Launcher, sources: Sequence[TritonSource], options: Options,
    begun: Begun | None = None, report: Report | None = None,
) -> tuple[TritonWrapper, int]:  # fmt: skip
    """The wrapper of a lowered graph with Triton kernels (those ``begun`` while it was lowered are waited for), and how
    many of these had to be compiled.

    Raises:
        Unsupported: the values are on several GPUs, or on the CPU without Triton's interpreter.
    """
    devices = {n.device for s in sources for n in s.buffers[: s.outputs] if n.device is not None}
    if len(devices) != 1:
        raise Unsupported(f"kernels of one graph on several devices: {sorted(map(str, devices))}")
    device = devices.pop()
    if device.type != "cuda":
        return TritonWrapper(lowered, addresses, launch, interpreted(sources), (), device), 0
    device = as_device(device)
    build = begun.on(device) if begun is not None else Build(device, options)
    for source in sources:
        build.add(source)
    kernels, compiled = build.collect(report)
    words = driver_words(device, max((len(s.words) + len(s.buffers) for s in sources if s.words), default=0))
    return TritonWrapper(lowered, addresses, launch, kernels, words, device), compiled


def numbers(sizes: Sequence[Expr]) -> tuple[int, ...]:
    """Sizes that are known."""
    return tuple(int(e.value) for e in sizes)
