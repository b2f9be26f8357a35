// Chains of linear layers on tiles of samples: forward, backward, and forward with a tangent.
//
// A row of a tile holds one unit of all its samples. Every sample goes through the same operations in the same order,
// whatever its position and batch, so its result never depends on its neighbours.
#pragma once
#include <algorithm>
#include <vector>

#include "norm.hpp"
#include "product.hpp"

namespace surefoot {

struct Layer {
  int in, out;
  int64_t weight, bias;       // in the parameter vector; weights are [out][in]
  int64_t shard;              // in a shard's gradient: [out][stride], then the bias, [out][LANES]
  int stride;                 // in, rounded up to whole vectors
  int activation;             // −1: none
  Norm norm = {};             // before the activation
};

struct Chain {
  std::vector<Layer> layers;
  int in() const { return layers.front().in; }
  int out() const { return layers.back().out; }
};

// These functions process `tiles` of samples together, [tile][unit]; the tiles of x may have gaps between them.

// y = W x + b; without b: y = W x.
static inline void dense(const float* w, const float* b, int in, int out, const vec* x, vec* y, int tiles = 1,
                         int64_t x_tile = 0) {
  product({w, in, 1, LANES}, {x, 1, x_tile}, {y, 1, out}, out, tiles, in, b ? BIAS : ZERO, b);
}

// dx = Wᵀ dy; with ADD: dx += Wᵀ dy.
static inline void transposed(const float* w, int in, int out, const vec* dy, vec* dx, int tiles = 1,
                              Start start = ZERO) {
  product({w, 1, in, (int64_t)in * LANES}, {dy, 1, out}, {dx, 1, in}, in, tiles, out, start);
}

// g += Σ over the samples of dy xᵀ, followed by dy for the bias, per lane; with ZERO: g = …
// `rows`: x with the units of a sample contiguous.
static inline void outer_given_rows(const Layer& layer, const vec* dy, const Vectors& rows, float* g, int tiles,
                                    Start start) {
  const int columns = layer.stride / LANES;
  product({(const float*)dy, LANES, 1, (int64_t)layer.out * LANES}, rows, {(vec*)g, columns, 1}, layer.out, columns,
          (int64_t)tiles * LANES, start);
  vec* bias = (vec*)(g + (int64_t)layer.out * layer.stride);
  if (start == ZERO) std::fill_n(bias, layer.out, vec{});
  for (int t = 0; t < tiles; t++, dy += layer.out)
    for (int o = 0; o < layer.out; o++) bias[o] += dy[o];
}
// One tile: [LANES][stride].
static inline void outer_given_rows(const Layer& layer, const vec* dy, const float* rows, float* g) {
  outer_given_rows(layer, dy, {(const vec*)rows, layer.stride / LANES, 1}, g, 1, ADD);
}

// Like `outer_given_rows`, but from x itself. `rows` is scratch: tiles × LANES × stride. It holds all samples of the same
// few units contiguously: with a distance of the width, often a power of two, they would compete for a few cache sets.
static inline void outer(const Layer& layer, const vec* dy, const vec* x, float* rows, float* g, int tiles = 1,
                         int64_t x_tile = 0, Start start = ADD) {
  vec* to = (vec*)rows;
  for (int i = 0; i < layer.stride; i += LANES)
    for (int t = 0; t < tiles; t++, to += LANES) {
      const vec* from = x + t * x_tile + i;
      if (i + LANES <= layer.in) {
        transpose(from, to);
      } else {
        vec padded[LANES] = {};
        std::copy(from, from + layer.in - i, padded);
        transpose(padded, to);
      }
    }
  outer_given_rows(layer, dy, {(const vec*)rows, 1, (int64_t)tiles * LANES}, g, tiles, start);
}

// One thread's workspace for one chain: outputs and slopes of every layer, what a norm found, tangents, and gradients.
struct Scratch {
  std::vector<std::vector<vec>> y, slope, hat, inverse, tangent;
  std::vector<vec> back[2], rows_storage;
  float* rows = nullptr;

  void prepare(const Chain& chain, int tiles = 1) {
    int widest = 1, stride = LANES;
    for (const Layer& layer : chain.layers) {
      const size_t size = (size_t)tiles * layer.out;
      y.emplace_back(size), slope.emplace_back(size), tangent.emplace_back();
      hat.emplace_back(layer.norm ? size : 0), inverse.emplace_back(layer.norm ? tiles : 0);
      widest = std::max(widest, std::max(layer.in, layer.out));
      stride = std::max(stride, layer.stride);
    }
    back[0].resize((size_t)tiles * widest), back[1].resize((size_t)tiles * widest);
    rows_storage.resize((size_t)tiles * stride);
    rows = (float*)rows_storage.data();
  }
  // Call before `forward_tangent`; allocated only then, because few need it.
  void prepare_tangents() {
    for (size_t k = 0; k < y.size(); k++) tangent[k].resize(y[k].size());
  }
};

// Transposed weights, with the units of one sample in the lanes: for so few samples that tiles would be mostly empty.
struct Turned {
  std::vector<std::vector<vec>> weight, bias;  // per layer: [in][vectors of out], [vectors of out]
  std::vector<vec> y[2], slope;
  const float* theta = nullptr;                // for the norms

