// GRU and LSTM over time for a few sequences at once; lanes are units, H rounded up to whole vectors.
#pragma once
#include <type_traits>
#include <vector>

#include "memory_cells.hpp"
#include "memory_parts.hpp"

namespace surefoot {

constexpr int ACCUMULATORS = LANES == 16 ? 16 : 8;

template <int W, typename Body>
static inline void at_width(int width, const Body& body) {
  if (width == W) body(std::integral_constant<int, W>());
  else if constexpr (W > 1) at_width<W - 1>(width, body);
}

// y[n] = x[n] W + b for N rows x at once; W [in][vectors], y [N][vectors], b may be null.
template <int N>
static inline void few_rows(const vec* weight, const vec* bias, int in, int vectors, const float* const* x, vec* y) {
  constexpr int MOST = ACCUMULATORS / N;
  for (int column = 0; column < vectors; column += MOST)
    at_width<MOST>(std::min(MOST, vectors - column), [&](auto width) {
      constexpr int W = decltype(width)::value;
      vec sum[N][W];
      for (int n = 0; n < N; n++)
        for (int j = 0; j < W; j++) sum[n][j] = bias ? bias[column + j] : vec{};
      const vec* w = weight + column;
      for (int i = 0; i < in; i++, w += vectors)
        for (int j = 0; j < W; j++) {
          const vec weight_here = w[j];
          for (int n = 0; n < N; n++) sum[n][j] += x[n][i] * weight_here;
        }
      for (int n = 0; n < N; n++)
        for (int j = 0; j < W; j++) y[n * vectors + column + j] = sum[n][j];
    });
}

// The weights, transposed for the forward pass and padded for the backward pass.
struct Packed {
  std::vector<vec> forward, back, bias;  // [H][K·V], [K·V·LANES][V], [K·V]
  void pack(const Recurrence& r) {
    const int H = r.hidden, K = r.gates() / H, V = r.vectors();
    forward.resize((size_t)H * K * V), back.resize((size_t)K * V * LANES * V), bias.resize((size_t)K * V);
    for (int k = 0; k < K; k++) {
      load_units(r.bias + k * H, H, bias.data() + k * V);
      for (int o = 0; o < H; o++)
        load_units(r.weight + ((int64_t)k * H + o) * H, H, back.data() + ((size_t)k * V * LANES + o) * V);
      for (int v = 0; v < V; v++)
        for (int i = 0; i < V; i++) {  // one square block at a time
          vec square[LANES], turned[LANES];
          for (int l = 0; l < LANES; l++) square[l] = back[((size_t)(k * V + v) * LANES + l) * V + i];
          transpose(square, turned);
          for (int l = 0; l < LANES && i * LANES + l < H; l++)
            forward[((size_t)(i * LANES + l) * K + k) * V + v] = turned[l];
        }
    }
  }
};

template <int N, typename Input>
static inline void recur_units(const Recurrence& r, Input& from, const Packed& packed, int64_t begin, const float* state,
                               float* out, int64_t stride, float* after, vec* kept) {
  const int H = r.hidden, M = r.state(), K = r.gates() / H, Q = r.kept(), V = r.vectors();
  std::vector<vec> h((size_t)N * V), c((size_t)N * V), hidden((size_t)N * K * V);
  const float* units[N];
  for (int n = 0; n < N; n++) {
    load_units(state + (begin + n) * M, H, h.data() + n * V);
    if (r.lstm) load_units(state + (begin + n) * M + H, H, c.data() + n * V);
    units[n] = (const float*)(h.data() + n * V);
  }
  for (int64_t t = 0; t < r.steps; t++) {
    const vec* input[N];
    for (int n = 0; n < N; n++) {
      input[n] = from.units(t, begin + n, n);
      if (r.start[t * r.sequences + begin + n])
        std::fill_n(h.begin() + n * V, V, vec{}), std::fill_n(c.begin() + n * V, V, vec{});
    }
    few_rows<N>(packed.forward.data(), packed.bias.data(), H, K * V, units, hidden.data());
    for (int n = 0; n < N; n++) {
      for (int v = 0; v < V; v++) {
        vec keep[7], a[4], b[4];
        for (int k = 0; k < K; k++) a[k] = input[n][k * V + v], b[k] = hidden[(n * K + k) * V + v];
        if (r.lstm) lstm_cell(a, b, h[n * V + v], c[n * V + v], keep);
        else gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[n * V + v], keep);
        if (kept) spread(keep, Q, V, v, kept + (t * N + n) * Q * V);
      }
      if (out) store_units(h.data() + n * V, H, out + (t * r.sequences + begin + n) * stride);
    }
  }
  for (int n = 0; after && n < N; n++) {
    store_units(h.data() + n * V, H, after + (begin + n) * M);
    if (r.lstm) store_units(c.data() + n * V, H, after + (begin + n) * M + H);
  }
}

