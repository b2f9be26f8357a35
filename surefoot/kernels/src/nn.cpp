// The C interface of the engine: plain pointers, called through ctypes.
#include "entry.hpp"
#include "epochs.hpp"
#include "handle.hpp"
#include "inspect.hpp"
#include "layout.hpp"
#include "meeting.hpp"
#include "rollout.hpp"

using namespace surefoot;

#ifndef SUREFOOT_SOURCES
#define SUREFOOT_SOURCES ""
#endif

static Recurrent& net_of(void* handle) { return ((Handle*)handle)->engine(); }

extern "C" {

// The hash of the sources, passed by setup.py.
EXPORT const char* surefoot_sources() { return SUREFOOT_SOURCES; }
// The compiler: all round alike, but not always in the same order.
#if defined(__clang__)
EXPORT const char* surefoot_compiler() { return __VERSION__; }
#else
EXPORT const char* surefoot_compiler() { return "GCC " __VERSION__; }
#endif
// The layout of the structures shared with Python; null if out of memory.
EXPORT const char* sf_layout() {
  try {
    static const std::string text = layouts();
    return text.c_str();
  } catch (...) {
    return nullptr;
  }
}
// The surrogates with their numbers of parameters, in order; null if out of memory.
EXPORT const char* sf_surrogates() {
  try {
    static const std::string text = listed(Surrogates());
    return text.c_str();
  } catch (...) {
    return nullptr;
  }
}

// The message of this thread's last call that FAILED.
EXPORT const char* surefoot_error() { return last_error; }

// `numbers` and `ranges` as in `Description`.
EXPORT int sf_create(const int64_t* numbers, int64_t count, const float* ranges, int64_t range_count, int64_t size,
                     int64_t actor_size, int64_t first_trained, int64_t threads, void** made) {
  return guarded([&] {
    *made = new Handle({{numbers, numbers + count}, {ranges, ranges + range_count}, size, actor_size, first_trained,
                        (int)threads});
  });
}

EXPORT int sf_destroy(void* handle) {
  return guarded([&] { delete (Handle*)handle; });
}

// The number of threads that a call really uses.
EXPORT int sf_threads(void* handle, int64_t* threads) {
  return guarded([&] { *threads = net_of(handle).pool().size(); });
}

EXPORT int sf_tasks(void* handle, int64_t samples, int64_t* tasks) {
  return guarded([&] { *tasks = net_of(handle).mlps.num_tasks(samples); });
}

// start, before and after (which may be the same array as before): for a memory.
EXPORT int sf_act(void* handle, const float* theta, const float* x, const float* noise, int64_t samples,
                  const uint8_t* start, const float* before, float* after, float* params, float* action,
                  float* log_prob) {
  return guarded([&] {
    net_of(handle).act(theta, x, noise, samples, start, before, after, {params, action, log_prob});
  });
}

EXPORT int sf_act_stored(void* handle, const float* theta, const Stored* stored, int64_t t, int64_t first,
                         int64_t count) {
  return guarded([&] { act_stored(net_of(handle), theta, *stored, t, first, count); });
}

EXPORT int sf_values(void* handle, const float* theta, const Batch* batch, float* out) {
  return guarded([&] {
    Recurrent& net = net_of(handle);
    const Batch seen = net.remembered(theta, *batch);
    values(net.mlps, theta, seen.x, seen.size, out);
  });
}

EXPORT int sf_outputs(void* handle, const float* theta, const float* x, int64_t samples, float* out) {
  return guarded([&] { outputs(net_of(handle).mlps, theta, x, samples, out); });
}

EXPORT int sf_outputs_gradient(void* handle, const float* theta, const float* x, const float* d, int64_t samples,
                               float* g, float* dx) {
  return guarded([&] { outputs_gradient(net_of(handle).mlps, theta, x, d, samples, g, dx); });
}

EXPORT int sf_evaluate(void* handle, const float* theta, const LossSpec* spec, const Batch* batch, double* sums,
                       float* kl) {
  return guarded([&] {
    Recurrent& net = net_of(handle);
    const Sums found = evaluate(net.mlps, theta, *spec, net.remembered(theta, *batch), kl);
    std::memcpy(sums, &found, sizeof found);
  });
}

// `rows`, sorted: what is looked at more closely.
EXPORT int sf_inspect(void* handle, const float* theta, const LossSpec* spec, const Batch* batch, int64_t normalize,
                      const int64_t* rows, int64_t count, Inspected* found, float* kl, double* dimensions) {
  return guarded([&] {
    Recurrent& net = net_of(handle);
    *found = inspect(net.mlps, theta, *spec, net.remembered(theta, *batch), normalize != 0, rows, count, kl, dimensions);
  });
}

// Of `total`, the sum of some gradients, and of where the parameters went: total·(now − start), ‖total‖², Σ squares.
EXPORT int sf_gradient_look(const float* total, const float* squares, const float* start, const float* now, int64_t size,
                            double* out) {
  return guarded([&] {
    double along = 0.0, norm = 0.0, sum = 0.0;
    for (int64_t i = 0; i < size; i++) {
      along += (double)total[i] * ((double)now[i] - start[i]), norm += (double)total[i] * total[i];
      sum += squares[i];
    }
    out[0] = along, out[1] = norm, out[2] = sum;
  });
}

EXPORT int sf_gradient(void* handle, const float* theta, const LossSpec* spec, const Batch* batch, const int64_t* index,
                       int64_t samples, int64_t normalize, float* g, double* sums) {
  return guarded([&] {
    const Sums found = gradient(net_of(handle), theta, *spec, *batch, index, samples, normalize != 0, g);
    std::memcpy(sums, &found, sizeof found);
  });
}

EXPORT int sf_epochs(void* handle, float* theta, float* g, float* first, float* second, int64_t* steps,
                     const LossSpec* spec, const OptimizerSpec* optimizer, const Batch* batch, const int64_t* order,
                     const int64_t* begins, int64_t epochs, int64_t minibatches, int64_t normalize,
                     const Exchange* exchange, double* history, float* total) {
  return guarded([&] {
    surefoot::epochs(net_of(handle), {theta, g, first, second, steps}, *spec, *optimizer, *batch,
                     {order, begins, epochs, minibatches, normalize != 0}, exchange, history, total);
  });
}

EXPORT int sf_fisher_product(void* handle, const float* theta, const float* direction, const Batch* batch,
                             float* product) {
  return guarded([&] { net_of(handle).fisher_product(theta, direction, *batch, product); });
}

EXPORT int sf_rollout(void* handle, const float* theta, Rollout* rollout, int64_t* used) {
  return guarded([&] { *used = Rolling(net_of(handle), theta, *rollout).run(); });
}

// y_t = x_t + decay_t·y_{t+1} over [T, N], rounded once, like PyTorch's addcmul if the processor supports it.
EXPORT int sf_reverse_scan(const float* x, const float* decay, float* y, int64_t steps, int64_t envs) {
  return guarded([&] {
    for (int64_t n = 0; n < envs; n++) y[(steps - 1) * envs + n] = x[(steps - 1) * envs + n];
    for (int64_t t = steps - 2; t >= 0; t--)
      for (int64_t n = 0; n < envs; n++) {
        const int64_t i = t * envs + n;
        y[i] = __builtin_fmaf(decay[i], y[i + envs], x[i]);
      }
  });
}

// GAE(λ) and the critic's targets, V + GAE(value_lambda), over [T, N]; segment 0: sums are not cut into segments.
EXPORT int sf_advantages(const float* reward, const float* value, const float* next_value, const uint8_t* terminated,
                         const uint8_t* truncated, const uint8_t* valid, int64_t steps, int64_t envs, double gamma,
                         double lambda, double value_lambda, int64_t segment, float* advantage, float* target) {
  return guarded([&] {
    const float g = (float)gamma, decay = (float)(gamma * lambda), value_decay = (float)(gamma * value_lambda);
    for (int64_t n = 0; n < envs; n++) {
      float a = 0.0f, b = 0.0f;
      for (int64_t t = steps - 1; t >= 0; t--) {
        const int64_t i = t * envs + n;
        const bool cut = terminated[i] || truncated[i] || (segment && t % segment == segment - 1);
        const float next = terminated[i] ? 0.0f : next_value[i];
        const float delta = valid[i] ? reward[i] + g * next - value[i] : 0.0f;
        a = cut ? delta : delta + decay * a;
        b = cut ? delta : delta + value_decay * b;
        advantage[i] = a, target[i] = value[i] + b;
      }
    }
  });
}

EXPORT int sf_explained_variance(const float* value, const float* target, const float* weight, int64_t samples,
                                 double* out) {
  return guarded([&] { *out = explained_variance(value, target, weight, samples); });
}

// Mean and population variance of each column of [rows, columns], in two passes.
EXPORT int sf_moments(const float* x, int64_t rows, int64_t columns, double* mean, double* var) {
  return guarded([&] {
    for (int64_t j = 0; j < columns; j++) mean[j] = var[j] = 0.0;
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) mean[j] += x[i * columns + j];
    for (int64_t j = 0; j < columns; j++) mean[j] /= rows;
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) {
        const double d = x[i * columns + j] - mean[j];
        var[j] += d * d;
      }
    for (int64_t j = 0; j < columns; j++) var[j] /= rows;
  });
}

