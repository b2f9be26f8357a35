// Acting straight on the arrays of a rollout, for envs that are stepped elsewhere: one call for each step.
#pragma once
#include "recurrent.hpp"

namespace surefoot {

// Observations within ±10 around a normaliser's shift, in units of its scale.
static inline void normalize_rows(const float* obs, int64_t rows, int64_t numbers, const float* shift,
                                  const float* scale, float* out) {
  for (int64_t n = 0; n < rows; n++)
    for (int64_t i = 0; i < numbers; i++) {
      const float x = (obs[n * numbers + i] - shift[i]) * scale[i];
      out[n * numbers + i] = x < -10.0f ? -10.0f : x > 10.0f ? 10.0f : x;
    }
}

// Arrays over time are [T, N, …].
struct Stored {
  int64_t envs, numbers;       // N, and numbers in an observation
  int64_t discrete;            // actions are int64 choices; otherwise float32
  const float *shift, *scale;  // of a normaliser; null: none
  const float *noise, *obs;
  const uint8_t* start;        // an episode begins; null: no memory
  float* memory;               // [N, M], updated
  float* params;               // filled, as are the next two
  void* action;
  float* log_prob;
  float *inputs, *drawn;       // scratch: [N, numbers] and [N, numbers in an action]
};

// Step t of the envs from `first` on.
static inline void act_stored(Recurrent& net, const float* theta, const Stored& s, int64_t t, int64_t first,
                              int64_t count) {
  const Head& head = net.mlps.head;
  const int64_t at = t * s.envs + first;
  const float* x = s.obs + at * s.numbers;
  if (s.shift) {
    normalize_rows(x, count, s.numbers, s.shift, s.scale, s.inputs);
    x = s.inputs;
  }
  float* memory = s.memory ? s.memory + first * net.state() : nullptr;
  float* rows = s.discrete ? s.drawn : (float*)s.action + at * head.actions;
  net.act(theta, x, s.noise + at * head.noises, count, s.start ? s.start + at : nullptr, memory, memory,
          {s.params + at * head.params, rows, s.log_prob + at});
  if (!s.discrete) return;
  int64_t* action = (int64_t*)s.action + at * head.actions;
  for (int64_t i = 0; i < count * head.actions; i++) action[i] = (int64_t)rows[i];
}

}  // namespace surefoot
