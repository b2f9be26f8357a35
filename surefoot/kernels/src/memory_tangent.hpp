// The tangent of a GRU's or LSTM's state along a direction of the parameters, for Fisher products.
#pragma once
#include <vector>

#include "memory_cells.hpp"
#include "memory_parts.hpp"

namespace surefoot {

// The inputs of a memory and the layer they go through.
struct SeenInputs {
  const float* x;  // rows [L, S, stride], of which the layer uses the first numbers
  int stride;
  const Layer &of_input, &of_hidden;
};

// Writes d(h) of up to LANES sequences from `begin` on to rows [L, S, H] of `out`; `state` [S, M] is before step 0.
static inline void recur_tangent(const Recurrence& r, const SeenInputs& seen, const float* theta, const float* direction,
                                 const float* state, int64_t begin, int count, float* out) {
  const int H = r.hidden, G = r.gates(), M = r.state(), F = seen.of_input.in;
  const Layer &of_input = seen.of_input, &of_hidden = seen.of_hidden;
  std::vector<vec> x(F), memory_now(M), along(M), input(G), d_input(G), hidden(G), d_hidden(G), part(G);
  load_rows(state + begin * M, M, M, count, memory_now.data());
  vec *h = memory_now.data(), *c = h + H, *dh = along.data(), *dc = dh + H;
  for (int64_t t = 0; t < r.steps; t++) {
    const ivec same = not_started(r, t, begin, count) > 0.5f;
    for (int i = 0; i < M; i++) h[i] = same ? h[i] : vec{}, dh[i] = same ? dh[i] : vec{};
    load_rows(seen.x + (t * r.sequences + begin) * seen.stride, seen.stride, F, count, x.data());
    dense(theta + of_input.weight, theta + of_input.bias, F, G, x.data(), input.data());
    dense(direction + of_input.weight, direction + of_input.bias, F, G, x.data(), d_input.data());
    dense(r.weight, r.bias, H, G, h, hidden.data());
    dense(direction + of_hidden.weight, direction + of_hidden.bias, H, G, h, d_hidden.data());
    dense(r.weight, nullptr, H, G, dh, part.data());
    for (int i = 0; i < G; i++) d_hidden[i] += part[i];
    for (int i = 0; i < H; i++) {
      vec keep[7], a[4], b[4], d[4];
      for (int k = 0; k < G / H; k++)
        a[k] = input[k * H + i], b[k] = hidden[k * H + i], d[k] = d_input[k * H + i] + d_hidden[k * H + i];
      if (r.lstm) {
        lstm_cell(a, b, h[i], c[i], keep);
        lstm_tangent(keep, d, dh[i], dc[i]);
      } else {
        gru_cell(a[0], a[1], a[2], b[0], b[1], b[2], h[i], keep);
        gru_tangent(keep, d, d_input[2 * H + i], d_hidden[2 * H + i], dh[i]);
      }
    }
    store_rows(dh, H, count, out + (t * r.sequences + begin) * H, H);
  }
}

}  // namespace surefoot
