"""Schema dumps, their differences, and the version bump that each needs."""

from __future__ import annotations

import copy

import pytest

from prims.errors import UserError
from prims.ir import schema


@pytest.fixture
def old():
    return schema.dump("prim")


def changed(old, change):
    new = copy.deepcopy(old)
    change(new)
    return new


CHANGES = [
    ("none", lambda s: None),
    ("none", lambda s: s["constraints"].update({"PRIM-C2": "reworded"})),
    ("minor", lambda s: s["ops"].update(cbrt={"params": [], "dtypes": [], "since": [1, 1]})),
    ("minor", lambda s: s["ops"]["sin"]["dtypes"].append("float8")),
    ("minor", lambda s: s["ops"]["sin"]["params"].append({"name": "fast", "kind": "bool", "default": False})),
    ("minor", lambda s: s["input_kinds"].append("generator")),
    ("minor", lambda s: s["constraints"].pop("PRIM-C7")),
    ("major", lambda s: s["constraints"].update({"PRIM-C99": "new"})),
    ("major", lambda s: s["ops"].pop("sin")),
    ("major", lambda s: s["ops"]["sin"]["dtypes"].pop()),
    ("major", lambda s: s["ops"]["sin"]["params"].append({"name": "fast", "kind": "bool"})),
    ("major", lambda s: s["ops"]["sum"]["params"].reverse()),
    ("major", lambda s: s["output_kinds"].remove("saved")),
]


@pytest.mark.parametrize(("bump", "change"), CHANGES)
def test_bump(old, bump, change):
    new = changed(old, change)
    assert schema.bump_needed(schema.diff(old, new)) == bump
    major, minor = old["version"]
    versions = {"none": [major, minor], "minor": [major, minor + 1], "major": [major + 1, 0]}
    assert schema.check_declared_version(old, {**new, "version": versions[bump]}) is None
    if bump != "none":
        problem = schema.check_declared_version(old, new)
        assert problem is not None and "need at least" in problem


def test_version_cannot_go_back(old):
    assert schema.check_declared_version(old, {**old, "version": [0, 9]}) is not None


@pytest.mark.parametrize("dialect", ["torch", "aten", "prim"])
def test_declared_version_fits_the_stored_schema(dialect):
    problem = schema.check_declared_version(schema.stored(dialect), schema.dump(dialect))
    assert problem is None, problem


def test_unknown_dialect():
    with pytest.raises(UserError, match="nonsense"):
        schema.dump("nonsense")
    with pytest.raises(UserError, match="no schema is stored"):
        schema.stored("nonsense")
