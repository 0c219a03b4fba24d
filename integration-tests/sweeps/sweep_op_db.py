"""Every operator and module of PyTorch's own databases through ``compile()``, forward or with gradients, against eager.

``python integration-tests/sweeps/sweep_op_db.py [--database op_db module_db] [--forward] [--grad] [--second] [--sizes static symbolic]
[--dtype float32 bfloat16] [--device cpu] [--samples 2] [--strided] [--relaid] [--errors] [--numerics eager_exact] [--jobs 1]
[--under autocast "autocast around" inference no_grad float64]
[--limit SECONDS] [--jsonl FILE] [--only NAME ...]`` prints one line per operator that did not simply agree, and a summary:
*generated* (all in generated kernels and library calls without a recorded fallback), *eager* (right, with a recorded fallback
or break), *wrong*, *error*, *crash* (a worker process died or hung).

``--second`` compares gradients of gradients too; *declined* is what compiled code refuses there by an error that says so.

With ``--strided`` every sample is also given with gaps between its elements. With ``--relaid`` it is given so, and the
program makes each tensor contiguous before the operator takes it, which may count on that. With ``--errors`` it is what eager refuses that
is given: *refused* the same, with the same type and words, or *wrong*.

With ``--under`` the operators run in a setting of PyTorch's that changes what they give, entered in the program or around
it; the results' types, and whether they need gradients, are leaves or of inference mode, are eager's.

Results agree where they are within a tolerance of eager's, or about as close to float64 as eager's are. With ``--numerics
eager_exact`` they agree where bits and strides are equal, random numbers from one seed included.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from sweeps import agreement
from sweeps.agreement import clone, double, gradients, tensors
from torch.utils import _pytree as pytree

#: Their results are uninitialised memory or random numbers.
INCOMPARABLE = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "bernoulli", "cauchy",
    "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "uniform", "pca_lowrank", "svd_lowrank", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
}  # fmt: skip

#: The database puts a reading of the random numbers' state around them, before which capture ends: they are called
#: themselves, but for samples whose results are random.
ITSELF = {"nn.functional.scaled_dot_product_attention": torch.nn.functional.scaled_dot_product_attention}

#: Their results are memory as it was found.
UNINITIALISED = {name for name in INCOMPARABLE if "empty" in name}

SECONDS_PER_TASK = 120.0

#: What is compared: results; gradients too; gradients of gradients too.
PASSES = ("forward", "gradients", "second")


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Numbers are of 64 bits by default."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


#: The settings that operators may run in; of autocast, in the program or around it.
SETTINGS = ("nothing", "autocast", "autocast around", "inference", "no_grad", "float64")


def setting(name: str, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What the program enters, and what is entered around it."""
    autocast = functools.partial(torch.autocast, torch.device(device).type, torch.bfloat16)
    around = {
        "autocast around": autocast, "inference": torch.inference_mode, "no_grad": torch.no_grad, "float64": in_float64,
    }  # fmt: skip
    return autocast if name == "autocast" else contextlib.nullcontext, around.get(name, contextlib.nullcontext)


class Task(NamedTuple):
    """One operator or module in one dtype, compared by one of ``PASSES``, with sizes that are numbers or symbols."""

    database: str
    index: int
    dtype: str
    kind: str
    sizes: str


def given(sample: Any) -> list[torch.Tensor]:
    return tensors((sample.input, sample.args, sample.kwargs))


def set_in(enter: Callable[[], Any], function: Any) -> Any:
    """The program that calls an operator in a setting that it enters."""

    def program(*args: Any, **kwargs: Any) -> Any:
        with enter():
            return function(*args, **kwargs)

    return function if enter is contextlib.nullcontext else program


def run(function: Any, sample: Any, kind: str, prepare: Any = clone) -> tuple[list[torch.Tensor], ...]:
    """Results, gradients and second gradients, as far as ``kind`` goes."""
    args, kwargs, first = prepare(sample.args), prepare(sample.kwargs), prepare(sample.input)
    with torch.set_grad_enabled(kind != "forward" and torch.is_grad_enabled()):
        out = function(first, *args, **kwargs)
        if kind == "second":
            return [t.detach() for t in tensors(out)], *agreement.second_gradients(out, (first, args, kwargs))
        return tensors(out), gradients(out, (first, args, kwargs)) if kind == "gradients" else []


def reproducible(function: Any, sample: Any, kind: str, expected: Any) -> bool:
    """Does eager give the same bits in every one of a few runs? Sums by atomic additions do not."""
    for _ in range(4):
        torch.manual_seed(0)
        again = run(function, sample, kind)
        if any(agreement.other_bits(a, b, k) for k, (a, b) in enumerate(zip(again, expected, strict=True))):
            return False
    return True


