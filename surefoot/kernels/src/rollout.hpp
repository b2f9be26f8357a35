// A whole rollout of native envs: policy and envs stepped together, without a return to Python between two steps.
#pragma once
#include "entry.hpp"
#include "recurrent.hpp"

namespace surefoot {

// As `surefoot_classic_step`: results of all envs, how many ended; < 0: env −1 − ended is at fault. Returns a `Status`.
typedef int (*StepFunction)(void* envs, const void* action, const uint8_t* active, float* obs, double* reward,
                            uint8_t* terminated, uint8_t* truncated, float* final_obs, int64_t* ended);

struct Finished {
  int64_t env, length;
  double ret;
};

// T steps of N envs; arrays over time are [T, N, …]. Filled by the rollout unless said otherwise.
struct Rollout {
  int64_t steps, envs, numbers;      // T, N, and numbers in an observation (given)
  StepFunction step;                 // (given)
  void* handle;                      // of the envs (given)
  int64_t discrete;                  // actions are int64 choices, else float32 of one dimension (given)
  float low, high;                   // bounds of a continuous action (given)
  int64_t episodes;                  // whole episodes wanted of each env; 0: fixed length (given)
  const float *shift, *scale;        // of a normaliser, ±10 around it; null: none (given)
  const float* noise;                // (given)
  float* obs;                        // [T + 1, N, numbers]; obs[0] (given)
  float* params;
  void* action;                      // int64 or float32
  float* log_prob;
  double* reward;
  uint8_t *terminated, *truncated, *valid;
  double* ret;                       // [N] of the open episodes (given and updated), with their length
  int64_t* length;
  int64_t num_final, num_finished;   // how many of the next three
  int64_t* final_index;              // t·N + n of truncations, with the observation there
  float* final_obs;                  // [T·N, numbers]
  Finished* finished;                // [T·N]
  uint8_t* start;                    // [T + 1, N] of a memory: an episode begins; start[0] (given). Null: no memory
  float* memory;                     // [N, M] before the first step (given), after the last
  float* final_memory;               // [T·N, M], as final_obs: what was remembered there
};

static inline void normalize(const Rollout& r, const float* obs, float* inputs) {
  for (int64_t n = 0; n < r.envs; n++)
    for (int64_t i = 0; i < r.numbers; i++) {
      const float x = (obs[n * r.numbers + i] - r.shift[i]) * r.scale[i];
      inputs[n * r.numbers + i] = x < -10.0f ? -10.0f : x > 10.0f ? 10.0f : x;
    }
}

// Steps used; −1 − (t·N + n) where env n was at fault in step t.
static inline int64_t roll(Recurrent& engine, const float* theta, Rollout& r) {
  const int64_t N = r.envs, D = r.numbers;
  const Head& head = engine.head;
  Workspace& space = *engine.spaces[0];
  std::vector<float> drawn(N), last(N * D), inputs(N * D);
  std::vector<uint8_t> active(N, 1);
  std::vector<int64_t> done(N, 0);
  r.num_final = r.num_finished = 0;
  const bool few = 2 * N <= LANES;
  Turned turned_trunk, turned_actor;
  if (few && engine.has_trunk) turned_trunk.turn(engine.trunk, theta);
  if (few) turned_actor.turn(engine.actor, theta);
  const int M = engine.state();
  const Packed packed = few && r.start ? engine.packed(theta) : Packed();
  for (int64_t t = 0; t < r.steps; t++) {
    const float* x = r.obs + t * N * D;
    if (r.shift) {
      normalize(r, x, inputs.data());
      x = inputs.data();
    }
    int64_t width = D;
    if (r.start) {
      const uint8_t* start = r.start + t * N;
      x = few ? engine.step_few(theta, packed, x, start, r.memory, (int)N) : engine.step(theta, x, start, r.memory, N);
      width = engine.width;
    }
    if (few)
      engine.act_few(theta, turned_trunk, turned_actor, x, r.noise + t * N * head.noises, (int)N,
                     r.params + t * N * head.params, drawn.data(), r.log_prob + t * N, space);
    const int64_t most = Engine::GROUP * LANES;
    for (int64_t n = 0; n < N && !few; n += most)
      engine.act_group(theta, x + n * width, r.noise + (t * N + n) * head.noises, (int)std::min(most, N - n),
                       r.params + (t * N + n) * head.params, drawn.data() + n, r.log_prob + t * N + n, space);
    const void* sent;
    if (r.discrete) {
      int64_t* action = (int64_t*)r.action + t * N;
      for (int64_t n = 0; n < N; n++) action[n] = (int64_t)drawn[n];
      sent = action;
    } else {
      std::memcpy((float*)r.action + t * N, drawn.data(), sizeof(float) * N);
      for (float& a : drawn) a = head.sent(a, r.low, r.high);
      sent = drawn.data();
    }
    float* obs = r.obs + (t + 1) * N * D;
    std::memcpy(obs, r.obs + t * N * D, sizeof(float) * N * D);  // an idle env shows what it showed
    double* reward = r.reward + t * N;
    uint8_t *terminated = r.terminated + t * N, *truncated = r.truncated + t * N;
    int64_t ended = 0;
    require(r.step(r.handle, sent, r.episodes ? active.data() : nullptr, obs, reward, terminated, truncated, last.data(),
                   &ended));
    if (ended < 0) return -1 - (t * N + (-1 - ended));
    bool anybody = false;
    for (int64_t n = 0; n < N; n++) {
      r.valid[t * N + n] = active[n];
      if (r.start) r.start[(t + 1) * N + n] = active[n] && (terminated[n] || truncated[n]);
      if (!active[n]) continue;
      r.ret[n] += reward[n], r.length[n]++;
      if (terminated[n] || truncated[n]) {
        r.finished[r.num_finished++] = {n, r.length[n], r.ret[n]};
        r.ret[n] = 0.0, r.length[n] = 0;
        if (truncated[n] && !terminated[n]) {
          r.final_index[r.num_final] = t * N + n;
          if (r.start) std::memcpy(r.final_memory + r.num_final * M, r.memory + n * M, sizeof(float) * M);
          std::memcpy(r.final_obs + r.num_final++ * D, last.data() + n * D, sizeof(float) * D);
        }
        if (r.episodes && ++done[n] >= r.episodes) active[n] = 0;
      }
      anybody |= active[n];
    }
    if (!anybody) return t + 1;
  }
  return r.steps;
}

}  // namespace surefoot
