// GRU and LSTM over time: the part that must go step by step. What the inputs contribute, W x + b, comes ready-made.
// Where an episode begins, memory begins anew. As many sequences as there are lanes go side by side; of fewer each goes by
// itself, its units side by side. Both ways add up in the same order, so a sequence's result is the same in either.
//
// GRU:  r = σ(x_r + W_r h + b_r), z = σ(x_z + W_z h + b_z), q = W_n h + b_n, n = tanh(x_n + r q), h' = (1 − z) n + z h
// LSTM: i, f, o = σ(x + W h + b), g = tanh(…), c' = f c + i g, h' = o tanh c'
#pragma once
#include <vector>

#include "net.hpp"

namespace surefoot {

struct Recurrence {
  bool lstm;
  int hidden;                // H
  int64_t steps, sequences;  // L, S
  const float *weight, *bias;  // [G·H, H] and [G·H], G = 3 (r, z, n) or 4 (i, f, g, o)
  const uint8_t* start;        // [L, S]: memory begins anew before this step
  int gates() const { return (lstm ? 4 : 3) * hidden; }
  int state() const { return (lstm ? 2 : 1) * hidden; }
  // Sequences that go lane by lane: worth it where most of the lanes are used.
  int64_t by_lanes() const { return sequences / LANES * LANES + (4 * (sequences % LANES) >= 3 * LANES ? sequences % LANES : 0); }
  // Kept of each unit and step for the way back: its gates, then q (GRU) or the old c and tanh c (LSTM), and the old h.
};

static inline void load_rows(const float* rows, int64_t stride, int columns, int count, vec* to) {
  int i = 0;
  for (; i + LANES <= columns; i += LANES) {
    vec square[LANES];
    for (int l = 0; l < LANES; l++) std::memcpy(&square[l], rows + (l < count ? l : count - 1) * stride + i, sizeof(vec));
    transpose(square, to + i);
  }
  for (; i < columns; i++)
    for (int l = 0; l < LANES; l++) to[i][l] = rows[(l < count ? l : count - 1) * stride + i];
}

static inline void store_rows(const vec* from, int columns, int count, float* rows, int64_t stride) {
  int i = 0;
  for (; i + LANES <= columns; i += LANES) {
    vec square[LANES];
    transpose(from + i, square);
    for (int l = 0; l < count; l++) std::memcpy(rows + l * stride + i, &square[l], sizeof(vec));
  }
  for (; i < columns; i++)
    for (int l = 0; l < count; l++) rows[l * stride + i] = from[i][l];
}

static inline void gru_cell(vec xr, vec xz, vec xn, vec hr, vec hz, vec q, vec& h, vec* keep) {
  const vec reset = sigmoid(xr + hr), update = sigmoid(xz + hz);
  vec n, unused;
  vtanh(xn + reset * q, n, unused);
  keep[0] = reset, keep[1] = update, keep[2] = n, keep[3] = q, keep[4] = h;
  h = n + update * (h - n);
}

static inline void lstm_cell(const vec* x, const vec* hidden, vec& h, vec& c, vec* keep) {
  const vec in = sigmoid(x[0] + hidden[0]), forget = sigmoid(x[1] + hidden[1]), open = sigmoid(x[3] + hidden[3]);
  vec g, squashed, unused;
  vtanh(x[2] + hidden[2], g, unused);
  keep[0] = in, keep[1] = forget, keep[2] = g, keep[3] = open, keep[4] = c, keep[6] = h;
  c = forget * c + in * g;
  vtanh(c, squashed, unused);
  keep[5] = squashed;
  h = open * squashed;
}

// d: of the new h. Gives d of what the gates were made of, by way of x and of W h + b, and of the old h (but for that).
static inline void gru_back(const vec* keep, vec d, vec* dx, vec* d_hidden, vec& dh) {
  const vec reset = keep[0], update = keep[1], n = keep[2], q = keep[3], before = keep[4];
  const vec dn = d * (1.0f - update) * (1.0f - n * n);
  dx[0] = d_hidden[0] = dn * q * reset * (1.0f - reset);
  dx[1] = d_hidden[1] = d * (before - n) * update * (1.0f - update);
  dx[2] = dn, d_hidden[2] = dn * reset;
  dh = d * update;
}

static inline void lstm_back(const vec* keep, vec d, vec* dx, vec& dc) {
  const vec in = keep[0], forget = keep[1], cell = keep[2], open = keep[3], old = keep[4], squashed = keep[5];
  const vec now = dc + d * open * (1.0f - squashed * squashed);
  dx[0] = now * cell * in * (1.0f - in);
  dx[1] = now * old * forget * (1.0f - forget);
  dx[2] = now * in * (1.0f - cell * cell);
  dx[3] = d * squashed * open * (1.0f - open);
  dc = now * forget;
}

// What is kept of unit i of a step, gathered from and scattered to rows of `H` units.
static inline void spread(const vec* kept, int count, int H, int i, vec* rows) {
  for (int k = 0; k < count; k++) rows[k * H + i] = kept[k];
}
static inline void collect(const vec* rows, int count, int H, int i, vec* kept) {
  for (int k = 0; k < count; k++) kept[k] = rows[k * H + i];
}

static inline vec not_started(const Recurrence& r, int64_t t, int64_t begin, int count) {
  vec keep;
  for (int l = 0; l < LANES; l++) keep[l] = r.start[t * r.sequences + begin + (l < count ? l : count - 1)] ? 0.0f : 1.0f;
  return keep;
}

// ---- a sequence in each lane; rows are units -----------------------------------------------------------------

static inline void recur_lanes(const Recurrence& r, int64_t begin, int count, const float* x, const float* state,
                               float* out, float* after, vec* kept) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = r.lstm ? 4 : 3, Q = r.lstm ? 7 : 5;
  std::vector<vec> input(G), hidden(G), memory(M);
  load_rows(state + begin * M, M, M, count, memory.data());
  vec *h = memory.data(), *c = memory.data() + H;
  for (int64_t t = 0; t < r.steps; t++) {
    const vec same = not_started(r, t, begin, count);
    for (vec& m : memory) m *= same;
    load_rows(x + (t * r.sequences + begin) * G, G, G, count, input.data());
    dense(r.weight, r.bias, H, G, h, hidden.data());
    for (int i = 0; i < H; i++) {
      vec keep[7], a[4], b[4];
      for (int k = 0; k < K; k++) a[k] = input[k * H + i], b[k] = hidden[k * H + i];
      if (r.lstm) lstm_cell(a, b, h[i], c[i], keep);
      else gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[i], keep);
      if (kept) spread(keep, Q, H, i, kept + t * Q * H);
    }
    store_rows(h, H, count, out + (t * r.sequences + begin) * H, H);
  }
  store_rows(memory.data(), M, count, after + begin * M, M);
}

