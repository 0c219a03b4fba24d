"""A stored frame as a translation again, where everything that it rests on holds in this process and for this call.

What is stored is a program, so it is trusted as one: it comes from a folder that only this user can write. What it says
of objects is checked all the same, as the program around it may have changed.
"""

from __future__ import annotations

import abc
import marshal
import types
from collections.abc import Callable
from typing import Any

from dynamo_capture import _native
from dynamo_capture.breaks import BreakInfo
from dynamo_capture.emitted import Again
from dynamo_capture.request import FrameRequest
from dynamo_capture.resume import ResumePoint, resume_code, resume_info
from dynamo_capture.running import Running
from dynamo_capture.state import CapturedGraph
from dynamo_capture.stored.finding import Finder, Missed
from dynamo_capture.stored.log import ACCESSORS, CHECKS, process_state, tensor_facts
from dynamo_capture.stored.plain import NotPlain
from dynamo_capture.stored.surroundings import hash_probe
from dynamo_capture.stored.writing import KIND, VERSION, asked, said_of
from prims.artefact import Artefact, NotPortable, restore
from prims.errors import StoredGraphError
from prims.ir import SourceLoc
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["Missed", "Restored", "read"]


@record
class Restored:
    """A stored program that serves the frame.

    Attributes:
        code, tree: as of a translation.
        captured: what the report tells of it; the graph itself is not there.
        compiled: its code calls a compiled graph.
        nothing: there is nothing to compile in the frame.
        sizes: what was known of the sizes that the code object had met.
    """

    code: types.CodeType
    tree: Any
    captured: CapturedGraph
    compiled: bool
    nothing: bool
    sizes: dict[str, Any]


