"""The launcher: what reaches kernels, on the CPU and, with a stand-in for the driver, on a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from inductor_gen.codegen.renderer import Unit
from inductor_gen.runtime import launch as launching
from inductor_gen.runtime.compiler import load_kernels
from inductor_gen.runtime.helpers import HELPERS
from inductor_gen.runtime.launch import GPU_LAUNCHER, LAUNCHER, UNALIGNED, Launcher, Layout, Program, as_launcher
from inductor_gen.runtime.products import Product
from prims.options import Options

ADD = Unit(
    "add_numbers",
    "int KERNEL(void* const* p, const int64_t* n) {\n"
    "    const double by = *(const double*)(n + 1);\n"
    "    for (int64_t k = 0; k < n[0]; k++) ((float*)p[0])[k] = ((const float*)p[1])[k] + by;\n"
    "    return n[0] > 99 ? 2 : 0;\n"
    "}\n",
)


@pytest.fixture(
    params=[(LAUNCHER, True), (LAUNCHER, False), (GPU_LAUNCHER, True), (GPU_LAUNCHER, False)],
    ids=["quick", "by method", "quick for GPUs", "by method for GPUs"],
)
def launch(request: Any) -> Iterator[Launcher]:
    unit, quick = request.param
    addresses, _ = load_kernels([unit], Options())
    yield as_launcher(addresses[unit.name], quick)
    as_launcher(addresses[unit.name])


@pytest.fixture(params=[True, False], ids=["quick", "by method"])
def gpu_launch(request: Any) -> Iterator[Launcher]:
    addresses, _ = load_kernels([GPU_LAUNCHER], Options())
    yield as_launcher(addresses[GPU_LAUNCHER.name], request.param)
    as_launcher(addresses[GPU_LAUNCHER.name])


def bits(x: float) -> int:
    return int(struct.unpack("q", struct.pack("d", x))[0])


def add(launch: Launcher, numbers: Any, slots: Any = ((0, 0), (1, 0))) -> Any:
    function = load_kernels([ADD], Options())[0][ADD.name]
    return launch(Program(2, slots, numbers, [(function, 0, 0, (0, 1), 0, 0, ())]))


def test_constant_sizes(launch: Launcher) -> None:
    out, x = torch.zeros(4), torch.nn.Parameter(torch.arange(4.0))
    assert add(launch, [3, bits(-0.5)])(out, x) == 0
    assert out.tolist() == [-0.5, 0.5, 1.5, 0]


def test_sizes_of_a_call_and_views(launch: Launcher) -> None:
    run = add(launch, 2)
    base = torch.arange(10.0)
    out = torch.zeros(6)
    for n in (2, 5):
        assert run(out[1:], base[3:], n, bits(1.0)) == 0
    assert out.tolist() == [0, 4, 5, 6, 7, 8]


def test_what_a_kernel_met_comes_back(launch: Launcher) -> None:
    assert add(launch, 2)(torch.zeros(100), torch.zeros(100), 100, 0) == 2


def test_places_within_a_tensor(launch: Launcher) -> None:
    """Operands may begin at any byte of what is passed, and be several pieces of it."""
    function = load_kernels([ADD], Options())[0][ADD.name]
    block = torch.arange(6.0)
    run = launch(Program(1, [(0, 12), (0, 0)], [3, bits(10.0)], [(function, 0, 0, (0, 1), 0, 0, ())]))
    assert run(block) == 0
    assert block.tolist() == [0, 1, 2, 10, 11, 12]


def test_tensors_are_known_whatever_the_default_device(monkeypatch: Any) -> None:
    monkeypatch.setattr(launching, "_KNOWN", [])
    with torch.device("meta"):
        places = launching._tensor_places()
    assert all(places) and launching._KNOWN == [places]


def test_strides_are_compared_where_the_tensor_is_known() -> None:
    """A layout that is not the planned one is never taken for it; what cannot be told counts as moved."""
    address = load_kernels([LAUNCHER], Options())[0][LAUNCHER.name]
    x = torch.randn(4, 3, 2)

    class Sub(torch.Tensor):
        pass

    views = [x, x.transpose(0, 1), x[:, 0], x[0, 0, 0], x[:, ::2], x.expand(5, 4, 3, 2),
             torch.nn.Parameter(x), x[:0], x.permute(2, 1, 0)]  # fmt: skip
    by_method = as_launcher(address, quick=False)
    assert all(by_method(Layout(view.stride()))(view) == 1 for view in views)
    quick = as_launcher(address)
    for planned in {view.stride() for view in views}:
        moved = quick(Layout(planned))
        assert [moved(view) for view in views] == [int(view.stride() != planned) for view in views]
        assert moved(x.as_subclass(Sub)) == moved(torch.ones(2).to_sparse()) == moved(None) == moved() == 1


def test_kernels_on_a_gpu_have_their_own_launcher() -> None:
    launch = as_launcher(load_kernels([LAUNCHER], Options())[0][LAUNCHER.name])
    with pytest.raises(TypeError, match="for kernels on the CPU"):
        launch(Program(1, [(0, 0)], [], [], [0] * 6))(torch.zeros(4), 0)
    with pytest.raises(TypeError, match="for kernels on the CPU"):
        launch(Product([0] * 40, 0))(torch.zeros(4))


def test_what_is_no_tensor_is_refused(launch: Launcher) -> None:
    run = add(launch, [3, 0])
    with pytest.raises(AttributeError, match="data_ptr"):
        run(torch.zeros(4), 5)
    with pytest.raises(TypeError, match="number of arguments"):
        run(torch.zeros(4))
    with pytest.raises(TypeError):
        add(launch, 2)(torch.zeros(4), torch.zeros(4), "three", 0)


def test_a_subclass_is_asked_by_its_method(launch: Launcher) -> None:
    class Sub(torch.Tensor):
        pass

    out = torch.zeros(3).as_subclass(Sub)
    assert add(launch, [3, bits(2.0)])(out, torch.ones(3)) == 0
    assert out.tolist() == [3, 3, 3]


def test_a_kernel_runs_without_the_interpreters_lock(launch: Launcher) -> None:
    """Whoever waits in a kernel for another thread (a full queue of a GPU's stream, say) must not keep that one out."""
    import threading

    there = threading.Event()
    kernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def wait(*_: Any) -> int:
        return 0 if there.wait(20) else 1

    function = kernel(wait)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    run = launch(Program(0, (), [], [(address, 0, 0, (), 0, 0, ())]))
    other = threading.Thread(target=there.set)
    other.start()
    assert run() == 0
    other.join()


class Driver:
    """Stands in for the three driver functions that the launcher calls."""

    LAUNCH = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
    )  # fmt: skip

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[int, ...]] = []
        self.launch = self.LAUNCH(self._launch)
        self.current = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(self._current)
        self.enter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda context: 0)

    def _current(self, place: Any) -> int:
        place[0] = 77
        return 0

    def _launch(self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: Any,
                args: Any, extra: Any) -> int:  # fmt: skip
        pointer = ctypes.cast(args[0], ctypes.POINTER(ctypes.c_int64))[0]
        number = ctypes.cast(args[1], ctypes.POINTER(ctypes.c_int64))[0]
        self.calls.append((function, gx, gy, bx, shared, stream or 0, pointer, number))
        return self.code

    def words(self) -> list[int]:
        functions = (self.launch, self.current, self.enter)
        return [*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions), 77, 900, 3]


