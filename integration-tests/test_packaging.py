"""Wheels and sdists build, hold what they must, and work without the source tree."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytest.importorskip("build", reason="the build front end is needed to make wheels")

PACKAGES = pathlib.Path(__file__).parent.parent / "packages"
FOLDERS = sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with every package's sdist and, built from it, its wheel."""
    folder = tmp_path_factory.mktemp("dist")
    for name in FOLDERS:
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(PACKAGES / name)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def artefact(dist: pathlib.Path, folder: str, suffix: str) -> pathlib.Path:
    (found,) = dist.glob(f"quintet_{folder.replace('-', '_')}-*{suffix}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_contents(dist, folder):
    package = folder.replace("-", "_")
    names = zipfile.ZipFile(artefact(dist, folder, ".whl")).namelist()
    assert f"{package}/__init__.py" in names
    assert f"{package}/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any("test" in name.split("/")[0] or "__pycache__" in name for name in names)
    source = {str(p.relative_to(PACKAGES / folder / "src")) for p in (PACKAGES / folder / "src").rglob("*.py")}
    assert source <= set(names), source - set(names)
    with tarfile.open(artefact(dist, folder, ".tar.gz")) as archive:
        members = archive.getnames()
    for wanted in ("pyproject.toml", "README.md", "LICENSE", "PKG-INFO"):
        assert any(name.endswith("/" + wanted) for name in members), wanted


def test_the_hook_is_in_the_wheel(dist):
    wheel = artefact(dist, "dynamo-capture", ".whl")
    assert any(name.startswith("dynamo_capture/_native") and name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-linux" in wheel.name


def test_wheels_work_without_the_sources(dist, tmp_path):
    """Unpacked side by side (what installing does), in an interpreter that sees nothing of the tree."""
    site = tmp_path / "site"
    for folder in FOLDERS:
        zipfile.ZipFile(artefact(dist, folder, ".whl")).extractall(site)
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import compile_api, torch\n"
        f"assert compile_api.__file__.startswith({str(site)!r}), compile_api.__file__\n"
        "c = compile_api.compile(lambda x: torch.sin(x) * 2 + 1)\n"
        "x = torch.randn(100)\n"
        "torch.testing.assert_close(c(x), torch.sin(x) * 2 + 1)\n"
        "assert c.report().kernels and not c.report().fallbacks, str(c.report())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "QUINTET_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
