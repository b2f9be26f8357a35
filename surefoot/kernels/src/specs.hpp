// The arguments for learning; surefoot/kernels/structs.py declares the same structures in Python.
#pragma once
#include <cstdint>

namespace surefoot {

constexpr int MOST_PARAMETERS = 8;  // of a surrogate

// −E[surrogate − kl_coef·KL] + value_coef·E[value loss] − entropy_coef·E[entropy]
struct LossSpec {
  int64_t surrogate /* its place in `Surrogates` */, huber, with_kl, with_value;
  double parameters[MOST_PARAMETERS] /* of the surrogate */, kl_coef, value_coef, value_clip /* < 0: none */, entropy_coef;
};

struct OptimizerSpec {
  int64_t adam, slices, begin[2], end[2];
  double rate[2], max_grad_norm /* < 0: none */;
};

// B samples; weight may be null. Rows of x: the network's inputs, then the action mask. With a memory (`Recurrent`) they
// are B / S steps of S sequences, time-major.
struct Batch {
  int64_t size;
  const float *x, *action, *log_prob, *params, *advantage, *target, *value, *weight;
  int64_t sequences;
  const uint8_t* start;  // [B / S, S]: the memory is reset before this step
  const float* memory;   // [S, M] before the first step
};

struct Sums {
  double surrogate, value_loss, entropy, kl, approx_kl, clipped, weight, ratio_error;
};

static inline void add(Sums& total, const Sums& s) {
  total.surrogate += s.surrogate, total.value_loss += s.value_loss, total.entropy += s.entropy, total.kl += s.kl;
  total.approx_kl += s.approx_kl, total.clipped += s.clipped, total.weight += s.weight;
  if (!(s.ratio_error <= total.ratio_error)) total.ratio_error = s.ratio_error;  // a maximum that keeps a NaN
}

// Callbacks if several processes learn together: called on the caller's thread, in every minibatch of `epochs`. Either may
// be null; a result other than 0 ends the call with an error.
struct Exchange {
  // After the backward pass, before the norm is clipped and the optimizer steps: may change the gradient in place.
  int (*gradient)(float* gradient, int64_t count, void* context);
  // Before the backward pass: Σ w·A, Σ w·A² and Σ w of the minibatch (without weights, w is 1), to be replaced by the sums
  // over all processes. The loss is then a mean over the samples of all processes, so their gradients must be summed.
  int (*moments)(double* sums, void* context);
  void* context;
};

}  // namespace surefoot
