// Parts of a recurrence over time: sizes, grouping of sequences, and the layout of units and kept values.
#pragma once
#include <vector>

#include "net.hpp"
#include "tiles.hpp"

namespace surefoot {

struct Recurrence {
  bool lstm;
  int hidden;                  // H
  int64_t steps, sequences;    // L, S
  const float *weight, *bias;  // [G·H, H] and [G·H], G = 3 (r, z, n) or 4 (i, f, g, o)
  const uint8_t* start;        // [L, S]: the memory is reset before this step
  int gates() const { return (lstm ? 4 : 3) * hidden; }
  int state() const { return (lstm ? 2 : 1) * hidden; }
  int vectors() const { return (hidden + LANES - 1) / LANES; }
  // Kept per unit and step for the backward pass: gates, then q (GRU) or old c and tanh c (LSTM), and the old h.
  int kept() const { return lstm ? 7 : 5; }
  Layer layer() const { return {hidden, gates(), 0, 0, 0, vectors() * LANES, -1}; }
};

// Sequences processed together: one per lane, or one, two or four with units in the lanes.
struct Group {
  int64_t begin;
  int count;
  bool lanes;
  int64_t kept;  // offset of its kept values, in vectors
};

static inline std::vector<Group> groups_of(const Recurrence& r, int64_t* kept = nullptr) {
  std::vector<Group> found;
  int64_t at = 0;
  for (int64_t begin = 0; begin < r.sequences;) {
    const int64_t left = r.sequences - begin;
    // One per lane if most lanes are used, and if units would not fill them or there is enough work for all threads.
    const bool lanes = 4 * left >= 3 * LANES && (r.hidden < LANES || r.sequences >= 4 * LANES);
    const int count = lanes ? (int)std::min<int64_t>(LANES, left) : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    found.push_back({begin, count, lanes, at});
    at += r.steps * r.kept() * (lanes ? r.hidden : count * r.vectors());
    begin += count;
  }
  if (kept) *kept = at;
  return found;
}

// The kept values of unit i of a step, gathered from and scattered to rows of `H` units.
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

}  // namespace surefoot
