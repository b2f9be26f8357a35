// GRU and LSTM over time. The inputs' contribution, W x + b, is given or computed on the fly. The memory is reset where an
// episode begins. As many sequences as there are lanes are processed together, one per lane; fewer are processed one, two
// or four at a time, with units in the lanes. Both ways sum in the same order, so the result of a sequence is the same.
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

// Backward: from d(out) [L, S, H] and d(after) [S, M] (null: 0) to d(x) [L, S, G·H] and d(state) (if not null); adds the
// gradient of `Recurrence::layer` to `g`. `rows` is scratch: LANES × its stride.
static inline void recur_back(const Recurrence& r, const Packed& packed, const Group& group, const vec* kept,
                              const float* d_out, const float* d_after, float* dx, float* d_state, float* rows, float* g) {
  const vec* own = kept + group.kept;
  if (group.lanes) back_lanes(r, group, own, d_out, d_after, dx, d_state, rows, g);
  else if (group.count == 1) back_units<1>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
  else if (group.count == 2) back_units<2>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
  else back_units<4>(r, packed, group.begin, own, d_out, d_after, dx, d_state, rows, g);
}

}  // namespace surefoot
