// What the kinds of action distribution share: the columns of one part of a head, and the scratch of one tile.
#pragma once
#include <vector>

#include "vec.hpp"

namespace surefoot {

enum PartKind { CATEGORICAL = 0, BERNOULLI = 1, GAUSSIAN = 2, TANH_GAUSSIAN = 3, BETA = 4 };

struct Part {
  int kind, size;               // choices, bits or dimensions
  int output, param, action, noise, mask;  // first column of each; mask −1: none
  int64_t log_std;              // in the parameter vector; −1: the network gives the std
  int64_t shard;                // of log_std's gradient
  std::vector<float> centre, half;  // of a mean squashed into them; empty: as it is
  float log_scale;              // Σ log of what stretches an action into its bounds; densities are those of the env's action
};

// Everything of one tile, by the columns of the parts: of the new distribution, of the old one, and what flows back.
// What a kind keeps between `measure` and `gradient` in logp, p, old_logp and old_p is its own business.
struct HeadScratch {
  std::vector<vec> param, slope, logp, p, old, old_logp, old_p, action, noise, mask, d_out;
};

static inline bool any(ivec mask) {
  for (int l = 0; l < LANES; l++)
    if (mask[l]) return true;
  return false;
}

// The derivatives of a loss with respect to log π(a|s), to the entropy and to KL(old‖new), of one tile.
struct Slopes {
  vec log_prob, entropy, kl;
};

// One tile's log π(a|s), entropy and KL(old‖new), to which every part adds its own.
struct Measures {
  vec log_prob{}, entropy{}, kl{};
};

}  // namespace surefoot
