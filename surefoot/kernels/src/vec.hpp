// Vectors of as many samples as a register holds, and the elementary functions that networks need, accurate to a few units
// in the last place.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace surefoot {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int BLOCK = 8;  // independent sums that hide the latency of a multiply-add
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

static inline vec all(float x) { return x - vec{}; }  // costs nothing; x + 0 would cost an addition, because of −0
static inline ivec bits_of(vec x) { return (ivec)x; }
static inline vec of_bits(ivec x) { return (vec)x; }
static inline vec vabs(vec x) { return of_bits(bits_of(x) & 0x7fffffff); }
static inline vec vmin(vec a, vec b) { return a < b ? a : b; }
static inline vec vmax(vec a, vec b) { return a > b ? a : b; }
static inline vec clamp(vec x, float low, float high) { return vmin(vmax(x, all(low)), all(high)); }
static inline float sum_of(vec x) {  // a fixed order, whatever the compiler
  float s[LANES];
  std::memcpy(s, &x, sizeof s);
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) s[l] += s[l + width];
  return s[0];
}
static inline double sum_of_double(vec x) {
  double s[LANES];
  for (int l = 0; l < LANES; l++) s[l] = x[l];
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) s[l] += s[l + width];
  return s[0];
}
// Interleaves the lower halves of a and b, or the upper halves. Clang and GCC from 12 on know the first builtin, GCC before
// that only the second.
#if defined(__AVX512F__)
#define SUREFOOT_LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SUREFOOT_UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define SUREFOOT_LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define SUREFOOT_UPPER 4, 12, 5, 13, 6, 14, 7, 15
#else
#define SUREFOOT_LOWER 0, 4, 1, 5
#define SUREFOOT_UPPER 2, 6, 3, 7
#endif
#if defined(__clang__) || __GNUC__ >= 12
static inline vec zip_lower(vec a, vec b) { return __builtin_shufflevector(a, b, SUREFOOT_LOWER); }
static inline vec zip_upper(vec a, vec b) { return __builtin_shufflevector(a, b, SUREFOOT_UPPER); }
#else
static inline vec zip_lower(vec a, vec b) { return __builtin_shuffle(a, b, (ivec){SUREFOOT_LOWER}); }
static inline vec zip_upper(vec a, vec b) { return __builtin_shuffle(a, b, (ivec){SUREFOOT_UPPER}); }
#endif

// Transposes a square of as many vectors as there are lanes.
static inline void transpose(const vec* from, vec* to) {
  vec a[LANES], b[LANES];
  for (int i = 0; i < LANES; i++) a[i] = from[i];
  for (int round = 1; round < LANES; round *= 2) {  // log₂(LANES) perfect shuffles
    for (int i = 0; i < LANES / 2; i++) {
      b[2 * i] = zip_lower(a[i], a[i + LANES / 2]);
      b[2 * i + 1] = zip_upper(a[i], a[i + LANES / 2]);
    }
    for (int i = 0; i < LANES; i++) a[i] = b[i];
  }
  for (int i = 0; i < LANES; i++) to[i] = a[i];
}

// e^r − 1 for the remainder r after the powers of two are taken out.
static inline vec exp_less_one(vec r) {
  vec p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}

// e^x. A NaN stays one; beyond the range of a float: 0 and infinity.
static inline vec vexp(vec x) {
  vec kept = clamp(x, -87.33f, 88.72f);  // 2^n below stays a normal number
  ivec n = __builtin_convertvector(kept * 1.44269504088896341f + (kept < 0.0f ? all(-0.5f) : all(0.5f)), ivec);
  vec k = __builtin_convertvector(n, vec);
  vec r = kept - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  vec y = exp_less_one(r) + 1.0f;
  ivec half = n >> 1;  // in two factors, because 2^128 is not a float
  y = y * of_bits((half + 127) << 23) * of_bits((n - half + 127) << 23);
  y = x < -87.33f ? vec{} : y;
  y = x > 88.72f ? all(std::numeric_limits<float>::infinity()) : y;
  return x == x ? y : x;
}

