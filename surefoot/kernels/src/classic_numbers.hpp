// Arithmetic as Python and NumPy 2 do it (NEP 50), for the classic-control environments, which must equal Gymnasium's bit
// for bit. Every header of theirs includes this one first.
//
// The compiler must not contract multiply-adds (the pragmas below ask for that in the rest of the file that includes
// this; setup.py also passes -ffp-contract=off) and must not use fast-math. NumPy's `x ** 2` is libm's pow, which is not
// x*x: they differ once in about a thousand.
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

// `x ** 2` of a NumPy scalar. The exponent is volatile because a compiler makes x*x of a pow with a known 2.
inline double power_of_two(double x) {
    static volatile double two = 2.0;
    return std::pow(x, two);
}

inline float power_of_two(float x) {
    static volatile float two = 2.0f;
    return std::pow(x, two);
}

// A double rounded to float32, wherever more is computed from it. Through memory, because the vectoriser of GCC 12 drops
// the rounding from a double → float → double for AVX2.
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

// np.sin and np.cos of a float32 with |x| <= π/4: NumPy computes them with polynomials of its own and fused
// multiply-adds (where the machine has none, with libm; then the check before use will say that they differ).
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
