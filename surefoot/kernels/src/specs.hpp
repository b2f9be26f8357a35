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

// If several processes learn together: what `epochs` needs to know of the others.
struct Exchange {
  // Called on the caller's thread in every minibatch, after the backward pass and before the norm is clipped and the
  // optimizer steps: may change the gradient in place. A result other than 0 ends the call with an error. May be null.
  int (*gradient)(float* gradient, int64_t count, void* context);
  // [minibatches of all epochs, 3]: Σ w·A, Σ w·A² and Σ w of each over all processes (without weights, w is 1). The loss
  // is then `processes` times this process's part of the mean over all samples, so the mean of all processes' gradients
  // is that of one process with all samples. Null: each process has its own mean.
  const double* moments;
  int64_t processes;
  void* context;
};

}  // namespace surefoot
