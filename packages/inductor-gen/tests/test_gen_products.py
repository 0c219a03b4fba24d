"""Products by cuBLASLt: what the library is told, against what its documentation says that it computes."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.device.record import known
from inductor_gen.kernel.ir import Call
from inductor_gen.pipeline import lower_graph
from inductor_gen.runtime import products, triton_wrapper
from inductor_gen.runtime.compiler import load_kernels
from inductor_gen.runtime.launch import GPU_LAUNCHER, UNALIGNED, as_launcher
from inductor_gen.runtime.products import Product, Products
from inductor_gen.runtime.triton_wrapper import TritonWrapper
from prims.options import Options
from prims.spec import TensorSpec

MATMUL = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.POINTER(ctypes.c_float), *[ctypes.c_void_p] * 4,
    ctypes.POINTER(ctypes.c_float), *[ctypes.c_void_p] * 4, ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p,
    ctypes.c_size_t, ctypes.c_void_p,
)  # fmt: skip


SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
CONTENTS = {3: ctypes.c_int32, 4: ctypes.c_int32, 7: ctypes.c_int32, 8: ctypes.c_int64}
SIZES = {5: ctypes.c_int32, 6: ctypes.c_int64}


def float_at(address: int, rows: int, columns: int, leading: int) -> torch.Tensor:
    """The matrix of bfloat16 at an address, whose columns are ``leading`` apart."""
    count = (columns - 1) * leading + rows
    raw = (ctypes.c_int16 * count).from_address(address)
    flat = torch.frombuffer(raw, dtype=torch.bfloat16)
    return flat.as_strided((rows, columns), (1, leading))


class Library:
    """Computes on the CPU what the documentation of cublasLtMatmul says."""

    def __init__(self, workspace: int = 0, status: int = 0) -> None:
        self.objects: dict[int, Any] = {}
        self.workspace = workspace
        self.status = status
        self.code = 0
        self.given: list[tuple[Any, ...]] = []
        self.cublasLtMatmul = MATMUL(self._matmul)
        self.cublasLtMatmulDescSetAttribute = SET(self._describe)

    def _new(self, place: Any, value: Any) -> int:
        number = len(self.objects) + 1000
        self.objects[number] = value
        place._obj.value = number
        return 0

    def cublasLtMatmulDescCreate(self, place: Any, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0)
        return self._new(place, {3: 0, 4: 0})

    def _describe(self, made: int, name: int, value: int, size: int) -> int:
        assert size == ctypes.sizeof(CONTENTS[name])
        self.objects[made][name] = CONTENTS[name].from_address(value).value
        return 0

    def cublasLtMatrixLayoutSetAttribute(self, made: Any, name: int, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(SIZES[name])
        self.objects[made.value][name] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, place: Any, kind: int, rows: Any, columns: Any, leading: Any) -> int:
        assert kind == 14 and leading.value >= rows.value
        return self._new(place, {"sizes": (rows.value, columns.value, leading.value)})

    def cublasLtMatmulPreferenceCreate(self, place: Any) -> int:
        return self._new(place, {})

    def cublasLtMatmulPreferenceSetAttribute(self, made: Any, name: int, value: Any, size: Any) -> int:
        assert (name, size.value) == (1, 8)
        return 0

    def cublasLtMatmulPreferenceDestroy(self, made: Any) -> int:
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *args: Any) -> int:
        found, count = args[-2], args[-1]
        found[0], found[7], found[8], found[9] = 41, 48, self.workspace, self.status
        count._obj.value = 1
        return 0

    def _matmul(
        self, handle: Any, made: int, alpha: Any, a: int, a_layout: int, b: int, b_layout: int, beta: Any, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: Any, workspace: Any, size: int, stream: Any,
    ) -> int:  # fmt: skip
        self.given.append((handle, algorithm[0], algorithm[7], workspace, size, stream))
        if self.code:
            return self.code
        assert (alpha[0], beta[0], c, c_layout) == (1, 0, d, d_layout)
        how, (first, second, out) = self.objects[made], (self.objects[x] for x in (a_layout, b_layout, d_layout))
        assert first.get(5) == second.get(5) == out.get(5)
        for k in range(out.get(5, 1)):
            left, right, found = (
                float_at(at + 2 * k * layout.get(6, 0), *layout["sizes"])
                for at, layout in ((a, first), (b, second), (d, out))
            )
            product = (left.t() if how[3] else left).float() @ (right.t() if how[4] else right).float()
            if 7 in how:
                assert how[7] == 4
                product += float_at(how[8], len(product), 1, len(product)).float()
            found.copy_(product)
        return 0


def made(monkeypatch: Any, library: Library) -> Products:
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    found = Products(torch.device("cuda", 0))
    found.lib, found.handle = library, ctypes.c_void_p(99)
    return found


def matrix(rows: int, columns: int, padding: int, turned: bool) -> torch.Tensor:
    """One whose memory begins at a multiple of 256 bytes."""
    shape = (columns, rows) if turned else (rows, columns)
    block = torch.randn(shape[0] * (shape[1] + padding) + 256).bfloat16()
    skipped = -block.data_ptr() % 256 // 2
    found = block.as_strided(shape, (shape[1] + padding, 1), skipped)
    return found.t() if turned else found


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_rows_or_columns_first(monkeypatch: Any, left: bool, right: bool, padding: int) -> None:
    library = Library()
    found = made(monkeypatch, library)
    a, b, out = matrix(17, 23, padding, left), matrix(23, 31, padding, right), matrix(17, 31, 0, False)
    product = found.product(torch.bfloat16, (17, 31, 23), a.stride(), b.stride(), (0, 0))
    assert product is not None and product.workspace == 0
    run = as_launcher(load_kernels([GPU_LAUNCHER], Options())[0][GPU_LAUNCHER.name])(product)
    assert run(out, a, b, 7) == 0
    torch.testing.assert_close(out, (a.float() @ b.float()).bfloat16())
    assert library.given == [(99, 41, 48, None, 0, 7)]
    assert found.product(torch.bfloat16, (17, 31, 23), a.stride(), b.stride(), (0, 0)) is product


def test_a_bias_and_where_it_is_at_each_call(monkeypatch: Any) -> None:
    found = made(monkeypatch, Library(workspace=512))
    a, b, out = matrix(17, 23, 0, False), matrix(23, 31, 0, True), matrix(17, 31, 0, False)
    product = found.product(torch.bfloat16, (17, 31, 23), a.stride(), b.stride(), (0, 0, 512))
    assert product is not None
    run = as_launcher(load_kernels([GPU_LAUNCHER], Options())[0][GPU_LAUNCHER.name])(product)
    space = torch.empty(512, dtype=torch.uint8)
    for _ in range(2):
        biases = matrix(1, 256 + 31, 0, False)
        assert run(out, a, b, biases, 7, space) == 0
        torch.testing.assert_close(out, (a.float() @ b.float() + biases[0, 256:].float()).bfloat16())
    assert run(out, a, b, biases[:, 1:], 7, space) == UNALIGNED


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_many_pairs(monkeypatch: Any, left: bool, right: bool) -> None:
    """Each of them a part of a larger tensor."""
    found = made(monkeypatch, Library())
    a, b = (matrix(64, 32, 0, False).view(2, 2, 16, 32)[:, 1] for _ in range(2))
    a, b = a if left else a.clone().mT.contiguous().mT, b.mT if right else b.mT.contiguous()
    out = matrix(32, 16, 0, False).view(2, 16, 16)
    product = found.product(torch.bfloat16, (2, 16, 16, 32), a.stride(), b.stride(), (0, 0))
    assert product is not None
    run = as_launcher(load_kernels([GPU_LAUNCHER], Options())[0][GPU_LAUNCHER.name])(product)
    given = [x if x.data_ptr() % 256 == 0 else moved(x) for x in (a, b)]
    assert run(out, *given, 7) == 0
    torch.testing.assert_close(out, (a.float() @ b.float()).bfloat16())


def moved(x: torch.Tensor) -> torch.Tensor:
    """The same matrices, beginning at a multiple of 256 bytes."""
    reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    flat = matrix(1, reach, 0, False)[0]
    flat.copy_(x.as_strided((reach,), (1,)))
    return flat.as_strided(x.shape, x.stride(), flat.storage_offset())


def test_operands_within_their_memory_a_workspace_and_errors(monkeypatch: Any) -> None:
    library = Library(workspace=4096)
    found = made(monkeypatch, library)
    whole, b, out = matrix(64, 32, 0, False), matrix(32, 16, 0, False), matrix(16, 16, 0, False)
    product = found.product(torch.bfloat16, (16, 16, 32), (32, 1), (16, 1), (16 * 32 * 2, 0))
    assert product is not None and product.workspace == 4096
    run = as_launcher(load_kernels([GPU_LAUNCHER], Options())[0][GPU_LAUNCHER.name])(product)
    space = torch.empty(4096, dtype=torch.uint8)
    assert run(out, whole, b, 0, space) == 0
    torch.testing.assert_close(out, (whole[16:32].float() @ b.float()).bfloat16())
    assert library.given == [(99, 41, 48, space.data_ptr(), 4096, None)]
    assert run(out, whole[1:], b, 0, space) == UNALIGNED and len(library.given) == 1
    library.code = 13
    assert run(out, whole, b, 0, space) == 13
    with pytest.raises(TypeError, match="number of arguments"):
        run(out, whole, b, 0)


def test_what_is_left_to_pytorch(monkeypatch: Any) -> None:
    found = made(monkeypatch, Library())
    shape, a, b, none = (32, 32, 32), (32, 1), (32, 1), (0, 0)
    assert isinstance(found.product(torch.bfloat16, shape, a, b, none), Product)
    assert found.product(torch.float32, shape, a, b, none) is None
    assert found.product(torch.bfloat16, (8, 32, 32), a, b, none) is None
    assert found.product(torch.bfloat16, shape, (64, 2), b, none) is None
    assert found.product(torch.bfloat16, shape, (0, 1), b, none) is None
    refusing = Library()
    refusing.cublasLtMatmulDescCreate = lambda *args: 15  # type: ignore[method-assign]
    for library in (Library(workspace=9 << 20), Library(status=7), refusing):
        assert made(monkeypatch, library).product(torch.bfloat16, shape, a, b, none) is None


@pytest.mark.parametrize("name", ["allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"])
def test_flags_are_asked_at_every_call(name: str) -> None:
    flags = torch.backends.cuda.matmul
    before = getattr(flags, name)
    assert not products.unusual()
    try:
        setattr(flags, name, False)
        assert products.unusual() and not products.plain()
    finally:
        setattr(flags, name, before)


def test_operands_may_begin_anywhere_in_their_memory(monkeypatch: Any) -> None:
    """The library gets the bytes at which an operand's matrix begins: those of its view and those of its buffer, which
    shares memory with others."""
    given: list[tuple[int, int]] = []

    class Recorder:
        def product(self, dtype: Any, shape: Any, a: Any, b: Any, offsets: tuple[int, int]) -> None:
            given.append(offsets)

    monkeypatch.setattr(triton_wrapper, "products_on", lambda device: Recorder())
    gpu, mm = torch.device("cuda", 0), torch.ops.aten.mm.default

    def fn(p: Any, x: Any) -> Any:
        return p.aten(mm, p.sin(x), p.slice(p.cos(x), (32, 0), (64, 32), (1, 1)))

    env = build(fn, [TensorSpec((64, 32), torch.bfloat16, gpu)], claims=inductor_gen.claims("cuda"))
    lowered = lower_graph(env, Options(verify="off"), devices=lambda _: known("H200"))
    wrapper = TritonWrapper(lowered, {}, GPU_LAUNCHER, {}, (), gpu)
    (call,) = (c for c in lowered.calls if isinstance(c, Call))
    wrapper._product(call.node)
    refs = lowered.prepared.externs[call.node][0]
    begins = [lowered.memory.place[ref.base][1] for ref in refs]
    assert any(begins), "both operands begin with their memory: the test shows nothing"
    assert given == [tuple(at + 2 * int(ref.offset.value) for at, ref in zip(begins, refs, strict=True))]


BIASED = torch.ops.aten.addmm.default
PAIRS = torch.ops.aten.bmm.default
CALLS = {
    "bias": (lambda p, x, w, b: p.aten(BIASED, b, x, w), [(32, 64), (64, 16), (16,)], "product"),
    "turned": (lambda p, x, w: p.aten(torch.ops.aten.mm.default, x, p.permute(w, (1, 0))), [(32, 64), (16, 64)], "product"),
    "pairs": (lambda p, x, y: p.aten(PAIRS, x, p.permute(y, (0, 2, 1))), [(3, 32, 64), (3, 16, 64)], "product"),
    "a bias of rows": (lambda p, x, w, b: p.aten(BIASED, b, x, w), [(32, 64), (64, 16), (32, 16)], "f_torch_addmm"),
    "thin": (lambda p, x, w, b: p.aten(BIASED, b, x, w), [(8, 64), (64, 16), (16,)], "f_torch_addmm"),
}


@pytest.mark.parametrize("case", CALLS)
def test_which_products_the_wrapper_asks_the_library_for(monkeypatch: Any, case: str) -> None:
    fn, shapes, wanted = CALLS[case]
    found = made(monkeypatch, Library())
    monkeypatch.setattr(triton_wrapper, "products_on", lambda device: found)
    monkeypatch.setattr(triton_wrapper, "plain", lambda: True)
    gpu = torch.device("cuda", 0)
    env = build(fn, [TensorSpec(s, torch.bfloat16, gpu) for s in shapes], claims=inductor_gen.claims("cuda"))
    lowered = lower_graph(env, Options(verify="off"), devices=lambda _: known("H200"))
    wrapper = TritonWrapper(lowered, {}, lambda program: None, {}, (), gpu)
    wrapper._inputs()
    wrapper._lifetimes()
    for wrapper.step, call in enumerate(lowered.calls):
        assert isinstance(call, Call)
        wrapper._extern(call)
    (step,) = wrapper.steps
    (line,) = (line for line in wrapper.lines if any(f"{call}(" in line for call in step.calls))
    assert wanted in line and (wanted != "product" or "out=" in line)
    assert all(f"{call}(" in line for call in step.calls)  # by any of them: a profile finds them all