def relaid(tree: Any) -> Any:
    """Every tensor of a sample contiguous."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.contiguous() if t.layout is torch.strided else t, tree)


def check(op: Any, dtype_name: str, kind: str, options: argparse.Namespace, dynamic: bool = False) -> tuple[str, str]:
    """The verdict on one operator and the reason."""
    import compile_api

    if options.errors:
        return check_errors(op, options, dynamic)
    dtype, verdict, why = getattr(torch, dtype_name), "generated", ""
    tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 2e-4
    function = plain = ITSELF.get(op.name, op.op)
    if options.relaid:
        function = lambda *a, **k: plain(*relaid(a), **relaid(k))
    inside, around = setting(options.under, options.device)
    function = set_in(inside, function)
    if "autocast" in options.under:
        tolerance = 4e-2  # it rounds where a region need not
    samples = list(op.sample_inputs(options.device, dtype, requires_grad=kind != "forward"))
    if op.name in ITSELF:
        samples = [sample for sample in samples if not sample.kwargs.get("dropout_p")]
    compared = 0
    picked = agreement.chosen(samples, options.samples)
    if options.relaid:
        picked = [s.noncontiguous() for s in picked if all(t.layout is torch.strided for t in given(s))]
    if options.strided:
        picked += [s.noncontiguous() for s in picked if all(t.layout is torch.strided for t in given(s))]
    for sample in picked:
        torch.manual_seed(0)
        try:
            with around():
                expected = run(function, sample, kind)
        except Exception:
            continue
        compile_api.reset()
        numerics = {"numerics": options.numerics}
        compiled = compile_api.compile(lambda *a, **k: function(*a, **k), dynamic=dynamic, options=numerics)
        torch.manual_seed(0)
        try:
            with around():
                got = run(compiled, sample, kind)
        except Exception as failure:
            if kind == "second" and agreement.DECLINED in str(failure):
                return "declined", " ".join(str(failure).split())[:300]
            return "error", f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"

        def exact(sample: Any = sample) -> Any:
            try:
                return run(function, sample, kind, lambda tree: double(clone(tree)))
            except Exception:
                return None

        for which, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            if options.numerics == "eager_exact":
                reason = agreement.other_bits(ours, theirs, which)
                if reason and not reproducible(function, sample, kind, expected):
                    verdict, why, reason = "eager", "eager's own bits change from run to run", None
            else:
                reason = agreement.other_flags(ours, theirs) if not which else None
                reason = reason or agreement.difference(ours, theirs, exact, which, tolerance)
            if reason:
                return "wrong", reason
        compared += 1
        left = agreement.reasons(compiled.report())
        if left:
            verdict, why = "eager", left[0]
    return (verdict, why) if compared else ("skipped", "eager refuses every sample")


def check_errors(op: Any, options: argparse.Namespace, dynamic: bool) -> tuple[str, str]:
    """Does the compiled operator refuse what eager refuses, in eager's words?"""
    import compile_api

    compared, verdict, why = 0, "refused", ""
    for bad in op.error_inputs(options.device):
        sample = bad.sample_input
        expected = refusal(op.op, sample)
        if expected is None:
            continue
        compile_api.reset()
        compiled = compile_api.compile(lambda *a, **k: op.op(*a, **k), dynamic=dynamic)
        got = refusal(compiled, sample)
        if got != expected:
            return "wrong", f"{got} instead of {expected}"
        compared += 1
        left = agreement.reasons(compiled.report())
        if left:
            why = left[0]
    return (verdict, why) if compared else ("skipped", "eager refuses nothing")


def refusal(function: Any, sample: Any) -> tuple[str, str] | None:
    """The type and the first line of the error, None without one."""
    try:
        function(clone(sample.input), *clone(sample.args), **clone(sample.kwargs))
    except Exception as error:
        return type(error).__name__, str(error).split("\n", 1)[0]
    return None


def tasks(options: argparse.Namespace) -> list[Task]:
    passes = ["gradients"] * options.grad + ["second"] * options.second
    passes = ["forward"] * (options.forward or not passes) + passes
    found: list[tuple[str, int, str, str]] = []
    if "op_db" in options.database:
        found += operator_tasks(options, passes)
    if "module_db" in options.database and not options.errors:
        from sweeps import module_db

        for dtype in options.dtype:
            indices = [k for k in module_db.comparable(dtype) if wanted(module_db.module_db[k].formatted_name, options)]
            found += [("module_db", index, dtype, kind) for index in indices for kind in passes]
    return [Task(*task, sizes) for task in found for sizes in options.sizes]


