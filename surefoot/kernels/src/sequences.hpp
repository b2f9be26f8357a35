// A copy of some sequences of a batch, in time-major order: a minibatch for a policy with memory.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "specs.hpp"

namespace surefoot {

// Numbers in a row of each array.
struct Columns {
  int x, action, params, state;
};

class Sequences {
 public:
  // Allocates room for `units` sequences of such a batch.
  void prepare(const Batch& batch, int64_t units, const Columns& columns) {
    const int widths[FIELDS] = {columns.x, columns.action, 1, columns.params, 1, 1, 1, 1};
    std::copy_n(widths, FIELDS, widths_), state_ = columns.state;
    const int64_t samples = batch.size / batch.sequences * units;
    for (int i = 0; i < FIELDS; i++) taken_[i].resize(batch.*fields[i] ? samples * widths_[i] : 0);
    started_.resize(samples), states_.resize(units * state_);
  }

  // Copies the sequences at `index`; each rank copies its part.
  Batch take(int rank, int ranks, const Batch& batch, const int64_t* index, int64_t units) {
    const int64_t steps = batch.size / batch.sequences, S = batch.sequences;
    const int64_t first = steps * rank / ranks, end = steps * (rank + 1) / ranks;
    Batch taken = batch;
    for (int i = 0; i < FIELDS; i++) {
      const float* from = batch.*fields[i];
      if (!from) continue;
      taken.*fields[i] = taken_[i].data();
      for (int64_t t = first; t < end; t++)
        for (int64_t n = 0; n < units; n++)
          std::memcpy(taken_[i].data() + (t * units + n) * widths_[i], from + (t * S + index[n]) * widths_[i],
                      sizeof(float) * widths_[i]);
    }
    for (int64_t t = first; t < end; t++)
      for (int64_t n = 0; n < units; n++) started_[t * units + n] = batch.start[t * S + index[n]];
    for (int64_t n = 0; rank == 0 && n < units; n++)
      std::memcpy(states_.data() + n * state_, batch.memory + index[n] * state_, sizeof(float) * state_);
    taken.size = steps * units, taken.sequences = units, taken.start = started_.data(), taken.memory = states_.data();
    return taken;
  }

 private:
  static constexpr int FIELDS = 8;
  static constexpr const float* Batch::*fields[FIELDS] = {&Batch::x,      &Batch::action,    &Batch::log_prob,
                                                          &Batch::params, &Batch::advantage, &Batch::target,
                                                          &Batch::value,  &Batch::weight};
  int widths_[FIELDS] = {}, state_ = 0;
  std::vector<float> taken_[FIELDS], states_;
  std::vector<uint8_t> started_;
};

}  // namespace surefoot
