"""Compiled graphs in another process: the same bits from the stored form, and nothing generated or compiled there."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import stored_ops  # noqa: F401
import torch
from gen_support import build
from stored_child import outcome

import inductor_gen
from inductor_gen.extern.functions import function_from, function_told
from inductor_gen.extern.questions import Condition, Question, Slot
from inductor_gen.rewrite import masks
from inductor_gen.runtime import cubins, libraries, stored
from inductor_gen.runtime.graph import CompiledGraph, Made
from inductor_gen.runtime.launch import Program
from prims.artefact import Artefact, NotPortable, artefact_of, from_bytes, restore, to_bytes
from prims.disk import cache as cache_module
from prims.errors import StoredGraphError
from prims.ir import Envelope, Mutation, OutputDesc
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec
from prims.twins import functional_twin

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


def rows(p: Any, x: Any) -> Any:
    keep = lambda v: p.broadcast(v, x.shape, (0,))
    e = p.exp(p.sub(x, keep(p.amax(x, (1,)))))
    return p.div(e, keep(p.sum(e, (1,))))


def linear(p: Any, x: Any, w: Any, b: Any) -> Any:
    return p.tanh(p.aten(aten.addmm.default, b, x, p.permute(w, (1, 0)))), p.aten(aten.mm.default, x, p.permute(w, (1, 0)))


def images(p: Any, x: Any, w: Any, pointwise: Any) -> Any:
    y = p.aten(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    y = p.maximum(y, 0.0)
    return p.aten(aten.convolution.default, y, pointwise, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)


def attention(p: Any, q: Any, k: Any, v: Any) -> Any:
    return p.mul(p.aten(FLASH, p.permute(q, (0, 2, 1, 3)), k, v)[0], 2.0)


def constants(p: Any, x: Any) -> Any:
    node = p.graph.get_attr("table")
    node.meta["spec"] = TensorSpec((6, 5), torch.float32, torch.device("cpu"))
    return p.mul(x, p.value(node)), p.value(node)


def added(p: Any, table: Any, index: Any, source: Any) -> Any:
    return p.index_put(table, (index,), (0,), p.sin(source), True)


def step(p: Any, weight: Any, gradient: Any) -> Any:
    return p.sub(weight, p.mul(gradient, 0.1))


def in_place(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Envelope:
    env = build(fn, inputs)
    return env.replace(outputs=(OutputDesc("mutation", env.inputs[0].spec),), mutations=(Mutation(0, 0),))


def some(*shape: int, **kw: Any) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **kw)


def twin(p: Any, x: Any) -> Any:
    return p.mul(p.aten(functional_twin(torch.ops.storedops.add_one_.default), p.sin(x)), 3.0)


SQUARE = (some(4, 8), some(16, 8), some(16))

#: name: (function of the handler and values, inputs of each call, arguments of ``build``)
CASES: dict[str, tuple[Callable[..., Any], list[Sequence[torch.Tensor]], dict[str, Any]]] = {
    "pointwise": (lambda p, x: (p.sin(p.mul(x, 2.0)), p.gt(x, 0.0)), [[some(3, 1000)]], {}),
    "softmax": (rows, [[some(33, 257)]], {}),
    "halves": (lambda p, x: (p.exp(x), p.sum(p.convert(x, torch.float32), (0,))), [[some(64, 64).bfloat16()]], {}),
    "symbolic": (rows, [[some(33, 257)], [some(5, 7)], [some(2, 1025)]], {"dynamic": {0: (0, 1)}}),
    "symbolic-product": (linear, [SQUARE, (some(9, 8), *SQUARE[1:])], {"dynamic": {0: (0,)}}),
    "strides": (lambda p, x: p.mul(x, 2.0), [[some(6, 5)]], {"strides": [(1, 6)]}),
    "linear": (linear, [SQUARE], {}),
    "large-product": (lambda p, x, y: p.aten(aten.mm.default, x, y), [[some(256, 300), some(300, 200)]], {}),
    "batches": (lambda p, x, y: p.aten(aten.bmm.default, p.sin(x), y), [[some(2, 3, 4), some(2, 4, 5)]], {}),
    "dot": (lambda p, x, y: p.dot(p.neg(x), y), [[some(2, 3, 4), some(2, 4, 5)]], {}),
    "images": (images, [[some(2, 8, 16, 16), some(32, 8, 3, 3), some(128, 32, 1, 1)]], {}),
    "pooling": (
        lambda p, x: p.aten(aten.max_pool2d_with_indices.default, p.sin(x), [2, 2])[0], [[some(2, 3, 8, 8)]], {}
    ),
    "attention": (attention, [[some(1, 16, 2, 8), some(1, 2, 16, 8), some(1, 2, 16, 8)]], {}),
    "sorted": (lambda p, x: p.mul(p.aten(aten.sort.default, x)[0], 0.5), [[some(5, 6)]], {}),
    "median": (lambda p, x: p.aten(aten.median.dim, p.broadcast(x, (4, 6), (1,)), 0)[0], [[some(6)]], {}),
    "scan": (lambda p, x: p.cumsum(x, 0), [[some(50, 3)]], {}),
    "views": (lambda p, x: p.add(p.aten(aten.view.dtype, p.mul(x, 2.0), torch.int32), 1), [[some(8, 4)]], {}),
    "infinite": (
        lambda p, x: p.aten(aten.clamp_min.default, p.sin(x), -math.inf), [[some(8, 4)]],
        {"claims": frozenset({"aten.clamp_min.default"})},
    ),
    "nothing": (lambda p, x: x, [[some(3)]], {}),
    "empty": (lambda p, x: p.sin(x), [[torch.empty(0, 3)]], {}),
    "custom": (
        lambda p, x: p.add(p.aten(torch.ops.storedops.halved.default, p.sin(x)), 1.0), [[some(4, 4)]],
        {"claims": frozenset({"storedops.halved.default"})},
    ),
    "twin": (twin, [[some(4, 4)]], {}),
    "refused-data": (
        lambda p, x, i: p.index(x, (i,), (0,)),
        [[some(6, 3), torch.tensor([0, -6, 5])], [some(6, 3), torch.tensor([0, 6, 5])]], {},
    ),
    "divided": (
        lambda p, x, y: p.floor_div(x, y),
        [[torch.arange(4), torch.tensor([1, -2, 3, 4])], [torch.arange(4), torch.tensor([1, 0, 3, 4])]], {},
    ),
}  # fmt: skip


def padded(p: Any, q: Any, given: Any) -> Any:
    """An attention whose mask hides what ``given`` has zeros for."""
    shape = (1, 1, 64, 64)
    seen = p.broadcast(p.convert(given, torch.bool), shape, (0, 3))
    mask = p.where(seen, p.full(shape, 0.0, torch.float32, torch.device("cpu")), -math.inf)
    wide = p.broadcast(mask, (1, 2, 64, 64), (0, 1, 2, 3))
    return p.aten(FLASH, q, q, q, attn_mask=wide)[0]


def masked() -> tuple[CompiledGraph, list[list[torch.Tensor]]]:
    """A graph by masks, and inputs for either of its graphs."""
    q, given = some(1, 2, 64, 8), torch.ones(1, 64, dtype=torch.int64)
    graph = inductor_gen.compile_graph(build(padded, [q, given]), options=OPTIONS)
    hidden = given.index_fill(1, torch.tensor([1, 60]), 0)
    return graph, [[q, given], [q, given * 2], [q, hidden], [q, given]]


OPTIONS = Options(verify="off")


def compiled(name: str) -> tuple[CompiledGraph, list[Any]]:
    """The graph of a case, and the inputs of its calls."""
    fn, calls, kw = CASES[name]
    env = build(fn, calls[0], **kw)
    return inductor_gen.compile_graph(env, options=OPTIONS), calls


def with_constants() -> tuple[CompiledGraph, list[Any]]:
    x, table = some(6, 5), some(5, 6).t()
    env = build(constants, [x]).replace(constants={"table": table})
    return inductor_gen.compile_graph(env, options=OPTIONS), [[x]]


def updating(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[CompiledGraph, list[Any]]:
    return inductor_gen.compile_graph(in_place(fn, inputs), options=OPTIONS, in_place=True), [inputs]


OTHERS: dict[str, Callable[[], tuple[CompiledGraph, list[Any]]]] = {
    "constants": with_constants,
    "in-place": lambda: updating(step, [some(5, 4), some(4, 5).t().contiguous()]),
    "in-place-sums": lambda: updating(added, [some(6, 3), torch.tensor([0, 5, 0]), some(3, 3)]),
    "with masks": masked,
}


@pytest.fixture(scope="module", params=["warm", "cold"])
def elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process says of the stored graphs, with this one's kernel cache or with an empty one."""
    folder, warm = tmp_path_factory.mktemp("stored"), str(tmp_path_factory.mktemp("warm"))
    libraries.forget_loaded()  # other tests have loaded kernels that this cache does not hold
    for name in (*CASES, *OTHERS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masks, "LONG", 0)
            patch.setitem(globals(), "OPTIONS", OPTIONS.replace(cache_dir=warm))
            graph, calls = OTHERS[name]() if name in OTHERS else compiled(name)
        (folder / f"{name}.artefact").write_bytes(to_bytes(graph.artefact()))
        outcomes = [outcome(graph, list(inputs)) for inputs in calls]
        torch.save({"inputs": [list(inputs) for inputs in calls], "outcomes": outcomes}, folder / f"{name}.pt")
    cache = warm if request.param == "warm" else str(tmp_path_factory.mktemp("cold"))
    child = Path(__file__).parent / "stored_child.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(child.parent), *filter(None, sys.path)])}
    job = subprocess.run(
        [sys.executable, str(child), str(folder), cache], capture_output=True, text=True, timeout=240, env=env
    )
    assert job.returncode == 0, job.stderr[-3000:]
    return json.loads(job.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_another_process_computes_the_same_bits(elsewhere: dict[str, Any], name: str) -> None:
    said = elsewhere[name]
    assert all(said["equal"]) and said["again"]
    assert not any(said["compiled"][:1])


def test_restoring_imports_nothing_that_generates_code(elsewhere: dict[str, Any]) -> None:
    early = {name: said["imported"] for name, said in elsewhere.items() if said["imported"]}
    assert not early
    assert not any(said["seconds"] for said in elsewhere.values())


def test_the_report_tells_the_kernels(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["softmax"]["kernels"] == 1 and not elsewhere["softmax"]["externs"]
    assert elsewhere["linear"]["externs"] == ["aten.addmm.default", "aten.mm.default"]
    assert elsewhere["twin"]["externs"] == ["storedops.add_one_.default"]


def test_records_are_those_of_the_compilation() -> None:
    reports = [Report(), Report()]
    fn, calls, _ = CASES["linear"]
    graph = inductor_gen.compile_graph(build(fn, calls[0]), options=OPTIONS, report=reports[0])
    again = restore(from_bytes(to_bytes(graph.artefact())), options=OPTIONS, report=reports[1])
    first, second = reports
    assert first.kernels == second.kernels and first.externs == second.externs and first.kernels
    assert second.caches[0].compiled == 0 and second.caches[0].found == first.caches[0].found + first.caches[0].compiled
    assert again.source == graph.source and again.kernels == graph.kernels and again.externs == graph.externs
    assert not second.seconds


def test_inputs_survive_an_error_of_a_restored_graph() -> None:
    graph, calls = compiled("refused-data")
    again = restore(graph.artefact(), options=OPTIONS)
    with pytest.raises(Exception, match="index out of range") as raised:
        again.boxed(list(calls[1]))
    found = again.surviving_inputs(raised.value)
    assert found is not None and all(a is b for a, b in zip(found, calls[1], strict=True))


# ---- by masks ---------------------------------------------------------------------------------------------------


def test_the_graph_for_other_masks_is_stored_once_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "LONG", 0)
    graph, calls = masked()
    assert graph.artefact().files.keys() == {"graph"} and graph.artefact().children.keys() == {"usual"}
    wanted = [outcome(graph, inputs) for inputs in calls]
    stored = graph.artefact()
    assert not stored.files and stored.children.keys() == {"usual", "general"}
    report = Report()
    again = restore(from_bytes(to_bytes(stored)), options=OPTIONS, report=report)
    assert [outcome(again, inputs) for inputs in calls] == wanted
    assert not report.seconds and to_bytes(again.artefact()) == to_bytes(stored)


def test_a_question_as_json() -> None:
    steps = (("convert", (Slot(0), torch.bool)), ("reshape", (Slot(1), (2, 8))), ("logical_not", (Slot(2),)))
    question = Question((Condition((1,), steps, "zeros"), Condition((0,), (), "triangle")), torch.device("cpu"))
    told = json.loads(json.dumps(question.told()))
    assert Question.of(told, 2) == question
    for change in (
        lambda t: t["conditions"][0].update(inputs=[2]), lambda t: t["conditions"][0].update(pattern="twos"),
        lambda t: t["conditions"][0]["steps"][0].__setitem__(0, "system"),
        lambda t: t["conditions"][0]["steps"][0].__setitem__(1, {"tuple": [{"slot": 1}]}),
    ):  # fmt: skip
        harmed = json.loads(json.dumps(told))
        change(harmed)
        with pytest.raises(StoredGraphError, match="ART-C5"):
            Question.of(harmed, 2)


# ---- what cannot be stored --------------------------------------------------------------------------------------


def test_what_is_tied_to_this_process_says_why() -> None:
    graph, _ = compiled("pointwise")

    def refused(**changes: Any) -> str:
        made = dataclasses.replace(graph.made, **changes)
        found = artefact_of(CompiledGraph(graph._call, graph.source, (), (), 0, 1, made))
        assert isinstance(found, NotPortable)
        return found.reason

    def own(x: torch.Tensor) -> torch.Tensor:
        return x

    assert "own, called for an operator" in refused(values={"f": own})
    assert "object" in refused(values={"o": object()})
    assert "sparse" in refused(values={"c": torch.eye(3).to_sparse()})
    assert "not loaded from a library" in refused(launcher=12345)
    assert "Triton" in artefact_of(CompiledGraph(graph._call, "", (), (), 0, 1, "it has kernels in Triton")).reason


def test_a_library_that_left_the_cache(tmp_path: Path) -> None:
    libraries.forget_loaded()
    graph = inductor_gen.compile_graph(build(rows, [some(3, 4)]), options=OPTIONS.replace(cache_dir=str(tmp_path)))
    for lib in (tmp_path / "cpu" / "lib").iterdir():
        lib.unlink()
    found = artefact_of(graph)
    libraries.forget_loaded()
    assert isinstance(found, NotPortable) and "in the kernel cache no longer" in found.reason


def test_functions_that_are_no_others_are_refused() -> None:
    for told in ({"function": "os.system"}, {"operator": "torch"}, {"primitive": "system"}, {"maker": "eval", "args": []},
                 {"operator": {"target": "@os.system"}}, {"maker": "cloned", "args": [{"function": "exec"}]}):  # fmt: skip
        with pytest.raises(StoredGraphError):
            function_from(told)
    assert function_from(function_told(torch.mm)) is torch.mm


# ---- what is no artefact ----------------------------------------------------------------------------------------


def harmed(artefact: Artefact, change: Callable[[dict[str, Any]], Any]) -> Artefact:
    """The artefact with another text, which would say so if its function was ever made."""
    text = json.loads(json.dumps(artefact.text))
    text["source"] = "import sys; sys.ran_what_was_harmed = True\n" + text["source"]
    change(text)
    return Artefact(artefact.kind, artefact.version, text, artefact.files, artefact.children)


def launched(text: dict[str, Any]) -> Any:
    """The first program of kernels."""
    return next(program for program in text["programs"].values() if "calls" in program)


def renamed(named: dict[str, Any], name: str) -> None:
    named[name] = named.pop(next(iter(named)))


HARM: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a helper's name": ("ART-C5", lambda t: renamed(t["programs"], "torch")),
    "python's name": ("ART-C5", lambda t: renamed(t["values"], "__builtins__")),
    "no name": ("ART-C5", lambda t: renamed(t["values"], "a b")),
    "a foreign function": ("ART-C5", lambda t: t["values"].update(f={"calls": {"function": "os.system"}})),
    "an unknown kind": ("ART-C5", lambda t: t["values"].update(f={"module": "os"})),
    "an unknown value": ("ART-C5", lambda t: t["values"].update(f={"value": {"pickle": "x"}})),
    "a truncated program": ("ART-C5", lambda t: launched(t).pop("calls")),
    "a kernel that is not there": ("ART-C5", lambda t: launched(t)["calls"][0].__setitem__(0, 99)),
    "an operand that is not there": ("ART-C5", lambda t: launched(t)["calls"][0].__setitem__(3, [7])),
    "a slot of no tensor": ("ART-C5", lambda t: launched(t)["slots"][0].__setitem__(0, -1)),
    "sizes that are not there": ("ART-C5", lambda t: launched(t)["calls"][0].__setitem__(4, 1000)),
    "a symbol that is none": ("ART-C5", lambda t: t["functions"].__setitem__(1, ["0" * 64, "a b", t["functions"][1][2]])),
    "a symbol of nothing": ("ART-C5", lambda t: t["functions"].__setitem__(1, ["1" * 64, "k_no", t["functions"][1][2]])),
    "a library that is missing": ("ART-C5", lambda t: t["functions"].__setitem__(1, ["2" * 64, "k_no", "f" * 64])),
    "no functions": ("ART-C5", lambda t: t.pop("functions")),
    "another processor": ("ART-C6", lambda t: t["machine"].update(instructions="0" * 64)),
    "another kind of machine": ("ART-C6", lambda t: t["machine"].update(machine="pdp11")),
    "another torch": ("ART-C6", lambda t: t["machine"].update(torch="1.0")),
    "another launcher": ("ART-C6", lambda t: t["machine"].update(launcher="0" * 64)),
    "other flags": ("ART-C6", lambda t: t["machine"]["flags"].append("-ffast-math")),
}


