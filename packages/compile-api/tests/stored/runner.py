"""Runs a table of programs in a process of its own, eagerly and compiled, and writes what came of each.

``python runner.py TABLE CACHE_FOLDER BACKEND OUT.json [OPTIONS as JSON]``; the table is a module with ``CASES``, or a
folder of modules with a function ``make`` each.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib.util
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import compile_api


def flat(value: Any) -> list[Any]:
    """Tensors as lists, and everything else as text."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.detach().double().flatten().tolist()]
    if isinstance(value, dict):
        return [[str(k), flat(v)] for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(flat, value)]
    if hasattr(value, "__dataclass_fields__"):
        return flat(vars(value))
    return [repr(value)]


def differ(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) != len(b) or any(differ(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > tolerance * max(1.0, abs(a)) and not (a != a and b != b)
    return a != b


def outcome(make: Any, compiled: bool, backend: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The results of a case's calls, with gradients where there are some; and the report."""
    target, calls = make()
    fn = compile_api.compile(target, backend=backend, options=options) if compiled else target
    results = []
    if callable(calls):  # which use the function as they like
        results.append(flat(calls(fn)))
        calls = []
    for args, kwargs in calls:
        args = copy.deepcopy(args)
        try:
            result = fn(*args, **kwargs)
        except ArithmeticError as error:
            result = repr(error)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.sum().backward()
            grads = [x.grad for x in args if isinstance(x, torch.Tensor)]
            result = [result, grads]
        results.append(flat([result, list(args)]))
    state = target.state_dict() if isinstance(target, torch.nn.Module) else {}
    return [results, flat(state)], fn.report() if compiled and hasattr(fn, "report") else None


def loaded(name: str, path: Path) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def cases(table: str) -> Iterator[tuple[str, Any]]:
    """The cases; what a module of a folder does to torch is undone before the next."""
    path = Path(table)
    if path.is_file():
        yield from loaded("cases", path).CASES.items()
        return
    for each in sorted(path.glob("*.py")):
        with patched_back():
            yield each.stem, loaded(each.stem, each).make


class _Names:
    """A dictionary as an object with these names."""

    def __init__(self, names: dict[Any, Any]) -> None:
        self.__dict__ = names


_PATCHED = (torch, torch.Tensor, F, torch.nn.Linear, torch.nn.GELU, torch.nn.Sequential, torch.nn.Module, math,
            torch.nn.modules.dropout, builtins, pytree, torch.utils.deterministic, _Names(sys.modules),
            _Names(pytree.SUPPORTED_NODES))  # fmt: skip


@contextlib.contextmanager
def patched_back() -> Iterator[None]:
    before = [(owner, dict(vars(owner))) for owner in _PATCHED]
    environ = dict(os.environ)
    hooks = torch.nn.modules.module._global_forward_hooks
    autocast = torch.is_autocast_enabled("cpu")
    yield
    for owner, names in before:
        for name in vars(owner).keys() - names.keys() if not isinstance(owner, _Names) else ():
            delattr(owner, name)
        for name, value in names.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value) if isinstance(name, str) else vars(owner).update({name: value})
    os.environ.clear()
    os.environ.update(environ)
    hooks.clear()
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_autocast_enabled("cpu", autocast)
    torch.set_default_device(None)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cuda.enable_flash_sdp(True)
    torch._C._set_mkldnn_enabled(True)


def main(table: str, folder: str, backend: str, out: str, options: str = "{}") -> None:
    given = {"program_cache": True, "cache_dir": folder, "strict": True, **json.loads(options)}
    found = {}
    for name, make in cases(table):
        given["cache_dir"] = os.path.join(folder, name)
        try:
            expected, _ = outcome(make, False, backend, given)
            results, report = outcome(make, True, backend, given)
            found[name] = {
                "wrong": differ(expected, results, 1e-5),
                "capture": report.seconds.get("capture", 0.0),
                "graphs": len(report.graphs),
                "results": json.dumps(results),
                "phases": [phase for phase, seconds in report.seconds.items() if seconds > 0],
                "kernels": [[kernel.name, list(kernel.ops)] for kernel in report.kernels],
                "externs": [extern.name for extern in report.externs],
                "verdict": report.verdict,
                "programs": [[p.name, p.status, p.reason] for p in report.programs],
            }
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        compile_api.reset()
    interpreter = [name for name in sys.modules if name.startswith("dynamo_capture.interpreter")]
    with open(out, "w") as file:
        json.dump({"cases": found, "interpreter": interpreter}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
