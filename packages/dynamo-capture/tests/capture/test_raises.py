"""Where the simulated program may raise: the places are listed, and each says how it knows.

``ObservedError`` is what the interpreter unwinds into the program's ``except``. It must never stand for "capture
cannot simulate this", which is a ``GraphBreak``. So it is made in few places: by ``Capture.exact``, which ran a real
operation on real objects; from the program's own ``raise``; and by functions that spell out an error that Python
documents for the very case. The source is walked here, and a new place has to be added to these lists by hand.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import dynamo_capture

ROOT = Path(dynamo_capture.__file__).parent

#: Functions that pass on what the program itself raises, or make the exception of what they have found to be raised.
MAKERS = {
    "capture.py": {"Capture.observed", "Capture.observed_value"},
    "interpreter/control_ops.py": {"ControlOps.RERAISE", "ControlOps.RAISE_VARARGS"},
    "interpreter/frame.py": {"Frame.throw_into"},
    "interpreter/py312.py": {"Ops312.CLEANUP_THROW"},
    "values/iterators.py": {"GeneratorValue.call_method"},
}
#: Functions that hand on an exception that a real operation has raised.
FROM_REAL = {"capture.py": {"Capture.exact", "Capture.observed_because"}, "values/exact.py": {"type_error"}}
#: Functions that spell out documented errors, with how many.
DOCUMENTED = {
    "capture.py": {"Capture._global": 1},
    "interpreter/control_ops.py": {
        "ControlOps.BEFORE_WITH": 1, "ControlOps.RAISE_VARARGS": 1, "ControlOps.MATCH_CLASS": 1,
        "ControlOps._matched_by_position": 1, "ControlOps._too_many_patterns": 1,
    },
    "interpreter/data_ops.py": {"DataOps.DELETE_NAME": 1, "DataOps.unbound": 2, "DataOps.UNPACK_SEQUENCE": 1, "DataOps._pull_items": 1},
    "graph_builder.py": {"GraphBuilder.call": 1},
    "interpreter/py314.py": {"Ops314.BEFORE_WITH": 1},
    "values/builtin_functions.py": {"_vars": 1, "_super": 2},
    "values/construct.py": {"user_instance": 1, "_default_dict": 1},
    "values/getters.py": {"GetterValue.call": 1},
    "values/containers.py": {
        "SequenceValue._index": 3, "ListValue._remove": 2, "ListValue._sort": 1, "key_error": 1,
        "method_of_container": 1,
    },
    "values/dicts.py": {"DictValue._popitem": 1},
    "values/dispatching.py": {"DispatchingTensorValue.iterate": 1},
    "values/functions.py": {
        "CellValue.getattr": 1, "FunctionValue.getattr": 3, "PartialValue.getattr": 1, "SuperValue.getattr": 1,
    },
    "values/identity.py": {"keyed": 1, "object_key": 1, "hash_of": 1},
    "values/iterating.py": {"_StrictZip": 1},
    "values/iterators.py": {
        "IteratorValue.next": 1, "IteratorValue.call_method": 1, "GeneratorValue._run": 2,
        "GeneratorValue.call_method": 1, "GeneratorValue._end": 2, "GeneratorValue.close": 2,
    },
    "values/objects.py": {
        "ObjectValue._no_attribute": 1,
        "ObjectValue._through_descriptor": 1, "ObjectValue.call": 1, "ObjectValue.get_iter": 1,
        "InstanceDictValue.__init__": 1, "InstanceDictValue.delitem": 1,
    },
    "values/overrides.py": {"OverridingTensorValue.getattr": 1},
    "values/sets.py": {"SetValue.key": 1, "SetValue._pop": 1, "SetIterator.next": 1},
    "values/templates.py": {"FixedValue.getattr": 1},
    "values/tensor.py": {"TensorValue._other_attribute": 1, "TensorValue.iterate": 1, "TensorValue.length": 1},
}  # fmt: skip


class _Calls(ast.NodeVisitor):
    """The calls of a module that make an ``ObservedError``, by the function that they are in."""

    def __init__(self) -> None:
        self.scope: list[str] = []
        self.made: set[str] = set()
        self.observed: list[tuple[str, ast.Call]] = []

    def _enter(self, node: ast.AST) -> None:
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_FunctionDef = visit_ClassDef = _enter

    def where(self) -> str:
        depth = 2 if self.scope and self.scope[0][:1].isupper() else 1
        return ".".join(self.scope[:depth])

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "ObservedError":
            self.made.add(self.where())
        elif name in ("observed", "observed_value", "observed_because"):
            self.observed.append((self.where(), node))
        self.generic_visit(node)


def _walk() -> dict[str, _Calls]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        calls = _Calls()
        calls.visit(ast.parse(path.read_text()))
        found[path.relative_to(ROOT).as_posix()] = calls
    return found


def test_only_listed_functions_make_the_exception():
    made = {name: calls.made for name, calls in _walk().items() if calls.made}
    assert made == MAKERS


def test_a_caught_exception_is_handed_on_only_from_a_real_operation():
    caught: dict[str, set[str]] = {}
    for name, calls in _walk().items():
        for where, node in calls.observed:
            if not isinstance(node.args[0], ast.Call) and node.func.attr == "observed":
                caught.setdefault(name, set()).add(where)
    assert caught == FROM_REAL


def test_documented_errors_are_listed():
    documented: dict[str, Counter[str]] = {}
    for name, calls in _walk().items():
        for where, node in calls.observed:
            if isinstance(node.args[0], ast.Call) or node.func.attr == "observed_value":
                documented.setdefault(name, Counter())[where] += 1
    assert {name: dict(counts) for name, counts in documented.items()} == DOCUMENTED
