"""What the documentation shows that is made from code and records: ``python docs_tables.py`` writes it anew.

A table, a stage's text or a plot with its caption stands between ``<!-- NAME: generated -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from pathlib import Path

import docs_plots
import docs_stages

DOCS = Path(__file__).parent.parent / "docs"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _plain(text: str) -> str:
    """Docstring markup as Markdown."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


def option_rows() -> dict[str, str]:
    """What the docstring of ``Options`` says of each option."""
    from prims.options import Options

    text = inspect.cleandoc(Options.__doc__ or "").partition("Attributes:")[2]  # as from Python 3.13 on it is indented
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", text, flags=re.S | re.M)
    return {name: _plain(what) for name, what in found}


def options() -> str:
    """A row for each option: its name, default and meaning."""
    from prims.options import CACHE_KEY_FIELDS, Options

    said = option_rows()
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(Options):
        default = "`~/.cache/quintet`" if field.name == "cache_dir" else f"`{field.default!r}`"
        key = " (part of the kernels' cache key)" if field.name in CACHE_KEY_FIELDS else ""
        lines.append(f"| `{field.name}` | {default} | {_cell(said[field.name])}{key} |")
    return "\n".join(lines)


def modes() -> str:
    """A row for each mode: the options that it sets."""
    from compile_api.modes import MODE_OPTIONS

    lines = ["| mode | sets |", "|---|---|"]
    for name, changes in MODE_OPTIONS.items():
        sets = ", ".join(f"`{option}={value}`" for option, value in changes.items())
        lines.append(f"| `{name}` | {sets or 'nothing'} |")
    return "\n".join(lines)


def breaks() -> str:
    """A row for each reason why a graph may end: its number, what it is, and what to do."""
    from dynamo_capture.breaks import REASONS

    lines = ["| id | why the graph ends | what to do |", "|---|---|---|"]
    lines += [f"| {r.number} | {_cell(r.title)} | {_cell(r.hint)} |" for r in REASONS.values()]
    return "\n".join(lines)


def logs() -> str:
    """A row for each logger."""
    from prims.logs import LOGS

    return "\n".join(["| logger | says |", "|---|---|", *(f"| `quintet.{name}` | {what} |" for name, what in LOGS.items())])


def stances() -> str:
    """A row for each stance."""
    from prims.stance import STANCES

    return "\n".join(["| stance | what it does |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in STANCES.items())])


def constraints() -> dict[str, str]:
    """The labels of errors about graphs and files, from all packages, but those of single primitives."""
    from inductor_gen.codegen import rendering
    from inductor_gen.fuse import check
    from inductor_gen.kernel import ir
    from inductor_gen.plan import memory
    from inductor_gen.rewrite import table
    from prims import artefact
    from prims.ir.constraints import CONSTRAINTS, FILE_RULES

    found: dict[str, str] = {}
    for part in (CONSTRAINTS, FILE_RULES, artefact.RULES, table.CONSTRAINTS, check.CONSTRAINTS, ir.CONSTRAINTS,
                 rendering.CONSTRAINTS, memory.CONSTRAINTS):  # fmt: skip
        assert not found.keys() & part.keys()
        found.update(part)
    return found


def labels() -> str:
    """A row for each label, by the form that it is about."""
    about = {
        "ENV": "graphs of every dialect", "TORCH": "captured graphs", "ATEN": "ATen graphs", "PRIM": "graphs of primitives",
        "FILE": "stored graphs", "ART": "stored programs and compiled graphs", "GRAPH": "rewritten graphs",
        "FUSE": "clusters", "KERNEL": "kernels in order", "LAUNCH": "launches", "MEMORY": "memory plans",
    }  # fmt: skip
    lines = ["| label | of | what has to hold |", "|---|---|---|"]
    lines += [f"| {label} | {about[label.split('-')[0]]} | {_cell(what)} |" for label, what in constraints().items()]
    return "\n".join(lines)


def plot(name: str) -> str:
    """A plot and how it was measured."""
    title = re.search(r"<title>(.*?)</title>", picture(name))
    return f"![{title[1]}](pictures/{name}.svg)\n\n{docs_plots.PLOTS[name][1]()}"


def picture(name: str) -> str:
    """The text of a picture."""
    return docs_plots.PLOTS[name][0]() if name in docs_plots.PLOTS else docs_stages.PICTURES[name]()


#: The files of ``docs/pictures``.
PICTURES = (*docs_plots.PLOTS, *docs_stages.PICTURES)

TABLES = {"options": ("options.md", options), "modes": ("options.md", modes),
          "breaks": ("troubleshooting.md", breaks), "logs": ("logging.md", logs),
          "stances": ("options.md", stances), "needed": ("devices.md", docs_stages.needed), "labels": ("messages.md", labels),
          **{name: ("how-it-works.md", make) for name, make in docs_stages.TEXTS.items()},
          **{f"plot {name}": ("benchmarks.md", functools.partial(plot, name)) for name in docs_plots.PLOTS}}  # fmt: skip


def filled(text: str, name: str, table: str) -> str:
    """A page with a table put in its place."""
    made, count = re.subn(
        rf"(<!-- {name}: generated -->\n).*?(?<=\n)(<!-- end -->)", lambda m: f"{m[1]}\n{table}\n\n{m[2]}", text, flags=re.S
    )
    assert count == 1, f"no place for the table {name}"
    return made


if __name__ == "__main__":
    (DOCS / "pictures").mkdir(exist_ok=True)
    for name in PICTURES:
        (DOCS / "pictures" / f"{name}.svg").write_text(picture(name))
    for name, (page, make) in TABLES.items():
        path = DOCS / page
        path.write_text(filled(path.read_text(), name, make()))