static inline void back_lanes(const Recurrence& r, int64_t begin, int count, const vec* kept, const float* d_out,
                              const float* d_after, float* dx, float* d_state, const Layer& layer, float* rows, float* g) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = r.lstm ? 4 : 3, Q = r.lstm ? 7 : 5;
  std::vector<vec> d_memory(M), from_out(H), d_hidden(G), d_input(G), back(H);
  load_rows(d_after + begin * M, M, M, count, d_memory.data());
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
  store_rows(d_memory.data(), M, count, d_state + begin * M, M);
}

// ---- one sequence; lanes are units, H rounded up to whole vectors ----------------------------------------------

struct Packed {
  int vectors;                          // of H
  std::vector<vec> forward, back, bias;  // [H][K·vectors], [K·H][vectors], [K·vectors]
  explicit Packed(const Recurrence& r) : vectors((r.hidden + LANES - 1) / LANES) {
    const int H = r.hidden, K = r.gates() / H, V = vectors;
    forward.resize((size_t)H * K * V), back.resize((size_t)K * H * V), bias.resize((size_t)K * V);
    for (int k = 0; k < K; k++)
      for (int o = 0; o < H; o++) {
        const float* w = r.weight + ((int64_t)k * H + o) * H;
        bias[k * V + o / LANES][o % LANES] = r.bias[k * H + o];
        for (int i = 0; i < H; i++) {
          forward[((size_t)i * K + k) * V + o / LANES][o % LANES] = w[i];
          back[((size_t)k * H + o) * V + i / LANES][i % LANES] = w[i];
        }
      }
  }
};

static inline void load_units(const float* from, int H, vec* to) {
  const int V = (H + LANES - 1) / LANES;
  to[V - 1] = vec{};
  std::memcpy(to, from, sizeof(float) * H);
}
static inline void store_units(const vec* from, int H, float* to) { std::memcpy(to, from, sizeof(float) * H); }

