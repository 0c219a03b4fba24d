"""A translated frame as an artefact: what another process needs to run it, and what has to hold there.

See :mod:`.reading` for the other direction.
"""

from __future__ import annotations

import functools
import marshal
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from dynamo_capture.background import Held
from dynamo_capture.breaks import BreakInfo
from dynamo_capture.emitted import Again
from dynamo_capture.request import FrameRequest
from dynamo_capture.resume import resume_info, resume_point
from dynamo_capture.rules import is_library_class, is_library_name, module_of_globals
from dynamo_capture.running import Running
from dynamo_capture.stored.facts import fact_of, instance_fact, is_type_form
from dynamo_capture.stored.log import ACCESSORS, GuardLog, Reads, Row
from dynamo_capture.stored.names import Namer
from dynamo_capture.stored.surroundings import hash_probe, hashes_differ
from dynamo_capture.wrappers import is_disabled
from prims.artefact import Artefact, NotPortable, artefact_of
from prims.records import record

__all__ = ["KIND", "VERSION", "Kept", "entry_of", "finished"]

KIND = "dynamo_capture.frame"
VERSION = "3"
_HEAP_TYPE = 1 << 9


@record
class Kept:
    """What a translation is written from.

    Attributes:
        request: the frame.
        log: its guards.
        reads: what was read of libraries.
        code: the emitted code.
        run: what stands for the compiled graph among the code's constants; None where there is none.
        graph: the captured graph, where there is one.
        compiled: what the backend returned, or the graph that merely hands values on.
        running: what is around it.
        text: further values of JSON (``name``, ``where``, ``goes_on``, ``compiled``).
        brk: where the graph breaks.
    """

    request: FrameRequest
    log: GuardLog
    reads: Reads
    code: types.CodeType
    run: Any
    graph: torch.fx.GraphModule | None
    compiled: Callable[..., Any] | None
    running: Running
    text: dict[str, Any]
    brk: BreakInfo | None


def entry_of(kept: Kept, sizes: dict[str, Any]) -> Artefact:
    """The artefact of a translation.

    Args:
        sizes: what is known of the sizes that the code object has met (``DynamicSizes.known``).

    Raises:
        NotPortable: something that it rests on has no meaning outside of this process; says what.
    """
    if kept.request.devices:
        raise NotPortable("it was captured under a default device")
    if kept.reads.hashed and hashes_differ():
        raise NotPortable("it depends on how texts hash, which differs between processes unless PYTHONHASHSEED is set")
    if kept.reads.addressed:
        raise NotPortable("it depends on the address of an object (id(), or a hash that is made of it)")
    if kept.reads.promised:
        raise NotPortable(kept.reads.promised[0])
    if kept.graph is not None:
        _check_functions(kept.graph)
    later = isinstance(kept.compiled, Held)  # :func:`finished` adds it
    children = {} if kept.compiled is None or later else {"graph": _graph(kept.compiled)}
    names = Namer(kept.request, kept.reads)
    roots = {row.result: row.args[0] for row in kept.log.rows if row.method == "constant"}
    text = {
        **kept.text,
        "break": _break(kept.brk),
        "rows": [_row(row, names, roots) for row in kept.log.rows],
        "reads": _reads(kept.reads),
        "lookups": _lookups(kept.reads, names),
        "consts": [_const(const, kept, names) for const in kept.code.co_consts],
        "same": _same(names),
        "hashes": hash_probe() if kept.reads.hashed else None,
        "running": _running(kept.running, names),
        "sizes": sizes,
    }
    text["refs"] = names.refs
    code = marshal.dumps(kept.code.replace(co_consts=(), co_filename="", co_firstlineno=1))
    return Artefact(KIND, VERSION, text, {"code": code}, children)


def _graph(compiled: Callable[..., Any]) -> Artefact:
    graph = artefact_of(compiled)
    if isinstance(graph, NotPortable):
        raise NotPortable(f"the compiled graph: {graph}")
    return graph


def finished(entry: Artefact, compiled: Callable[..., Any]) -> Artefact:
    """The artefact of a translation that was written before its graph was compiled.

    Raises:
        NotPortable: the graph cannot be stored.
    """
    return replace(entry, children={**entry.children, "graph": _graph(compiled)})


def _same(names: Namer) -> list[list[int]]:
    """The nodes of the frame's tensors, those together that lead to the same one."""
    found: dict[int, list[int]] = {}
    for node, tensor in names.tensors:
        found.setdefault(id(tensor), []).append(node)
    return [*found.values()]


#: Namespaces of operators that torch itself registers.
_OF_TORCH = frozenset(("aten", "prim", "prims", "profiler", "inductor"))
_COLLECTIVE = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"))


def _check_functions(graph: torch.fx.GraphModule) -> None:
    """No operator or function of the program's is in the graph: what it does is in the compiled graph, and unguarded.

    Raises:
        NotPortable: there is one.
    """
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            target = node.target
            if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
                space = str(target).partition(".")[0]
                if space in _COLLECTIVE:
                    raise NotPortable(f"the collective {target} is in the graph, with its group's name and size")
                if space not in _OF_TORCH:
                    raise NotPortable(f"the custom operator {target} is in the graph")
            elif node.op == "call_function":
                module_name = getattr(target, "__module__", None)
                if not (is_library_name(module_name) or str(module_name).partition(".")[0] in _OURS):
                    raise NotPortable(f"the function {module_name}.{node.name} is in the graph")


_OURS = frozenset(("prims", "dynamo_capture"))


# --- guards ---------------------------------------------------------------------------------------------------------


