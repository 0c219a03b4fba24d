"""Definitions that generated C and Triton text may use (`prims.ops.templates` picks the ones it needs).

Each helper uses only earlier ones.
"""

from __future__ import annotations

import struct

from prims.dtypes import ROWS, saturates

__all__ = ["C_HELPERS", "C_SIMD", "TRITON_HELPERS"]

#: libm functions with vector versions in glibc's libmvec: arity and the first glibc that has them.
C_SIMD: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("sin", "cos", "exp", "log"), (1, "2.22")),
    "pow": (2, "2.22"),
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erfc"), (1, "2.35")),
    **dict.fromkeys(("exp2", "expm1", "log10", "log1p", "log2", "sinh", "tan", "tanh"), (1, "2.35")),
    "atan2": (2, "2.35"),
    "hypot": (2, "2.35"),
}

#: Floats that uniform numbers are made for from one word: their names and how many of its bits they keep.
_UNIFORM = [(row.name, row.bits) for row in ROWS.values() if row.bits and row.c == "float"]

C_HELPERS: dict[str, str] = {}
TRITON_HELPERS: dict[str, str] = {}


def _c(name: str, text: str) -> None:
    C_HELPERS[name] = text.strip()


def _triton(name: str, text: str) -> None:
    TRITON_HELPERS[name] = text.strip()


# ---- integer division: no trap for a zero divisor (0) nor for the least value by -1 (wraps) -------------


def _c_division(name: str, body: str) -> None:
    """A function of 64-bit integers and one of int, for operands up to that wide, which compilers can vectorise."""
    both = (f"static inline {t} {name}{bits}({t} a, {t} b) {{{body}}}".replace("T ", f"{t} ") for t, bits in
            (("int64_t", 64), ("int", 32)))  # fmt: skip
    _c(name, "\n".join([*both, f"#define {name}(a, b) _Generic((a) + (b), int: {name}32, default: {name}64)(a, b)"]))


_c_division("q_tdiv", """
  return b == 0 ? 0 : b == -1 ? -a : a / b;
""")
_c_division("q_trem", """
  return (b == 0 || b == -1) ? 0 : a % b;
""")
_c_division("q_fdiv", """
  if (b == 0 || b == -1) return b == 0 ? 0 : -a;
  T q = a / b, r = a % b;
  return q - (r != 0 && (r < 0) != (b < 0));
""")
_c_division("q_frem", """
  if (b == 0 || b == -1) return 0;
  T r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
""")
_c("q_ipow", """
static inline int64_t q_ipow(int64_t x, int64_t e) {
  if (e < 0) return x == 1 ? 1 : x == -1 ? ((e & 1) ? -1 : 1) : 0;
  uint64_t result = 1, base = (uint64_t)x;
  for (; e; e >>= 1, base *= base)
    if (e & 1) result *= base;
  return (int64_t)result;
}""")

# ---- fmod, and floating-point division with Python's signs (CPython's float_divmod) -----------------------

# What remains of a division is exact, so all that follows comes to the bits of libm's fmod.
#
# gcc calls functions of these names (x86's vector function ABI) for the lanes of a loop that calls fmod. Quotients
# below a quarter of 2 to the bits of the mantissa, rounded to the nearest integer (`whole`: by a number whose unit in
# the last place is 1), leave at most 5/8 of the divisor, which one fused operation gives exactly. Other lanes, and
# infinities and NaN, are the long division's of float32 and libm's of float64, by a name of which no vectors are made.


def _fmod_lanes(ctype: str, f: str, bits: int, mantissa: int) -> str:
    """The vector versions of fmod for x86."""
    lines = ["#pragma omp declare simd notinbranch", f"{ctype} fmod{f}({ctype}, {ctype});"]
    far = "q_long_fmodf" if f else "q_libm_fmod"
    lines += ['extern double q_libm_fmod(double, double) __asm__("fmod");'] * (not f)
    for size, guard, wide in ((16, "", ""), (32, "__AVX__", "256")):
        v, i, count, p = f"q_{ctype}s{size}", f"q_int{bits}s{size}", size * 8 // bits, "s" if f else "d"
        name = f"_ZGV{'b' if size == 16 else 'c'}N{count}vv_fmod{f}"
        lines += [f"#ifdef {guard}"] * bool(guard) + [f"""
typedef {ctype} {v} __attribute__((vector_size({size})));
typedef int{bits}_t {i} __attribute__((vector_size({size})));
static __attribute__((noinline, cold)) {v} q_far{f}{size}({v} a, {v} b, {v} r, {i} near) {{
  for (int k = 0; k < {count}; k++) if (!near[k]) r[k] = {far}(a[k], b[k]);
  return r;
}}
static __attribute__((used)) {v} {name}({v} a, {v} b) {{
  const {i} sign = ({i}){{}} + INT{bits}_MIN;
  const {v} x = ({v})(({i})a & ~sign), y = ({v})(({i})b & ~sign), quotient = x / y;
  const {v} whole = quotient + 0x1p{mantissa}{f} - 0x1p{mantissa}{f};
  const {i} near = (quotient < 0x1p{mantissa - 2}{f}) & (y < ({ctype})INFINITY);
  {v} r = __builtin_ia32_vfmaddp{p}{wide}(-whole, y, x);
  r = ({v})(({i})(r + (({v})((r < 0) & ({i})y))) | (({i})a & sign));
  return __builtin_ia32_movmskp{p}{wide}(({v})near) == {2**count - 1} ? r : q_far{f}{size}(a, b, r, near);
}}""".strip()]
    of_avx2 = name.replace("c", "d", 1)
    lines += [f"""
static __attribute__((used, alias("{name}"))) {v} {of_avx2}({v}, {v});
#ifdef __AVX512F__
typedef {ctype} q_{ctype}s64 __attribute__((vector_size(64)));
static __attribute__((used)) q_{ctype}s64 _ZGVeN{512 // bits}vv_fmod{f}(q_{ctype}s64 a, q_{ctype}s64 b) {{
  union {{ q_{ctype}s64 all; {v} half[2]; }} x = {{ .all = a }}, y = {{ .all = b }};
  for (int k = 0; k < 2; k++) x.half[k] = {name}(x.half[k], y.half[k]);
  return x.all;
}}
#endif
#endif""".strip()]
    return "\n".join(lines)


