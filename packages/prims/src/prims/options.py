"""The one immutable options object that travels through the stages."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from prims.errors import CompileWarning, UserError
from prims.logs import parse_logs
from prims.records import record

__all__ = ["CACHE_KEY_FIELDS", "MODES", "Options"]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_VERIFY = ("off", "boundaries", "every_pass", "reference")
_CHECKS = ("off", "shadow", "nan")
_NUMERICS = ("fast", "eager_close", "eager_exact")

#: The fields that change generated code, and so belong to every cache key.
CACHE_KEY_FIELDS = (
    "numerics",
    "fuel",
    "threads",
    "max_autotune",
    "epilogue_fusion",
    "memory_budget",
    "offload",
    "fallback_random",
    "deterministic",
    "batch_invariant",
)


#: Variables that were warned of.
_unknown: set[str] = set()


def _environment_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "quintet")


@record(kw_only=True)
class Options:
    """How to compile. Unknown names and bad values raise :class:`prims.errors.UserError`.

    Attributes:
        fullgraph: a graph break is an error.
        dynamic: ``True`` makes every size symbolic at once, ``False`` none ever, ``None`` those that change.
        mode: one of :data:`MODES`; ``compile_api.compile`` turns it into the options that it stands for.
        verify: ``"off"``, ``"boundaries"`` (each stage's hand-over), ``"every_pass"``, or ``"reference"``
            (also runs each pass's result against the reference).
        fuel: stop optimising after this many optional passes or rewrites; ``None`` is no limit.
        strict: an internal failure raises instead of falling back to eager.
        cache: whether the disk caches are used.
        program_cache: whole programs are kept on disk, so that another process runs them without interpreting, tracing
            or compiling anything (branches and loops, and graphs replayed as CUDA graphs, are not kept). What a program
            assumed is compared when it is loaded; one that rests on what cannot be compared is not kept. Not looked at
            where the stages are to be seen: under ``debug``, ``fuel``, ``check``, a ``verify`` of every pass, and logs
            of what they make.
        cache_dir: folder of the disk caches.
        cache_size_limit: bytes that each disk cache (kernels for the CPU, kernels for GPUs, programs) may take.
        recompile_limit: cache entries of one code object before it is left to eager; those that a later one took the
            place of do not count.
        threads: CPU threads that generated kernels are planned for; 0 means ``torch.get_num_threads()``.
        compile_workers: parallel compiler processes; 0 means one per available core.
        compile_timeout: seconds that a compiler of kernels may take for a part of a graph; 0 is no limit.
        debug: write what each stage makes (captured graphs with their guards and breaks, ATen and primitive graphs,
            generated code) into files of a folder ``debug`` under ``cache_dir``, and a script for each captured graph
            that runs it again on the same inputs (up to 256 MiB), print where each is, and list them in the report. The
            folder's ``sources`` has the kernels' sources, which those scripts run as they are, edited or not.
        progress: on a terminal, show how far work of more than a second is (kernels compiled, candidates measured), and
            what time is left.
        sources: a folder with sources of generated kernels that were edited, such as the debug folder's ``sources``: a
            kernel whose file is there is compiled from it. Programs are then neither stored nor loaded.
        logs: what the stages are to log, such as ``"breaks,recompiles"`` (names of :data:`prims.logs.LOGS`, or
            ``"all"``), by the loggers ``quintet.<name>``, for the whole process from the first such ``compile()`` on.
        check: ``"off"``; ``"shadow"``: the first calls of each graph, then one in 64, are run eagerly too, on copies of
            the inputs, and a graph whose values, gradients or written inputs differ is left to eager, with a script
            that reproduces it in the debug folder; ``"nan"``: names the first operator whose result has a NaN or an
            infinity that its operands have not, where one comes to be in a result.
        numerics: ``"fast"`` (at least as accurate as eager), ``"eager_close"`` (rounded where eager rounds, accumulated
            in eager's types, nothing contracted) or ``"eager_exact"`` (eager's bits and random numbers).
        deterministic: the same bits on every run: no sums by atomic additions or in the order in which threads come, no
            second graph for what a guess about masks got wrong, and PyTorch's own calls run as under
            ``torch.use_deterministic_algorithms``, which raises where there is no such algorithm. The report says what
            that changed. Not with ``max_autotune``, which chooses orders of sums by the clock.
        batch_invariant: a row's result has the same bits whatever batch it is in: products, convolutions and sums go
            through their terms in an order that no size of the batch decides, rounded as by ``numerics="eager_close"``
            (which it sets). Calls of the library for which that is not known are named in the report, and are errors
            with ``strict``. Not with ``max_autotune``, and not with ``numerics="eager_exact"``: eager's are not.
        memory_budget: share of eager's saved-for-backward bytes that a partition may keep, 0 to 1; or a text such as
            ``"6GB"`` or ``"800MiB"``, into which a step's estimated peak is to fit: what is saved, the most that is
            alive beside it, gradients, parameters and other inputs (not estimated for a program that takes its
            gradients itself, as one graph).
        offload: values that a training step saves for its backward pass wait in host memory and are copied beside the
            computation: ``True`` for all that are of 1 MiB at least, but for the last, or a size such as ``"4GB"`` for
            as much of them. On a GPU; elsewhere there is no other memory. Not with ``cudagraphs``.
        fallback_random: draw random numbers by eager's operators and generators, so that a seed gives eager's numbers,
            rather than by generated code from a seed of each call.
        max_autotune: choose templates, tilings and library kernels by measurement.
        epilogue_fusion: fuse pointwise work into templates.
        cudagraphs: capture and replay CUDA graphs.
        data_dependent: what only the data tells (``.item()``, ``nonzero``, ``x[mask]``) stays in the graph, as numbers
            and sizes known when it runs, where the program asks nothing about them; else the graph ends there.
        background: a call for which nothing is compiled yet runs eagerly, and what is captured of it is compiled beside
            the program, backward pass included; calls take it over when it is ready, between two calls, if its guards
            hold for them. The first call takes the time of capture alone. The report counts the calls that ran eagerly;
            ``compile_api.wait`` waits. What fails is told of, and under ``fullgraph`` raised, by the next call.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str = "default"
    verify: str = "boundaries"
    fuel: int | None = None
    strict: bool = False
    cache: bool = True
    program_cache: bool = True
    cache_dir: str = dataclasses.field(default_factory=_environment_cache_dir)
    cache_size_limit: int = 4 << 30
    recompile_limit: int = 8
    threads: int = 0
    compile_workers: int = 0
    compile_timeout: int = 600
    debug: bool = False
    progress: bool = True
    sources: str = ""
    logs: str = ""
    check: str = "off"
    numerics: str = "fast"
    deterministic: bool = False
    batch_invariant: bool = False
    memory_budget: float | str = 1.0
    offload: bool | str = False
    fallback_random: bool = False
    max_autotune: bool = False
    epilogue_fusion: bool = True
    cudagraphs: bool = False
    data_dependent: bool = False
    background: bool = False

    def __post_init__(self) -> None:
        switches: tuple[str, ...] = ("fullgraph", "strict", "cache", "debug", "fallback_random", "max_autotune")
        switches += ("epilogue_fusion", "progress")
        switches += ("cudagraphs", "program_cache", "data_dependent", "deterministic", "batch_invariant", "background")
        for name in switches:
            self._require(name, isinstance(getattr(self, name), bool), "True or False")
        self._require("dynamic", self.dynamic is None or isinstance(self.dynamic, bool), "None, True or False")
        self._require("mode", self.mode in MODES, "one of " + ", ".join(map(repr, MODES)))
        self._require("verify", self.verify in _VERIFY, "one of " + ", ".join(map(repr, _VERIFY)))
        self._require("numerics", self.numerics in _NUMERICS, "one of " + ", ".join(map(repr, _NUMERICS)))
        self._require("check", self.check in _CHECKS, "one of " + ", ".join(map(repr, _CHECKS)))
        self._require("fuel", self.fuel is None or _is_count(self.fuel), "None or an integer >= 0")
        for name in ("cache_size_limit", "threads", "compile_workers", "compile_timeout"):
            self._require(name, _is_count(getattr(self, name)), "an integer >= 0")
        self._require(
            "recompile_limit", _is_count(self.recompile_limit) and self.recompile_limit > 0, "an integer >= 1"
        )
        budget = self.memory_budget
        is_share = isinstance(budget, (int, float)) and not isinstance(budget, bool) and 0 <= budget <= 1
        is_size = isinstance(budget, str) and _bytes_of(budget) is not None
        self._require("memory_budget", is_share or is_size, "a number from 0 to 1, or a size such as '6GB' or '800MiB'")
        is_size = isinstance(self.offload, str) and _bytes_of(self.offload) is not None
        self._require("offload", isinstance(self.offload, bool) or is_size, "True, False or a size such as '4GB'")
        if self.offload and self.cudagraphs:
            raise UserError(
                "offload and cudagraphs exclude each other: a graph that is replayed makes no new tensors",
                todo="Leave one of them out.",
            )
        self._require(
            "sources", isinstance(self.sources, str) and (not self.sources or os.path.isdir(self.sources)),
            "a folder that is there, or empty",
        )  # fmt: skip
        self._require("logs", isinstance(self.logs, str), "a text such as 'breaks,recompiles'")
        parse_logs(self.logs)
        self._require("cache_dir", isinstance(self.cache_dir, str) and bool(self.cache_dir), "a folder's path")
        self._agree()

    def _agree(self) -> None:
        """The policies about bits, with what they rest on."""
        for policy in self.policies:
            if self.max_autotune:
                raise UserError(
                    f"options {policy!r} and 'max_autotune' do not agree: measured times would choose orders of sums",
                    todo="Leave one of them out (mode='reduce-overhead' has CUDA graphs without measuring).",
                )
        if self.batch_invariant and self.numerics == "eager_exact":
            raise UserError(
                "options 'batch_invariant' and numerics='eager_exact' do not agree: eager's own kernels choose orders "
                "of sums by the size of the batch",
                todo="Leave one of them out.",
            )
        if self.batch_invariant:  # what is rounded may not depend on what is fused
            object.__setattr__(self, "numerics", "eager_close")

    def _require(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise UserError(f"option {name!r} is {getattr(self, name)!r}", todo=f"It must be {wanted}.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options, in declaration order."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: Options | None = None) -> Options:
        """``base`` (or the environment's options) with ``values`` on top."""
        return (base if base is not None else cls.from_environment()).replace(**values)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Options:
        """Defaults, overridden by ``QUINTET_<OPTION>`` variables. Nothing else reads the environment.

        Raises:
            UserError: a ``QUINTET_*`` variable holds a value that does not parse, or is of no option but named almost
                as one. Others of no option give a warning.
        """
        env = os.environ if environ is None else environ
        _check_names(env, cls.names())
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            raw = env.get("QUINTET_" + field.name.upper())
            if raw:  # an empty variable is as good as none
                values[field.name] = _parse(field.name, str(field.type), raw)
        return cls(**values)

    def replace(self, **changes: Any) -> Options:
        """A copy with some options changed.

        Raises:
            UserError: an unknown option or a bad value.
        """
        known = self.names()
        for name in changes:
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                raise UserError(f"unknown option {name!r}", todo=f"{hint}Options are: {', '.join(known)}.")
        return dataclasses.replace(self, **changes)

    @property
    def eager_random(self) -> bool:
        """Whether random numbers come from eager's operators and generators."""
        return self.fallback_random or self.numerics == "eager_exact"

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies about bits that are asked for."""
        return tuple(name for name in ("deterministic", "batch_invariant") if getattr(self, name))

    @property
    def memory_limit(self) -> int | None:
        """``memory_budget`` in bytes where it is a size."""
        return _bytes_of(self.memory_budget) if isinstance(self.memory_budget, str) else None

    @property
    def offload_limit(self) -> int | None:
        """How many bytes ``offload`` is for at least; None for all."""
        return _bytes_of(self.offload) if isinstance(self.offload, str) else None

    def cache_key(self) -> str:
        """Text of the options that change generated code."""
        return ";".join(f"{name}={getattr(self, name)!r}" for name in CACHE_KEY_FIELDS)


def _check_names(env: Mapping[str, str], known: tuple[str, ...]) -> None:
    """No variable is ignored in silence."""
    variables = ["QUINTET_" + name.upper() for name in known]
    for name in env:
        if not name.upper().startswith("QUINTET_") or name in variables:
            continue
        import difflib

        near = difflib.get_close_matches(name.upper(), variables, n=1, cutoff=0.8)
        if near:
            raise UserError(f"environment variable {name} is of no option", todo=f"Did you mean {near[0]}?")
        if name not in _unknown:
            _unknown.add(name)
            warnings.warn(
                f"environment variable {name} has no effect: there is no such option. "
                f"Options are: {', '.join(variables)}.",
                CompileWarning,
                stacklevel=4,
            )


def _bytes_of(text: str) -> int | None:
    """The bytes of a size such as ``6GB``; None for other texts."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", text.strip().lower())
    if found is None or (found[3] and not found[2]):
        return None
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " "))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse(name: str, annotation: str, raw: str) -> Any:
    text = raw.strip()
    lowered = text.lower()
    if "None" in annotation and lowered in ("", "none"):
        return None
    try:
        if annotation.startswith("bool"):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[lowered]
        if annotation.startswith("int"):
            return int(text)
        if annotation.startswith("float"):
            return text if "str" in annotation and _bytes_of(text) is not None else float(text)
    except (KeyError, ValueError):
        raise UserError(
            f"environment variable QUINTET_{name.upper()} is {raw!r}",
            todo=f"It must be a value for option {name!r} of type {annotation}.",
        ) from None
    return text