// log x for normal x > 0 (used only for sums of exponentials, which are at least 1, and for 1 + e^−|x|).
static inline vec vlog(vec x) {
  ivec b = bits_of(x);
  ivec e = ((b >> 23) & 0xff) - 126;
  vec m = of_bits((b & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  ivec low = m < 0.707106781186547524f;
  m = low ? m + m : m;
  e = e + low;  // true is −1
  vec k = __builtin_convertvector(e, vec);
  vec f = m - 1.0f, z = f * f;
  vec p = all(7.0376836292e-2f);
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  vec y = f * z * p;
  y = y + k * -2.12194440e-4f;
  y = y - 0.5f * z;
  return f + y + k * 0.693359375f;
}

// log(1 + y) for 0 ≤ y ≤ 1, without losing a small y.
static inline vec vlog1p(vec y) {
  vec u = 1.0f + y;
  vec d = u - 1.0f;
  // log(u)·y/(u − 1): the rounding of 1 + y cancels
  vec safe = d == 0.0f ? all(1.0f) : d;
  return d == 0.0f ? y : vlog(u) * (y / safe);
}

static inline vec softplus(vec x) { return vmax(x, vec{}) + vlog1p(vexp(-vabs(x))); }
static inline vec sigmoid(vec x) {
  vec e = vexp(-vabs(x)), r = 1.0f / (1.0f + e);
  return x >= 0.0f ? r : e * r;
}

// tanh x, and 1 − tanh² x with a small relative error: computed from a rounded tanh, it could lose all digits.
// With e = e^(−2|x|) and m = e − 1, each to its own precision: tanh |x| = −m/(2 + m), 1 − tanh² = 4e/(2 + m)².
__attribute__((always_inline)) static inline void vtanh(vec x, vec& y, vec& slope) {
  vec a = vabs(x) * -2.0f;
  a = a < -87.0f ? all(-87.0f) : a;  // a NaN stays one, here and below
  ivec n = __builtin_convertvector(a * 1.44269504088896341f - 0.5f, ivec);
  vec k = __builtin_convertvector(n, vec);
  vec r = a - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  vec p = exp_less_one(r);
  vec power = of_bits((n + 127) << 23);
  vec e = power * p + power, m = power * p + (power - 1.0f);
  vec inverse = 1.0f / (2.0f + m);
  y = of_bits(bits_of(m * inverse) ^ (bits_of(x) & (int32_t)0x80000000) ^ (int32_t)0x80000000);
  slope = 4.0f * e * inverse * inverse;
}

enum Activation { TANH = 0, RELU = 1, ELU = 2, SILU = 3 };

static inline void activate(int kind, vec* y, vec* slope, int count) {
  switch (kind) {
    case TANH:
      for (int i = 0; i < count; i++) {
        vec h, d;
        vtanh(y[i], h, d);
        y[i] = h, slope[i] = d;
      }
      break;
    case RELU:
      for (int i = 0; i < count; i++) {
        ivec on = y[i] > 0.0f;
        slope[i] = on ? all(1.0f) : vec{};
        y[i] = y[i] <= 0.0f ? vec{} : y[i];  // a NaN stays one
      }
      break;
    case ELU:
      for (int i = 0; i < count; i++) {
        vec e = vexp(vmin(y[i], vec{}));
        ivec on = y[i] > 0.0f;
        // e^x − 1 of a small x by its series, because the difference would cancel
        vec x = y[i], series = x * (1.0f + x * (0.5f + x * (1.0f / 6.0f + x * (1.0f / 24.0f + x * (1.0f / 120.0f)))));
        vec below = vabs(x) < 0.1f ? series : e - 1.0f;
        slope[i] = on ? all(1.0f) : e;
        y[i] = on ? x : below;
        y[i] = x == x ? y[i] : x;
      }
      break;
    default:
      for (int i = 0; i < count; i++) {
        vec s = sigmoid(y[i]), x = y[i];
        y[i] = x * s;
        slope[i] = s * (1.0f + x * (1.0f - s));
      }
  }
}

// The storage's first number that begins a cache line; the storage is 16 numbers longer than needed.
static inline float* aligned(std::vector<float>& storage) {
  return (float*)(((uintptr_t)storage.data() + 63) & ~(uintptr_t)63);
}

}  // namespace surefoot
