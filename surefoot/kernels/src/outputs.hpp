// Values and raw outputs of an actor-critic, and the backward pass from any loss on the outputs.
#pragma once
#include "engine.hpp"

namespace surefoot {

static inline void values(Engine& e, const float* theta, const float* x, int64_t samples, float* out) {
  e.over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
    const int tiles = (int)num_tiles(count);
    e.load_group(x, e.in_order(at, space), count, space);
    const vec* v = forward(e.critic, theta, e.features(theta, space, tiles), space.critic, tiles, e.shared_tile());
    for (int i = 0; i < count; i++) out[at + i] = v[i / LANES][i % LANES];
  });
}

// The outputs of actor and critic, concatenated, `[samples, outputs + 1]`, before the distribution.
static inline void outputs(Engine& e, const float* theta, const float* x, int64_t samples, float* out) {
  const int wide = e.head.outputs, columns = wide + (e.has_critic ? 1 : 0);
  e.over_tiles(samples, [&](int64_t at, int count, Workspace& space) {
    const int tiles = (int)num_tiles(count);
    e.load_group(x, e.in_order(at, space), count, space);
    const vec* shared = e.features(theta, space, tiles);
    const vec* a = forward(e.actor, theta, shared, space.actor, tiles, e.shared_tile());
    const vec* v = e.has_critic ? forward(e.critic, theta, shared, space.critic, tiles, e.shared_tile()) : nullptr;
    for (int i = 0; i < count; i++) {
      const int t = i / LANES, l = i % LANES;
      for (int o = 0; o < wide; o++) out[(at + i) * columns + o] = a[(int64_t)t * e.actor.out() + o][l];
      if (v) out[(at + i) * columns + wide] = v[t][l];
    }
  });
}

// The backward pass from d(outputs), `[samples, outputs + 1]`, to the gradient of all weights (except log_std) and, if dx is
// not null, of x.
static inline void outputs_gradient(Engine& e, const float* theta, const float* x, const float* d, int64_t samples,
                                    float* gradient, float* dx) {
  const int wide = e.head.outputs, columns = wide + (e.has_critic ? 1 : 0);
  e.sharded(samples, gradient, [&](int64_t at, int count, Workspace& space, float* g) {
    const int tiles = (int)num_tiles(count);
    const int64_t* index = e.in_order(at, space);
    e.load_group(x, index, count, space);
    const vec* shared = e.features(theta, space, tiles);
    forward(e.actor, theta, shared, space.actor, tiles, e.shared_tile());
    if (e.has_critic) forward(e.critic, theta, shared, space.critic, tiles, e.shared_tile());
    for (int i = 0; i < tiles * LANES; i++) {
      const int t = i / LANES, l = i % LANES;
      const float* row = d + (at + i) * columns;
      for (int o = 0; o < wide; o++) space.d_actor[(int64_t)t * e.actor.out() + o][l] = i < count ? row[o] : 0.0f;
      if (e.has_critic) space.d_value[t][l] = i < count ? row[wide] : 0.0f;
    }
    e.back(theta, shared, space, g, ADD, tiles, true, e.has_critic, dx != nullptr);
    if (dx) e.store_inputs(space, dx, index, count);
  });
}

}  // namespace surefoot
