"""Sweeps timm's and torchvision's models through capture: one small variant of each family, random weights.

Not part of CI. `python integration-tests/sweeps/sweep_vision.py --out sweep.jsonl` writes one JSON line per model
(status, seconds, graphs, the reason of a failure); `--backend inductor` generates code as well; `--only REGEX` picks.
A model passes when it is one graph without fallbacks and its outputs equal eager's (bit for bit with the eager
backend; within 1e-3 relative otherwise).
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import zoo

import compile_api

SMALL = ("test_", "atto", "femto", "pico", "nano", "xxs", "xx_small", "xxtiny", "zepto", "_xs", "tiny", "mini", "_ti",
         "small", "_s0", "_b0", "_t0", "_m0", "18", "_lite", "lite", "_050", "_s", "16", "_0", "26", "34", "50")  # fmt: skip


class Late(Exception):
    pass


zoo.import_torchvision()  # declares torchvision's operators where its own extension does not load


def rank(name: str) -> tuple[int, bool, int, str]:
    index = next((i for i, word in enumerate(SMALL) if word in name), len(SMALL))
    return index, not name.endswith("_224"), len(name), name


def timm_cases() -> dict[str, Any]:
    import timm

    cases: dict[str, Any] = {}
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            cases[f"timm/{module}"] = lambda names=names: timm_model(min(names, key=rank))
    return cases


def timm_model(name: str) -> tuple[str, Any, tuple[Any, ...]]:
    import timm

    model = timm.create_model(name, pretrained=False)
    cfg = model.default_cfg
    channels, side, _ = cfg["input_size"]
    if not cfg.get("fixed_input_size"):
        side = min(side, max(cfg.get("min_input_size", (0, 96, 96))[1], 96))
    return name, model, (torch.randn(2, channels, side, side),)


def torchvision_cases() -> dict[str, Any]:
    import torchvision
    from torchvision import models

    cases = {}
    for module in (models, models.segmentation, models.video):
        by_family = collections.defaultdict(list)
        for name in models.list_models(module):
            by_family[re.split(r"[\d_]", name)[0]].append(name)
        for family, names in by_family.items():
            kind = module.__name__.rpartition(".")[2]
            name = min(names, key=rank)
            cases[f"torchvision/{kind}/{family}"] = lambda name=name, kind=kind: torchvision_model(name, kind)
    del torchvision
    return cases


def torchvision_model(name: str, kind: str) -> tuple[str, Any, tuple[Any, ...]]:
    from torchvision import models

    options = {"weights": None}
    if kind == "segmentation":
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    model = models.get_model(name, **options)
    if kind == "video":
        side = 112 if name.startswith(("r3d", "mc3", "r2plus1d")) else 224
        size = (1, 3, 16, side, side)
    else:
        fixed = name.startswith(("vit", "maxvit"))
        size = (2, 3, 224, 224) if fixed else (2, 3, 128, 128) if name != "inception_v3" else (2, 3, 160, 160)
    return name, model, (torch.randn(size),)


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in leaves(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in leaves(v)]
    return []


def close(a: torch.Tensor, b: torch.Tensor, exact: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact or not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(b.abs().max()) + 1e-12
    return float((a - b).abs().max()) <= 1e-3 * scale


def judge(make: Any, backend: str) -> dict[str, Any]:
    torch.manual_seed(0)
    name, model, inputs = make()
    model.eval()
    record: dict[str, Any] = {"model": name}
    with torch.no_grad():
        start = time.perf_counter()
        expected = leaves(model(*inputs))
        record["eager_s"] = round(time.perf_counter() - start, 3)
        compiled = compile_api.compile(model, fullgraph=True, backend=backend, options={"strict": True})
        start = time.perf_counter()
        try:
            got = leaves(compiled(*inputs))
            record["first_s"] = round(time.perf_counter() - start, 3)
            again = leaves(compiled(*inputs))
        except Late:
            raise
        except Exception as error:
            where = str(getattr(error, "where", "") or "")
            return record | {"status": "error", "reason": f"{type(error).__name__}: {error}"[:800], "where": where}
        report = compiled.report()
    exact = backend == "eager"
    record["graphs"] = sum(1 for g in report.graphs if g.dialect == "torch")
    record["capture_s"] = round(report.seconds.get("capture", 0.0), 3)
    right = all(len(x) == len(expected) and all(close(a, b, exact) for a, b in zip(x, expected)) for x in (got, again))
    if not right:
        return record | {"status": "wrong", "reason": "outputs differ from eager's"}
    if report.breaks or report.fallbacks or record["graphs"] != 1:
        reasons = [b.reason for b in report.breaks] + [f.reason for f in report.fallbacks]
        return record | {"status": "partial", "reason": "; ".join(reasons)[:800]}
    return record | {"status": "ok"}


def on_alarm(*_: Any) -> None:
    raise Late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="-")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=120, help="limit per model")
    args = parser.parse_args()
    out = sys.stdout if args.out == "-" else open(args.out, "a")  # noqa: SIM115
    signal.signal(signal.SIGALRM, on_alarm)
    counts: collections.Counter[str] = collections.Counter()
    for family, make in (timm_cases() | torchvision_cases()).items():
        if not re.search(args.only, family):
            continue
        signal.alarm(args.seconds)
        try:
            record = judge(make, args.backend)
        except Late:
            record = {"status": "late"}
        except Exception as error:
            record = {"status": "broken", "reason": f"{type(error).__name__}: {error}"[:300]}
        finally:
            signal.alarm(0)
        compile_api.reset()
        counts[record["status"]] += 1
        print(json.dumps({"family": family, "backend": args.backend, **record}), file=out, flush=True)
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
