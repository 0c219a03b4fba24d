"""The documentation: its tables are those of the code, its examples run, its links lead somewhere."""

from __future__ import annotations

import ast
import re
import warnings
from importlib.util import find_spec

import docs_tables
import pytest
from docs_tables import DOCS, TABLES

from inductor_gen.native_host.build import calls_can_be_made

ROOT = DOCS.parent
#: Every document: all pages of the site, and the repository's first page.
DOCUMENTS = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("packages/*/README.md")),
                 ROOT / "packages" / "prims" / "PRIMITIVES.md", ROOT / "benchmarks" / "README.md")
}  # fmt: skip
_EXAMPLE = re.compile(r"^```python\n(.*?)^```", flags=re.S | re.M)
#: Documents with examples. The READMEs of four packages are run by the packages' own tests, with nothing else installed.
EXAMPLES = [name for name, path in DOCUMENTS.items() if _EXAMPLE.search(path.read_text())]
BY_PACKAGES = {f"packages/{name}/README.md" for name in ("prims", "dynamo-capture", "aot-autograd", "inductor-gen")}
#: What an example may need that is not installed with the packages.
OPTIONAL = ("onnxruntime",)
#: What the first pages' examples take for granted.
GIVEN = """
import torch
model, x, f = torch.nn.Linear(4, 4), torch.ones(2, 4), lambda x: torch.nn.functional.gelu(x)
my_backend = lambda gm, example_inputs: gm.forward
"""


@pytest.mark.parametrize("name", TABLES)
def test_tables(name):
    page, make = TABLES[name]
    text = (DOCS / page).read_text()
    assert docs_tables.filled(text, name, make()) == text, "run integration-tests/docs_tables.py"


def test_each_option_is_said():
    from prims.options import Options

    assert list(docs_tables.option_rows()) == [*Options.names()]


@pytest.mark.parametrize("name", docs_tables.PICTURES)
def test_pictures(name):
    assert (DOCS / "pictures" / f"{name}.svg").read_text() == docs_tables.picture(name), "run integration-tests/docs_tables.py"


def test_no_picture_is_left_over():
    assert sorted(path.stem for path in (DOCS / "pictures").iterdir()) == sorted(docs_tables.PICTURES)


def test_every_label_has_its_row():
    """A label that an error may begin with is in the table, in the IR contract, or a primitive's."""
    from prims.ops import TABLE

    known = docs_tables.constraints().keys() | {label for op in TABLE.values() for label in op.constraints}
    sources = [path.read_text() for path in ROOT.glob("packages/*/src/**/*.py")]
    used = {label for text in sources for label in re.findall(r"\b[A-Z]+(?:_[A-Z]+)*-C\d+\b", text)}
    assert used <= known, used - known
    contract = (DOCS / "ir.md").read_text()
    for label, what in docs_tables.constraints().items():
        if label.split("-")[0] in ("ENV", "TORCH", "ATEN", "PRIM", "FILE"):
            said = what.replace(" (reference)", "").replace(" (every_pass)", "")
            assert f"**{label}**: {said}" in contract, label


@pytest.mark.parametrize("page", [name for name in EXAMPLES if name not in BY_PACKAGES])
def test_examples(page, tmp_path, monkeypatch):
    """All blocks of a page in order, in one namespace; one that is to fail says so by itself."""
    if page in ("docs/deployment.md", "docs/torchscript.md") and not calls_can_be_made():
        pytest.skip("package() refuses calls of this PyTorch's operators")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path / "cache"))
    text = DOCUMENTS[page].read_text()
    blocks = [(text[: m.start()].count("\n") + 2, m[1]) for m in _EXAMPLE.finditer(text)]
    space = {"__name__": "example"}
    if page in ("README.md", "packages/compile-api/README.md"):
        exec(GIVEN, space)
    without = next((name for name in OPTIONAL if f"import {name}" in text and find_spec(name) is None), None)
    sources = tmp_path / DOCUMENTS[page].with_suffix(".py").name
    lines = [""] * (text.count("\n") + 1)
    for at, block in blocks:
        lines[at - 1 : at - 1 + block.count("\n")] = block.splitlines()
    sources.write_text("\n".join(lines))  # so that the program's lines can be shown
    from dynamo_capture import set_stance
    from prims.logs import set_logs

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for at, block in blocks:
                if without is None or f"import {without}" not in block:
                    exec(compile("\n" * (at - 1) + block, str(sources), "exec"), space)
    finally:
        set_logs()
        set_stance("default")
    if without is not None:
        pytest.skip(f"all but the examples that need {without}")


def test_each_package_s_example_needs_nothing_else():
    """What an example of docs/packages.md imports is the package that its section is about, and ``prims``."""
    text = (DOCS / "packages.md").read_text()
    sections = re.findall(r"^## ([\w-]+): .*?^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert [name for name, _ in sections] == ["prims", "dynamo-capture", "aot-autograd", "inductor-gen", "compile-api"]
    for name, block in sections:
        tree = ast.walk(ast.parse(block))
        asked = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in tree
                 if isinstance(n, (ast.Import, ast.ImportFrom))}  # fmt: skip
        assert {a.split(".")[0] for a in asked} - {"torch", "prims"} == {name.replace("-", "_")} - {"prims"}


def slug(heading):
    """A heading's anchor on GitHub: the site's is the same but for runs of hyphens, which no heading has."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
    return re.sub(r"\s", "-", words)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links(name):
    path = DOCUMENTS[name]
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([^)\s]*))?\)", text):
        found = path.parent / target if target else path
        assert found.exists(), f"{name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), flags=re.M)
            assert anchor in map(slug, headings), f"{name} links to {target}#{anchor}"


def test_every_page_is_linked_and_on_the_site():
    readme, site = (ROOT / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        assert f"docs/{page.name}" in readme, page.name
        assert f": {page.name}\n" in site, page.name


def test_words_of_our_own_are_in_the_glossary():
    """Each is there once, in the order of the alphabet."""
    rows = re.findall(r"^\| \*\*([^*]+)\*\*", (DOCS / "glossary.md").read_text(), flags=re.M)
    assert rows == sorted(set(rows), key=lambda row: row.split(",")[0])
    assert {"envelope", "claim", "cluster", "fuel", "stance", "verdict"} <= {row.split(",")[0] for row in rows}


def test_torch_compiles_options_are_answered():
    """Every argument of ``torch.compile`` and every name of ``torch.compiler`` has its row in the migration table."""
    import inspect

    import torch

    text = (DOCS / "migration.md").read_text()
    for name in inspect.signature(torch.compile).parameters:
        assert re.search(rf"^\| `{name}\b", text, flags=re.M), name
    for name in torch.compiler.__all__:
        assert f"`torch.compiler.{name}" in text, name
    import compile_api

    for name in re.findall(r"`compile_api\.(\w+)", text):
        assert hasattr(compile_api, name), name