def aligned(count: int) -> torch.Tensor:
    x = torch.zeros(count + 16, dtype=torch.uint8)
    return x[-x.data_ptr() % 16 :]


def test_a_gpu_gets_what_the_table_says(gpu_launch: Launcher) -> None:
    driver = Driver()
    # Two kernels with one pointer and one number each, then their grids; the second's grid is empty.
    calls = [(1001, 128, 64, (1,), 1, 0, ()), (1002, 32, 0, (0,), 1, 3, ())]
    run = gpu_launch(Program(2, [(0, 0), (1, 32)], [50, 7, 2, 60, 0, 1], calls, driver.words()))
    a, b = aligned(100), aligned(100)
    assert run(a, b, 5) == 0
    assert driver.calls == [(1001, 7, 2, 128, 64, 5, b.data_ptr() + 32, 50)]
    assert run(a, b[4:], 5) == UNALIGNED
    assert len(driver.calls) == 1


def test_a_table_is_written_in_as_many_launches_as_it_takes(gpu_launch: Launcher) -> None:
    written: dict[int, int] = {}

    class Writing(Driver):
        def _launch(self, function: int, *rest: Any) -> int:
            args = rest[-2]
            if function == 900:
                words, place, count = (ctypes.cast(args[k], ctypes.POINTER(ctypes.c_int64)) for k in range(3))
                written.update((place[0] + 8 * k, words[k]) for k in range(count[0] & 0xFFFFFFFF))
            return super()._launch(function, *rest)

    driver = Writing()
    table, a, b = aligned(64), aligned(64), aligned(64)
    calls = [(1001, 128, 0, (0, 1, 2, 1, 2), 1, 0, (7, 8, 9))]
    run = gpu_launch(Program(3, [(0, 0), (1, 0), (2, 16)], [50, 2, 1], calls, driver.words()))
    assert run(table, a, b, 5) == 0
    addresses = [a.data_ptr(), b.data_ptr() + 16] * 2
    assert [written[table.data_ptr() + 8 * k] for k in range(7)] == [7, 8, 9, *addresses]
    assert [call[0] for call in driver.calls] == [900, 900, 900, 1001], "three words a launch"
    assert driver.calls[-1] == (1001, 2, 1, 128, 0, 5, table.data_ptr(), 50)


def test_the_drivers_error_comes_back(gpu_launch: Launcher) -> None:
    driver = Driver(701)
    run = gpu_launch(Program(1, [(0, 0)], 3, [(1, 32, 0, (0,), 1, 0, ())] * 2, driver.words()))
    assert run(aligned(8), 1, 2, 1, 0) == 701
    assert len(driver.calls) == 1


def test_what_is_brought_back_to_memory_that_begins_anywhere_counts_no_write() -> None:
    """A graph that writes through ``data`` is not to be seen by autograd; who wants it counted counts it."""
    given = torch.arange(5.0)[1:]

    def run(x: torch.Tensor) -> int:
        if x.data_ptr() % 16:
            return UNALIGNED
        x.data.add_(1)
        return 0

    HELPERS["relaunch"](run, UNALIGNED, [given], [], [0])
    assert given.tolist() == [2.0, 3.0, 4.0, 5.0] and given._version == 0
