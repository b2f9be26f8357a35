// Statistics of a few samples that are looked at closely: a layer's activity, and each dimension of the action.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "heads.hpp"

namespace surefoot {

struct Activity {
  double dead, rank;  // share of units that hardly vary; (tr C)² / ‖C‖² of the outputs' covariance
};

// Of outputs [count, units]; each row counts as its weight says (null: all alike). `rows` is changed.
static inline Activity activity(float* rows, int64_t count, int units, const float* weight) {
  constexpr double STILL = 1e-3;  // as in surefoot/math/instruments.py
  std::vector<double> mean(units, 0.0), variance(units, 0.0);
  double total = 0.0;
  for (int64_t n = 0; n < count; n++) {
    const double w = weight ? weight[n] : 1.0;
    total += w;
    for (int i = 0; i < units; i++) mean[i] += w * rows[n * units + i];
  }
  total = total > 1.0 ? total : 1.0;
  for (double& m : mean) m /= total;
  for (int64_t n = 0; n < count; n++) {
    const double root = std::sqrt((weight ? weight[n] : 1.0) / total);
    for (int i = 0; i < units; i++) {
      const double off = root * (rows[n * units + i] - mean[i]);
      rows[n * units + i] = (float)off, variance[i] += off * off;
    }
  }
  // The squares of C's entries add up to those of the samples' products with each other: the smaller of both tables.
  double trace = 0.0, square = 0.0;
  int dead = 0;
  for (double v : variance) trace += v, dead += v < STILL * STILL;
  if (count >= units) {
    std::vector<float> table((size_t)units * units, 0.0f);
    for (int64_t n = 0; n < count; n++)
      for (int i = 0; i < units; i++) {
        const float x = rows[n * units + i];
        const float* __restrict from = rows + n * units;
        float* __restrict to = table.data() + (size_t)i * units;
        for (int j = 0; j < units; j++) to[j] += x * from[j];
      }
    for (float x : table) square += (double)x * x;
  } else {
    std::vector<float> turned((size_t)units * count), products(count);
    for (int64_t n = 0; n < count; n++)
      for (int i = 0; i < units; i++) turned[i * count + n] = rows[n * units + i];
    for (int64_t n = 0; n < count; n++) {
      std::fill(products.begin(), products.end(), 0.0f);
      for (int i = 0; i < units; i++) {
        const float x = rows[n * units + i];
        const float* __restrict from = turned.data() + i * count;
        float* __restrict to = products.data();
        for (int64_t m = 0; m < count; m++) to[m] += x * from[m];
      }
      for (float x : products) square += (double)x * x;
    }
  }
  return {(double)dead / units, trace > 1e-12 ? trace * trace / std::max(square, 1e-30) : 0.0};
}

// The entropies of the action's dimensions, then the stds of the continuous ones, of one row of parameters. Both are those
// of what is stored: before a tanh, on (0, 1) for a Beta. Returns how many of each.
struct Dimensions {
  int entropies, stds;
};
static inline Dimensions dimensions(const Head& head, const float* params, double* entropy, double* deviation) {
  Dimensions found{};
  const auto bit = [](double p) { return p > 0.0 && p < 1.0 ? -p * std::log(p) - (1.0 - p) * std::log1p(-p) : 0.0; };
  for (const Part& part : head.parts) {
    const float* p = params + part.param;
    const int n = part.size;
    if (part.kind == CATEGORICAL) {
      double top = p[0], total = 0.0, h = 0.0;
      for (int i = 1; i < n; i++) top = std::max(top, (double)p[i]);
      for (int i = 0; i < n; i++) total += std::exp(p[i] - top);
      for (int i = 0; i < n; i++) {
        const double q = std::exp(p[i] - top) / total;
        h -= q > 0.0 ? q * (p[i] - top - std::log(total)) : 0.0;
      }
      entropy[found.entropies++] = h;
    }
    for (int i = 0; i < n && part.kind != CATEGORICAL; i++) {
      if (part.kind == BERNOULLI) {
        entropy[found.entropies++] = bit(1.0 / (1.0 + std::exp(-(double)p[i])));
      } else if (part.kind == BETA) {
        const Beta::Spread of = Beta::spread(p[i], p[n + i]);
        entropy[found.entropies++] = of.entropy, deviation[found.stds++] = of.std;
      } else {
        entropy[found.entropies++] = p[n + i] + 0.5 * (1.0 + LOG_2PI), deviation[found.stds++] = std::exp((double)p[n + i]);
      }
    }
  }
  return found;
}

}  // namespace surefoot