# Of a float32 every step of the long division takes 52 bits off the quotient, which has at most 277: in double, what
# remains has few bits and is exact. (2 ** 200 is greater than any float, and no infinity.)
_FMODF_STEP = "r = __builtin_fma(-trunc(r * inverse), y, r);"
_c("q_long_fmodf", f"""
static inline float q_long_fmodf(float a, float b) {{
#if defined(__FMA__) || defined(__FP_FAST_FMA)
  const double divisor = fabs((double)b), y = divisor > 0x1p200 ? 0x1p200 : divisor, inverse = 1 / y;
  double r = fabs((double)a);
  {_FMODF_STEP} {_FMODF_STEP}
  {_FMODF_STEP} {_FMODF_STEP}
  {_FMODF_STEP}
  r = __builtin_fma(-floor(r * inverse), y, r);
  r = r < 0 ? r + y : r;
  r = r >= y ? r - y : r;
  return copysignf((float)r, a);
#else
  return fmodf(a, b);
#endif
}}""")
for _suffix, _type, _bits, _mantissa in (("f", "float", 32, 23), ("", "double", 64, 52)):
    _c(f"q_fmod{_suffix}", "\n".join([
        "#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__FMA__) && defined(__ELF__)",
        _fmod_lanes(_type, _suffix, _bits, _mantissa), f"#define q_fmod{_suffix} fmod{_suffix}",
        "#else", f"#define q_fmod{_suffix} {'q_long_fmodf' if _suffix else 'fmod'}", "#endif",
    ]))  # fmt: skip
    _c(f"q_remainder{_suffix}", f"""
static inline {_type} q_remainder{_suffix}({_type} a, {_type} b) {{
  {_type} r = q_fmod{_suffix}(a, b);
  return ((r != 0) & ((r < 0) != (b < 0))) ? r + b : r;
}}""")
    _c(f"q_floor_div{_suffix}", f"""
static inline {_type} q_floor_div{_suffix}({_type} a, {_type} b) {{
  {_type} r = q_fmod{_suffix}(a, b), q = (a - r) / b, whole, plain = a / b;
  q = ((r != 0) & ((b < 0) != (r < 0))) ? q - 1 : q;
  whole = floor{_suffix}(q);
  whole = q - whole > ({_type})0.5 ? whole + 1 : whole;
  whole = q == 0 ? copysign{_suffix}(({_type})0, plain) : whole;
  return b == 0 ? plain : whole;
}}""")

# ---- the number after another, by its bits, whatever becomes of subnormal ones in arithmetic ----------------

for _suffix, _type, _bits in (("f", "float", 32), ("", "double", 64)):
    _c(f"q_nextafter{_suffix}", f"""
static inline {_type} q_nextafter{_suffix}({_type} x, {_type} y) {{
  union {{ {_type} f; int{_bits}_t i; }} a = {{ .f = x }}, b = {{ .f = y }};
  const int{_bits}_t size = a.i & INT{_bits}_MAX, other = b.i & INT{_bits}_MAX;
  const int{_bits}_t grows = ((a.i ^ b.i) >= 0) & (other > size), least = (b.i & INT{_bits}_MIN) | 1;
  a.i = (a.i == b.i) | ((size | other) == 0) ? b.i : size == 0 ? least : a.i - 1 + 2 * grows;
  return ((x != x) | (y != y)) ? x + y : a.f;
}}""")

# ---- choices that leave no branch, which a compiler would put calls into ----------------------------------

for _suffix, _type, _bits in (("f", "float", 32), ("", "double", 64)):
    _c(f"q_pick{_suffix}", f"""
static inline {_type} q_pick{_suffix}(int c, {_type} x, {_type} y) {{
  union {{ {_type} f; uint{_bits}_t i; }} a = {{ .f = x }}, b = {{ .f = y }};
  b.i ^= (a.i ^ b.i) & -(uint{_bits}_t)(c != 0);
  return b.f;
}}""")

# ---- special functions ----------------------------------------------------------------------------------

# lgamma writes the global signgam; the _r form does not, and threads stay independent.
_c("q_lgammaf", """
extern float lgammaf_r(float, int *);
static inline float q_lgammaf(float x) { int sign; return lgammaf_r(x, &sign); }""")
_c("q_lgamma", """
extern double lgamma_r(double, int *);
static inline double q_lgamma(double x) { int sign; return lgamma_r(x, &sign); }""")

# Reflection (Abramowitz & Stegun 6.3.7), recurrence (6.3.5), asymptotic series (6.3.18).
_c("q_digamma", """
static inline double q_digamma(double x) {
  double shift = 0, inv, tail;
  if (x == 0) return copysign((double)INFINITY, -x);
  if (x < 0) {
    if (x == floor(x) || isinf(x)) return (double)NAN;
    shift = -3.14159265358979323846 / tan(3.14159265358979323846 * fmod(x, 1.0));
    x = 1 - x;
  }
  if (isinf(x)) return x;
  for (; x < 20; x += 1) shift -= 1 / x;
  inv = 1 / (x * x);
  tail = inv * (1. / 12 - inv * (1. / 120 - inv * (1. / 252 - inv * (1. / 240 - inv / 132))));
  return shift + log(x) - 0.5 / x - tail;
}""")

