"""Hostile files: stored graphs, kernel-cache entries, kept choices and whole programs, mutated.

``python -m fuzz.hostile --count 20000 --seed 0``: deterministic by seed. A mutated graph is a labelled error or a graph; one
that means the same computes the same. A mutated cache gives a kernel's own library and symbol, or a miss. Nothing is
imported, executed or loaded for what a file says, no file is opened but the one given, and the process lives.
A program holds code that runs, so that of a forged one (of the right checksum) all is mutated but that: it is refused
with a label, or restored.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import aot_autograd
import dynamo_capture
import inductor_gen
from compile_api.programs import ProgramFolder
from inductor_gen.templates.decisions import Decisions
from prims import ir
from prims.artefact import Artefact, from_bytes, restore, to_bytes
from prims.disk import folders
from prims.disk.cache import KernelCache
from prims.errors import StoredGraphError, VerifierError
from prims.lower import lower
from prims.options import Options
from prims.spec import TensorSpec

__all__ = ["KINDS", "Hostile", "main"]

#: Seconds that one mutation may take.
LIMIT = 20
CANARY = "hostile_canary"
STRANGE = [
    f"@{CANARY}.run", f"{CANARY}.run.default", "@posix.system", "@builtins.exec", "@torch.hub.load", "@torch.load",
    "@operator.attrgetter", ".__class__", ".__reduce__", ".apply_", "@torch.ops.aten.from_file", "aten.from_file.default",
    "prim.__class__", "@torch.Tensor.__reduce_ex__", "../../../etc/passwd", "/dev/zero", "/etc/passwd", "a/b", "..", "",
    "\x00", "\ud800", "x" * 70_000, "__import__('os').system('touch CANARY')", "x=__import__('os').system('touch CANARY')",
    "self", "class", "lambda: 0", "s0", "s0**99999", "(" * 3000, "%s%n", "*/ #include </etc/passwd> /*", "\n#include <x>\n",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 2**70, 10**400, 0.5, 1e308, float("nan"), float("inf")]


def graphs() -> dict[str, tuple[ir.Envelope, list[Any]]]:
    """Exported graphs of each dialect, with inputs to run them on."""

    def small(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.nn.functional.linear(x, y)[:, 1:].relu()
        z[0] += 1
        return z.sum(-1, keepdim=True), x.view(-1)[::2].to(torch.float16), torch.cat([x, y], 0).T

    def sizes(x: torch.Tensor, by: float) -> Any:
        return torch.zeros(x.shape[0] * 2, 3, device=x.device) + by, x.reshape(-1, x.shape[0]).softmax(-1)

    made: dict[str, tuple[ir.Envelope, list[Any]]] = {}
    programs = {
        "small": (small, [torch.rand(2, 3), torch.rand(4, 3)], False),
        "sizes": (sizes, [torch.rand(4, 6), 2.5], True),
    }
    for name, (function, args, dynamic) in programs.items():
        found: list[Any] = []

        @dynamo_capture.supports_dynamic_shapes
        def backend(gm: Any, inputs: list[Any], found: list[Any] = found) -> Any:
            found.append((gm, list(inputs)))
            return gm.forward

        dynamo_capture.optimize(function, backend, options=Options(fullgraph=True, dynamic=dynamic))(*args)
        ((gm, inputs),) = found
        made[f"torch {name}"] = (gm.meta["envelope"], inputs)
        aten = aot_autograd.inference_graph(gm, inputs)
        made[f"aten {name}"] = (aten, inputs)
        made[f"prim {name}"] = (lower(aten, claims=inductor_gen.claims("cpu")), inputs)
    made["aten constant"] = (_with_constant(), [torch.rand(3, 2)])
    return made


def _with_constant() -> ir.Envelope:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten.mm.default, (x, graph.create_node("get_attr", "table")))
    result = graph.call_function(torch.ops.aten.tanh.default, (product,))
    graph.output((result,))
    spec = TensorSpec((3, 3), torch.float32, torch.device("cpu"))
    x.meta["spec"] = spec.replace(shape=(3, 2))
    product.meta["spec"] = result.meta["spec"] = spec
    return ir.Envelope(
        "aten", (1, 0), "fuzz", "1", graph, (ir.InputDesc("x", "input", x.meta["spec"]),),
        (ir.OutputDesc("output", spec),), constants={"table": torch.arange(6.0).view(2, 3)},
    )  # fmt: skip


# ---- mutations ---------------------------------------------------------------------------------------------------


def damage_bytes(data: bytes, r: random.Random, other: bytes) -> bytes:
    """Flipped, lost, doubled or foreign bytes."""
    kind = r.randrange(7)
    at = r.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + r.randbytes(r.randrange(1, 40)) + data[at:]
    if kind == 2:
        return data[:at] + data[at + r.randrange(1, 200) :]
    if kind == 3:
        end = r.randrange(len(data) + 1)
        return data[:at] + data[min(at, end) : max(at, end)][:5000] + data[at:]
    if kind == 4:
        start = r.randrange(len(other) + 1)
        return data[:at] + other[start : start + r.randrange(1, 400)] + data[at + r.randrange(400) :]
    if kind == 5:
        return r.choice([b"[", b'{"a":', b"(", b'"', b"-", b"9"]) * r.choice([70, 5000, 100_000]) + data[at:]
    flipped = bytearray(data)
    for _ in range(r.choice([1, 1, 2, 8])):
        if flipped:
            flipped[r.randrange(len(flipped))] ^= 1 << r.randrange(8)
    return bytes(flipped)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value."""
    if at:
        yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*at, key))


