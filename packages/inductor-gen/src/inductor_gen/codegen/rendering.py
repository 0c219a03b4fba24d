"""From kernels to their text: a pure function of a kernel and of how it is tiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from inductor_gen.codegen.renderer import KernelSource, Renderer, rebound
from inductor_gen.device.backends import Backend, backend
from inductor_gen.device.record import Asked, Device
from inductor_gen.kernel.ir import Kernel
from inductor_gen.kernel.nest import Nest
from inductor_gen.layout.record import Layout
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.launches import LEAST, Launch
from prims.errors import VerifierError
from prims.options import Options

if TYPE_CHECKING:
    from inductor_gen.codegen.multitensor import Row

__all__ = ["CONSTRAINTS", "Rendering"]

CONSTRAINTS = {"LAUNCH-C1": "A source of a launch reads no buffer that only a later one writes."}


class Rendering:
    """Renders kernels in the language of their device, each once.

    ``triton`` asks for Triton kernels also where values live on the CPU; ``rendered`` is told of every kernel text that
    is there to stay, and ``edit`` gives another in its place. What a template renders in a kernel's stead is given by
    :meth:`choose`.
    """

    def __init__(
        self, options: Options, hint: Hint, layouts: Mapping[Node, Layout], devices: Asked,
        triton: bool = False, rendered: Callable[[KernelSource], None] | None = None,
        edit: Callable[[KernelSource], KernelSource] | None = None,
    ) -> None:  # fmt: skip
        self.options = options
        self.hint = hint
        self.layouts = layouts
        self.devices = devices
        self.triton = triton
        self.rendered = rendered
        self.edit = edit
        self._texts: dict[Kernel, tuple[KernelSource, ...]] = {}
        self._rows: dict[Kernel, Row | None] = {}
        self._alike: dict[object, tuple[tuple[KernelSource, ...], Sequence[Node]]] = {}  # by what nests have in common

    def _backend(self, kernel: Kernel) -> Backend:
        return backend("cuda" if self.triton else kernel.device.type if kernel.device is not None else "cpu")

    def in_triton(self, kernel: Kernel) -> bool:
        """Is the kernel's language Triton?"""
        return self._backend(kernel).language == "triton"

    def device(self, kernel: Kernel) -> Device:
        """What is known about the device that a kernel runs on."""
        return self.devices(kernel.device or torch.device("cpu"))

    def starts_slowly(self, kernel: Kernel) -> bool:
        """Does the kernel move no more than its device could while two of them are being started?"""
        return self.in_triton(kernel) and kernel.moved <= 2 * self.device(kernel).launch_bytes

    def row(self, kernel: Kernel) -> Row | None:
        """What the kernel does along one tensor, where one kernel can do it to many."""
        if kernel not in self._rows:
            can = self.in_triton(kernel) and kernel not in self._texts and len(kernel.nests) == 1 and not kernel.parts
            self._rows[kernel] = self._row(kernel) if can else None
        return self._rows[kernel]

    def _row(self, kernel: Kernel) -> Row | None:
        from inductor_gen.codegen.multireduce import reduced_row_of
        from inductor_gen.codegen.multitensor import row_of
        from inductor_gen.codegen.triton import TritonRenderer

        nest, renderer = kernel.nests[0], self._renderer(kernel, None)
        assert isinstance(renderer, TritonRenderer)
        if self.options.batch_invariant and nest.inner:  # chunks of a tensor are no rows
            return None
        return row_of(nest, renderer) or reduced_row_of(nest, renderer)

    def choose(self, kernel: Kernel, sources: tuple[KernelSource, ...]) -> None:
        """Let these be the kernel's text."""
        self._texts[kernel] = sources

    def of(self, kernel: Kernel) -> tuple[KernelSource, ...]:
        """The text of a kernel: one source, or several to run in order.

        Raises:
            Unsupported: the language cannot express something in it.
        """
        found = self._texts.get(kernel)
        if found is None:
            found = self._texts[kernel] = self.tiled(kernel)
        return found

    def tiled(self, kernel: Kernel, tiling: Any = None) -> tuple[KernelSource, ...]:
        """The text of a kernel with other blocks and warps than usual; ``tiling`` is Triton's."""
        renderer = self._renderer(kernel, tiling)
        render = renderer.render if self.in_triton(kernel) else functools.partial(self._once, renderer)
        if len(kernel.nests) == 1:
            return tuple(render(kernel.nests[0]))
        return tuple(renderer.together([render(nest) for nest in kernel.nests]))

    def _once(self, renderer: Renderer, nest: Nest) -> tuple[KernelSource, ...]:
        """The sources of a nest, which of all nests that differ in their nodes alone are made once. Not Triton's: they
        may have buffers of their own, and ask more of others."""
        if nest.like is None:
            return renderer.render(nest)
        key, nodes = nest.like
        found = self._alike.get(key)
        if found is None:
            self._alike[key] = made, _ = renderer.render(nest), nodes
            return made
        to = dict(zip(found[1], nodes, strict=True))
        return tuple(rebound(source, to, nest) for source in found[0])

    def launch(self, launch: Launch) -> tuple[KernelSource, ...]:
        """The sources of a launch, in as few as there can be."""
        if len(launch.kernels) == 1:
            made = self.of(launch.kernels[0])
        else:
            from inductor_gen.codegen.tritonbranch import branched

            alike, others = self._in_many(launch.kernels)
            pieces = [self.of(kernel) for kernel in others]
            # The sources of a split reduction read what the one before has written: they are nobody's neighbours.
            several = [source for piece in pieces if len(piece) > 1 for source in piece]
            small = [p[0] for k, p in zip(others, pieces, strict=True) if len(p) == 1]
            made = (*alike, *branched(small), *several)
        _verify_order(made)
        if self.edit is not None:
            made = tuple(map(self.edit, made))
        if self.rendered is not None:
            for source in made:
                self.rendered(source)
        return made

    def _in_many(self, kernels: Sequence[Kernel]) -> tuple[list[KernelSource], list[Kernel]]:
        """The kernels over many tensors, and the kernels that are none: few small ones start as fast side by side."""
        from inductor_gen.codegen.multireduce import multi_tensor_kernels
        from inductor_gen.codegen.triton import TritonRenderer
        from inductor_gen.codegen.tritonbranch import MOST

        kinds: dict[object, list[Kernel]] = {}
        for kernel in kernels:
            row = self._rows.get(kernel)
            kinds.setdefault(kernel if row is None else row.key(), []).append(kernel)
        made: list[KernelSource] = []
        others: list[Kernel] = []
        for some in kinds.values():
            if len(some) >= LEAST and (len(some) > MOST or not all(map(self.starts_slowly, some))):
                rows = [row for kernel in some if (row := self.row(kernel)) is not None]
                renderer = self._renderer(some[0], None)
                assert isinstance(renderer, TritonRenderer)
                made += multi_tensor_kernels(rows, renderer)
            else:
                others += some
        return made, others

    def _renderer(self, kernel: Kernel, tiling: Any) -> Renderer:
        make = self._backend(kernel)["renderer"]
        return make(self.hint, self.layouts, self.device(kernel), self.options, tiling)  # type: ignore[no-any-return]


def _verify_order(sources: Sequence[KernelSource]) -> None:
    """Check that nothing is read before it is written.

    Raises:
        VerifierError: one of :data:`CONSTRAINTS` is broken.
    """
    last = {node: k for k, source in enumerate(sources) for node in source.buffers[: source.outputs]}
    written: set[Node] = set()
    for k, source in enumerate(sources):
        early = [n for n in source.buffers[source.outputs :] if n not in written and last.get(n, -1) > k]
        if early:
            raise VerifierError("LAUNCH-C1", f"{source.name} reads {early[0]!r} before it is written")
        written.update(source.buffers[: source.outputs])