// G_t = γ·G_{t−1} + r_t of each env over [T, N]; restarts after an end and skips invalid steps. `running` is G before and
// after.
EXPORT int sf_running_returns(const double* reward, const uint8_t* done, const uint8_t* valid, int64_t steps,
                              int64_t envs, double gamma, double* running, double* out) {
  return guarded([&] {
    for (int64_t t = 0; t < steps; t++)
      for (int64_t n = 0; n < envs; n++) {
        const int64_t i = t * envs + n;
        if (valid[i]) running[n] = gamma * running[n] + reward[i];
        out[i] = running[n];
        if (done[i]) running[n] = 0.0;
      }
  });
}

// `found`: a `Met`, or the number of a process that has gone.
EXPORT int sf_meet(void* places, int64_t size, int64_t own, int64_t round, double spin, double limit, int64_t* found) {
  return guarded([&] { *found = meet((Place*)places, size, own, round, spin, limit); });
}

EXPORT int sf_go(void* places, int64_t own) {
  return guarded([&] { go((Place*)places, own); });
}

// The numbers that a `kept` buffer of sf_recur must hold; it must start at a multiple of 64 bytes.
EXPORT int sf_recur_kept(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences, int64_t* out) {
  return guarded([&] {
    int64_t kept = 0;
    groups_of({lstm != 0, (int)hidden, steps, sequences, nullptr, nullptr, nullptr}, &kept);
    *out = kept * LANES;
  });
}