@pytest.mark.parametrize("what", HARM)
def test_a_damaged_artefact_is_a_labelled_error_and_runs_nothing(what: str, tmp_path: Path) -> None:
    artefact = compiled("linear")[0].artefact()
    label, change = HARM[what]
    with pytest.raises(StoredGraphError) as raised:
        restore(harmed(artefact, change), options=OPTIONS.replace(cache_dir=str(tmp_path)))
    assert raised.value.label == label
    assert not hasattr(sys, "ran_what_was_harmed")


def test_what_would_be_noticed_is_noticed() -> None:
    artefact = compiled("linear")[0].artefact()
    restore(harmed(artefact, lambda t: None), options=OPTIONS)
    assert sys.__dict__.pop("ran_what_was_harmed")


def test_another_version_is_refused() -> None:
    artefact = compiled("linear")[0].artefact()
    with pytest.raises(StoredGraphError, match="ART-C4"):
        restore(dataclasses.replace(artefact, version="2"), options=OPTIONS)


@pytest.mark.parametrize("other", [{"numerics": "eager_close"}, {"deterministic": True}, {"batch_invariant": True}], ids=str)
def test_other_numerics_are_another_machine(other: dict[str, Any]) -> None:
    with pytest.raises(StoredGraphError, match="ART-C6"):
        restore(compiled("linear")[0].artefact(), options=OPTIONS.replace(**other))


