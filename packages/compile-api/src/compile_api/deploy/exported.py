"""What :func:`compile_api.export` gives: a program with its contract and its weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from compile_api.deploy.contract import Contract, as_strides
from prims.errors import StoredGraphError, UserError
from prims.forking import compiling
from prims.ir import Envelope
from prims.ir.conditions import learn
from prims.options import Options
from prims.report import Report
from prims.spec.expr import bits_of_float
from prims.spec.exprtext import parse

__all__ = [
    "Exported", "Runner", "check_weight", "flat_inputs", "learn_needs", "load_exported", "lower_for_devices",
    "new_folder", "read_json", "write_back",
]  # fmt: skip

#: ``(major, minor)`` of the folder's form.
FORMAT = (1, 0)


class Exported:
    """A program that runs without the code of the model that it came from.

    Attributes:
        envelope: its graph, in the aten dialect.
        contract: what it takes and gives.
        weights: parameters, buffers and other tensors by qualified name. They may be exchanged for others of equal
            dtype, shape and device; buffers that the program writes are written here.
    """

    def __init__(
        self, envelope: Envelope, contract: Contract, weights: dict[str, torch.Tensor], options: Options | None = None
    ) -> None:
        self.envelope = envelope
        self.contract = contract
        self.weights = weights
        self.options = options or Options.from_environment()
        self._report = Report()
        self._runner: Runner | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; it is compiled at the first call.

        Raises:
            UserError: an argument is not what the contract says.
        """
        if self._runner is None:
            self._runner = Runner(self.contract, self.envelope, self._compiled())
        return self._runner(self.weights, args, kwargs)

    def report(self) -> Report:
        """What compiling it did."""
        return self._report

    def lowered(self) -> Envelope:
        """The graph in the prim dialect, for the devices that it is on."""
        with self._for_all_sizes():
            return lower_for_devices(self.envelope, self.options, self._report)

    @compiling()
    def _compiled(self) -> Callable[..., Sequence[Any]]:
        import inductor_gen

        env = self.lowered()
        with self._report.phase("codegen"), self._for_all_sizes():
            compiled = inductor_gen.compile_graph(env, options=self.options, report=self._report, in_place=True)
        self._report.status("graph", "compiled")
        return compiled

    def _for_all_sizes(self) -> AbstractContextManager[None]:
        """The contract is all that a caller is told about sizes: nothing else may be asked of them."""
        context = self.envelope.symbols.context
        return nullcontext() if context is None else context.for_all_sizes()

    def refuse_numbers(self, form: str) -> None:
        """Refuse a program whose graph takes numbers that change, which only Python computes with.

        Raises:
            UserError: it does.
        """
        numbers = [what for kind, what in self.contract.sources if kind == "number"]
        if numbers:
            raise UserError(
                f"the program cannot be {form}: it computes with numbers that change from call to call ({numbers[0]}"
                f"{f' and {len(numbers) - 1} more' if numbers[1:] else ''}), as training steps do",
                todo="Exported.save() keeps it for use in Python.",
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program into a folder: ``contract.json``, ``graph.json``, ``weights.safetensors``.

        Raises:
            UserError: the folder cannot be written; the graph calls something that a file may not name.
        """
        with compiling():
            from prims.ir import save
            from prims.ir.tensors import write_tensors

        is_new = not os.path.lexists(path)
        folder = new_folder(path)
        try:
            save(self.envelope, folder / "graph.json")
        except StoredGraphError:  # which has written nothing
            if is_new:
                folder.rmdir()
            raise
        data = {"format": list(FORMAT), "torch": str(torch.__version__), "contract": self.contract.to_data()}
        (folder / "contract.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
        write_tensors(self.weights, folder / "weights.safetensors")
        shutil.copymode(folder / "contract.json", folder / "weights.safetensors")  # who may read one may read all

    def __str__(self) -> str:
        count = sum(w.numel() for w in self.weights.values())
        return f"{self.contract}\nwith {len(self.weights)} weights of {count} numbers\n{self.envelope}"

    def __repr__(self) -> str:
        return f"Exported({len(self.envelope.op_nodes)} operators, {len(self.weights)} weights)"


@compiling()
def lower_for_devices(env: Envelope, options: Options, report: Report) -> Envelope:
    """A graph in the prim dialect, for the devices that it is on."""
    import inductor_gen
    from prims.lower import UPDATES, lower
    from prims.spec import TensorSpec

    specs: list[Any] = [d.spec for d in env.inputs]
    specs += [d.spec for d in env.outputs]
    kinds = {s.device.type for s in specs if isinstance(s, TensorSpec)} or {"cpu"}
    claims = frozenset({UPDATES}).union(*(inductor_gen.claims(kind) for kind in kinds))
    with report.phase("lower"):
        return lower(env, claims=claims, options=options, report=report)


class Runner:
    """Calls a compiled graph as the contract says."""

    def __init__(self, contract: Contract, env: Envelope, compiled: Callable[..., Sequence[Any]]) -> None:
        self.contract = contract
        self.specs: list[Any] = [desc.spec for desc in env.inputs]
        self.mutations = [tuple(mutation) for mutation in env.mutations]
        self.symbols = {e.name: e.binding for e in env.symbols if e.binding is not None}
        self.needs = [(parse(text), readable) for text, readable in contract.needs]
        self.compiled = compiled

    def __call__(self, weights: Mapping[str, torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves = self.contract.leaves(args, kwargs)
        with torch.no_grad():
            given = flat_inputs(self.contract, weights, leaves)
            symbols = {
                name: int(given[b.input_index] if b.dim is None else given[b.input_index].shape[b.dim])
                for name, b in self.symbols.items()
            }
            self._check_needs(symbols)
            laid = [
                as_strides(x, [_number(s, symbols) for s in spec.strides]) if isinstance(x, torch.Tensor) else x
                for x, spec in zip(given, self.specs, strict=True)
            ]
            outputs = list(self.compiled(*laid))
            write_back(given, outputs, self.mutations)
            return self.contract.result(outputs, given, laid, leaves)

    def _check_needs(self, symbols: Mapping[str, int]) -> None:
        """Check a call's numbers against what the program was captured for."""
        for expr, readable in self.needs:
            if not expr.evaluate(symbols):
                raise UserError(
                    f"a number of the program has become another than it was exported for: it needs {readable[:300]}",
                    todo="Export the step again with the values that its weights have now.",
                )


def _number(size: Any, symbols: Mapping[str, int]) -> int:
    from prims.ir.symbols import expr_of

    e = expr_of(size)
    return size if e is None else int(e.evaluate(symbols))


def flat_inputs(contract: Contract, weights: Mapping[str, torch.Tensor], leaves: Sequence[Any]) -> list[Any]:
    """The inputs of the graph; of a number a float's bits, or the integer."""
    found: list[Any] = []
    for kind, what in contract.sources:
        if kind == "argument":
            found.append(leaves[what])
        elif kind == "weight":
            found.append(weights[what])
        elif kind == "number":
            number = weights[what].item()
            found.append(bits_of_float(number) if isinstance(number, float) else int(number))
        else:
            found.append(torch.empty((), dtype=torch.int64, device=what).random_())
    return found


def write_back(given: Sequence[torch.Tensor], outputs: Sequence[Any], mutations: Sequence[tuple[int, ...]]) -> None:
    """Copy new values into inputs that the program writes."""
    for index, output in mutations:
        if outputs[output] is not given[index]:
            given[index].copy_(outputs[output])


def load_exported(path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> Exported:
    """The program that :meth:`Exported.save` wrote. Nothing that its files name is imported, nothing is run.

    Raises:
        StoredGraphError: the folder is not one, or of a newer form.
    """
    with compiling():
        from compile_api.modes import make_options
        from prims.ir import load
        from prims.ir.tensors import read_tensors

    folder = Path(path)
    data = read_json(folder / "contract.json")
    contract = Contract.from_data(data.get("contract"))
    env = load(folder / "graph.json")
    placed: list[tuple[Any, Any]] = list(zip(contract.sources, env.inputs, strict=False))
    devices = {what: desc.spec.device for (kind, what), desc in placed if kind == "weight"}
    found = read_tensors(folder / "weights.safetensors")
    weights = {name: w.to(devices.get(name, w.device)) for name, w in found.items()}
    check_sources(contract, env, weights)
    learn_needs(env, [text for text, _ in contract.needs])
    chosen = make_options(fullgraph=False, dynamic=None, mode=None, options=options)
    return Exported(env, contract, weights, chosen)


def learn_needs(env: Envelope, needs: Iterable[str]) -> None:
    """What each call checks of its numbers is known while a program is compiled.

    Raises:
        StoredGraphError: a text is no condition on the graph's numbers.
    """
    known = set(env.symbols.names())
    try:
        unknown = [text for text in needs if not {e.symbol_name for e in parse(text).symbols} <= known]
    except (TypeError, ValueError, AttributeError) as error:
        raise StoredGraphError("FILE-C2", f"a condition of the contract: {error}") from error
    if unknown:
        raise StoredGraphError("FILE-C2", f"the contract needs {unknown[0][:80]!r} of numbers that the graph lacks")
    learn(env, needs)


def check_sources(contract: Contract, env: Envelope, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that a contract, a graph and weights belong together.

    Raises:
        StoredGraphError: they do not.
    """
    from prims.spec import TensorSpec

    if len(contract.sources) != len(env.inputs):
        raise StoredGraphError("FILE-C2", f"{len(contract.sources)} sources for {len(env.inputs)} inputs of the graph")
    for (kind, what), desc in zip(contract.sources, env.inputs, strict=True):
        if kind == "weight" and isinstance(desc.spec, TensorSpec):
            check_weight(what, weights.get(what), desc.spec.dtype, list(desc.spec.shape))
        elif kind == "argument" and not (type(what) is int and 0 <= what < len(contract.inputs)):
            raise StoredGraphError("FILE-C2", f"an input of the graph is argument {what!r}")
        elif kind == "number":
            if what not in weights or weights[what].dim():
                raise StoredGraphError("FILE-C2", f"an input of the graph is the number {what!r}, which is no weight")
        elif kind not in ("weight", "argument", "seed"):
            raise StoredGraphError("FILE-C2", f"an input of the graph comes from {kind!r}")


def check_weight(name: str, found: Any, dtype: torch.dtype, shape: Sequence[Any]) -> None:
    """Check one weight against what the program takes.

    Raises:
        UserError: it is missing, or has another dtype or shape.
    """
    if found is None:
        raise UserError(f"the weight {name} is missing", todo="Add it to the weights under this name.")
    if not isinstance(found, torch.Tensor):
        raise UserError(f"the weight {name} is a {type(found).__name__}, expected a tensor")
    if found.dtype != dtype:
        raise UserError(f"the weight {name} has dtype {found.dtype}, expected {dtype}", todo="Convert it.")
    if list(found.shape) != list(shape):
        raise UserError(f"the weight {name} has shape {list(found.shape)}, expected {list(shape)}")


def new_folder(path: str | os.PathLike[str]) -> Path:
    """A folder to write into, made where it is not there.

    Raises:
        UserError: it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be made a folder: {error}", todo="Give another path.") from error
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """The contract's file.

    Raises:
        StoredGraphError: it cannot be read, is no JSON, or of a newer form.
    """
    from prims.ir.stored import MAX_FILE, read_file

    try:
        data = json.loads(read_file(os.fspath(path), MAX_FILE).decode("utf-8"))
        major = data["format"][0]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        if isinstance(error, StoredGraphError):
            raise
        raise StoredGraphError("FILE-C2", f"{str(path)!r} is no contract: {error}") from error
    if major != FORMAT[0]:
        raise StoredGraphError("FILE-C2", f"{str(path)!r} has the form {major}, this version reads {FORMAT[0]}")
    return data  # type: ignore[no-any-return]
