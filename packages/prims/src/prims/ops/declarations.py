"""What generated C takes from the headers of C's library, declared without them.

Reading the four headers takes a C compiler 14 ms of the 60 that it needs for a translation unit without kernels
(gcc 12 on a Zen processor), and the largest of them serves for one function often. A text with words that are not known
here has the headers themselves.
"""

from __future__ import annotations

import re

__all__ = ["declarations"]

_HEADERS = ("math", "stdint", "stdlib", "string")

_UNARY = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 fabs floor lgamma log log10 log1p log2 "
    "nearbyint rint round sin sinh sqrt tan tanh tgamma trunc"
).split()
_BINARY = "atan2 copysign fmax fmin fmod hypot nextafter pow remainder".split()
_TYPED = (("f", "float"), ("", "double"))

_FUNCTIONS: dict[str, str] = {
    **{f"{name}{f}": f"{t} {name}{f}({t});" for name in _UNARY for f, t in _TYPED},
    **{f"{name}{f}": f"{t} {name}{f}({t}, {t});" for name in _BINARY for f, t in _TYPED},
    **{f"fma{f}": f"{t} fma{f}({t}, {t}, {t});" for f, t in _TYPED},
    **{f"frexp{f}": f"{t} frexp{f}({t}, int*);" for f, t in _TYPED},
    **{f"ldexp{f}": f"{t} ldexp{f}({t}, int);" for f, t in _TYPED},
    **{f"lgamma{f}_r": f"{t} lgamma{f}_r({t}, int*);" for f, t in _TYPED},
    "abs": "int abs(int);",
    "free": "void free(void*);",
    "malloc": "void* malloc(size_t);",
    "memcpy": "void* memcpy(void*, const void*, size_t);",
    "sched_yield": "int sched_yield(void);",
    "memset": "void* memset(void*, int, size_t);",
}

_MACROS: dict[str, str] = {
    **{name: f"#define {name}(x) __builtin_{name}(x)" for name in ("isfinite", "isinf", "isnan", "signbit")},
    "INFINITY": "#define INFINITY (__builtin_inff())",
    "NAN": '#define NAN (__builtin_nanf(""))',
    "INT64_C": "#define INT64_C(x) ((int64_t)x##LL)",
    "UINT64_C": "#define UINT64_C(x) ((uint64_t)x##ULL)",
    **{f"INT{bits}_MAX": f"#define INT{bits}_MAX __INT{bits}_MAX__" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}_MIN": f"#define INT{bits}_MIN (-INT{bits}_MAX - 1)" for bits in (8, 16, 32, 64)},
}

#: What a GNU compiler (gcc, clang, zig) says the types are: the headers' own definitions rest on the same.
_TYPES = [
    *(f"typedef __{u}INT{bits}_TYPE__ {u.lower()}int{bits}_t;" for u in ("", "U") for bits in (8, 16, 32, 64)),
    "typedef __INTPTR_TYPE__ intptr_t;",
    "typedef __SIZE_TYPE__ size_t;",
]

#: What stands before a bracket or in capitals, and is no name of a header's.
_LANGUAGE = frozenset(
    "alias aligned char collapse const default defined double float for if inline int int64_t long optimize private "
    "reduction return schedule shared short signed sizeof static switch typeof uint64_t unsigned vector_size "
    "visibility void while CPU GCC GPU KERNEL".split()
)
_OURS = re.compile(r"(q[a-z]?|k|quintet|omp)_|QL_|_[_A-Z]")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", re.DOTALL)
_WORD = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)(\s*\()?")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]+")


def declarations(text: str) -> list[str]:
    """Lines that declare what a C text uses of ``math.h``, ``stdint.h``, ``stdlib.h`` and ``string.h`` (and
    POSIX's ``sched_yield``): the headers themselves where it calls, or names in capitals, what is not known here."""
    words = _words(text)
    if words is None:
        return [f"#include <{header}.h>" for header in _HEADERS]
    macros = [_MACROS[f"INT{bits}_MAX"] for bits in (8, 16, 32, 64) if f"INT{bits}_MIN" in words]
    macros = list(dict.fromkeys([*macros, *(line for name, line in _MACROS.items() if name in words)]))
    return [*_TYPES, *macros, *(line for name, line in _FUNCTIONS.items() if name in words)]


def _words(text: str) -> frozenset[str] | None:
    """The known words of a text, None where there are others that may be a header's."""
    found = set()
    for name, bracket in set(_WORD.findall(_COMMENT.sub(" ", text))):
        if name in _FUNCTIONS or name in _MACROS:
            found.add(name)
        elif (bracket or _CAPITALS.fullmatch(name)) and name not in _LANGUAGE and not _OURS.match(name):
            return None
    return frozenset(found)
