// The inputs' contribution to the gates of a GRU or LSTM, W x + b: given, or computed on the fly.
#pragma once
#include <vector>

#include "memory_parts.hpp"

namespace surefoot {

// The inputs' contribution, given as rows [L, S, G·H].
class Given {
 public:
  Given(const Recurrence& r, const float* x) : r_(r), x_(x), units_((size_t)4 * r.gates() / r.hidden * r.vectors()) {}
  void lanes(int64_t t, int64_t begin, int count, vec* to) {
    load_rows(x_ + (t * r_.sequences + begin) * r_.gates(), r_.gates(), r_.gates(), count, to);
  }
  // For sequence s, the n-th of its group; each gate begins at a whole vector.
  const vec* units(int64_t t, int64_t s, int n) {
    const int H = r_.hidden, G = r_.gates(), V = r_.vectors();
    vec* to = units_.data() + (size_t)n * G / H * V;
    for (int k = 0; k < G / H; k++) load_units(x_ + (t * r_.sequences + s) * G + k * H, H, to + k * V);
    return to;
  }

 private:
  const Recurrence& r_;
  const float* x_;
  std::vector<vec> units_;
};

// The inputs' contribution, W x + b, from rows x [L, S, stride], of which the first `in` numbers are used. For a single
// sequence, a few steps are computed at once, one per lane.
class Projected {
 public:
  Projected(const Recurrence& r, const float* x, int in, int stride, const float* weight, const float* bias)
      : r_(r), x_(x), weight_(weight), bias_(bias), in_(in), stride_(stride), seen_(in), made_(r.gates()) {}
  void lanes(int64_t t, int64_t begin, int count, vec* to) {
    load_rows(x_ + (t * r_.sequences + begin) * stride_, stride_, in_, count, seen_.data());
    dense(weight_, bias_, in_, r_.gates(), seen_.data(), to);
  }
  const vec* units(int64_t t, int64_t s, int n) {
    const int H = r_.hidden, K = r_.gates() / H, V = r_.vectors();
    if (ahead_.empty()) ahead_.resize((size_t)4 * LANES * K * V);
    vec* here = ahead_.data() + (size_t)n * LANES * K * V;
    if (t % LANES == 0) {
      const int count = (int)std::min<int64_t>(LANES, r_.steps - t);
      load_rows(x_ + (t * r_.sequences + s) * stride_, r_.sequences * stride_, in_, count, seen_.data());
      dense(weight_, bias_, in_, r_.gates(), seen_.data(), made_.data());
      for (int k = 0; k < K; k++)
        store_rows(made_.data() + k * H, H, count, (float*)(here + k * V), (int64_t)K * V * LANES);
    }
    return here + (size_t)(t % LANES) * K * V;
  }

 private:
  const Recurrence& r_;
  const float *x_, *weight_, *bias_;
  int in_, stride_;
  std::vector<vec> seen_, made_, ahead_;
};

}  // namespace surefoot
