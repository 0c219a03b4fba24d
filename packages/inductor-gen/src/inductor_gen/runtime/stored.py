"""Compiled graphs as artefacts: the text of the function, what it names, and the libraries of its kernels.

Loading one lowers, renders and compiles nothing, and imports nothing that does. A kernel is taken from the kernel cache
under its key; where it is not there, the artefact's own library is put there first. Labels are those of
:mod:`prims.artefact`: a graph whose kernels are for another processor or of other compiler flags, whose function is for
another torch or another launcher, breaks ``ART-C6``.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from inductor_gen.extern.functions import function_from, function_told
from inductor_gen.extern.questions import Question
from inductor_gen.runtime import cubins
from inductor_gen.runtime.cuda import driver_words
from inductor_gen.runtime.graph import CompiledGraph, Kernel, Made, tell
from inductor_gen.runtime.heap import keep_heap
from inductor_gen.runtime.helpers import FRESH, HELPERS, function_of_text, on_device
from inductor_gen.runtime.launch import Call, Layout, Program, as_launcher, launcher_for
from inductor_gen.runtime.libraries import (
    FLAGS,
    Function,
    bring_in,
    cache_of,
    find_function,
    function_at,
    instructions,
    libraries_of,
)
from inductor_gen.runtime.masked import Choice, General
from inductor_gen.runtime.products import Product, plain, products_on
from inductor_gen.runtime.steps import Parts, Step
from inductor_gen.unit import Least
from prims.artefact import Artefact, NotPortable, artefact_of
from prims.coding import decoded, encoded, tensor_decoded, tensor_encoded
from prims.errors import InternalError, StoredGraphError, UserError
from prims.forking import compiling
from prims.options import Options
from prims.report import Report

__all__ = ["artefact_of_graph", "load"]

_KIND, _VERSION = "inductor_gen.graph", "1"
_FIELDS = ("name", "ops", "source", "loops", "parts", "lines", "read", "written", "launches")
_OF_STEPS = ("kind", "name", "calls", "ops", "read", "written", "lines", "device")
_OF_LEAST = ("inputs", "parameters", "outputs")


def _machine(flags: Sequence[str], rounds: Sequence[str], gpu: torch.device | None) -> dict[str, Any]:
    """What kernels and the function that calls them are made for."""
    launcher = launcher_for(gpu is not None)
    return {
        "numerics": list(rounds),
        "machine": platform.machine(), "instructions": _digest(instructions()), "flags": list(flags),
        "torch": torch.__version__, "launcher": _digest(launcher.text), "gpu": None if gpu is None else _told_gpu(gpu),
    }  # fmt: skip


def _told_gpu(gpu: torch.device) -> list[Any] | None:
    """A GPU's name and what its kernels rest on; None where it is not there."""
    if not torch.cuda.is_available() or gpu.index >= torch.cuda.device_count():
        return None
    return [torch.cuda.get_device_name(gpu), list(torch.cuda.get_device_capability(gpu)), torch.version.cuda]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- writing ----------------------------------------------------------------------------------------------------


def artefact_of_graph(graph: CompiledGraph) -> Artefact:
    """The artefact of a compiled graph.

    Raises:
        NotPortable: something in it is tied to this process.
    """
    made = graph.made
    if isinstance(made, Choice):
        return _choice_told(made)
    functions: dict[int, int] = {made.launcher: 0}  # addresses, and their places among the functions
    handles: dict[int, int] = {}  # the same of functions on a GPU
    files: dict[str, bytes] = {}
    programs = {name: _program_told(program, functions, handles) for name, program in made.programs.items()}
    known = [_function(address) for address in functions]
    for digest, data in _libraries(known).items():
        files[f"library.{digest}"] = data
    text = {
        "machine": _machine(made.flags, made.rounds, made.gpu), "device": None if made.gpu is None else str(made.gpu),
        "cubins": [_cubin_told(handle, files) for handle in handles], "source": graph.source, "inputs": graph.count,
        "functions": [[f.key, f.symbol, f.digest] for f in known], "programs": programs,
        "values": {name: _value_told(name, value, files) for name, value in made.values.items()},
        "kernels": [[_plain(getattr(k, field)) for field in _FIELDS] for k in graph.kernels],
        "externs": list(graph.externs), "least": [getattr(graph.least, field) for field in _OF_LEAST],
        "steps": [[_plain(getattr(s, field)) for field in _OF_STEPS] for s in graph.steps],
    }  # fmt: skip
    return Artefact(_KIND, _VERSION, text, files)


