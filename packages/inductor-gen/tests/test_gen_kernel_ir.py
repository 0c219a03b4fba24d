"""The Kernel IR: what each kernel reads, writes and may overwrite is right, printable, and checked."""

from __future__ import annotations

import ast
import dataclasses
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gen_support import build, compile_fn, laid_out, of_server
from test_gen_fusion import gelu, layer_norm

import inductor_gen
from inductor_gen.__main__ import main
from inductor_gen.device.record import known
from inductor_gen.fuse.legality import MAX_ACCESSES, MAX_LENGTH, MAX_NODES, MAX_RESULTS
from inductor_gen.fuse.stages import fuse
from inductor_gen.kernel import ir
from inductor_gen.kernel.build import Builder
from inductor_gen.kernel.ir import Call, Kernel
from inductor_gen.loops.cost import op_length
from inductor_gen.loops.index import substitute
from inductor_gen.pipeline import lower_graph, planned, size_hint
from inductor_gen.plan.launches import launches
from inductor_gen.plan.order import dependencies, ordered
from inductor_gen.plan.parts import in_parts
from inductor_gen.plan.peak import footprint
from prims.errors import VerifierError
from prims.ir import save
from prims.options import Options
from prims.spec import TensorSpec
from prims.spec import expr as ex

aten = torch.ops.aten

#: Folders in the order of the data: each may import those before it, and itself.
FOLDERS = ("device", "loops", "extern", "rewrite", "layout", "fuse", "kernel", "plan", "codegen", "runtime", "templates")


def made(fn: Any, inputs: list[Any], **how: Any) -> tuple[Any, Builder, list[ir.Step]]:
    env = build(fn, inputs)
    hint = size_hint(env)
    prepared = laid_out(env, **how)
    builder = Builder(prepared, fuse(prepared.graph, hint, of_server, prepared.kept()), hint, False)
    return prepared, builder, ordered(list(builder.steps()), prepared, hint)


def given(prepared: Any) -> list[Any]:
    return [n for n in prepared.graph.nodes if n.kind in ("input", "constant", "size")]


def block(p: Any, x: Any, w: Any, b: Any) -> Any:
    return gelu(p, p.aten(aten.mm.default, layer_norm(p, x, b, b), w))


def programs() -> dict[str, tuple[Any, list[Any]]]:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    index = torch.tensor([3, 1])
    return {
        "block": (block, [x, w, w[0]]),
        "two results": (lambda p, a: (p.sin(a), p.sum(a, (1,))), [x]),
        "a scatter": (lambda p, a, b, i: p.index_put(p.exp(a), (i,), (0,), b, False), [x, x[:2], index]),
        "chain of products": (lambda p, a, b: p.aten(aten.mm.default, p.sin(p.aten(aten.mm.default, a, b)), b), [x, w]),
    }


@pytest.mark.parametrize("name", programs())
def test_steps_hold_every_constraint(name: str) -> None:
    prepared, builder, steps = made(*programs()[name])
    ir.verify(steps, given(prepared), prepared.returned(), builder.layouts)


@pytest.mark.parametrize("name", programs())
def test_text_repeats(name: str) -> None:
    texts = {ir.text(made(*programs()[name])[2]) for _ in range(2)}
    assert len(texts) == 1
    (text,) = texts
    assert "reads [" in text and "bytes" in text


def refused(label: str, steps: list[ir.Step], prepared: Any, builder: Builder) -> None:
    with pytest.raises(VerifierError, match=label):
        ir.verify(steps, given(prepared), prepared.returned(), builder.layouts)


def test_verifier_sees_each_fault() -> None:
    prepared, builder, steps = made(*programs()["block"])
    refused("KERNEL-C1", steps[::-1], prepared, builder)
    refused("KERNEL-C2", [*steps, steps[0]], prepared, builder)
    refused("KERNEL-C5", steps[:-1], prepared, builder)
    at = next(k for k, s in enumerate(steps) if isinstance(s, Kernel))
    kernel: Any = steps[at]
    for label, change in {
        "KERNEL-C3": {"reads": kernel.reads[1:]},
        "KERNEL-C4": {"overwrites": ((kernel.reads[0], kernel.writes[0]),)},
    }.items():
        refused(label, [*steps[:at], dataclasses.replace(kernel, **change), *steps[at + 1 :]], prepared, builder)


def left_out(v: Any, body: Any) -> None:
    body.space[v] = ex.sub(body.space[v], ex.const(1))


def twice(v: Any, body: Any) -> None:
    for store in body.stores:
        store.at = substitute(store.at, {v: ex.mul(ex.const(2), ex.floordiv(v, ex.const(2)))})


@pytest.mark.parametrize("damage", [left_out, twice])
def test_each_element_is_stored_once(damage: Any) -> None:
    prepared, builder, steps = made(lambda p, a: (p.exp(a), p.permute(p.sin(a), (1, 0))), [torch.randn(6, 8)])
    ir.verify(steps, given(prepared), prepared.returned(), builder.layouts)
    (kernel,) = (s for s in steps if isinstance(s, Kernel))
    damage(next(iter(kernel.nests[0].body.space)), kernel.nests[0].body)
    refused("KERNEL-C7", steps, prepared, builder)


