// Chains of linear layers on tiles of samples: forward, backward, and forward with a tangent.
//
// A row of a tile holds one unit of all its samples. Every sample goes through the same operations in the same order
// wherever it stands in whatever batch, so its result never depends on its neighbours.
#pragma once
#include <algorithm>
#include <vector>

#include "vec.hpp"

namespace surefoot {

struct Layer {
  int in, out;
  int64_t weight, bias;       // in the parameter vector; weights are [out][in]
  int64_t shard;              // in a shard's gradient: [out][stride], then the bias, [out][LANES]
  int stride;                 // in, rounded up to whole vectors
  int activation;             // −1: none
};

struct Chain {
  std::vector<Layer> layers;
  int in() const { return layers.front().in; }
  int out() const { return layers.back().out; }
};

template <int N>
static inline void dense_block(const float* w, const float* b, int in, const vec* x, vec* y) {
  vec sum[N];
  for (int j = 0; j < N; j++) sum[j] = all(b ? b[j] : 0.0f);
  for (int i = 0; i < in; i++) {
    vec xi = x[i];
    for (int j = 0; j < N; j++) sum[j] += w[(int64_t)j * in + i] * xi;
  }
  for (int j = 0; j < N; j++) y[j] = sum[j];
}

// y = W x + b; without b: y = W x.
static inline void dense(const float* w, const float* b, int in, int out, const vec* x, vec* y) {
  int o = 0;
  for (; o + BLOCK <= out; o += BLOCK) dense_block<BLOCK>(w + (int64_t)o * in, b ? b + o : nullptr, in, x, y + o);
  if (o + 4 <= out) dense_block<4>(w + (int64_t)o * in, b ? b + o : nullptr, in, x, y + o), o += 4;
  if (o + 2 <= out) dense_block<2>(w + (int64_t)o * in, b ? b + o : nullptr, in, x, y + o), o += 2;
  if (o < out) dense_block<1>(w + (int64_t)o * in, b ? b + o : nullptr, in, x, y + o);
}

template <int N>
static inline void transposed_block(const float* w, int in, int out, const vec* dy, vec* dx) {
  vec sum[N] = {};
  for (int o = 0; o < out; o++) {
    vec d = dy[o];
    for (int j = 0; j < N; j++) sum[j] += w[(int64_t)o * in + j] * d;
  }
  for (int j = 0; j < N; j++) dx[j] = sum[j];
}

// dx = Wᵀ dy.
static inline void transposed(const float* w, int in, int out, const vec* dy, vec* dx) {
  int i = 0;
  for (; i + BLOCK <= in; i += BLOCK) transposed_block<BLOCK>(w + i, in, out, dy, dx + i);
  if (i + 4 <= in) transposed_block<4>(w + i, in, out, dy, dx + i), i += 4;
  if (i + 2 <= in) transposed_block<2>(w + i, in, out, dy, dx + i), i += 2;
  if (i < in) transposed_block<1>(w + i, in, out, dy, dx + i);
}

template <int OUT, int COLUMNS>
static inline void outer_block(const vec* dy, const float* rows, int stride, float* g) {
  vec sum[OUT][COLUMNS];
  for (int o = 0; o < OUT; o++)
    for (int c = 0; c < COLUMNS; c++) sum[o][c] = *(const vec*)(g + (int64_t)o * stride + c * LANES);
  for (int l = 0; l < LANES; l++) {
    vec x[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) x[c] = *(const vec*)(rows + (int64_t)l * stride + c * LANES);
    for (int o = 0; o < OUT; o++) {
      float d = ((const float*)(dy + o))[l];
      for (int c = 0; c < COLUMNS; c++) sum[o][c] += d * x[c];
    }
  }
  for (int o = 0; o < OUT; o++)
    for (int c = 0; c < COLUMNS; c++) *(vec*)(g + (int64_t)o * stride + c * LANES) = sum[o][c];
}

template <int OUT>
static inline void outer_rows(const vec* dy, const float* rows, int stride, float* g) {
  int c = 0, columns = stride / LANES;
  constexpr int WIDE = OUTER_COLUMNS;
  for (; c + WIDE <= columns; c += WIDE) outer_block<OUT, WIDE>(dy, rows + c * LANES, stride, g + c * LANES);
  if (WIDE == 4 && c + 2 <= columns) outer_block<OUT, 2>(dy, rows + c * LANES, stride, g + c * LANES), c += 2;
  if (c < columns) outer_block<OUT, 1>(dy, rows + c * LANES, stride, g + c * LANES);
}

// As `outer`, of samples x that are already rows.
static inline void outer_given_rows(const Layer& layer, const vec* dy, const float* rows, float* g) {
  const int stride = layer.stride;
  int o = 0;
  for (; o + OUTER_ROWS <= layer.out; o += OUTER_ROWS)
    outer_rows<OUTER_ROWS>(dy + o, rows, stride, g + (int64_t)o * stride);
  if (o + 2 <= layer.out) outer_rows<2>(dy + o, rows, stride, g + (int64_t)o * stride), o += 2;
  if (o < layer.out) outer_rows<1>(dy + o, rows, stride, g + (int64_t)o * stride);
  vec* bias = (vec*)(g + (int64_t)layer.out * stride);
  for (o = 0; o < layer.out; o++) bias[o] += dy[o];
}

// g += Σ over the tile's samples of dy xᵀ, and behind it dy for the bias, lane by lane. `rows` is scratch: LANES × stride.
static inline void outer(const Layer& layer, const vec* dy, const vec* x, float* rows, float* g) {
  const int stride = layer.stride;
  for (int i = 0; i < stride; i += LANES) {
    vec square[LANES];
    if (i + LANES <= layer.in) {
      transpose(x + i, square);
    } else {
      vec padded[LANES] = {};
      std::copy(x + i, x + layer.in, padded);
      transpose(padded, square);
    }
    for (int l = 0; l < LANES; l++) *(vec*)(rows + (int64_t)l * stride + i) = square[l];
  }
  outer_given_rows(layer, dy, rows, g);
}

// What one thread needs for one chain: outputs and slopes of every layer, their tangents, and what flows back.
struct Scratch {
  std::vector<std::vector<vec>> y, slope, tangent;
  std::vector<vec> back[2];
  std::vector<float, std::allocator<float>> rows_storage;
  float* rows = nullptr;

