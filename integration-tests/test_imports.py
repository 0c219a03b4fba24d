"""The walls: which package may import which, and that PyTorch's compiler is imported by none.

Imports are read from the source (``import`` statements at any depth, ``importlib.import_module`` with a literal, and
attribute chains such as ``torch.compile``), so that one inside a rarely called function counts too.
"""

from __future__ import annotations

import ast
import pathlib
import tomllib

import pytest

PACKAGES = pathlib.Path(__file__).parent.parent / "packages"
SOURCES = sorted(PACKAGES.glob("*/src/**/*.py"))
SIBLINGS = {"prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api"}

#: The table of docs/architecture.md.
MAY_IMPORT = {
    "prims": set(),
    "dynamo_capture": {"prims"},
    "aot_autograd": {"prims"},
    "inductor_gen": {"prims"},
    "compile_api": SIBLINGS - {"compile_api"},
}
THIRD_PARTY = {
    "prims": {"torch", "numpy", "sympy", "safetensors"},
    "dynamo_capture": {"torch", "bytecode", "numpy"},
    "aot_autograd": {"torch", "networkx"},
    "inductor_gen": {"torch", "triton", "numpy"},  # NumPy for Triton's interpreter
    "compile_api": {"torch", "rich", "onnx"},
}
#: Slow to import, so only ever imported where they are used.
LAZY = {"sympy", "networkx", "numpy", "rich", "triton", "safetensors", "hypothesis"}

FORBIDDEN = (
    "torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd",
    "torch._functorch.partitioners", "torch._functorch.compilers", "torch._functorch.config", "torch._prims",
    "torch._prims_common", "torch._refs", "torch._decomp", "torch.compile", "torch.export", "torch._export",
    "torch.jit", "torch._subclasses", "torch._higher_order_ops", "torch.fx.experimental", "functorch.compile",
)  # fmt: skip
#: Names that only look like the compiler: tests of whether TorchScript is at work, which eager code has everywhere.
ALLOWED = {"torch.jit.is_scripting", "torch.jit.is_tracing"}


def package_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGES).parts[2]


