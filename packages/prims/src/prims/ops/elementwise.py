"""The elementwise primitives, a row each: name, meaning, dtypes, PyTorch and NumPy references, C and Triton.

To add one, add a `unary` or `binary` call; handlers, graphs, verification, conformance samples and code
generation follow from it. Template fields are described in `prims.ops.templates`.
"""

from __future__ import annotations

from typing import Any

import torch

from prims.ops import numpy_math as nm
from prims.ops.check import ALL, BOOL, FLOATS, INTS, NUMERIC, REAL
from prims.ops.elementwise_rules import binary, unary
from prims.ops.lazy import np

INT_BOOL = INTS + BOOL

# ---- arithmetic and rounding ----------------------------------------------------------------------------

unary("neg", "-x; integers wrap", NUMERIC, torch.neg, "negative",
      c={"float": "(-{0})", "int": "(({T})(-{0}))"},
      triton={"float": "({0} * -1.0)", "int": "(-{0})"})  # fmt: skip
unary("abs", "|x|; the least integer stays itself", NUMERIC, torch.abs, "abs",
      c={"float": "fabs{f}({0})", "uint8": "{0}", "int": "(({T})({0} < 0 ? -{0} : {0}))"},
      triton={"uint8": "{0}", "float": "tl.abs({0})", "int": "tl.abs({0})"})  # fmt: skip
unary("sign", "-1, 0 or 1; 0 for NaN", NUMERIC, torch.sign,
      lambda x: ((x > 0).astype(np.int8) - (x < 0).astype(np.int8)).astype(x.dtype),
      c="(({T})(({0} > 0) - ({0} < 0)))",
      triton="(({0} > 0).to({T}) - ({0} < 0).to({T}))")  # fmt: skip
unary("floor", "greatest integer <= x", FLOATS, torch.floor, "floor", c="floor{f}({0})", triton="libdevice.floor({0})")
unary("ceil", "least integer >= x", FLOATS, torch.ceil, "ceil", c="ceil{f}({0})", triton="libdevice.ceil({0})")
unary("trunc", "x without its fraction", FLOATS, torch.trunc, "trunc", c="trunc{f}({0})", triton="libdevice.trunc({0})")
unary("round", "nearest integer, halves to even", FLOATS, torch.round, "rint",
      c="nearbyint{f}({0})", triton="libdevice.nearbyint({0})")  # fmt: skip
unary("reciprocal", "1 / x", FLOATS, torch.reciprocal, lambda x: np.asarray(1, x.dtype) / x,
      c="(({T})1 / {0})", triton={"float64": "(1.0 / {0})", "float": "tl.div_rn(1.0, {0})"})  # fmt: skip
unary("sqrt", "square root; NaN below 0", FLOATS, torch.sqrt, "sqrt",
      c="sqrt{f}({0})", triton={"float64": "tl.sqrt({0})", "float": "tl.sqrt_rn({0})"})  # fmt: skip
unary("rsqrt", "1 / sqrt(x)", FLOATS, torch.rsqrt, lambda x: np.asarray(1, x.dtype) / np.sqrt(x),
      c="(({T})1 / sqrt{f}({0}))", triton="libdevice.rsqrt({0})")  # fmt: skip

# ---- exponentials, trigonometry, special functions ------------------------------------------------------

unary("exp", "e ** x", FLOATS, torch.exp, "exp", c="q_exp{f}({0})", triton="libdevice.exp({0})")
unary("exp2", "2 ** x", FLOATS, torch.exp2, "exp2", c="exp2{f}({0})", triton="libdevice.exp2({0})")
unary("expm1", "e ** x - 1, accurate near 0", FLOATS, torch.expm1, "expm1",
      c="q_expm1{f}({0})", triton="libdevice.expm1({0})")  # fmt: skip
unary("log", "natural logarithm", FLOATS, torch.log, "log", c="log{f}({0})", triton="libdevice.log({0})",
      domain=(0.01, 9.0))  # fmt: skip
unary("log2", "logarithm to base 2", FLOATS, torch.log2, "log2", c="log2{f}({0})", triton="libdevice.log2({0})",
      domain=(0.01, 9.0))  # fmt: skip
unary("log10", "logarithm to base 10", FLOATS, torch.log10, "log10", c="log10{f}({0})",
      triton="libdevice.log10({0})", domain=(0.01, 9.0))  # fmt: skip
unary("log1p", "log(1 + x), accurate near 0", FLOATS, torch.log1p, "log1p", c="log1p{f}({0})",
      triton="libdevice.log1p({0})", domain=(-0.9, 9.0))  # fmt: skip
