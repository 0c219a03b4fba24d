"""A process that compiles Triton kernels: ``python triton_worker.py MAJOR MINOR``, started by ``triton_pool``.

It imports Triton once and forks a child per kernel, so that kernels compile side by side without Python's lock, and
one that crashes the compiler takes nothing else down. It imports neither PyTorch nor this package, which has its
functions for compiling in its own process.

Jobs come on standard input, a JSON object per line: ``id``, ``file`` and ``function`` (where the kernel is),
``signature``, ``capability``, ``options``, ``out`` (where the machine code goes) and ``at_once`` (children). A line
per finished job goes to standard output: ``id`` with ``name`` and ``shared``, with ``refused``, or with ``error`` where
the compiler itself failed. The worker ends with its input, or when nothing came for ``IDLE`` seconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["compile_function", "import_file"]

IDLE = 120.0


def import_file(name: str, path: str) -> Any:
    """The module in a file. Triton reads its functions' source from there, and looks its globals up by its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def warm_up(capability: Sequence[int]) -> None:
    """Import and look up what every compilation needs, without starting one: forked children then have it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import code_generator, make_backend  # noqa: F401  (the former for its import)

    backend = make_backend(GPUTarget("cuda", capability[0] * 10 + capability[1], 32))
    options = backend.parse_options({})
    backend.get_codegen_implementation(options)
    backend.get_module_map()
    backend.hash()  # asks ptxas for its version


def compile_function(
    function: Any, signature: Sequence[Sequence[Any]], capability: Sequence[int], options: Mapping[str, Any]
) -> tuple[bytes, str, int]:
    """``(cubin, function name, bytes of shared memory)`` of a ``@triton.jit`` function.

    ``signature`` holds ``(name, type, divisible by 16)`` per parameter. The stages are run one by one:
    ``triton.compile`` would first hash Triton's libraries, several hundred megabytes, for a cache not used here.

    Raises:
        ValueError: the kernel wants what the launcher does not give.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    backend = make_backend(target)
    source = ASTSource(
        fn=function, signature={name: kind for name, kind, _ in signature}, constexprs={},
        attrs={(k,): [["tt.divisibility", 16]] for k, (_, _, aligned) in enumerate(signature) if aligned},
    )  # fmt: skip
    parsed = backend.parse_options({**options, **source.parse_options()})
    metadata: dict[str, Any] = {"target": target, **parsed.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    code: Any = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    for stage in stages.values():
        code = stage(code, metadata)
    if metadata.get("global_scratch_size"):
        raise ValueError("it wants scratch memory, which the launcher does not give")
    return code, metadata["name"], metadata["shared"]


def answer(record: dict[str, Any]) -> None:
    """Report a finished job; so short a line arrives whole, whoever else writes."""
    os.write(1, (json.dumps(record) + "\n").encode())


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one kernel, in a child. The machine code, or what is wrong with the kernel, goes to the file ``out``."""
    try:
        function = getattr(import_file(f"quintet_job_{job['id']}", job["file"]), job["function"])
        made, name, shared = compile_function(function, job["signature"], job["capability"], job["options"])
        record = {"id": job["id"], "name": name, "shared": shared}
    except BaseException as error:
        made = f"{type(error).__name__}: {error}".encode()
        record = {"id": job["id"], "refused": True}
    with open(job["out"], "wb") as file:
        file.write(made)
    return record


def start(job: dict[str, Any]) -> int:
    """Fork the child for a job."""
    child = os.fork()
    if child:
        return child
    try:
        answer(compile_job(job))
        os._exit(0)
    finally:
        os._exit(1)


class Worker:
    """Reads jobs and keeps children going."""

    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: list[dict[str, Any]] = []
        self.running: dict[int, dict[str, Any]] = {}
        self.ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def read(self) -> bool:
        """Take in jobs and the news of children that ended, waiting for either; False when there is no more to do."""
        ready, _, _ = select.select([0, self.ended], [], [], IDLE)
        if self.ended in ready:
            os.read(self.ended, 4096)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return False
            *lines, self.buffer = (self.buffer + data).split(b"\n")
            self.waiting += [json.loads(line) for line in lines]
        return bool(ready or self.running)

    def reap(self) -> None:
        """Collect children that ended; one that ended badly said nothing."""
        while self.running:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            job = self.running.pop(child)
            if status:
                why = f"signal {status & 127}" if status & 127 else f"status {status >> 8}"
                answer({"id": job["id"], "error": f"the compiler ended with {why}"})

    def run(self) -> None:
        """Until the input ends, or nothing came for a while."""
        while self.read():
            self.reap()
            while self.waiting and len(self.running) < self.waiting[0]["at_once"]:
                job = self.waiting.pop(0)
                self.running[start(job)] = job


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the program that started this one
    warm_up([int(part) for part in sys.argv[1:3]])
    Worker().run()


if __name__ == "__main__":
    main()
