"""From a row's expression template to C and Triton text, and what such text needs around it.

A template is a `str.format` string, or a mapping with one per dtype class (an exact dtype name such as
``"float64"`` wins over ``"float"``, ``"int"`` or ``"bool"``). The class is that of the operands. Fields:

- ``{0} {1} {2}``: the operands, names or parenthesised literals (they may appear several times);
- ``{T}``: the C or Triton compute type; ``{U}``: the unsigned integer type of that size; ``{bits}``: its bits;
- ``{f}``: libm's suffix (``f`` for float, nothing for double).

float16 and bfloat16 compute in float; bool is 0/1. C text wants ``-fwrapv -fno-math-errno
-fno-trapping-math``. Names beginning with ``q_`` are this module's helpers: `c_prelude` and `triton_prelude`
give the definitions that a text uses.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Sequence, Set
from typing import Any

import torch

from prims.dtypes import HALVES, KEPT_FLOATS, ROWS
from prims.errors import Unsupported
from prims.ops.declarations import declarations
from prims.ops.prelude import C_HELPERS, C_SIMD, TRITON_HELPERS
from prims.ops.row import TABLE, PrimOp, Template

__all__ = [
    "DRAWN_TOGETHER",
    "calls_libm",
    "c_convert",
    "c_drawn",
    "c_draws",
    "c_expr",
    "c_literal",
    "c_prelude",
    "c_random",
    "c_type",
    "dtype_class",
    "stays_scalar",
    "triton_convert",
    "triton_expr",
    "triton_literal",
    "triton_prelude",
    "triton_random",
    "triton_type",
]

def dtype_class(dtype: torch.dtype) -> str:
    """``"float"``, ``"int"`` or ``"bool"``."""
    if dtype.is_floating_point:
        return "float"
    return "bool" if dtype == torch.bool else "int"


def _pick(template: Template | None, op: PrimOp, dtype: torch.dtype, language: str) -> str:
    if isinstance(template, str):
        return template
    if template is not None:
        for key in (str(dtype).removeprefix("torch."), dtype_class(dtype)):
            if key in template:
                return template[key]
    raise Unsupported(f"primitive {op.name} has no {language} expression for {dtype}")


@functools.lru_cache(maxsize=1024)
def _c_fields(dtype: torch.dtype) -> dict[str, Any]:
    ctype = ROWS[dtype].c
    bits = 32 if ctype == "float" else dtype.itemsize * 8
    return {"T": ctype, "U": f"uint{bits}_t", "bits": bits, "f": "f" if ctype == "float" else ""}


def c_type(dtype: torch.dtype) -> str:
    """The C type that values of a dtype are computed in. Raises `Unsupported` for a dtype without one."""
    return str(_c_fields(dtype)["T"])


#: A template that chooses one of two operands.
_CHOICE = re.compile(r"\((.+) \? (\{\d\}) : (\{\d\})\)")


def c_expr(op: PrimOp, args: Sequence[str], dtype: torch.dtype, branchless: bool = False) -> str:
    """The C expression of an elementwise primitive on operands (C atoms) of `dtype`.

    Comparisons and logical operations give an int 0/1. For ``where`` the dtype is that of its second
    operand. Raises `Unsupported` when the row has no template for the dtype.

    `branchless`: a choice between operands is made of their bits. Of ``c ? x : y`` a compiler may make a branch, which
    it takes out of the loop in part, or moves what only one side needs into; a call in a branch is not vectorised.
    """
    template = _pick(op.c, op, dtype, "C")
    choice = _CHOICE.fullmatch(template) if branchless else None
    if choice is not None:
        c, x, y = choice.groups()
        bits = f"(({{T}})({y} ^ (({x} ^ {y}) & -({{T}})(({c}) != 0))))"
        template = f"q_pick{{f}}({c}, {x}, {y})" if dtype.is_floating_point else bits
    return template.format(*args, **_c_fields(dtype))


def c_literal(value: Any, dtype: torch.dtype) -> str:
    """A Python number as a C literal of the compute type, an atom (negative ones are parenthesised)."""
    ctype = c_type(dtype)
    if ctype in ("float", "double"):
        return _c_float(float(value), ctype)
    if dtype == torch.bool:
        return "1" if value else "0"
    number = int(value)
    if ctype == "int64_t":
        if number == -(2**63):
            return "INT64_MIN"
        text = f"INT64_C({abs(number)})"
    else:
        text = str(abs(number))
    return f"(-{text})" if number < 0 else text


def _c_float(value: float, ctype: str) -> str:
    if math.isnan(value):
        return f"(({ctype})NAN)"
    suffix = ""
    if ctype == "float":
        suffix = "f"
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        return f"(({ctype})INFINITY)" if value > 0 else f"(-({ctype})INFINITY)"
    text = repr(value) if ctype == "double" else _shortest_float32(value)
    if not any(c in text for c in ".en"):
        text += ".0"
    return f"({text}{suffix})" if text.startswith("-") else text + suffix


def _shortest_float32(value: float) -> str:
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return f"{value:.9g}"


def c_convert(arg: str, src: torch.dtype, dst: torch.dtype) -> str:
    """The C expression that converts a compute value of `src` to one of `dst`.

    To a narrow float it rounds (the value stays a float); to an integer it truncates.
    """
    if src == dst:
        return arg
    if dst == torch.bool:
        return f"({arg} != 0)"
    if dst in HALVES or dst in KEPT_FLOATS:
        return f"q_round_{ROWS[dst].name}({arg if c_type(src) == 'float' else f'(float){arg}'})"
    if src.is_floating_point and dst.is_signed and not dst.is_floating_point:
        # Eager's compiler makes narrow integers of 32-bit ones (and bytes, by PyTorch's own cast, of 64-bit ones).
        whole = f"q_{'d' if c_type(src) == 'double' else 'f'}2i{max(32, 8 * dst.itemsize)}({arg})"
        return whole if dst.itemsize >= 4 else f"(({c_type(dst)}){whole})"
    if src.is_floating_point and not dst.is_floating_point:
        if dst == torch.uint8 and c_type(src) == "float":
            return f"q_f2u8({arg})"
        return f"(({c_type(dst)})q_{'d' if c_type(src) == 'double' else 'f'}2i64({arg}))"
    return arg if c_type(src) == c_type(dst) else f"(({c_type(dst)}){arg})"


def c_random(op: PrimOp, seed: str, offset: str, index: str, dtype: torch.dtype) -> str:
    """The C expression of element `index` (linear, int64) of a ``random_*`` primitive's result."""
    wide = dtype.itemsize == 8
    kind = op.name.removeprefix("random_")
    if kind == "bits":
        call = f"q_philox{'64' if wide else ''}({seed}, {offset}, {index})"
        return f"(({c_type(dtype)}){call})"
    if kind == "uniform":
        return f"q_uniform_{ROWS[dtype].name}({seed}, {offset}, {index})"
    value = f"q_normal{'64' if wide else '32'}({seed}, {offset}, {index})"
    return c_convert(value, torch.float32, dtype) if not wide else value