# First guess: M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011), single precision; then
# two Newton steps on erf (small arguments) or erfc (large ones, where 1 - |y| is exact).
_c("q_erfinv", """
static inline double q_erfinv(double y) {
  double a = fabs(y), w, x, e;
  int i;
  if (!(a < 1)) return a == 1 ? copysign((double)INFINITY, y) : (double)NAN;
  w = -log((1 - a) * (1 + a));
  if (w < 5) {
    w -= 2.5;
    x = 2.81022636e-08;
    x = 3.43273939e-07 + x * w; x = -3.5233877e-06 + x * w; x = -4.39150654e-06 + x * w;
    x = 0.00021858087 + x * w; x = -0.00125372503 + x * w; x = -0.00417768164 + x * w;
    x = 0.246640727 + x * w; x = 1.50140941 + x * w;
  } else {
    w = sqrt(w) - 3;
    x = -0.000200214257;
    x = 0.000100950558 + x * w; x = 0.00134934322 + x * w; x = -0.00367342844 + x * w;
    x = 0.00573950773 + x * w; x = -0.0076224613 + x * w; x = 0.00943887047 + x * w;
    x = 1.00167406 + x * w; x = 2.83297682 + x * w;
  }
  x *= a;
  for (i = 0; i < 2; i++) {
    e = a < 0.5 ? erf(x) - a : (1 - a) - erfc(x);
    x -= e * 0.88622692545275801365 * exp(x * x);
  }
  return copysign(x, y);
}""")

# ---- a product in a sum: rounded once where the processor has an instruction for it, and in any case as said here ----

for _bits, _ctype, _f in ((32, "float", "f"), (64, "double", "")):
    _c(f"q_fma{_bits}", f"""
static inline {_ctype} q_fma{_bits}({_ctype} x, {_ctype} y, {_ctype} z) {{
#if defined(__FMA__) || defined(__FP_FAST_FMA{_f.upper()})
  return __builtin_fma{_f}(x, y, z);
#else
  return x * y + z;
#endif
}}""")

# ---- exponentials of float32 --------------------------------------------------------------------------------

# Nothing but arithmetic: a softmax under a mask of -1e9 takes no longer than another, where libmvec goes one by one,
# and lanes and a loop's last elements come to the same bits. The coefficients are a minimax fit (Remez) of relative
# error 3e-9, made for this file. Over every 7th float32 (exp) or 61st, in units in the last place: exp 0.99 (libmvec:
# 1.6), expm1 1.41, without fused operations 1.51. Infinite, subnormal and no results are eager's. Of usual numbers exp
# takes 1.3 times what libmvec's does, and expm1 0.6 times; logarithms made so took up to twice, and are libmvec's.

# x is a multiple of log 2 and a rest; the multiple is a float, and in the low bits of t (adding 1.5 * 2 ** 23 rounds to
# a whole number). The rest's exponential is 1 + p.
_REST = """
  union { float f; int32_t i; } t = { .f = q_fma32(x, 1.44269504f, 12582912.0f) }, a, b;
  const float whole = t.f - 12582912.0f;
  const float r = q_fma32(whole, 2.12194440e-4f, q_fma32(whole, -0.693359375f, x));
  float p = 0.00138143207f;
  p = q_fma32(p, r, 0.00836885107f); p = q_fma32(p, r, 0.0416684011f);
  p = q_fma32(p, r, 0.166665195f); p = q_fma32(p, r, 0.499999934f);
  p = q_fma32(r * r, p, r);"""
# The power of two is taken in two factors, for it may be no normal number.
_c("q_expf", f"""
static inline float q_expf(float x) {{
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;{_REST}
  p += 1.0f;
  const uint32_t n = (uint32_t)t.i - 0x4b400000u;
  const int32_t half = (int32_t)n >> 1;
  a.i = (half + 127) * (1 << 23);
  b.i = (int32_t)(n - (uint32_t)half + 127u) * (1 << 23);
  return p * a.f * b.f;
}}""")
_c("q_expm1f", f"""
static inline float q_expm1f(float y) {{
  float x = y < -30.0f ? -30.0f : y;
  x = x > 89.0f ? 89.0f : x;{_REST}
  a.i = (int32_t)((uint32_t)t.i - 0x4b400000u + 126u) * (1 << 23);
  b.f = q_fma32(p, a.f, a.f - 0.5f) * 2.0f;
  return y == 0.0f ? y : b.f;
}}""")
for _name in ("exp", "expm1"):
    _c(f"q_{_name}", f"static inline double q_{_name}(double x) {{ return {_name}(x); }}")

# ---- the error function ------------------------------------------------------------------------------------

# erf(x) = x P(x^2) / Q(x^2) on |x| < 3.8, beyond which it is 1 to 8e-8. The coefficients are a weighted least
# squares (Lawson) fit of relative error 2e-8, made for this file; at most 6 ulp and 3.4e-7 in float arithmetic.
# No exponential: half the time of libmvec's erff.
_c("q_erff", """
static inline float q_erff(float x) {
    const float z = x * x;
    float p = 2.0501517e-06f, q = 3.8092002e-05f;
    p = q_fma32(p, z, 2.8487534e-04f); q = q_fma32(q, z, 1.1624531e-03f);
    p = q_fma32(p, z, 3.7652735e-03f); q = q_fma32(q, z, 1.4968526e-02f);
    p = q_fma32(p, z, 5.2747658e-02f); q = q_fma32(q, z, 1.1410578e-01f);
    p = q_fma32(p, z, 1.9039842e-01f); q = q_fma32(q, z, 5.0206895e-01f);
    p = q_fma32(p, z, 1.1283791e+00f); q = q_fma32(q, z, 1.0f);
    const float r = x * p / q;
    return (fabsf(x) >= 3.8f) | (fabsf(r) > 1.0f) ? copysignf(1.0f, x) : r;
}""")