static inline void recur_units(const Recurrence& r, const Packed& packed, int64_t s, const float* x, const float* state,
                               float* out, float* after, vec* kept) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.lstm ? 7 : 5, V = packed.vectors;
  std::vector<vec> h(V), c(V), hidden(K * V), input(K * V);
  load_units(state + s * M, H, h.data());
  if (r.lstm) load_units(state + s * M + H, H, c.data());
  for (int64_t t = 0; t < r.steps; t++) {
    if (r.start[t * r.sequences + s]) std::fill(h.begin(), h.end(), vec{}), std::fill(c.begin(), c.end(), vec{});
    for (int k = 0; k < K; k++) load_units(x + (t * r.sequences + s) * G + k * H, H, input.data() + k * V);
    const float* units = (const float*)h.data();
    for (int column = 0; column < K * V; column += BLOCK) {
      const int width = std::min(BLOCK, K * V - column);
      vec sum[BLOCK];
      for (int j = 0; j < width; j++) sum[j] = packed.bias[column + j];
      const vec* w = packed.forward.data() + column;
      if (width == BLOCK) {
        for (int i = 0; i < H; i++, w += K * V)
          for (int j = 0; j < BLOCK; j++) sum[j] += units[i] * w[j];
      } else {
        for (int i = 0; i < H; i++, w += K * V)
          for (int j = 0; j < width; j++) sum[j] += units[i] * w[j];
      }
      for (int j = 0; j < width; j++) hidden[column + j] = sum[j];
    }
    for (int v = 0; v < V; v++) {
      vec keep[7], a[4], b[4];
      for (int k = 0; k < K; k++) a[k] = input[k * V + v], b[k] = hidden[k * V + v];
      if (r.lstm) lstm_cell(a, b, h[v], c[v], keep);
      else gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[v], keep);
      if (kept) spread(keep, Q, V, v, kept + t * Q * V);
    }
    store_units(h.data(), H, out + (t * r.sequences + s) * H);
  }
  store_units(h.data(), H, after + s * M);
  if (r.lstm) store_units(c.data(), H, after + s * M + H);
}

// `g`: the weight's gradient, [K·V·LANES][V·LANES], and behind it the bias's, lane by lane, of a padded layer.
static inline void back_units(const Recurrence& r, const Packed& packed, int64_t s, const vec* kept, const float* d_out,
                              const float* d_after, float* dx, float* d_state, const Layer& layer, float* rows, float* g) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.lstm ? 7 : 5, V = packed.vectors;
  std::vector<vec> dh(V), dc(V), from_out(V), d_input(K * V);
  std::vector<vec> tile((size_t)LANES * K * V), columns((size_t)LANES * K * V);  // d_hidden of a few steps
  load_units(d_after + s * M, H, dh.data());
  if (r.lstm) load_units(d_after + s * M + H, H, dc.data());
  int filled = 0;
  auto flush = [&] {  // the outer products of a few steps at once: the steps are the lanes
    for (int l = filled; l < LANES; l++) std::fill_n(tile.begin() + (size_t)l * K * V, K * V, vec{});
    for (int v = 0; v < K * V; v++) {
      vec square[LANES], turned[LANES];
      for (int l = 0; l < LANES; l++) square[l] = tile[(size_t)l * K * V + v];
      transpose(square, turned);
      std::copy(turned, turned + LANES, columns.begin() + (size_t)v * LANES);
    }
    outer_given_rows(layer, columns.data(), rows, g);
    filled = 0;
  };
  for (int64_t t = r.steps - 1; t >= 0; t--) {
    const vec* row = kept + t * Q * V;
    load_units(d_out + (t * r.sequences + s) * H, H, from_out.data());
    vec* d_hidden = tile.data() + (size_t)filled * K * V;
    for (int v = 0; v < V; v++) {
      vec keep[7], a[4], b[4];
      collect(row, Q, V, v, keep);
      const vec d = dh[v] + from_out[v];
      if (r.lstm) lstm_back(keep, d, a, dc[v]), std::copy(a, a + 4, b);
      else gru_back(keep, d, a, b, dh[v]);
      for (int k = 0; k < K; k++) d_input[k * V + v] = a[k], d_hidden[k * V + v] = b[k];
      *(vec*)(rows + ((int64_t)filled * V + v) * LANES) = row[(Q - 1) * V + v];
    }
    for (int k = 0; k < K; k++) store_units(d_input.data() + k * V, H, dx + (t * r.sequences + s) * G + k * H);
    for (int column = 0; column < V; column += BLOCK) {
      const int width = std::min(BLOCK, V - column);
      vec sum[BLOCK] = {};
      for (int k = 0; k < K; k++) {
        const float* d = (const float*)(d_hidden + k * V);
        const vec* w = packed.back.data() + (size_t)k * H * V + column;
        for (int o = 0; o < H; o++, w += V)
          for (int j = 0; j < width; j++) sum[j] += d[o] * w[j];
      }
      for (int j = 0; j < width; j++) dh[column + j] = r.lstm ? sum[j] : dh[column + j] + sum[j];
    }
    if (r.start[t * r.sequences + s]) std::fill(dh.begin(), dh.end(), vec{}), std::fill(dc.begin(), dc.end(), vec{});
    if (++filled == LANES) flush();
  }
  if (filled) flush();
  store_units(dh.data(), H, d_state + s * M);
  if (r.lstm) store_units(dc.data(), H, d_state + s * M + H);
}