def c_drawn(op: PrimOp, place: str, dtype: torch.dtype) -> str:
    """The C expression of an element of a ``random_uniform`` or ``random_normal`` result of at most 32 bits, given what
    `c_draws` made for it."""
    if op.name == "random_uniform":
        return f"q_unit_{ROWS[dtype].name}({place})"
    return c_convert(place, torch.float32, dtype)


#: Elements that `c_draws` makes something for at most.
DRAWN_TOGETHER = 256


def c_draws(op: PrimOp, seed: str, offset: str, first: str, count: str, name: str) -> list[str]:
    """C statements that make an array `name` of what `c_drawn` takes for `count` elements from `first` on, at most
    `DRAWN_TOGETHER`; that element's is at ``first & 3``."""
    ctype, function = ("uint32_t", "q_words") if op.name == "random_uniform" else ("float", "q_normals")
    return [f"{ctype} {name}[{DRAWN_TOGETHER + 8}];", f"{function}({seed}, {offset}, {first}, {count}, {name});"]


def triton_random(op: PrimOp, seed: str, offset: str, index: str, dtype: torch.dtype) -> str:
    """The Triton expression of elements `index` (linear, a block of int64) of a ``random_*`` result."""
    wide = dtype.itemsize == 8
    kind = op.name.removeprefix("random_")
    if kind == "bits":
        return f"q_philox{'64' if wide else ''}({seed}, {offset}, {index}).to({triton_type(dtype)})"
    if kind == "uniform":
        return f"q_uniform_{ROWS[dtype].name}({seed}, {offset}, {index})"
    value = f"q_normal{'64' if wide else '32'}({seed}, {offset}, {index})"
    return triton_convert(value, torch.float32, dtype) if not wide else value


_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


def _closure(source: str, helpers: dict[str, str]) -> list[str]:
    """The helpers that a text uses, in the order of their definition (each uses only earlier ones)."""
    needed: set[str] = set()
    todo = [source]
    while todo:
        for name in set(_WORD.findall(todo.pop())) & helpers.keys() - needed:
            needed.add(name)
            todo.append(helpers[name])
    return [name for name in helpers if name in needed]


#: Words of C text of which no vectors are made, or of fmod not by every compiler.
_SCALAR = frozenset(("for", "while", "fmod", "fmodf", "lgamma_r", "lgammaf_r", "q_erfinv", "q_digamma"))


