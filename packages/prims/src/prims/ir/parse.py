"""The parser of the text form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx

from prims.errors import StoredGraphError
from prims.ir.envelope import (
    Alias,
    Envelope,
    InputDesc,
    Mutation,
    OutputDesc,
    SymbolBinding,
    SymbolEntry,
    SymbolTable,
)
from prims.ir.stored import (
    MAX_DEPTH,
    MAX_FILE,
    call_node,
    callable_value,
    checked_form,
    constant_name,
    device_of,
    float_named,
    integer,
    plain_name,
    size_of,
    source_of,
    tensor_spec,
    torch_value,
)

__all__ = ["parse_text"]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<expr>`[^`]*`)
  | (?P<value>%[A-Za-z0-9_]+)
  | (?P<constant>\$[A-Za-z0-9_.]+)
  | (?P<target>@[A-Za-z_][\w.<>]*)
  | (?P<number>-?(?:inf|nan)\b(?!\.)|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
  | (?P<dots>\.\.\.)
  | (?P<name>\.?[A-Za-z_][\w.]*)
  | (?P<punctuation>[()\[\]{},=:])
    )""",
    re.VERBOSE,
)
#: A JSON string; it ends at its own quote, so that no line can be read in many ways.
_STRING = r"\"(?:[^\"\\]|\\.)*\""
_HEADER = re.compile(r"envelope (\w+) (\d+)\.(\d+) by (\S+) (\S+)$")
_SYMBOL = re.compile(
    r"symbol (\w+) in \[(-?\d+|-inf), (-?\d+|inf)\](?: hint (\S+))?(?: from input (\d+)(?: dim (\d+))?)?$"
)
_INPUT = re.compile(rf"input %(\w+) : (.*?) kind=(\w+)( grad)?(?: source=({_STRING}))?$")
_OUTPUT = re.compile(rf"output (\d+) : (.*?) kind=(\w+)(?: source=({_STRING}))?$")
_MUTATION = re.compile(r"mutation of input (\d+) by output (\d+)$")
_ALIAS = re.compile(r"alias of (input|output) (\d+) by result (\d+)(?: as (.*))?$")
_CONSTANT = re.compile(r"constant \$(\S+) : (.*) sha256=([0-9a-f]{64})$")
_INTEGER = re.compile(r"-?[0-9]+")
_SOURCE = re.compile(rf"  # ({_STRING}):(\d+) in ({_STRING})$")
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)=")
_BLANKS = re.compile(r"\s*")
_SPEC = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^}]*)\})?(?:\+(.+))? (\S+)$")


