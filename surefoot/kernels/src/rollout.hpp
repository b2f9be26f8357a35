// A whole rollout of native envs: policy and envs are stepped together, without returning to Python in between.
#pragma once
#include "entry.hpp"
#include "stored.hpp"

namespace surefoot {

// Like `surefoot_classic_step`: results of all envs, how many ended; < 0: env −1 − ended failed. Returns a `Status`.
typedef int (*StepFunction)(void* envs, const void* action, const uint8_t* active, float* obs, double* reward,
                            uint8_t* terminated, uint8_t* truncated, float* final_obs, int64_t* ended);

struct Finished {
  int64_t env, length, truncated;
  double ret;
};

// T steps of N envs; arrays over time are [T, N, …]. Filled by the rollout unless marked (given).
struct Rollout {
  int64_t steps, envs, numbers;      // T, N, and numbers in an observation (given)
  StepFunction step;                 // (given)
  void* handle;                      // of the envs (given)
  int64_t discrete;                  // actions are int64 choices; otherwise one-dimensional float32 (given)
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
  uint8_t* start;                    // [T + 1, N]: an episode begins; start[0] (given). Null: no memory
  float* memory;                     // [N, M] before the first step (given), after the last
  float* final_memory;               // [T·N, M]: the memory before each final_obs
};

// One rollout, step by step.
class Rolling {
 public:
  Rolling(Recurrent& net, const float* theta, Rollout& rollout)
      : net_(net), theta_(theta), r_(rollout), few_(2 * r_.envs <= LANES), drawn_(r_.envs), last_(r_.envs * r_.numbers),
        inputs_(r_.envs * r_.numbers), active_(r_.envs, 1), done_(r_.envs, 0) {
    r_.num_final = r_.num_finished = 0;
    if (!few_) return;
    if (net.mlps.has_trunk) trunk_.turn(net.mlps.trunk, theta);
    actor_.turn(net.mlps.actor, theta);
    if (r_.start) packed_ = net.packed(theta);
  }

  // The number of steps; −1 − (t·N + n) if env n failed at step t.
  int64_t run() {
    for (int64_t t = 0; t < r_.steps; t++) {
      act(t);
      const int64_t ended = step(t);
      if (ended < 0) return -1 - (t * r_.envs + (-1 - ended));
      if (!settle(t)) return t + 1;
    }
    return r_.steps;
  }

 private:
  // Writes the policy's actions into `drawn_`, with their parameters and log-probabilities.
  void act(int64_t t) {
    const int64_t N = r_.envs;
    const Engine& mlps = net_.mlps;
    const Head& head = mlps.head;
    Workspace& space = *mlps.spaces[0];
    const float* x = r_.obs + t * N * r_.numbers;
    if (r_.shift) {
      normalize_rows(x, N, r_.numbers, r_.shift, r_.scale, inputs_.data());
      x = inputs_.data();
    }
    int64_t width = r_.numbers;
    if (r_.start) {
      const uint8_t* start = r_.start + t * N;
      x = few_ ? net_.step_few(theta_, packed_, x, start, r_.memory, (int)N) : net_.step(theta_, x, start, r_.memory, N);
      width = mlps.width;
    }
    const float* noise = r_.noise + t * N * head.noises;
    const Drawn to{r_.params + t * N * head.params, drawn_.data(), r_.log_prob + t * N};
    if (few_) return act_few(mlps, theta_, trunk_, actor_, x, noise, (int)N, to, space);
    const int64_t most = Engine::GROUP * LANES;
    for (int64_t n = 0; n < N; n += most)
      act_group(mlps, theta_, x + n * width, noise + n * head.noises, (int)std::min(most, N - n), to.from(n, head), space);
  }

  // Steps the envs with them. Returns the result of `StepFunction`.
  int64_t step(int64_t t) {
    const int64_t N = r_.envs, D = r_.numbers;
    const void* sent;
    if (r_.discrete) {
      int64_t* action = (int64_t*)r_.action + t * N;
      for (int64_t n = 0; n < N; n++) action[n] = (int64_t)drawn_[n];
      sent = action;
    } else {
      std::memcpy((float*)r_.action + t * N, drawn_.data(), sizeof(float) * N);
      for (float& a : drawn_) a = net_.mlps.head.sent(a, r_.low, r_.high);
      sent = drawn_.data();
    }
    float* obs = r_.obs + (t + 1) * N * D;
    std::memcpy(obs, r_.obs + t * N * D, sizeof(float) * N * D);  // an idle env keeps its observation
    int64_t ended = 0;
    require(r_.step(r_.handle, sent, r_.episodes ? active_.data() : nullptr, obs, r_.reward + t * N,
                    r_.terminated + t * N, r_.truncated + t * N, last_.data(), &ended));
    return ended;
  }

  // Records episodes; returns whether any env continues.
  bool settle(int64_t t) {
    const int64_t N = r_.envs;
    bool anybody = false;
    for (int64_t n = 0; n < N; n++) {
      const int64_t at = t * N + n;
      const bool terminated = r_.terminated[at], truncated = r_.truncated[at];
      r_.valid[at] = active_[n];
      if (r_.start) r_.start[at + N] = active_[n] && (terminated || truncated);
      if (!active_[n]) continue;
      r_.ret[n] += r_.reward[at], r_.length[n]++;
      if (terminated || truncated) {
        r_.finished[r_.num_finished++] = {n, r_.length[n], truncated && !terminated, r_.ret[n]};
        r_.ret[n] = 0.0, r_.length[n] = 0;
        if (truncated && !terminated) keep_final(at, n);
        if (r_.episodes && ++done_[n] >= r_.episodes) active_[n] = 0;
      }
      anybody |= active_[n];
    }
    return anybody;
  }

  void keep_final(int64_t at, int64_t n) {
    const int64_t D = r_.numbers, M = net_.state();
    r_.final_index[r_.num_final] = at;
    if (r_.start) std::memcpy(r_.final_memory + r_.num_final * M, r_.memory + n * M, sizeof(float) * M);
    std::memcpy(r_.final_obs + r_.num_final++ * D, last_.data() + n * D, sizeof(float) * D);
  }

  Recurrent& net_;
  const float* theta_;
  Rollout& r_;
  const bool few_;  // few envs: use transposed weights
  Turned trunk_, actor_;
  Packed packed_;
  std::vector<float> drawn_, last_, inputs_;
  std::vector<uint8_t> active_;
  std::vector<int64_t> done_;  // episodes of each env
};

}  // namespace surefoot
