"""One frame from request to cache entry: interpret, compile the graph, assemble the code."""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from bytecode import Label, TryBegin, TryEnd
from torch.autograd import forward_ad

# Its Python code is generated when it is first run or printed: a backend that walks the graph never needs it.
from torch.fx._lazy_graph_module import _LazyGraphModule

from dynamo_capture import __version__, _native
from dynamo_capture.background import Held, Sizes, Unbound
from dynamo_capture.breaks import REASONS, BreakInfo, GraphBreak, SkipFrame, without_frames
from dynamo_capture.capture import Callees, Capture
from dynamo_capture.codegen import CodeGen
from dynamo_capture.contract import Contract
from dynamo_capture.covering import outline
from dynamo_capture.device_modes import entered_devices
from dynamo_capture.emitted import Again
from dynamo_capture.graph_builder import GraphInput
from dynamo_capture.interpreter.assuming import assume, written_if_as_assumed
from dynamo_capture.interpreter.frame import class_namespace, inline_call
from dynamo_capture.interpreter.root import LoopEnd, RestartCapture, RootFrame
from dynamo_capture.request import FrameRequest
from dynamo_capture.resume import resume_code
from dynamo_capture.running import Running
from dynamo_capture.sizes import add_size_guards, fixed_though_marked, float_symbols, symbol_operands
from dynamo_capture.sources import Source
from dynamo_capture.spent import let_go_of_own_leaves, let_go_of_spent
from dynamo_capture.state import CapturedGraph, CodeState
from dynamo_capture.stored.log import GuardLog, Reads
from dynamo_capture.stored.writing import Kept
from dynamo_capture.values.base import ObservedError
from dynamo_capture.values.classes import classes_of_a_region
from dynamo_capture.values.drawn import comes_too_early
from dynamo_capture.values.iterators import GeneratorValue
from dynamo_capture.values.objects import ExceptionValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.written import too_early
from prims.debug import keep
from prims.eager import warn_user
from prims.errors import DataDependentError, NotCompiled
from prims.forking import lock
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.ir.blame import blaming
from prims.logs import say
from prims.options import Options
from prims.records import record
from prims.report import Report
from prims.settings import kept_settings, says_nothing_to_graphs
from prims.spec import AbstractMode, plain_saving

__all__ = ["Translation", "translate"]

#: Restarts of one capture after which it is given up.
_MAX_RESTARTS = 8
_CALLEES = Callees(inline_call, class_namespace, assume)


@record
class Translation:
    """The finished replacement of a frame."""

    code: types.CodeType
    tree: Any
    captured: CapturedGraph
    #: Whether it ends in a call of a resume function.
    goes_on: bool
    #: What it takes to store it, where that was asked for.
    kept: Kept | None = None
    #: The code of a generator that it makes and leaves to be run later, by the program.
    later: types.CodeType | None = None
    #: What is still to be done, where the backend has put its work off (:class:`dynamo_capture.background.Later`).
    unbound: Unbound | None = None


#: The same of the graph's inputs, with what is known of each.
CompileGraph = Callable[[torch.fx.GraphModule, list[GraphInput]], Callable[..., Any]]