def _choice_told(choice: Choice) -> Artefact:
    """The artefact of a graph by masks: the usual one, and what the general one is made of when it is first needed."""
    children, files = {"usual": choice.usual.artefact()}, {}
    text: dict[str, Any] = {
        "question": choice.question.told(), "draws": choice.draws, "repeatable": choice.repeatable,
        "in_place": choice.in_place, "constants": {},
    }  # fmt: skip
    general = None if choice.general.graph is None else artefact_of(choice.general.graph)
    if isinstance(general, Artefact):
        children["general"] = general
    else:
        files["graph"], constants = choice.general.told()
        for name, tensor in constants.items():
            text["constants"][name], files[f"constant.{name}"] = tensor_encoded(tensor)
    return Artefact(_KIND, _VERSION, text, files, children)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _program_told(
    program: Program | Layout | Product, functions: dict[int, int], handles: dict[int, int]
) -> dict[str, Any]:  # fmt: skip
    if isinstance(program, Layout):
        return {"strides": list(program.strides)}
    if isinstance(program, Product):
        if not program.key:
            raise NotPortable("nothing is known of what a product was made for")
        return {"product": encoded(program.key), "workspace": program.workspace}
    numbers = program.numbers if isinstance(program.numbers, int) else list(program.numbers)
    places = handles if program.gpu else functions
    calls = [[places.setdefault(c[0], len(places)), *c[1:3], list(c[3]), *c[4:6], list(c[6])] for c in program.calls]
    told = {"tensors": program.tensors, "slots": [list(s) for s in program.slots], "numbers": numbers, "calls": calls}
    return {**told, "gpu": bool(program.gpu)}


def _cubin_told(handle: int, files: dict[str, bytes]) -> list[str]:
    cubin = cubins.cubin_at(handle)
    data = None if cubin is None else cubins.contents(cubin)
    if cubin is None or data is None:
        raise NotPortable("the machine code of a kernel on a GPU is in the kernel cache no longer")
    files[f"cubin.{cubin.digest}"] = data
    return [cubin.key, cubin.entry, cubin.digest]


def _function(address: int) -> Function:
    found = function_at(address)
    if found is None:
        raise NotPortable("a kernel of a compiled graph was not loaded from a library")
    return found


def _libraries(functions: Sequence[Function]) -> dict[str, bytes]:
    found = libraries_of(functions)
    missing = [function.symbol for function in functions if function.digest not in found]
    if missing:
        raise NotPortable(f"the library of {missing[0]} is in the kernel cache no longer")
    return found


def _value_told(name: str, value: Any, files: dict[str, bytes]) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        what, files[f"constant.{name}"] = tensor_encoded(value)
        return {"constant": what}
    if callable(value) and not isinstance(value, type):
        return {"calls": function_told(value)}
    return {"value": encoded(value)}


# ---- reading ----------------------------------------------------------------------------------------------------


def load(artefact: Artefact, options: Options, report: Report | None) -> CompiledGraph:
    """The compiled graph of an artefact (a loader).

    Raises:
        StoredGraphError: it is of another version, for another machine, or none.
    """
    if artefact.version != _VERSION:
        raise StoredGraphError("ART-C4", f"a compiled graph of version {artefact.version!r}")
    if "question" in artefact.text:
        return _choice_from(artefact, options, Report() if report is None else report)
    text, rounds = artefact.text, (options.numerics, *options.policies)
    gpu = None if text["device"] is None else _gpu(text["device"])
    _check_machine(text["machine"], _machine(FLAGS, rounds, gpu))
    # All is read before anything is loaded, and loaded before anything runs.
    counts = len(text["functions"]), len(text["cubins"])
    programs = {_free(name): _program_from(told, *counts) for name, told in text["programs"].items()}
    values = {_free(name): _value_from(name, told, artefact.files) for name, told in text["values"].items()}
    kernels = [_kernel(told) for told in text["kernels"]]
    count, source, externs = int(text["inputs"]), str(text["source"]), tuple(map(str, text["externs"]))
    with compiling():
        addresses = _addresses(text["functions"], artefact.files, options)
        loaded = [] if gpu is None else _cubins(text["cubins"], artefact.files, options, gpu)
        placed = _placed(programs, addresses, loaded, gpu)
    keep_heap()
    launch = as_launcher(addresses[0])
    space = {**HELPERS, **values, **{name: launch(program) for name, program in placed.items()}}
    steps = tuple(_step(told, space) for told in text["steps"])
    call = function_of_text(source, space, Parts(steps, placed, launch))
    made = Made(values, placed, addresses[0], FLAGS, rounds, gpu)
    call = call if gpu is None else on_device(call, gpu.index)
    graph = CompiledGraph(call, source, kernels, externs, 0, count, made, steps, Least(*map(int, text["least"])))
    tell(graph, options, Report() if report is None else report, len(set(addresses)) + len(loaded))
    return graph


