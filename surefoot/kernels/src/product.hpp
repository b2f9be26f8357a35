// The one matrix product behind all layers, forward and backward:
//
//     out[c][r] (+)= Σ_k a(r, k)·in[c][k]        a: numbers; in and out: vectors
//
//                      a(r, k)                        in[c][k]                       out[c][r]
//     forward          weight[r][k]                   unit k of tile c               unit r of tile c
//     input gradient   weight[k][r]                   d(output k) of tile c          d(input r) of tile c
//     weight gradient  d(output r) of sample k        inputs c·LANES… of sample k    d(weight[r][c·LANES…])
//
// Every sum runs in the order of k, one multiply-add after the other, however the product is split. So a sample's result
// is the same in any batch and group, and splitting only affects speed.
//
// Measured on one core of a Zen 4 with a peak of 118 GFLOP/s (forward, input gradient, weight gradient with transpose):
//
//                     64 wide         256 wide         1024 wide
//     one column      113 115  91     114 115 100      112  98  87     AVX-512: 8 × 1 sums, tile after tile
//     four columns    110 110 100     114 113 108      112 110 108              6 × 4
//     one column       64  99  68      65  92  77       59  48  42     AVX2:    8 × 1
//     four columns    110 108  96     112 110 108      100  85 100              3 × 4
//
// With one column, every multiply-add needs its own broadcast, which is free only with AVX-512; with four columns, one
// broadcast serves four. Also, all tiles of a group use a weight while it is in cache, so wide layers are not fetched again
// for each tile. Packing the numbers into panels first gained nothing for any of the three.
#pragma once
#include <algorithm>

#include "vec.hpp"

namespace surefoot {

// a(r, k), k = LANES·q + l: at[r·row + q·run + l·step]
struct Numbers {
  const float* at;
  int64_t row, step, run;
};
struct Vectors {  // in[c][k]: at[c·column + k·step]
  const vec* at;
  int64_t step, column;
};
struct Sum {  // out[c][r]: at[c·column + r·row]
  vec* at;
  int64_t row, column;
};

// Columns of a register tile, and the rows for each number of columns: as many sums as fit into the registers.
constexpr int COLUMNS = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int ROWS[] = {0, 8, 8, 6, 6};  // of 32 registers
#else
constexpr int ROWS[] = {0, 8, 6, 4, 3};  // of 16
#endif
// Rows and length of k per block, chosen so that their numbers (96 KiB) stay in L2 while the columns pass by. At 1024
// units, the input gradient, which walks over columns of the weights, was 2 to 16 % slower with all rows at once; narrower
// layers are not affected.
constexpr int K_BLOCK = 256, ROW_BLOCK = 96;

#if defined(__clang__)
#define SUREFOOT_ONE_LOOP __attribute__((noinline))
#else
#define SUREFOOT_ONE_LOOP __attribute__((noinline, optimize("no-version-loops-for-strides")))
#endif

enum Start { ZERO, BIAS, ADD };  // initial value of out: zero, one number per row, or its content

// R × C sums that never leave the registers; they start with the content of out, or with one number per row. Without the
// attribute, GCC makes another version of every loop for a stride of 1 and passes the sums between the versions through
// memory (10 % slower at 64 rows).
template <int R, int C, bool ADDS>
SUREFOOT_ONE_LOOP
static void register_tile(const Numbers& a, const Vectors& in, const Sum& out, int64_t length, const float* bias) {
  vec sum[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sum[r][c] = ADDS ? out.at[r * out.row + c * out.column] : all(bias[r]);
  const vec* x = in.at;
  const float* run = a.at;
  do {  // do-while, because otherwise GCC moves all sums through memory before and after
    const float* w = run;
    int64_t l = std::min<int64_t>(length, LANES);
    do {
      vec column[C];
      for (int c = 0; c < C; c++) column[c] = x[c * in.column];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const vec number = all(w[r * a.row]);
        for (int c = 0; c < C; c++) sum[r][c] += number * column[c];
      }
      w += a.step, x += in.step;
    } while (--l);
    run += a.run, length -= LANES;
  } while (length > 0);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) out.at[r * out.row + c * out.column] = sum[r][c];
}

// A register tile of R rows or fewer.
template <int R, int C>
static inline void few_rows(int rows, const Numbers& a, const Vectors& in, const Sum& out, int64_t length,
                            const float* bias) {
  if (rows == R) (bias ? register_tile<R, C, false> : register_tile<R, C, true>)(a, in, out, length, bias);
  else if constexpr (R > 1) few_rows<R - 1, C>(rows, a, in, out, length, bias);
}
// All rows of C columns or fewer: whole register tiles, then one for the remainder. bias null: adds to out.
template <int C>
static inline void few_columns(int columns, int rows, Numbers a, const Vectors& in, Sum out, int64_t length,
                               const float* bias, int bias_step) {
  if (columns != C) {
    if constexpr (C > 1) few_columns<C - 1>(columns, rows, a, in, out, length, bias, bias_step);
    return;
  }
  constexpr int R = ROWS[C];
  for (; rows > 0; rows -= R, a.at += R * a.row, out.at += R * out.row, bias += bias_step * R)
    few_rows<R, C>(std::min(rows, R), a, in, out, length, bias);
}

static inline void product(const Numbers& a, const Vectors& in, const Sum& out, int rows, int columns, int64_t length,
                           Start start, const float* bias = nullptr) {
  static const float zeros[BLOCK] = {};
  if (!length && start != ADD)  // no inputs
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < columns; c++) out.at[r * out.row + c * out.column] = all(start == BIAS ? bias[r] : 0.0f);
  for (int64_t k = 0; k < length; k += K_BLOCK)
    for (int r = 0; r < rows; r += ROW_BLOCK)
      for (int c = 0; c < columns; c += COLUMNS)
        few_columns<COLUMNS>(std::min(columns - c, COLUMNS), std::min(rows - r, ROW_BLOCK),
                             {a.at + k / LANES * a.run + r * a.row, a.row, a.step, a.run},
                             {in.at + k * in.step + c * in.column, in.step, in.column},
                             {out.at + r * out.row + c * out.column, out.row, out.column},
                             std::min<int64_t>(length - k, K_BLOCK),
                             k || start == ADD ? nullptr : start == BIAS ? bias + r : zeros, start == BIAS && !k);
}

}  // namespace surefoot