def in_place(p: Any, a: Any, b: Any) -> Any:
    y = p.sin(p.aten(aten.mm.default, a, b))
    z = p.aten(aten.mm.default, y, b)
    return p.concat((y, p.cos(z)), 0), p.aten(aten.mm.default, z, b)


def test_parts_make_up_their_buffer() -> None:
    """The first kernel begins the concatenation with its part, the last one goes on with the rest."""
    prepared, builder, steps = made(in_place, [torch.randn(16, 16), torch.randn(16, 16)])
    joined = in_parts(steps, builder, lambda e: int(e.args[0]))
    first, last = [s for s in joined if isinstance(s, Kernel)]
    assert first.parts == last.parts == last.updates and set(last.updates) < set(first.writes)
    ir.verify(joined, given(prepared), prepared.returned(), builder.layouts)
    refused("KERNEL-C6", [s for s in joined if s is not last], prepared, builder)
    twice = dataclasses.replace(last, nests=last.nests * 2)
    refused("KERNEL-C6", [twice if s is last else s for s in joined], prepared, builder)


def test_an_operand_that_another_part_is_made_of_stays_in_memory() -> None:
    """Its maker writes its part, and what computes the other part loads it where it is."""

    def beside_itself(p: Any, a: Any, b: Any) -> Any:
        y = p.lgamma(p.exp(p.aten(aten.mm.default, a, b)))
        return p.concat((y, p.neg(p.permute(y, (1, 0)))), 0)

    prepared, builder, steps = made(beside_itself, [torch.randn(64, 64), torch.randn(64, 64)])
    joined = in_parts(steps, builder, lambda e: int(e.args[0]))
    first, last = [s for s in joined if isinstance(s, Kernel)]
    assert first.parts == last.updates and set(last.reads) - set(last.updates) <= set(first.writes)
    ir.verify(joined, given(prepared), prepared.returned(), builder.layouts)


def test_a_kernel_cannot_be_changed() -> None:
    kernel: Any = next(s for s in made(*programs()["block"])[2] if isinstance(s, Kernel))
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.reads = ()


def test_a_kernel_may_take_the_place_of_what_ends_with_it() -> None:
    _, _, steps = made(*programs()["chain of products"])
    (kernel,) = [s for s in steps if isinstance(s, Kernel)]
    first: Any = steps[0]
    assert isinstance(first, Call) and kernel.overwrites == ((kernel.writes[0], first.node),)
    assert footprint(kernel).overwrites == kernel.overwrites


def test_nothing_is_written_over_what_is_read_elsewhere() -> None:
    """Of the product's transpose each element is read where another is written."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    _, _, steps = made(lambda p, a, b: turned_sum(p, p.aten(aten.mm.default, a, b)), [x, w])
    (kernel,) = [s for s in steps if isinstance(s, Kernel)]
    assert not kernel.overwrites


def turned_sum(p: Any, y: Any) -> Any:
    return p.add(y, p.permute(y, (1, 0)))


def test_bytes_are_those_of_the_program() -> None:
    _, _, steps = made(lambda p, a: p.add(p.sin(a), p.cos(a)), [torch.randn(100, 10)])
    (kernel,) = steps
    assert isinstance(kernel, Kernel) and kernel.moved == 2 * 4 * 1000 and kernel.work > 1000


def test_what_changes_a_buffer_waits_for_its_readers() -> None:
    """A scatter's copy is made, read by none but the scatter, and read by others after it."""
    _, _, steps = made(*programs()["a scatter"])
    needs = dependencies(steps)
    (at,) = [k for k, s in enumerate(steps) if s.updates]
    before = next(k for k, s in enumerate(steps) if set(s.writes) & set(steps[at].updates))
    assert before in needs[at]


def test_independent_kernels_share_a_launch_and_dependent_ones_do_not() -> None:
    x, y = torch.randn(10, 3), torch.randn(7, 5)
    _, _, apart = made(lambda p, a, b: (p.sin(a), p.sum(b, (0,))), [x, y])
    assert [len(c.kernels) for c in launches(apart, lambda kernel: True)] == [2]  # type: ignore[union-attr]
    assert [len(c.kernels) for c in launches(apart, lambda kernel: False)] == [1, 1]  # type: ignore[union-attr]
    _, _, chained = made(*programs()["a scatter"])
    kernels = [c for c in launches(chained, lambda kernel: True) if not isinstance(c, Call)]
    for launch in kernels:
        for k in launch.kernels:
            others = {n for other in launch.kernels if other is not k for n in (*other.writes, *other.updates)}
            assert others.isdisjoint(k.touched())


def test_every_stage_of_a_stored_graph_is_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.json"
    save(build(*programs()["block"]), path)
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    for part in ("==== graph", "==== fused", "==== kernels", "call ", "int KERNEL(", "==== memory\npeak "):
        assert part in shown
    assert main(["show", str(path), "--stage", "code", "--triton"]) == 0
    assert "tl.load(" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "nothing.json")]) == 1
    assert "nothing.json" in capsys.readouterr().err


