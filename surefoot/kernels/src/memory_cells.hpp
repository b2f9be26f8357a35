// GRU and LSTM cells: one step of a vector of units, its backward pass and its tangent. `keep` stores what these need.
//
// GRU:  r = σ(x_r + W_r h + b_r), z = σ(x_z + W_z h + b_z), q = W_n h + b_n, n = tanh(x_n + r q), h' = (1 − z) n + z h
// LSTM: i, f, o = σ(x + W h + b), g = tanh(…), c' = f c + i g, h' = o tanh c'
#pragma once
#include "vec.hpp"

namespace surefoot {

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

// d: of the new h. Returns d of the gates' arguments, through x and through W h + b, and the rest of d of the old h.
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

// After the cell: the tangent of the new h (and c) from the tangents of the gates' arguments, d, and of the old h (and c).
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

}  // namespace surefoot
