"""Kernels and choices for devices that are not there, by their published records."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from gen_support import SERVER, build

import inductor_gen
from inductor_gen.codegen.lowered import Rendered
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.device.record import known
from inductor_gen.pipeline import lower_graph
from inductor_gen.runtime.triton_build import compile_kernel, load_module_text, module_text
from prims.artefact import NotPortable
from prims.ir import Mutation, OutputDesc
from prims.options import Options
from prims.spec import TensorSpec

DEVICES = ("A100-80GB", "L4", "H200", "B200")
GPU = torch.device("cuda", 0)
aten = torch.ops.aten


def relu(p, x):
    return p.maximum(x, 0.0)


def softmax(p, x):
    rows, columns = x.shape
    e = p.exp(p.sub(x, p.broadcast(p.amax(x, (1,)), (rows, columns), (0,))))
    return p.div(e, p.broadcast(p.sum(e, (1,)), (rows, columns), (0,)))


def product(p, a, b):
    return p.aten(aten.mm.default, a, b)


def product_and_reader(p, a, b, c):
    y = product(p, a, b)
    return relu(p, p.add(y, p.broadcast(c, y.shape, (1,))))


def product_that_meets_itself(p, x):
    t = p.mul(p.convert(x, torch.float32), 0.3)
    wide = p.mul(p.convert(x, torch.float64), 0.3)
    return p.sub(t, p.broadcast(p.amax(t, (1,)), t.shape, (0,))), p.sub(wide, wide)


CASES = {
    "pointwise": (lambda p, x, y: relu(p, p.add(x, y)), [(500, 1000), (500, 1000)]),
    "rows": (softmax, [(8192, 4096)]),
    "few rows": (lambda p, x: p.sum(x, (1,)), [(8, 1 << 20)]),
    "product that meets itself": (product_that_meets_itself, [(500, 8)]),
    "columns": (lambda p, x, y: p.sum(p.mul(x, p.sigmoid(y)), (0,)), [(8192, 3072), (8192, 3072)]),
    "misaligned product": (product, [(4096, 768), (768, 50257)]),
    "shallow product": (product_and_reader, [(100352, 64), (64, 256), (256,)]),
    "product between": (product_and_reader, [(8192, 768), (768, 3072), (3072,)]),
    "deep product": (product_and_reader, [(4096, 4096), (4096, 4096), (4096,)]),
    "two small kernels": (lambda p, x, y: (p.sin(x), p.cos(y)), [(1024, 2048), (1000, 2048)]),
}


def lowered(case, name):
    fn, shapes = CASES[case]
    specs = [TensorSpec(shape, torch.bfloat16, GPU) for shape in shapes]
    env = build(fn, specs, claims=inductor_gen.claims("cuda"))
    return lower_graph(env, Options(verify="off"), devices=lambda _: known(name))


def added(p, table, index, rows):
    return p.index_put(table, (index,), (0,), p.sin(rows), True)


@pytest.mark.parametrize("in_place", [True, "again", False])
def test_sums_are_scattered_into_an_input(in_place):
    """On a GPU no kernel fails: the table is neither copied nor written back, unless the graph is to be run again."""
    specs = [TensorSpec(shape, dtype, GPU) for shape, dtype in (
        ((5000, 64), torch.float32), ((300,), torch.int64), ((300, 64), torch.float32))]  # fmt: skip
    env = build(added, specs, claims=inductor_gen.claims("cuda"))
    env = env.replace(outputs=(OutputDesc("mutation", specs[0]),), mutations=(Mutation(0, 0),))
    unit = lower_graph(env, Options(verify="every_pass"), devices=lambda _: known("H200"), in_place=in_place)
    assert len(unit.sources()) == (1 if in_place is True else 2)
    assert [node.kind for node in unit.memory.renewed.values()] == (["input"] if in_place is True else [])


def sources(unit):
    return unit.sources()


def blocks(source):
    """The constants and the shape of the launch of a kernel."""
    constants = [line.strip().replace(": tl.constexpr", "") for line in source.text.splitlines() if "constexpr" in line]
    grid = "x".join(str(e) for e in source.grid)
    return f"{' '.join(dict.fromkeys(source.ops))}: {', '.join(constants)}; {source.warps} warps, grid {grid}"


def choices(unit):
    """What was chosen, a line for each call."""
    lines = []
    for call in unit.calls:
        lines += map(blocks, call.sources) if isinstance(call, Rendered) else [f"library: {call.node.op}"]
    return "\n".join(lines)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DEVICES)
def test_kernels_compile_for_the_architecture(name, case, tmp_path):
    unit, device = lowered(case, name), known(name)
    made = sources(unit)
    print(f"\n{device}\n{case}:\n{choices(unit)}")
    assert made and all(isinstance(s, TritonSource) for s in made)
    module = load_module_text(module_text(made), Path(tmp_path))
    for source in made:
        cubin, _, shared = compile_kernel(module, source, device.capability)
        assert cubin.startswith(b"\x7fELF") and shared <= device.shared_memory, (source.name, shared)


def neighbours(p, x, w):
    y = p.mul(x, w)
    return p.sub(p.slice(y, (1, 0), (500, 8), (1, 1)), p.slice(y, (0, 0), (499, 8), (1, 1)))


def centred(p, x, w, factor):
    y = p.add(p.mul(x, w), x)
    return p.mul(p.sub(y, p.broadcast(p.sum(y, (1,)), y.shape, (0,))), factor)


CONTRACTED = {
    "neighbours": (neighbours, False),
    "neighbours' sines": (lambda p, x, w: p.sin(neighbours(p, p.sin(x), w)), False),
    "a product and its factor": (lambda p, x, w: p.sub(p.mul(x, w), w), True),
    "a product and its factor elsewhere": (lambda p, x, w: p.add(p.flip(x, (0,)), p.mul(x, w)), True),
    "neighbours, apart": (lambda p, x, w: p.concat((neighbours(p, x, w), p.mul(x, w)), 0), False),
    "a row's sum of what is made of a product": (lambda p, x, w: centred(p, x, w, p.sin(x)), True),
    "a row's sum, and its product": (lambda p, x, w: centred(p, x, w, p.mul(x, w)), False),
}


@pytest.mark.parametrize("case", CONTRACTED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_go_unrounded_into_sums_where_no_number_meets_itself(device, case):
    fn, contracted = CONTRACTED[case]
    spec = TensorSpec((500, 8), torch.float32, torch.device(device))
    env = build(fn, [spec, spec], claims=inductor_gen.claims(device))
    made = lower_graph(env, Options(verify="off"), devices=lambda _: SERVER if device == "cpu" else known("H200")).sources()
    kept = [s.contract if device == "cuda" else "q_fma" in s.text for s in made]
    # A row of 8 is in registers on a GPU: a number of it is computed once.
    assert all(kept) == (contracted or device == "cuda" and "row's" in case)


def grid_of(case, name):
    return [tuple(int(e.value) for e in s.grid) for s in sources(lowered(case, name))]


def test_whole_graphs_are_compiled_by_what_the_row_names(monkeypatch, tmp_path):
    """C kernels of a kind of device go to its row's ``load``, as they are; what it made is called, and is not stored."""
    import ctypes
    import subprocess
    from dataclasses import replace

    from inductor_gen.codegen.cexpr import prelude
    from inductor_gen.device.backends import BACKENDS

    seen = []

    def load(units, options):
        seen.extend(unit.name for unit in units)
        text = "\n".join([prelude("".join(unit.text for unit in units)), *(unit.named() for unit in units)])
        (tmp_path / "kernels.c").write_text(text.replace("sinf(", "cosf("))
        command = ["gcc", "-O2", "-shared", "-fPIC", "-fopenmp", "kernels.c", "-o", "kernels.so", "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
        made = ctypes.CDLL(str(tmp_path / "kernels.so"))
        addresses = {unit.name: ctypes.cast(getattr(made, unit.name), ctypes.c_void_p).value for unit in units}
        return addresses, len(units)

    x = torch.randn(8, 5)
    env = build(lambda p, x: p.sum(p.sin(x), (1,)), [x])
    before = inductor_gen.compile_graph(env)
    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], load=load))
    made = inductor_gen.compile_graph(env)
    assert seen == [kernel.name for kernel in made.kernels] == [kernel.name for kernel in before.kernels]
    torch.testing.assert_close(made(x)[0], x.cos().sum(1))
    torch.testing.assert_close(before(x)[0], x.sin().sum(1))
    before.artefact()
    with pytest.raises(NotPortable, match="by a function of the program's"):
        made.artefact()
    monkeypatch.undo()
    torch.testing.assert_close(inductor_gen.compile_graph(env)(x)[0], x.sin().sum(1))