  void prepare(const Chain& chain) {
    int widest = 1, stride = LANES;
    for (const Layer& layer : chain.layers) {
      y.emplace_back(layer.out), slope.emplace_back(layer.out), tangent.emplace_back(layer.out);
      widest = std::max(widest, std::max(layer.in, layer.out));
      stride = std::max(stride, layer.stride);
    }
    back[0].resize(widest), back[1].resize(widest);
    rows_storage.resize((size_t)LANES * stride + 16);
    rows = (float*)(((uintptr_t)rows_storage.data() + 63) & ~(uintptr_t)63);
  }
};

// Weights turned around, so that the units of one sample lie side by side: for so few samples that tiles would be empty.
struct Turned {
  std::vector<std::vector<vec>> weight, bias;  // of each layer [in][vectors of out], [vectors of out]
  std::vector<vec> y[2], slope;

  void turn(const Chain& chain, const float* theta) {
    size_t widest = 1;
    weight.clear(), bias.clear();
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

  // As `forward` of one sample, in the same order of operations. Returns the outputs.
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

static inline const vec* forward(const Chain& chain, const float* theta, const vec* x, Scratch& s) {
  for (size_t k = 0; k < chain.layers.size(); k++) {
    const Layer& layer = chain.layers[k];
    dense(theta + layer.weight, theta + layer.bias, layer.in, layer.out, x, s.y[k].data());
    if (layer.activation >= 0) activate(layer.activation, s.y[k].data(), s.slope[k].data(), layer.out);
    x = s.y[k].data();
  }
  return x;
}

// After `forward`: d(outputs) along a direction of the parameters (and of x, where dx is not null).
static inline const vec* forward_tangent(const Chain& chain, const float* theta, const float* direction, const vec* x,
                                         const vec* dx, Scratch& s) {
  for (size_t k = 0; k < chain.layers.size(); k++) {
    const Layer& layer = chain.layers[k];
    vec* t = s.tangent[k].data();
    dense(direction + layer.weight, direction + layer.bias, layer.in, layer.out, x, t);
    if (dx) {
      vec* part = s.back[0].data();
      dense(theta + layer.weight, nullptr, layer.in, layer.out, dx, part);
      for (int o = 0; o < layer.out; o++) t[o] += part[o];
    }
    if (layer.activation >= 0)
      for (int o = 0; o < layer.out; o++) t[o] *= s.slope[k][o];
    x = s.y[k].data(), dx = t;
  }
  return dx;
}

// After `forward`: adds the gradient of Σ dy·y to the shard `g`. dy is changed. Where dx is not null: adds Wᵀ… to it.
static inline void backward(const Chain& chain, const float* theta, const vec* x, vec* dy, Scratch& s, float* g,
                            vec* dx) {
  for (int k = (int)chain.layers.size() - 1; k >= 0; k--) {
    const Layer& layer = chain.layers[k];
    if (layer.activation >= 0)
      for (int o = 0; o < layer.out; o++) dy[o] *= s.slope[k][o];
    outer(layer, dy, k ? s.y[k - 1].data() : x, s.rows, g + layer.shard);
    if (k == 0 && !dx) return;
    vec* next = s.back[dy == s.back[0].data() ? 1 : 0].data();
    transposed(theta + layer.weight, layer.in, layer.out, dy, next);
    dy = next;
  }
  for (int i = 0; i < chain.in(); i++) dx[i] += dy[i];
}

}  // namespace surefoot
