"""The stage's entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from aot_autograd.runtime.inference import build_inference
from aot_autograd.runtime.lazy import Compiler, LazyBackward, compile_or_run
from aot_autograd.runtime.stored import outside_autocast
from aot_autograd.trace.outcome import Joint, Outcome, finish_inference, finish_joint, trace
from prims.eager import run_instead
from prims.errors import Unsupported, UserError
from prims.forking import compiling
from prims.ir import Envelope
from prims.options import Options
from prims.report import Report
from prims.spec.unbacked import asks_data
from prims.stance import raises_defects

if TYPE_CHECKING:  # what graphs without gradients need not import
    from aot_autograd.partition.split import Partition

__all__ = [
    "PartitionFn", "aot_function", "inference_graph", "joint_graph", "partition_joint", "run_eagerly", "whole_graph",
]  # fmt: skip

#: ``partition_fn(joint, options)`` returns the forward values to save for the backward pass.
PartitionFn = Callable[[Joint, Options], Sequence[torch.fx.Node]]


def run_eagerly(env: Envelope, report: Report | None = None) -> Callable[..., Sequence[Any]]:
    """A compiler that compiles nothing: the ATen graph runs operator by operator."""
    return env.module().forward


def _phase(report: Report | None, name: str) -> AbstractContextManager[Any]:
    return nullcontext() if report is None else report.phase(name)


@compiling()
def aot_function(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    in_place_compiler: Compiler | None = None,
    partition_fn: PartitionFn | None = None,
    options: Options | None = None,
    report: Report | None = None,
) -> Callable[..., Any]:
    """Compile a torch-dialect graph ahead of time, its backward pass included.

    The result takes what ``gm`` takes and returns what ``gm`` returns: same structure, aliasing, mutations,
    ``requires_grad`` and gradients. It is specialised to the inputs' metadata and to the gradient mode of this
    call; guarding later calls is the front end's part.

    Args:
        gm: a module of public torch calls. ``gm.meta["envelope"]`` may hold symbolic input specs. Parameters and
            buffers of its own are read at every call.
        example_inputs: tensors and numbers, one per placeholder of ``gm``.
        fw_compiler: ``fw_compiler(envelope, report)`` returns a callable over the envelope's flat inputs that
            returns its flat outputs.
        bw_compiler: the same for the backward graph, called at its first run; ``fw_compiler`` by default.
        in_place_compiler: the same for a graph that may write the inputs that it changes itself, as nobody needs their
            old values after it; ``fw_compiler`` by default. Where it has done so it returns the input as the output.
        partition_fn: chooses what is saved for the backward pass, or kept for derivatives of its own;
            by default what the backward graph reads.
        options: see :class:`prims.options.Options`.
        report: collects graphs, fallbacks and times.

    Returns:
        The compiled callable, or ``gm.forward`` where the graph cannot be traced (with the reason in ``report``).

    Raises:
        UserError: an argument is not what it should be, or a compiler raised it.
        Unsupported: the graph cannot be traced and ``options.strict`` or ``options.fullgraph`` is set.
    """
    options = options if options is not None else Options()
    if not isinstance(gm, torch.fx.GraphModule):
        raise UserError(f"aot_function got a {type(gm).__name__}", todo="Pass a torch.fx.GraphModule.")
    compilers = {"fw_compiler": fw_compiler, "bw_compiler": bw_compiler, "in_place_compiler": in_place_compiler}
    for name, compiler in compilers.items():
        if compiler is not None and not callable(compiler):
            raise UserError(f"{name} is {compiler!r}", todo="Pass a function of (envelope, report).")
    count = sum(node.op == "placeholder" for node in gm.graph.nodes)
    if len(example_inputs) != count:
        raise UserError(
            f"{len(example_inputs)} example inputs for a graph of {count} inputs", todo="Pass one per placeholder."
        )
    try:
        with _phase(report, "aot"):
            outcome = trace(gm, example_inputs, options)
            if outcome.differentiable:
                _refuse_inference_tensors(example_inputs)
            joint = finish_joint(outcome) if outcome.differentiable and not outcome.leads_nowhere else None
            env = None if joint is not None else _whole(outcome, partition_fn, options, report)
            partition = None if joint is None else partition_joint(joint, partition_fn, options)
            if partition is not None:
                partition = _placed(partition, options, report)
    except UserError:
        raise
    except Exception as error:
        if raises_defects(options, report, error) or asks_data(error, gm.meta.get("envelope")):
            raise
        return _leave_to_eager(gm, error, options, report)
    if env is not None:
        with _phase(report, "compile"):
            compiled = _forward(compile_or_run(env, in_place_compiler or fw_compiler, options, report, "inference"))
        return build_inference(outcome, compiled, gm, options, report)
    assert joint is not None and partition is not None
    if in_place_compiler is not None and _may_write_inputs(joint, partition):
        fw_compiler, bw_compiler = in_place_compiler, bw_compiler or fw_compiler
    with _phase(report, "compile"):
        compiled = _forward(compile_or_run(partition.forward, fw_compiler, options, report, "forward"))
    from aot_autograd.runtime.planning import plan_training
    from aot_autograd.runtime.training import build_training

    counts = len(joint.tangents), len(partition.gradients)
    backward = LazyBackward(partition.backward, *counts, bw_compiler or fw_compiler, options, report)
    plan = plan_training(joint, partition, gm, options, report)
    if options.background:
        backward.prepare()
    return build_training(plan, compiled, backward, gm, joint.outcome.program.lifted, joint.still)


def _placed(partition: Partition, options: Options, report: Report | None) -> Partition:
    """The partition, with what is saved where the options want it; the report says how much that is."""
    placed, on_host = partition, 0
    if options.offload:
        from aot_autograd.partition.offload import offloaded

        placed, on_host = offloaded(partition, options)
    if report is not None:
        from aot_autograd.partition.peak import report_saved

        report_saved(report, partition, on_host)
    return placed


def _whole(
    outcome: Outcome, partition_fn: PartitionFn | None, options: Options, report: Report | None
) -> Envelope:  # fmt: skip
    """The graph of a program without gradients of its own; derivatives that it takes itself are within."""
    env = finish_inference(outcome)
    chooses = partition_fn is not None or options.memory_budget != 1.0 or bool(options.offload)
    if chooses and any("derivative" in node.meta for node in env.graph.nodes):
        from aot_autograd.partition.mincut import min_cut_partition
        from aot_autograd.partition.whole import compute_again

        env = compute_again(env, outcome, partition_fn or min_cut_partition, options)
        if options.offload:
            env = _placed_within(env, options, report)
    return env


def _placed_within(env: Envelope, options: Options, report: Report | None) -> Envelope:
    """The graph of a whole step, with what its derivatives take where the options want it; the report says how much."""
    from aot_autograd.partition.offload import offloaded_within

    env, count, on_host = offloaded_within(env, options)
    if report is not None and count:
        report.saved_for_backward(on_host, count, (), on_host)
    elif report is not None and options.numerics != "fast":
        reason = f"offload: derivatives that a graph takes itself are as they are under numerics={options.numerics!r}"
        report.fallback("aot_autograd", reason, eager=False)
    return env


def _may_write_inputs(joint: Joint, partition: Partition) -> bool:
    """Does nobody need an old value of an input that the forward graph changes, nor its memory for the new one?

    The backward graph gets copies of old values that it takes (``partition.split``), but may take a new value as it is.
    Of a change that autograd sees, the graph's output is a tensor with a history, and no input.
    """
    written = {output for _, output, _ in joint.outcome.mutations}
    seen = any(through for _, _, through in joint.outcome.mutations)
    return not seen and written.isdisjoint(at for kind, at in partition.saved if kind == "output")


def _refuse_inference_tensors(example_inputs: Sequence[Any]) -> None:
    """Eager knows which of them its backward pass needs, and refuses to save those alone; a partition saves others."""
    if any(isinstance(example, torch.Tensor) and example.is_inference() for example in example_inputs):
        raise Unsupported("an inference tensor beside one that needs a gradient")


def _forward(compiled: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """A compiled forward pass, ready for the autocast state in which it was captured and will be called."""
    return outside_autocast(compiled) if torch._C._is_any_autocast_enabled() else compiled


def _leave_to_eager(
    gm: torch.fx.GraphModule, error: Exception, options: Options, report: Report | None
) -> Callable[..., Any]:
    unsupported = isinstance(error, Unsupported)
    reason = error.reason if unsupported else f"{type(error).__name__}: {error}"  # type: ignore[attr-defined]
    where = error.where if unsupported else None  # type: ignore[attr-defined]
    # Hooks that the program has put on all modules are none of the graph's business.
    return run_instead(gm.forward, report, options, "aot_autograd", reason, where, cause=error)


@compiling()
def inference_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options | None = None
) -> Envelope:
    """The functional ATen graph of ``gm`` without its gradients.

    Raises:
        Unsupported: the graph cannot be traced.
    """
    return finish_inference(trace(gm, example_inputs, options or Options()))


@compiling()
def whole_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options | None = None
) -> tuple[Envelope, dict[int, torch.Tensor]]:
    """As :func:`inference_graph`, and the tensors that the graph takes beside ``gm``'s inputs, by input index.

    Raises:
        Unsupported: the graph cannot be traced.
    """
    outcome = trace(gm, example_inputs, options or Options())
    env = finish_inference(outcome)
    program, own = outcome.program, {}
    for index, desc in enumerate(env.inputs):
        if index >= program.arguments and desc.kind != "rng_seed":
            store, name = program.lifted.get(index, (program.tracer.constants, index))
            own[index] = store[name]  # type: ignore[index]
    return env, own


@compiling()
def joint_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options | None = None
) -> Joint:
    """The joint forward and backward ATen graph of ``gm``.

    Raises:
        UserError: no result of ``gm`` needs a gradient.
        Unsupported: the graph cannot be traced.
    """
    outcome: Outcome = trace(gm, example_inputs, options or Options())
    if not outcome.differentiable:
        raise UserError(
            "no result of the graph needs a gradient",
            todo="Give example inputs that require gradients, with gradient mode enabled.",
        )
    return finish_joint(outcome)


@compiling()
def partition_joint(
    joint: Joint, partition_fn: PartitionFn | None = None, options: Options | None = None
) -> Partition:
    """Split a joint graph into forward and backward graphs."""
    from aot_autograd.partition.default import default_partition
    from aot_autograd.partition.norms import forget_statistics, keep_norms
    from aot_autograd.partition.softmax import spell_out
    from aot_autograd.partition.split import split_joint

    options = options if options is not None else Options()
    forget_statistics(joint.envelope.graph)
    if options.numerics != "fast":  # eager's own operators, as they are
        keep_norms(joint.envelope.graph)
    else:
        spell_out(joint.envelope.graph)
    return split_joint(joint, (partition_fn or default_partition)(joint, options))