# ---- floats of 8 bits, as PyTorch converts them -----------------------------------------------------------

# Per format: mantissa bits, bias, the bits of the float that overflows (above it, or from it on), what that becomes,
# and a number whose unit in the last place is the least subnormal: adding it rounds to one, to nearest, ties to even.
for _name, _mantissa, _bias, _most, _over, _special, _adder in (
    ("e4m3", 3, 7, "0x43e80000u", ">", "0x7eu" if saturates() else "0x7fu", 16384.0),
    ("e5m2", 2, 15, "0x47700000u", ">=", "0x7cu", 128.0),
):
    _shift = 23 - _mantissa
    _least = 2.0 ** (1 - _bias)
    _unit = _least / 2**_mantissa
    _half, _rebased, _normal = (1 << (_shift - 1)) - 1, (127 - _bias) << _mantissa, (128 - _bias) << 23
    _adder_bits = int.from_bytes(struct.pack(">f", _adder), "big")
    # e4m3 has one NaN and no infinity; of e5m2 the last exponent stands for both.
    _last = (
        "(x & 0x7f) == 0x7f ? 0x7fc00000u" if _name == "e4m3"
        else f"(x & 0x7f) >= 0x7c ? 0x7f800000u | (uint32_t)(x & 3) << {_shift}"
    )  # fmt: skip
    _c(f"q_from_{_name}", f"""
static inline float q_from_{_name}(uint8_t x) {{
  const uint32_t sign = (uint32_t)(x & 0x80) << 24, m = x & 0x7f;
  const uint32_t small = (union {{ float f; uint32_t i; }}){{ .f = (float)m * {_unit!r}f }}.i;
  const uint32_t u = {_last} : m < {1 << _mantissa} ? small : (m << {_shift}) + ({127 - _bias}u << 23);
  return (union {{ uint32_t i; float f; }}){{ .i = u | sign }}.f;
}}""")
    _c(f"q_to_{_name}", f"""
static inline uint8_t q_to_{_name}(float x) {{
  const uint32_t u = (union {{ float f; uint32_t i; }}){{ .f = x }}.i, a = u & 0x7fffffffu;
  const float sum = (union {{ uint32_t i; float f; }}){{ .i = a }}.f + {_adder!r}f;
  const uint32_t small = (union {{ float f; uint32_t i; }}){{ .f = sum }}.i
                         - (union {{ float f; uint32_t i; }}){{ .f = {_adder!r}f }}.i;
  const uint32_t r = ((a + {_half}u + (a >> {_shift} & 1u)) >> {_shift}) - {_rebased}u;
  const uint32_t q = a > 0x7f800000u ? 0x7fu : a {_over} {_most} ? {_special} : a < {_normal}u ? small : r;
  return (uint8_t)(q | (u >> 24 & 0x80u));
}}""")
    _c(f"q_round_{_name}", f"""
static inline float q_round_{_name}(float x) {{ return q_from_{_name}(q_to_{_name}(x)); }}""")
    _last = (
        "tl.where(m == 0x7f, 0x7fc00000, u)" if _name == "e4m3"
        else f"tl.where(m >= 0x7c, 0x7f800000 | (m & 3) << {_shift}, u)"
    )  # fmt: skip
    _triton(f"q_from_{_name}", f"""
def q_from_{_name}(x):
    b = x.to(tl.int32)
    m = b & 0x7f
    small = (m.to(tl.float32) * {_unit!r}).to(tl.int32, bitcast=True)
    u = tl.where(m < {1 << _mantissa}, small, (m << {_shift}) + {(127 - _bias) << 23})
    u = {_last} | (b & 0x80) << 24
    return u.to(tl.float32, bitcast=True)""")
    _triton(f"q_to_{_name}", f"""
def q_to_{_name}(x):
    u = x.to(tl.int32, bitcast=True)
    a = u & 0x7fffffff
    small = (a.to(tl.float32, bitcast=True) + {_adder!r}).to(tl.int32, bitcast=True) - {_adder_bits}
    r = ((a + {_half} + (a >> {_shift} & 1)) >> {_shift}) - {_rebased}
    q = tl.where(a < {_normal}, small, r)
    q = tl.where(a {_over} {_most[:-1]}, {_special[:-1]}, q)
    q = tl.where(a > 0x7f800000, 0x7f, q)
    return (q | (u >> 24 & 0x80)).to(tl.uint8)""")
    _triton(f"q_round_{_name}", f"""
def q_round_{_name}(x):
    return q_from_{_name}(q_to_{_name}(x))""")

_c("q_round_bf16", """
static inline float q_round_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = (x != x) ? 0x7fc00000u : (bits + 0x7fffu + ((bits >> 16) & 1)) & 0xffff0000u;
  memcpy(&x, &bits, 4);
  return x;
}""")
# gcc makes -fma(a, b, c) one instruction, -(a * b) - c, which gives 0.0 where the sum is 0.0.
for _bits, _ctype, _sign in ((32, "float", "0x80000000u"), (64, "double", "0x8000000000000000u")):
    _c(f"q_neg{_bits}", f"""
static inline {_ctype} q_neg{_bits}({_ctype} x) {{
  union {{ {_ctype} x; uint{_bits}_t bits; }} u = {{ .x = x }};
  u.bits ^= {_sign};
  return u.x;
}}""")
# ---- float16 ------------------------------------------------------------------------------------------------

