"""Mutated files are refused or right, and those who watch for worse see it."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys

import pytest
from fuzz.hostile import KINDS, Hostile

COUNT = 150


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    before, path = os.getcwd(), list(sys.path)
    folder = tmp_path_factory.mktemp("hostile")
    os.chdir(folder)
    yield Hostile(folder)
    os.chdir(before)
    sys.path[:] = path


@pytest.mark.parametrize("kind", KINDS)
def test_mutations(hostile, kind):
    for seed in range(COUNT):
        assert hostile.run(kind, seed) is None, f"python -m fuzz.hostile {kind} --seed {seed} --count 1"
    outcomes = {name.partition(": ")[2]: n for name, n in hostile.outcomes.items() if name.startswith(kind)}
    assert sum(outcomes.values()) == COUNT
    assert len(outcomes) >= 2 and max(outcomes.values()) < COUNT, outcomes


def test_a_resolver_that_imports_is_seen(hostile, monkeypatch):
    def import_it(name):
        home, _, last = str(name).removeprefix("@").rpartition(".")
        try:
            return getattr(importlib.import_module(home), last)
        except Exception as error:
            raise LookupError(name) from error

    monkeypatch.setattr("prims.ir.stored.target_of", import_it)
    found = [hostile.run("graph-names", seed) for seed in range(400)]
    assert any(wrong and ("hostile_canary" in wrong or "code of the file" in wrong) for wrong in found)
    sys.modules.pop("hostile_canary", None)
    for name in ("CANARY", hostile.folder / "CANARY"):
        pathlib.Path(name).unlink(missing_ok=True)


@pytest.mark.parametrize("check", ["contents", "find"])
def test_a_cache_that_does_not_check_is_seen(hostile, monkeypatch, check):
    from prims.disk import cache

    if check == "contents":
        monkeypatch.setattr(cache.KernelCache, "contents", lambda self, lib: lib.read_bytes() if lib.is_file() else None)
    else:
        monkeypatch.setattr(cache, "_checksum", lambda entry: entry.get("checksum", ""))
    # One of about 150 tells, which ones depends on the entries' names: of 400 none did once.
    assert any(hostile.run("kernel-cache", seed) for seed in range(4000))