def _gpu(name: Any) -> torch.device:
    gpu = decoded({"device": name})
    if gpu.type != "cuda" or gpu.index is None:
        raise StoredGraphError("ART-C5", f"a stored graph runs kernels on {str(name)[:80]}")
    return gpu  # type: ignore[no-any-return]


def _choice_from(artefact: Artefact, options: Options, report: Report) -> CompiledGraph:
    text, usual = artefact.text, load(artefact.children["usual"], options, report)
    flags = {name: bool(text[name]) for name in ("draws", "repeatable", "in_place")}
    general = _General(artefact, options, report, flags["in_place"])
    choice = Choice(Question.of(text["question"], usual.count), usual=usual, general=general, **flags)
    return choice.graph()


class _General(General):
    """The graph for all masks of an artefact, which is loaded, or compiled, when it is first needed."""

    def __init__(self, artefact: Artefact, options: Options, report: Report, in_place: bool) -> None:
        self.artefact, self.options, self.report, self.in_place = artefact, options, report, in_place
        if "general" not in artefact.children and "graph" not in artefact.files:
            raise StoredGraphError("ART-C5", "a compiled graph for usual masks has no other for the rest")
        super().__init__(self._made, self._kept)

    def _made(self) -> CompiledGraph:
        child = self.artefact.children.get("general")
        if child is not None:
            return load(child, self.options, self.report)
        from prims.ir import from_json

        text, constants = self._kept()
        env = from_json(text.decode(), constants)
        compiler = importlib.import_module("inductor_gen.compiled")  # all that loading does without
        options, report = self.options, self.report
        return compiler.compile_general(  # type: ignore[no-any-return]
            env, options=options, report=report, in_place=self.in_place
        )

    def _kept(self) -> tuple[bytes, Mapping[str, torch.Tensor]]:
        if "graph" not in self.artefact.files:
            raise NotPortable("the graph for other attention masks is compiled code only")
        told, files = self.artefact.text["constants"], self.artefact.files
        constants = {name: tensor_decoded(what, files[f"constant.{name}"]) for name, what in told.items()}
        return files["graph"], constants