def damage_json(text: str, r: random.Random) -> str:
    """Values of other types, dangerous strings, deep nesting, moved, missing and doubled parts."""
    data = json.loads(text)
    for _ in range(r.choice([1, 1, 1, 2, 5])):
        everywhere = list(places(data))
        if not everywhere:
            break
        *way, last = r.choice(everywhere)
        inner = data
        for key in way:
            inner = inner[key]
        kind = r.randrange(8)
        if kind == 0:
            inner[last] = r.choice(STRANGE)
        elif kind == 1:
            inner[last] = r.choice(NUMBERS)
        elif kind == 2:
            inner[last] = r.choice(
                [None, True, False, [], {}, [[]], {"": 0}, {"node": 0}, {"target": r.choice(STRANGE)}]
            )
        elif kind == 3:
            for _ in range(r.choice([3, 65, 300])):
                inner[last] = r.choice([[inner[last]], {"tuple": [inner[last]]}])
        elif kind == 4:
            del inner[last]
        elif kind == 5:
            source = data
            for key in r.choice(everywhere):
                if not isinstance(source, (dict, list)) or (isinstance(source, dict) and key not in source):
                    break
                if isinstance(source, list) and not (isinstance(key, int) and key < len(source)):
                    break
                source = source[key]
            inner[last] = json.loads(json.dumps(source))
        elif kind == 6 and isinstance(inner, dict):
            inner[r.choice(STRANGE)] = inner.pop(last)
        elif isinstance(inner, list):
            inner.insert(r.randrange(len(inner) + 1), inner[last])
    return json.dumps(data)


def damage_text(text: str, r: random.Random) -> str:
    """Words exchanged for others and for dangerous ones, lines moved and lost."""
    lines = text.splitlines()
    for _ in range(r.choice([1, 1, 2, 4])):
        if not lines:
            break
        at = r.randrange(len(lines))
        words = lines[at].split(" ")
        spot = r.randrange(len(words))
        kind = r.randrange(5)
        if kind == 0:
            words[spot] = r.choice(STRANGE)
        elif kind == 1:
            words[spot] = r.choice(r.choice(lines).split(" "))
        elif kind == 2:
            words[spot] = str(r.choice(NUMBERS))
        elif kind == 3:
            lines.insert(at, r.choice(lines))
            continue
        else:
            del words[spot]
        lines[at] = " ".join(words)
    return "\n".join(lines) + "\n"