def translate(
    request: FrameRequest, compile_graph: CompileGraph, options: Options, report: Report | None, state: CodeState,
    contract: Contract, keeps: bool = False,
) -> Translation:  # fmt: skip
    """Capture one frame.

    Args:
        contract: what may become symbols of the graph.
        keeps: note what it takes to store the program.

    Raises:
        SkipFrame: the frame is left to eager.
        Unsupported: with ``fullgraph``, at the first break.
    """
    break_at: RestartCapture | None = None
    raises: tuple[str, Any] | None = None
    kinds: list[tuple[Source, type]] = []
    for _ in range(_MAX_RESTARTS):
        state.sizes.start()
        tree = GuardLog(portable=keeps)
        between = state.reads_between
        unbacked, takes_numbers = contract.unbacked and not between, contract.takes_numbers and not between
        tx = Capture(request, tree, state.sizes, _CALLEES, unbacked, takes_numbers)
        tx.eager_bits = options.numerics == "eager_exact"
        tx.guards.reads = Reads.none() if keeps else None
        brk = None
        try:
            root = RootFrame(tx, break_at, lambda point, line: resume_code(request.code, point, line))
            with _isolated_modes(), plain_saving(), AbstractMode(symbolic_calls=False) as mode, tx.inference:
                tx.mode = mode
                tx.drawn = mode.drawn
                with classes_of_a_region():
                    brk = root.interpret()
                if isinstance(brk, GraphBreak):
                    # What a restart ends at was judged where it came from, with what counted there.
                    _refuse_break(tx, brk, request, options, judged=break_at is not None)
                if isinstance(brk, GraphBreak):
                    if break_at is not None:
                        root.guard_kinds(kinds)
                    if brk.guard is not None:
                        brk.guard(tx)
                plan, finish = root.emit_return() if brk is None else root.emit_break(brk)
                if tx.levels:
                    text = "inside dual numbers, or a derivative of torch.func: " + (brk.text if brk else "it returns")
                    where = brk.where if brk else None
                    raise SkipFrame(text, "Differentiate a function that is captured whole.", where=where)
                root.check_generators(plan)
                root.check_leaves(plan)
                tx.inference.check_left(plan)
                if (condition := written_if_as_assumed(tx, plan.outputs)) is not None:
                    raise RestartCapture(condition.step, condition.brk)
                if (end := too_early(tx) or comes_too_early(tx)) is not None:
                    raise RestartCapture(end.step, end.brk)
            return _finish(request, compile_graph, options, report, tx, root, brk, plan, finish)
        except RestartCapture as restart:
            if break_at is not None and restart.step >= break_at.step:
                _refuse_break(tx, restart.brk, request, options, whole=True)
                raise SkipFrame.at_break(restart.brk) from None
            without_frames(restart, tx.outer_error)
            _refuse_break(tx, restart.brk, request, options)
            break_at, kinds = restart, tx.guards.variables
            continue
        except ObservedError as error:
            without_frames(error, tx.outer_error)
            text = error.value.text() if isinstance(error.value, ExceptionValue) else "an exception"
            raises = f"the program raises {text}", tx.location()
            step = root.raised if tx.graph.op_count and not options.fullgraph else None
            if step is None or (break_at is not None and step >= break_at.step):
                raise SkipFrame(raises[0], REASONS["QB19"].hint, where=raises[1], once=True) from None
            break_at = RestartCapture(step, GraphBreak("QB19", text))  # what comes before it is a graph
            break_at.brk.where = tx.location()
        except SkipFrame as skip:
            if raises is not None:  # the graph cannot end before that
                raise SkipFrame(raises[0], REASONS["QB19"].hint, where=raises[1], once=True) from None
            if tx.refuses_breaks and not skip.once:
                text = f"{_REFUSED}, but the frame is left to eager: {skip.reason}"
                raise NotCompiled(text, where=skip.where) from None
            raise
        except DataDependentError as error:  # of a stage behind capture
            if state.reads_between or not (tx.unbacked or tx.takes_numbers):
                raise
            without_frames(error, tx.outer_error)
            state.reads_between = True
            break_at = None
        except ReferenceError as gone:  # of :class:`ResumeInfo`
            raise SkipFrame(str(gone), "Keep the function until its calls have ended.") from None
        except GraphBreak as late:
            without_frames(late, tx.outer_error)
            why = "" if brk is None else f"where the graph would end because of this: {brk.text}"
            late.where = late.where or (tx.location() if brk is None else brk.where)
            _refuse_break(tx, late, request, options, whole=True)
            raise SkipFrame.at_break(late, why) from None
        finally:
            tx.close()
    raise SkipFrame("capture kept breaking at earlier instructions", "Please report it.")


_REFUSED = "error_on_graph_break is set"


def _refuse_break(
    tx: Capture, brk: GraphBreak, request: FrameRequest, options: Options, *, judged: bool = False, whole: bool = False
) -> None:
    """Raise at a break where breaks are errors.

    Args:
        judged: whether the region minds it was asked before.
        whole: the frame is left to eager for it, which ``fullgraph`` refuses elsewhere.
    """
    info = BreakInfo(brk.number, brk.text, brk.where)
    text = f"but the graph breaks in {request.code.co_qualname}: {info.describe()}"
    error = NotCompiled(f"fullgraph=True, {text}")
    if not options.fullgraph or whole:
        if judged or not tx.refuses_breaks:
            return
        error = NotCompiled(f"{_REFUSED}, {text}")
    error.where = brk.where
    try:
        raise error from None
    finally:
        del error  # whose traceback refers to this frame


