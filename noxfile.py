"""Sessions: `nox -l` lists them, `nox -s tests` runs everything that CI runs, `nox -s demo` shows what it does.

A stage's session installs only that stage and what it needs, so that a hidden dependency on a sibling fails.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

nox.needs_version = ">=2024.4"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False  # the session of one is skipped, and says which was not found

ROOT = pathlib.Path(__file__).parent
CONSTRAINTS = str(ROOT / "constraints.txt")
STAGES = {
    "prims": ["prims"],
    "capture": ["prims", "dynamo-capture"],
    "aot": ["prims", "aot-autograd"],
    "inductor": ["prims", "inductor-gen"],
    "api": ["prims", "dynamo-capture", "aot-autograd", "inductor-gen", "compile-api"],
}
EVERYTHING = STAGES["api"]
#: What a stage's tests need besides the stage and pytest. Triton's interpreter runs the GPU kernels on the CPU;
#: ONNX Runtime runs what is written as ONNX.
STAGE_EXTRAS = {"inductor": ["triton"], "api": ["onnx", "onnxruntime"]}
#: Only where a user may also want them: the models of the integration tests, the demo and the benchmarks.
LIBRARIES = ["numpy", "scipy", "transformers", "pillow", "pyyaml", "psutil", "requests", "importlib_metadata"]
#: Other runtimes, for what is written for them.
RUNTIMES = ["onnx", "onnxruntime", "jax", "jaxlib"]
#: What the examples run in, which would bring another torch.
TRAINERS = ["accelerate", "peft", "lightning", "lightning-utilities", "torchmetrics", "diffusers"]
#: torchvision's wheel names a CUDA build of torch; it works beside the CPU one.
LIBRARIES_WITHOUT_DEPENDENCIES = ["torchvision", "timm", *TRAINERS]
#: What the stages' own tests need besides the stage.
STAGE_TESTS = ["pytest", "pytest-xdist", "hypothesis", "numpy", "expecttest"]
#: The Pythons that the packages support.
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
TESTS = [*(f"hook-{version}" for version in PYTHONS), *STAGES, "integration", "docs", "lint", "types"]


def show_pyenv_interpreters() -> None:
    """pyenv's `python3.12` works only while that version is selected: select all that are there."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    found = {path.name for path in root.glob("versions/3.1[1234].*")}
    running = platform.python_version()
    if found and "PYENV_VERSION" not in os.environ:
        ordered = [name for name in (running, *sorted(found - {running})) if name in found]
        os.environ["PYENV_VERSION"] = ":".join(ordered)


show_pyenv_interpreters()


def install(session: nox.Session, *what: str) -> None:
    """Install under the repository's pins."""
    session.install("-c", CONSTRAINTS, *what)


def site_packages(session: nox.Session) -> pathlib.Path:
    """Where a session's environment has its packages."""
    shown = session.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", silent=True)
    return pathlib.Path(str(shown).strip())


def installed(packages: pathlib.Path) -> dict[str, importlib.metadata.Distribution]:
    """An environment's distributions by name."""
    found = importlib.metadata.distributions(path=[str(packages)])
    return {canonicalize_name(each.name): each for each in found}


def link_torch(session: nox.Session) -> None:
    """PyTorch and what it needs, as another session has them, by hard links: each would take a minute to unpack them.

    They are installed here as pip would have it, but for the commands in `bin`.
    """
    own = site_packages(session)
    here = set(installed(own))
    for other in sorted((ROOT / ".nox").glob(f"*/lib/{own.parent.name}/site-packages")):
        found = installed(other)
        if "torch" in found and "torch" not in here:
            break
    else:
        return
    waiting = ["torch"]
    while waiting:
        name = waiting.pop()
        if name in here or name not in found:
            continue
        here.add(name)
        for needed in map(Requirement, found[name].requires or ()):
            if not needed.marker or needed.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(needed.name))
        for file in found[name].files or ():
            if ".." not in file.parts:
                (own / file).parent.mkdir(parents=True, exist_ok=True)
                os.link(other / file, own / file)


def install_packages(session: nox.Session, folders: list[str], *extra: str) -> None:
    """Install the named packages as a user would (built, not editable), in one resolution."""
    link_torch(session)
    install(session, *(str(ROOT / "packages" / folder) for folder in folders), *extra)


def install_libraries(session: nox.Session) -> None:
    """The model libraries."""
    install(session, *LIBRARIES)
    install(session, "--no-deps", *LIBRARIES_WITHOUT_DEPENDENCIES)


