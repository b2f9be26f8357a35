// Acting: actions drawn from pre-drawn noise, with their log-probabilities and the distribution's parameters.
#pragma once
#include "engine.hpp"

namespace surefoot {

// Output arrays, one row per sample; any may be null.
struct Drawn {
  float *params, *action, *log_prob;
  Drawn from(int64_t sample, const Head& head) const {
    return {params ? params + sample * head.params : nullptr, action ? action + sample * head.actions : nullptr,
            log_prob ? log_prob + sample : nullptr};
  }
};

// Draws from the distribution in the head's scratch. noise null: takes the mode.
static inline void draw_tile(const Head& head, const float* noise, int count, const Drawn& to, HeadScratch& h) {
  if (noise) load_rows(noise, head.noises, head.noises, count, h.noise.data());
  head.draw(noise != nullptr, h);
  if (to.log_prob) {
    const vec chosen = head.measure(false, h).log_prob;
    for (int l = 0; l < count; l++) to.log_prob[l] = chosen[l];
  }
  if (to.params) store_rows(h.param.data(), head.params, count, to.params, head.params);
  if (to.action) store_rows(h.action.data(), head.actions, count, to.action, head.actions);
}

// Acts for a group of observations.
static inline void act_group(const Engine& e, const float* theta, const float* x, const float* noise, int count,
                             const Drawn& to, Workspace& space) {
  e.load_group(x, e.in_order(0, space), count, space);
  const int tiles = (int)num_tiles(count);
  const vec* out = forward(e.actor, theta, e.features(theta, space, tiles), space.actor, tiles, e.shared_tile());
  for (int t = 0; t < tiles; t++) {
    const int64_t at = t * LANES;
    e.distribution(theta, out, t, space);
    draw_tile(e.head, noise ? noise + at * e.head.noises : nullptr, in_tile(count, t), to.from(at, e.head), space.head);
  }
}

// Like `act_group`, for fewer samples than half a tile, with transposed weights.
static inline void act_few(const Engine& e, const float* theta, Turned& trunk, Turned& actor, const float* x,
                           const float* noise, int count, const Drawn& to, Workspace& space) {
  const Head& head = e.head;
  HeadScratch& h = space.head;
  for (int l = 0; l < count; l++) {
    const float* seen = x + (int64_t)l * e.width;
    for (int i = 0; i < head.masks; i++) h.mask[i][l] = seen[e.inputs + i];
    if (e.has_trunk) seen = trunk.run(e.trunk, seen);
    const float* out = actor.run(e.actor, seen);
    for (int o = 0; o < head.outputs; o++) h.d_out[o][l] = out[o];
  }
  for (int o = 0; o < head.outputs; o++)
    for (int l = count; l < LANES; l++) h.d_out[o][l] = h.d_out[o][count - 1];
  head.params_from(theta, h.d_out.data(), h);
  draw_tile(head, noise, count, to, h);
}

}  // namespace surefoot