# Of processors with arithmetic on float16 compilers make vectors of conversions. Where there are instructions for
# conversions alone (F16C), gcc 12 to 14 make none, but call functions of these names for the lanes of a loop (as for
# fmod above), between float32 and 32-bit integers, as others have another number of lanes. To C the function of one
# number is a declaration, or gcc would make the vector functions itself.
_F16_VECTORS = """
typedef short q_shorts16 __attribute__((vector_size(16)));
typedef long long q_longs32 __attribute__((vector_size(32)));
typedef int32_t q_int32_ts16 __attribute__((vector_size(16)));
typedef int32_t q_int32_ts32 __attribute__((vector_size(32)));
typedef int32_t q_int32_ts64 __attribute__((vector_size(64)));
typedef float q_floats16 __attribute__((vector_size(16)));
typedef float q_floats32 __attribute__((vector_size(32)));
typedef float q_floats64 __attribute__((vector_size(64)));
""".strip()
_F16_FROM = """
#pragma omp declare simd notinbranch
__attribute__((const, visibility("hidden"))) float q_half_up(int32_t x);
static __attribute__((used)) float q_half_up_of_one(int32_t x) __asm__("q_half_up");
static __attribute__((used)) float q_half_up_of_one(int32_t x) {
  return __builtin_ia32_vcvtph2ps((q_shorts16){(short)x})[0];
}
static __attribute__((used)) q_floats16 _ZGVbN4v_q_half_up(q_int32_ts16 x) {
  return __builtin_ia32_vcvtph2ps((q_shorts16)__builtin_ia32_packusdw128(x, x));
}
static __attribute__((used)) q_floats32 _ZGVcN8v_q_half_up(q_int32_ts16 x, q_int32_ts16 y) {
  return __builtin_ia32_vcvtph2ps256((q_shorts16)__builtin_ia32_packusdw128(x, y));
}
static __attribute__((used)) q_floats32 _ZGVdN8v_q_half_up(q_int32_ts32 x) {
  return _ZGVcN8v_q_half_up((q_int32_ts16)__builtin_ia32_extract128i256((q_longs32)x, 0),
                            (q_int32_ts16)__builtin_ia32_extract128i256((q_longs32)x, 1));
}
#ifdef __AVX512F__
static __attribute__((used)) q_floats64 _ZGVeN16v_q_half_up(q_int32_ts64 x) {
  union { q_int32_ts64 all; q_int32_ts32 half[2]; } u = { .all = x };
  union { q_floats64 all; q_floats32 half[2]; } y;
  for (int k = 0; k < 2; k++) y.half[k] = _ZGVdN8v_q_half_up(u.half[k]);
  return y.all;
}
#endif
#define q_from_f16(x) q_half_up(x)
""".strip()
_F16_TO = """
#pragma omp declare simd notinbranch
__attribute__((const, visibility("hidden"))) int32_t q_half_down(float x);
static __attribute__((used)) int32_t q_half_down_of_one(float x) __asm__("q_half_down");
static __attribute__((used)) int32_t q_half_down_of_one(float x) {
  return (uint16_t)__builtin_ia32_vcvtps2ph((q_floats16){x}, 0)[0];
}
static __attribute__((used)) q_int32_ts16 _ZGVbN4v_q_half_down(q_floats16 x) {
  return __builtin_ia32_pmovzxwd128((q_shorts16)__builtin_ia32_vcvtps2ph(x, 0));
}
static __attribute__((used, alias("_ZGVbN4v_q_half_down"))) q_int32_ts16 _ZGVcN4v_q_half_down(q_floats16 x);
static __attribute__((used)) q_int32_ts32 _ZGVdN8v_q_half_down(q_floats32 x) {
  return __builtin_ia32_pmovzxwd256((q_shorts16)__builtin_ia32_vcvtps2ph256(x, 0));
}
#ifdef __AVX512F__
static __attribute__((used)) q_int32_ts64 _ZGVeN16v_q_half_down(q_floats64 x) {
  union { q_floats64 all; q_floats32 half[2]; } u = { .all = x };
  union { q_int32_ts64 all; q_int32_ts32 half[2]; } y;
  for (int k = 0; k < 2; k++) y.half[k] = _ZGVdN8v_q_half_down(u.half[k]);
  return y.all;
}
#endif
#define q_to_f16(x) ((uint16_t)q_half_down(x))
""".strip()


def _c_half(name: str, vectors: str, declared: str, by_arithmetic: str, by_integers: str) -> None:
    """A conversion: of integers and float32 alone where neither a compiler nor the above makes vectors of it."""
    _c(name, "\n".join([
        "#if defined(__AVX512FP16__) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)",
        f"static inline {declared} {{ return {by_arithmetic}; }}",
        "#elif defined(__GNUC__) && !defined(__clang__) && defined(__ELF__) && defined(__AVX2__) && defined(__F16C__)",
        _F16_VECTORS, vectors, "#else", f"static inline {declared} {{", by_integers.strip("\n"), "}", "#endif",
    ]))  # fmt: skip


# To nearest, ties to even; nothing is lost where subnormal float32 numbers count as zero, nor of what a NaN carries. By
# the least and the greatest of two: other choices gcc makes in vectors of 16 bits, and comparisons go back and forth.
_c_half("q_from_f16", _F16_FROM, "float q_from_f16(uint16_t x)",
        "(float)(union { uint16_t i; _Float16 f; }){ .i = x }.f", """
  const int32_t m = x & 0x7fff, small = (union { float f; int32_t i; }){ .f = (float)m * 0x1p-24f }.i;
  const int32_t normal = (m << 13) + (m < 0x7c00 ? 112 << 23 : 224 << 23), u = m < 0x400 ? small : normal;
  return (union { uint32_t i; float f; }){ .i = (uint32_t)u | (uint32_t)(x & 0x8000) << 16 }.f;""")  # fmt: skip