# ---- the kernel cache -------------------------------------------------------------------------------------------


def entries(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "cpu" / "entries").iterdir()}


def test_kernels_come_into_an_empty_cache_under_their_keys(tmp_path: Path) -> None:
    graph, calls = compiled("softmax")
    artefact, options = graph.artefact(), OPTIONS.replace(cache_dir=str(tmp_path))
    libraries.forget_loaded()
    again = restore(artefact, options=options)
    assert entries(tmp_path) == {key for key, _, _ in artefact.text["functions"]}
    assert outcome(again, list(calls[0])) == outcome(graph, list(calls[0]))
    libraries.forget_loaded()  # the next one finds them there, and compiling does too
    bare = Artefact(artefact.kind, artefact.version, artefact.text)
    assert outcome(restore(bare, options=options), list(calls[0])) == outcome(graph, list(calls[0]))
    libraries.forget_loaded()
    fn, calls, kw = CASES["softmax"]
    assert inductor_gen.compile_graph(build(fn, calls[0], **kw), options=options).compiled == 0
    libraries.forget_loaded()


def test_a_damaged_library_of_the_cache_is_replaced(tmp_path: Path) -> None:
    graph, calls = compiled("softmax")
    artefact, options = graph.artefact(), OPTIONS.replace(cache_dir=str(tmp_path))
    libraries.forget_loaded()
    restore(artefact, options=options)
    kept = {path: path.read_bytes() for path in (tmp_path / "cpu" / "lib").glob("*.so")}
    for path, data in kept.items():
        path.unlink()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        path.chmod(0o600)
    libraries.forget_loaded()
    with pytest.warns(match="damaged"):
        again = restore(artefact, options=options)
    assert {path: path.read_bytes() for path in kept} == kept
    assert outcome(again, list(calls[0])) == outcome(graph, list(calls[0]))
    libraries.forget_loaded()


