"""What the documentation site needs beside ``docs/``, as hooks of mkdocs: pages and files of other folders.

A document is read on GitHub and on the site. Its links are relative to where it lies in the repository; here those that
leave ``docs/`` are turned to the page that the target is on the site, or to a copy of the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("prims", "dynamo-capture", "aot-autograd", "inductor-gen", "compile-api")
#: The pages that lie elsewhere in the repository.
ELSEWHERE = {
    **{f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES},
    "packages/prims/PRIMITIVES.md": "packages/primitives.md",
    "benchmarks/README.md": "benchmarks/records.md",
}
_LINK = re.compile(r"(\]\()([\w./-]+)((?:#[^)\s]*)?\))")
_FROM_ELSEWHERE = re.compile(rb"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|"""
                         rb"""<link[^>]*rel=["']?(?:stylesheet|preload)[^>]*href=["']?(?:https?:)?//""")


class _IndentByTwo(Extension):
    """Lists in lists are indented by two as on GitHub, not by four. The first extension: the parser is made anew."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.build_parser()


def on_config(config: Any) -> Any:
    """Markdown as GitHub reads it."""
    config["markdown_extensions"].insert(0, _IndentByTwo())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and the files that documents link to."""
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    linked = {
        _target(_place(page.src_uri), found[1])
        for page in files.documentation_pages() for found in _LINK.findall(page.content_string)
    }  # fmt: skip
    for path in sorted(linked):
        if _on_site(path) is None and (ROOT / path).is_file():
            files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn the links that lead to another place on the site than in the repository."""
    here = page.file.src_uri
    place = _place(here)

    def turned(match: re.Match[str]) -> str:
        path = _target(place, match[2])
        found = _on_site(path)
        if found is None and (ROOT / path).is_file():
            found = f"files/{path}"
        if found is None:  # mkdocs says that it leads nowhere
            return match[0]
        return f"{match[1]}{posixpath.relpath(found, posixpath.dirname(here) or '.')}{match[3]}"

    return _LINK.sub(turned, markdown)


def on_post_build(config: Any) -> None:
    """The site works without a network.

    Raises:
        PluginError: a page loads something from another host.
    """
    for page in Path(config["site_dir"]).rglob("*.html"):
        found = _FROM_ELSEWHERE.search(page.read_bytes())
        if found:
            raise PluginError(f"{page} loads something from elsewhere: {found[0]!r}")


def _place(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return next((path for path, page in ELSEWHERE.items() if page == uri), f"docs/{uri}")


def _target(place: str, link: str) -> str:
    """What a document's link leads to, from the repository's root; a folder's page is its README."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _on_site(path: str) -> str | None:
    """The page or file of the site that something in the repository is."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).exists() else None
