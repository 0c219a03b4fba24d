"""``export()``: one full graph of a model, with the contract of its arguments and results.

Capture runs on the model as it does for ``compile()``, but for what it captures: the graph's outputs are stand-ins in
whose place the model's own code then puts its result together, so that the result's structure says which output is
where; nothing is computed and nothing of the model changes.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from compile_api.deploy import trees
from compile_api.deploy.contract import Contract, Dim, Input, Result, dtype_name
from compile_api.deploy.dynamic import dims_of
from compile_api.deploy.exported import Exported, learn_needs, lower_for_devices
from compile_api.deploy.steps import StepState, number_named
from compile_api.modes import make_options
from compile_api.module import CompiledModule
from prims.errors import NotCompiled, Unsupported, UserError
from prims.forking import compiling
from prims.ir import Envelope
from prims.ir.symbols import expr_of
from prims.options import Options
from prims.report import Report
from prims.source import SourceLoc
from prims.spec import SymbolContext, TensorSpec
from prims.spec import expr as ex
from prims.spec.exprtext import to_python

__all__ = ["export"]


def export(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    training: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Exported:
    """One full graph of ``model(*args, **kwargs)``, without gradients, that runs without the model's code.

    Nothing is computed, and the model is left as it was. A module is exported in the mode in which it is: call
    ``model.eval()`` first for inference.

    Args:
        model: a ``torch.nn.Module`` or a function of tensors; with ``training`` a function that does a step.
        args, kwargs: examples of its arguments. What is no tensor in them stays as it is in every call.
        dynamic_shapes: sizes that may differ between calls, by argument name: ``{"x": {0: "batch"}}``. In the place of
            the name may stand a :class:`Dim`, ``(min, max)``, or True; without a range a size is at least 2. Nested as
            the argument is, or a list with one entry per argument.
        training: export a whole step: forward, ``backward()`` and the optimizer's ``step()``, which the function calls.
            Each call of the program goes on from the last one's parameters, buffers and optimizer's state, which are
            ``weights`` of its own, as are learning rates and what else the optimizer's groups say in numbers. The step
            was run once before, so that the optimizer has its state.
        options: names and values of :class:`compile_api.Options`.

    Raises:
        UserError: the model cannot be exported, with the line of it that prevents that; a range in ``dynamic_shapes``
            is wider than what the program can do.
    """
    if not isinstance(args, (tuple, list)):
        raise UserError(f"args is a {type(args).__name__}", todo="Give a tuple of the arguments: export(model, (x,)).")
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    scripted = (torch._C.ScriptFunction, torch._C.ScriptModule)
    if isinstance(model, scripted) or isinstance(getattr(model, "_c", None), scripted):
        raise UserError(
            f"the model is a {type(model).__name__} of TorchScript, which has no Python to capture",
            todo="Export the module or function that it was made of.",
        )
    if training and isinstance(model, torch.nn.Module):
        raise UserError(
            "training=True exports a step, and a module computes its results only",
            todo="Give a function that computes the loss, calls backward() and the optimizer's step().",
        )
    opts = make_options(fullgraph=True, dynamic=None, mode=None, options=options)
    for name, why in _NOT_FOR_EXPORT.items():
        if getattr(opts, name) != getattr(Options(), name):
            raise UserError(f"{name} is not for exported programs: {why}", todo="Leave the option out.")
    positional, keywords, values = _arguments(model, tuple(args), dict(kwargs or {}))
    dims = dims_of(dynamic_shapes, (*positional, *keywords), values)
    leaves: list[Any] = []
    named = zip((*positional, *keywords), values, strict=True)
    takes = {"tuple": [trees.flatten(value, leaves, _is_leaf, name) for name, value in named]}
    taken = _marked(leaves, dims)
    parts = trees.build(takes, taken)
    call = parts[: len(positional)], dict(zip(keywords, parts[len(positional) :], strict=True))
    captured = _Step(model, opts) if training else _Capture(model, opts)
    result = captured.run(*call)
    names = [path for name, part in zip((*positional, *keywords), takes["tuple"], strict=True)
             for path in trees.paths(part, name)]  # fmt: skip
    return _assembled(captured, result, positional, keywords, takes, names, taken, dims, opts)


#: Options that an exported program would do nothing about.
_NOT_FOR_EXPORT = {
    "data_dependent": "their sizes are those of the contract",
    "dynamic": "dynamic_shapes says which sizes may differ",
    "background": "they are there when export() has returned",
    "offload": "they take no derivatives, or are one step that anything may run",
    "check": "calls of them are not compared with eager ones",
}


# ---- arguments -------------------------------------------------------------------------------------------------------


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, (torch.Tensor, int, float, bool, str))


def _arguments(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[str], list[str], list[Any]]:
    """Names of what is given by place and by name, and the values in this order."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise UserError(f"the model cannot be called with these arguments: {error}") from error
    positional: list[str] = []
    for name, parameter in signature.parameters.items():
        if name not in bound.arguments or len(positional) == len(args):
            break
        several = parameter.kind == inspect.Parameter.VAR_POSITIONAL
        count = len(bound.arguments[name]) if several else 1
        positional += [f"{name}_{k}" for k in range(count)] if several else [name]
    return positional, list(kwargs), [*args, *kwargs.values()]


