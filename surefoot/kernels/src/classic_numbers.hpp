// Arithmetic exactly as in Python and NumPy 2 (NEP 50), for the classic-control environments, which must equal
// Gymnasium's bit for bit. Each of their headers includes this one first.
//
// The compiler must not contract multiply-adds (the pragmas below forbid it in the rest of the including file; setup.py
// also passes -ffp-contract=off) and must not use fast-math. NumPy's `x ** 2` is libm's pow, which differs from x*x for
// about one number in a thousand.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>

#if defined(__FAST_MATH__)
#error "the environments must be bit-equal to Gymnasium's: compile without -ffast-math"
#endif
static_assert(FLT_EVAL_METHOD == 0, "float and double must be computed as such (on 32-bit x86: -msse2 -mfpmath=sse)");

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace surefoot {
namespace classic {

constexpr double pi = 3.141592653589793;

// `x ** 2` of a NumPy scalar. The exponent is volatile because compilers replace pow(x, 2) by x*x.
inline double power_of_two(double x) {
    static volatile double two = 2.0;
    return std::pow(x, two);
}

inline float power_of_two(float x) {
    static volatile float two = 2.0f;
    return std::pow(x, two);
}

// A double rounded to float32 before further computation. It goes through memory, because the vectoriser of GCC 12 drops
// the rounding of double → float → double for AVX2.
inline float round_to_float32(double x) {
    volatile float narrow = static_cast<float>(x);
    return narrow;
}

// `x % y` of NumPy floats for y > 0: the result has the sign of y.
inline double modulo(double x, double y) {
    const double rest = std::fmod(x, y);
    if (rest == 0.0) return 0.0;
    return rest < 0.0 ? rest + y : rest;
}

// np.clip; a NaN stays one.
template <class Real>
inline Real clip(Real x, Real low, Real high) {
    return x < low ? low : (x > high ? high : x);
}

// np.sin and np.cos of a float32 with |x| <= π/4. NumPy computes them with its own polynomials and fused multiply-adds.
// (On machines without those it uses libm; the check before use then finds that they differ.)
inline float sin_float32(float x) {
    const float x2 = x * x;
    float r = std::fma(0x1.7d3bbcp-19f, x2, -0x1.a06bbap-13f);
    r = std::fma(r, x2, 0x1.11119ap-7f);
    r = std::fma(r, x2, -0x1.555556p-3f);
    return std::fma(r * x2, x, x);
}

inline float cos_float32(float x) {
    const float x2 = x * x;
    float r = std::fma(0x1.98e616p-16f, x2, -0x1.6c06dcp-10f);
    r = std::fma(r, x2, 0x1.55553cp-5f);
    r = std::fma(r, x2, -0.5f);
    return std::fma(r, x2, 1.0f);
}

}  // namespace classic
}  // namespace surefoot
