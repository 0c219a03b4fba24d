"""Imports that were broken off: the next one begins anew, in our tables and in other libraries."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from prims.imports import forget_broken_imports
from prims.registry import Definitions, define_operator

TABLE: Definitions[int] = Definitions()


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """``modules(name, text)`` writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name, text):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_import_that_was_broken_off_defines_its_names_again(modules, error, monkeypatch):
    monkeypatch.setattr(sys, "broken_once", False, raising=False)
    modules(f"defines_{error.__name__}", f"""
        import sys
        from {__name__} import TABLE
        first = object()
        TABLE.define("{error.__name__}.a", first, "number")
        if not sys.broken_once:
            sys.broken_once = True
            raise {error.__name__}
        TABLE.define("{error.__name__}.b", first, "number")
    """)  # fmt: skip
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    with pytest.raises(error):
        __import__(f"defines_{error.__name__}")
    module = __import__(f"defines_{error.__name__}")
    assert TABLE[f"{error.__name__}.a"] is TABLE[f"{error.__name__}.b"] is module.first


def test_two_definitions_of_one_name_are_a_mistake(modules, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    modules("defines_first", f"from {__name__} import TABLE\nTABLE.define('one', 1, 'number')\n")
    modules("defines_second", f"from {__name__} import TABLE\nTABLE.define('one', 2, 'number')\n")
    modules("defines_both", f"from {__name__} import TABLE\nfor n in 1, 2: TABLE.define('two', n, 'number')\n")
    __import__("defines_first")
    with pytest.raises(ValueError, match="number 'one' is defined twice"):
        __import__("defines_second")
    with pytest.raises(ValueError, match="number 'two' is defined twice"):
        __import__("defines_both")
    assert TABLE["one"] == 1


def test_an_operator_defined_again_runs_its_newest_implementation():
    for factor in (2, 3):
        define_operator("test_registry_times(Tensor x) -> Tensor", lambda x, factor=factor: x * factor)
        assert torch.ops.quintet.test_registry_times(torch.ones(1)).item() == factor


def test_a_library_whose_import_was_broken_off_is_forgotten_as_a_whole(modules, monkeypatch):
    monkeypatch.setattr(sys, "broken_once", False, raising=False)
    modules("broken_library.__init__", """
        import sys
        import broken_library.part
        if not sys.broken_once:
            sys.broken_once = True
            raise KeyboardInterrupt
        value = broken_library.part.value
    """)  # fmt: skip
    modules("broken_library.part", "value = 7")
    with pytest.raises(KeyboardInterrupt):
        __import__("broken_library")
    with pytest.raises((AttributeError, NameError)):
        __import__("broken_library")  # as Python has it: the finished part is no attribute of the new package
    forget_broken_imports()
    assert __import__("broken_library").value == 7
    kept = set(sys.modules)
    forget_broken_imports()
    assert set(sys.modules) == kept