def _marked(leaves: list[Any], dims: list[dict[int, Dim]]) -> list[Any]:
    """The leaves, tensors as new ones of the same memory with their dynamic dimensions marked."""
    with compiling():
        import dynamo_capture

    rows = iter(dims)
    found: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        one = leaf.detach()
        for at, dim in next(rows).items():
            dynamo_capture.maybe_mark_dynamic(one, at, min=dim.min, max=dim.max, name=dim.name)
        found.append(one)
    return found


# ---- capture ---------------------------------------------------------------------------------------------------------


class _SizeOf(int):
    """A size among a graph's outputs."""


class _Capture:
    """Captures one call of a model; afterwards the graph, its inputs, and what stood for its outputs."""

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.model = model
        self.options = options.replace(dynamic=None, data_dependent=False)
        self.graph: torch.fx.GraphModule | None = None
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.names: dict[int, str] = {}  # of tensors, by identity
        if isinstance(model, torch.nn.Module):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                self.names.setdefault(id(tensor), name)

    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules that running it might change, by path."""
        return dict(self.model.named_modules()) if isinstance(self.model, torch.nn.Module) else {}

    def grad_mode(self) -> Any:
        """How gradients are set while it runs."""
        return torch.no_grad()

    #: What is exported, and what to do instead of changing an object beside it.
    kind = "model"
    instead = "Return the new value; where it is kept for later calls, run the model once before exporting it."

    def holds(self, owner: Any) -> bool:
        """Whether an object is one whose changes are looked at, and undone, when it has run: a module does not set."""
        return any(owner is m or any(owner is part for part in _parts_of(m)) for m in self.modules().values())

    def refusal(self, writes: Sequence[Any]) -> UserError | None:
        """Why what it changes beside tensors prevents the export: a program has no such objects, and what capture puts
        into them are stand-ins."""
        found = next((write for write in writes if not self.holds(write.owner)), None)
        if found is None:
            return None
        return UserError(
            f"the {self.kind} cannot be exported: running it changes {_shown(found.what)}, which an exported program "
            "does not have",
            where=found.where, todo=self.instead,
        )  # fmt: skip

    def run(self, args: Any, kwargs: Any) -> Any:
        """The model's result, with stand-ins for what the graph computes.

        Raises:
            UserError: the call is not one graph, or does something beside it.
        """
        with compiling():
            import dynamo_capture

        report = Report()

        @dynamo_capture.supports_dynamic_shapes
        def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            self.graph, self.inputs = gm, list(inputs)
            env: Envelope = gm.meta["envelope"]
            self.outputs = [_stand_in(desc.spec) for desc in env.outputs]
            refusal = self.refusal(gm.meta.pop("writes", ()))

            def stand_ins(*_: Any) -> list[Any]:
                if refusal is not None:
                    raise refusal  # before anything of it is written
                return list(self.outputs)

            return stand_ins

        modules = self.modules()
        before = {name: _state(m) for name, m in modules.items()}
        compiled: Any = dynamo_capture.optimize(self.model, backend, options=self.options, report=report)
        compiled.__quintet_optimizer__.exporting = True
        try:
            with self.grad_mode():
                result = compiled(*args, **kwargs)
        except NotCompiled as error:
            raise _refused(error) from error
        except Unsupported as error:
            raise _refused(error) from error
        finally:
            changed = [
                (m, path, *row) for path, m in modules.items() for row in _put_back(m, before[path])
            ]
        if self.graph is None:
            reason = report.verdict.removeprefix("eager: ")
            raise UserError(f"the model cannot be exported: nothing of it was captured ({reason})")
        _refuse_settings(changed)
        return result


class _Step(_Capture):
    """Captures one step of training, and leaves gradients and optimizers as they were."""

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        super().__init__(model, options)
        self.state = StepState(model)
        self.names = self.state.names

    def modules(self) -> dict[str, torch.nn.Module]:
        return {
            f"{name}.{path}" if path else name: m
            for name, module in self.state.modules.items() for path, m in module.named_modules()
        }  # fmt: skip

    def grad_mode(self) -> Any:
        return torch.enable_grad()

    kind = "step"
    instead = "Leave that to the loop around the step, or keep the number in a tensor that the step writes."

    def holds(self, owner: Any) -> bool:
        """What is set on optimizers is looked at when it has run, too."""
        return super().holds(owner) or self.state.is_of_optimizer(owner)

    def refusal(self, writes: Sequence[Any]) -> UserError | None:
        """What a step trains has to be known, for gradients are put back."""
        trained = {id(p) for p in self.state.parameters()}
        for value, desc in zip(self.inputs, self.graph.meta["envelope"].inputs, strict=True):  # type: ignore[union-attr]
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf and id(value) not in trained:
                return UserError(
                    f"the step cannot be exported: the parameter {desc.source} is not found from the function",
                    todo="Let the function hold the model or the optimizer: a variable around it, or its object's own.",
                )
        return super().refusal(writes)

    def run(self, args: Any, kwargs: Any) -> Any:
        """As :meth:`_Capture.run`. Parameters have gradients of zeros meanwhile: of a step that takes them away first
        none is an input of the graph; one that ends by that is captured without."""
        gradients, states = self.state.gradients(), self.state.optimizer_states()
        try:
            result, used = self._captured(args, kwargs)
        except BaseException:
            with contextlib.suppress(UserError):  # what went wrong first is told
                self.state.put_back(gradients, states)
            raise
        self.state.put_back(gradients, states)
        if used:
            name = self.names.get(id(used[0]), "a parameter")
            raise UserError(
                f"the step cannot be exported: it goes on from the gradient of {name} that the call before it left",
                todo="Begin the step with zero_grad(), with set_to_none=True as by default.",
            )
        self._forget_unread(result)
        return result

    def _captured(self, args: Any, kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        """The result, and the parameters whose gradients one call would leave to the next."""
        marks = self.state.mark_gradients()
        result = super().run(args, kwargs)
        used = [p for p, mark in marks.items() if any(value is mark for value in self.inputs)]
        if used and all(p.grad is None for p in marks):
            for parameter in marks:
                parameter.grad = None
            result = super().run(args, kwargs)
            used = [p for p in marks if p.grad is not None]
        return result, used

    def _forget_unread(self, result: Any) -> None:
        """Leave out of the graph what it computes for nobody: gradients that only ``.grad`` would hold."""
        leaves: list[Any] = []
        trees.flatten(result, leaves, _is_leaf)
        kept = [k for k, out in enumerate(self.outputs) if any(leaf is out for leaf in leaves)]
        gm = self.graph
        assert gm is not None
        env: Envelope = gm.meta["envelope"]
        node = gm.graph.output_node()
        node.args = (tuple(node.args[0][k] for k in kept),)  # type: ignore[index,call-overload]
        gm.recompile()
        gm.meta["envelope"] = env.replace(outputs=tuple(env.outputs[k] for k in kept))
        self.outputs = [self.outputs[k] for k in kept]


def _refuse_settings(changed: list[tuple[torch.nn.Module, str, str, Any, Any]]) -> None:
    for module, path, name, old, new in changed:
        full = f"{path}.{name}" if path else name
        todo = "Pass the value as an argument and return the new one, or write into a registered buffer."
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            todo = f"Write into the tensor instead: self.{name}.copy_(...)."
        raise UserError(
            f"the model cannot be exported: running it sets its attribute {full!r}, which an exported program does not "
            "have",
            where=_setting(type(module), name), todo=todo,
        )  # fmt: skip


def _setting(kind: type, name: str) -> SourceLoc | None:
    """The first line that sets an attribute of ``self`` in the methods of a class, but for ``__init__``."""
    for owner in kind.__mro__:
        for method, function in vars(owner).items():
            if not isinstance(function, types.FunctionType) or method == "__init__":
                continue
            try:
                lines, first = inspect.getsourcelines(function)
                tree = ast.parse(textwrap.dedent("".join(lines)))
            except (OSError, TypeError, SyntaxError):
                continue
            for node in ast.walk(tree):
                if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del))):
                    continue
                if node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self":
                    return SourceLoc(function.__code__.co_filename, first + node.lineno - 1, method)
    return None


#: What the hint of such breaks ends with, and no exported graph does.
_BY_OPTION = (
    " With the option data_dependent such numbers and sizes stay in the graph, where nothing is asked about them."
)


def _refused(error: Unsupported) -> UserError:
    return UserError(
        f"the model cannot be exported as one graph: {error.reason.replace(_BY_OPTION, '')}", where=error.where,
        todo="Change that line, or take it out of what is exported.",
    )  # fmt: skip


def _stand_in(spec: Any) -> Any:
    """What stands for a result while the program runs to its end: no numbers, should it print them."""
    if isinstance(spec, TensorSpec):
        def number(size: Any) -> int:
            e = expr_of(size)
            return size if e is None else int(size.ctx.hint(e))

        shape, strides = [number(s) for s in spec.shape], [number(s) for s in spec.strides]
        made = torch.empty_strided(shape, strides, dtype=spec.dtype, device=spec.device)
        flat = made.as_strided((made.untyped_storage().nbytes() // made.itemsize,), (1,))
        flat.fill_(math.nan if spec.dtype.is_floating_point or spec.dtype.is_complex else 0)
        return made
    return spec if expr_of(spec) is None else _SizeOf(spec.ctx.hint(expr_of(spec)))


_PARTS = ("_parameters", "_buffers", "_modules")


def _state(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    own = {name: value for name, value in module.__dict__.items() if name not in _PARTS}
    return {"": own, **{part: dict(module.__dict__[part]) for part in _PARTS}}


def _parts_of(module: torch.nn.Module) -> list[Any]:
    """The dictionaries in which a module has its attributes, parameters and buffers."""
    own = module.__dict__
    return [own, *(own[part] for part in _PARTS)]


def _shown(what: str) -> str:
    """A place as capture names it, in the program's words."""
    return re.sub(r"\.__dict__\['(\w+)'\]", r".\1", re.sub(r"\b[LG]\['(\w+)'\]", r"\1", what))