def test_choices_follow_the_device():
    """What fills one device does not fill another; what fits one's shared memory does not fit another's."""
    assert "XBLOCK = 1024" in choices(lowered("pointwise", "L4"))
    assert "XBLOCK = 512" in choices(lowered("pointwise", "B200"))
    parts = {name: grid_of("few rows", name)[0][1] for name in DEVICES}
    assert parts["L4"] < parts["A100-80GB"] < parts["H200"] < parts["B200"], parts
    for name in DEVICES:
        assert parts[name] * 8 >= 4 * known(name).multiprocessors
        (lasting,) = [" lasting" in s.text for s in sources(lowered("misaligned product", name))]
        assert lasting == (name in ("H200", "B200"))
        if lasting:
            assert grid_of("misaligned product", name) == [(known(name).multiprocessors, 1)]


def test_what_a_launch_is_worth_follows_the_device():
    """Two kernels of eight megabytes each cost an L4 more than their launches, a B200 less."""
    launches = {name: len(lowered("two small kernels", name).calls) for name in DEVICES}
    assert launches == {"A100-80GB": 1, "L4": 2, "H200": 1, "B200": 1}


def test_templates_where_memory_is_slow_beside_arithmetic():
    """A shallow product joins its reader everywhere, a deep one nowhere; one between where memory is slower."""
    for name in DEVICES:
        assert "library" not in choices(lowered("shallow product", name))
        assert "library" in choices(lowered("deep product", name))
    assert "library" not in choices(lowered("product between", "L4"))
    assert "library" in choices(lowered("product between", "A100-80GB"))
