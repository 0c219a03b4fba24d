"""The disk cache and the compiler: second processes compile nothing, damage is repaired, absence is explained."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.runtime import compiler
from inductor_gen.runtime.cache import KernelCache
from prims.errors import UserError
from prims.options import Options

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
from gen_support import build
from prims.options import Options
import inductor_gen
x = torch.arange(100.0)
env = build(lambda p, x: (p.sin(x), p.sum(p.mul(x, {factor}), (0,))), [x])
c = inductor_gen.compile_graph(env, options=Options(cache_dir={cache!r}))
a, b = c(x)
assert torch.allclose(a, x.sin(), atol=1e-6)
assert torch.allclose(b, (x * {factor}).sum())
print(c.compiled)
"""


def process(cache: Path, factor: float = 3.0) -> subprocess.Popen[str]:
    code = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent), cache=str(cache), factor=factor)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)


def compiled_in(job: subprocess.Popen[str]) -> int:
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0
    return int(output.split()[-1])


def graph(factor: float = 2.0) -> tuple[object, torch.Tensor]:
    x = torch.randn(50)
    return build(lambda p, x: p.mul(p.cos(x), factor), [x]), x


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert compiled_in(process(tmp_path)) > 0
    assert compiled_in(process(tmp_path)) == 0


def test_concurrent_processes_share_one_cache(tmp_path: Path) -> None:
    jobs = [process(tmp_path, factor) for factor in (5.0, 5.0, 6.0)]
    for job in jobs:
        compiled_in(job)
    assert compiled_in(process(tmp_path, 5.0)) == 0
    assert compiled_in(process(tmp_path, 6.0)) == 0
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.parametrize("damage", ["library", "entry", "missing library", "not json", "foreign"])
def test_a_damaged_cache_is_repaired(tmp_path: Path, damage: str) -> None:
    env, x = graph(float(sum(map(ord, damage))))
    options = Options(cache_dir=str(tmp_path))
    compiler.forget_loaded()
    first = inductor_gen.compile_graph(env, options=options)
    libs = list(tmp_path.rglob("*.so"))
    entries = list(tmp_path.rglob("*.json"))
    assert first.compiled and libs and entries
    for lib in libs:
        if damage == "library":
            replacement = lib.with_suffix(".tmp")  # another inode: this process has the old one mapped
            replacement.write_bytes(lib.read_bytes()[:-100] + b"x" * 100)
            replacement.rename(lib)
        elif damage == "missing library":
            lib.unlink()
    for entry in entries:
        if damage == "entry":
            entry.write_text("")
        elif damage == "not json":
            entry.write_bytes(b"\x00\xff{")
        elif damage == "foreign":
            entry.write_text(json.dumps({"lib": "../../etc", "symbol": 7}))
    compiler.forget_loaded()
    second = inductor_gen.compile_graph(env, options=options)
    assert second.compiled
    torch.testing.assert_close(second(x)[0], first(x)[0])
    compiler.forget_loaded()
    assert inductor_gen.compile_graph(env, options=options).compiled == 0


def test_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    env, _ = graph(11.0)
    compiler.forget_loaded()
    inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c")))
    for folder in (tmp_path / "c").rglob("*"):
        if folder.is_dir():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    env, x = graph(12.0)
    options = Options(cache_dir=str(tmp_path))
    inductor_gen.compile_graph(env, options=options)
    (tmp_path / "cpu" / "lib").chmod(0o777)
    compiler.forget_loaded()
    again = inductor_gen.compile_graph(env, options=options)
    assert again.compiled
    torch.testing.assert_close(again(x)[0], x.cos() * 12.0)


def test_an_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    env, x = graph(13.0)
    got = inductor_gen.compile_graph(env, options=Options(cache_dir=str(blocked)))
    torch.testing.assert_close(got(x)[0], x.cos() * 13.0)


def test_the_size_limit_evicts_the_oldest(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, limit=2500)
    cache.prepare()
    places = []
    for k in range(4):
        built = tmp_path / "built"
        built.write_bytes(bytes([k]) * 1000)
        places.append(cache.add(built, {f"key{k}": "f"}))
        os.utime(places[-1], (k, k))
    assert [p.exists() for p in places] == [False, False, True, True]
    assert cache.find("key0") is None and cache.find("key3") == (places[3], "f")


def test_without_a_compiler_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    compiler._find.cache_clear()
    env, _ = graph(14.0)
    with pytest.raises(UserError, match=r"no C compiler found(.|\n)*gcc(.|\n)*ziglang"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path)))
    monkeypatch.undo()
    compiler._find.cache_clear()


def test_a_bad_cc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(UserError, match="/nowhere/cc"):
        compiler.find_compiler()


def test_no_compiler_machinery_of_torch_is_imported(tmp_path: Path) -> None:
    code = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent), cache=str(tmp_path), factor=1.5)
    code += "\nbad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor', 'sympy'))]\nprint(bad)\n"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, check=True)
    assert done.stdout.split("\n")[-2] == "[]"
