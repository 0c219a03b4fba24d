"""The disk cache and the compiler: second processes compile nothing, damage is repaired, absence is explained."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import warnings
from pathlib import Path

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.runtime import compiler, libraries
from prims.disk import cache as cache_module
from prims.disk import folders
from prims.disk.cache import KernelCache
from prims.errors import CompileWarning, InternalError, UserError
from prims.options import Options
from prims.report import Report

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
    """A program with a kernel of its own for each multiple of a half: small multiples of an eighth stand in the text."""
    x = torch.randn(50)
    a, b = ((digit + 1) / 8 for digit in divmod(int(2 * factor), 100))
    return build(lambda p, x: p.mul(p.mul(p.mul(p.cos(x), factor / a / b), a), b), [x]), x


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
        places.append(cache.add(built.read_bytes(), {f"key{k}": "f"}))
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


def test_a_compiler_without_openmps_library_makes_kernels_of_one_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = " ".join(compiler.find_compiler().command)
    script = tmp_path / "other-cc"
    script.write_text(textwrap.dedent(f"""\
        #!/bin/sh
        for flag in "$@"; do
            case $flag in
                --version) echo "another compiler"; exit 0;;
                -fopenmp) echo "cannot find -lomp"; exit 1;;
            esac
        done
        exec {ours} "$@"
        """))
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    env, x = graph(15.5)
    report = Report()
    with pytest.warns(CompileWarning, match=r"run on one thread(.|\n)*other-cc(.|\n)*libomp"):
        compiled = inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "cache")), report=report)
    assert report.kernels and not report.fallbacks
    torch.testing.assert_close(compiled(x)[0], x.cos() * 15.5)


def test_no_compiler_machinery_of_torch_is_imported(tmp_path: Path) -> None:
    code = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent), cache=str(tmp_path), factor=1.5)
    code += "\nbad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor', 'sympy'))]\nprint(bad)\n"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, check=True)
    assert done.stdout.split("\n")[-2] == "[]"


# What is not ours, damaged on purpose, or in the way. Each is a miss with one warning, and the program runs.


@pytest.fixture
def kept(tmp_path: Path):
    """A cache with one graph in it: its folder, the graph, an input and ``again()``, which compiles it once more."""
    number = 100.0 + len(str(tmp_path)) + sum(map(ord, tmp_path.name))
    env, x = graph(number)
    options = Options(cache_dir=str(tmp_path / "cache"))
    compiler.forget_loaded()
    folders.forget_temporary()
    assert inductor_gen.compile_graph(env, options=options).compiled

    def again(warned: int = 1, compiled: bool = True) -> list[str]:
        compiler.forget_loaded()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                made = inductor_gen.compile_graph(env, options=options)
                torch.testing.assert_close(made(x)[0], x.cos() * number)
                assert bool(made.compiled) == compiled
                compiled = False  # what was compiled is loaded now
        messages = [str(w.message) for w in caught if issubclass(w.category, CompileWarning)]
        assert len(messages) == warned, messages
        assert all(str(tmp_path) in m and "QUINTET_CACHE_DIR" in m or "made anew" in m for m in messages), messages
        return messages

    yield tmp_path / "cache", again
    compiler.forget_loaded()
    folders.forget_temporary()


def entries_of(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.json"))


def libraries_of(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.so"))


def rewrite(entry: Path, **changes: object) -> None:
    """Change an entry, its checksum too."""
    data = {**json.loads(entry.read_text()), **changes}
    data["checksum"] = cache_module._checksum(data) if all(isinstance(v, str) for v in data.values()) else "0" * 64
    entry.write_text(json.dumps(data))


def test_an_intact_cache_is_used_without_a_word(kept) -> None:
    _, again = kept
    again(warned=0, compiled=False)


@pytest.mark.parametrize(
    "lib",
    ["../../../evil", "/tmp/evil", "..", "", "x" * 64, "A" * 64, "0" * 63, 7, None, ["0" * 64], "0" * 64 + "\n", "%s" % ("0" * 64 + "/..")],
)  # fmt: skip
def test_an_entry_leads_nowhere_else(kept, lib, monkeypatch) -> None:
    """Only libraries of this cache are opened, whatever an entry names."""
    cache, again = kept
    evil = cache.parent / "evil.so"
    evil.write_bytes(libraries_of(cache)[0].read_bytes())
    opened: list[str] = []
    plain = libraries.ctypes.CDLL
    monkeypatch.setattr(libraries.ctypes, "CDLL", lambda name, *a, **k: opened.append(str(name)) or plain(name, *a, **k))
    for entry in entries_of(cache):
        rewrite(entry, lib=lib)
    again()
    assert opened and all(Path(name).parent == (cache / "cpu" / "lib").resolve() for name in opened), opened


@pytest.mark.parametrize(
    "content",
    ["[" * 200_000, '{"a":' * 200_000, "{}", "[]", "null", "7", '"x"', "{", "\x00" * 100, "9" * 10_000, " " * (1 << 17),
     '{"key": "k", "lib": "l", "symbol": "s", "checksum": "c"}'],
    ids=range(12),
)  # fmt: skip
def test_an_entry_of_anything_else_is_a_miss(kept, content) -> None:
    cache, again = kept
    for entry in entries_of(cache):
        entry.write_text(content)
    again()
    again(warned=0, compiled=False)


def test_entries_and_libraries_belong_together(kept) -> None:
    """An entry under another's key, another symbol or another library: none is believed."""
    cache, again = kept
    other = build(lambda p, x: p.sin(x), [torch.randn(50)])
    inductor_gen.compile_graph(other, options=Options(cache_dir=str(cache)))
    first, *rest = entries_of(cache)
    data = json.loads(first.read_text())
    for entry in rest:
        entry.write_bytes(first.read_bytes())
        assert KernelCache(cache / "cpu").find(entry.stem) is None
    for change in ({"symbol": f"{data['symbol']}_2"}, {"lib": "0" * 64}):
        first.write_text(json.dumps({**data, **change}))
        assert KernelCache(cache / "cpu").find(first.stem) is None
    folders.forget_temporary()
    again()