_c_half("q_to_f16", _F16_TO, "uint16_t q_to_f16(float x)",
        "(union { _Float16 f; uint16_t i; }){ .f = (_Float16)x }.i", """
  const int32_t u = (union { float f; int32_t i; }){ .f = x }.i, a = u & 0x7fffffff;
  const int32_t low = a < 0x38800000 ? a : 0x38800000, high = a < 0x47800000 ? a : 0x47800000;
  const float sum = (union { int32_t i; float f; }){ .i = low }.f + 0.5f;
  const int32_t subnormal = (union { float f; int32_t i; }){ .f = sum }.i - 0x3f000000;
  const int32_t normal = ((high + 0xfff + (high >> 13 & 1)) >> 13) - (112 << 10);
  const int32_t r = subnormal > normal ? subnormal : normal;
  const int32_t nan = (0x7f800000 - a) >> 31 & ((a >> 13 & 0x3ff) | ((a & 0x1fff) + 0x1fff) >> 13 << 9);
  return (uint16_t)(r | nan | (u >> 16 & 0x8000));""")  # fmt: skip
# Some elements in a row at once, by the processor's own instructions: of as many as fill its vectors.
_F16_ROWS = """
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__) && defined(__F16C__)
#ifdef __AVX512F__
  typedef float q_many __attribute__((vector_size(64), aligned(4), may_alias));
  typedef short q_narrow __attribute__((vector_size(32), aligned(2), may_alias));
  for (; i + 16 <= n; i += 16) *(TO*)(to + i) = (TO)BY512;
#else
  typedef float q_many __attribute__((vector_size(32), aligned(4), may_alias));
  typedef short q_narrow __attribute__((vector_size(16), aligned(2), may_alias));
  for (; i + 8 <= n; i += 8) *(TO*)(to + i) = (TO)BY256;
#endif
#endif""".strip("\n")
for _name, _from, _to, _type, _by512, _by256 in (
    ("from", "uint16_t", "float", "q_many",
     "__builtin_ia32_vcvtph2ps512_mask(*(const q_narrow*)(from + i), (q_many){0}, -1, 4)",
     "__builtin_ia32_vcvtph2ps256(*(const q_narrow*)(from + i))"),
    ("to", "float", "uint16_t", "q_narrow",
     "__builtin_ia32_vcvtps2ph512_mask(*(const q_many*)(from + i), 0, (q_narrow){0}, -1)",
     "__builtin_ia32_vcvtps2ph256(*(const q_many*)(from + i), 0)"),
):  # fmt: skip
    _body = _F16_ROWS.replace("TO", _type).replace("BY512", _by512).replace("BY256", _by256)
    _c(f"q_row_{_name}_f16", f"""
static inline void q_row_{_name}_f16({_to}* restrict to, const {_from}* restrict from, int64_t n) {{
  int64_t i = 0;
{_body}
  for (; i < n; i++) to[i] = q_{_name}_f16(from[i]);
}}""")
_c("q_round_f16", """
static inline float q_round_f16(float x) { return q_from_f16(q_to_f16(x)); }""")

# ---- floats to integers -----------------------------------------------------------------------------------


def _c_truncation(ctype: str, bits: int, suffix: str) -> None:
    """A float as an integer, as x86 processors (and so eager's kernels there) have it: the least one where it does not
    fit. Other processors saturate by themselves, with 0 for NaN.

    Blended by hand: in C it is undefined, and gcc makes of a conversion and its inverse, also through a condition, a
    `trunc`, which keeps the sign of zero, infinities and NaN.
    """
    limit, t = f"0x1p{bits - 1}{suffix}", f"int{bits}_t"
    # The processor's own instruction, which does just that, where it has none for vectors. Of its builtin a compiler
    # that knows the number makes another one.
    one_by_one = "defined(__x86_64__) && defined(__GNUC__) && !defined(__AVX512DQ__)" if bits == 64 else "0"
    instruction = f"cvtts{'s' if suffix else 'd'}2si %1, %0"
    _c(f"q_{ctype[0]}2i{bits}", f"""
static inline {t} q_{ctype[0]}2i{bits}({ctype} x) {{
#if {one_by_one}
  int64_t whole;
#ifdef __AVX__
  __asm__("v{instruction}" : "=r"(whole) : "x"(x));
#else
  __asm__("{instruction}" : "=r"(whole) : "x"(x));
#endif
  return whole;
#elif defined(__x86_64__)
  const {t} fits = -({t})(x >= -{limit} && x < {limit});
  return (({t})x & fits) | (INT{bits}_MIN & ~fits);
#else
  return ({t})x & -({t})(x == x);
#endif
}}""")


for _bits in (32, 64):
    _c_truncation("float", _bits, "f")
    _c_truncation("double", _bits, "")
# Of float32 numbers beyond 32 bits the last 8 bits are zero, as those of the least number of 32 and of 64 bits.
_c("q_f2u8", """
static inline uint8_t q_f2u8(float x) {
#if defined(__x86_64__)
  return (uint8_t)q_f2i32(x);
#else
  return (uint8_t)q_f2i64(x);
#endif
}""")

# ---- Philox 4x32-10 (layout: prims.ops.rng) -------------------------------------------------------------

