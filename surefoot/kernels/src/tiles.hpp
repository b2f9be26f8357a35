// Tiles: transposes rows of samples so that each lane of a register holds one sample, and back.
#pragma once
#include <algorithm>

#include "vec.hpp"

namespace surefoot {

static inline int64_t num_tiles(int64_t samples) { return (samples + LANES - 1) / LANES; }
static inline int in_tile(int count, int tile) { return std::min(LANES, count - tile * LANES); }

// to[i][l] = row(l)[i]; beyond `count` rows, the last one is repeated.
template <typename Row>
static inline void load_lanes(int columns, int count, const Row& row, vec* to) {
  int i = 0;
  for (; i + LANES <= columns; i += LANES) {
    vec square[LANES];
    for (int l = 0; l < LANES; l++) std::memcpy(&square[l], row(l < count ? l : count - 1) + i, sizeof(vec));
    transpose(square, to + i);
  }
  if (i == columns) return;
  for (int l = 0; l < LANES; l++) {
    const float* from = row(l < count ? l : count - 1);
    for (int j = i; j < columns; j++) ((float*)(to + j))[l] = from[j];
  }
}

// Rows that are `stride` numbers apart.
static inline void load_rows(const float* rows, int64_t stride, int columns, int count, vec* to) {
  load_lanes(columns, count, [&](int l) { return rows + l * stride; }, to);
}
// The rows at `index`.
static inline void load(const float* rows, int64_t stride, int columns, const int64_t* index, int count, vec* to) {
  load_lanes(columns, count, [&](int l) { return rows + index[l] * stride; }, to);
}
static inline vec load(const float* column, const int64_t* index, int count) {
  vec x;
  for (int l = 0; l < LANES; l++) x[l] = column[index[l < count ? l : count - 1]];
  return x;
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

}  // namespace surefoot