def _row(row: Row, names: Namer, roots: dict[int | None, Any]) -> list[Any]:
    method = row.method
    write = _ARGUMENTS.get(method)
    try:
        if write is not None:
            args = write(row, names, roots)
        elif method in ACCESSORS and method not in ("constant", "item", "call"):
            args = list(row.args)
        else:
            args = [names.pack(arg) for arg in row.args]
        named = {name: names.pack(value) for name, value in row.kwargs.items()}
    except NotPortable as error:
        raise NotPortable(f"a guard ({method}): {error.reason}", where=row.kwargs.get("reason")) from None
    seen = None if row.seen is None else {name: names.pack(value) for name, value in row.seen.items()}
    return [method, args, named, row.result, seen]


def _type(row: Row, names: Namer, roots: Any) -> list[Any]:
    node, cls = row.args
    names.types.setdefault(id(cls), node)
    return [node, {"r": names.ref(cls)}]


#: Told by what they are made of, where a path from the frame leads to them.
_TOLD_BY_PARTS = (types.FunctionType, types.CodeType, functools._lru_cache_wrapper)


def _identity(row: Row, names: Namer, roots: Any) -> list[Any]:
    node, obj = row.args
    if isinstance(obj, torch.Tensor):
        names.meet(node, obj)
    if type(obj) in _TOLD_BY_PARTS or is_type_form(obj) or is_disabled(obj):
        return [node, {"r": names.ref(obj, deep=True, place=["node", node])}]
    return [node, names.object(obj)]


def _constant(row: Row, names: Namer, roots: Any) -> list[Any]:
    obj, *text = row.args
    return [{"r": names.ref(obj)}, *text]


def _function(row: Row, names: Namer, roots: Any) -> list[Any]:
    node, fn = row.args
    return [node, {"r": names.ref(fn, place=["node", node])}]


def _class_attribute(row: Row, names: Namer, roots: dict[int | None, Any]) -> list[Any]:
    node, name, *found = row.args
    cls = roots[node]
    place = ["in", names.ref(cls), name]
    return [node, name, *({"r": names.ref(obj, deep=True, place=place)} for obj in found)]


def _bases(row: Row, names: Namer, roots: Any) -> list[Any]:
    node, mro = row.args
    return [node, [names.ref(cls) for cls in mro]]


def _tensor(row: Row, names: Namer, roots: Any) -> list[Any]:
    names.meet(*row.args[:2])
    return [row.args[0]]  # the frame's own tensor is the example there


def _subclasses(row: Row, names: Namer, roots: Any) -> list[Any]:
    return [[[names.ref(cls), names.ref(base), answer] for cls, base, answer in row.args[2]]]


_ARGUMENTS: dict[str, Callable[[Row, Namer, Any], list[Any]]] = {
    "constant": _constant,
    "check_type": _type,
    "check_id": _identity,
    "check_function": _function,
    "check_class_attr": _class_attribute,
    "check_tensor": _tensor,
    "check_mro": _bases,
    "check_subclasses": _subclasses,
}


# --- what no guard watches ------------------------------------------------------------------------------------------


def said_of(obj: Any) -> Any:
    """What is said of an object that a library holds."""
    if isinstance(obj, (dict, list, set)):
        return instance_fact(obj)  # what is read of it is guarded
    try:
        return fact_of(obj, deep=True)
    except NotPortable:
        if is_library_class(type(obj)):
            return instance_fact(obj)
        raise


def _reads(reads: Reads) -> list[Any]:
    found = []
    for globals_, name, obj in reads.globals.values():
        module = module_of_globals(globals_)
        if module is None:
            raise NotPortable(f"the global name {name!r} of a function whose globals are no module's")
        found.append([module, name, said_of(obj)])
    found += [[module.__name__, name, said_of(obj)] for module, name, obj in reads.attributes.values()]
    return found


def asked(cls: type, name: str) -> tuple[type | None, bool]:
    """The class that defines a name for ``cls``, and whether a library's class that can change was asked for it."""
    changeable = False
    for base in cls.__mro__:
        changeable = changeable or (bool(base.__flags__ & _HEAP_TYPE) and is_library_class(base))
        if name in base.__dict__:
            return base, changeable
    return None, changeable


def _lookups(reads: Reads, names: Namer) -> list[Any]:
    found = []
    for cls, name in reads.lookups.values():
        owner, changeable = asked(cls, name)
        if changeable:
            of_library = owner is not None and is_library_class(owner)
            said = said_of(owner.__dict__[name]) if owner is not None and of_library else None
            found.append([names.ref(cls), name, None if owner is None else names.ref(owner), said])
    return found


# --- code -----------------------------------------------------------------------------------------------------------


def _const(const: Any, kept: Kept, names: Namer) -> Any:
    if kept.run is not None and const is kept.run:
        return {"graph": None}
    if type(const) is types.FunctionType and (info := resume_info(const.__code__)) is not None:
        if info.original is not _original(kept.request.code) or const.__globals__ is not kept.request.globals:
            raise NotPortable("a resume function of another function")
        point, line = resume_point(const.__code__)
        return {"resume": [point.index, list(point.stack), list(point.locals), line]}
    if type(const) is Again:
        return {"again": [list(const.names), const.where]}
    return names.object(const)


def _original(code: types.CodeType) -> types.CodeType:
    info = resume_info(code)
    return code if info is None else info.original


def _break(brk: BreakInfo | None) -> list[Any] | None:
    if brk is None:
        return None
    where = None if brk.where is None else [brk.where.filename, brk.where.line, brk.where.function]
    return [brk.number, brk.reason, where, list(brk.place)]


def _running(running: Running, names: Namer) -> dict[str, Any]:
    return {
        "undone": list(running.undone),
        "drawn": list(running.drawn),
        "without_devices": running.without_devices,
        "settings": [[names.ref(setter), names.pack(arguments)] for setter, arguments in running.settings],
        "inference": running.inference,
        "checked": list(running.checked),
    }