@contextmanager
def _isolated_modes() -> Any:
    """Grad mode and autocast as they were, whatever the captured program sets them to."""
    grad = torch.is_grad_enabled()
    cache = torch.is_autocast_cache_enabled()
    devices = ("cpu", "cuda")
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    try:
        with kept_settings():
            yield
    finally:
        torch._C._set_grad_enabled(grad)
        torch.set_autocast_cache_enabled(cache)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def _finish(
    request: FrameRequest,
    compile_graph: CompileGraph,
    options: Options,
    report: Report | None,
    tx: Capture,
    root: RootFrame,
    brk: GraphBreak | LoopEnd | None,
    plan: Any,
    emit: Callable[[CodeGen], None],
) -> Translation:
    builder = tx.graph
    for (setter, *leading), (at_entry, now) in tx.modes.items():
        if at_entry != now and not says_nothing_to_graphs(setter):
            builder.state_call(setter, [*leading, at_entry])
    plan.spent = let_go_of_spent(tx, plan.outputs, brk is None) if tx.went_back else {}
    plan.own_leaves = let_go_of_own_leaves(tx, plan.outputs)
    builder.finish(plan.outputs)
    name = request.code.co_qualname.replace(".<locals>", "")
    where = f"{request.code.co_filename}:{request.code.co_firstlineno} in {request.code.co_qualname}"
    gm, compiled, undone, may_run_again = _compiled(tx, plan, name, where, compile_graph, report)
    drawn = tuple(sorted(map(str, tx.drawn))) if may_run_again else ()
    checked = tuple(plan.output_index(each.condition) for each in tx.assumed)
    running = Running(tuple(undone), drawn, bool(tx.devices.at_entry), _settings(tx), tx.inference.entered, checked)
    inputs = [inp.source for inp in builder.inputs] if compiled is not None else []
    tree = tx.guards.tree
    slots: dict[int, int] = {}
    input_slots = [
        source.key[0] if source.kind == "first" else slots.setdefault(source.node(tree), len(slots))
        for source in inputs
    ]
    source_slots = [slots.setdefault(source.node(tree), len(slots)) for source in plan.sources]
    free = request.code.co_freevars if may_run_again else ()
    cells = [Source("closure_cell", None, (i, name)).node(tree) for i, name in enumerate(free)]
    cell_slots = [slots.setdefault(node, len(slots)) for node in cells]
    cg = CodeGen(plan, tuple(request.args), source_slots)
    tx.first.emit(cg, again=may_run_again)
    begin = TryBegin(Label(), push_lasti=False, stack_depth=0) if may_run_again else None
    run: Any = None
    together: list[int] = []
    if compiled is not None:
        for tensor in tx.side.gradients_dropped():
            cg.load_const(None)
            cg.load(tensor)
            cg.store_attr("grad")
        if begin is not None:
            cg.instructions.append(begin)
        run = _native.activate(running.around(compiled), None)
        together = cg.call_graph(run, input_slots, cell_slots)
        if begin is not None:
            cg.instructions.append(TryEnd(begin))
    emit(cg)
    if begin is not None:
        cg.instructions.append(begin.target)
        cg.emit("STORE_FAST", "___error")
        tx.first.emit_put_back(cg)
        cg.begin_call(Again(request.code, tuple(request.args), report, where))
        names = ["___error", *request.args, *map(cg.parameter_name, cell_slots)]
        for parameter in names:
            cg.emit("LOAD_FAST", parameter)
        cg.end_call(len(names))
        cg.emit("RETURN_VALUE")
    nodes = list(slots)
    apart = sorted(set(range(len(nodes))).difference(together))
    code = cg.assemble(request.code, apart, together, _stack_size(cg))
    _final_guards(tx)
    tree.collect([nodes[i] for i in [*apart, *together]])
    state_brk = None
    if isinstance(brk, GraphBreak):
        state_brk = BreakInfo(brk.number, brk.text, brk.where, place=root.place())
    if report is not None:
        _tell_of_fixed(tx, report)
    captured = CapturedGraph(name, gm, tx.guards.guards, state_brk, where, outline(tx, tree.rows))
    keep(options, report, f"captured {name}", lambda: _in_full(captured))
    if report is not None and gm is not None:
        report.guarded(name, captured.guards)
    say("guards", report, lambda: "\n  ".join([f"{name} at {where} assumes", *map(str, captured.guards)]))
    kept = None
    if tx.guards.reads is not None:
        text = {"name": name, "where": where, "goes_on": brk is not None, "compiled": gm is not None}
        kept = Kept(request, tree, tx.guards.reads, code, run, gm, compiled, running, text, state_brk)
    left = (value.frame for value in plan.built if isinstance(value, GeneratorValue) and not value.finished)
    later = next((frame.code for frame in left if not frame.started), None)
    unbound = None
    if isinstance(compiled, Held):
        symbols = tx.symbols.symbols
        operands, floats = (symbol_operands(tx), frozenset(float_symbols(tx))) if symbols else ({}, frozenset())
        sizes = Sizes(tx.symbols, operands, len(tx.symbols.guards), floats)
        unbound = Unbound(code, tree.tree, captured, running, run, bool(builder.maybe_mutated()), sizes)
    return Translation(code, tree.tree, captured, brk is not None, kept, later, unbound)