#: Where names are taken from, beside those that every program may name.
HOMES = ["torch", "torch.nn.functional", "torch.Tensor", "torch.ops", "torch.ops.aten", "torch.hub", "torch.serialization",
         "torch.utils", "torch._C", "torch._C._nn", "torch.linalg", "torch.classes", "torch.library", "operator", "builtins",
         "math", "os", "posix", "sys", "subprocess", "importlib", "shutil", "pickle", "ctypes", CANARY]  # fmt: skip


def any_name(r: random.Random) -> str:
    """A dotted name of something, of a target's form or nearly so."""
    home = r.choice(HOMES)
    value: Any = None if home == CANARY else sys.modules.get(home)
    if value is None and home.startswith("torch."):
        value = torch
        for part in home.split(".")[1:]:
            value = vars(value).get(part, None) or getattr(value, part, None)
    name = home
    for _ in range(r.choice([1, 1, 1, 2])):
        names = sorted(vars(value)) if hasattr(value, "__dict__") else ["run", "__class__", "__globals__", "__self__"]
        name += "." + r.choice(names or ["run"])
        value = vars(value).get(name.rpartition(".")[2]) if hasattr(value, "__dict__") else None
    last = name.rpartition(".")[2]
    return r.choice(["@" + name, "@" + name, "@" + name, name, "." + last, f"aten.{last}.default", f"prim.{last}"])


# ---- what is watched ---------------------------------------------------------------------------------------------


class Watch:
    """Notes what a file makes the process do beside reading it."""

    def __init__(self) -> None:
        self.on = False
        self.allowed: tuple[str, ...] = ()
        self.seen: list[str] = []
        sys.addaudithook(self.event)

    def event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            path = os.fsdecode(args[0])
            # Python's own modules are opened when one of ours is imported late; what a file names is not among them.
            if not path.startswith(self.allowed) and not path.startswith((sys.prefix, sys.base_prefix, _OURS)):
                self.seen.append(f"open {path[:200]}")
        elif event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen", "os.fork", "os.rename",
                       "os.symlink", "os.chmod", "socket.connect", "shutil.rmtree", "os.rmdir"):  # fmt: skip
            self.seen.append(f"{event} {str(args)[:200]}")
        elif event == "import" and CANARY in str(args[0]):
            self.seen.append(f"import {args[0]}")


_OURS = str(pathlib.Path(__file__).resolve().parents[2])


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError("it takes too long")


# ---- kinds ---------------------------------------------------------------------------------------------------------