def _check_machine(stored: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    different = [name for name in here if stored[name] != here[name]]
    if different:
        raise StoredGraphError("ART-C6", f"a compiled graph was made for another {' and another '.join(different)}")


def _kernel(told: Sequence[Any]) -> Kernel:
    name, ops, source, loops, parts, lines, read, written, launches = told
    texts = (tuple(map(str, ops)), str(source))
    where, runs = (tuple(map(str, some)) for some in (lines, launches))
    return Kernel(str(name), *texts, int(loops), int(parts), where, int(read), int(written), runs)


def _step(told: Sequence[Any], space: Mapping[str, Any]) -> Step:
    kind, name, calls, ops, read, written, lines, device = told
    calls, ops, lines = (tuple(map(str, some)) for some in (calls, ops, lines))
    strange = next((call for call in calls if not callable(space.get(call))), None)
    if strange is not None:
        raise StoredGraphError("ART-C5", f"a step of a stored graph runs by {strange[:80]!r}, which is nothing to call")
    return Step(str(kind), str(name), calls, ops, int(read), int(written), lines, str(device))


def _free(name: str) -> str:
    """A name that a stored graph may give to something."""
    if not name.isidentifier() or name in HELPERS or name.startswith("__") or name in ("call", "args", FRESH):
        raise StoredGraphError("ART-C5", f"a stored graph gives the name {name[:80]!r} to something of its own")
    return name


def _program_from(told: Mapping[str, Any], functions: int, handles: int) -> Program | Layout | Product:
    """A program whose calls name functions by their places, each word of it in its range. One for a GPU has no words of
    the driver yet."""
    if told.keys() == {"strides"}:
        return Layout(_words(told["strides"]))
    if told.keys() == {"product", "workspace"}:
        return Product((), _place(told["workspace"]), decoded(told["product"]))
    tensors, numbers, gpu = _place(told["tensors"]), told["numbers"], [0] if told["gpu"] else []
    slots = [(_place(tensor, tensors), _place(offset)) for tensor, offset in told["slots"]]
    count = numbers if isinstance(numbers, int) else len(_words(numbers))
    calls: list[Call] = []
    for function, threads, shared, own, sizes, first, words in told["calls"]:
        if _place(first) + _place(sizes) + (2 if gpu else 0) > count:  # a grid follows the sizes
            raise StoredGraphError("ART-C5", f"a kernel takes {sizes} sizes from place {first} of {count}")
        where, place = [_place(slot, len(slots)) for slot in own], _place(function, handles if gpu else functions)
        calls.append((place, _place(threads), _place(shared), where, sizes, first, _words(words)))
    return Program(tensors, slots, _place(numbers) if isinstance(numbers, int) else numbers, calls, gpu)


def _place(value: Any, end: int = 1 << 62) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise StoredGraphError("ART-C5", f"a kernel's place is {str(value)[:80]}, not one of {end}")
    return value


def _words(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(v) is int and -(1 << 63) <= v < 1 << 63 for v in values):
        raise StoredGraphError("ART-C5", f"a kernel takes the numbers {str(values)[:80]}")
    return values


def _placed(
    programs: Mapping[str, Any], addresses: Sequence[int], loaded: Sequence[cubins.Loaded], gpu: torch.device | None
) -> dict[str, Program | Layout | Product]:  # fmt: skip
    """Programs with the addresses of their kernels."""
    on_gpu = [p for p in programs.values() if isinstance(p, Program) and p.gpu]
    if gpu is None and (on_gpu or any(isinstance(p, Product) for p in programs.values())):
        raise StoredGraphError("ART-C5", "a stored graph launches kernels on no GPU")
    table = max((len(c[3]) + len(c[6]) for p in on_gpu for c in p.calls if c[6]), default=0)
    words = driver_words(gpu, table) if on_gpu and gpu is not None else ()

    def place(program: Program | Layout | Product) -> Program | Layout | Product:
        if isinstance(program, Layout):
            return program
        if isinstance(program, Product):
            return _product(program, gpu)
        functions = [kernel.function for kernel in loaded] if program.gpu else addresses
        calls = [(functions[call[0]], *call[1:]) for call in program.calls]
        return Program(program.tensors, program.slots, program.numbers, calls, words if program.gpu else ())

    return {name: place(program) for name, program in programs.items()}


def _product(wanted: Product, gpu: Any) -> Product:
    """The library's product for the arguments of a stored one."""
    found = products_on(gpu).product(*wanted.key) if plain() else None
    if found is None or found.workspace != wanted.workspace:
        raise StoredGraphError("ART-C6", "the library for products on a GPU, or what is asked of it, is another")
    return found


def _value_from(name: str, told: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    ((kind, content),) = told.items()
    if kind == "constant":
        return tensor_decoded(content, files[f"constant.{name}"])
    if kind == "calls":
        return function_from(content)
    if kind == "value":
        return decoded(content)
    raise StoredGraphError("ART-C5", f"a stored graph names a {str(kind)[:80]!r}")


def _addresses(functions: Sequence[Any], files: Mapping[str, bytes], options: Options) -> list[int]:
    """The address of each function: those that neither this process nor the cache has are brought in."""
    cache = cache_of(options)
    found: dict[str, Function] = {}
    missing: dict[str, dict[str, str]] = {}
    for key, symbol, digest in functions:
        known = find_function(key, cache)
        if known is None:
            missing.setdefault(digest, {})[key] = symbol
        else:
            found[key] = known
    for digest, symbols in missing.items():
        data = files[f"library.{digest}"]
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoredGraphError("ART-C5", "a library of kernels is not what its name says")
        try:
            found |= {function.key: function for function in bring_in(data, symbols, cache)}
        except UserError as error:
            raise StoredGraphError("ART-C5", f"a library of kernels cannot be loaded: {error}") from error
    return [found[key].address for key, _, _ in functions]


def _cubins(
    told: Sequence[Any], files: Mapping[str, bytes], options: Options, gpu: torch.device
) -> list[cubins.Loaded]:  # fmt: skip
    """The kernels on a GPU: those that neither this process nor the cache has are brought in."""
    cache = cubins.cache_of(options)
    return [
        cubins.find(key, cache, gpu) or _brought(key, entry, digest, files, cache, gpu) for key, entry, digest in told
    ]  # fmt: skip


def _brought(
    key: str, entry: str, digest: str, files: Mapping[str, bytes], cache: Any, gpu: torch.device
) -> cubins.Loaded:  # fmt: skip
    data = files[f"cubin.{digest}"]
    if hashlib.sha256(data).hexdigest() != digest:
        raise StoredGraphError("ART-C5", "machine code for a GPU is not what its name says")
    try:
        return cubins.take_in(data, key, entry, cache, gpu)
    except InternalError as error:
        raise StoredGraphError("ART-C6", f"machine code for a GPU cannot be loaded: {error}") from error