// Adds the outer products of a few steps at once, one step per lane: `tile` [LANES][K·V] is d of W h + b, `old`
// [LANES][V] the h before each step. `columns` (K·V·LANES) and `rows` are scratch.
static inline void outer_of_steps(const Recurrence& r, const vec* tile, const vec* old, vec* columns, float* rows,
                                  float* g) {
  const int H = r.hidden, K = r.gates() / H, V = r.vectors();
  for (int k = 0; k < K; k++)
    for (int v = 0; v < V; v++) {
      vec square[LANES], turned[LANES];
      for (int l = 0; l < LANES; l++) square[l] = tile[((size_t)l * K + k) * V + v];
      transpose(square, turned);
      std::copy(turned, turned + std::min(LANES, H - v * LANES), columns + k * H + v * LANES);
    }
  std::memcpy(rows, old, sizeof(vec) * LANES * V);
  outer_given_rows(r.layer(), columns, rows, g);
}

template <int N>
static inline void back_units(const Recurrence& r, const Packed& packed, int64_t begin, const vec* kept,
                              const float* d_out, const float* d_after, float* dx, float* d_state, float* rows, float* g) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.kept(), V = r.vectors();
  std::vector<vec> dh((size_t)N * V), dc((size_t)N * V), back((size_t)N * V), d_input(K * V), from_out(V);
  std::vector<vec> d_hidden((size_t)N * LANES * K * V), before((size_t)N * LANES * V);  // of a few steps, sequence by sequence
  std::vector<vec> columns((size_t)K * V * LANES);
  for (int n = 0; d_after && n < N; n++) {
    load_units(d_after + (begin + n) * M, H, dh.data() + n * V);
    if (r.lstm) load_units(d_after + (begin + n) * M + H, H, dc.data() + n * V);
  }
  int filled = 0;
  auto flush = [&] {
    for (int n = 0; n < N; n++) {
      vec *tile = d_hidden.data() + (size_t)n * LANES * K * V, *old = before.data() + (size_t)n * LANES * V;
      std::fill(tile + (size_t)filled * K * V, tile + (size_t)LANES * K * V, vec{});
      std::fill(old + (size_t)filled * V, old + (size_t)LANES * V, vec{});
      outer_of_steps(r, tile, old, columns.data(), rows, g);
    }
    filled = 0;
  };
  for (int64_t t = r.steps - 1; t >= 0; t--) {
    const float* sent[N];
    for (int n = 0; n < N; n++) {
      const vec* row = kept + (t * N + n) * Q * V;
      vec* here = d_hidden.data() + ((size_t)n * LANES + filled) * K * V;
      sent[n] = (const float*)here;
      load_units(d_out + (t * r.sequences + begin + n) * H, H, from_out.data());
      for (int v = 0; v < V; v++) {
        vec keep[7], a[4], b[4];
        collect(row, Q, V, v, keep);
        const vec d = dh[n * V + v] + from_out[v];
        if (r.lstm) lstm_back(keep, d, a, dc[n * V + v]), std::copy(a, a + 4, b);
        else gru_back(keep, d, a, b, dh[n * V + v]);
        for (int k = 0; k < K; k++) d_input[k * V + v] = a[k], here[k * V + v] = b[k];
        before[((size_t)n * LANES + filled) * V + v] = keep[Q - 1];
      }
      float* to = dx + (t * r.sequences + begin + n) * G;
      for (int k = 0; k < K; k++) store_units(d_input.data() + k * V, H, to + k * H);
    }
    few_rows<N>(packed.back.data(), nullptr, K * V * LANES, V, sent, back.data());
    for (int i = 0; i < N * V; i++) dh[i] = r.lstm ? back[i] : dh[i] + back[i];
    for (int n = 0; n < N; n++)
      if (r.start[t * r.sequences + begin + n])
        std::fill_n(dh.begin() + n * V, V, vec{}), std::fill_n(dc.begin() + n * V, V, vec{});
    if (++filled == LANES) flush();
  }
  if (filled) flush();
  for (int n = 0; d_state && n < N; n++) {
    store_units(dh.data() + n * V, H, d_state + (begin + n) * M);
    if (r.lstm) store_units(dc.data() + n * V, H, d_state + (begin + n) * M + H);
  }
}

}  // namespace surefoot
