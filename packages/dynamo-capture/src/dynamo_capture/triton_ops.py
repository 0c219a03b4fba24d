"""A user's Triton kernels as operators: one per kernel and per way of launching it.

A launch ``kernel[grid](x, out, n, BLOCK=128)`` becomes a call of an operator
``triton_kernels::kernel_0(Tensor x, Tensor(a!) out, SymInt n, SymInt grid0, ...) -> ()`` whose implementation does
that launch. Nothing else needs to know of Triton: an operator with written arguments is what every stage handles.

Which arguments are written is read from the kernel's source: a pointer parameter is written if the first argument of
a store or an atomic operation may derive from it. What cannot be read counts as written.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

from prims.records import record

__all__ = ["Launch", "constexpr_names", "is_triton_kernel", "launch_operator", "python_function", "written_parameters"]

_KERNEL_MODULES = ("triton.runtime.jit", "triton.runtime.autotuner", "triton.runtime.interpreter")


def is_triton_kernel(obj: Any) -> bool:
    """Whether an object is a kernel that can be launched: jitted or interpreted, autotuned, with heuristics."""
    cls = type(obj)
    return cls.__module__ in _KERNEL_MODULES and cls.__name__ in (
        "JITFunction", "InterpretedFunction", "Autotuner", "Heuristics",
    )  # fmt: skip


def kernel_chain(kernel: Any) -> list[Any]:
    """The kernel object and those that it wraps, outermost first; the last is the jitted function."""
    chain = [kernel]
    while not inspect.isfunction(chain[-1].fn):
        chain.append(chain[-1].fn)
    return chain


def python_function(kernel: Any) -> Any:
    """The Python function that the user decorated."""
    return kernel_chain(kernel)[-1].fn


def constexpr_names(kernel: Any) -> set[str]:
    """The parameters annotated ``tl.constexpr``."""
    found = set()
    for name, parameter in inspect.signature(python_function(kernel)).parameters.items():
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        if text.rpartition(".")[2] == "constexpr":
            found.add(name)
    return found


# --- which parameters are written ---------------------------------------------------------------------------------

#: Stores whose first argument (``pointer``) is all that they write to.
_WRITES_FIRST = re.compile(r"^(store|atomic_\w+)$")
#: Anything else with such a name may write to whatever it is given.
_WRITES = re.compile(r"store|atomic|scatter|copy|inline_asm|device_print|pointer_type|call")
_VALUES = frozenset(("load", "program_id", "num_programs", "arange", "zeros", "full", "load_tensor_descriptor"))


def written_parameters(kernel: Any) -> set[str] | None:
    """Names of the pointer parameters that a kernel may write to; None where its source does not tell."""
    for outer in kernel_chain(kernel)[:-1]:
        if getattr(outer, "user_defined_pre_hook", False) or getattr(outer, "user_defined_post_hook", False):
            return None
        if any(getattr(config, "pre_hook", None) is not None for config in getattr(outer, "configs", ())):
            return None
    try:
        found = _written(python_function(kernel), ())
    except (_UnknownWritesError, OSError, TypeError, SyntaxError):
        return None
    for outer in kernel_chain(kernel)[:-1]:
        found |= {*getattr(outer, "reset_to_zero", ()), *getattr(outer, "restore_value", ())}
    return found


class _UnknownWritesError(Exception):
    """The source does not tell what is written."""


def _written(function: Any, stack: tuple[Any, ...]) -> set[str]:
    if function in stack or len(stack) > 16:
        raise _UnknownWritesError
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise _UnknownWritesError
    walk = _Walk(function, stack)
    names = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    if tree.args.vararg or tree.args.kwarg:
        raise _UnknownWritesError
    walk.roots = {name: {name} for name in names}
    before = -1
    while before != (size := sum(map(len, walk.roots.values())) + len(walk.written)):
        before = size
        for statement in tree.body:
            walk.visit(statement)
    return walk.written & set(names)


class _Walk(ast.NodeVisitor):
    """Follows which parameters a name may be derived from, without regard to the order of statements."""

    def __init__(self, function: Any, stack: tuple[Any, ...]) -> None:
        self.function = function
        self.stack = (*stack, function)
        self.roots: dict[str, set[str]] = {}
        self.written: set[str] = set()

    def origins(self, node: ast.AST | None) -> set[str]:
        """The parameters that an expression's value may point into."""
        if node is None:
            return set()
        if isinstance(node, ast.Name):
            return self.roots.get(node.id, set())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VALUES:
            return set()  # numbers, not pointers
        found: set[str] = set()
        for child in ast.iter_child_nodes(node):
            found |= self.origins(child)
        return found

    def assign(self, target: ast.AST, origins: set[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.roots[node.id] = self.roots.get(node.id, set()) | origins

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self.assign(target, self.origins(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self.assign(node.target, self.origins(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.assign(node.target, self.origins(node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self.assign(node.target, self.origins(node.value))

    def visit_For(self, node: ast.For) -> None:
        self.assign(node.target, self.origins(node.iter))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        raise _UnknownWritesError

    visit_Lambda = visit_With = visit_ListComp = visit_FunctionDef  # type: ignore[assignment]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "pointer_type":
            raise _UnknownWritesError  # a number becomes a pointer
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [*node.args, *(k.value for k in node.keywords)]
        callee = self._resolve(node.func)
        if is_triton_kernel(callee):
            self._jitted(callee, node)
        elif _is_triton(callee):
            if _WRITES_FIRST.match(name):
                pointer = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "pointer")
                self.written |= self.origins(pointer)
            elif _WRITES.search(name):
                for argument in given:
                    self.written |= self.origins(argument)
        elif callee is None and isinstance(node.func, ast.Attribute):  # a method of a value
            if _WRITES.search(name):
                for argument in (node.func.value, *given):
                    self.written |= self.origins(argument)
        elif not (inspect.isbuiltin(callee) or callee in _PURE_BUILTINS):
            for argument in given:
                self.written |= self.origins(argument)

    def _resolve(self, node: ast.AST) -> Any:
        """The object that a name or an attribute of a module stands for, None where it is a value of the kernel."""
        if isinstance(node, ast.Name):
            if node.id in self.roots:
                return None
            closure = inspect.getclosurevars(self.function)
            for names in (closure.nonlocals, closure.globals, closure.builtins):
                if node.id in names:
                    return names[node.id]
            raise _UnknownWritesError
        if isinstance(node, ast.Attribute):
            base = self._resolve(node.value)
            return None if base is None else getattr(base, node.attr, None) or _raise()
        return None

    def _jitted(self, callee: Any, node: ast.Call) -> None:
        function = python_function(callee)
        inner = _written(function, self.stack)
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            raise _UnknownWritesError
        bound = dict(zip(inspect.signature(function).parameters, node.args, strict=False))
        bound.update({k.arg: k.value for k in node.keywords if k.arg})
        for name in inner:
            self.written |= self.origins(bound.get(name))


_PURE_BUILTINS = (range, min, max, len, abs, int, float, bool, tuple, list, zip, enumerate, isinstance)


def _raise() -> Any:
    raise _UnknownWritesError


def _is_triton(callee: Any) -> bool:
    return (getattr(callee, "__module__", None) or "").partition(".")[0] == "triton"


# --- launches -----------------------------------------------------------------------------------------------------


@record
class Launch:
    """One way of launching a kernel.

    Attributes:
        kernel: the kernel object.
        slots: what is passed, in order: ``(name or None for a positional argument, kind, constant)`` with kind
            ``"tensor"``, ``"int"``, ``"float"`` or ``"constant"``.
        tensors: the parameter's name of each tensor, in order.
        written: those of them that the kernel writes to.
        configs: the arguments that autotuning chooses between, one dict per grid; one empty dict without autotuning.
    """

    kernel: Any
    slots: tuple[tuple[str | None, str, Any], ...]
    tensors: tuple[str, ...]
    written: frozenset[str]
    configs: tuple[dict[str, Any], ...] = field(default=({},))

    def key(self) -> Any:
        """Launches with equal keys are one operator."""
        slots = tuple((name, kind, type(c), repr(c), c if _hashable(c) else id(c)) for name, kind, c in self.slots)
        return id(self.kernel), slots, self.tensors, self.written, repr(self.configs)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


_LIBRARY: list[Any] = []
_OPERATORS: dict[Any, Any] = {}
_ALIVE: list[Launch] = []
_NUMBERS: dict[str, int] = {}


def launch_operator(launch: Launch) -> Any:
    """The operator of a launch: it takes the tensors and numbers among ``slots``, then three sizes per grid."""
    key = launch.key()
    found = _OPERATORS.get(key)
    if found is None:
        _ALIVE.append(launch)  # its kernel's and constants' ids are in the key
        found = _OPERATORS[key] = _define(launch)
    return found


def _define(launch: Launch) -> Any:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library("triton_kernels", "FRAGMENT"))
    library = _LIBRARY[0]
    base = re.sub(r"\W", "_", python_function(launch.kernel).__name__)
    number = _NUMBERS[base] = _NUMBERS.get(base, -1) + 1
    taken = []
    tensors = iter(launch.tensors)
    for i, (_, kind, _) in enumerate(launch.slots):
        if kind == "tensor":
            name = next(tensors)
            taken.append(f"Tensor(a{i}!) {name}" if name in launch.written else f"Tensor {name}")
        elif kind != "constant":
            taken.append(f"{'SymInt' if kind == 'int' else 'float'} number{i}")
    taken += [f"SymInt grid{i}" for i in range(3 * len(launch.configs))]
    library.define(f"{base}_{number}({', '.join(taken)}) -> ()")
    library.impl(f"{base}_{number}", _implementation(launch), "CompositeExplicitAutograd")
    # As in eager, autograd neither knows of a launch nor objects to one.
    library.impl(f"{base}_{number}", torch.library.fallthrough_kernel, "Autograd")
    return getattr(torch.ops.triton_kernels, f"{base}_{number}").default


def _implementation(launch: Launch) -> Callable[..., None]:
    kernel, slots, configs = launch.kernel, launch.slots, launch.configs
    dynamic = [kind != "constant" for _, kind, _ in slots]
    count = sum(dynamic)

    def run(*values: Any) -> None:
        grids = [values[i : i + 3] for i in range(count, len(values), 3)]
        given = iter(values)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for (name, _, constant), is_dynamic in zip(slots, dynamic, strict=True):
            value = next(given) if is_dynamic else constant
            if name is None:
                args.append(value)
            else:
                kwargs[name] = value
        grid = grids[0] if len(grids) == 1 else _choose(configs, grids)
        kernel[grid](*args, **kwargs)

    return run


def _choose(configs: Sequence[dict[str, Any]], grids: Sequence[Any]) -> Callable[[dict[str, Any]], Any]:
    def grid(meta: dict[str, Any]) -> Any:
        for config, sizes in zip(configs, grids, strict=True):
            if all(name in meta and meta[name] == value for name, value in config.items()):
                return sizes
        raise RuntimeError("a Triton kernel was launched with a configuration that its autotuner does not list")

    return grid