def wanted(name: str, options: argparse.Namespace) -> bool:
    return not options.only or name in options.only


def operator_tasks(options: argparse.Namespace, passes: list[str]) -> list[tuple[str, int, str, str]]:
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for index, op in enumerate(op_db):
        if not wanted(op.name, options):
            continue
        if options.errors:
            found += [("op_db", index, "float32", "forward")] * (op.error_inputs_func is not None)
            continue
        if op.name in (UNINITIALISED if options.numerics == "eager_exact" else INCOMPARABLE):
            continue
        device = torch.device(options.device).type
        able = {"forward": True, "gradients": op.supports_autograd, "second": op.supports_gradgrad}
        for name in options.dtype:
            for kind in passes:
                supported = op.supported_dtypes(device) if kind == "forward" else op.supported_backward_dtypes(device)
                if getattr(torch, name) in supported and able[kind]:
                    found.append(("op_db", index, name, kind))
    return found


def entry(task: Task) -> Any:
    """What the task is about: a row of the database."""
    if task.database == "module_db":
        from torch.testing._internal.common_modules import module_db

        return module_db[task.index]
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db[task.index]


def perform(task: Task, options: argparse.Namespace) -> tuple[str, str]:
    """The verdict and the reason."""
    if task.database == "module_db":
        from sweeps import module_db

        return module_db.check(entry(task), task.dtype, task.kind, options, task.sizes == "symbolic")
    return check(entry(task), task.dtype, task.kind, options, task.sizes == "symbolic")


# --- worker processes -------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Answer each task on the input, a JSON list per line, with ``[verdict, reason]``."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what operators print must not look like an answer
    torch.set_num_threads(1)
    for line in sys.stdin:
        torch.manual_seed(0)
        print(json.dumps(perform(Task(*json.loads(line)), options)), file=answers, flush=True)


class Worker:
    """A process that checks operators, replaced when it dies, hangs, or lost its GPU to an error."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, task: Task) -> tuple[str, str]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        watch = threading.Timer(SECONDS_PER_TASK, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            self.stop()
            return "crash", f"the process died or took over {SECONDS_PER_TASK:.0f} s"
        verdict, why = json.loads(line)
        if "CUDA error" in why or "CUDA driver" in why:
            self.stop()
        return verdict, why

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, *sys.argv, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def settings(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options that ``arguments`` say, this process's command line without them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", nargs="+", choices=["op_db", "module_db"], default=["op_db"])
    parser.add_argument("--forward", action="store_true", help="without gradients; the default unless --grad is given")
    parser.add_argument("--grad", action="store_true", help="with gradients")
    parser.add_argument("--second", action="store_true", help="with gradients of gradients")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", choices=["static", "symbolic"], default=["static"])
    parser.add_argument("--strided", action="store_true", help="every sample with gaps between its elements too")
    parser.add_argument("--relaid", action="store_true", help="with gaps, and made contiguous by the program")
    parser.add_argument("--errors", action="store_true", help="what eager refuses, instead of samples")
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--under", choices=SETTINGS, default="nothing", help="a setting that the operators run in")
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no operator after this many seconds")
    parser.add_argument("--jsonl", default=None, help="write a line per operator")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    options = settings()
    warnings.simplefilter("ignore")
    if options.worker:
        return work(options)

    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    todo = tasks(options)
    for task in todo:
        waiting.put(task)
    end = time.monotonic() + options.limit
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    lock = threading.Lock()
    record: IO[str] | None = open(options.jsonl, "w") if options.jsonl else None  # noqa: SIM115

    def serve() -> None:
        worker = Worker()
        while time.monotonic() < end:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                break
            verdict, why = worker.ask(task)
            name, kind = entry(task).formatted_name, task.kind
            with lock:
                counts[task.database, task.dtype, kind, task.sizes, verdict] += 1
                if verdict not in ("generated", "refused"):
                    print(f"{verdict:7} {name} {task.dtype} {kind} {task.sizes}: {why}", flush=True)
                if record is not None:
                    line = {"database": task.database, "op": name, "dtype": task.dtype, "pass": kind, "sizes": task.sizes,
                            "verdict": verdict, "why": why}  # fmt: skip
                    print(json.dumps(line), file=record, flush=True)
        worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, count in sorted(counts.items()):
        print(*key, count)
    left = len(todo) - sum(counts.values())
    if left:
        print(f"{left} not reached within {options.limit:.0f} s")


if __name__ == "__main__":
    main()