// ---- all of them -----------------------------------------------------------------------------------------------

static inline int64_t kept_vectors(const Recurrence& r) {
  const int64_t tiles = (r.by_lanes() + LANES - 1) / LANES, alone = r.sequences - r.by_lanes();
  const int Q = r.lstm ? 7 : 5, V = (r.hidden + LANES - 1) / LANES;
  return r.steps * Q * (tiles * r.hidden + alone * V);
}

// x: [L, S, G·H]; state: [S, M], M = H or 2·H (h, then c). Fills out [L, S, H] and after [S, M]; kept may be null.
static inline void recur(const Recurrence& r, const float* x, const float* state, float* out, float* after, vec* kept) {
  const int Q = r.lstm ? 7 : 5;
  for (int64_t begin = 0; begin < r.by_lanes(); begin += LANES) {
    recur_lanes(r, begin, (int)std::min<int64_t>(LANES, r.by_lanes() - begin), x, state, out, after, kept);
    if (kept) kept += r.steps * Q * r.hidden;
  }
  if (r.by_lanes() == r.sequences) return;
  const Packed packed(r);
  for (int64_t s = r.by_lanes(); s < r.sequences; s++) {
    recur_units(r, packed, s, x, state, out, after, kept);
    if (kept) kept += r.steps * Q * packed.vectors;
  }
}

// To a cache line; the storage is 16 numbers longer than needed.
static inline float* aligned(std::vector<float>& storage) {
  return (float*)(((uintptr_t)storage.data() + 63) & ~(uintptr_t)63);
}

// From d(out) [L, S, H] and d(after) [S, M] to d(x), d(state), d(weight), d(bias).
static inline void recur_back(const Recurrence& r, const vec* kept, const float* d_out, const float* d_after, float* dx,
                              float* d_state, float* d_weight, float* d_bias) {
  const int H = r.hidden, G = r.gates(), K = G / H, Q = r.lstm ? 7 : 5, V = (H + LANES - 1) / LANES, stride = V * LANES;
  const Layer lanes{H, G, 0, 0, 0, stride, -1}, units{stride, K * stride, 0, 0, 0, stride, -1};
  std::vector<float> scratch((size_t)LANES * stride + 16), of_lanes, of_units;
  std::fill_n(d_weight, (int64_t)G * H, 0.0f), std::fill_n(d_bias, G, 0.0f);
  if (r.by_lanes()) {
    of_lanes.resize((size_t)(stride + LANES) * G + 16);
    float* g = aligned(of_lanes);
    for (int64_t begin = 0; begin < r.by_lanes(); begin += LANES, kept += r.steps * Q * H)
      back_lanes(r, begin, (int)std::min<int64_t>(LANES, r.by_lanes() - begin), kept, d_out, d_after, dx, d_state, lanes,
                 aligned(scratch), g);
    for (int o = 0; o < G; o++) {
      for (int i = 0; i < H; i++) d_weight[(int64_t)o * H + i] += g[(int64_t)o * stride + i];
      d_bias[o] += sum_of(*(const vec*)(g + (int64_t)G * stride + (int64_t)o * LANES));
    }
  }
  if (r.by_lanes() == r.sequences) return;
  const Packed packed(r);
  of_units.resize((size_t)(stride + LANES) * K * stride + 16);
  float* g = aligned(of_units);
  for (int64_t s = r.by_lanes(); s < r.sequences; s++, kept += r.steps * Q * V)
    back_units(r, packed, s, kept, d_out, d_after, dx, d_state, units, aligned(scratch), g);
  for (int k = 0; k < K; k++)
    for (int o = 0; o < H; o++) {
      const int64_t row = (int64_t)k * stride + o;
      for (int i = 0; i < H; i++) d_weight[((int64_t)k * H + o) * H + i] += g[row * stride + i];
      d_bias[k * H + o] += sum_of(*(const vec*)(g + (int64_t)units.out * stride + row * LANES));
    }
}

}  // namespace surefoot
