// Products of an actor's Fisher matrix with a direction of the parameters, for natural gradients.
#pragma once
#include "engine.hpp"

namespace surefoot {

// Adds one group's part to the shard g. `along`, [B, inputs], is the tangent of x; null: x does not depend on the
// parameters.
static inline void fisher_group(const Engine& e, const float* theta, const float* direction, const Batch& batch,
                                const int64_t* index, int count, float scale, const float* along, Workspace& space,
                                float* g) {
  const int tiles = (int)num_tiles(count);
  e.load_group(batch.x, index, count, space);
  const vec* shared = e.features(theta, space, tiles);
  const vec* tangent = nullptr;
  if (along) {
    for (int t = 0; t < tiles; t++)
      load(along, e.inputs, e.inputs, index + t * LANES, in_tile(count, t), &space.dx[(int64_t)t * e.inputs]);
    tangent = space.dx.data();
  }
  if (e.has_trunk)
    tangent = forward_tangent(e.trunk, theta, direction, space.x.data(), tangent, space.trunk, tiles, e.width);
  const vec* out = forward(e.actor, theta, shared, space.actor, tiles, e.shared_tile());
  tangent = forward_tangent(e.actor, theta, direction, shared, tangent, space.actor, tiles, e.shared_tile());
  HeadScratch& h = space.head;
  for (int t = 0; t < tiles; t++) {
    const int here = in_tile(count, t);
    e.distribution(theta, out, t, space);
    vec weight = all(scale);
    if (batch.weight) weight *= load(batch.weight, index + t * LANES, here);
    for (int l = here; l < LANES; l++) weight[l] = 0.0f;
    e.head.fisher(direction, tangent + (int64_t)t * e.actor.out(), weight, h, g);
    std::copy_n(h.d_out.begin(), e.actor.out(), space.d_actor.begin() + (int64_t)t * e.actor.out());
  }
  e.back(theta, shared, space, g, ADD, tiles, true, false, along != nullptr);
  if (along) e.store_inputs(space, e.d_inputs[0], index, count);
}

// F·direction, where F is the mean Fisher matrix of the batch (weighted as in a loss). If x itself depends on the
// parameters, `along` is its tangent, and `after` continues the backward pass from `d_inputs`.
static inline void fisher_product(Engine& e, const float* theta, const float* direction, const Batch& batch,
                                  float* product, const float* along = nullptr,
                                  const std::function<void(int)>* after = nullptr) {
  double total = 0.0;
  for (int64_t i = 0; i < batch.size; i++) total += batch.weight ? batch.weight[i] : 1.0;
  const float scale = (float)(1.0 / (total > 1.0 ? total : 1.0));
  for (auto& space : e.spaces) space->trunk.prepare_tangents(), space->actor.prepare_tangents();
  e.sharded(batch.size, product, [&](int64_t at, int count, Workspace& space, float* g) {
    fisher_group(e, theta, direction, batch, e.in_order(at, space), count, scale, along, space, g);
  }, after);
}

}  // namespace surefoot