def imported(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("inductor_gen."):
            found.add(str(node.module).split(".")[1])
    return found


def test_folders_import_only_those_before_them() -> None:
    root = pathlib.Path(inductor_gen.__file__).parent
    assert not imported(root / "unit.py")  # what all may import
    wrong = []
    for at, folder in enumerate(FOLDERS):
        for path in sorted((root / folder).rglob("*.py")):
            later = imported(path) - {"unit", *FOLDERS[: at + 1]}
            wrong += [f"{path.relative_to(root)} imports {name}" for name in sorted(later)]
    assert not wrong, wrong


def _again(p: Any, y: Any, how: str) -> Any:
    """The same numbers, at places that are the same for no compiler to see."""
    rows = y.shape[0]
    everywhere = p.iota(rows, 0, 1, torch.int64, y.device)
    match how:
        case "looked up":
            return p.index(y, (everywhere,), (0,))
        case "gathered":
            return p.gather(y, p.broadcast(everywhere, tuple(y.shape), (0,)), 0)
        case "flipped and looked up":
            return p.index(p.flip(y, (0,)), (p.sub(p.full((rows,), rows - 1, torch.int64, y.device), everywhere),), (0,))
    raise ValueError(how)


_MADE = {
    "product": lambda p, x, w: p.mul(x, w),
    "two products": lambda p, x, w: p.add(p.mul(x, w), p.mul(p.flip(x, (0,)), p.flip(w, (1,)))),
    "difference": lambda p, x, w: p.sub(p.mul(x, x), p.mul(w, p.flip(x, (1,)))),
    "shifted": lambda p, x, w: p.add(p.mul(x, w), p.pad(p.mul(x, w), 0.0, (1, 0), (-1, 0))),
    "of a product's sine": lambda p, x, w: p.add(x, p.sin(p.add(w, p.mul(x, w)))),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["looked up", "gathered", "flipped and looked up"])
@pytest.mark.parametrize("made", _MADE)
def test_a_number_made_at_two_places_is_one(made: str, how: str, dtype: torch.dtype, dynamic: bool) -> None:
    """A compiler that contracts one of them and not the other leaves a rounding error of what is zero."""

    def fn(p: Any, x: Any, w: Any) -> Any:
        y = _MADE[made](p, x, w)
        return p.sub(y, _again(p, y, how)), p.add(p.neg(_again(p, y, how)), y)

    for rows in (5, 64):
        x, w = (torch.randn(rows, 17, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
        sizes = {"dynamic": {0: (0,), 1: (0,)}} if dynamic else {}
        for zeros in compile_fn(fn, [x, w], **sizes)(x, w):
            assert zeros.count_nonzero() == 0


def _chain(op: str, every: bool) -> Callable[..., Any]:
    def program(p: Any, x: Any) -> Any:
        results = []
        for _ in range(200):
            x = p.mul(x, 0.5) if op == "mul" else getattr(p, op)(x)
            results.append(x)
        return tuple(results) if every else x

    return program


@pytest.mark.parametrize("every", [True, False], ids=["every result", "one result"])
@pytest.mark.parametrize("op", ["mul", "sin", "lgamma"])
def test_kernels_are_no_longer_than_their_compilers_take_well(op: str, every: bool) -> None:
    """gcc is superlinear in a kernel's results, Triton in its loads and stores."""
    length = MAX_LENGTH // op_length(op)
    for device, bound in (
        ("cuda:0", min(MAX_ACCESSES, length) if every else length), ("cpu", MAX_RESULTS if every else MAX_NODES),
    ):  # fmt: skip
        env = build(_chain(op, every), [TensorSpec((64, 64), torch.float32, torch.device(device))])
        _, steps = planned(env, Options(verify="every_pass"), devices=lambda _: known("H200"))
        assert max(len(kernel.nodes) for kernel in steps) <= bound and len(steps) < 4 + 250 // bound


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("op,most", [("mul", 32), ("sin", 1), ("tanh", 8)])
def test_threads_of_long_kernels_have_few_elements(op: str, most: int, dim: int | None) -> None:
    """Compilers repeat a kernel's operations for each element of a thread. Four are better than another pass."""

    def program(p: Any, x: Any) -> Any:
        for _ in range(30):
            x = p.mul(x, 0.5) if op == "mul" else getattr(p, op)(x)
        return x if dim is None else p.sum(x, (dim,))

    for rows, columns in ((8, 50), (50, 4000), (4000, 50), (30000, 3000)):
        env = build(program, [TensorSpec((rows, columns), torch.float32, torch.device("cuda:0"))])
        unit = lower_graph(env, Options(verify="off"), devices=lambda _: known("H200"))
        source = next(s for s in unit.sources() if op in s.ops)
        blocks = [int(n) for n in re.findall(r"BLOCK: tl.constexpr = (\d+)", source.text)]
        each = math.prod(blocks) // (32 * source.warps)
        assert each <= (max(most, 4) if dim == 1 else most), (source.text, each)