def run_pytest(session: nox.Session, *args: str, workers: str = "auto") -> None:
    """pytest by a process for each core, file by file, as many files share what is costly to make.

    Tensors are single-threaded: threads of several processes only get in each other's way. The order is that of the
    names: by the number of tests, which is xdist's, the files of a few long tests come last, and one process waits.
    """
    parallel = ["-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    session.run("python", "-m", "pytest", *parallel, *args, *session.posargs, env={"OMP_NUM_THREADS": "1"})


def test_stage(session: nox.Session, stage: str) -> None:
    """A stage's own tests, with nothing but the stage installed."""
    install_packages(session, STAGES[stage], *STAGE_TESTS, *STAGE_EXTRAS.get(stage, []))
    run_stage_tests(session, stage)


def run_stage_tests(session: nox.Session, stage: str) -> None:
    """The tests of a stage that is installed."""
    own = ROOT / "packages" / STAGES[stage][-1]
    run_pytest(session, "-c", str(own / "pyproject.toml"), "--rootdir", str(own), str(own / "tests"))


@nox.session
def prims(session: nox.Session) -> None:
    """Primitives, decompositions, abstract tensors and the IR contract."""
    test_stage(session, "prims")


@nox.session
def capture(session: nox.Session) -> None:
    """Graph capture."""
    test_stage(session, "capture")


@nox.session
def aot(session: nox.Session) -> None:
    """Ahead-of-time autograd."""
    test_stage(session, "aot")


@nox.session
def inductor(session: nox.Session) -> None:
    """Code generation."""
    test_stage(session, "inductor")


@nox.session
def api(session: nox.Session) -> None:
    """compile() and its reports."""
    test_stage(session, "api")


@nox.session
def integration(session: nox.Session) -> None:
    """Real programs and models through all stages; the architecture's tests."""
    install_packages(session, EVERYTHING, *STAGE_TESTS, "build", "hatchling", "triton", *RUNTIMES)
    install_libraries(session)
    run_pytest(session, "-q", str(ROOT / "integration-tests"))


@nox.session
def gpu(session: nox.Session) -> None:
    """Kernels, programs, models and modes on an NVIDIA GPU; skipped, with the reason, where there is none."""
    install_packages(session, EVERYTHING, "triton", *STAGE_TESTS)
    install_libraries(session)
    run_pytest(session, "-q", "-rs", str(ROOT / "integration-tests" / "gpu"), workers="8")
    own = ROOT / "packages" / "inductor-gen"
    cases = str(own / "tests" / "gpu" / "triton_cases.py")
    run_pytest(session, "-c", str(own / "pyproject.toml"), "--rootdir", str(own), "-rs", cases, workers="8")
    own = ROOT / "packages" / "prims"
    layouts = str(own / "tests" / "spec" / "test_spec_layouts.py")
    run_pytest(session, "-c", str(own / "pyproject.toml"), "--rootdir", str(own), "-rs", layouts, workers="8")


@nox.session(python=PYTHONS)
def hook(session: nox.Session) -> None:
    """The frame hook and guard evaluator on each Python; needs no torch."""
    session.install("pytest", "pytest-xdist", "bytecode")
    session.install("--no-deps", str(ROOT / "packages" / "dynamo-capture"))
    own = ROOT / "packages" / "dynamo-capture"
    run_pytest(session, "-c", str(own / "pyproject.toml"), "--rootdir", str(own), str(own / "tests" / "native"))


@nox.session(python=PYTHONS)
@nox.parametrize("stage", list(STAGES))
def versions(session: nox.Session, stage: str) -> None:
    """A stage's tests on each supported Python: `nox -s "versions-3.12(stage='capture')"`."""
    share_dependencies(session)
    folders = [str(ROOT / "packages" / folder) for folder in STAGES[stage]]
    session.install("--no-deps", "--force-reinstall", *folders)
    run_stage_tests(session, stage)


def share_dependencies(session: nox.Session) -> None:
    """What is not of this repository, installed once per Python rather than once per stage: torch may be 5 GB."""
    shared = ROOT / ".nox" / f"shared-{session.python}"
    python = str(shared / "bin" / "python")
    if not (shared / "complete").exists():
        session.run("python", "-m", "venv", "--clear", str(shared))
        extras = {extra for extras in STAGE_EXTRAS.values() for extra in extras}
        own = [str(ROOT / "packages" / folder) for folder in EVERYTHING]
        pip = (python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS)
        session.run(*pip, *own, *STAGE_TESTS, *sorted(extras), external=True)
        session.run(python, "-m", "pip", "uninstall", "-qy", *(f"quintet-{name}" for name in EVERYTHING), external=True)
        (shared / "complete").touch()
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = session.run(python, "-c", where, silent=True, external=True)
    (site_packages(session) / "shared.pth").write_text(str(theirs))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff."""
    install(session, "ruff")
    session.run("ruff", "check", str(ROOT))


@nox.session
def types(session: nox.Session) -> None:
    """mypy over the packages."""
    install(session, "mypy")
    session.run("mypy", "--config-file", str(ROOT / "mypy.ini"), *package_sources())


def package_sources() -> list[str]:
    """The import packages' folders."""
    return [str(path.parent) for path in sorted(ROOT.glob("packages/*/src/*/py.typed"))]


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, into site/; a link or an anchor that leads nowhere fails. Needs no torch."""
    install(session, "mkdocs", "mkdocs-material")
    session.run("mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml"))


@nox.session
def demo(session: nox.Session) -> None:
    """Compile a real transformer and a real convnet; print times, errors and what was fused."""
    install_packages(session, EVERYTHING)
    install_libraries(session)
    session.run("python", str(ROOT / "integration-tests" / "demo.py"), *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmark harness; arguments after `--` are its own (`nox -s bench -- --help`)."""
    install_packages(session, EVERYTHING)
    install_libraries(session)
    session.run("python", str(ROOT / "benchmarks" / "bench.py"), *session.posargs)


@nox.session
def corpora(session: nox.Session) -> None:
    """timm's families, transformers' model types, PyTorch's modules and documentation, compiled beside eager.

    Arguments after `--` are its own (`nox -s corpora -- timm --jobs 8`); see integration-tests/corpora/README.md.
    """
    install_packages(session, EVERYTHING, "expecttest")
    install_libraries(session)
    session.chdir(str(ROOT / "integration-tests"))
    jobs = ["--jobs", str(os.cpu_count() or 1)] if "--jobs" not in session.posargs else []
    session.run("python", "-m", "corpora", *jobs, *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """All of the above but demo, bench, corpora and the other Pythons' stage sessions."""
    os.environ.pop("PYTHONPATH", None)
    for name in TESTS:
        session.notify(name)
