"""What generated C takes from C's library is declared as the headers declare it, and the headers serve the rest."""

from __future__ import annotations

import subprocess

import pytest

from prims.ops import TABLE
from prims.ops.declarations import _FUNCTIONS, _HEADERS, _MACROS, _TYPES, declarations
from prims.ops.prelude import C_HELPERS
from prims.ops.templates import c_prelude

INCLUDES = [f"#include <{header}.h>" for header in (*_HEADERS, "sched")]


def compiled(lines, folder, *flags):
    (folder / "d.c").write_text("\n".join(lines) + "\n")
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused", *flags, str(folder / "d.c"), "-lm", "-o", str(folder / "d.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr


def test_types_and_functions_are_the_headers_own(tmp_path):
    """C refuses a second declaration that is not the first one."""
    assert compiled([*INCLUDES, *_TYPES, *_FUNCTIONS.values()], tmp_path, "-c") == ""
    assert "conflicting types" in compiled([*INCLUDES, "float exp(float);"], tmp_path, "-c")


def test_macros_have_the_headers_values(tmp_path):
    uses = [f"{name} + 0" for name in _MACROS if "(" not in _MACROS[name].split()[1]]
    uses += [f"{name}(12345678901)" for name in ("INT64_C", "UINT64_C")]
    asked = [f"__typeof__({use}) asked{k} = {use};" for k, use in enumerate(uses)]
    texts = []
    for lines in ([*INCLUDES, *asked], [*_TYPES, *_MACROS.values(), *asked]):
        assert compiled(lines, tmp_path, "-S") == ""
        texts.append((tmp_path / "d.so").read_text())
    assert texts[0] == texts[1]


def test_every_function_is_there(tmp_path):
    pointers = [f"void* p{k} = (void*){name};" for k, name in enumerate(_FUNCTIONS)]
    lines = [*_TYPES, *_FUNCTIONS.values(), *pointers]
    assert compiled(lines, tmp_path, "-shared", "-fPIC", "-Wl,--no-undefined") == ""


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.c))
def test_no_primitive_needs_a_header(name):
    c = TABLE[name].c
    text = "\n".join(c.values()) if isinstance(c, dict) else str(c)
    assert "#include" not in c_prelude(text.replace("{f}", "f"))


def test_no_helper_needs_a_header():
    assert "#include" not in c_prelude("\n".join(C_HELPERS))


@pytest.mark.parametrize(
    "text", ["y = j0(x);", "y = M_PI * x;", "qsort(p, n, 4, compare);", "n = SIZE_MAX;", "y = exp10(x);", "lgamma(x), f (x)"]
)
def test_unknown_names_bring_the_headers(text):
    assert declarations(text) == [f"#include <{header}.h>" for header in _HEADERS]


@pytest.mark.parametrize(
    "text", ["/* j0(x), M_PI */ y = x;", 's = "qsort(p)";', "ql.raise(x);", "p->call(x);", "// exit(1)\ny = (float)(x);"]
)
def test_what_names_nothing_of_the_library_does_not(text):
    assert declarations(text) == _TYPES


def test_only_what_is_used():
    assert declarations("y = expf(INFINITY);") == [*_TYPES, _MACROS["INFINITY"], _FUNCTIONS["expf"]]
    least = declarations("y = INT32_MIN;")
    assert least[-2:] == [_MACROS["INT32_MAX"], _MACROS["INT32_MIN"]]
