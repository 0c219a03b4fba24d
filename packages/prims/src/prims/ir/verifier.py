"""The verifier: ``docs/ir.md`` as code.

``boundaries`` checks structure in one walk over the graph (about 10 µs per node); ``every_pass`` also derives every
node's metadata again.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from prims.errors import UserError, VerifierError
from prims.ir.bodies import bodies_of
from prims.ir.constraints import CONSTRAINTS
from prims.ir.envelope import DIALECTS, INPUT_KINDS, OUTPUT_KINDS, Envelope
from prims.ir.metadata import describe_spec, is_tensor_spec, same_metadata, same_spec
from prims.ir.signature import check_overload, check_primitive, is_functional
from prims.ir.symbols import expr_of, made_symbols, sizes_of, symbols_in, symbols_made
from prims.spec.context import least_by_name

__all__ = ["verify"]

_LEVELS = ("off", "boundaries", "every_pass", "reference")
_LITERALS = (
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(Ellipsis),
)  # fmt: skip
_FAST_LITERALS = frozenset(_LITERALS)
_SEQUENCES = frozenset({tuple, list, torch.fx.immutable_collections.immutable_list})
_OVERLOAD = torch._ops.OpOverload
_METHOD_OWNERS = (torch.Tensor, int, float)


def verify(env: Envelope, level: str = "boundaries") -> Envelope:
    """Check ``env`` against its dialect's constraints and return it.

    Args:
        level: ``"off"``, ``"boundaries"`` (structure), ``"every_pass"`` or ``"reference"`` (metadata too).

    Raises:
        VerifierError: a constraint is broken; it carries the constraint's label.
        UserError: an unknown level.
    """
    if level not in _LEVELS:
        raise UserError(f"unknown verifier level {level!r}", todo=f"It must be one of {', '.join(_LEVELS)}.")
    if level != "off":
        _Verifier(env, metadata=level != "boundaries").run()
    return env


def _fail(label: str, message: str, node: str | None = None) -> None:
    raise VerifierError(label, f"{message}. {CONSTRAINTS[label]}", node=node)


class _Verifier:
    def __init__(self, env: Envelope, *, metadata: bool) -> None:
        self.env = env
        self.metadata = metadata
        self.prefix = env.dialect.upper()
        self.known: set[torch.fx.Node] = set()
        self.accepted: set[Any] = set()
        self.symbols = env.symbols.names()
        self.made = {one.name for made in made_symbols(env.graph).values() for one in made}

    def run(self) -> None:
        self.header()
        self.inputs()
        self.symbol_table()
        for name, value in self.env.constants.items():
            if not isinstance(value, torch.Tensor):
                _fail("ENV-C11", f"constant {name!r} is a {type(value).__name__}")
        check_node = getattr(self, "node_" + self.env.dialect)
        output = None
        for node in self.env.graph.nodes:
            if output is not None:
                _fail("ENV-C12", "a node follows the output", node.name)
            if node.op == "output":
                self.arguments(node)
                output = node
                continue
            if node.op != "placeholder":
                if not self.is_accepted(node):
                    self.arguments(node)
                    check_node(node)
                if node.op == "get_attr":
                    if node.target not in self.env.constants:
                        _fail("ENV-C11", f"no constant is named {node.target!r}", node.name)
                elif "spec" not in node.meta:
                    _fail("ENV-C13", f"no metadata on {node.format_node()}", node.name)
            self.known.add(node)
        self.outputs(output)
        self.tables()

    # Envelope

    def header(self) -> None:
        from prims.ir.versions import readable

        if self.env.dialect not in DIALECTS:
            _fail("ENV-C1", f"unknown dialect {self.env.dialect!r}")
        if not readable(self.env.dialect, self.env.version):
            _fail("ENV-C1", f"dialect {self.env.dialect} version {self.env.version}")

    def inputs(self) -> None:
        env = self.env
        placeholders = env.placeholders()
        if len(placeholders) != len(env.inputs):
            _fail("ENV-C2", f"{len(placeholders)} placeholders for {len(env.inputs)} inputs")
        leading = next((n for n in env.graph.nodes if n.op != "placeholder"), None)
        if placeholders and leading is not None and leading in _before(placeholders[-1], leading):
            _fail("ENV-C2", "a placeholder follows another node", placeholders[-1].name)
        names = set()
        for desc in env.inputs:
            if desc.kind not in INPUT_KINDS:
                _fail("ENV-C3", f"unknown input kind {desc.kind!r}", desc.name)
            if not desc.name.isidentifier() or desc.name in names:
                _fail("ENV-C3", f"input name {desc.name!r} is not a unique identifier", desc.name)
            names.add(desc.name)
            if (desc.kind == "size") == is_tensor_spec(desc.spec):
                _fail("ENV-C4", f"a {desc.kind} input has the spec {desc.spec!r}", desc.name)

    def symbol_table(self) -> None:
        for desc in self.env.inputs:
            for size in sizes_of(desc.spec):
                if type(size) is not int:
                    self.use_symbols(size, desc.name)
        for entry in self.env.symbols:
            binding = entry.binding
            if (entry.min or 0) < 0 and least_by_name(entry.name) is not None:
                _fail("ENV-C15", f"symbol {entry.name} may be {entry.min}", entry.name)
            if binding is None and entry.name in self.made:
                continue
            if binding is None or not 0 <= binding.input_index < len(self.env.inputs):
                _fail("ENV-C10", f"symbol {entry.name} is not bound to an input", entry.name)
                continue
            spec = self.env.inputs[binding.input_index].spec
            if binding.dim is not None:
                shape = getattr(spec, "shape", ())
                if not 0 <= binding.dim < len(shape):
                    _fail("ENV-C10", f"symbol {entry.name} is bound to dimension {binding.dim} of {spec!r}")
                spec = shape[binding.dim]
            if symbols_in(spec) != {entry.name}:
                _fail("ENV-C10", f"symbol {entry.name} is bound to {spec!r}", entry.name)

    def use_symbols(self, value: Any, where: str) -> None:
        unknown = symbols_in(value) - self.symbols
        if unknown:
            _fail("ENV-C10", f"symbol {sorted(unknown)[0]} is not in the symbol table", where)

    def outputs(self, node: torch.fx.Node | None) -> None:
        if node is None:
            _fail("ENV-C5", "the graph has no output")
            return
        results = node.args[0]
        if not isinstance(results, (tuple, list)) or len(results) != len(self.env.outputs):
            _fail("ENV-C5", f"the graph returns {results!r} for {len(self.env.outputs)} descriptors", "output")
            return
        for index, (value, desc) in enumerate(zip(results, self.env.outputs, strict=True)):
            where = f"output {index}"
            if desc.kind not in OUTPUT_KINDS:
                _fail("ENV-C6", f"unknown output kind {desc.kind!r}", where)
            if isinstance(value, (tuple, list, dict)):
                _fail("ENV-C5", f"output {index} is a nested {type(value).__name__}", where)
            if isinstance(value, torch.fx.Node):
                spec = self.spec_of(value)
                if spec is not None and not same_metadata(spec, desc.spec):
                    _fail(
                        "ENV-C7",
                        f"the descriptor says {describe_spec(desc.spec)}, the node {describe_spec(spec)}",
                        where,
                    )
            elif is_tensor_spec(desc.spec):
                _fail("ENV-C7", f"the descriptor says {describe_spec(desc.spec)}, the graph returns {value!r}", where)

    def spec_of(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            return None
        return node.meta.get("spec")

    def tables(self) -> None:
        env = self.env
        mutated: set[int] = set()
        paired: set[int] = set()
        for mutation in env.mutations:
            i, o = mutation.input_index, mutation.output_index
            if not 0 <= i < len(env.inputs) or not 0 <= o < len(env.outputs):
                _fail("ENV-C8", f"mutation of input {i} by output {o} is out of range")
            if env.outputs[o].kind != "mutation" or i in mutated or o in paired:
                _fail("ENV-C8", f"mutation of input {i} by output {o} of kind {env.outputs[o].kind!r}")
            mutated.add(i)
            paired.add(o)
        unpaired = {i for i, desc in enumerate(env.outputs) if desc.kind == "mutation"} - paired
        if unpaired:
            _fail("ENV-C8", f"output {min(unpaired)} of kind 'mutation' mutates no input")
        aliased: set[int] = set()
        for alias in env.aliases:
            count = {"input": len(env.inputs), "output": len(env.outputs)}.get(alias.base_kind)
            if count is None or not 0 <= alias.base_index < count or alias.output_index in aliased:
                _fail("ENV-C9", f"alias of result {alias.output_index} to {alias.base_kind} {alias.base_index}")
            aliased.add(alias.output_index)

    # Nodes

    def is_accepted(self, node: torch.fx.Node) -> bool:
        """Whether a call of the same operator with arguments of the same kinds has been checked, and so has this one.

        What the checks of a call ask of its arguments is their types and whether numbers are negative; besides, nodes
        have to be known. Metadata and the bodies of operators are looked at for each node.
        """
        target = node.target
        plain = type(target) is _OVERLOAD and target.namespace == "aten" or hasattr(target, "torch_ref")
        if self.metadata or not plain or self.env.dialect == "torch" or not self.known.issuperset(node.all_input_nodes):
            return False
        args, kwargs = kinds_of(node.args), kinds_of(node.kwargs.values()) if node.kwargs else ()
        if args is None or kwargs is None:
            return False
        key = (id(target), args, (*node.kwargs, kwargs))
        if key in self.accepted:
            return True
        self.accepted.add(key)  # what is not accepted raises
        return False

    def arguments(self, node: torch.fx.Node) -> None:
        for argument in node.args:
            self.argument(argument, node)
        if node.kwargs:
            for argument in node.kwargs.values():
                self.argument(argument, node)

    def argument(self, value: Any, node: torch.fx.Node) -> None:
        if isinstance(value, torch.fx.Node):
            if value not in self.known:
                _fail("ENV-C12", f"{value.name} is used before it is defined", node.name)
        elif type(value) in _FAST_LITERALS:
            return
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.argument(item, node)
        elif isinstance(value, dict):
            for item in value.values():
                self.argument(item, node)
        elif isinstance(value, slice):
            for item in (value.start, value.stop, value.step):
                self.argument(item, node)
        elif self.env.dialect == "torch":
            if expr_of(value) is not None:
                _fail("TORCH-C3", f"an argument is the size {value!r}", node.name)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) or expr_of(value) is None:
            _fail(f"{self.prefix}-C5", f"an argument is a {type(value).__name__}", node.name)
        else:
            self.use_symbols(value, node.name)

    def node_torch(self, node: torch.fx.Node) -> None:
        if node.op == "call_function":
            if not callable(node.target):
                _fail("TORCH-C2", f"the target {node.target!r} is not callable", node.name)
        elif node.op == "call_method":
            if not any(hasattr(owner, str(node.target)) for owner in _METHOD_OWNERS):
                _fail("TORCH-C2", f"torch.Tensor has no method {node.target!r}", node.name)
        elif node.op != "get_attr":
            _fail("TORCH-C1", f"a node has the kind {node.op!r}", node.name)

    def node_aten(self, node: torch.fx.Node) -> None:
        if node.op == "get_attr":
            return
        if node.op != "call_function":
            _fail("ATEN-C1", f"a node has the kind {node.op!r}", node.name)
        if node.target is operator.getitem:
            self.getitem(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            _fail("ATEN-C2", f"the target is {node.target!r}", node.name)
        self.overload(node, "ATEN-C3", "ATEN-C4")
        if self.metadata:
            self.reinfer_overload(node)

    def node_prim(self, node: torch.fx.Node) -> None:
        if node.op == "get_attr":
            return
        if node.op != "call_function":
            _fail("PRIM-C1", f"a node has the kind {node.op!r}", node.name)
        target = node.target
        if target is operator.getitem:
            self.getitem(node)
        elif isinstance(target, torch._ops.OpOverload):
            self.overload(node, "PRIM-C4", "PRIM-C4")
        else:
            from prims.ops import TABLE

            name = getattr(target, "name", None)
            if not isinstance(name, str) or TABLE.get(name) is not target:
                _fail("PRIM-C2", f"the target is {target!r}", node.name)
            problem = check_primitive(target, node.args, node.kwargs)
            if problem:
                _fail("PRIM-C3", problem, node.name)
            if self.metadata:
                self.reinfer_primitive(node)

    def overload(self, node: torch.fx.Node, schema_label: str, functional_label: str) -> None:
        if not is_functional(node.target):
            _fail(functional_label, f"{node.target} writes an argument", node.name)
        problem = check_overload(node.target, node.args, node.kwargs)
        if problem:
            _fail(schema_label, problem, node.name)
        if node.target.namespace == "quintet":  # type: ignore[union-attr]
            for body in bodies_of(node.target):
                verify(body, "every_pass" if self.metadata else "boundaries")

    def getitem(self, node: torch.fx.Node) -> None:
        label = f"{self.prefix}-C7"
        if len(node.args) != 2 or not isinstance(node.args[0], torch.fx.Node) or type(node.args[1]) is not int:
            _fail(label, f"getitem takes a node and an index, got {node.args!r}", node.name)
        whole = node.args[0].meta.get("spec")
        index = node.args[1]
        if not isinstance(whole, (tuple, list)) or not 0 <= index < len(whole):
            _fail(label, f"element {index} of {whole!r}", node.name)
            return
        if "spec" in node.meta and not same_metadata(whole[index], node.meta["spec"]):
            _fail(label, f"element {index} is {whole[index]!r}, the node says {node.meta['spec']!r}", node.name)

    # Metadata

    def reinfer_overload(self, node: torch.fx.Node) -> None:
        from prims.spec import infer

        if symbols_made(node):
            return  # derived again, they would be others
        args, kwargs = _specs(node.args, self.env), _specs(dict(node.kwargs), self.env)
        derived = infer(node.target, args, kwargs)
        self.compare(node, derived, "ATEN-C6")

    def reinfer_primitive(self, node: torch.fx.Node) -> None:
        derived = node.target.meta(*_specs(node.args, self.env))  # type: ignore[union-attr]
        self.compare(node, derived, "PRIM-C6")

    def compare(self, node: torch.fx.Node, derived: Any, label: str) -> None:
        stated, context = node.meta.get("spec"), self.env.symbols.context
        if not same_spec(derived, stated, context.simplify if context is not None else None):
            _fail(label, f"derived {describe_spec(derived)}, stated {describe_spec(stated)}", node.name)


def kinds_of(values: Any) -> tuple[Any, ...] | None:
    """The types of arguments, of integers their signs; None where one is neither a node nor a plain literal."""
    kinds: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is int:
            kinds.append(value >= 0)
        elif kind in _SEQUENCES:
            inner = kinds_of(value)
            if inner is None:
                return None
            kinds.append(inner)
        elif kind is torch.fx.Node or kind in _FAST_LITERALS:
            kinds.append(kind)
        else:
            return None
    return tuple(kinds)


def _before(last_placeholder: torch.fx.Node, other: torch.fx.Node) -> set[torch.fx.Node]:
    return {other} if other < last_placeholder else set()


def _specs(value: Any, env: Envelope) -> Any:
    """Arguments with nodes replaced by their metadata."""
    if isinstance(value, torch.fx.Node):
        if value.op == "get_attr" and "spec" not in value.meta:
            from prims.spec import spec_of

            return spec_of(env.constants[str(value.target)])
        return value.meta["spec"]
    if isinstance(value, (tuple, list)):
        return type(value)(_specs(item, env) for item in value) if type(value) is tuple else [
            _specs(item, env) for item in value
        ]
    if isinstance(value, dict):
        return {key: _specs(item, env) for key, item in value.items()}
    return value
