// The C interface of the engine: plain pointers, no ownership, called through ctypes.
#include <new>

#include "recurrent.hpp"
#include "rollout.hpp"

using namespace surefoot;

#define EXPORT __attribute__((visibility("default")))

#ifndef SUREFOOT_SOURCES
#define SUREFOOT_SOURCES ""
#endif

extern "C" {

// What it was built from; setup.py says it.
EXPORT const char* surefoot_sources() { return SUREFOOT_SOURCES; }

// description: inputs, masks, activation; the memory: how many layers (0 or 2), whether it is an LSTM, and for each layer
// in, out, weight, bias; then three chains (trunk, actor, critic), each: count of layers, and for each
// in, out, weight, bias, activated; then the parts: count, and for each kind, size, output, param, action, noise, mask,
// log_std, squashed. `ranges`: of each part its log_scale and, where its mean is squashed, centres and halves.
EXPORT void* sf_create(const int64_t* d, const float* ranges, int64_t size, int64_t actor_size, int64_t first_trained,
                int64_t threads) {
  Recurrent* engine = new (std::nothrow) Recurrent;
  if (!engine) return nullptr;
  engine->inputs = (int)*d++;
  engine->head.masks = (int)*d++;
  engine->width = engine->inputs + engine->head.masks;
  const int activation = (int)*d++;
  int64_t of_memory = *d++;
  engine->lstm = *d++ != 0;
  for (; of_memory; of_memory--, d += 4)
    engine->memory.layers.push_back({(int)d[0], (int)d[1], d[2], d[3], 0, 0, -1});
  Chain* chains[3] = {&engine->trunk, &engine->actor, &engine->critic};
  for (Chain* chain : chains) {
    for (int64_t left = *d++; left; left--, d += 5)
      chain->layers.push_back({(int)d[0], (int)d[1], d[2], d[3], 0, 0, d[4] ? activation : -1});
  }
  engine->has_trunk = !engine->trunk.layers.empty();
  engine->has_critic = !engine->critic.layers.empty();
  for (int64_t left = *d++; left; left--, d += 9) {
    Part part{(int)d[0], (int)d[1], (int)d[2], (int)d[3], (int)d[4], (int)d[5], (int)d[6], d[7], 0, {}, {}, *ranges++};
    if (d[8]) {
      part.centre.assign(ranges, ranges + part.size), ranges += part.size;
      part.half.assign(ranges, ranges + part.size), ranges += part.size;
    }
    engine->head.add(part);
  }
  engine->size = size, engine->actor_size = actor_size, engine->first_trained = first_trained;
  engine->finish((int)threads);
  engine->cut();
  return engine;
}

EXPORT int64_t sf_tasks(void* engine, int64_t samples) { return ((Recurrent*)engine)->num_tasks(samples); }

EXPORT void sf_destroy(void* engine) { delete (Recurrent*)engine; }

// start, before and after (which may be before): of a memory.
EXPORT void sf_act(void* engine, const float* theta, const float* x, const float* noise, int64_t samples,
                   const uint8_t* start, const float* before, float* after, float* params, float* action,
                   float* log_prob) {
  ((Recurrent*)engine)->act(theta, x, noise, samples, start, before, after, params, action, log_prob);
}

EXPORT void sf_values(void* engine, const float* theta, const Batch* batch, float* out) {
  ((Recurrent*)engine)->values(theta, *batch, out);
}

EXPORT void sf_outputs(void* engine, const float* theta, const float* x, int64_t samples, float* out) {
  ((Recurrent*)engine)->outputs(theta, x, samples, out);
}

EXPORT void sf_outputs_gradient(void* engine, const float* theta, const float* x, const float* d, int64_t samples, float* g,
                                 float* dx) {
  ((Recurrent*)engine)->outputs_gradient(theta, x, d, samples, g, dx);
}

EXPORT void sf_evaluate(void* engine, const float* theta, const LossSpec* spec, const Batch* batch, double* sums, float* kl) {
  const Sums found = ((Recurrent*)engine)->evaluate(theta, *spec, *batch, kl);
  std::memcpy(sums, &found, sizeof found);
}

EXPORT void sf_gradient(void* engine, const float* theta, const LossSpec* spec, const Batch* batch, const int64_t* index,
                 int64_t samples, int64_t normalize, float* g, double* sums) {
  const Sums found = ((Recurrent*)engine)->gradient(theta, *spec, *batch, index, samples, normalize != 0, g);
  std::memcpy(sums, &found, sizeof found);
}

EXPORT void sf_epochs(void* engine, float* theta, float* g, float* first, float* second, int64_t* steps, const LossSpec* spec,
               const OptimizerSpec* optimizer, const Batch* batch, const int64_t* order, int64_t epochs,
               int64_t minibatches, int64_t normalize, double* history, double* first_ratio_error) {
  ((Recurrent*)engine)
      ->epochs(theta, g, first, second, steps, *spec, *optimizer, *batch, order, epochs, minibatches, normalize != 0,
               history, first_ratio_error);
}

EXPORT void sf_fisher_product(void* engine, const float* theta, const float* direction, const Batch* batch, float* product) {
  ((Recurrent*)engine)->fisher_product(theta, direction, *batch, product);
}

EXPORT int64_t sf_rollout(void* engine, const float* theta, Rollout* rollout) {
  return roll(*(Recurrent*)engine, theta, *rollout);
}

// y_t = x_t + decay_t·y_{t+1} over [T, N], rounded once, as PyTorch's addcmul does it where the processor can.
EXPORT void sf_reverse_scan(const float* x, const float* decay, float* y, int64_t steps, int64_t envs) {
  for (int64_t n = 0; n < envs; n++) y[(steps - 1) * envs + n] = x[(steps - 1) * envs + n];
  for (int64_t t = steps - 2; t >= 0; t--)
    for (int64_t n = 0; n < envs; n++) {
      const int64_t i = t * envs + n;
      y[i] = __builtin_fmaf(decay[i], y[i + envs], x[i]);
    }
}

// GAE(λ) and the critic's targets, V + GAE(value_lambda), over [T, N]; segment 0: the sum is cut nowhere.
EXPORT void sf_advantages(const float* reward, const float* value, const float* next_value, const uint8_t* terminated,
                          const uint8_t* truncated, const uint8_t* valid, int64_t steps, int64_t envs, double gamma,
                          double lambda, double value_lambda, int64_t segment, float* advantage, float* target) {
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
}

// 1 − Var(target − value) / Var(target), weighted; 0 where the targets do not vary.
EXPORT double sf_explained_variance(const float* value, const float* target, const float* weight, int64_t samples) {
  double total = 0.0, sums[2] = {}, squares[2] = {};
  for (int64_t i = 0; i < samples; i++) {
    const double w = weight ? weight[i] : 1.0;
    total += w, sums[0] += w * target[i], sums[1] += w * ((double)target[i] - value[i]);
  }
  total = total > 1.0 ? total : 1.0;
  for (int64_t i = 0; i < samples; i++) {
    const double w = weight ? weight[i] : 1.0, error = (double)target[i] - value[i];
    const double a = target[i] - sums[0] / total, b = error - sums[1] / total;
    squares[0] += w * a * a, squares[1] += w * b * b;
  }
  const double spread = squares[0] / total;
  return spread > 1e-12 || spread != spread ? 1.0 - squares[1] / squares[0] : 0.0;
}

// Mean and population variance of each column of [rows, columns]; the second pass is about the mean.
EXPORT void sf_moments(const float* x, int64_t rows, int64_t columns, double* mean, double* var) {
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
}

// G_t = γ·G_{t−1} + r_t of each env over [T, N], anew after an end, standing still where a step is not valid; `running`
// is G before and after.
EXPORT void sf_running_returns(const double* reward, const uint8_t* done, const uint8_t* valid, int64_t steps,
                               int64_t envs, double gamma, double* running, double* out) {
  for (int64_t t = 0; t < steps; t++)
    for (int64_t n = 0; n < envs; n++) {
      const int64_t i = t * envs + n;
      if (valid[i]) running[n] = gamma * running[n] + reward[i];
      out[i] = running[n];
      if (done[i]) running[n] = 0.0;
    }
}

// Numbers that a `kept` buffer of sf_recur must hold; it must begin at a multiple of 64 bytes.
EXPORT int64_t sf_recur_kept(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences) {
  int64_t kept = 0;
  groups_of({lstm != 0, (int)hidden, steps, sequences, nullptr, nullptr, nullptr}, &kept);
  return kept * LANES;
}

EXPORT void sf_recur(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences, const float* weight,
                     const float* bias, const uint8_t* start, const float* x, const float* state, float* out,
                     float* after, float* kept) {
  const Recurrence r{lstm != 0, (int)hidden, steps, sequences, weight, bias, start};
  const std::vector<Group> groups = groups_of(r);
  Given given(r, x);
  Packed packed;
  if (!groups.back().lanes) packed.pack(r);
  for (const Group& group : groups) recur(r, given, packed, group, state, out, hidden, after, (vec*)kept);
}

EXPORT void sf_recur_back(int64_t lstm, int64_t hidden, int64_t steps, int64_t sequences, const float* weight,
                          const float* bias, const uint8_t* start, const float* kept, const float* d_out,
                          const float* d_after, float* dx, float* d_state, float* d_weight, float* d_bias) {
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
}

}  // extern "C"
