// The loss of a group of samples, its terms and its gradient.
#pragma once
#include "engine.hpp"
#include "surrogates.hpp"

namespace surefoot {

enum Which { ACTOR = 1, CRITIC = 2, BOTH = 3 };

// Per minibatch: 1 over its weight; advantages are used as (A − shift)·stretch.
struct Scale {
  float share, shift, stretch;
};

static inline bool wants_actor(const LossSpec& spec) { return has_surrogate(spec) || spec.with_kl; }
static inline bool wants_critic(const Engine& e, const LossSpec& spec) { return e.has_critic && spec.with_value; }
// Whether actor and critic are learned separately.
static inline bool in_two(const Engine& e, const LossSpec& spec) {
  return e.apart() && wants_actor(spec) && wants_critic(e, spec);
}

static inline vec weights_of(const Batch& batch, const int64_t* index, int count) {
  vec weight = batch.weight ? load(batch.weight, index, count) : all(1.0f);
  for (int l = count; l < LANES; l++) weight[l] = 0.0f;
  return weight;
}

// Surrogate, KL and entropy of a tile whose distribution is in the head's scratch, and (g not null) their d_out.
static inline void actor_tile(const Head& head, const LossSpec& spec, const Batch& batch, const int64_t* index, int count,
                              Scale scale, HeadScratch& h, float* g, Sums& sums, float* kl_out) {
  const vec weight = weights_of(batch, index, count), share = weight * scale.share;
  load(batch.action, head.actions, head.actions, index, count, h.action.data());
  if (spec.with_kl) load(batch.params, head.params, head.params, index, count, h.old.data());
  const auto [log_prob, entropy, kl] = head.measure(spec.with_kl, h);
  if (kl_out)
    for (int l = 0; l < count; l++) kl_out[l] = kl[l];
  const vec advantage = batch.advantage ? (load(batch.advantage, index, count) - scale.shift) * scale.stretch : vec{};
  const vec old_log_prob = load(batch.log_prob, index, count), change = log_prob - old_log_prob, ratio = vexp(change);
  const Gain gain = gain_of(spec, {log_prob, old_log_prob, ratio, advantage});
  sums.surrogate += sum_of_double(weight * gain.value);
  sums.entropy += sum_of_double(weight * entropy);
  sums.kl += sum_of_double(weight * kl);
  sums.approx_kl += sum_of_double(weight * (ratio - 1.0f - change));
  sums.clipped += sum_of_double(weight * gain.clipped);
  for (int l = 0; l < count; l++) {
    double off = std::fabs((double)ratio[l] - 1.0) * weight[l];
    if (!(off <= sums.ratio_error)) sums.ratio_error = off;
  }
  if (g)
    head.gradient(spec.with_kl, {share * -gain.slope, share * (float)-spec.entropy_coef, share * (float)spec.kl_coef}, h,
                  g);
}

// Squared error, or Huber loss with its knee at 1; `slope` is the derivative.
static inline vec distance(vec error, bool huber, vec& slope) {
  if (!huber) {
    slope = 2.0f * error;
    return error * error;
  }
  const vec size = vabs(error);
  const ivec near = size < 1.0f;
  slope = near ? error : (error > 0.0f ? all(1.0f) : all(-1.0f));
  return near ? 0.5f * error * error : size - 0.5f;
}

// 1 − Var(target − value) / Var(target), weighted; 0 where the targets do not vary.
static inline double explained_variance(const float* value, const float* target, const float* weight, int64_t samples) {
  double total = 0.0, sums[2] = {}, squares[2] = {};
  for (int64_t i = 0; i < samples; i++) {
    const double w = weight ? weight[i] : 1.0;
    total += w, sums[0] += w * target[i], sums[1] += w * ((double)target[i] - value[i]);
  }
  total = total > 1.0 ? total : 1.0;
  for (int64_t i = 0; i < samples; i++) {
    const double w = weight ? weight[i] : 1.0, error = (double)target[i] - value[i];
    const double a = target[i] - sums[0] / total, b = error - sums[1] / total;
    squares[0] += w * a * a, squares[1] += w * b * b;
  }
  const double spread = squares[0] / total;
  return spread > 1e-12 || spread != spread ? 1.0 - squares[1] / squares[0] : 0.0;
}

// The value loss of a tile; returns its derivative with respect to v.
static inline vec critic_tile(const LossSpec& spec, const Batch& batch, const int64_t* index, int count, Scale scale,
                              vec v, Sums& sums) {
  const vec weight = weights_of(batch, index, count), target = load(batch.target, index, count);
  vec slope, loss = distance(v - target, spec.huber, slope);
  if (spec.value_clip >= 0.0) {
    const vec old = load(batch.value, index, count), moved = v - old;
    const vec near = old + clamp(moved, (float)-spec.value_clip, (float)spec.value_clip);
    vec near_slope, near_loss = distance(near - target, spec.huber, near_slope);
    const ivec inside = vabs(moved) <= (float)spec.value_clip;
    const ivec larger = near_loss > loss;
    slope = larger ? (inside ? near_slope : vec{}) : slope;
    loss = larger ? near_loss : loss;
  }
  sums.value_loss += sum_of_double(weight * loss);
  return weight * scale.share * (float)spec.value_coef * slope;
}

// Forward, loss, and (g not null) backward for one group; `start`: ZERO if g is not initialised yet.
// `space.sums` receives the terms of each tile.
static inline void loss_group(const Engine& e, int which, const float* theta, const LossSpec& spec, const Batch& batch,
                              const int64_t* index, int count, Scale scale, Workspace& space, float* g, Start start,
                              float* kl) {
  const int tiles = (int)num_tiles(count), outputs = e.actor.out();
  const bool with_actor = (which & ACTOR) && wants_actor(spec), with_value = (which & CRITIC) && wants_critic(e, spec);
  e.load_group(batch.x, index, count, space);
  const vec* shared = e.features(theta, space, tiles);
  std::fill_n(space.sums.begin(), tiles, Sums{});
  if (with_actor) {
    const vec* out = forward(e.actor, theta, shared, space.actor, tiles, e.shared_tile());
    for (int t = 0; t < tiles; t++) {
      e.distribution(theta, out, t, space);
      actor_tile(e.head, spec, batch, index + t * LANES, in_tile(count, t), scale, space.head, g, space.sums[t],
                 kl ? kl + t * LANES : nullptr);
      if (g) std::copy_n(space.head.d_out.begin(), outputs, space.d_actor.begin() + (int64_t)t * outputs);
    }
  }
  if (with_value) {
    const vec* v = forward(e.critic, theta, shared, space.critic, tiles, e.shared_tile());
    for (int t = 0; t < tiles; t++)
      space.d_value[t] = critic_tile(spec, batch, index + t * LANES, in_tile(count, t), scale, v[t], space.sums[t]);
  }
  if (!g) return;
  e.back(theta, shared, space, g, start, tiles, with_actor, with_value, e.d_inputs[0] != nullptr);
  if (e.d_inputs[0]) e.store_inputs(space, e.d_inputs[which == CRITIC], index, count);
}

// Mean KL(old‖new) and the loss's terms without gradients; kl, if not null, receives each sample's KL.
static inline Sums evaluate(Engine& e, const float* theta, const LossSpec& spec, const Batch& batch, float* kl) {
  std::vector<Sums> sums(num_tiles(batch.size));
  e.over_tiles(batch.size, [&](int64_t at, int count, Workspace& space) {
    loss_group(e, BOTH, theta, spec, batch, e.in_order(at, space), count, {1.0f, 0.0f, 1.0f}, space, nullptr, ADD,
               kl ? kl + at : nullptr);
    std::copy_n(space.sums.begin(), num_tiles(count), sums.begin() + at / LANES);
  });
  Sums total{};
  for (const Sums& s : sums) add(total, s);
  for (int64_t i = 0; i < batch.size; i++) total.weight += batch.weight ? batch.weight[i] : 1.0;
  return total;
}

}  // namespace surefoot