def _tell_of_fixed(tx: Capture, report: Report) -> None:
    """Sizes that were to be symbolic and are not: in the report, and a warning."""
    for text, where in fixed_though_marked(tx):
        if report.warns(text):
            report.fallback("capture", text, where, eager=False)
            warn_user(text + (f"\n  at {where}" if where is not None else ""))


def _compiled(
    tx: Capture, plan: Any, name: str, where: str, compile_graph: CompileGraph, report: Report | None
) -> tuple[torch.fx.GraphModule | None, Any, Sequence[int], bool]:
    """The captured graph, what the backend made of it, and what :func:`_all_or_nothing` says; Nones where nothing is to
    be computed."""
    builder = tx.graph
    if builder.has_tensor_ops():
        gm = _graph_module(tx, plan.outputs, name)
        if report is not None:
            calls = [n for n in gm.graph.nodes if n.op.startswith("call")]
            called = lambda node: str(getattr(node.target, "__name__", node.target))
            report.graph_of(name, calls, called, dialect="torch", where=where)
        with tx.inference.around():
            compiled = compile_graph(gm, builder.inputs)
        if not callable(compiled):
            from prims.errors import UserError

            raise UserError(f"the backend returned {compiled!r}", todo="It must return a callable.")
        return gm, compiled, *_all_or_nothing(compiled, tx)
    if plan.outputs:
        gm = _graph_module(tx, plan.outputs, name)
        return gm, blaming(gm) if tx.guards.reads is not None else gm.forward, (), False
    return None, None, (), False


def _all_or_nothing(compiled: Callable[..., Any], tx: Capture) -> tuple[Sequence[int], bool]:
    """What a compiled graph writes and has to be put back when it raises; whether the frame is then run again eagerly.

    Raises:
        RestartCapture: it has to be two graphs for that.
    """
    written = tx.graph.maybe_mutated()
    raising = tx.raising
    seen = raising.met is not None
    if not written or getattr(compiled, "writes_when_done", False) is True:
        return (), bool(seen or written or tx.drawn)
    step = raising.between()
    if step is not None:
        reason = "an input is written where autograd sees it, and another operator may raise where that is noticed"
        raise RestartCapture(step, GraphBreak("QB08", reason))
    if not seen or raising.traced is not None:
        return (), False
    return written, True


def _settings(tx: Capture) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """By what calls the thread's modes are as the frame found them."""
    return tuple((setter, (*leading, at_entry)) for (setter, *leading), (at_entry, _) in tx.modes.items())


def _in_full(captured: CapturedGraph) -> str:
    """The graph, its guards and where it breaks."""
    graph = "no tensor operations" if captured.graph is None else str(captured.graph.meta.get("envelope", ""))
    lines = [f"# {captured.where}", graph, *(f"# guard: {guard}" for guard in captured.guards)]
    if captured.brk is not None:
        lines += [f"# break: {line}" for line in captured.brk.describe().splitlines()]
    return "\n".join(lines)


def _stack_size(cg: CodeGen) -> int:
    """An upper bound: everything that is ever pushed, in one go."""
    return sum(1 for inst in cg.instructions if getattr(inst, "name", "").startswith(("LOAD", "PUSH", "COPY"))) + 8


def _final_guards(tx: Capture) -> None:
    tx.guards.finish()
    with tx.devices.as_at_entry():
        tx.guards.global_state()
    if tx.devices.at_entry:  # that there are none is part of the global state
        tx.guards.state(entered_devices, tx.devices.at_entry, "the default devices")
    # A graph would drop the tangents of dual numbers.
    level = Source("item", Source("constant", None, (forward_ad.__dict__,)), "_current_level")
    tx.guards.equals(level, -1, "the level of forward-mode differentiation")
    add_size_guards(tx)
    _guard_offsets(tx)
    _guard_aliasing(tx)
    _guard_distinct_objects(tx)


def _guard_offsets(tx: Capture) -> None:
    if tx.graph.reads_offsets:
        for inp in tx.graph.all_inputs or tx.graph.inputs:
            if isinstance(inp.value, TensorValue) and inp.source.kind != "first":
                tx.guards.offset(inp.source, inp.real)