unary("sin", "sine", FLOATS, torch.sin, "sin", c="sin{f}({0})", triton="libdevice.sin({0})")
unary("cos", "cosine", FLOATS, torch.cos, "cos", c="cos{f}({0})", triton="libdevice.cos({0})")
unary("tan", "tangent", FLOATS, torch.tan, "tan", c="tan{f}({0})", triton="libdevice.tan({0})")
unary("asin", "arc sine", FLOATS, torch.asin, "arcsin", c="asin{f}({0})", triton="libdevice.asin({0})",
      domain=(-1.0, 1.0))  # fmt: skip
unary("acos", "arc cosine", FLOATS, torch.acos, "arccos", c="acos{f}({0})", triton="libdevice.acos({0})",
      domain=(-1.0, 1.0))  # fmt: skip
unary("atan", "arc tangent", FLOATS, torch.atan, "arctan", c="atan{f}({0})", triton="libdevice.atan({0})")
unary("sinh", "hyperbolic sine", FLOATS, torch.sinh, "sinh", c="sinh{f}({0})", triton="libdevice.sinh({0})")
unary("cosh", "hyperbolic cosine", FLOATS, torch.cosh, "cosh", c="cosh{f}({0})", triton="libdevice.cosh({0})")
unary("tanh", "hyperbolic tangent", FLOATS, torch.tanh, "tanh", c="tanh{f}({0})", triton="libdevice.tanh({0})")
unary("asinh", "inverse hyperbolic sine", FLOATS, torch.asinh, "arcsinh", c="asinh{f}({0})",
      triton="libdevice.asinh({0})")  # fmt: skip
unary("acosh", "inverse hyperbolic cosine", FLOATS, torch.acosh, "arccosh", c="acosh{f}({0})",
      triton="libdevice.acosh({0})", domain=(1.0, 9.0))  # fmt: skip
unary("atanh", "inverse hyperbolic tangent", FLOATS, torch.atanh, "arctanh", c="atanh{f}({0})",
      triton="libdevice.atanh({0})", domain=(-0.99, 0.99))  # fmt: skip
unary("erf", "error function", FLOATS, torch.erf, nm.erf, c={"float64": "erf({0})", "float": "q_erff({0})"},
      triton="libdevice.erf({0})")  # fmt: skip
unary("erfc", "1 - erf(x), accurate for large x", FLOATS, torch.erfc, nm.erfc, c="erfc{f}({0})",
      triton="libdevice.erfc({0})")  # fmt: skip
unary("erfinv", "inverse error function", FLOATS, torch.erfinv, nm.erfinv, c="(({T})q_erfinv({0}))",
      triton="libdevice.erfinv({0})", domain=(-0.999, 0.999))  # fmt: skip
unary("lgamma", "log |gamma(x)|", FLOATS, torch.lgamma, nm.lgamma, c="q_lgamma{f}({0})",
      triton="libdevice.lgamma({0})", domain=(0.1, 9.0))  # fmt: skip
unary("digamma", "derivative of lgamma; -+inf at +-0, NaN at negative integers", FLOATS, torch.digamma, nm.digamma,
      c="(({T})q_digamma({0}))", triton="q_digamma({0}.to(tl.float64)).to({T})", domain=(0.1, 9.0))  # fmt: skip
unary("sigmoid", "1 / (1 + e ** -x)", FLOATS, torch.sigmoid, lambda x: 1 / (1 + np.exp(-x)),
      c="(({T})1 / (({T})1 + exp{f}(-{0})))", triton="(1.0 / (1.0 + libdevice.exp(-{0})))")  # fmt: skip

# ---- tests and bits -------------------------------------------------------------------------------------

unary("isnan", "is it NaN?", FLOATS, torch.isnan, "isnan", c="({0} != {0})", triton="({0} != {0})", dtype_rule="bool")
unary("isinf", "is it +inf or -inf?", FLOATS, torch.isinf, "isinf", c="(fabs{f}({0}) == ({T})INFINITY)",
      triton="(tl.abs({0}) == float('inf'))", dtype_rule="bool")  # fmt: skip
unary("bitwise_not", "complement of the bits; `not` on bools", INT_BOOL, torch.bitwise_not, "invert",
      c={"int": "(({T})~{0})", "bool": "(!{0})"}, triton={"int": "(~{0})", "bool": "({0} == 0)"})  # fmt: skip
unary("logical_not", "x == 0, as bool", ALL, torch.logical_not, "logical_not", c="({0} == 0)", triton="({0} == 0)",
      dtype_rule="bool")  # fmt: skip

