"""The build hook: compiles a copy of the sources, and says clearly why it cannot."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]


@pytest.fixture
def hatch_build():
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", PACKAGE / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(PACKAGE / "csrc", tmp_path / "csrc")
    (tmp_path / "src" / "dynamo_capture").mkdir(parents=True)
    shutil.copy(PACKAGE / "hatch_build.py", tmp_path)
    return tmp_path


def test_builds_without_warnings_and_only_when_needed(tree):
    command = [sys.executable, str(tree / "hatch_build.py")]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert first.returncode == 0, first.stderr
    assert "warning" not in first.stderr
    target = Path(first.stdout.strip())
    assert target.parent == tree / "src" / "dynamo_capture"
    assert target.name.endswith(sysconfig.get_config_var("EXT_SUFFIX"))
    stamp = target.stat().st_mtime_ns
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert target.stat().st_mtime_ns == stamp
    loads = "import importlib.util as u; s = u.spec_from_file_location('_native', r'{}'); m = u.module_from_spec(s); "
    loads += "s.loader.exec_module(m); print(m.SKIP)"
    out = subprocess.run([sys.executable, "-c", loads.format(target)], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "1", out.stderr


def test_missing_compiler_is_named(hatch_build, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler-anywhere")
    with pytest.raises(hatch_build.BuildError, match=r"no-such-compiler-anywhere.*Install one.*set CC"):
        hatch_build.compiler()


def test_compiler_errors_are_shown(hatch_build, tree):
    (tree / "csrc" / "module.c").write_text("this is no C\n")
    with pytest.raises(hatch_build.BuildError, match=r"(?s)compiling.*failed.*module\.c"):
        hatch_build.build(tree)
    assert list((tree / "src" / "dynamo_capture").iterdir()) == []


def test_unsupported_python_is_refused(hatch_build, monkeypatch):
    class Old(tuple):
        major, minor = 3, 10

    monkeypatch.setattr(hatch_build.sys, "version_info", Old((3, 10, 0)))
    with pytest.raises(hatch_build.BuildError, match=r"supports CPython 3\.11 to 3\.14, not cpython 3\.10"):
        hatch_build.check_python()


def test_missing_headers_are_named(hatch_build, monkeypatch, tmp_path):
    monkeypatch.setattr(hatch_build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(hatch_build.BuildError, match=r"headers are not in .*apt install python3"):
        hatch_build.check_python()


def test_the_hook_adds_the_extension_to_wheels(hatch_build, tree):
    initialize = hatch_build.CustomBuildHook.initialize
    plain = type("Hook", (), {})()
    plain.root, plain.target_name = str(tree), "wheel"
    data = {"force_include": {}}
    initialize(plain, "standard", data)
    assert data["infer_tag"] is True
    assert data["pure_python"] is False
    ((source, place),) = data["force_include"].items()
    assert Path(source).is_file()
    assert place == f"dynamo_capture/{Path(source).name}"
    data = {"force_include": {}}
    initialize(plain, "editable", data)
    assert data["force_include"] == {}
    plain.target_name = "sdist"
    data = {}
    initialize(plain, "standard", data)
    assert data == {}
