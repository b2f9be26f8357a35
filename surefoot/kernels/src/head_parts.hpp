// Shared by all kinds of action distribution: the columns of one part of a head, and the scratch of one tile.
#pragma once
#include <vector>

#include "vec.hpp"

namespace surefoot {

enum PartKind { CATEGORICAL = 0, BERNOULLI = 1, GAUSSIAN = 2, TANH_GAUSSIAN = 3, BETA = 4 };

struct Part {
  int kind, size;               // choices, bits or dimensions
  int output, param, action, noise, mask;  // first column of each; mask −1: none
  int64_t log_std;              // offset in the parameter vector; −1: the network outputs the std
  int64_t shard;                // offset of log_std's gradient
  std::vector<float> centre, half;  // range of a squashed mean; empty: not squashed
  float log_scale;              // Σ log of the factors that scale an action to its bounds: densities are of the env's action
};

// The scratch of one tile, by the columns of the parts: new distribution, old distribution, and gradients.
// Each kind uses logp, p, old_logp and old_p in its own way between `measure` and `gradient`.
struct HeadScratch {
  std::vector<vec> param, slope, logp, p, old, old_logp, old_p, action, noise, mask, d_out;
};

static inline bool any(ivec mask) {
  for (int l = 0; l < LANES; l++)
    if (mask[l]) return true;
  return false;
}

// The derivatives of a loss with respect to log π(a|s), entropy and KL(old‖new), for one tile.
struct Slopes {
  vec log_prob, entropy, kl;
};

// One tile's log π(a|s), entropy and KL(old‖new), summed over the parts.
struct Measures {
  vec log_prob{}, entropy{}, kl{};
};

}  // namespace surefoot
