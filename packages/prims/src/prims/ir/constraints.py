"""The numbered constraints. The same label stands in ``docs/ir.md``, the check, the error and its negative test."""

from __future__ import annotations

__all__ = ["CONSTRAINTS", "FILE_RULES"]

CONSTRAINTS: dict[str, str] = {
    "ENV-C1": "The dialect is known and its major version is one that this package reads.",
    "ENV-C2": "There is one placeholder per input descriptor, before every other node.",
    "ENV-C3": "Input kinds are known; input names are unique identifiers.",
    "ENV-C4": "The spec of a `size` input is a Sym or an int, that of every other input a TensorSpec.",
    "ENV-C5": "The graph ends in one flat tuple (or list) with one element per output descriptor.",
    "ENV-C6": "Output kinds are known.",
    "ENV-C7": "An output's descriptor has the rank, dtype and device of the node that it returns.",
    "ENV-C8": "A mutation pairs an input with an output of kind `mutation`; both sides are paired once.",
    "ENV-C9": "An alias's base is an existing input or graph output; each user result has at most one alias.",
    "ENV-C10": "Every symbol in use is in the symbol table and bound to an input that has it.",
    "ENV-C11": "Every `get_attr` names an entry of `constants`, and every constant is a tensor.",
    "ENV-C12": "Every value is defined before it is used, in the same graph.",
    "ENV-C13": "Every node that computes a value has metadata in `node.meta['spec']`.",
    "ENV-C14": "A pass changes no output beyond rounding, on sampled inputs. (reference)",
    "ENV-C15": "A symbol that may be negative is called `int` (or `f`: the bits of a float) and a number.",
    "TORCH-C1": "Nodes are placeholders, get_attr, call_function, call_method and one output.",
    "TORCH-C2": "A call_function target is callable; a call_method target is a method of torch.Tensor, int or float.",
    "TORCH-C3": "No argument is a Sym or SymInt: sizes are nodes.",
    "ATEN-C1": "Nodes are placeholders, get_attr, call_function and one output.",
    "ATEN-C2": "A target is an operator overload or operator.getitem.",
    "ATEN-C3": "The arguments fit the overload's schema.",
    "ATEN-C4": "The overload is functional: it writes none of its arguments.",
    "ATEN-C5": "An argument is a node, literal, Sym, dtype, layout, memory format or device: no SymInt, no tensor.",
    "ATEN-C6": "A node's metadata equals what `prims.spec.infer` derives from its arguments'. (every_pass)",
    "ATEN-C7": "operator.getitem takes an existing element of a node with several results, and has its metadata.",
    "PRIM-C1": "Nodes are placeholders, get_attr, call_function and one output.",
    "PRIM-C2": "A target is a primitive of the table, a functional overload (claimed or extern), or operator.getitem.",
    "PRIM-C3": "A primitive's arguments are its canonical ones: all positional, of the parameter's kind.",
    "PRIM-C4": "A claimed or extern overload is functional and its arguments fit its schema.",
    "PRIM-C5": "An argument is a node, literal, Sym, dtype, layout, memory format or device: no SymInt, no tensor.",
    "PRIM-C6": "A node's metadata equals what the primitive's row derives from its arguments'. (every_pass)",
    "PRIM-C7": "operator.getitem takes an existing element of a node with several results, and has its metadata.",
}

#: What is asked of a stored graph before it becomes an envelope, whatever its dialect (errors: ``StoredGraphError``).
FILE_RULES: dict[str, str] = {
    "FILE-C1": "Targets are operators, primitives, listed functions, methods and properties, or registered callables.",
    "FILE-C2": "The text has its form: the fields, kinds, types and ranges of values that a stage writes.",
    "FILE-C3": "Names of inputs, symbols, constants and keywords are plain identifiers.",
    "FILE-C4": "A file is a regular file within the size limit, its constants a safetensors file with equal digests.",
}
