// Layer normalisation over the units of a layer, y = g·ẑ + b with ẑ = (z − mean z)/√(var z + ε).
//
// A number is a vector with one sample per lane, or a float (`Turned`); both go through the same operations in the same
// order.
#pragma once
#include <algorithm>
#include <cmath>

#include "product.hpp"

namespace surefoot {

constexpr float NORM_EPSILON = 1e-5f;  // LAYER_NORM_EPS in surefoot/math/constants.py
constexpr int SUMS = 4;                // independent ones, because each addition waits for the last one

// The parameters of a layer's norm.
struct Norm {
  int64_t gain = -1, bias = -1;  // in the parameter vector; −1: the layer has none
  int64_t shard = 0;             // in a shard's gradient: the gain, then the bias, both [out][LANES]
  explicit operator bool() const { return gain >= 0; }
};

static inline float root(float x) { return std::sqrt(x); }
static inline vec root(vec x) {
  for (int l = 0; l < LANES; l++) x[l] = std::sqrt(x[l]);
  return x;
}

template <typename Number>
static inline Number total(const Number (&part)[SUMS]) {
  return (part[0] + part[1]) + (part[2] + part[3]);
}
template <typename Number>
static inline Number mean(const Number* x, int units) {
  Number part[SUMS] = {};
  for (int o = 0; o < units; o++) part[o % SUMS] += x[o];
  return total(part) / (float)units;
}
template <typename Number>
static inline Number mean_product(const Number* x, const Number* y, int units) {
  Number part[SUMS] = {};
  for (int o = 0; o < units; o++) part[o % SUMS] += x[o] * y[o];
  return total(part) / (float)units;
}

// One sample per lane: z becomes y. `hat` gets ẑ; returns 1/√(var z + ε).
template <typename Number>
static inline Number normalise(const Norm& norm, const float* theta, int units, Number* z, Number* hat) {
  const Number middle = mean(z, units);
  for (int o = 0; o < units; o++) hat[o] = z[o] - middle;
  const Number inverse = 1.0f / root(mean_product(hat, hat, units) + NORM_EPSILON);
  const float *gain = theta + norm.gain, *bias = theta + norm.bias;
  for (int o = 0; o < units; o++) {
    hat[o] *= inverse;
    z[o] = hat[o] * gain[o] + bias[o];
  }
  return inverse;
}

// The derivative of ẑ along d, or backwards: both are d ↦ (d − mean d − ẑ·mean(ẑ·d))/√(var z + ε).
static inline void project(const vec* hat, vec inverse, int units, vec* d) {
  const vec middle = mean(d, units), along = mean_product(d, hat, units);
  for (int o = 0; o < units; o++) d[o] = inverse * (d[o] - middle - hat[o] * along);
}

// dy becomes dz; the gradients of gain and bias are added to the shard g, or written (ZERO).
static inline void normalise_back(const Norm& norm, const float* theta, int units, const vec* hat, const vec* inverse,
                                  vec* dy, float* g, int tiles, Start start) {
  vec *d_gain = (vec*)(g + norm.shard), *d_bias = d_gain + units;
  if (start == ZERO) std::fill_n(d_gain, 2 * units, vec{});
  const float* gain = theta + norm.gain;
  for (int t = 0; t < tiles; t++, hat += units, dy += units) {
    for (int o = 0; o < units; o++) {
      d_gain[o] += dy[o] * hat[o], d_bias[o] += dy[o];
      dy[o] *= gain[o];
    }
    project(hat, inverse[t], units, dy);
  }
}

// The tangent of z becomes that of y.
static inline void normalise_tangent(const Norm& norm, const float* theta, const float* direction, int units,
                                     const vec* hat, const vec* inverse, vec* tangent, int tiles) {
  const float *gain = theta + norm.gain, *d_gain = direction + norm.gain, *d_bias = direction + norm.bias;
  for (int t = 0; t < tiles; t++, hat += units, tangent += units) {
    project(hat, inverse[t], units, tangent);
    for (int o = 0; o < units; o++) tangent[o] = tangent[o] * gain[o] + hat[o] * d_gain[o] + d_bias[o];
  }
}

}  // namespace surefoot