def parse_text(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Envelope:
    """The envelope of a text that ``print_text`` wrote.

    Args:
        constants: the tensors that the text names; their digests are compared with the text's.

    Nothing that the text names is imported or run; what it may say is bounded (:mod:`prims.ir.stored`).

    Raises:
        StoredGraphError: the text is malformed (with the line's number), names a callable that a stored graph may not
            name, or a constant is missing or differs.
    """
    if len(text) > MAX_FILE:
        raise StoredGraphError("FILE-C4", f"a text of {len(text)} characters, at most {MAX_FILE} are read")
    return _Parser(text, dict(constants or {})).parse()


class _Parser:
    def __init__(self, text: str, constants: dict[str, torch.Tensor]) -> None:
        self.lines = text.splitlines()
        self.given = constants
        self.constants: dict[str, torch.Tensor] = {}
        self.context: Any = None
        self.entries: list[SymbolEntry] = []
        self.inputs: list[InputDesc] = []
        self.outputs: list[OutputDesc] = []
        self.mutations: list[Mutation] = []
        self.aliases: list[Alias] = []
        self.default_dtype = torch.float32
        self.graph = torch.fx.Graph()
        self.values: dict[str, torch.fx.Node] = {}
        self.number = 0
        self.depth = 0

    def fail(self, message: str, label: str = "FILE-C2") -> StoredGraphError:
        return StoredGraphError(label, f"bad IR text: {message}", where=self.where())

    def where(self) -> str:
        line = self.lines[self.number - 1] if 0 < self.number <= len(self.lines) else ""
        return f"line {self.number}: {line[:400]}"

    def parse(self) -> Envelope:
        header = None
        for number, line in enumerate(self.lines, start=1):
            self.number = number
            if not line.strip():
                continue
            if header is None:
                header = _HEADER.match(line)
                if header is None:
                    raise self.fail("the first line must read 'envelope DIALECT MAJOR.MINOR by PRODUCER VERSION'")
                continue
            self.depth = 0
            with checked_form(self.where):
                self.line(line)
        if header is None:
            raise self.fail("it is empty")
        dialect, major, minor, producer, version = header.groups()
        return Envelope(
            dialect=dialect,
            version=(int(major[:9]), int(minor[:9])),
            producer=producer,
            producer_version=version,
            graph=self.graph,
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            symbols=SymbolTable(self.context, tuple(self.entries)),
            mutations=tuple(self.mutations),
            aliases=tuple(self.aliases),
            constants=self.constants,
            default_dtype=self.default_dtype,
        )

    def line(self, line: str) -> None:
        handlers: dict[str, Callable[[str], None]] = {
            "default": self.default,
            "symbol": self.symbol,
            "input": self.input,
            "constant": self.constant,
            "return": self.result,
            "output": self.output,
            "mutation": self.mutation,
            "alias": self.alias,
        }
        word = line.split(None, 1)[0]
        if word.startswith("%"):
            self.node(line)
        elif word in handlers:
            handlers[word](line)
        else:
            raise self.fail(f"unknown statement {word!r}")

    def match(self, pattern: re.Pattern[str], line: str) -> tuple[Any, ...]:
        found = pattern.match(line)
        if found is None:
            raise self.fail("the statement does not have its form")
        return found.groups()

    def default(self, line: str) -> None:
        self.default_dtype = float_named(line.removeprefix("default").strip())

    def symbol(self, line: str) -> None:
        from prims.spec import SymbolContext

        name, low, high, hint, index, dim = self.match(_SYMBOL, line)
        if self.context is None:
            self.context = SymbolContext()
        entry = SymbolEntry(
            plain_name(name, "a symbol"),
            None if low == "-inf" else integer(int(low)),
            None if high == "inf" else integer(int(high)),
            None if hint is None else _number(hint),
            None if index is None else SymbolBinding(_index(index), None if dim is None else _index(dim)),
        )
        self.context.declare(name, entry.hint, entry.min, entry.max)
        self.entries.append(entry)

    def input(self, line: str) -> None:
        name, spec, kind, grad, source = self.match(_INPUT, line)
        plain_name(name, "an input")
        desc = InputDesc(name, kind, self.spec(spec), bool(grad), None if source is None else json.loads(source))
        self.inputs.append(desc)
        node = self.graph.placeholder(name)
        node.meta["spec"] = desc.spec
        self.values[f"%{name}"] = node

    def constant(self, line: str) -> None:
        from prims.ir.text import digest

        name, _, expected = self.match(_CONSTANT, line)
        value = self.given.get(constant_name(name))
        if value is None:
            raise self.fail(f"constant {name!r} was not given; pass it in `constants`", "FILE-C4")
        if digest(value) != expected:
            raise self.fail(
                f"constant {name!r} has another content than the one that the text was printed with", "FILE-C4"
            )
        self.constants[name] = value

    def output(self, line: str) -> None:
        index, spec, kind, source = self.match(_OUTPUT, line)
        if _index(index) != len(self.outputs):
            raise self.fail(f"output {len(self.outputs)} was expected")
        self.outputs.append(OutputDesc(kind, self.spec(spec), None if source is None else json.loads(source)))

    def mutation(self, line: str) -> None:
        source, target = self.match(_MUTATION, line)
        self.mutations.append(Mutation(_index(source), _index(target)))

    def alias(self, line: str) -> None:
        kind, base, output, view = self.match(_ALIAS, line)
        self.aliases.append(Alias(_index(output), kind, _index(base), None if view is None else self.spec(view)))

    def result(self, line: str) -> None:
        arguments = _Arguments(line[len("return") :], self)
        items = []
        while not arguments.done():
            items.append(arguments.value())
            arguments.accept(",")
        self.graph.output(tuple(items))

    def node(self, line: str) -> None:
        source = _SOURCE.search(line)
        if source is not None:
            line = line[: source.start()]
        name, _, rest = line.partition(" = ")
        arguments = _Arguments(rest, self)
        node = arguments.call()
        if arguments.accept(":"):
            node.meta["spec"] = self.spec(arguments.remaining())
        elif not arguments.done():
            raise self.fail(f"unexpected {arguments.remaining()!r}")
        if source is not None:
            node.meta["source"] = source_of(json.loads(source[1]), _index(source[2]), json.loads(source[3]))
        self.values[name] = node

    def size(self, text: str) -> Any:
        text = text.strip()
        return integer(int(text)) if _INTEGER.fullmatch(text) else size_of(text, self.context)

    def sizes(self, text: str) -> tuple[Any, ...]:
        return tuple(self.size(piece) for piece in _split(text))

    def spec(self, text: str) -> Any:
        text = text.strip()
        if text == "none":
            return None
        if text.startswith("("):
            self.deeper()
            found = tuple(self.spec(piece) for piece in _split(text[1:-1]))
            self.depth -= 1
            return found
        word, _, rest = text.partition(" ")
        if word == "size":
            return self.size(rest)
        if word == "scalar":
            return _scalar(rest)
        match = _SPEC.match(text)
        if match is None:
            raise self.fail(f"not a type: {text[:200]!r}")
        dtype, shape, strides, offset, device = match.groups()
        return tensor_spec(
            self.sizes(shape),
            dtype,
            device,
            None if strides is None else self.sizes(strides),
            0 if offset is None else self.size(offset),
        )

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"brackets are nested more than {MAX_DEPTH} deep")


