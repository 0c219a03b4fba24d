"""Running generated Triton kernels on the CPU, in Triton's interpreter (``TRITON_INTERPRET=1``), for tests.

The interpreter knows no libdevice functions; ``libdevice`` here computes them with PyTorch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from inductor_gen.codegen.triton import TritonSource
from inductor_gen.runtime.triton_build import load_module_text, module_text
from inductor_gen.runtime.triton_check import triton_version
from prims.dtypes import KEPT_FLOATS
from prims.errors import Unsupported

__all__ = ["Interpreted", "interpreted", "libdevice"]


#: Dtypes whose elements are bytes to a kernel.
_BYTES = (torch.bool, *KEPT_FLOATS)


class Interpreted:
    """A kernel in the interpreter."""

    def __init__(self, source: TritonSource, function: Any) -> None:
        self.source = source
        self.function = function

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int | float]) -> None:
        """Run it over its whole grid; ``sizes`` ends with the grid."""
        *numbers, gx, gy = sizes
        if self.source.words:
            addresses = [*self.source.words, *(t.data_ptr() for t in tensors[1:])]
            tensors = [tensors[0].copy_(torch.tensor(addresses))]
        if gx > 0 and gy > 0:
            views = [t.view(torch.uint8) if t.dtype in _BYTES else t for t in tensors]
            with _mended():
                self.function[(int(gx), int(gy))](*views, *numbers)


@contextlib.contextmanager
def _mended() -> Iterator[None]:
    """The interpreter with ``tl.device_assert``; not with its own checks, as integers may wrap around.

    Its comparisons of scalars have their operands' type, and it rounds to bfloat16 towards zero, integers not at all.
    """
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

    def binary(left: Any, right: Any, op: Any) -> Any:
        found = InterpreterBuilder.binary_op(interpreter_builder, left, right, op)
        return TensorHandle(found.data, tl.int1) if found.data.dtype == bool else found

    def cast(x: Any, kind: Any, *_: Any) -> Any:
        if kind.scalar == tl.bfloat16 and x.dtype.scalar != tl.bfloat16:
            wide = torch.from_numpy(numpy.asarray(x.data)).to(torch.bfloat16)
            return TensorHandle(wide.view(torch.uint16).numpy(), tl.bfloat16)
        if x.dtype.scalar == tl.bfloat16:
            x = InterpreterBuilder.cast_impl(interpreter_builder, x, tl.float32)
        return InterpreterBuilder.cast_impl(interpreter_builder, x, kind)

    changed = {
        "binary_op": binary, "cast_impl": cast, "create_fp_to_fp": cast,
        "options": dataclasses.replace(interpreter_builder.options, debug=True, sanitize_overflow=False),
    }  # fmt: skip
    before = dict(vars(interpreter_builder))
    vars(interpreter_builder).update(changed)
    try:
        yield
    finally:
        vars(interpreter_builder).clear()
        vars(interpreter_builder).update(before)


def interpreted(sources: Sequence[TritonSource]) -> dict[str, Interpreted]:
    """The kernels by name.

    Raises:
        Unsupported: Triton is missing or its interpreter is not switched on.
    """
    if triton_version() is None:
        raise Unsupported("Triton is not installed")
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("Triton kernels run on the CPU only under TRITON_INTERPRET=1, set before Triton is imported")
    text = module_text(sources).replace(
        "from triton.language.extra import libdevice", "from inductor_gen.runtime.triton_interpret import libdevice"
    )
    for op, sign in (("add", "+"), ("sub", "-")):  # it knows no instructions, and contracts nothing
        text = re.sub(rf'tl\.inline_asm_elementwise\("{op}.*\)', f"a {sign} b", text)
    # its product of bfloat16 blocks takes their bits for integers; in float32 16-bit factors multiply exactly
    text = text.replace("tl.dot(a, b, acc", "tl.dot(a.to(tl.float32), b.to(tl.float32), acc")
    with tempfile.TemporaryDirectory(prefix="quintet-") as folder:
        module = load_module_text(text, Path(folder))
        found = {}
        for s in sources:
            function = getattr(module, s.name)
            if hasattr(function, "rewrite"):
                function.rewrite()  # reads the file, which will be gone
            found[s.name] = Interpreted(s, function)
        return found


class _Libdevice:
    """``libdevice.f(x, ...)`` on blocks of the interpreter."""

    _OTHER = {"lgamma": torch.lgamma, "pow": torch.pow, "nearbyint": torch.round, "fast_dividef": torch.div}

    def __getattr__(self, name: str) -> Any:
        function = self._OTHER.get(name) or getattr(torch, name)

        def call(*blocks: Any) -> Any:
            import numpy
            import triton.language as tl
            from triton.runtime.interpreter import TensorHandle

            arrays = [numpy.asarray(b.handle.data) if hasattr(b, "handle") else numpy.asarray(b) for b in blocks]
            kind = blocks[0].handle.data.dtype if hasattr(blocks[0], "handle") else arrays[-1].dtype
            result = function(*(torch.from_numpy(numpy.array(a, dtype=kind)) for a in arrays)).numpy()
            model = max((b for b in blocks if hasattr(b, "handle")), key=lambda b: b.handle.data.size)
            return tl.core.tensor(TensorHandle(result.astype(kind), model.handle.dtype), model.type)

        return call


libdevice = _Libdevice()