def test_a_library_in_anothers_place_is_not_loaded(kept) -> None:
    cache, again = kept
    other = build(lambda p, x: p.tanh(p.sin(x)), [torch.randn(50)])
    inductor_gen.compile_graph(other, options=Options(cache_dir=str(cache)))
    libraries = libraries_of(cache)
    assert len(libraries) > 1
    contents = [lib.read_bytes() for lib in libraries]
    for lib, content in zip(libraries, [*contents[1:], contents[0]], strict=True):
        lib.unlink()  # another inode: this process has the old one mapped
        lib.write_bytes(content)
    again()


@pytest.mark.parametrize("what", ["entry", "library"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "loop", "writable", "device", "huge"])
def test_something_else_in_a_files_place(kept, what, kind) -> None:
    cache, again = kept
    for path in entries_of(cache) if what == "entry" else libraries_of(cache):
        content = path.read_bytes()
        if kind == "writable":
            path.chmod(0o666)
            continue
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            (cache / path.name).write_bytes(content)
            path.symlink_to(cache / path.name)
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            with open(path, "wb") as file:
                file.truncate(folders.MAX_BYTES + 1)
    again()


@pytest.mark.parametrize("place", ["", "cpu", "cpu/lib", "cpu/entries", ".."])
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_on_the_way_that_others_can_write(kept, place, mode) -> None:
    cache, again = kept
    folder = (cache / place).resolve()
    before = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(mode)
    try:
        messages = again()
        assert "can be written by others" in messages[0] and str(folder) in messages[0]
        temporary = Path(folders.temporary_root())
        assert list(temporary.rglob("*.so")) and stat.S_IMODE(temporary.stat().st_mode) == 0o700
        again(warned=0, compiled=False)
    finally:
        folder.chmod(before)


def test_a_sticky_folder_above_is_no_danger(kept, tmp_path) -> None:
    _, again = kept
    tmp_path.chmod(0o1777)
    try:
        if tmp_path.stat().st_uid == 0:
            again(warned=0, compiled=False)
        else:
            again()
    finally:
        tmp_path.chmod(0o700)


def test_somebody_elses_folder(kept, monkeypatch) -> None:
    cache, again = kept
    real, theirs = folders.os.lstat, (cache / "cpu" / "entries").resolve()

    def lstat(path: Path, **where: int) -> os.stat_result:
        found = real(path, **where)
        return os.stat_result((*found[:4], 4321, *found[5:])) if Path(path) == theirs else found

    monkeypatch.setattr(folders.os, "lstat", lstat)
    (message,) = again()
    assert "belongs to user 4321" in message and str(theirs) in message


@pytest.mark.parametrize("error", ["No space left on device", "Read-only file system", "Disk quota exceeded"])
def test_a_cache_that_takes_nothing(kept, error, monkeypatch) -> None:
    cache, again = kept
    for entry in entries_of(cache):
        entry.unlink()

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, error)

    monkeypatch.setattr(cache_module, "write_private", full)
    assert error in again()[0]