class Hostile:
    """Mutates and judges; ``outcomes`` counts what came of it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.watch = Watch()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.graphs = graphs()
        self.names = sorted(self.graphs)
        self.json = {name: ir.to_json(env) for name, (env, _) in self.graphs.items()}
        self.text = {name: ir.print_text(env) for name, (env, _) in self.graphs.items()}
        self.expected = {name: env.module()(*_copies(inputs)) for name, (env, inputs) in self.graphs.items()}
        (folder / f"{CANARY}.py").write_text(f"open({str(folder / 'CANARY')!r}, 'w').close()\ndef run(*args): pass\n")
        sys.path.insert(0, str(folder))
        self.cache, self.entries = self._filled_cache()
        self.choices = self._kept_choices()
        self.programs = self._kept_programs()

    def run(self, kind: str, seed: int) -> str | None:
        """One mutation; what is wrong with what came of it, or None."""
        r = random.Random(f"{kind} {seed}")
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LIMIT)
        self.watch.seen.clear()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = KINDS[kind](self, r)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            self.watch.on = False
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        self.outcomes[f"{kind}: {outcome}"] += 1
        if self.watch.seen:
            return "; ".join(self.watch.seen[:3])
        if (self.folder / "CANARY").exists() or os.path.exists("CANARY") or CANARY in sys.modules:
            return "code of the file ran"
        return None

    # Stored graphs

    def graph_json(self, r: random.Random) -> str:
        name, other = r.choice(self.names), r.choice(self.names)
        if r.random() < 0.7:
            text = _damaged_json(self.json[name].encode(), r)
        else:
            data = damage_bytes(self.json[name].encode(), r, self.json[other].encode())
            text = data.decode(errors=r.choice(["replace", "ignore"]))
        return self.judge(name, lambda constants: ir.from_json(text, constants))

    def graph_names(self, r: random.Random) -> str:
        """Other targets, properties and names in an otherwise right graph."""
        name = r.choice(self.names)
        data = json.loads(self.json[name])
        calls = [node for node in data["nodes"] if "target" in node]
        node = r.choice(calls)
        kind = r.randrange(5)
        if kind < 3:
            node["target"] = any_name(r)
        elif kind == 3:
            node["args"].insert(r.randrange(len(node["args"]) + 1), {"target": any_name(r)})
        else:
            node["target"] = "@builtins.getattr"
            node["args"] = [{"node": 0}, any_name(r).rpartition(".")[2]]
        return self.judge(name, lambda constants: ir.from_json(json.dumps(data), constants))

    def graph_text(self, r: random.Random) -> str:
        name, other = r.choice(self.names), r.choice(self.names)
        if r.random() < 0.7:
            text = damage_text(self.text[name], r)
        else:
            data = damage_bytes(self.text[name].encode(), r, self.text[other].encode())
            text = data.decode(errors="replace")
        return self.judge(name, lambda constants: ir.parse_text(text, constants))

    def graph_file(self, r: random.Random) -> str:
        name = "aten constant"
        env, _ = self.graphs[name]
        place = self.folder / "stored"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        path = place / "graph.json"
        ir.save(env, path)
        victim = r.choice([path, place / "graph.json.safetensors"])
        data = victim.read_bytes()
        kind = r.randrange(10)
        if kind < 6:
            victim.write_bytes(damage_bytes(data, r, self.json[r.choice(self.names)].encode()))
        else:
            _in_its_place(victim, kind - 6, r)
        self.watch.allowed = (str(place),)
        return self.judge(name, lambda constants: ir.load(path))

    def judge(self, name: str, read: Callable[[Any], ir.Envelope]) -> str:
        env, inputs = self.graphs[name]
        self.watch.on = True
        try:
            back = read(env.constants)
            self.watch.on = False
            back.verify()
        except (StoredGraphError, VerifierError) as error:
            if not error.label or len(str(error)) > 4000:
                raise AssertionError(f"an error without a label, or a long one: {str(error)[:200]}") from error
            return error.label
        module = back.module()
        if ir.structural_difference(env, back) is not None:
            return "another graph"
        for a, b in zip(self.expected[name], module(*_copies(inputs)), strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
        return "the same graph"

    # The kernel cache

    def _filled_cache(self) -> tuple[pathlib.Path, dict[str, tuple[bytes, str]]]:
        """A cache with a few kernels, and the library and symbol of each key."""
        root = self.folder / "cache"
        for name in self.names:
            if name.startswith("prim"):
                inductor_gen.compile_graph(self.graphs[name][0], options=Options(cache_dir=str(root)))
        cache = KernelCache(root / "cpu")
        found = {}
        for path in sorted((root / "cpu" / "entries").iterdir()):
            place = cache.find(path.stem)
            assert place is not None
            found[path.stem] = (place[0].read_bytes(), place[1])
        assert len(found) >= 3 and len({data for data, _ in found.values()}) >= 2
        return root / "cpu", found

    def kernel_cache(self, r: random.Random) -> str:
        place = self.folder / "mutated"
        _remove(place)
        shutil.copytree(self.cache, place)
        folders.forget_temporary()
        files = sorted(p for p in place.rglob("*") if p.is_file() and p.parent.name in ("entries", "lib"))
        for _ in range(r.choice([1, 1, 2, 4])):
            victim, other = r.choice(files), r.choice(files)
            if not victim.is_file() or victim.is_symlink() or not other.is_file() or other.is_symlink():
                continue
            data, foreign = victim.read_bytes(), other.read_bytes()
            kind = r.randrange(10)
            if kind < 3:
                victim.write_bytes(damage_bytes(data, r, foreign))
            elif kind < 6 and victim.suffix == ".json":
                victim.write_text(_damaged_json(data, r))
            elif kind == 6:
                victim.write_bytes(foreign)
            elif kind == 7:
                other.write_bytes(data)
                victim.write_bytes(foreign)
            else:
                _in_its_place(victim, r.randrange(5), r)
        cache = KernelCache(place)
        self.watch.allowed = (str(place),)
        self.watch.on = True
        hits = misses = 0
        for key, (library, symbol) in self.entries.items():
            found = cache.find(key)
            data = None if found is None else cache.contents(found[0])
            if found is None or data is None:
                misses += 1
                continue
            if data != library or found[1] != symbol or found[0].parent != place / "lib":
                raise AssertionError(f"{key[:8]}: {found}")
            hits += 1
        self.watch.on = False
        return "misses" if misses and not hits else "hits" if not misses else "both"

    # Choices by measurement

    def _kept_choices(self) -> dict[str, dict[str, Any]]:
        made = {f"{n:064x}": {"winner": f"tile {n}", "times": {"a": 1.5 * n}, "dropped": {"b": "slow"}, "lasting": True}
                for n in range(4)}  # fmt: skip
        kept = Decisions(Options(cache_dir=str(self.folder / "choices")))
        for key, decision in made.items():
            kept.keep(key, decision)
        return made

    def choices_file(self, r: random.Random) -> str:
        place = self.folder / "mutated-choices"
        _remove(place)
        shutil.copytree(self.folder / "choices", place)
        folders.forget_temporary()
        Decisions.forget()
        files = sorted((place / "autotune").iterdir())
        victim, other = r.choice(files), r.choice(files)
        kind = r.randrange(4)
        if kind == 0:
            victim.write_bytes(damage_bytes(victim.read_bytes(), r, other.read_bytes()))
        elif kind == 1:
            victim.write_text(_damaged_json(victim.read_bytes(), r))
        elif kind == 2:
            victim.write_bytes(other.read_bytes())
        else:
            _in_its_place(victim, r.randrange(5), r)
        self.watch.allowed = (str(place),)
        self.watch.on = True
        found = {key: Decisions(Options(cache_dir=str(place))).find(key) for key in self.choices}
        self.watch.on = False
        for key, decision in found.items():
            if decision is not None and decision != self.choices[key]:
                raise AssertionError(f"another choice: {decision}")
        return "misses" if None in found.values() else "hits"


    # Whole programs

    def _kept_programs(self) -> dict[str, list[bytes]]:
        """The stored programs of a training step with two results, one of which has no gradient, by their keys."""
        import compile_api

        options = {"program_cache": True, "cache_dir": str(self.folder / "programs")}
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        compiled = compile_api.compile(lambda x: (model(x).sum(), x * 2), options=options)
        compiled(torch.rand(2, 3, requires_grad=True))[0].backward()
        found: dict[str, list[bytes]] = {}
        for key, data in ProgramFolder(self.folder / "programs" / "programs", 1 << 30).everything():
            found.setdefault(key, []).append(data)
        kinds = {each.kind for entries in found.values() for data in entries for each in _parts(from_bytes(data))}
        assert kinds >= {"aot_autograd.training", "aot_autograd.backward", "aot_autograd.partial_backward"}, kinds
        return found

    def program_file(self, r: random.Random) -> str:
        place = self.folder / "mutated-programs"
        _remove(place)
        shutil.copytree(self.folder / "programs" / "programs", place)
        folders.forget_temporary()
        files = sorted(place.glob("*/*.program"))
        victim, other = r.choice(files), r.choice(files)
        kind = r.randrange(3)
        if kind == 0:
            victim.write_bytes(damage_bytes(victim.read_bytes(), r, other.read_bytes()))
        elif kind == 1:
            victim.write_bytes(other.read_bytes())
        else:
            _in_its_place(victim, r.randrange(5), r)
        self.watch.allowed = (str(place),)
        self.watch.on = True
        store = ProgramFolder(place, 1 << 30)
        found = {key: [to_bytes(entry) for entry in store.find(key)] for key in self.programs}
        self.watch.on = False
        for key, entries in found.items():
            if not set(entries) <= set(self.programs[key]):
                raise AssertionError(f"{key[:8]}: another program")
        return "hits" if found == self.programs else "misses"

    def program_plan(self, r: random.Random) -> str:
        """One part of a program that says other things, under a checksum that is right."""
        wholes = [from_bytes(data) for entries in self.programs.values() for data in entries]
        forged = _forged(r.choice([part for whole in wholes for part in _parts(whole) if part.kind in _PLANS]), r)
        self.watch.allowed = (str(self.folder),)
        self.watch.on = True
        try:
            restore(forged, options=Options(cache_dir=str(self.folder / "programs")))
        except StoredGraphError as error:
            return str(error.label)
        return "restored"


KINDS: dict[str, Callable[[Hostile, random.Random], str]] = {
    "graph-json": Hostile.graph_json,
    "graph-names": Hostile.graph_names,
    "graph-text": Hostile.graph_text,
    "graph-file": Hostile.graph_file,
    "kernel-cache": Hostile.kernel_cache,
    "choices": Hostile.choices_file,
    "program-file": Hostile.program_file,
    "program-plan": Hostile.program_plan,
}


#: What a training step is stored as beside its compiled graphs.
_PLANS = ("aot_autograd.training", "aot_autograd.backward", "aot_autograd.partial_backward", "compile_api.compiler")


def _parts(artefact: Artefact) -> list[Artefact]:
    return [artefact, *(part for child in artefact.children.values() for part in _parts(child))]


def _forged(part: Artefact, r: random.Random) -> Artefact:
    """An artefact with other values, but for the text of functions; or with a graph that was changed."""
    told = {**part.text}
    functions = {key: told[key]["text"] for key in told if isinstance(told[key], dict) and "text" in told[key]}
    plain = {key: {**value, "text": ""} if key in functions else value for key, value in told.items()}
    files = {**part.files}
    if "graph" in files and r.random() < 0.5:
        files["graph"] = _damaged_json(files["graph"], r).encode()
    else:
        plain = json.loads(_damaged_json(json.dumps(plain).encode(), r) or "{}")
    for key, text in functions.items():
        if isinstance(plain, dict) and isinstance(plain.get(key), dict) and "text" in plain[key]:
            plain[key]["text"] = text
    return Artefact(part.kind, part.version, plain, files, part.children)


def _copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def _damaged_json(data: bytes, r: random.Random) -> str:
    try:
        return damage_json(data.decode(), r)
    except (ValueError, RecursionError):  # it is damaged already, or too deep to be written down
        return ""


def _in_its_place(path: pathlib.Path, kind: int, r: random.Random) -> None:
    """Something that is no such file."""
    data = path.read_bytes()
    path.unlink()
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(r.choice(["/dev/zero", "/etc/passwd", "/nowhere", path.name]))
    elif kind == 3:
        path.write_bytes(b"")
    else:
        path.write_bytes(data)
        path.chmod(r.choice([0o666, 0o620, 0o777]))


def _remove(place: pathlib.Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    """Run mutations of each kind; the exit status is 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.hostile", description="Hostile files, loaded.")
    parser.add_argument("kind", nargs="?", default="all", choices=[*KINDS, "all"])
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1000, help="mutations of each kind")
    given = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        os.chdir(folder)
        hostile = Hostile(pathlib.Path(folder))
        for kind in KINDS if given.kind == "all" else [given.kind]:
            for seed in range(given.seed, given.seed + given.count):
                wrong = hostile.run(kind, seed)
                if wrong is not None:
                    bad += 1
                    print(f"{kind} {seed}: {wrong}", flush=True)
    for outcome, count in sorted(hostile.outcomes.items()):
        print(f"{count:8} {outcome}")
    print(f"{sum(hostile.outcomes.values()) + bad} mutations, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
