// GRU and LSTM over time: the part that must go step by step. What the inputs contribute, W x + b, comes ready-made;
// sixteen sequences go side by side.
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
  int gates() const { return (lstm ? 4 : 3) * hidden; }
  // Rows kept of each step for the way back: gates, then q (GRU) or c and tanh c (LSTM), and h before the step.
  int kept() const { return (lstm ? 7 : 5) * hidden; }
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

// x: [L, S, G·H]; state: [S, M], M = H or 2·H (h, then c). Fills out [L, S, H] and after [S, M]; kept may be null.
static inline void recur(const Recurrence& r, const float* x, const float* state, float* out, float* after, vec* kept) {
  const int H = r.hidden, G = r.gates(), M = r.lstm ? 2 * H : H;
  std::vector<vec> input(G), hidden(G), memory(M);
  for (int64_t begin = 0; begin < r.sequences; begin += LANES) {
    const int count = (int)std::min<int64_t>(LANES, r.sequences - begin);
    load_rows(state + begin * M, M, M, count, memory.data());
    vec *h = memory.data(), *c = memory.data() + H;
    for (int64_t t = 0; t < r.steps; t++) {
      load_rows(x + (t * r.sequences + begin) * G, G, G, count, input.data());
      dense(r.weight, r.bias, H, G, h, hidden.data());
      vec* keep = kept ? kept + ((begin / LANES) * r.steps + t) * r.kept() : nullptr;
      if (keep) std::copy(h, h + H, keep + r.kept() - H);
      for (int i = 0; i < H; i++) {
        vec unused;
        if (r.lstm) {
          const vec in = sigmoid(input[i] + hidden[i]), forget = sigmoid(input[H + i] + hidden[H + i]);
          const vec open = sigmoid(input[3 * H + i] + hidden[3 * H + i]);
          vec g, squashed;
          vtanh(input[2 * H + i] + hidden[2 * H + i], g, unused);
          if (keep) keep[4 * H + i] = c[i];
          c[i] = forget * c[i] + in * g;
          vtanh(c[i], squashed, unused);
          h[i] = open * squashed;
          if (keep) keep[i] = in, keep[H + i] = forget, keep[2 * H + i] = g, keep[3 * H + i] = open, keep[5 * H + i] = squashed;
        } else {
          const vec reset = sigmoid(input[i] + hidden[i]), update = sigmoid(input[H + i] + hidden[H + i]);
          const vec q = hidden[2 * H + i];
          vec n;
          vtanh(input[2 * H + i] + reset * q, n, unused);
          h[i] = n + update * (h[i] - n);
          if (keep) keep[i] = reset, keep[H + i] = update, keep[2 * H + i] = n, keep[3 * H + i] = q;
        }
      }
      store_rows(h, H, count, out + (t * r.sequences + begin) * H, H);
    }
    store_rows(memory.data(), M, count, after + begin * M, M);
  }
}

// From d(out) [L, S, H] and d(after) [S, M] to d(x), d(state), d(weight), d(bias); the last two are overwritten, too.
static inline void recur_back(const Recurrence& r, const vec* kept, const float* d_out, const float* d_after, float* dx,
                              float* d_state, float* d_weight, float* d_bias) {
  const int H = r.hidden, G = r.gates(), M = r.lstm ? 2 * H : H, stride = (H + LANES - 1) / LANES * LANES;
  Layer layer{H, G, 0, 0, 0, stride, -1};
  std::vector<float> sums((size_t)(stride + LANES) * G + LANES), scratch((size_t)LANES * stride + LANES);
  float* g = (float*)(((uintptr_t)sums.data() + 63) & ~(uintptr_t)63);
  float* rows = (float*)(((uintptr_t)scratch.data() + 63) & ~(uintptr_t)63);
  std::vector<vec> d_memory(M), from_out(H), d_hidden(G), d_input(G), back(H);
  for (int64_t begin = 0; begin < r.sequences; begin += LANES) {
    const int count = (int)std::min<int64_t>(LANES, r.sequences - begin);
    load_rows(d_after + begin * M, M, M, count, d_memory.data());
    for (vec& d : d_memory)
      for (int l = count; l < LANES; l++) d[l] = 0.0f;
    vec *dh = d_memory.data(), *dc = d_memory.data() + H;
    for (int64_t t = r.steps - 1; t >= 0; t--) {
      const vec* keep = kept + ((begin / LANES) * r.steps + t) * r.kept();
      const vec* before = keep + r.kept() - H;
      load_rows(d_out + (t * r.sequences + begin) * H, H, H, count, from_out.data());
      for (int i = 0; i < H; i++) {
        for (int l = count; l < LANES; l++) from_out[i][l] = 0.0f;
        const vec d = dh[i] + from_out[i];
        if (r.lstm) {
          const vec in = keep[i], forget = keep[H + i], cell = keep[2 * H + i], open = keep[3 * H + i];
          const vec old = keep[4 * H + i], squashed = keep[5 * H + i];
          const vec dc_now = dc[i] + d * open * (1.0f - squashed * squashed);
          d_input[i] = dc_now * cell * in * (1.0f - in);
          d_input[H + i] = dc_now * old * forget * (1.0f - forget);
          d_input[2 * H + i] = dc_now * in * (1.0f - cell * cell);
          d_input[3 * H + i] = d * squashed * open * (1.0f - open);
          dc[i] = dc_now * forget;
        } else {
          const vec reset = keep[i], update = keep[H + i], n = keep[2 * H + i], q = keep[3 * H + i];
          const vec dn = d * (1.0f - update) * (1.0f - n * n);
          d_input[i] = dn * q * reset * (1.0f - reset);
          d_input[H + i] = d * (before[i] - n) * update * (1.0f - update);
          d_input[2 * H + i] = dn;
          d_hidden[2 * H + i] = dn * reset;
          dh[i] = d * update;
        }
      }
      // W h + b enters all gates as x does, but for the GRU's n, where r stands before it.
      std::copy(d_input.begin(), d_input.begin() + (r.lstm ? G : 2 * H), d_hidden.begin());
      store_rows(d_input.data(), G, count, dx + (t * r.sequences + begin) * G, G);
      transposed(r.weight, H, G, d_hidden.data(), back.data());
      for (int i = 0; i < H; i++) dh[i] = r.lstm ? back[i] : dh[i] + back[i];
      outer(layer, d_hidden.data(), before, rows, g);
    }
    store_rows(d_memory.data(), M, count, d_state + begin * M, M);
  }
  for (int o = 0; o < G; o++) {
    std::memcpy(d_weight + (int64_t)o * H, g + (int64_t)o * stride, sizeof(float) * H);
    d_bias[o] = sum_of(*(const vec*)(g + (int64_t)G * stride + (int64_t)o * LANES));
  }
}

}  // namespace surefoot