def _put_back(module: torch.nn.Module, before: dict[str, dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Undo what was set on a module; ``(name, old, new)`` of each."""
    changed = []
    for part, old in before.items():
        now = module.__dict__ if part == "" else module.__dict__[part]
        for name in [n for n in now if part or n not in _PARTS]:
            if name not in old or now[name] is not old[name]:
                changed.append((name, old.get(name), now[name]))
                if name in old:
                    now[name] = old[name]
                else:
                    del now[name]
        for name in old.keys() - now.keys():
            changed.append((name, old[name], None))
            now[name] = old[name]
    return changed


# ---- assembling ------------------------------------------------------------------------------------------------------


def _assembled(
    captured: _Capture, result: Any, positional: list[str], keywords: list[str], takes: Any, names: list[str],
    taken: list[Any], dims: list[dict[int, Dim]], options: Options,
) -> Exported:  # fmt: skip
    with compiling():
        import aot_autograd

    gm = captured.graph
    assert gm is not None
    torch_env: Envelope = gm.meta["envelope"]
    try:
        with captured.grad_mode():
            env, own = aot_autograd.whole_graph(gm, captured.inputs, captured.options)
    except Unsupported as error:
        raise _refused(error) from error
    sources, weights = _sources(captured, env, own, taken)
    numbers = {
        str(desc.spec): what for desc, (kind, what) in zip(env.inputs, sources, strict=True) if kind == "number"
    }
    bound, needs = _check_dims(torch_env, captured.inputs, taken, dims, set(numbers))
    if numbers:
        env, needs = _settled(env, needs, set(numbers), options)
    rows = iter(dims)
    inputs = []
    for name, leaf in zip(names, taken, strict=True):
        if not isinstance(leaf, torch.Tensor):
            inputs.append(Input(name, value=leaf))
            continue
        row = next(rows)
        shape = tuple(row[at].name if at in row else size for at, size in enumerate(leaf.shape))
        inputs.append(Input(name, dtype_name(leaf.dtype), str(leaf.device), shape))
    leaves: list[Any] = []
    gives = trees.flatten(result, leaves, _is_leaf)
    results = _results(captured, torch_env, env, leaves)
    for index, _ in env.mutations:
        if sources[index][0] == "weight":  # the program's own from now on
            weights[sources[index][1]] = weights[sources[index][1]].clone()
    used = list({dim.name: dim for row in dims for dim in row.values()}.values())
    contract = Contract(
        tuple(positional), tuple(keywords), takes, tuple(inputs), gives, tuple(results), tuple(used), tuple(sources),
        bound, tuple(sources[index][1] for index, _ in env.mutations if sources[index][0] == "argument"),
        tuple((text, _readable(text, numbers)) for text in needs),
    )  # fmt: skip
    return Exported(env, contract, weights, options)


def _sources(
    captured: _Capture, env: Envelope, own: Mapping[int, torch.Tensor], taken: list[Any]
) -> tuple[list[tuple[str, Any]], dict[str, torch.Tensor]]:
    """Where each input of the graph comes from, and the tensors that do not come with a call, by qualified name."""
    known = {id(leaf): at for at, leaf in enumerate(taken) if isinstance(leaf, torch.Tensor)}
    by_path = {desc.source: value for desc, value in zip(env.inputs, captured.inputs, strict=False)}
    sources: list[tuple[str, Any]] = []
    weights: dict[str, torch.Tensor] = {}
    for at, desc in enumerate(env.inputs):
        if desc.kind == "rng_seed":
            sources.append(("seed", str(desc.spec.device)))  # type: ignore[union-attr]
            continue
        value = captured.inputs[at] if at < len(captured.inputs) else own[at]
        if not isinstance(value, torch.Tensor):
            sources.append(("number", _number(captured, desc.source, value, by_path, weights)))
            continue
        if id(value) in known:
            sources.append(("argument", known[id(value)]))
            continue
        name = captured.names.get(id(value)) or _free_name(desc.source or desc.name, weights)
        weights[name] = value.detach()
        sources.append(("weight", name))
    return sources, weights


def _number(
    captured: _Capture, source: str | None, value: Any, by_path: Mapping[str | None, Any],
    weights: dict[str, torch.Tensor],
) -> str:  # fmt: skip
    """The weight of no dimensions that holds a number which a step takes."""
    number = number_named(source)
    tensor = by_path.get(number.path)
    if not isinstance(captured, _Step) or number.of_tensor and not isinstance(tensor, torch.Tensor):
        raise UserError(f"the model cannot be exported: it computes with the number {source}, which changes")
    if isinstance(tensor, torch.Tensor):
        return captured.names.get(id(tensor)) or _free_name(number.path, {})
    name = re.sub(r"\[(['\"]?)(.*?)\1\]", r".\2", number.path.removeprefix("self."))
    plain = number.value(value)
    weights[name] = torch.tensor(plain, dtype=torch.float64 if isinstance(plain, float) else torch.int64)
    return name


def _free_name(text: str, taken: Mapping[str, Any]) -> str:
    """A name for a tensor that is no parameter or buffer."""
    base = "constant." + "".join(c if c.isalnum() or c in "._" else "_" for c in text)
    name, count = base, 1
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    return name


def _results(
    captured: _Capture, torch_env: Envelope, env: Envelope, leaves: list[Any]
) -> list[Result]:  # fmt: skip
    """What each leaf of the model's result is."""
    aliases = {alias.output_index: alias for alias in env.aliases}
    plain = iter(k for k, desc in enumerate(env.outputs) if desc.kind == "output")
    by_output: list[Result] = []
    for at, desc in enumerate(torch_env.outputs):
        spec = desc.spec
        if not isinstance(spec, TensorSpec):
            e = expr_of(spec)
            by_output.append(Result("literal", value=spec) if e is None else Result("size", value=str(e)))
            continue
        alias = aliases.get(at)
        if alias is None:
            kind, index, view = "output", next(plain), None
        else:
            kind, index, view = alias.base_kind, alias.base_index, alias.view
        base = (env.outputs if kind == "output" else env.inputs)[index].spec
        shape = tuple(map(_size, spec.shape))
        if view is None:
            by_output.append(Result(kind, index, dtype=dtype_name(spec.dtype), shape=shape))
            continue
        offset = view.storage_offset - base.storage_offset  # type: ignore[union-attr]
        strides = tuple(map(_size, view.strides))
        by_output.append(Result(kind, index, None, dtype_name(view.dtype), shape, strides, _size(offset)))
    found: list[Result] = []
    for leaf in leaves:
        place = next((k for k, out in enumerate(captured.outputs) if out is leaf), None)
        if place is not None:
            found.append(by_output[place])
        elif not isinstance(leaf, torch.Tensor):
            found.append(Result("literal", value=leaf))
        else:
            found.append(_given(captured, env, leaf))
    return found


def _given(captured: _Capture, env: Envelope, leaf: torch.Tensor) -> Result:
    """A result that is an input of the graph as it is."""
    at = next((k for k, value in enumerate(captured.inputs) if value is leaf), None)
    if at is None:
        raise UserError(
            "the model cannot be exported: it returns a tensor that it is given and does not compute with",
            todo="Leave it out of the result.",
        )
    shape = tuple(map(_size, env.inputs[at].spec.shape))  # type: ignore[union-attr]
    return Result("input", at, dtype=dtype_name(leaf.dtype), shape=shape)


def _size(size: Any) -> int | str:
    e = expr_of(size)
    return size if e is None else str(e)


# ---- sizes -----------------------------------------------------------------------------------------------------------


def _check_dims(
    torch_env: Envelope, given: Sequence[Any], taken: list[Any], dims: list[dict[int, Dim]], numbers: Set[str]
) -> tuple[dict[str, str], list[str]]:
    """Which dimension each symbol of the graph is, and what has to hold of the symbols that are ``numbers``.

    Raises:
        UserError: the program needs more of a dimension than ``dynamic_shapes`` says.
    """
    rows = iter(dims)
    wanted = {id(leaf): next(rows) for leaf in taken if isinstance(leaf, torch.Tensor)}
    known = SymbolContext()
    sizes: dict[str, ex.Expr] = {}
    replaced: dict[ex.Expr, Any] = {}
    bound: dict[str, str] = {}
    context = torch_env.symbols.context
    for desc, value in zip(torch_env.inputs, given, strict=False):
        for at, dim in wanted.get(id(value), {}).items():
            size = desc.spec.shape[at]  # type: ignore[union-attr]
            if dim.name not in sizes:
                hint = int(value.shape[at])
                sizes[dim.name] = known.declare(dim.name, hint, dim.min, dim.max).expr
            e = expr_of(size)
            if e is None:
                raise UserError(
                    f"dynamic_shapes says that {dim.name} may differ, and the program needs it to be {size}",
                    todo="Leave it out of dynamic_shapes.",
                )
            if e.is_symbol:
                replaced[e] = sizes[dim.name]
                bound.setdefault(e.symbol_name, dim.name)
    needs: list[str] = []
    if context is None:
        return bound, needs
    for info in context:  # a symbol that was found equal to another one
        own = context.simplify(ex.symbol(info.name))
        if own in replaced:
            replaced.setdefault(ex.symbol(info.name), replaced[own])
    for guard in context.guards:
        if _is_of(guard.expr, numbers):
            needs.append(to_python(guard.expr))
            continue
        needed = ex.substitute(guard.expr, replaced)
        if known.statically_known(needed) is not True:
            raise UserError(
                f"the program needs {needed}, which dynamic_shapes does not promise "
                f"({'; '.join(map(str, {d.name: d for r in dims for d in r.values()}.values()))}): {guard.reason}",
                where=guard.where,
                todo="Narrow the range, give dimensions that are equal one name, or leave the dimension out.",
            )
    return bound, needs


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _is_of(expr: ex.Expr, numbers: Set[str]) -> bool:
    return bool(expr.symbols) and all(symbol.symbol_name in numbers for symbol in expr.symbols)


def _settled(env: Envelope, needs: list[str], numbers: Set[str], options: Options) -> tuple[Envelope, list[str]]:
    """The graph as a file would give it back, and all that lowering it asks of ``numbers``, which each call checks.

    What is known decides what else is asked: it is lowered until nothing is.
    """
    with compiling():
        from prims.ir import from_json, to_json

    text = to_json(env, indent=None)
    for _ in range(8):
        again = from_json(text, env.constants)
        learn_needs(again, needs)
        lower_for_devices(again, options, Report())
        context = again.symbols.context
        assert context is not None
        asked = [to_python(guard.expr) for guard in context.guards if _is_of(guard.expr, numbers)]
        if set(asked) <= set(needs):
            break
        needs = list(dict.fromkeys([*needs, *asked]))
    return again, needs


def _readable(text: str, numbers: Mapping[str, str]) -> str:
    """A condition in the names of weights."""
    return re.sub(r"fbits\((\w+)\)|\b(s\d+)\b", lambda found: numbers[found[1] or found[2]], text)