def read(entry: Artefact, request: FrameRequest, options: Options, report: Report) -> Restored:
    """The program of a stored entry for a frame.

    Raises:
        Missed: something that it rests on is different; says what.
    """
    if entry.kind != KIND or entry.version != VERSION:
        raise Missed("entry", f"it is of the kind {entry.kind!r}, version {entry.version!r}")
    try:
        return _read(entry, request, options, report)
    except Missed:
        raise
    except (NotPlain, NotPortable, StoredGraphError, LookupError, TypeError, ValueError, AttributeError,
            ReferenceError, EOFError) as error:  # fmt: skip
        raise Missed("entry", f"it cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


def _read(entry: Artefact, request: FrameRequest, options: Options, report: Report) -> Restored:
    text = entry.text
    if text["hashes"] not in (None, hash_probe()):
        raise Missed("state", "texts hash, and sets of them are ordered, in another way (PYTHONHASHSEED)")
    finder = Finder(request, text["refs"])
    _check_reads(text["reads"])
    tree = _native.GuardTree()
    for row in text["rows"]:
        _replay(tree, finder, *row)
    _check_lookups(text["lookups"], finder)
    _check_same(text["same"], finder)
    values = list(request.args.values())
    frame = (values, request.globals, request.builtins, request.closure)
    if not tree.check(*frame):
        raise Missed("guard", tree.explain_failure(*frame) or "a guard does not hold")
    where = text["where"]
    run = None
    if "graph" in entry.children:
        with report.phase("restore"):
            compiled = restore(entry.children["graph"], options=options, report=report)
        run = _native.activate(_running(text["running"], finder).around(compiled), None)
    consts = tuple(_const(const, run, finder, report) for const in text["consts"])
    code = marshal.loads(entry.files["code"]).replace(
        co_consts=consts, co_filename=request.code.co_filename, co_firstlineno=request.code.co_firstlineno
    )
    captured = CapturedGraph(text["name"], None, [], _break(text["break"]), where)
    compiled_graph = bool(text["compiled"])
    return Restored(
        code, tree, captured, compiled_graph, not compiled_graph and not text["goes_on"], dict(text["sizes"])
    )


# --- what no guard watches ------------------------------------------------------------------------------------------


def _check_reads(reads: list[Any]) -> None:
    import importlib
    import sys

    for name, attribute, said in reads:
        module = sys.modules.get(name)
        if module is None:
            try:
                module = _operators(name) or importlib.import_module(name)  # a library's
            except ImportError:
                raise Missed("name", f"there is no module {name}") from None
        _compare(getattr(module, attribute, None), said, f"{name}.{attribute}")


def _operators(name: str) -> Any:
    """The operators of a namespace, a module that is not imported; None for another name."""
    import torch

    space = name.removeprefix("torch.ops.")
    return getattr(torch.ops, space) if space != name and "." not in space else None


def _check_lookups(lookups: list[Any], finder: Finder) -> None:
    for number, name, owner, said in lookups:
        cls = finder.obj(number)
        found, _ = asked(cls, name)
        if found is not (None if owner is None else finder.obj(owner)):
            raise Missed("class", f"{cls.__qualname__}.{name} comes from another class")
        if said is not None and found is not None:
            _compare(found.__dict__[name], said, f"{found.__qualname__}.{name}")


def _check_same(same: list[list[int]], finder: Finder) -> None:
    """The paths that led to one tensor do, and others to others: some guards know a tensor by its identity."""
    found = [{id(finder.value(node)) for node in nodes} for nodes in same]
    if any(len(each) != 1 for each in found) or len(set().union(*found)) != len(found):
        raise Missed("tensor", "other tensors are the same")


def _compare(obj: Any, said: Any, what: str) -> None:
    try:
        now = said_of(obj)
    except NotPortable as error:
        raise Missed("library", f"{what} is {error.reason}") from None
    if now != said:
        raise Missed("library", f"{what} is another")


# --- guards ---------------------------------------------------------------------------------------------------------


def _replay(
    tree: Any, finder: Finder, method: str, args: list[Any], named: dict[str, Any], result: int | None, seen: Any
) -> None:
    if method in ACCESSORS:
        values = tuple(args) if method not in _PACKED else tuple(finder.unpack(arg) for arg in args)
        finder.steps[result] = (method, values)  # type: ignore[index]
        if getattr(tree, method)(*values) != result:
            raise Missed("entry", "its guards are numbered in another way")
        return
    if method == "collect":
        tree.collect(args[0]["l"])
        return
    if method not in CHECKS:
        raise Missed("entry", f"it has a guard {method!r:.40}")
    kwargs = {name: finder.unpack(value) for name, value in named.items()}
    prepare = _PREPARED.get(method)
    values = prepare(finder, args, kwargs, seen) if prepare else tuple(finder.unpack(arg) for arg in args)
    getattr(tree, method)(*values, **kwargs)


def _tensor(finder: Finder, args: list[Any], kwargs: dict[str, Any], seen: dict[str, Any]) -> tuple[Any, ...]:
    example = finder.value(args[0])
    now = tensor_facts(example) if hasattr(example, "storage_offset") else {}
    for name, value in seen.items():
        before = finder.unpack(value)
        if name == "contiguous" and kwargs["strides"] is not None:
            continue  # the strides are in the row, and need not be those of the one tensor, nor its contiguity
        if name not in now or now[name] != before:
            raise Missed("tensor", f"its {name} is {now.get(name)}, and was {before}")
    return args[0], example


def _bases(finder: Finder, args: list[Any], kwargs: dict[str, Any], seen: Any) -> tuple[Any, ...]:
    cls = finder.value(args[0])
    now = cls.__mro__
    if len(now) != len(args[1]) or any(base is not finder.obj(ref) for base, ref in zip(now, args[1], strict=True)):
        raise Missed("class", f"the bases of {cls.__qualname__} are others")
    return args[0], now


def _state(finder: Finder, args: list[Any], kwargs: dict[str, Any], seen: dict[str, Any]) -> tuple[Any, ...]:
    now = process_state()
    for name, value in seen.items():
        before = finder.unpack(value)
        if name not in now or now[name] != before:
            raise Missed("state", f"torch's {name} is {now.get(name)}, and was {before}")
    return ()


def _subclasses(finder: Finder, args: list[Any], kwargs: dict[str, Any], seen: Any) -> tuple[Any, ...]:
    questions = [(finder.obj(cls), finder.obj(base), answer) for cls, base, answer in args[0]]
    token = abc.get_cache_token()
    for cls, base, answer in questions:
        if issubclass(cls, base) is not answer:
            raise Missed("class", f"issubclass({cls.__name__}, {base.__name__}) is not {answer}")
    return abc.get_cache_token, token, questions


_PREPARED: dict[str, Callable[[Finder, list[Any], dict[str, Any], Any], tuple[Any, ...]]] = {
    "check_tensor": _tensor,
    "check_global_state": _state,
    "check_mro": _bases,
    "check_subclasses": _subclasses,
}
_PACKED = frozenset(("constant", "item", "call"))


# --- code -----------------------------------------------------------------------------------------------------------


def _const(const: Any, run: Any, finder: Finder, report: Report) -> Any:
    request = finder.request
    if isinstance(const, dict) and len(const) == 1:
        ((kind, content),) = const.items()
        if kind == "graph":
            return run
        if kind == "resume":
            index, stack, names, line = content
            info = resume_info(request.code)
            original = request.code if info is None else info.original
            code = resume_code(original, ResumePoint(index, tuple(stack), tuple(names)), line)
            return types.FunctionType(code, request.globals, code.co_name)
        if kind == "again":
            return Again(request.code, tuple(content[0]), report, content[1])
    return finder.unpack(const)


def _break(data: list[Any] | None) -> BreakInfo | None:
    if data is None:
        return None
    number, reason, where, place = data
    return BreakInfo(number, reason, None if where is None else SourceLoc(*where), place=tuple(place))


def _running(data: dict[str, Any], finder: Finder) -> Running:
    settings = tuple((finder.obj(setter), finder.unpack(arguments)) for setter, arguments in data["settings"])
    return Running(
        tuple(data["undone"]), tuple(data["drawn"]), data["without_devices"], settings, data["inference"],
        tuple(data["checked"]),
    )  # fmt: skip