def test_a_compiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n[ $1 = --version ] && exec gcc --version\nsleep 1000 &\necho $! >> {started}\nwait\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    env, _ = graph(21.0)
    with pytest.raises(UserError, match=r"more than 1 seconds(.|\n)*QUINTET_COMPILE_TIMEOUT"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c"), compile_timeout=1))
    for pid in map(int, started.read_text().split()):
        for _ in range(100):
            if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                break
            time.sleep(0.05)
        else:
            raise AssertionError("what the compiler started still runs")


def test_a_compiler_that_never_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\nsleep 1000\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setattr(compiler, "_ANSWER", 0.5)
    for _ in range(3):
        with pytest.raises(UserError, match="no answer"):
            compiler.find_compiler()
    assert (tmp_path / "asked").read_text() == "x\n", "it is asked once"


@pytest.mark.parametrize(
    ("cc", "message"),
    [('gcc "', "No closing quotation"), ("/", "/"), ("/dev/null", "/dev/null"), ("sh -c 'exit 3'", "exit 3"),
     ("cat", "refuses even"), ("true", "no library"), ("sh -c 'printf \"\\377\\376\"' x", "library"),
     ("gcc -no-such-flag", "refuses even"), ("gcc -include /nowhere.h", "refuses even")],
)  # fmt: skip
def test_a_malformed_cc(cc: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", cc)
    env, _ = graph(22.0)
    with pytest.raises(UserError, match=message) as caught:
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path)))
    assert "Set CC" in str(caught.value) or "Set the CC" in str(caught.value)


def test_refused_text_is_a_defect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the compiler does compile other programs, the user has nothing to set."""
    cc = tmp_path / "cc"
    cc.write_text('#!/bin/sh\ncase "$*" in *k0.c*) echo no; exit 1;; esac\nexec gcc "$@"\n')
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    env, _ = graph(24.0)
    with pytest.raises(InternalError, match="refused generated code"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c")))


def test_a_blank_cc_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "  ")
    assert compiler.find_compiler().command


def test_a_compiler_that_makes_no_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_text('#!/bin/sh\n[ $1 = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done\necho text > $2\n')
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    env, _ = graph(23.0)
    folders.forget_temporary()
    with pytest.warns(CompileWarning, match="cannot be loaded"), pytest.raises(UserError, match="compiler for this machine"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c")))


def forbid_loading(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """Folders that behave as if mounted noexec."""
    plain, real = libraries.ctypes.CDLL, libraries.os.statvfs

    def open_library(name: str, *args: object, **kwargs: object) -> object:
        if any(Path(name).is_relative_to(place) for place in places):
            raise OSError(f"{name}: failed to map segment from shared object")
        return plain(name, *args, **kwargs)

    def statvfs(path: Path) -> object:
        found = real(path)
        if any(Path(path).is_relative_to(place) for place in places):
            return types.SimpleNamespace(f_flag=os.ST_NOEXEC)
        return found

    monkeypatch.setattr(libraries.ctypes, "CDLL", open_library)
    monkeypatch.setattr(libraries.os, "statvfs", statvfs)


def test_a_cache_from_which_nothing_may_be_run(kept, monkeypatch) -> None:
    cache, again = kept
    forbid_loading(monkeypatch, cache)
    (message,) = again()
    assert "noexec" in message and "QUINTET_CACHE_DIR" in message


def test_no_folder_from_which_anything_may_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbid_loading(monkeypatch, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env, _ = graph(24.0)
    folders.forget_temporary()
    with pytest.warns(CompileWarning, match="noexec"), pytest.raises(UserError, match=r"noexec(.|\n)*TMPDIR"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c")))
    folders.forget_temporary()


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache serves to compile in; without one there is an error that says what to do."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    env, x = graph(25.0)
    made = inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path / "c")))
    torch.testing.assert_close(made(x)[0], x.cos() * 25.0)
    env, _ = graph(26.0)
    with pytest.raises(UserError, match=r"no place(.|\n)*TMPDIR"):
        inductor_gen.compile_graph(env, options=Options(cache=False))


def test_a_full_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    env, _ = graph(27.0)
    with pytest.raises(UserError, match=r"No space left(.|\n)*TMPDIR"):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path)))


def test_no_compiler_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C while a compiler runs ends it."""
    started: list[subprocess.Popen[str]] = []
    plain = compiler._start

    def start(command: list[str]) -> subprocess.Popen[str]:
        started.append(plain(["sleep", "1000"] if "-o" in command else command))
        return started[-1]

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "_start", start)
    monkeypatch.setattr(compiler, "_next_done", interrupted)
    env, _ = graph(28.0)
    with pytest.raises(KeyboardInterrupt):
        inductor_gen.compile_graph(env, options=Options(cache_dir=str(tmp_path)))
    assert started and all(job.poll() is not None for job in started)


def test_what_ends_first_is_taken_first() -> None:
    jobs = {0: compiler._start(["sleep", "60"]), 1: compiler._start(["true"])}
    try:
        assert compiler._next_done(jobs, 30) == (1, False)
        assert compiler._next_done({0: jobs[0]}, 0.01) == (0, True)
    finally:
        for job in jobs.values():
            compiler._end(job)
