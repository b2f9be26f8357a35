// A network as Python holds it: its description, and the engine made from it.
#pragma once
#include <pthread.h>

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "recurrent.hpp"

namespace surefoot {

struct Description {
  // inputs, masks, activation; the memory: how many layers (0 or 2), whether it is an LSTM, and for each layer in, out,
  // weight, bias; then three chains (trunk, actor, critic), each: count of layers, and for each in, out, weight, bias,
  // activated, the gain and the bias of its norm (−1: none); then the parts: count, and for each kind, size, output, param, action, noise, mask, log_std, squashed.
  std::vector<int64_t> numbers;
  std::vector<float> ranges;  // per part: its log_scale and, if its mean is squashed, centres and halves
  int64_t size, actor_size, first_trained;
  int threads;
};

static inline std::unique_ptr<Recurrent> make_engine(const Description& description) {
  std::unique_ptr<Recurrent> made(new Recurrent);
  Engine& mlps = made->mlps;
  const int64_t* d = description.numbers.data();
  const float* ranges = description.ranges.data();
  mlps.inputs = (int)*d++;
  mlps.head.masks = (int)*d++;
  mlps.width = mlps.inputs + mlps.head.masks;
  const int activation = (int)*d++;
  int64_t of_memory = *d++;
  made->lstm = *d++ != 0;
  for (; of_memory; of_memory--, d += 4)
    made->memory.layers.push_back({(int)d[0], (int)d[1], d[2], d[3], 0, 0, -1});
  Chain* chains[3] = {&mlps.trunk, &mlps.actor, &mlps.critic};
  for (Chain* chain : chains) {
    for (int64_t left = *d++; left; left--, d += 7)
      chain->layers.push_back({(int)d[0], (int)d[1], d[2], d[3], 0, 0, d[4] ? activation : -1, {d[5], d[6]}});
  }
  mlps.has_trunk = !mlps.trunk.layers.empty();
  mlps.has_critic = !mlps.critic.layers.empty();
  for (int64_t left = *d++; left; left--, d += 9) {
    Part part{(int)d[0], (int)d[1], (int)d[2], (int)d[3], (int)d[4], (int)d[5], (int)d[6], d[7], 0, {}, {}, *ranges++};
    if (d[8]) {
      part.centre.assign(ranges, ranges + part.size), ranges += part.size;
      part.half.assign(ranges, ranges + part.size), ranges += part.size;
    }
    mlps.head.add(part);
  }
  mlps.size = description.size, mlps.actor_size = description.actor_size;
  mlps.first_trained = description.first_trained;
  made->finish(description.threads);
  return made;
}

// The number of forks between the process that loaded this library and this one.
static std::atomic<int64_t> forks{0};
static const bool forks_are_counted = pthread_atfork(nullptr, nullptr, [] { forks++; }) == 0;

// A forked child has none of the engine's threads, and another thread may have been in the middle of a call: locks are
// held, buffers half grown. No state of an engine outlives a call, so the child abandons the old engine, freeing nothing,
// and makes its own.
class Handle {
 public:
  explicit Handle(Description description)
      : description_(std::move(description)), engine_(make_engine(description_)), forks_(forks) {
    if (!forks_are_counted) throw std::bad_alloc();  // the only possible reason
  }
  ~Handle() {
    if (forks_ != forks) (void)engine_.release();
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Recurrent& engine() {
    if (forks_ != forks) {
      std::unique_ptr<Recurrent> own = make_engine(description_);
      (void)engine_.release();
      engine_ = std::move(own), forks_ = forks;
    }
    return *engine_;
  }

 private:
  const Description description_;
  std::unique_ptr<Recurrent> engine_;
  int64_t forks_;
};

}  // namespace surefoot