def _index(text: str) -> int:
    return integer(int(text[:20]), 0, 2**31)


def _scalar(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.fullmatch(text):
        return integer(int(text))
    return complex(text) if "j" in text else float(text)


def _split(text: str) -> Iterator[str]:
    """The pieces between commas outside of brackets."""
    depth, start = 0, 0
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]


class _Arguments:
    """A reader of one statement's right-hand side."""

    def __init__(self, text: str, parser: _Parser) -> None:
        self.text = text
        self.at = 0
        self.parser = parser

    def done(self) -> bool:
        blanks = _BLANKS.match(self.text, self.at)
        return blanks is not None and blanks.end() == len(self.text)

    def remaining(self) -> str:
        return self.text[self.at :]

    def peek(self) -> tuple[str, str]:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.parser.fail(f"cannot read {self.text[self.at : self.at + 200]!r}")
        return found.lastgroup or "", found[found.lastgroup or 0]

    def take(self) -> tuple[str, str]:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.parser.fail(f"cannot read {self.text[self.at : self.at + 200]!r}")
        self.at = found.end()
        return found.lastgroup or "", found[found.lastgroup or 0]

    def accept(self, text: str) -> bool:
        if self.done() or self.peek()[1] != text:
            return False
        self.take()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.parser.fail(f"expected {text!r} before {self.remaining()[:200]!r}")

    def call(self) -> torch.fx.Node:
        kind, token = self.take()
        graph = self.parser.graph
        if kind == "constant":
            name = token[1:]
            if name not in self.parser.constants:
                raise self.parser.fail(f"constant {name!r} is not declared")
            return graph.create_node("get_attr", name)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        self.expect("(")
        while not self.accept(")"):
            keyword = _KEYWORD.match(self.text, self.at)
            if keyword is not None:
                self.at = keyword.end()
                kwargs[keyword[1]] = self.value()
            else:
                args.append(self.value())
            if not self.accept(",") and self.peek()[1] != ")":
                raise self.parser.fail(f"expected ',' or ')' before {self.remaining()!r}")
        return call_node(graph, token, tuple(args), kwargs)

    def sequence(self, end: str) -> tuple[list[Any], bool]:
        """The items up to ``end``, and whether a comma followed the last."""
        items: list[Any] = []
        comma = False
        while not self.accept(end):
            items.append(self.value())
            comma = self.accept(",")
        return items, comma

    def value(self) -> Any:
        kind, token = self.take()
        match kind:
            case "number":
                return _number(token)
            case "string":
                return json.loads(token)
            case "expr":
                return self.parser.size(token[1:-1])
            case "value":
                if token not in self.parser.values:
                    raise self.parser.fail(f"{token} is used before it is defined")
                return self.parser.values[token]
            case "dots":
                return Ellipsis
            case "target":
                return callable_value(token)
            case "punctuation":
                self.parser.deeper()
                found = self.bracketed(token)
                self.parser.depth -= 1
                return found
            case _:
                return self.named(token)

    def bracketed(self, token: str) -> Any:
        if token == "(":
            return tuple(self.sequence(")")[0])
        if token == "[":
            return self.sequence("]")[0]
        if token == "{":
            items: dict[str, Any] = {}
            while not self.accept("}"):
                key = self.value()
                if not isinstance(key, str):
                    raise self.parser.fail(f"a dictionary has a key of type {type(key).__name__}")
                self.expect(":")
                items[key] = self.value()
                self.accept(",")
            return items
        raise self.parser.fail(f"unexpected {token!r}")

    def named(self, token: str) -> Any:
        if token in ("None", "True", "False"):
            return {"None": None, "True": True, "False": False}[token]
        if token in ("slice", "complex", "device"):
            self.expect("(")
            self.parser.deeper()
            items, _ = self.sequence(")")
            self.parser.depth -= 1
            if token == "complex" and not all(isinstance(item, (int, float)) for item in items):
                raise self.parser.fail("a complex number is made of two numbers")
            makers: dict[str, Callable[..., Any]] = {"slice": slice, "complex": complex, "device": device_of}
            return makers[token](*items)
        if token.startswith("torch."):
            return torch_value(token[len("torch.") :])
        if token.count(".") >= 1:
            return callable_value(token)
        raise self.parser.fail(f"unknown name {token!r}")


def _number(token: str) -> int | float:
    return integer(int(token)) if _INTEGER.fullmatch(token) else float(token)