# ---- binary arithmetic ----------------------------------------------------------------------------------


def _arithmetic(sign: str) -> dict[str, str]:
    return {"float": f"({{0}} {sign} {{1}})", "int": f"(({{T}})({{0}} {sign} {{1}}))"}


_NONZERO = (1, 2, 3, 7, -1, -2, -7)
_EXPONENTS = (0, 1, 2, 3, 7, -1, -2)
_SHIFTS = (0, 1, 3, 7, 8, 31, 63, 64, 100, -1)


def _int_or(float_template: str, int_template: str) -> dict[str, str]:
    return {"float": float_template, "int": int_template}


binary("add", "x + y; integers wrap", NUMERIC, torch.add, "add", c=_arithmetic("+"), triton="({0} + {1})")
binary("sub", "x - y; integers wrap", NUMERIC, torch.sub, "subtract", c=_arithmetic("-"), triton="({0} - {1})")
binary("mul", "x * y; integers wrap", NUMERIC, torch.mul, "multiply", c=_arithmetic("*"), triton="({0} * {1})")
binary("div", "x / y, IEEE", FLOATS, torch.div, "divide", c="({0} / {1})",
       triton={"float64": "({0} / {1})", "float": "tl.div_rn({0}, {1})"})  # fmt: skip
binary("trunc_div", "quotient rounded toward 0; an integer y must not be 0", NUMERIC,
       lambda x, y: torch.div(x, y, rounding_mode="trunc"), nm.trunc_div,
       c=_int_or("trunc{f}({0} / {1})", "(({T})q_tdiv({0}, {1}))"),
       triton={"float64": "libdevice.trunc({0} / {1})", "float": "libdevice.trunc(tl.div_rn({0}, {1}))",
               "int": "({0} // {1})"}, right=_NONZERO)  # fmt: skip
binary("floor_div", "quotient rounded down, as Python's //; an integer y must not be 0", NUMERIC,
       lambda x, y: torch.div(x, y, rounding_mode="floor"), nm.floor_div,
       c=_int_or("q_floor_div{f}({0}, {1})", "(({T})q_fdiv({0}, {1}))"),
       triton=_int_or("q_floor_div({0}, {1})", "q_fdiv({0}, {1})"), right=_NONZERO)  # fmt: skip
binary("remainder", "x - y * floor(x / y): y's sign, as Python's %; an integer y must not be 0", NUMERIC,
       torch.remainder, nm.remainder,
       c=_int_or("q_remainder{f}({0}, {1})", "(({T})q_frem({0}, {1}))"),
       triton=_int_or("q_remainder({0}, {1})", "q_frem({0}, {1})"), right=_NONZERO)  # fmt: skip
binary("fmod", "x - y * trunc(x / y): x's sign, as C's fmod; an integer y must not be 0", NUMERIC, torch.fmod, "fmod",
       c=_int_or("q_fmod{f}({0}, {1})", "(({T})q_trem({0}, {1}))"),
       triton=_int_or("libdevice.fmod({0}, {1})", "({0} % {1})"), right=_NONZERO)  # fmt: skip
binary("pow", "x ** y; an integer to a negative power is 0 unless x is 1 or -1", NUMERIC, torch.pow, nm.power,
       c=_int_or("pow{f}({0}, {1})", "(({T})q_ipow({0}, {1}))"),
       triton=_int_or("libdevice.pow({0}, {1})", "q_ipow({0}.to(tl.int64), {1}).to({T})"),
       right=_EXPONENTS, domains=((0.1, 4.0), (-3.0, 3.0)))  # fmt: skip
binary("atan2", "angle of the point (y, x): atan2(first, second)", FLOATS, torch.atan2, "arctan2",
       c="atan2{f}({0}, {1})", triton="libdevice.atan2({0}, {1})")  # fmt: skip
binary("hypot", "sqrt(x*x + y*y) without overflow", FLOATS, torch.hypot, "hypot", c="hypot{f}({0}, {1})",
       triton="libdevice.hypot({0}, {1})")  # fmt: skip
binary("copysign", "|x| with y's sign", FLOATS, torch.copysign, "copysign", c="copysign{f}({0}, {1})",
       triton="libdevice.copysign({0}, {1})")  # fmt: skip


def _nextafter(x: Any, y: Any) -> Any:
    return torch.nextafter(x, y)


binary("nextafter", "the next representable number after x toward y", (torch.float32, torch.float64), _nextafter,
       "nextafter", c="q_nextafter{f}({0}, {1})", triton="q_nextafter{bits}({0}, {1})")  # fmt: skip