  void turn(const Chain& chain, const float* from) {
    size_t widest = 1;
    theta = from, weight.clear(), bias.clear();
    for (const Layer& layer : chain.layers) {
      const int V = (layer.out + LANES - 1) / LANES;
      std::vector<vec> w((size_t)layer.in * V), b(V);
      for (int o = 0; o < layer.out; o++) {
        b[o / LANES][o % LANES] = theta[layer.bias + o];
        const float* row = theta + layer.weight + (int64_t)o * layer.in;
        for (int i = 0; i < layer.in; i++) ((float*)&w[(size_t)i * V])[o] = row[i];
      }
      weight.push_back(std::move(w)), bias.push_back(std::move(b));
      widest = std::max(widest, (size_t)V);
    }
    for (auto* rows : {&y[0], &y[1], &slope}) rows->resize(widest);
  }

  // Like `forward` for one sample, with the same order of operations. Returns the outputs.
  const float* run(const Chain& chain, const float* x) {
    for (size_t k = 0; k < chain.layers.size(); k++) {
      const Layer& layer = chain.layers[k];
      const int V = (layer.out + LANES - 1) / LANES;
      vec* out = y[k % 2].data();
      for (int column = 0; column < V; column += BLOCK / 2)
        with_width<BLOCK / 2>(std::min(BLOCK / 2, V - column), [&](auto width) {
          constexpr int W = decltype(width)::value;
          vec sum[W];
          const vec* w = weight[k].data() + column;
          for (int j = 0; j < W; j++) sum[j] = bias[k][column + j];
          for (int i = 0; i < layer.in; i++, w += V)
            for (int j = 0; j < W; j++) sum[j] += w[j] * x[i];
          for (int j = 0; j < W; j++) out[column + j] = sum[j];
        });
      if (layer.norm) normalise(layer.norm, theta, layer.out, (float*)out, (float*)slope.data());
      if (layer.activation >= 0) activate(layer.activation, out, slope.data(), V);
      x = (const float*)out;
    }
    return x;
  }

 private:
  template <int W, typename Body>
  static void with_width(int width, const Body& body) {
    if (width == W) body(std::integral_constant<int, W>());
    else if constexpr (W > 1) with_width<W - 1>(width, body);
  }
};

static inline const vec* forward(const Chain& chain, const float* theta, const vec* x, Scratch& s, int tiles = 1,
                                 int64_t x_tile = 0) {
  for (size_t k = 0; k < chain.layers.size(); k++) {
    const Layer& layer = chain.layers[k];
    vec* y = s.y[k].data();
    dense(theta + layer.weight, theta + layer.bias, layer.in, layer.out, x, y, tiles, x_tile);
    if (layer.norm)
      for (int64_t t = 0, at = 0; t < tiles; t++, at += layer.out)
        s.inverse[k][t] = normalise(layer.norm, theta, layer.out, y + at, &s.hat[k][at]);
    if (layer.activation >= 0) activate(layer.activation, y, s.slope[k].data(), tiles * layer.out);
    x = y, x_tile = layer.out;
  }
  return x;
}

// After `forward`: d(outputs) along a direction of the parameters (and of x, if dx is not null).
static inline const vec* forward_tangent(const Chain& chain, const float* theta, const float* direction, const vec* x,
                                         const vec* dx, Scratch& s, int tiles = 1, int64_t x_tile = 0) {
  for (size_t k = 0; k < chain.layers.size(); k++) {
    const Layer& layer = chain.layers[k];
    vec* t = s.tangent[k].data();
    dense(direction + layer.weight, direction + layer.bias, layer.in, layer.out, x, t, tiles, x_tile);
    if (dx) {
      vec* part = s.back[0].data();
      dense(theta + layer.weight, nullptr, layer.in, layer.out, dx, part, tiles, layer.in);
      for (int o = 0; o < tiles * layer.out; o++) t[o] += part[o];
    }
    if (layer.norm)
      normalise_tangent(layer.norm, theta, direction, layer.out, s.hat[k].data(), s.inverse[k].data(), t, tiles);
    if (layer.activation >= 0)
      for (int o = 0; o < tiles * layer.out; o++) t[o] *= s.slope[k][o];
    x = s.y[k].data(), x_tile = layer.out, dx = t;
  }
  return dx;
}

// After `forward`: adds the gradient of Σ dy·y to the shard `g`, or writes it (ZERO). Modifies dy. If dx is not null, adds
// the gradient of x to it.
static inline void backward(const Chain& chain, const float* theta, const vec* x, vec* dy, Scratch& s, float* g,
                            vec* dx, int tiles = 1, int64_t x_tile = 0, Start start = ADD) {
  for (int k = (int)chain.layers.size() - 1; k >= 0; k--) {
    const Layer& layer = chain.layers[k];
    if (layer.activation >= 0)
      for (int o = 0; o < tiles * layer.out; o++) dy[o] *= s.slope[k][o];
    if (layer.norm)
      normalise_back(layer.norm, theta, layer.out, s.hat[k].data(), s.inverse[k].data(), dy, g, tiles, start);
    outer(layer, dy, k ? s.y[k - 1].data() : x, s.rows, g + layer.shard, tiles, k ? layer.in : x_tile, start);
    if (k == 0 && !dx) return;
    vec* next = k == 0 ? dx : s.back[dy == s.back[0].data() ? 1 : 0].data();
    transposed(theta + layer.weight, layer.in, layer.out, dy, next, tiles, k == 0 ? ADD : ZERO);
    dy = next;
  }
}

}  // namespace surefoot
