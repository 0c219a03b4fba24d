"""``bisect()``: which stage, and which of its optional steps, makes a compiled call wrong.

The failing graph is compiled again and again by as much of the way as each stage needs: through the ahead-of-time stage
alone, then through lowering, then to kernels. In the first that fails, optional steps (passes, rewrites, fusions; all
those that ask for fuel) are counted over the whole compilation and halved down to the one without which the result is
right. Where it is wrong without any, the stage's required part is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compile_api.backends import Backend, raw_backend
from compile_api.comparison import GIVE_IT, UNREPEATABLE, Region, check_region, checking_options, compare
from prims.errors import UserError
from prims.ir import Envelope
from prims.ir.blame import blaming
from prims.ir.passes import counting_steps
from prims.options import Options
from prims.records import record
from prims.report import KernelRecord, Report

__all__ = ["Culprit", "bisect", "find_culprit"]

#: What the required part of a stage is called, and what its optional steps are, by the stage's backend.
_REQUIRED = {"aot": "aot", "lower": "lower", "inductor": "codegen"}


@record
class Culprit:
    """What :func:`bisect` found.

    Attributes:
        stage: ``"capture"``, ``"aot"``, ``"lower"``, ``"fusion"``, ``"rewrite"`` (of the code generator),
            ``"codegen"``, or the name of another backend.
        step: the optional step without which all is right; None where the stage's required part is wrong.
        number: of that step among all; the program is right under fewer.
        of: how many optional steps there are.
        graph: the captured graph.
        kernels: those that the step changes.
        detail: what is wrong.
    """

    stage: str
    step: str | None
    number: int | None
    of: int
    graph: str
    kernels: tuple[KernelRecord, ...]
    detail: str

    def __str__(self) -> str:
        what = "a part that is not optional"
        if self.step is not None:
            what = f"step {self.number} of {self.of}, {self.step!r}"
        lines = [f"stage {self.stage}: {what}", self.detail]
        for kernel in self.kernels:
            lines.append(f"kernel {kernel.name}: {' '.join(kernel.ops)}")
            lines += [f"  of {line}" for line in kernel.lines]
        return "\n".join(lines)


def bisect(
    fn: Callable[..., Any], *args: Any, backend: str | Backend = "inductor", options: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, before: Sequence[Sequence[Any]] = (),
) -> Culprit:  # fmt: skip
    """Find what makes the compiled ``fn(*args, **kwargs)`` differ from eager, or fail.

    Args:
        before: arguments of calls that are made first, as of :func:`compile_api.compare`.

    Raises:
        UserError: it neither differs nor fails.
    """
    found = compare(fn, *args, backend=backend, options=options, kwargs=kwargs, before=before)
    if not found.repeats:
        raise UserError(UNREPEATABLE, todo="Put the state into the arguments, or leave it out of the program.")
    if found.capture or found.error is not None:
        return Culprit("capture", None, None, 0, "", (), str(found).splitlines()[0])
    region = found.failing
    if region is None:
        raise UserError(
            "the compiled program does what eager does: there is nothing to bisect",
            todo=GIVE_IT + str(found),
        )
    return find_culprit(region, backend, checking_options(options))


def find_culprit(region: Region, backend: str | Backend, options: Options) -> Culprit:
    """The culprit of a graph that fails."""
    for stage, made in _ladder(backend, options).items():
        failing = _probe(region, made, None, options)
        if failing.fails:
            return _within(stage, region, made, options)
    return Culprit("unknown", None, None, 0, region.name, (), f"{region}; compiled again, it is right")


#: Makes a backend that tells ``report`` what it does.
_Maker = Callable[[Report], Backend]


def _ladder(backend: str | Backend, options: Options) -> dict[str, _Maker]:
    """The ways to compile, from the first stage alone to all of them."""
    if backend not in ("inductor", "aot_eager"):
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "backend")
        return {name: lambda report: raw_backend(backend, options, report)}
    ladder: dict[str, _Maker] = {"aot": lambda report: raw_backend("aot_eager", options, report)}
    if backend == "inductor":
        ladder["lower"] = lambda report: _lowered(options, report)
        ladder["inductor"] = lambda report: raw_backend("inductor", options, report)
    return ladder


def _lowered(options: Options, report: Report) -> Backend:
    """A backend that runs the primitive graph operator by operator."""

    def run_lowered(env: Envelope, _: Report | None = None) -> Callable[..., Any]:
        import inductor_gen
        from compile_api.backends import _device_types
        from prims.lower import lower

        claims = frozenset().union(*(inductor_gen.claims(kind) for kind in _device_types(env)))
        return blaming(lower(env, claims=claims, options=options, report=report).module())

    def backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        import aot_autograd

        return aot_autograd.aot_function(
            gm, example_inputs, fw_compiler=run_lowered, bw_compiler=run_lowered, options=options, report=report,
            partition_fn=lambda joint, options: aot_autograd.min_cut_partition(joint, options),
        )  # fmt: skip

    return backend


class _Probed:
    """One attempt: whether it fails, the steps that it took and the kernels that it made."""

    def __init__(self, region: Region, steps: list[str], report: Report) -> None:
        self.region = region
        self.fails = region.fails
        self.steps = steps
        self.kernels = report.kernels


def _probe(region: Region, maker: _Maker, limit: int | None, options: Options) -> _Probed:
    report = Report()
    assert region.modes is not None
    with counting_steps(limit) as steps, region.modes.again():
        tried = check_region(region.gm, region.args, maker(report), options)
    return _Probed(tried, steps.taken, report)


def _within(stage: str, region: Region, maker: _Maker, options: Options) -> Culprit:
    """The step of a stage that is at fault."""
    whole = _probe(region, maker, None, options)
    count = len(whole.steps)
    first = _probe(region, maker, 0, options)
    if first.fails:
        return _culprit(stage, None, None, count, first, None)
    right, wrong = 0, count
    best, without = whole, first
    while wrong - right > 1:
        middle = (right + wrong) // 2
        tried = _probe(region, maker, middle, options)
        if tried.fails:
            wrong, best = middle, tried
        else:
            right, without = middle, tried
    return _culprit(stage, best.steps[wrong - 1], wrong, count, best, without)


def _culprit(stage: str, step: str | None, number: int | None, of: int, bad: _Probed, good: _Probed | None) -> Culprit:
    if step is None:
        name = _REQUIRED.get(stage, stage)
    elif stage == "inductor":
        name = "fusion" if step == "fusion" else "rewrite"
    else:
        name = stage
    kernels: tuple[KernelRecord, ...] = ()
    if stage == "inductor" and good is not None:
        known = {kernel.source for kernel in good.kernels}
        kernels = tuple({k.source: k for k in bad.kernels if k.source not in known}.values())
    return Culprit(name, step, number, of, bad.region.name, kernels, str(bad.region).splitlines()[0])