def _libm(words: Set[str]) -> list[tuple[str, str, int]]:
    """The functions of libm with vector versions among ``words``: name, C type, number of operands."""
    typed = (("f", "float"), ("", "double"))
    return [(base + suffix, ctype, arity) for base, (arity, _) in C_SIMD.items() for suffix, ctype in typed
            if base + suffix in words]  # fmt: skip


@functools.cache
def _words(op: str) -> frozenset[str]:
    """The words of the C of an elementwise primitive and of the helpers that it calls."""
    c = TABLE[op].c if op in TABLE else None
    source = " ".join(c.values()) if isinstance(c, dict) else str(c or "")
    text = [source, *(C_HELPERS[name] for name in _closure(source, C_HELPERS))]
    return frozenset(_WORD.findall("\n".join(text).replace("{f}", "f")))


@functools.cache
def calls_libm(op: str) -> bool:
    """Whether the C of an elementwise primitive calls functions of libm with vector versions, or helpers that do."""
    return bool(_libm(_words(op)))


@functools.cache
def stays_scalar(op: str) -> bool:
    """Whether some compiler makes no vectors of the C of an elementwise primitive: it loops, or calls what has none."""
    return bool(_SCALAR & _words(op))


def c_prelude(source: str, simd: bool = True, own: str = "") -> str:
    """What the C text `source` needs before it: declarations of what C's library has (:mod:`prims.ops.declarations`),
    vector ones of libm functions, and ``q_*`` helpers.

    With `simd`, libm functions are declared to have vector versions, which glibc's libmvec provides since
    2.35 (`prims.ops.prelude.C_SIMD` maps each to its first glibc); without, they stay scalar calls. `own` stands
    before the helpers.
    """
    helpers = _closure(source, C_HELPERS)
    text = "\n".join([source, *(C_HELPERS[name] for name in helpers)])
    lines = [*declarations("\n".join([text, own])), *[own] * bool(own)]
    for name, ctype, arity in _libm(set(_WORD.findall(text))) if simd else ():
        lines.append("#pragma omp declare simd notinbranch")
        lines.append(f"{ctype} {name}({', '.join([ctype] * arity)});")
    lines += [C_HELPERS[name] for name in helpers]
    return "\n".join(lines) + "\n"


# ---- Triton ---------------------------------------------------------------------------------------------


def triton_type(dtype: torch.dtype) -> str:
    """The Triton type that values of a dtype are computed in."""
    return ROWS[dtype].triton


def triton_expr(op: PrimOp, args: Sequence[str], dtype: torch.dtype) -> str:
    """The Triton expression of an elementwise primitive on blocks (or scalars) of `dtype`."""
    fields = {**_c_fields(dtype), "T": triton_type(dtype)}
    fields["U"] = f"tl.uint{fields['bits']}"
    return _pick(op.triton, op, dtype, "Triton").format(*args, **fields)


def triton_literal(value: Any, dtype: torch.dtype) -> str:
    """A Python number as a Triton literal, an atom, for use inside an expression with a value of `dtype`.

    Assigned to a name, a float literal would become a float32 whatever `dtype` is.
    """
    if dtype.is_floating_point:
        number = float(value)
        if not math.isfinite(number):
            return f"float('{number}')"
        text = repr(number)
    elif dtype == torch.bool:
        return str(bool(value))
    else:
        whole = int(value)
        if dtype == torch.uint8:  # of which Triton makes no negative number
            whole %= 256
        text = str(whole)
    return f"({text})" if text.startswith("-") else text


def triton_convert(arg: str, src: torch.dtype, dst: torch.dtype) -> str:
    """The Triton expression that converts a compute value of `src` to one of `dst` (narrow floats: rounded)."""
    if src == dst:
        return arg
    if dst == torch.bool:
        return f"({arg} != 0)"
    if dst in HALVES:
        if src == torch.float64:
            arg = f"{arg}.to(tl.float32)"  # by way of float32, as PyTorch converts
        return f"{arg}.to({ROWS[dst].in_triton}).to(tl.float32)"
    if dst in KEPT_FLOATS:
        return f"q_round_{ROWS[dst].name}({arg}{'' if triton_type(src) == 'tl.float32' else '.to(tl.float32)'})"
    if src.is_floating_point and dst.itemsize < 4:  # narrow integers of wide ones, as eager's compiler makes them
        return f"{arg}.to({'tl.int64' if dst == torch.uint8 else 'tl.int32'}).to({triton_type(dst)})"
    return f"{arg}.to({triton_type(dst)})"


def triton_prelude(source: str) -> str:
    """Imports and ``q_*`` helper functions (``@triton.jit``) that the Triton text `source` uses."""
    lines = ["import triton", "import triton.language as tl", "from triton.language.extra import libdevice", ""]
    for name in _closure(source, TRITON_HELPERS):
        lines += ["", "@triton.jit", TRITON_HELPERS[name].strip(), ""]
    return "\n".join(lines) + "\n"