# ---- extrema --------------------------------------------------------------------------------------------
# In C the choice between floats is made of their bits: where extrema follow each other, gcc makes branches of ``?:``.

binary("maximum", "the greater; NaN if either is NaN", REAL, torch.maximum, "maximum",
       c={"float": "q_pick{f}(({0} > {1}) | ({0} != {0}), {0}, {1})", "int": "({0} > {1} ? {0} : {1})",
          "bool": "({0} | {1})"},
       triton={"float": "tl.maximum({0}, {1}, tl.PropagateNan.ALL)", "int": "tl.maximum({0}, {1})",
               "bool": "({0} | {1})"})  # fmt: skip
binary("minimum", "the lesser; NaN if either is NaN", REAL, torch.minimum, "minimum",
       c={"float": "q_pick{f}(({0} < {1}) | ({0} != {0}), {0}, {1})", "int": "({0} < {1} ? {0} : {1})",
          "bool": "({0} & {1})"},
       triton={"float": "tl.minimum({0}, {1}, tl.PropagateNan.ALL)", "int": "tl.minimum({0}, {1})",
               "bool": "({0} & {1})"})  # fmt: skip
binary("fmax", "the greater; a NaN gives way to a number", FLOATS, torch.fmax, "fmax",
       c="q_pick{f}(({0} >= {1}) | ({1} != {1}), {0}, {1})",
       triton="tl.where(({0} >= {1}) | ({1} != {1}), {0}, {1})")  # fmt: skip
binary("fmin", "the lesser; a NaN gives way to a number", FLOATS, torch.fmin, "fmin",
       c="q_pick{f}(({0} <= {1}) | ({1} != {1}), {0}, {1})",
       triton="tl.where(({0} <= {1}) | ({1} != {1}), {0}, {1})")  # fmt: skip

# ---- bits and logic -------------------------------------------------------------------------------------

for _name, _sign, _word in (("and", "&", "and"), ("or", "|", "or"), ("xor", "^", "exclusive or")):
    binary(f"bitwise_{_name}", f"bitwise {_word}; on bools the logical one", INT_BOOL,
           getattr(torch, f"bitwise_{_name}"), f"bitwise_{_name}",
           c={"int": f"(({{T}})({{0}} {_sign} {{1}}))", "bool": f"({{0}} {_sign} {{1}})"},
           triton=f"({{0}} {_sign} {{1}})")  # fmt: skip
    binary(f"logical_{_name}", f"(x != 0) {_word} (y != 0), as bool", ALL,
           getattr(torch, f"logical_{_name}"), f"logical_{_name}",
           c=f"(({{0}} != 0) {_sign} ({{1}} != 0))",
           triton={"bool": f"({{0}} {_sign} {{1}})", "int": f"(({{0}} != 0) {_sign} ({{1}} != 0))",
                   "float": f"(({{0}} != 0) {_sign} ({{1}} != 0))"}, dtype_rule="bool")  # fmt: skip

binary("shift_left", "x * 2**y, wrapping; 0 when y is negative or at least the number of bits", INTS,
       torch.bitwise_left_shift, nm.shift_left,
       c="(({T})((({U}){1} < {bits}) ? (({U}){0} << ({1} & ({bits} - 1))) : 0))",
       triton="q_shl({0}, {1}, {bits})", right=_SHIFTS)  # fmt: skip
binary("shift_right", "floor(x / 2**y); the sign bit when y is negative or at least the number of bits", INTS,
       torch.bitwise_right_shift, nm.shift_right,
       c="(({T})({0} >> ((({U}){1} < {bits}) ? ({1} & ({bits} - 1)) : ({bits} - 1))"
         " >> (((({U}){1} >= {bits}) & (({T})-1 > 0)) ? 1 : 0)))",
       triton="q_shr({0}, {1}, {bits})", right=_SHIFTS)  # fmt: skip

# ---- comparisons ----------------------------------------------------------------------------------------

for _name, _sign, _np in (
    ("eq", "==", "equal"), ("ne", "!=", "not_equal"), ("lt", "<", "less"), ("le", "<=", "less_equal"),
    ("gt", ">", "greater"), ("ge", ">=", "greater_equal"),
):  # fmt: skip
    binary(_name, f"x {_sign} y, as bool", ALL, getattr(torch, _name), _np, c=f"({{0}} {_sign} {{1}})",
           triton=f"({{0}} {_sign} {{1}})", dtype_rule="bool")  # fmt: skip