EXPORT int sf_recur(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences, const float* weight,
                    const float* bias, const uint8_t* start, const float* x, const float* state, float* out,
                    float* after, float* kept) {
  return guarded([&] {
    const Recurrence r{lstm != 0, (int)hidden, steps, sequences, weight, bias, start};
    const std::vector<Group> groups = groups_of(r);
    Given given(r, x);
    Packed packed;
    if (!groups.back().lanes) packed.pack(r);
    for (const Group& group : groups) recur(r, given, packed, group, state, out, hidden, after, (vec*)kept);
  });
}

EXPORT int sf_recur_back(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences, const float* weight,
                         const float* bias, const uint8_t* start, const float* kept, const float* d_out,
                         const float* d_after, float* dx, float* d_state, float* d_weight, float* d_bias) {
  return guarded([&] {
    const Recurrence r{lstm != 0, (int)hidden, steps, sequences, weight, bias, start};
    const std::vector<Group> groups = groups_of(r);
    const Layer layer = r.layer();
    Packed packed;
    if (!groups.back().lanes) packed.pack(r);
    std::vector<float> scratch((size_t)LANES * layer.stride + 16), sums((size_t)(layer.stride + LANES) * layer.out + 16);
    float* g = aligned(sums);
    for (const Group& group : groups)
      recur_back(r, packed, group, (const vec*)kept, d_out, d_after, dx, d_state, aligned(scratch), g);
    for (int o = 0; o < layer.out; o++) {
      std::memcpy(d_weight + o * hidden, g + (int64_t)o * layer.stride, sizeof(float) * hidden);
      d_bias[o] = sum_of(*(const vec*)(g + (int64_t)layer.out * layer.stride + (int64_t)o * LANES));
    }
  });
}

}  // extern "C"