_c("q_philox4", """
static inline void q_philox4(int64_t seed, int64_t counter, uint32_t w[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
  uint32_t a = (uint32_t)counter, b = (uint32_t)((uint64_t)counter >> 32), c = 0, d = 0;
  for (int round = 0; round < 10; round++) {
    uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
    a = (uint32_t)(q >> 32) ^ b ^ k0;
    c = (uint32_t)(p >> 32) ^ d ^ k1;
    b = (uint32_t)q;
    d = (uint32_t)p;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  w[0] = a; w[1] = b; w[2] = c; w[3] = d;
}""")
_c("q_philox", """
static inline uint32_t q_philox(int64_t seed, int64_t offset, int64_t i) {
  uint32_t w[4];
  q_philox4(seed, offset + (i >> 2), w);
  return (i & 2) ? ((i & 1) ? w[3] : w[2]) : ((i & 1) ? w[1] : w[0]);
}""")
_c("q_philox64", """
static inline uint64_t q_philox64(int64_t seed, int64_t offset, int64_t i) {
  uint32_t w[4];
  q_philox4(seed, offset + (i >> 1), w);
  return (i & 1) ? ((uint64_t)w[3] << 32 | w[2]) : ((uint64_t)w[1] << 32 | w[0]);
}""")
# The words of at most 256 elements from `first` on, of which that element's is w[first & 3]: a counter's four are made
# together. So are normal numbers below.
_c("q_words", """
static inline void q_words(int64_t seed, int64_t offset, int64_t first, int64_t count, uint32_t* restrict w) {
  const int64_t begin = first >> 2, counters = ((first + count + 3) >> 2) - begin;
  #pragma omp simd
  for (int64_t k = 0; k < counters; k++) {
    uint32_t four[4];
    q_philox4(seed, offset + begin + k, four);
    for (int j = 0; j < 4; j++) w[4 * k + j] = four[j];
  }
}""")
for _suffix, _bits in _UNIFORM:
    _c(f"q_unit_{_suffix}", f"""
static inline float q_unit_{_suffix}(uint32_t word) {{
  return (float)(int32_t)(word >> {32 - _bits}) * {2.0**-_bits!r}f;
}}""")
    _c(f"q_uniform_{_suffix}", f"""
static inline float q_uniform_{_suffix}(int64_t seed, int64_t offset, int64_t i) {{
  return q_unit_{_suffix}(q_philox(seed, offset, i));
}}""")
_c("q_uniform_f64", """
static inline double q_uniform_f64(int64_t seed, int64_t offset, int64_t i) {
  return (double)(int64_t)(q_philox64(seed, offset, i) >> 11) * 0x1p-53;
}""")
_c("q_normal32", """
static inline float q_normal32(int64_t seed, int64_t offset, int64_t i) {
  uint32_t w[4], u, v;
  q_philox4(seed, offset + (i >> 2), w);
  u = (i & 2) ? w[2] : w[0];
  v = (i & 2) ? w[3] : w[1];
  float r = sqrtf(-2.0f * logf((float)(int32_t)((u >> 8) + 1) * 0x1p-24f));
  float t = (float)(int32_t)(v >> 8) * 0x1p-24f * 6.283185307179586f;
  return r * ((i & 1) ? sinf(t) : cosf(t));
}""")
_c("q_normals", """
static inline void q_normals(int64_t seed, int64_t offset, int64_t first, int64_t count, float* restrict x) {
  const int64_t begin = first >> 2, counters = ((first + count + 3) >> 2) - begin;
  #pragma omp simd
  for (int64_t k = 0; k < counters; k++) {
    uint32_t w[4];
    q_philox4(seed, offset + begin + k, w);
    for (int j = 0; j < 4; j += 2) {
      x[4 * k + j] = sqrtf(-2.0f * logf((float)(int32_t)((w[j] >> 8) + 1) * 0x1p-24f));
      x[4 * k + j + 1] = (float)(int32_t)(w[j + 1] >> 8) * 0x1p-24f * 6.283185307179586f;
    }
  }
  float y[136];  /* by loops of their own: of a sine and a cosine together gcc makes one call, which has no vectors */
  #pragma omp simd
  for (int64_t k = 0; k < 2 * counters; k++) y[k] = sinf(x[2 * k + 1]);
  #pragma omp simd
  for (int64_t k = 0; k < 2 * counters; k++) {
    const float r = x[2 * k];
    x[2 * k] = r * cosf(x[2 * k + 1]);
    x[2 * k + 1] = r * y[k];
  }
}""")
_c("q_normal64", """
static inline double q_normal64(int64_t seed, int64_t offset, int64_t i) {
  uint64_t u = q_philox64(seed, offset, i & ~(int64_t)1), v = q_philox64(seed, offset, i | 1);
  double r = sqrt(-2 * log((double)(int64_t)((u >> 11) + 1) * 0x1p-53));
  double t = (double)(int64_t)(v >> 11) * 0x1p-53 * 6.283185307179586;
  return r * ((i & 1) ? sin(t) : cos(t));
}""")

# ---- Triton: constants stand in the expressions, as a float assigned to a name becomes a float32 ----------

_triton("q_fdiv", """
def q_fdiv(a, b):
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)""")
_triton("q_frem", """
def q_frem(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)""")
_triton("q_remainder", """
def q_remainder(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)""")
_triton("q_floor_div", """
def q_floor_div(a, b):
    r = libdevice.fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)
    whole = libdevice.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    whole = tl.where(q == 0, libdevice.copysign(tl.zeros_like(q), a / b), whole)
    return tl.where(b == 0, a / b, whole)""")
