// GRU and LSTM over time. What the inputs contribute, W x + b, comes ready-made or is made on the way. Where an episode
// begins, memory begins anew. As many sequences as there are lanes go side by side; fewer go by themselves, two or four at
// once, their units side by side. Both ways add up in the same order, so a sequence's result is the same in either.
#pragma once
#include "memory_inputs.hpp"
#include "memory_lanes.hpp"
#include "memory_units.hpp"

namespace surefoot {

// state: [S, M], M = H or 2·H (h, then c). Fills out [L, S, stride], after [S, M] and kept; each may be null.
template <typename Input>
static inline void recur(const Recurrence& r, Input& from, const Packed& packed, const Group& group, const float* state,
                         float* out, int64_t stride, float* after, vec* kept) {
  vec* own = kept ? kept + group.kept : nullptr;
  if (group.lanes) recur_lanes(r, from, group, state, out, stride, after, own);
  else if (group.count == 1) recur_units<1>(r, from, packed, group.begin, state, out, stride, after, own);
  else if (group.count == 2) recur_units<2>(r, from, packed, group.begin, state, out, stride, after, own);
  else recur_units<4>(r, from, packed, group.begin, state, out, stride, after, own);
}

// From d(out) [L, S, H] and d(after) [S, M] (null: 0) to d(x) [L, S, G·H], d(state) (where not null), and, added to `g`,
// of `Recurrence::layer`. `rows` is scratch: LANES × its stride.
static inline void recur_back(const Recurrence& r, const Packed& packed, const Group& group, const vec* kept,
                              const float* d_out, const float* d_after, float* dx, float* d_state, float* rows, float* g) {
  const vec* own = kept + group.kept;
  if (group.lanes) back_lanes(r, group, own, d_out, d_after, dx, d_state, rows, g);
  else if (group.count == 1) back_units<1>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
  else if (group.count == 2) back_units<2>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
  else back_units<4>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
}

}  // namespace surefoot
