"""A dialect's schema as data, and the version bump that a change of it needs.

CI dumps the schema of the working tree, compares it with the one stored for the last release
(``src/prims/ir/schemas/<dialect>-<major>.<minor>.json``) and fails when the declared version is lower than the bump
that the difference needs.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from prims.errors import UserError
from prims.ir.constraints import CONSTRAINTS
from prims.ir.envelope import INPUT_KINDS, OUTPUT_KINDS
from prims.ir.versions import CURRENT, Version

__all__ = ["Change", "bump_needed", "check_declared_version", "diff", "dump", "stored"]

Schema = dict[str, Any]
#: ``(bump, sentence)`` with bump ``"major"``, ``"minor"`` or ``"none"``.
Change = tuple[str, str]


def dump(dialect: str) -> Schema:
    """Everything about a dialect that a producer or consumer can depend on.

    For the prim dialect the operators with their signatures; for all, descriptor kinds and constraints.
    """
    if dialect not in CURRENT:
        raise UserError(f"unknown dialect {dialect!r}", todo=f"Dialects are: {', '.join(CURRENT)}.")
    prefixes = ("ENV-", f"{dialect.upper()}-")
    schema: Schema = {
        "dialect": dialect,
        "version": list(CURRENT[dialect]),
        "input_kinds": sorted(INPUT_KINDS),
        "output_kinds": sorted(OUTPUT_KINDS),
        "constraints": {label: text for label, text in CONSTRAINTS.items() if label.startswith(prefixes)},
        "ops": {},
    }
    if dialect == "prim":
        from prims.ops import TABLE

        schema["ops"] = {
            name: {
                "params": [
                    {"name": p.name, "kind": p.kind, **({} if p.required else {"default": p.default})}
                    for p in op.params
                ],
                "dtypes": sorted(str(dtype).removeprefix("torch.") for dtype in op.dtypes),
                "since": list(op.since),
            }
            for name, op in sorted(TABLE.items())
        }
    return schema


def diff(old: Schema, new: Schema) -> list[Change]:
    """The changes from ``old`` to ``new``, each with the bump it needs.

    An addition is minor; a removal, a changed signature or a new constraint on what was allowed is major; a reworded
    constraint is none.
    """
    changes: list[Change] = []
    for field in ("input_kinds", "output_kinds"):
        changes += [("major", f"{field}: {kind!r} is gone") for kind in old[field] if kind not in new[field]]
        changes += [("minor", f"{field}: {kind!r} is new") for kind in new[field] if kind not in old[field]]
    for label, text in old["constraints"].items():
        if label not in new["constraints"]:
            changes.append(("minor", f"constraint {label} is lifted"))
        elif new["constraints"][label] != text:
            changes.append(("none", f"constraint {label} is reworded"))
    changes += [
        ("major", f"constraint {label} is new") for label in new["constraints"] if label not in old["constraints"]
    ]
    changes += [("major", f"op {name} is gone") for name in old["ops"] if name not in new["ops"]]
    changes += [("minor", f"op {name} is new") for name in new["ops"] if name not in old["ops"]]
    for name in sorted(old["ops"].keys() & new["ops"].keys()):
        changes += _op_changes(name, old["ops"][name], new["ops"][name])
    return changes


def _op_changes(name: str, old: Schema, new: Schema) -> list[Change]:
    changes: list[Change] = []
    before, after = old["params"], new["params"]
    if after[: len(before)] != before:
        changes.append(("major", f"op {name}: parameters {before} became {after}"))
    else:
        for param in after[len(before) :]:
            bump = "minor" if "default" in param else "major"
            changes.append((bump, f"op {name}: parameter {param['name']!r} is new"))
    changes += [("major", f"op {name}: dtype {d} is gone") for d in old["dtypes"] if d not in new["dtypes"]]
    changes += [("minor", f"op {name}: dtype {d} is new") for d in new["dtypes"] if d not in old["dtypes"]]
    return changes


def bump_needed(changes: list[Change]) -> str:
    """``"major"``, ``"minor"`` or ``"none"``: the largest bump among the changes."""
    kinds = {bump for bump, _ in changes}
    return next((bump for bump in ("major", "minor") if bump in kinds), "none")


def stored(dialect: str) -> Schema:
    """The schema stored for the newest release of a dialect.

    Raises:
        UserError: none is stored.
    """
    folder = pathlib.Path(__file__).parent / "schemas"
    files = sorted(folder.glob(f"{dialect}-*.json"), key=lambda path: _version_of(path.stem))
    if not files:
        raise UserError(f"no schema is stored for dialect {dialect!r}", todo=f"Write dump({dialect!r}) into {folder}.")
    loaded: Schema = json.loads(files[-1].read_text())
    return loaded


def _version_of(stem: str) -> Version:
    major, minor = stem.rsplit("-", 1)[1].split(".")
    return int(major), int(minor)


def check_declared_version(old: Schema, new: Schema) -> str | None:
    """None when ``new`` declares a version high enough for its changes, else what is wrong."""
    changes = diff(old, new)
    bump = bump_needed(changes)
    (major, minor), declared = old["version"], tuple(new["version"])
    least = {"major": (major + 1, 0), "minor": (major, minor + 1), "none": (major, minor)}[bump]
    if declared >= least:
        return None
    reasons = "; ".join(text for kind, text in changes if kind == bump) or "a version cannot go back"
    return f"dialect {new['dialect']} declares {declared}, its changes need at least {least}: {reasons}"


def _main() -> None:
    """``python -m prims.ir.schema``: store the schemas of the working tree's declared versions."""
    folder = pathlib.Path(__file__).parent / "schemas"
    folder.mkdir(exist_ok=True)
    for dialect, (major, minor) in CURRENT.items():
        path = folder / f"{dialect}-{major}.{minor}.json"
        path.write_text(json.dumps(dump(dialect), indent=1, sort_keys=True) + "\n")
        print(path)


if __name__ == "__main__":
    _main()
