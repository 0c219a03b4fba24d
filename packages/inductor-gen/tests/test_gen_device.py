"""The records of devices."""

from __future__ import annotations

import dataclasses
import os
import types

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.device import backends, cuda
from inductor_gen.device.backends import BACKENDS, Backend, backend
from inductor_gen.device.record import _asked, device_of, known
from inductor_gen.extern.calls import function_for
from inductor_gen.pipeline import lower_graph
from prims.errors import Unsupported, UserError
from prims.options import Options
from prims.spec import TensorSpec


def test_the_cpu_is_asked():
    cpu = device_of(torch.device("cpu"))
    assert cpu.kind == "cpu" and cpu.capability is None
    assert cpu.multiprocessors == len(os.sched_getaffinity(0))
    assert cpu.vector_bytes in (16, 32, 64) and cpu.shared_memory >= 16 << 10 and cpu.l2_bytes >= cpu.shared_memory
    assert cpu.bandwidth > 0 and cpu.flops16 >= cpu.flops32 > 0
    assert device_of(torch.device("cpu")) is cpu


@pytest.mark.parametrize("name", list(cuda.KNOWN))
def test_published_figures_agree_with_what_a_device_would_say(name):
    """The formulas over clocks give the data sheets' figures, for every device that has one."""
    d = known(name)
    clocks = {"A100-80GB": 1.41e9, "L4": 2.04e9, "H100": 1.83e9, "H200": 1.83e9, "B200": 1.86e9}
    halves, _ = cuda._PER_CLOCK[d.capability]
    assert d.multiprocessors * halves * clocks[name] == pytest.approx(d.flops16, rel=0.02)
    assert str(d.multiprocessors) in str(d) and d.launch_bytes == d.launch_cost * d.bandwidth


def described(**more):
    return types.SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=62914560,
        max_threads_per_multi_processor=2048, warp_size=32, **more,
    )  # fmt: skip


@pytest.mark.parametrize("told", [True, False])
def test_a_gpu_is_asked(monkeypatch, told):
    """By torch where it says, else by the driver, else from published figures of the capability."""
    more = {"clock_rate": 1980000, "memory_clock_rate": 3201000, "memory_bus_width": 6144,
            "regs_per_multiprocessor": 65536, "shared_memory_per_block_optin": 232448}  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: described(**(more if told else {})))
    monkeypatch.setattr(cuda, "_attribute", lambda *_: 0)
    found, sheet = cuda.ask(torch.device("cuda", 0)), known("H200")
    assert (found.multiprocessors, found.shared_memory, found.registers) == (132, 232448, 65536)
    assert found.bandwidth == pytest.approx(sheet.bandwidth, rel=0.05)
    assert found.flops16 == pytest.approx(sheet.flops16, rel=0.1)
    assert found.flops32 == pytest.approx(sheet.flops32, rel=0.1)


def test_unknown_devices_are_refused():
    with pytest.raises(UserError, match="known are A100-80GB, L4"):
        known("Voodoo 2")
    for ask in (lambda: device_of(torch.device("meta")), lambda: inductor_gen.claims("meta")):
        with pytest.raises(Unsupported, match="for meta devices, only for cpu and cuda"):
            ask()


@pytest.mark.parametrize("kind", BACKENDS)
def test_what_a_row_names_is_there(kind):
    row = backend(kind)
    for what in ("ask", "claims", "renderer", "call", "begin"):
        assert callable(row[what])
    named = row["claims"]()
    assert len(set(named)) == len(named) and set(named) <= inductor_gen.claims(kind)
    for name in named:
        assert isinstance(getattr(getattr(torch.ops.aten, name.split(".")[1]), name.split(".")[2]), torch._ops.OpOverload)


def test_a_new_kind_of_device_is_a_row(monkeypatch):
    """Its record, its operators and its renderer are taken; nothing else is asked what kind it is."""
    row = Backend("meta", "c", ask="device.cpu:ask", claims="device.cpu:claims", renderer="codegen.c:CRenderer")
    monkeypatch.setitem(BACKENDS, "meta", row)
    meta = torch.device("meta")
    _asked.cache_clear()
    assert device_of(meta) == device_of(torch.device("cpu"))
    _asked.cache_clear()
    x = TensorSpec((4, 8), torch.float32, meta)
    env = build(lambda p, a, b: p.aten(torch.ops.aten.mm.default, p.exp(a), b), [x, TensorSpec((8, 3), torch.float32, meta)])
    lowered = lower_graph(env, Options(verify="off"))
    product = lowered.calls[1]
    assert [s.language for s in lowered.sources()] == ["c"] and function_for(product.node)[0] == "torch.mm"


def test_the_current_gpu_is_asked_each_time(monkeypatch):
    """``cuda`` without a number is another device when another one is current."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(cuda, "ask", lambda device: dataclasses.replace(known("L4"), name=str(device)))
    _asked.cache_clear()
    backends._named.cache_clear()
    try:
        for number in (0, 1, 0):
            current[0] = number
            assert device_of(torch.device("cuda")).name == f"cuda:{number}"
    finally:
        _asked.cache_clear()
        backends._named.cache_clear()
