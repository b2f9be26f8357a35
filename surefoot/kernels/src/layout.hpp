// The memory layout of the structures shared with Python, as text; surefoot/kernels/structs.py compares it.
#pragma once
#include <cstddef>
#include <string>

#include "inspect.hpp"
#include "rollout.hpp"

namespace surefoot {

__attribute__((noinline)) static std::string field(const char* name, size_t offset, size_t size) {
  return std::string(name) + ":" + std::to_string(offset) + "+" + std::to_string(size) + " ";
}

#define FIELD(name) text += field(#name, offsetof(Shared, name), sizeof(Shared::name));
#define SHARED(Struct, FIELDS)                      \
  {                                                 \
    using Shared = Struct;                          \
    text += #Struct "{";                            \
    FIELDS text.back() = '}';                       \
    text += std::to_string(sizeof(Shared)) + ";";   \
  }

static inline std::string layouts() {
  std::string text;
  SHARED(LossSpec, FIELD(surrogate) FIELD(huber) FIELD(with_kl) FIELD(with_value) FIELD(parameters) FIELD(kl_coef)
                       FIELD(value_coef) FIELD(value_clip) FIELD(entropy_coef))
  SHARED(OptimizerSpec, FIELD(adam) FIELD(slices) FIELD(begin) FIELD(end) FIELD(rate) FIELD(max_grad_norm))
  SHARED(Batch, FIELD(size) FIELD(x) FIELD(action) FIELD(log_prob) FIELD(params) FIELD(advantage) FIELD(target)
                    FIELD(value) FIELD(weight) FIELD(sequences) FIELD(start) FIELD(memory))
  SHARED(Sums, FIELD(surrogate) FIELD(value_loss) FIELD(entropy) FIELD(kl) FIELD(approx_kl) FIELD(clipped)
                   FIELD(weight) FIELD(ratio_error))
  SHARED(Inspected, FIELD(weight) FIELD(kl) FIELD(entropy) FIELD(before) FIELD(after) FIELD(ratio) FIELD(ratio_squared)
                        FIELD(positive) FIELD(negative) FIELD(clipped_positive) FIELD(clipped_negative)
                        FIELD(ratio_p5) FIELD(ratio_p50) FIELD(ratio_p95) FIELD(ratio_max) FIELD(explained_variance)
                        FIELD(dead_units) FIELD(effective_rank))
  SHARED(Exchange, FIELD(gradient) FIELD(moments) FIELD(processes) FIELD(context))
  SHARED(Finished, FIELD(env) FIELD(length) FIELD(truncated) FIELD(ret))
  SHARED(Rollout, FIELD(steps) FIELD(envs) FIELD(numbers) FIELD(step) FIELD(handle) FIELD(discrete) FIELD(low)
                      FIELD(high) FIELD(episodes) FIELD(shift) FIELD(scale) FIELD(noise) FIELD(obs) FIELD(params)
                      FIELD(action) FIELD(log_prob) FIELD(reward) FIELD(terminated) FIELD(truncated) FIELD(valid)
                      FIELD(ret) FIELD(length) FIELD(num_final) FIELD(num_finished) FIELD(final_index)
                      FIELD(final_obs) FIELD(finished) FIELD(start) FIELD(memory) FIELD(final_memory))
  SHARED(Stored, FIELD(envs) FIELD(numbers) FIELD(discrete) FIELD(shift) FIELD(scale) FIELD(noise) FIELD(obs)
                     FIELD(start) FIELD(memory) FIELD(params) FIELD(action) FIELD(log_prob) FIELD(inputs) FIELD(drawn))
  return text;
}

#undef SHARED
#undef FIELD

}  // namespace surefoot
