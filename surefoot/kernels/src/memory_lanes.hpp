// GRU and LSTM over time with a sequence in each lane; rows are units.
#pragma once
#include <vector>

#include "memory_cells.hpp"
#include "memory_parts.hpp"

namespace surefoot {

// out: rows of `stride` numbers; any of out, after and kept may be null.
template <typename Input>
static inline void recur_lanes(const Recurrence& r, Input& from, const Group& group, const float* state, float* out,
                               int64_t stride, float* after, vec* kept) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.kept(), count = group.count;
  const int64_t begin = group.begin;
  std::vector<vec> input(G), hidden(G), memory(M);
  load_rows(state + begin * M, M, M, count, memory.data());
  vec *h = memory.data(), *c = memory.data() + H;
  for (int64_t t = 0; t < r.steps; t++) {
    const vec same = not_started(r, t, begin, count);
    for (vec& m : memory) m = same > 0.5f ? m : vec{};  // a select, so that not even infinities or NaNs survive a reset
    from.lanes(t, begin, count, input.data());
    dense(r.weight, r.bias, H, G, h, hidden.data());
    for (int i = 0; i < H; i++) {
      vec keep[7], a[4], b[4];
      for (int k = 0; k < K; k++) a[k] = input[k * H + i], b[k] = hidden[k * H + i];
      if (r.lstm) lstm_cell(a, b, h[i], c[i], keep);
      else gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[i], keep);
      if (kept) spread(keep, Q, H, i, kept + t * Q * H);
    }
    if (out) store_rows(h, H, count, out + (t * r.sequences + begin) * stride, stride);
  }
  if (after) store_rows(memory.data(), M, count, after + begin * M, M);
}

// dx: rows [L, S, G·H]. d_after and d_state may be null. `g`: gradient of the weight and, lane by lane, of the bias.
static inline void back_lanes(const Recurrence& r, const Group& group, const vec* kept, const float* d_out,
                              const float* d_after, float* dx, float* d_state, float* rows, float* g) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.kept(), count = group.count;
  const int64_t begin = group.begin;
  const Layer layer = r.layer();
  std::vector<vec> d_memory(M), from_out(H), d_hidden(G), d_input(G), back(H);
  if (d_after) load_rows(d_after + begin * M, M, M, count, d_memory.data());
  vec used;
  for (int l = 0; l < LANES; l++) used[l] = l < count ? 1.0f : 0.0f;
  for (vec& d : d_memory) d *= used;
  vec *dh = d_memory.data(), *dc = d_memory.data() + H;
  for (int64_t t = r.steps - 1; t >= 0; t--) {
    const vec* row = kept + t * Q * H;
    load_rows(d_out + (t * r.sequences + begin) * H, H, H, count, from_out.data());
    for (int i = 0; i < H; i++) {
      vec keep[7], a[4], b[4];
      collect(row, Q, H, i, keep);
      const vec d = dh[i] + from_out[i] * used;
      if (r.lstm) lstm_back(keep, d, a, dc[i]), std::copy(a, a + 4, b);
      else gru_back(keep, d, a, b, dh[i]);
      for (int k = 0; k < K; k++) d_input[k * H + i] = a[k], d_hidden[k * H + i] = b[k];
    }
    store_rows(d_input.data(), G, count, dx + (t * r.sequences + begin) * G, G);
    transposed(r.weight, H, G, d_hidden.data(), back.data());
    const vec same = not_started(r, t, begin, count);
    for (int i = 0; i < H; i++) {
      dh[i] = (r.lstm ? back[i] : dh[i] + back[i]) * same;
      if (r.lstm) dc[i] *= same;
    }
    outer(layer, d_hidden.data(), row + (Q - 1) * H, rows, g);
  }
  if (d_state) store_rows(d_memory.data(), M, count, d_state + begin * M, M);
}

}  // namespace surefoot