@pytest.mark.parametrize("full", [True, False])
def test_a_full_cache_and_none(full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, calls = compiled("softmax")
    artefact = graph.artefact()
    libraries.forget_loaded()

    def write(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write_private", write)
    options = OPTIONS.replace(cache_dir=str(tmp_path), cache=full)
    if full:
        with pytest.warns(match="No space left"):
            again = restore(artefact, options=options)
    else:
        again = restore(artefact, options=options)
    assert outcome(again, list(calls[0])) == outcome(graph, list(calls[0]))
    assert to_bytes(again.artefact()) == to_bytes(artefact)  # from memory
    assert isinstance(again.made, Made)
    libraries.forget_loaded()


# ---- on a GPU, as far as that can be told without one -----------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, str]]:
    """A GPU whose driver loads any machine code, and a list of what it has loaded."""
    loaded: list[tuple[bytes, str]] = []

    def load(cubin: bytes, entry: dict[str, Any], device: torch.device) -> cubins.Loaded:
        loaded.append((cubin, str(device)))
        return cubins.Loaded(7000 + len(loaded), entry["threads"], entry["shared"])

    monkeypatch.setattr(cubins, "load", load)
    monkeypatch.setattr(cubins, "_LOADED", {})
    monkeypatch.setattr(stored, "driver_words", lambda device, table: [11, 12, 13, 14, table, 0])
    monkeypatch.setattr(stored, "_told_gpu", lambda device: ["a GPU", [9, 0], "12"])
    monkeypatch.setattr(stored, "on_device", lambda call, index: call)
    return loaded


def on_gpu(cache: Any) -> tuple[CompiledGraph, list[cubins.Loaded]]:
    """A graph with two programs of kernels on a GPU, one of them over a table."""
    graph, gpu = compiled("nothing")[0], torch.device("cuda", 0)
    kernels = [
        cubins.take_in(
            code, key, json.dumps({"name": "k", "threads": 128, "shared": 0}), cache, gpu
        )
        for code, key in ((b"one", "a" * 64), (b"two", "b" * 64))
    ]  # fmt: skip
    one, two = kernels
    words = [1, 2, 3, 4, 5, 6]
    programs = {
        "run1": Program(2, [(0, 0), (1, 16)], [5, 1, 1], [(one.function, 128, 0, [0, 1], 1, 0, ())], words),
        "run2": Program(3, [(0, 0), (1, 0), (2, 0)], 3, [(two.function, 128, 0, [0, 1, 2], 1, 0, [9, 8])], words),
    }
    made = dataclasses.replace(graph.made, programs=programs, gpu=gpu)
    return CompiledGraph(graph._call, graph.source, (), (), 0, 1, made), kernels


@pytest.mark.parametrize("kept", [True, False])
def test_machine_code_for_a_gpu_is_stored_and_found(pretended: list[Any], kept: bool, tmp_path: Path) -> None:
    options = OPTIONS.replace(cache_dir=str(tmp_path / "one"))
    graph, kernels = on_gpu(cubins.cache_of(options) if kept else None)
    artefact = graph.artefact()
    assert sorted(data for name, data in artefact.files.items() if name.startswith("cubin.")) == [b"one", b"two"]
    cubins.forget_loaded()
    del pretended[:]
    other = OPTIONS.replace(cache_dir=str(tmp_path / "two"))
    again = restore(from_bytes(to_bytes(artefact)), options=other)
    assert pretended == [(b"one", "cuda:0"), (b"two", "cuda:0")]
    programs = again.made.programs
    assert [programs[name].calls[0][0] for name in ("run1", "run2")] == [7001, 7002]
    assert [programs[name].gpu for name in ("run1", "run2")] == [[11, 12, 13, 14, 5, 0]] * 2  # three operands, two words
    assert dataclasses.replace(programs["run1"], gpu=(), calls=()) == Program(2, [(0, 0), (1, 16)], [5, 1, 1])
    assert to_bytes(again.artefact()) == to_bytes(artefact)
    cubins.forget_loaded()
    bare = {name: data for name, data in artefact.files.items() if not name.startswith("cubin.")}
    restore(dataclasses.replace(artefact, files=bare), options=other)  # from the cache


def test_another_gpu_is_another_machine(pretended: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    artefact = on_gpu(None)[0].artefact()
    for found in (None, ["another", [9, 0], "12"], ["a GPU", [8, 0], "12"]):
        monkeypatch.setattr(stored, "_told_gpu", lambda device, found=found: found)
        with pytest.raises(StoredGraphError, match="ART-C6"):
            restore(artefact, options=OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["programs"]["run1"]["calls"][0].__setitem__(0, 2),
        lambda t: t["programs"]["run1"]["calls"][0].__setitem__(4, 2),  # no words are left for the grid
        lambda t: t["cubins"][0].__setitem__(1, json.dumps({"name": "a b", "threads": 1, "shared": 0})),
        lambda t: t["cubins"][0].__setitem__(2, "c" * 64),
        lambda t: t.update(device="cpu"),
        lambda t: t.update(device=None),
    ],
)
def test_damage_to_what_runs_on_a_gpu(pretended: list[Any], change: Callable[[Any], Any], tmp_path: Path) -> None:
    artefact = on_gpu(None)[0].artefact()
    cubins.forget_loaded()
    with pytest.raises(StoredGraphError, match="ART-C[56]"):
        restore(harmed(artefact, change), options=OPTIONS.replace(cache_dir=str(tmp_path)))
    assert not hasattr(sys, "ran_what_was_harmed")