_triton("q_ipow", """
def q_ipow(x, e):
    e = e.to(tl.int64)
    left = e
    base = x + e * 0  # of both shapes from the start: a loop's values keep theirs
    result = base * 0 + 1
    for _ in range(63):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    odd = (e & 1) != 0
    inverse = tl.where(x == 1, 1, tl.where(x == -1, tl.where(odd, -1, 1), 0))
    return tl.where(e < 0, inverse, result)""")
_triton("q_shl", """
def q_shl(x, y, bits: tl.constexpr):
    valid = (y >= 0) & (y < bits)
    return tl.where(valid, x << tl.where(valid, y, 0), 0).to(x.dtype)""")
_triton("q_shr", """
def q_shr(x, y, bits: tl.constexpr):
    valid = (y >= 0) & (y < bits)
    return tl.where(valid, x >> tl.where(valid, y, 0), tl.where(x < 0, -1, 0)).to(x.dtype)""")
_triton("q_digamma", """
def q_digamma(x):
    negative = x < 0
    pole = negative & (x == libdevice.floor(x))
    angle = 3.14159265358979323846 * (x - libdevice.trunc(x))
    shift = tl.where(negative, -3.14159265358979323846 / libdevice.tan(angle), tl.zeros_like(x))
    y = tl.where(negative, 1 - x, x)
    for _ in range(20):
        small = y < 20
        shift = tl.where(small, shift - 1 / y, shift)
        y = tl.where(small, y + 1, y)
    inv = 1 / (y * y)
    tail = inv * (1.0 / 12 - inv * (1.0 / 120 - inv * (1.0 / 252 - inv * (1.0 / 240 - inv / 132))))
    value = shift + libdevice.log(y) - 0.5 / y - tail
    value = tl.where(x == 0, libdevice.copysign(tl.zeros_like(x) + float("inf"), x * -1.0), value)
    return tl.where(pole, float("nan"), value)""")
# libdevice.nextafter flushes subnormal results to zero; stepping the bits does not.
for _bits, _float in ((32, "float32"), (64, "float64")):
    _triton(f"q_nextafter{_bits}", f"""
def q_nextafter{_bits}(x, y):
    bits = x.to(tl.int{_bits}, bitcast=True)
    away = (y > x) == (x > 0)
    least = tl.where(y > 0, 1, {1 - 2 ** (_bits - 1)})
    step = tl.where(x == 0, least, tl.where(away, bits + 1, bits - 1))
    moved = step.to(tl.int{_bits}).to(tl.{_float}, bitcast=True)
    return tl.where((x != x) | (y != y), float("nan"), tl.where(x == y, y, moved))""")
_triton("q_philox4", """
def q_philox4(seed, counter):
    k0 = seed.to(tl.uint64).to(tl.uint32)
    k1 = (seed.to(tl.uint64) >> 32).to(tl.uint32)
    a = counter.to(tl.uint64).to(tl.uint32)
    b = (counter.to(tl.uint64) >> 32).to(tl.uint32)
    c = a * 0
    d = a * 0
    for _ in tl.static_range(10):
        p_low = a * 0xD2511F53
        p_high = tl.umulhi(a, (a * 0 + 0xD2511F53).to(tl.uint32))
        q_low = c * 0xCD9E8D57
        q_high = tl.umulhi(c, (c * 0 + 0xCD9E8D57).to(tl.uint32))
        a = q_high ^ b ^ k0
        c = p_high ^ d ^ k1
        b = q_low
        d = p_low
        k0 = (k0 + 0x9E3779B9).to(tl.uint32)
        k1 = (k1 + 0xBB67AE85).to(tl.uint32)
    return a, b, c, d""")
_triton("q_philox", """
def q_philox(seed, offset, i):
    a, b, c, d = q_philox4(seed, offset + (i >> 2))
    return tl.where((i & 2) != 0, tl.where((i & 1) != 0, d, c), tl.where((i & 1) != 0, b, a))""")
_triton("q_philox64", """
def q_philox64(seed, offset, i):
    a, b, c, d = q_philox4(seed, offset + (i >> 1))
    low = tl.where((i & 1) != 0, c, a).to(tl.uint64)
    high = tl.where((i & 1) != 0, d, b).to(tl.uint64)
    return (high << 32) | low""")
for _suffix, _bits in _UNIFORM:
    _triton(f"q_uniform_{_suffix}", f"""
def q_uniform_{_suffix}(seed, offset, i):
    return (q_philox(seed, offset, i) >> {32 - _bits}).to(tl.int32).to(tl.float32) * {2.0**-_bits!r}""")
_triton("q_uniform_f64", """
def q_uniform_f64(seed, offset, i):
    return (q_philox64(seed, offset, i) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16""")
_triton("q_normal32", """
def q_normal32(seed, offset, i):
    a, b, c, d = q_philox4(seed, offset + (i >> 2))
    u = tl.where((i & 2) != 0, c, a)
    v = tl.where((i & 2) != 0, d, b)
    r = tl.sqrt_rn(-2.0 * libdevice.log(((u >> 8) + 1).to(tl.int32).to(tl.float32) * 5.960464477539063e-08))
    t = (v >> 8).to(tl.int32).to(tl.float32) * 5.960464477539063e-08 * 6.283185307179586
    return r * tl.where((i & 1) != 0, libdevice.sin(t), libdevice.cos(t))""")
_triton("q_normal64", """
def q_normal64(seed, offset, i):
    u = (q_philox64(seed, offset, i & -2) >> 11) + 1
    v = q_philox64(seed, offset, i | 1) >> 11
    r = tl.sqrt(-2.0 * libdevice.log(u.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16))
    t = v.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16 * 6.283185307179586
    return r * tl.where((i & 1) != 0, libdevice.sin(t), libdevice.cos(t))""")
