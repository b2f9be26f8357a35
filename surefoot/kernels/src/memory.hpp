// GRU and LSTM over time. What the inputs contribute, W x + b, comes ready-made or is made on the way. Where an episode
// begins, memory begins anew. As many sequences as there are lanes go side by side; fewer go by themselves, two or four at
// once, their units side by side. Both ways add up in the same order, so a sequence's result is the same in either.
//
// GRU:  r = σ(x_r + W_r h + b_r), z = σ(x_z + W_z h + b_z), q = W_n h + b_n, n = tanh(x_n + r q), h' = (1 − z) n + z h
// LSTM: i, f, o = σ(x + W h + b), g = tanh(…), c' = f c + i g, h' = o tanh c'
#pragma once
#include <vector>

#include "net.hpp"

namespace surefoot {

struct Recurrence {
  bool lstm;
  int hidden;                  // H
  int64_t steps, sequences;    // L, S
  const float *weight, *bias;  // [G·H, H] and [G·H], G = 3 (r, z, n) or 4 (i, f, g, o)
  const uint8_t* start;        // [L, S]: memory begins anew before this step
  int gates() const { return (lstm ? 4 : 3) * hidden; }
  int state() const { return (lstm ? 2 : 1) * hidden; }
  int vectors() const { return (hidden + LANES - 1) / LANES; }
  // Kept of each unit and step for the way back: its gates, then q (GRU) or the old c and tanh c (LSTM), and the old h.
  int kept() const { return lstm ? 7 : 5; }
  Layer layer() const { return {hidden, gates(), 0, 0, 0, vectors() * LANES, -1}; }
};

// Sequences that go together: lane by lane, or one, two or four whose units are the lanes.
struct Group {
  int64_t begin;
  int count;
  bool lanes;
  int64_t kept;  // where its part of what is kept begins, in vectors
};

static inline std::vector<Group> groups_of(const Recurrence& r, int64_t* kept = nullptr) {
  std::vector<Group> found;
  int64_t at = 0;
  for (int64_t begin = 0; begin < r.sequences;) {
    const int64_t left = r.sequences - begin;
    // By lanes where most of them are used, and where units would not fill them or there is enough for all threads.
    const bool lanes = 4 * left >= 3 * LANES && (r.hidden < LANES || r.sequences >= 4 * LANES);
    const int count = lanes ? (int)std::min<int64_t>(LANES, left) : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    found.push_back({begin, count, lanes, at});
    at += r.steps * r.kept() * (lanes ? r.hidden : count * r.vectors());
    begin += count;
  }
  if (kept) *kept = at;
  return found;
}

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

// After the cell: the tangent of the new h (and c) from those of the gates' arguments, d, and of the old h (and c).
static inline void gru_tangent(const vec* keep, const vec* d, vec d_xn, vec dq, vec& dh) {
  const vec reset = keep[0], update = keep[1], n = keep[2], q = keep[3], before = keep[4];
  const vec d_reset = reset * (1.0f - reset) * d[0], d_update = update * (1.0f - update) * d[1];
  const vec dn = (1.0f - n * n) * (d_xn + d_reset * q + reset * dq);
  dh = dn + d_update * (before - n) + update * (dh - dn);
}

static inline void lstm_tangent(const vec* keep, const vec* d, vec& dh, vec& dc) {
  const vec in = keep[0], forget = keep[1], cell = keep[2], open = keep[3], old = keep[4], squashed = keep[5];
  const vec d_in = in * (1.0f - in) * d[0], d_forget = forget * (1.0f - forget) * d[1];
  dc = d_forget * old + forget * dc + d_in * cell + in * (1.0f - cell * cell) * d[2];
  dh = open * (1.0f - open) * d[3] * squashed + open * (1.0f - squashed * squashed) * dc;
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

static inline void load_units(const float* from, int H, vec* to) {
  const int V = (H + LANES - 1) / LANES;
  to[V - 1] = vec{};
  std::memcpy(to, from, sizeof(float) * H);
}
static inline void store_units(const vec* from, int H, float* to) { std::memcpy(to, from, sizeof(float) * H); }

// What the inputs contribute, given as rows [L, S, G·H].
class Given {
 public:
  Given(const Recurrence& r, const float* x) : r_(r), x_(x), units_((size_t)4 * r.gates() / r.hidden * r.vectors()) {}
  void lanes(int64_t t, int64_t begin, int count, vec* to) {
    load_rows(x_ + (t * r_.sequences + begin) * r_.gates(), r_.gates(), r_.gates(), count, to);
  }
  // Of sequence s, the n-th of its group, each gate beginning at a whole vector.
  const vec* units(int64_t t, int64_t s, int n) {
    const int H = r_.hidden, G = r_.gates(), V = r_.vectors();
    vec* to = units_.data() + (size_t)n * G / H * V;
    for (int k = 0; k < G / H; k++) load_units(x_ + (t * r_.sequences + s) * G + k * H, H, to + k * V);
    return to;
  }

 private:
  const Recurrence& r_;
  const float* x_;
  std::vector<vec> units_;
};

// What the inputs contribute, W x + b, of rows x [L, S, stride] whose first `in` numbers count. Of one sequence a few
// steps at once, for which the steps are the lanes.
class Projected {
 public:
  Projected(const Recurrence& r, const float* x, int in, int stride, const float* weight, const float* bias)
      : r_(r), x_(x), weight_(weight), bias_(bias), in_(in), stride_(stride), seen_(in), made_(r.gates()) {}
  void lanes(int64_t t, int64_t begin, int count, vec* to) {
    load_rows(x_ + (t * r_.sequences + begin) * stride_, stride_, in_, count, seen_.data());
    dense(weight_, bias_, in_, r_.gates(), seen_.data(), to);
  }
  const vec* units(int64_t t, int64_t s, int n) {
    const int H = r_.hidden, K = r_.gates() / H, V = r_.vectors();
    if (ahead_.empty()) ahead_.resize((size_t)4 * LANES * K * V);
    vec* here = ahead_.data() + (size_t)n * LANES * K * V;
    if (t % LANES == 0) {
      const int count = (int)std::min<int64_t>(LANES, r_.steps - t);
      load_rows(x_ + (t * r_.sequences + s) * stride_, r_.sequences * stride_, in_, count, seen_.data());
      dense(weight_, bias_, in_, r_.gates(), seen_.data(), made_.data());
      for (int k = 0; k < K; k++)
        store_rows(made_.data() + k * H, H, count, (float*)(here + k * V), (int64_t)K * V * LANES);
    }
    return here + (size_t)(t % LANES) * K * V;
  }

 private:
  const Recurrence& r_;
  const float *x_, *weight_, *bias_;
  int in_, stride_;
  std::vector<vec> seen_, made_, ahead_;
};

// ---- a sequence in each lane; rows are units -----------------------------------------------------------------

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
    for (vec& m : memory) m = same > 0.5f ? m : vec{};  // even of what is not finite nothing stays
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

// ---- a few sequences; lanes are units, H rounded up to whole vectors --------------------------------------------

constexpr int ACCUMULATORS = LANES == 16 ? 16 : 8;

template <int W, typename Body>
static inline void at_width(int width, const Body& body) {
  if (width == W) body(std::integral_constant<int, W>());
  else if constexpr (W > 1) at_width<W - 1>(width, body);
}

// y[n] = x[n] W + b of N rows x at once; W [in][vectors], y [N][vectors], b may be null.
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

// The weights turned around for it, and padded for the way back.
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
        for (int i = 0; i < V; i++) {  // a square at a time
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

template <int N>
static inline void back_units(const Recurrence& r, const Packed& packed, int64_t begin, const vec* kept,
                              const float* d_out, const float* d_after, float* dx, float* d_state, float* rows, float* g) {
  const int H = r.hidden, G = r.gates(), M = r.state(), K = G / H, Q = r.kept(), V = r.vectors();
  const Layer layer = r.layer();
  std::vector<vec> dh((size_t)N * V), dc((size_t)N * V), back((size_t)N * V), d_input(K * V), from_out(V);
  std::vector<vec> d_hidden((size_t)N * LANES * K * V), before((size_t)N * LANES * V);  // of a few steps, sequence by sequence
  std::vector<vec> columns((size_t)K * V * LANES);
  for (int n = 0; d_after && n < N; n++) {
    load_units(d_after + (begin + n) * M, H, dh.data() + n * V);
    if (r.lstm) load_units(d_after + (begin + n) * M + H, H, dc.data() + n * V);
  }
  int filled = 0;
  auto flush = [&] {  // the outer products of a few steps at once: the steps are the lanes
    for (int n = 0; n < N; n++) {
      vec *tile = d_hidden.data() + (size_t)n * LANES * K * V, *old = before.data() + (size_t)n * LANES * V;
      std::fill(tile + (size_t)filled * K * V, tile + (size_t)LANES * K * V, vec{});
      std::fill(old + (size_t)filled * V, old + (size_t)LANES * V, vec{});
      for (int k = 0; k < K; k++)
        for (int v = 0; v < V; v++) {
          vec square[LANES], turned[LANES];
          for (int l = 0; l < LANES; l++) square[l] = tile[((size_t)l * K + k) * V + v];
          transpose(square, turned);
          std::copy(turned, turned + std::min(LANES, H - v * LANES), columns.begin() + k * H + v * LANES);
        }
      std::memcpy(rows, old, sizeof(vec) * LANES * V);
      outer_given_rows(layer, columns.data(), rows, g);
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

// ---- all of them -----------------------------------------------------------------------------------------------

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

// To a cache line; the storage is 16 numbers longer than needed.
static inline float* aligned(std::vector<float>& storage) {
  return (float*)(((uintptr_t)storage.data() + 63) & ~(uintptr_t)63);
}

}  // namespace surefoot