def _guard_aliasing(tx: Capture) -> None:
    """Inputs that the graph writes into share no memory with its other inputs.

    Raises:
        SkipFrame: they do in this call.
    """
    mutated = tx.graph.mutated_inputs()
    mutated = [inp for inp in mutated if inp.source.kind != "first"]  # what is drawn has memory of its own
    tensors = [inp for inp in tx.graph.all_inputs if isinstance(inp.value, TensorValue) and inp.source.kind != "first"]
    if not mutated or len(tensors) < 2:
        return
    pointers = Counter(inp.real.untyped_storage().data_ptr() for inp in tensors)
    for inp in mutated:
        pointer = inp.real.untyped_storage().data_ptr()
        if pointer and pointers[pointer] > 1:
            text = f"{inp.source} is written into and shares memory with another input"
            raise SkipFrame(text, "Pass a clone() of one of them, or write to it outside of the compiled function.")
    tx.guards.no_overlap([inp.source for inp in mutated], [inp.source for inp in tensors])


def _guard_distinct_objects(tx: Capture) -> None:
    """An object that the region changes is not one of the others of its type that the region looked at."""
    written = [tensor for tensor in tx.side.tensors_written() if tensor.source is not None]
    if written:  # of any two different inputs, here and later, as pairs would take the square of their number
        inputs = [inp.value for inp in tx.graph.all_inputs or tx.graph.inputs]
        found = [v for v in (*written, *inputs) if isinstance(v, TensorValue) and v.source is not None]
        tensors = {v.source.node(tx.guards.tree): v.source for v in found}  # type: ignore[union-attr]
        if len(tensors) > 1:
            tx.guards.distinct(list(tensors.values()))  # type: ignore[arg-type]
    for value in tx.side.mutated_values():
        if value.source is None:
            continue
        cls = value.pytype
        same_type = [
            v for v in tx.known.values()
            if v is not value and v.source is not None and v.source is not value.source and v.mutable
            and not isinstance(v, (TensorValue, SymValue)) and v.pytype is cls
        ]  # fmt: skip
        for other in same_type:
            tx.guards.distinct([value.source, other.source])  # type: ignore[list-item]


class _GraphModule(_LazyGraphModule):
    """Its code is generated by one thread, even where several run it for the first time at once.

    Its ``forward`` is the graph alone: no hooks that the program has put on all modules, and an error of the program's
    is raised without a word on standard error about a traced module.
    """

    _generation = lock()

    def _lazy_forward(self, *args: Any) -> Any:
        self.real_recompile()
        return self.forward(*args)

    forward = _lazy_forward

    def real_recompile(self) -> None:
        with self._generation:
            super().real_recompile()


def _graph_module(tx: Capture, outputs: list[Any], name: str) -> torch.fx.GraphModule:
    """The graph as a module, with its envelope in ``gm.meta``."""
    builder = tx.graph
    gm = _GraphModule(torch.nn.Module(), builder.graph, "CapturedGraph")
    inputs = tuple(
        InputDesc(
            inp.node.name,
            "size" if isinstance(inp.value, SymValue) else inp.source.is_module_state or "input",
            inp.node.meta["spec"],
            isinstance(inp.real, torch.Tensor) and inp.real.requires_grad,
            str(inp.source),
        )
        for inp in builder.inputs
    )
    descs = tuple(OutputDesc("output", _spec_of(value)) for value in outputs)
    gm.meta["envelope"] = Envelope(
        dialect="torch",
        version=(1, 0),
        producer="dynamo_capture",
        producer_version=__version__,
        graph=gm.graph,
        inputs=inputs,
        outputs=descs,
        symbols=SymbolTable.from_inputs(inputs, tx.symbols),
        default_dtype=torch.get_default_dtype(),
    )
    gm.meta["name"] = name
    if tx.request.exporting:
        keywords = _keywords_of(tx.request)  # made for this call, and known to nobody else
        written = tx.side.written(tx.object_behind)
        gm.meta["writes"] = tuple(w for w in written if keywords is None or w.owner is not keywords)
    return gm


def _keywords_of(request: FrameRequest) -> Any:
    """The dictionary of a call's further keywords; None where its function takes none."""
    code = request.code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return request.args.get(code.co_varnames[count])


def _spec_of(value: Any) -> Any:
    if isinstance(value, TensorValue):
        return value.example.spec  # type: ignore[attr-defined]
    return value.example.node
