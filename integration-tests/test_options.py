"""Every option has an effect: one small program for each that tells its values apart."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import planted
import pytest
import torch

import compile_api
import dynamo_capture
from compile_api.modes import make_options
from inductor_gen.runtime import compiler, libraries
from prims.errors import CompileWarning, Unsupported, UserError
from prims.ir import Envelope
from prims.logs import set_logs, wanted
from prims.options import MODES, Options

#: Judged elsewhere: by GPU tests of templates and of CUDA graphs, and by the tests of what is rounded where.
ELSEWHERE = {"epilogue_fusion", "cudagraphs", "numerics"}
EFFECTS: dict[str, Any] = {}


def effect(fn):
    EFFECTS[fn.__name__] = fn
    return fn


def compiled(fn, *args, **options):
    """A compiled function after one call, with a cache of its own unless told otherwise."""
    made = compile_api.compile(fn, options={"cache": False, **options})
    made(*args)
    return made


def breaks(x):
    y = x * 2
    dynamo_capture.graph_break()
    return y + 1


def wave(x):
    return (x.sin() * 2).sum()


def files(folder) -> int:
    return sum(path.is_file() for path in Path(folder).rglob("*")) if os.path.isdir(folder) else 0


@effect
def fullgraph(tmp_path, monkeypatch):
    with pytest.raises(Unsupported, match="fullgraph=True"):
        compiled(breaks, torch.ones(2), fullgraph=True)
    assert len(compiled(breaks, torch.ones(2), fullgraph=False).report().breaks) == 1


@effect
def dynamic(tmp_path, monkeypatch):
    def graphs(value):
        made = compile_api.compile(lambda x: x.sin(), backend="eager", options={"dynamic": value})
        for n in (2, 3, 4):
            made(torch.ones(n))
        return len(made.report().graphs)

    assert [graphs(True), graphs(None), graphs(False)] == [1, 2, 3]


@effect
def mode(tmp_path, monkeypatch):
    for name in MODES:
        given = {"fullgraph": False, "dynamic": None}
        assert make_options(mode=name, options=None, **given) == make_options(mode=None, options={"mode": name}, **given)
        monkeypatch.setenv("QUINTET_MODE", name)
        assert make_options(mode=None, options={}, **given) == make_options(mode=name, options=None, **given)
    made = make_options(mode=None, options={"mode": "max-autotune"}, **given)
    assert made.max_autotune and made.cudagraphs
    with pytest.raises(UserError, match="Give it once"):
        make_options(mode="default", options={"mode": "max-autotune"}, **given)


@effect
def verify(tmp_path, monkeypatch):
    levels, real = [], Envelope.verify
    monkeypatch.setattr(Envelope, "verify", lambda env, level="boundaries": levels.append(level) or real(env, level))
    counts = []
    for level in ("off", "boundaries", "every_pass", "reference"):
        levels.clear()
        compiled(wave, torch.ones(3), verify=level)
        assert set(levels) <= {level}
        counts.append(len(levels))
    assert counts[0] == 0 < counts[1] < counts[2] == counts[3]


@effect
def fuel(tmp_path, monkeypatch):
    def operators(limit):
        report = compiled(lambda x: torch.where(x > 0, x, x) * 1.0, torch.ones(3), fuel=limit).report()
        return [op for kernel in report.kernels for op in kernel.ops]

    assert "mul" in operators(0) and "mul" not in operators(None)


@effect
def strict(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise AssertionError("a defect")

    monkeypatch.setattr("inductor_gen.compile_graph", broken)
    with pytest.raises(AssertionError, match="a defect"):
        compiled(wave, torch.ones(3), strict=True)
    with pytest.warns(CompileWarning, match="a defect"):
        compiled(wave, torch.ones(3), strict=False)


@effect
def cache(tmp_path, monkeypatch):
    x = torch.ones(3)
    monkeypatch.setattr(libraries, "_LOADED", {})
    compiled(wave, x, cache=False, cache_dir=str(tmp_path))
    assert not files(tmp_path)
    monkeypatch.setattr(libraries, "_LOADED", {})
    compiled(wave, x, cache=True, cache_dir=str(tmp_path))
    assert files(tmp_path)


@effect
def cache_dir(tmp_path, monkeypatch):
    for name in ("one", "other"):
        monkeypatch.setattr(libraries, "_LOADED", {})
        compiled(wave, torch.ones(3), cache=True, cache_dir=str(tmp_path / name))
        assert files(tmp_path / name)


@effect
def program_cache(tmp_path, monkeypatch):
    def kept(choice):
        folder = tmp_path / str(choice)
        compiled(wave, torch.ones(3), cache=True, program_cache=choice, cache_dir=str(folder))
        return files(folder / "programs")

    assert kept(True) and not kept(False)


@effect
def cache_size_limit(tmp_path, monkeypatch):
    def stays(limit):
        folder = tmp_path / str(limit)
        for fn in (wave, lambda x: x.cos() + 1, lambda x: x.exp() * 3):
            monkeypatch.setattr(libraries, "_LOADED", {})
            compiled(fn, torch.ones(3), cache=True, cache_dir=str(folder), cache_size_limit=limit)
        return files(folder)

    assert stays(30_000) < stays(1 << 30)


@effect
def recompile_limit(tmp_path, monkeypatch):
    def graphs(limit):
        made = compile_api.compile(lambda x, s: x + len(s), backend="eager", options={"recompile_limit": limit})
        for n in range(4):
            made(torch.ones(2), "s" * n)
        return len(made.report().graphs)

    with pytest.warns(CompileWarning, match="limit"):
        assert graphs(2) == 2
    assert graphs(8) == 4


@effect
def data_dependent(tmp_path, monkeypatch):
    def graphs(choice):
        made = compiled(lambda x: x[x > 0] + 1, torch.ones(3), data_dependent=choice)
        return len(made.report().breaks)

    assert graphs(True) == 0 and graphs(False) == 1


@effect
def background(tmp_path, monkeypatch):
    x = torch.ones(3)
    for value in (False, True):
        fn = compiled(wave, x, background=value)
        assert (fn.report().verdict == "compiled") is not value, fn.report()
        for _ in range(3):
            assert compile_api.wait(300)
            torch.testing.assert_close(fn(x), wave(x))
        assert fn.report().verdict == "compiled" and fn.report().kernels, fn.report()
        assert len(fn.report().background) == value


@effect
def threads(tmp_path, monkeypatch):
    def text(count):
        made = compiled(lambda x: x.sum(1), torch.ones(4, 8192), threads=count, debug=True, cache_dir=str(tmp_path))
        return next(Path(k.path).read_text() for k in made.report().kept if k.what == "generated code")

    assert text(1) != text(64)


@effect
def compile_workers(tmp_path, monkeypatch):
    asked, real = [], compiler._shares
    monkeypatch.setattr(compiler, "_shares", lambda units, workers: asked.append(workers) or real(units, workers))
    for workers in (3, 0):
        monkeypatch.setattr(libraries, "_LOADED", {})
        compiled(wave, torch.ones(3), compile_workers=workers)
    assert asked == [3, len(os.sched_getaffinity(0))]


@effect
def compile_timeout(tmp_path, monkeypatch):
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\n[ $1 = --version ] && exec gcc --version\nsleep 1\nexec gcc \"$@\"\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    with pytest.warns(CompileWarning, match="took more than 1 seconds"):
        monkeypatch.setattr(libraries, "_LOADED", {})
        (fallback,) = compiled(wave, torch.ones(3), compile_timeout=1).report().fallbacks
    assert "QUINTET_COMPILE_TIMEOUT" in fallback.reason
    monkeypatch.setattr(libraries, "_LOADED", {})
    assert compiled(wave, torch.ones(3), compile_timeout=0).report().kernels


@effect
def debug(tmp_path, monkeypatch):
    x = torch.ones(3, requires_grad=True)
    made = compile_api.compile(wave, options={"debug": True, "cache_dir": str(tmp_path)})
    made(x).backward()
    paths = {record.what: Path(record.path) for record in made.report().kept}
    sources = "".join(path.read_text() for path in paths.pop("sources").iterdir())
    assert all(kernel.name in sources for kernel in made.report().kernels)
    kept = {what: path.read_text() for what, path in paths.items()}
    assert {"captured wave", "aten forward", "aten backward", "prim", "generated code"} <= set(kept)
    assert "envelope torch" in kept["captured wave"] and "guard: x is a tensor: " in kept["captured wave"]
    assert "aten.sin" in kept["aten forward"] and "aten.cos" in kept["aten backward"]
    assert "prim.cos" in kept["prim"] and "cosf" in kept["generated code"]  # the last of its name: the backward's
    assert not compiled(wave, torch.ones(3)).report().kept


@effect
def progress(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    for value in (True, False):
        assert (compiled(wave, torch.ones(3), progress=value).report().progress is not None) is value


@effect
def sources(tmp_path, monkeypatch):
    x = torch.linspace(0, 1, 5)
    made = compile_api.compile(wave, options={"debug": True, "cache_dir": str(tmp_path)})
    made(x)
    folder = next(record.path for record in made.report().kept if record.what == "sources")
    (source,) = Path(folder).iterdir()
    source.write_text(source.read_text().replace("sinf(", "cosf("))
    torch.testing.assert_close(compile_api.compile(wave, options={"cache": False, "sources": folder})(x), (x.cos() * 2).sum())
    torch.testing.assert_close(compile_api.compile(wave, options={"cache": False, "sources": ""})(x), wave(x))


@effect
def logs(tmp_path, monkeypatch):
    try:
        compiled(wave, torch.ones(3), logs="code")
        assert wanted("code") and not wanted("breaks")
    finally:
        set_logs()
    compiled(wave, torch.ones(3), logs="")
    assert not wanted("code")


@effect
def check(tmp_path, monkeypatch):
    def found(value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = compiled(lambda x: x.log(), -torch.ones(3), check=value)
        return [finding.check for finding in made.report().findings]

    assert found("off") == [] and found("nan") == ["nan"]
    planted.in_codegen(monkeypatch)
    with pytest.warns(CompileWarning, match="check='shadow'"):
        assert compiled(wave, torch.ones(3), check="shadow").report().findings


@effect
def memory_budget(tmp_path, monkeypatch):
    def saved(budget):
        x = torch.randn(64, 64, requires_grad=True)
        kept = []
        made = compile_api.compile(lambda x: x.sin().cos().exp().tanh().sum(), options={"memory_budget": budget})
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            made(x)
        return sum(kept)

    assert saved(0.0) <= saved(1.0) and saved(0.0) > 0


@effect
def fallback_random(tmp_path, monkeypatch):
    def drawn(fn, value):
        torch.manual_seed(3)
        return compile_api.compile(fn, options={"fallback_random": value})(torch.ones(64))

    def dropped(x):
        return torch.nn.functional.dropout(x, 0.5) * 2

    torch.manual_seed(3)
    expected = dropped(torch.ones(64))
    assert torch.equal(drawn(dropped, True), expected)
    assert not torch.equal(drawn(dropped, False), expected)


@effect
def max_autotune(tmp_path, monkeypatch):
    a, b = torch.randn(65, 66), torch.randn(66, 67)
    assert not compiled(torch.mm, a, b, max_autotune=False).report().tunings
    assert compiled(torch.mm, a, b, max_autotune=True).report().tunings


@effect
def deterministic(tmp_path, monkeypatch):
    x = torch.ones(1 << 16)
    for value in (True, False):
        (kernel,) = compiled(torch.sum, x, deterministic=value, threads=4).report().kernels
        assert ("reduction(+:" in kernel.source.partition("simd")[0]) is not value


@effect
def batch_invariant(tmp_path, monkeypatch):
    for value in (True, False):
        made = compiled(torch.mm, torch.ones(3, 4), torch.ones(4, 5), batch_invariant=value)
        assert bool(made.report().policies) is value


@effect
def offload(tmp_path, monkeypatch):
    from aot_autograd.partition import offload as module

    monkeypatch.setattr(module, "_DEVICES", ("cpu",))
    monkeypatch.setattr(module, "LEAST", 1)
    layers = torch.nn.Sequential(*[part for _ in range(6) for part in (torch.nn.Linear(8, 8), torch.nn.Tanh())])
    for value in (True, False):
        report = compiled(layers, torch.ones(4, 8, requires_grad=True), offload=value).report()
        assert bool(report.saved[0].on_host) is value


@pytest.mark.parametrize("name", EFFECTS)
def test_effect(name, tmp_path, monkeypatch):
    EFFECTS[name](tmp_path, monkeypatch)


def test_each_option_is_here():
    assert set(EFFECTS) | ELSEWHERE == set(Options.names()) and not set(EFFECTS) & ELSEWHERE
