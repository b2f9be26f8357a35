// The surrogates: the contribution of a sample to the objective, each a struct with the same few members:
//
//   name         what Python calls it
//   parameters   how many numbers of `LossSpec::parameters` it reads
//   of           value, slope and whether the ratio was clipped, for a tile of samples
//
// A new one is a struct here and its name in `Surrogates`. It also needs a formula in PyTorch that it is compared with
// (tests/kernels/test_network.py).
#pragma once
#include <string>

#include "specs.hpp"
#include "vec.hpp"

namespace surefoot {

// A tile of samples: log π(a|s) now and when it was collected, r = π/π_old, Â.
struct Sampled {
  vec log_prob, old_log_prob, ratio, advantage;
};

// To be maximised; `slope` is d value / d log π, `clipped` 1 or 0.
struct Gain {
  vec value{}, slope{}, clipped{};
};

struct NoSurrogate {
  static constexpr const char* name = "none";
  static constexpr int parameters = 0;
  static Gain of(const Sampled&, const double*) { return {}; }
};

// log π·Â
struct LogProb {
  static constexpr const char* name = "log_prob";
  static constexpr int parameters = 0;
  static Gain of(const Sampled& s, const double*) { return {s.log_prob * s.advantage, s.advantage, vec{}}; }
};

// r·Â
struct Ratio {
  static constexpr const char* name = "ratio";
  static constexpr int parameters = 0;
  static Gain of(const Sampled& s, const double*) {
    const vec value = s.ratio * s.advantage;
    return {value, value, vec{}};
  }
};

// PPO: min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)
struct Clip {
  static constexpr const char* name = "clip";
  static constexpr int parameters = 1;  // ε
  static Gain of(const Sampled& s, const double* p) {
    const vec kept = clamp(s.ratio, (float)(1.0 - p[0]), (float)(1.0 + p[0]));
    const vec free = s.ratio * s.advantage, held = kept * s.advantage;
    // If the clipped term is smaller, the slope is −0, which the loss's minus sign turns into 0.
    return {vmin(free, held), free > held ? all(-0.0f) : free, s.ratio != kept ? all(1.0f) : vec{}};
  }
};

// SPO: r·Â − |Â|·(r − 1)² / (2ε). Beyond |r − 1| = ε the gradient points back.
struct Spo {
  static constexpr const char* name = "spo";
  static constexpr int parameters = 1;  // ε
  static Gain of(const Sampled& s, const double* p) {
    const vec off = s.ratio - 1.0f, pull = vabs(s.advantage) * off * (float)(1.0 / p[0]);
    return {s.ratio * s.advantage - 0.5f * pull * off, s.ratio * (s.advantage - pull),
            vabs(off) > (float)p[0] ? all(1.0f) : vec{}};
  }
};

template <typename... Kinds>
struct SurrogateList {};
// The position of a surrogate is its number in `LossSpec::surrogate`; "none" is 0.
using Surrogates = SurrogateList<NoSurrogate, LogProb, Ratio, Clip, Spo>;

static inline bool has_surrogate(const LossSpec& spec) { return spec.surrogate != 0; }

// Calls `call` with the surrogate of this number.
template <typename Call, typename First, typename... Rest>
static inline auto with_surrogate(int64_t number, const Call& call, SurrogateList<First, Rest...>) {
  if constexpr (sizeof...(Rest) > 0) {
    if (number > 0) return with_surrogate(number - 1, call, SurrogateList<Rest...>());
  }
  return call(First());
}

static inline Gain gain_of(const LossSpec& spec, const Sampled& sampled) {
  return with_surrogate(spec.surrogate, [&](auto kind) { return decltype(kind)::of(sampled, spec.parameters); },
                        Surrogates());
}

// "name:parameters" of each, in their order.
template <typename... Kinds>
static inline std::string listed(SurrogateList<Kinds...>) {
  static_assert(((Kinds::parameters <= MOST_PARAMETERS) && ...), "LossSpec has no room for so many");
  std::string text;
  ((text += (text.empty() ? "" : ";") + std::string(Kinds::name) + ":" + std::to_string(Kinds::parameters)), ...);
  return text;
}

}  // namespace surefoot
