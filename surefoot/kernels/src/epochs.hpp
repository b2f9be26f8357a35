// Gradients of a batch and epochs of minibatches with optimizer steps.
#pragma once
#include "optimizer.hpp"
#include "recurrent.hpp"

namespace surefoot {

// The gradient of the loss over the samples (or sequences) at `index` (null: all of them), and its terms.
static inline Sums gradient(Recurrent& net, const float* theta, const LossSpec& spec, const Batch& batch,
                            const int64_t* index, int64_t samples, bool normalize, float* g) {
  Sums total{};
  net.prepare(theta, batch, samples, true);
  net.pool().run([&](int rank) {
    const Sums found = net.gradient(rank, theta, spec, {batch, index, samples, normalize, nullptr, 1.0}, g);
    if (rank == 0) total = found;
  });
  return total;
}

// The samples (or sequences) of each minibatch. They are equal parts of order, [epochs, B], or begin in it where `begins`
// says, [epochs · minibatches + 1]: the samples of several processes are shuffled together, and each has its own of them.
struct Passes {
  const int64_t *order, *begins;
  int64_t epochs, minibatches;
  bool normalize;

  int64_t size(int64_t at, int64_t equal) const { return begins ? begins[at + 1] - begins[at] : equal; }
  const int64_t* index(int64_t at, int64_t equal) const {
    if (begins) return order + begins[at];
    return minibatches == 1 ? nullptr : order + at * equal;
  }
  int64_t largest(int64_t equal) const {
    int64_t most = begins ? 0 : equal;
    for (int64_t at = 0; begins && at < epochs * minibatches; at++) most = std::max(most, size(at, equal));
    return most;
  }
};

// What came of it, summed over the minibatches; behind it the first ratio's error.
constexpr int NUM_HISTORY = 7;
static inline void note(double* history, const Sums& found, double norm) {
  const double weight = found.weight > 1.0 ? found.weight : 1.0;
  const double terms[NUM_HISTORY] = {found.surrogate / weight, found.value_loss / weight, found.entropy / weight,
                                     found.approx_kl / weight, found.clipped / weight,    found.kl / weight,
                                     norm};
  for (int i = 0; i < NUM_HISTORY; i++) history[i] += terms[i];
}

// The gradient of a minibatch of which this process has no samples.
static inline Sums no_gradient(Recurrent& net, std::pair<int64_t, int64_t> range, const Minibatch& m, float* g) {
  std::fill(g + range.first, g + range.second, 0.0f);
  net.pool().barrier().wait();
  Sums none{};
  none.weight = m.shared ? m.shared[2] / m.processes : 0.0;
  return none;
}

// Exchanges the gradient with other processes: rank 0 calls back while all wait. Ends with a barrier.
static inline void exchange_gradient(Recurrent& net, int rank, const Exchange& exchange, float* g) {
  if (rank == 0) require_success(exchange.gradient(g, net.mlps.size, exchange.context));
  net.pool().barrier().wait();
  net.mlps.shards.measure(rank, g, net.pool().barrier());
}

// Of a rank's range: g to the first half of `total`, its squares to the second.
static inline void add_to(float* __restrict total, const float* __restrict g, std::pair<int64_t, int64_t> range,
                          int64_t size, bool first) {
  for (int64_t i = range.first; i < range.second; i++) {
    total[i] = (first ? 0.0f : total[i]) + g[i];
    total[size + i] = (first ? 0.0f : total[size + i]) + g[i] * g[i];
  }
}

// A failed exchange ends it: `moving` then has the steps before that, but for their number. `total`, where not null,
// becomes the sum of the first epoch's gradients, and behind it that of their squares.
static inline void epochs(Recurrent& net, const Moving& moving, const LossSpec& spec, const OptimizerSpec& optimizer,
                          const Batch& batch, const Passes& passes, const Exchange* exchange, double* history,
                          float* total) {
  const Engine& mlps = net.mlps;
  const int64_t equal = (batch.start ? batch.sequences : batch.size) / passes.minibatches;
  if (exchange) net.pool().make_room();  // if one thread fails, the others throw
  net.prepare(moving.theta, batch, passes.largest(equal), false);
  net.pool().run([&](int rank) {
    const auto range = mlps.shards.ranks.range(rank, mlps.size, mlps.actor_size);
    int64_t step = *moving.steps;
    for (int64_t at = 0; at < passes.epochs * passes.minibatches; at++) {
      const double* shared = exchange && exchange->moments ? exchange->moments + 3 * at : nullptr;
      const Minibatch minibatch{batch, passes.index(at, equal), passes.size(at, equal), passes.normalize, shared,
                                exchange ? (double)exchange->processes : 1.0};
      if (passes.begins) net.arrange(rank, batch, minibatch.size);
      const Sums found = minibatch.size ? net.gradient(rank, moving.theta, spec, minibatch, moving.gradient)
                                        : no_gradient(net, range, minibatch, moving.gradient);
      if (exchange && exchange->gradient) exchange_gradient(net, rank, *exchange, moving.gradient);
      const double norm = std::sqrt(mlps.shards.square());
      if (total && at < passes.minibatches) add_to(total, moving.gradient, range, mlps.size, at == 0);
      descend(range, moving.theta, moving.gradient, moving.first, moving.second, ++step, optimizer, norm);
      if (rank == 0) {
        note(history, found, norm);
        if (at == 0) history[NUM_HISTORY] = found.ratio_error;
      }
      net.pool().barrier().wait();
    }
    if (rank == 0) *moving.steps = step;
  });
}

}  // namespace surefoot
