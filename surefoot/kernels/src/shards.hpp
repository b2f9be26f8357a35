// Shards: a batch is split into a few, depending only on its size. Each has its own gradient, and these are summed in
// order, so results do not depend on the number of threads.
#pragma once
#include <algorithm>
#include <vector>

#include "head_parts.hpp"
#include "net.hpp"
#include "pool.hpp"
#include "ranks.hpp"

// One copy of a function for all its callers: specialised copies might round differently.
#if defined(__clang__)
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

namespace surefoot {

class Shards {
 public:
  static constexpr int MOST = 8;
  int64_t size = 0;  // numbers in each
  Ranks ranks;

  // Reserves room for the gradient of a chain, or of a part's log_std. Parameters before `first_trained` have no optimizer.
  void lay(Chain& chain, int64_t first_trained, bool of_critic = false) {
    for (Layer& layer : chain.layers) {
      layer.stride = (layer.in + LANES - 1) / LANES * LANES;
      layer.shard = size;
      size += (int64_t)(layer.stride + LANES) * layer.out;
      const int most = 16;  // rows per piece: gives enough pieces for all threads
      for (int row = 0; row < layer.out; row += most)
        pieces_.push_back({layer.shard + (int64_t)row * layer.stride, layer.weight + (int64_t)row * layer.in,
                           std::min(most, layer.out - row), layer.in, layer.stride, false, layer.weight >= first_trained,
                           of_critic});
      per_lane(layer.shard + (int64_t)layer.out * layer.stride, layer.bias, layer.out, first_trained, of_critic);
      if (!layer.norm) continue;
      layer.norm.shard = size;
      size += (int64_t)2 * LANES * layer.out;
      per_lane(layer.norm.shard, layer.norm.gain, layer.out, first_trained, of_critic);
      per_lane(layer.norm.shard + (int64_t)layer.out * LANES, layer.norm.bias, layer.out, first_trained, of_critic);
    }
  }
  void lay(Part& part, int64_t first_trained) {
    part.shard = size;
    size += (part.size + LANES - 1) / LANES * LANES;
    if (part.log_std >= 0)
      pieces_.push_back({part.shard, part.log_std, 1, part.size, 0, false, part.log_std >= first_trained, false});
  }
  // Call once all room is reserved.
  void allocate() {
    storage_.resize((size_t)size * MOST + 16);
    first_ = aligned(storage_);
    squares_.assign(pieces_.size(), 0.0);
  }

  float* at(int shard) const { return first_ + shard * size; }

  // The number of shards for this many samples: few enough to sum cheaply, enough to keep as many threads busy.
  int count(int64_t samples) const {
    const int64_t each = ranks.apart ? samples / 4 : samples;
    const int found = each < 32 ? 1 : each < 512 ? 2 : each < 2048 ? 4 : MOST;
    return ranks.apart && samples < 512 ? 1 : found;
  }

  // Sums the shards of this many samples into g; each rank does its own pieces. Ends with a barrier.
  void add_up(int rank, float* g, int64_t samples, Barrier& barrier) {
    const int shards = count(samples);
    each_of(rank, [&](const Piece& p) {
      return p.lanes ? add_lanes(p, shards, g + p.to) : add_rows(p, first_ + p.from, p.stride, shards, g + p.to);
    });
    barrier.wait();
  }
  // Recomputes the squares after g has changed, in the same order, so that they are the same if it has not.
  void measure(int rank, float* g, Barrier& barrier) {
    each_of(rank, [&](const Piece& p) {
      return p.lanes ? square_of_units(g + p.to, p.rows) : add_rows(p, g + p.to, p.columns, 1, g + p.to);
    });
    barrier.wait();
  }
  // The squared norm of the trained part of g, summed in the order of the layers.
  double square() const {
    double sum = 0.0;
    for (double s : squares_) sum += s;
    return sum;
  }

 private:
  // The position of a layer's rows in a shard and in the parameter vector.
  struct Piece {
    int64_t from, to;
    int rows, columns, stride;
    bool lanes /* one number per unit */, trained, critic;
  };

  void per_lane(int64_t from, int64_t to, int units, int64_t first_trained, bool of_critic) {
    pieces_.push_back({from, to, units, 1, LANES, true, to >= first_trained, of_critic});
  }

  template <typename Body>
  void each_of(int rank, const Body& body) {
    for (int at = 0; at < (int)pieces_.size(); at++) {
      if (!ranks.mine(rank, pieces_[at].critic, at)) continue;
      const double square = body(pieces_[at]);
      squares_[at] = pieces_[at].trained ? square : 0.0;
    }
  }

  // to = Σ over the shards, the first of which begins at `from`; returns its squared norm.
  ONE_COPY double add_rows(const Piece& p, const float* from, int64_t stride, int shards, float* to) const {
    vec squares{};
    float rest = 0.0f;
    for (int row = 0; row < p.rows; row++, from += stride, to += p.columns) {
      int i = 0;
      for (; i + LANES <= p.columns; i += LANES) {
        vec x;
        std::memcpy(&x, from + i, sizeof x);
        for (int shard = 1; shard < shards; shard++) x += *(const vec*)(from + shard * size + i);
        std::memcpy(to + i, &x, sizeof x);
        squares += x * x;
      }
      for (; i < p.columns; i++) {
        float x = from[i];
        for (int shard = 1; shard < shards; shard++) x += from[shard * size + i];
        to[i] = x;
        rest += x * x;
      }
    }
    return sum_of_double(squares) + rest;
  }

  // The same for biases and the like, which are kept per lane: sums the lanes of LANES units at a time.
  double add_lanes(const Piece& p, int shards, float* to) const {
    for (int row = 0; row < p.rows; row += LANES) {
      const int here = std::min(LANES, p.rows - row);
      vec units[LANES] = {}, lanes[LANES];
      for (int i = 0; i < here; i++) {
        const float* from = first_ + p.from + (int64_t)(row + i) * LANES;
        units[i] = *(const vec*)from;
        for (int shard = 1; shard < shards; shard++) units[i] += *(const vec*)(from + shard * size);
      }
      transpose(units, lanes);
      for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
      std::memcpy(to + row, &lanes[0], sizeof(float) * here);
    }
    return square_of_units(to, p.rows);
  }
  ONE_COPY static double square_of_units(const float* units, int count) {
    double sum = 0.0;
    for (int at = 0; at < count; at += LANES) {
      vec x{};
      std::memcpy(&x, units + at, sizeof(float) * std::min(LANES, count - at));
      sum += sum_of_double(x * x);
    }
    return sum;
  }

  std::vector<Piece> pieces_;
  std::vector<double> squares_;  // of the pieces
  std::vector<float> storage_;
  float* first_ = nullptr;
};

}  // namespace surefoot

#undef ONE_COPY
