"""Runs PyTorch's operator database against the decompositions and prints what was found as JSON.

A program of its own, because importing the database imports parts of PyTorch's compiler.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from recorded_calls import check, check_metadata, record
from torch.testing._internal.common_methods_invocations import op_db

# dtype -> (samples per operator, with gradients)
PLAN = {
    "float32": (12, True),
    "bfloat16": (6, False),
    "int64": (8, False),
    "bool": (6, False),
}
CALLS_PER_OVERLOAD = 40


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    checked: Counter[str] = Counter()
    unsupported: dict[str, set[str]] = {}
    wrong: list[str] = []
    metadata: list[str] = []
    for info in op_db:
        for dtype_name, (limit, gradients) in PLAN.items():
            dtype = getattr(torch, dtype_name)
            if dtype not in info.supported_dtypes("cpu"):
                continue
            with_gradients = gradients and info.supports_autograd
            try:
                samples = list(info.sample_inputs("cpu", dtype, requires_grad=with_gradients))[:limit]
            except (RuntimeError, AssertionError, ModuleNotFoundError):
                continue  # needs another device or library
            for sample in samples:
                for call in record(info, sample, with_gradients):
                    name = str(call[0])
                    key = f"{name} {dtype_name}"
                    if checked[key] >= CALLS_PER_OVERLOAD:
                        continue
                    checked[key] += 1
                    try:
                        found = check(call)
                    except Exception as error:
                        found = f"{type(error).__name__}: {error}"
                    for device in ("cpu", "cuda:0"):
                        differs = check_metadata(call, device)
                        if differs is not None:
                            metadata.append(f"{name} [{dtype_name}, {info.name}, {device}] {differs}")
                    if found is None:
                        continue
                    if found.startswith("unsupported: "):
                        unsupported.setdefault(name, set()).add(f"{dtype_name}: {found[13:]}")
                    else:
                        wrong.append(f"{name} [{dtype_name}, {info.name}] {found}")
    report = {
        "checked": dict(checked),
        "unsupported": {name: sorted(reasons) for name, reasons in sorted(unsupported.items())},
        "wrong": wrong,
        "metadata": metadata,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
