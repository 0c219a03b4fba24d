"""The documentation: its tables are those of the code, its examples run, its links lead somewhere."""

from __future__ import annotations

import re
import warnings

import docs_tables
import pytest
from docs_tables import DOCS, TABLES

#: Pages whose Python blocks are examples; the others show signatures and stages.
PAGES = ("logging.md", "checks.md", "options.md", "troubleshooting.md", "training.md", "serving.md", "caches.md", "migration.md")


@pytest.mark.parametrize("name", TABLES)
def test_tables(name):
    page, make = TABLES[name]
    text = (DOCS / page).read_text()
    assert docs_tables.filled(text, name, make()) == text, "run integration-tests/docs_tables.py"


def test_each_option_is_said():
    from prims.options import Options

    assert list(docs_tables.option_rows()) == [*Options.names()]


@pytest.mark.parametrize("page", PAGES)
def test_examples(page, tmp_path, monkeypatch):
    """All blocks of a page in order, in one namespace; one that is to fail says so by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path / "cache"))
    text = (DOCS / page).read_text()
    blocks = [(text[: m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, flags=re.S | re.M)]
    assert blocks, f"{page} has no example"
    space = {"__name__": "example"}
    sources = tmp_path / page.replace(".md", ".py")
    lines = [""] * (text.count("\n") + 1)
    for at, block in blocks:
        lines[at - 1 : at - 1 + block.count("\n")] = block.splitlines()
    sources.write_text("\n".join(lines))  # so that the program's lines can be shown
    from prims.logs import set_logs

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for at, block in blocks:
                exec(compile("\n" * (at - 1) + block, str(sources), "exec"), space)
    finally:
        set_logs()


@pytest.mark.parametrize("path", [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"], ids=lambda p: p.name)
def test_links(path):
    for target in re.findall(r"\]\(([\w./-]*[./][\w./-]*)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_page_is_linked():
    readme = (DOCS.parent / "README.md").read_text()
    assert all(f"docs/{page.name}" in readme for page in DOCS.glob("*.md"))


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