def imported(tree: ast.AST) -> list[tuple[str, int, bool]]:
    """Every imported or dotted ``torch`` name in a module: name, line, and whether it runs at import time."""
    found: list[tuple[str, int, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module, node.lineno, top))
            found.extend((f"{node.module}.{alias.name}", node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            is_import = name in ("__import__", "import_module", "importlib.import_module")
            if is_import and node.args and isinstance(node.args[0], ast.Constant):
                found.append((str(node.args[0].value), node.lineno, top))
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name and name.startswith("torch."):
                found.append((name, node.lineno, top))
        if isinstance(node, ast.If) and dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.orelse:
                visit(child, top)
            # Annotations are never imported, but the walls stand for them too.
            for child in node.body:
                visit(child, False)
            return
        inside = top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, True)
    return found


def dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return None


def is_forbidden(name: str) -> bool:
    return name not in ALLOWED and any(name == one or name.startswith(one + ".") for one in FORBIDDEN)


@pytest.fixture(scope="module")
def imports() -> list[tuple[pathlib.Path, str, int, bool]]:
    return [
        (path, name, line, top)
        for path in SOURCES
        for name, line, top in imported(ast.parse(path.read_text(), str(path)))
    ]


def test_the_walk_sees_the_packages():
    assert {package_of(path) for path in SOURCES} == SIBLINGS


def test_the_walk_sees_hidden_imports():
    tree = ast.parse(
        "def f():\n    import torch._dynamo as d\n    from torch import compile\n"
        "    importlib.import_module('torch._inductor.config')\n    torch.export.export(f)\n"
    )
    names = {name for name, _, _ in imported(tree)}
    assert {"torch._dynamo", "torch.compile", "torch._inductor.config", "torch.export.export"} <= names
    assert sum(map(is_forbidden, names)) >= 4
    assert not any(top for _, _, top in imported(tree))


def test_siblings(imports):
    wrong = [
        f"{path}:{line} imports {name}"
        for path, name, line, _ in imports
        if (root := name.split(".")[0]) in SIBLINGS
        and root != package_of(path)
        and root not in MAY_IMPORT[package_of(path)]
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_pytorchs_compiler(imports):
    wrong = [f"{path}:{line} names {name}" for path, name, line, _ in imports if is_forbidden(name)]
    assert not wrong, "\n".join(sorted(set(wrong)))


#: Of the standard library in a version that not every supported interpreter has.
LATER = {"annotationlib"}


def test_third_parties(imports):
    import sys

    wrong = [
        f"{path}:{line} imports {name}"
        for path, name, line, _ in imports
        if (root := name.split(".")[0]) not in sys.stdlib_module_names | SIBLINGS | LATER
        and root not in THIRD_PARTY[package_of(path)]
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_slow_imports_are_lazy(imports):
    wrong = [f"{path}:{line} imports {name}" for path, name, line, top in imports if top and name.split(".")[0] in LAZY]
    assert not wrong, "\n".join(sorted(set(wrong)))


def in_circles(edges: dict[tuple[str, str], set[tuple[str, str]]]) -> set[tuple[str, str]]:
    """The nodes from which a way leads back to them."""

    def reached(start: tuple[str, str]) -> set[tuple[str, str]]:
        seen, todo = set(), [start]
        while todo:
            new = edges.get(todo.pop(), set()) - seen
            seen |= new
            todo.extend(new)
        return seen

    return {node for node in edges if node in reached(node)}


def test_folders_form_no_circle(imports):
    """Each folder of a package imports only those before it, in annotations too."""
    folders = {(package_of(path), path.parent.name) for path in SOURCES if path.parent.parent.name == package_of(path)}
    edges: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for path, name, _, _ in imports:
        inside = path.relative_to(PACKAGES).parts[2:]
        to = tuple(name.split(".")[:2])
        if len(inside) > 2 and to in folders and to != inside[:2] and to[0] == inside[0]:
            edges.setdefault(inside[:2], set()).add(to)
    assert in_circles({(a, a): {(b, b)} for a, b in ("xy", "yz", "zx", "wx")}) == {(a, a) for a in "xyz"}
    assert len(edges) > 20 and not in_circles(edges)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml")))
def test_declared_dependencies(folder):
    """A package declares the siblings that it may import, and no others."""
    project = tomllib.loads((PACKAGES / folder / "pyproject.toml").read_text())["project"]
    package = folder.replace("-", "_")
    declared = {
        name.removeprefix("quintet-").split("=")[0].replace("-", "_")
        for name in project["dependencies"]
        if name.startswith("quintet-")
    }
    assert declared == MAY_IMPORT[package]


def test_files_and_functions_stay_small():
    """A file over 1000 lines or a function over 100 is a sign that two things live in one place."""
    wrong = []
    for path in SOURCES:
        text = path.read_text()
        if text.count("\n") > 1000:
            wrong.append(f"{path}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > 100:
                    wrong.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    assert not wrong, "\n".join(wrong)


def test_graphs_are_walked_backwards_by_iterables():
    """``reversed`` of a graph's nodes is an iterator from torch 2.12 on; before, ``next`` refuses it."""
    wrong = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and dotted(node.func) == "next" and node.args:
                inner = node.args[0]
                if isinstance(inner, ast.Call) and dotted(inner.func) == "reversed":
                    if isinstance(inner.args[0], ast.Attribute) and inner.args[0].attr == "nodes":
                        wrong.append(f"{path}:{node.lineno}: say next(iter(reversed(...)))")
    assert not wrong, "\n".join(wrong)


def test_environment_is_read_in_one_place():
    """``Options.from_environment`` reads QUINTET_*; other variables (CC, PATH) may be read by who needs them."""
    wrong = []
    for path in SOURCES:
        if path.name == "options.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("QUINTET_"):
                wrong.append(f"{path}:{node.lineno} {node.value}")
    assert not wrong, "\n".join(wrong)
