// One look at a whole batch after an update: what every sample says of the new policy, and what that adds up to.
#pragma once
#include <algorithm>

#include "activity.hpp"
#include "minibatch.hpp"

namespace surefoot {

// `kernels/structs.py` names them for Python. First what is added up over the valid samples, …
struct Inspected {
  double weight, kl, entropy, before, after;  // the last two: the objective of the old policy and of the new one
  double ratio, ratio_squared;                // Σ r, Σ r²
  double positive, negative;                  // samples with such an advantage, …
  double clipped_positive, clipped_negative;  // … and those of them whose ratio is held back on the side that pays
  // … then what is computed in the end.
  double ratio_p5, ratio_p50, ratio_p95, ratio_max, explained_variance, dead_units, effective_rank;
};
constexpr size_t NUM_SUMS = 11;

// Where each sample's numbers go, and the rows that are looked at more closely (sorted).
struct InspectedRows {
  float *kl, *ratio, *value;  // [B]; value may be null
  const int64_t* rows;
  int64_t count;
  float *hidden, *params, *weight;  // [count, units of the last hidden layer], [count, parameters], [count]
};

// What the actor's last layer is given: its units, and how far apart tiles are.
struct LastHidden {
  const vec* units;
  int size;
  int64_t tile;
};
static inline LastHidden last_hidden(const Engine& e, const Workspace& space, const vec* shared) {
  const size_t layers = e.actor.layers.size();
  if (layers < 2) return {shared, e.actor.in(), e.shared_tile()};
  const int size = e.actor.layers[layers - 2].out;
  return {space.actor.y[layers - 2].data(), size, size};
}

// Of a tile whose distribution is in the head's scratch. `at`: of its first sample.
static inline void inspect_tile(const Head& head, const LossSpec& spec, const Batch& batch, const int64_t* index, int count,
                                Scale scale, HeadScratch& h, Inspected& sums, const InspectedRows& to, int64_t at) {
  const vec weight = weights_of(batch, index, count);
  load(batch.action, head.actions, head.actions, index, count, h.action.data());
  load(batch.params, head.params, head.params, index, count, h.old.data());
  const auto [log_prob, entropy, kl] = head.measure(true, h);
  const vec advantage = (load(batch.advantage, index, count) - scale.shift) * scale.stretch;
  const vec old_log_prob = load(batch.log_prob, index, count), ratio = vexp(log_prob - old_log_prob);
  const Gain now = gain_of(spec, {log_prob, old_log_prob, ratio, advantage});
  const Gain then = gain_of(spec, {old_log_prob, old_log_prob, all(1.0f), advantage});
  vec old_entropy{};
  if (spec.entropy_coef != 0.0) {
    std::copy_n(h.old.begin(), head.params, h.param.begin());
    old_entropy = head.measure(false, h).entropy;
  }
  sums.kl += sum_of_double(weight * kl);
  for (int l = 0; l < count; l++) to.kl[at + l] = kl[l], to.ratio[at + l] = ratio[l];
  // A step that is no transition may say anything, so it is left out rather than multiplied by 0.
  const auto sum = [&](vec x, ivec which) { return sum_of_double(which ? weight * x : vec{}); };
  const ivec valid = weight > 0.0f, gained = valid & (advantage > 0.0f), lost = valid & (advantage < 0.0f);
  const ivec held = now.clipped != 0.0f;
  const float entropy_coef = (float)spec.entropy_coef, kl_coef = (float)spec.kl_coef;
  sums.weight += sum(all(1.0f), valid), sums.entropy += sum(entropy, valid);
  sums.before += sum(then.value + entropy_coef * old_entropy, valid);
  sums.after += sum(now.value - kl_coef * kl + entropy_coef * entropy, valid);
  sums.ratio += sum(ratio, valid), sums.ratio_squared += sum(ratio * ratio, valid);
  sums.positive += sum(all(1.0f), gained), sums.clipped_positive += sum(all(1.0f), gained & held & (ratio > 1.0f));
  sums.negative += sum(all(1.0f), lost), sums.clipped_negative += sum(all(1.0f), lost & held & (ratio < 1.0f));
}

static inline void add(Inspected& total, const Inspected& s) {
  for (size_t i = 0; i < NUM_SUMS; i++) ((double*)&total)[i] += ((const double*)&s)[i];
}

// The rows of a group that are looked at more closely; the networks' outputs are in the workspace.
static inline void inspect_rows(const Engine& e, const float* theta, const Batch& batch, const LastHidden& hidden,
                                const vec* out, int64_t at, int count, Workspace& space, const InspectedRows& to) {
  const int64_t* end = to.rows + to.count;
  int ready = -1;
  for (const int64_t* row = std::lower_bound(to.rows, end, at); row < end && *row < at + count; row++) {
    const int t = (int)(*row - at) / LANES, l = (int)(*row - at) % LANES;
    if (t != ready) e.distribution(theta, out, ready = t, space);
    float *units = to.hidden + (row - to.rows) * hidden.size, *params = to.params + (row - to.rows) * e.head.params;
    for (int i = 0; i < hidden.size; i++) units[i] = hidden.units[t * hidden.tile + i][l];
    for (int i = 0; i < e.head.params; i++) params[i] = space.head.param[i][l];
    to.weight[row - to.rows] = batch.weight ? batch.weight[*row] : 1.0f;
  }
}

static inline Inspected inspect_all(Engine& e, const float* theta, const LossSpec& spec, const Batch& batch,
                                    bool normalize, const InspectedRows& to) {
  const Minibatch all_of{batch, nullptr, batch.size, normalize, nullptr, 1.0};
  const Scale scale = scale_of(all_of, all_of.weight());
  std::vector<Inspected> sums(num_tiles(batch.size));
  e.over_tiles(batch.size, [&](int64_t at, int count, Workspace& space) {
    const int tiles = (int)num_tiles(count);
    const int64_t* index = e.in_order(at, space);
    e.load_group(batch.x, index, count, space);
    const vec* shared = e.features(theta, space, tiles);
    const vec* out = forward(e.actor, theta, shared, space.actor, tiles, e.shared_tile());
    for (int t = 0; t < tiles; t++) {
      e.distribution(theta, out, t, space);
      inspect_tile(e.head, spec, batch, index + t * LANES, in_tile(count, t), scale, space.head, sums[at / LANES + t], to,
                   at + t * LANES);
    }
    inspect_rows(e, theta, batch, last_hidden(e, space, shared), out, at, count, space, to);
    if (!to.value) return;
    const vec* v = forward(e.critic, theta, shared, space.critic, tiles, e.shared_tile());
    for (int i = 0; i < count; i++) to.value[at + i] = v[i / LANES][i % LANES];
  });
  Inspected total{};
  for (const Inspected& s : sums) add(total, s);
  return total;
}

// The q-th quantile of values from `begin` on, linear between the two nearest. The smaller ones are before them already.
static inline double quantile(std::vector<float>& values, size_t& begin, double q) {
  const double at = q * (double)(values.size() - 1);
  const size_t below = (size_t)at;
  std::nth_element(values.begin() + begin, values.begin() + below, values.end());
  begin = below;
  if (below + 1 >= values.size()) return values[below];
  const double above = *std::min_element(values.begin() + below + 1, values.end());
  return values[below] + (at - (double)below) * (above - values[below]);
}

// What stays of a look: kl gets each sample's; `means`, 2 × parameters long, those over `rows` of the entropies
// of the action's dimensions and, from its middle on, of their stds.
static inline Inspected inspect(Engine& e, const float* theta, const LossSpec& spec, const Batch& batch, bool normalize,
                                const int64_t* rows, int64_t count, float* kl, double* means) {
  const int units = e.actor.layers.back().in, params = e.head.params;
  std::vector<float> ratio(batch.size), value(e.has_critic ? batch.size : 0), hidden((size_t)count * units);
  std::vector<float> closer((size_t)count * params), weight(count);
  float* values = e.has_critic ? value.data() : nullptr;
  Inspected found = inspect_all(e, theta, spec, batch, normalize,
                                {kl, ratio.data(), values, rows, count, hidden.data(), closer.data(), weight.data()});
  if (values) found.explained_variance = explained_variance(values, batch.target, batch.weight, batch.size);
  if (batch.weight) {
    size_t kept = 0;
    for (int64_t i = 0; i < batch.size; i++)
      if (batch.weight[i] > 0.0f) ratio[kept++] = ratio[i];
    ratio.resize(kept);
  }
  if (!ratio.empty()) {
    size_t begin = 0;
    found.ratio_p5 = quantile(ratio, begin, 0.05), found.ratio_p50 = quantile(ratio, begin, 0.5);
    found.ratio_p95 = quantile(ratio, begin, 0.95);
    found.ratio_max = *std::max_element(ratio.begin() + begin, ratio.end());
  }
  const Activity layer = activity(hidden.data(), count, units, weight.data());
  found.dead_units = layer.dead, found.effective_rank = layer.rank;
  std::vector<double> entropy(params), deviation(params);
  double total = 0.0;
  std::fill_n(means, 2 * params, 0.0);
  for (int64_t n = 0; n < count; n++) {
    const Dimensions of = dimensions(e.head, closer.data() + n * params, entropy.data(), deviation.data());
    total += weight[n];
    for (int i = 0; i < of.entropies; i++) means[i] += weight[n] * entropy[i];
    for (int i = 0; i < of.stds; i++) means[params + i] += weight[n] * deviation[i];
  }
  for (int i = 0; i < 2 * params; i++) means[i] /= total > 1.0 ? total : 1.0;
  return found;
}

}  // namespace surefoot
