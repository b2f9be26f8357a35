// The gradient of the loss over a minibatch, shared by the threads.
#pragma once
#include <cmath>
#include <stdexcept>
#include <string>

#include "losses.hpp"

namespace surefoot {

// The samples at `index` of a batch (null: the first ones); advantages may be normalised over them.
struct Minibatch {
  const Batch& batch;
  const int64_t* index;
  int64_t size;
  bool normalize;
  const double* shared;      // Σ w·A, Σ w·A², Σ w over all processes; null: there are no others
  double processes;          // how many

  int64_t at(int64_t i) const { return index ? index[i] : i; }
  double weight(int64_t i) const { return batch.weight ? batch.weight[at(i)] : 1.0; }
  double weight() const {  // total
    if (!batch.weight) return (double)size;
    double sum = 0.0;
    for (int64_t i = 0; i < size; i++) sum += batch.weight[at(i)];
    return sum;
  }
  double advantage(int64_t i) const { return batch.advantage[at(i)]; }
};

// Throws if a callback failed.
static inline void require_success(int result) {
  if (result) throw std::runtime_error("a callback returned " + std::to_string(result));
}

// For samples whose weights sum to `weight`. If all are invalid, the loss is 0, not 0/0. A single sample is not normalised,
// because nothing would be left of it.
static inline Scale scaled(const Minibatch& m, double weight, double mean, double variance) {
  const float share = (float)((m.shared ? m.processes : 1.0) / (weight > 1.0 ? weight : 1.0));
  if (!m.normalize || !(weight > 1.0)) return {share, 0.0f, 1.0f};
  return {share, (float)mean, (float)(1.0 / (std::sqrt(variance) + 1e-8))};
}

// Over the minibatches of several processes, from three sums. In double precision the variance is as exact as float32
// advantages allow, unless their mean is a million times their spread.
static inline Scale shared_scale_of(const Minibatch& m) {
  const double weight = m.shared[2], mean = m.shared[0] / weight, variance = m.shared[1] / weight - mean * mean;
  return scaled(m, weight, mean, variance < 0.0 ? 0.0 : variance);  // a NaN stays one
}

static inline Scale scale_of(const Minibatch& m, double weight) {
  if (m.shared) return shared_scale_of(m);
  if (!m.normalize || !(weight > 1.0)) return scaled(m, weight, 0.0, 1.0);
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < m.size; i++) sum += m.weight(i) * m.advantage(i);
  const double mean = sum / weight;
  for (int64_t i = 0; i < m.size; i++) {
    const double d = m.advantage(i) - mean;
    squares += m.weight(i) * d * d;
  }
  return scaled(m, weight, mean, squares / weight);
}

// Gradients of minibatches, computed by all ranks together.
class Learning {
 public:
  explicit Learning(Engine& engine) : e_(engine) {}

  // This rank's part of a minibatch's gradient. Ends with a barrier; every rank gets the sums of all.
  Sums gradient(int rank, const float* theta, const LossSpec& spec, const Minibatch& m, float* g) {
    const Sums found = shards(rank, theta, spec, m);
    e_.shards.add_up(rank, g, m.size, e_.pool->barrier());
    return found;
  }

  // The same, in shards that have yet to be summed.
  Sums shards(int rank, const float* theta, const LossSpec& spec, const Minibatch& m) {
    const double weight = m.weight();
    const Scale scale = scale_of(m, weight);  // each rank computes it: cheaper than a barrier
    const int count = e_.shards.count(m.size);
    const bool two = in_two(e_, spec);
    for (int shard = 0; shard < count; shard++)
      for (int critic = 0; critic <= (two ? 1 : 0); critic++)
        if (e_.shards.ranks.mine(rank, critic, shard))
          sums_[2 * shard + critic] =
              shard_of(rank, two ? critic ? CRITIC : ACTOR : BOTH, theta, spec, m, scale, shard, count);
    e_.pool->barrier().wait();
    Sums total{};
    for (int task = 0; task < 2 * count; task++)
      if (two || task % 2 == 0) add(total, sums_[task]);
    total.weight = m.shared ? m.shared[2] / m.processes : weight;  // then the means of all processes have the right mean
    return total;
  }

 private:
  Sums shard_of(int rank, Which which, const float* theta, const LossSpec& spec, const Minibatch& m, Scale scale,
                int shard, int count) {
    float* g = e_.shards.at(shard);
    // If every layer of the MLPs gets a gradient, the first group writes it; otherwise it is added to zeros.
    Start start = which != BOTH || (wants_actor(spec) && (wants_critic(e_, spec) || !e_.has_critic)) ? ZERO : ADD;
    if (start == ADD) {
      std::memset(g, 0, sizeof(float) * e_.shards.size);
    } else if (which != CRITIC) {
      std::memset(g, 0, sizeof(float) * e_.begin);
      std::memset(g + e_.parts_begin, 0, sizeof(float) * (e_.critic_begin - e_.parts_begin));
    }
    Sums sums{};
    Workspace& space = *e_.spaces[rank];
    const int64_t tiles = num_tiles(m.size);
    e_.over_groups(tiles * shard / count, tiles * (shard + 1) / count, m.size, [&](int64_t at, int here) {
      for (int i = 0; i < here; i++) space.index[i] = m.at(at + i);
      loss_group(e_, which, theta, spec, m.batch, space.index.data(), here, scale, space, g, start, nullptr);
      start = ADD;
      for (int t = 0; t < num_tiles(here); t++) add(sums, space.sums[t]);
    });
    return sums;
  }

  Engine& e_;
  Sums sums_[2 * Shards::MOST];  // per task
};

}  // namespace surefoot
