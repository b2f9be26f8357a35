// Where the processes of one machine wait for each other, in memory that they share.
#pragma once
#include <sched.h>
#include <time.h>

#include <chrono>
#include <cstdint>

namespace surefoot {

// One for each process, on a cache line of its own.
struct alignas(64) Place {
  int64_t round;  // the last one that the process has come to
  int64_t gone;   // not 0: it will come to no other
};

enum Met : int64_t { ALL_HERE = -1, NOT_YET = -2 };  // else the number of a process that has gone

static inline void rest(int64_t spins, bool spinning) {
  if (spinning) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  } else if (spins % 64) {
    sched_yield();
  } else {
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
  }
}

// Come to a round, and wait until all have come. At first this spins: others mostly come within microseconds, and to be
// woken up takes longer than that. What a process wrote before it came is visible to those that it has met.
static inline int64_t meet(Place* places, int64_t size, int64_t own, int64_t round, double spin, double limit) {
  using Clock = std::chrono::steady_clock;
  __atomic_store_n(&places[own].round, round, __ATOMIC_RELEASE);
  const auto begin = Clock::now();
  bool spinning = spin > 0.0;
  int64_t spins = 0;
  for (int64_t i = 0; i < size; i++) {
    while (__atomic_load_n(&places[i].round, __ATOMIC_ACQUIRE) < round) {
      const bool gone = __atomic_load_n(&places[i].gone, __ATOMIC_ACQUIRE) != 0;
      if (gone && __atomic_load_n(&places[i].round, __ATOMIC_ACQUIRE) < round) return i;  // it did not come before
      if (++spins % 64 == 0 || !spinning) {
        const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
        if (waited > limit) return NOT_YET;
        spinning = waited < spin;
      }
      rest(spins, spinning);
    }
  }
  return ALL_HERE;
}

static inline void go(Place* places, int64_t own) { __atomic_store_n(&places[own].gone, int64_t{1}, __ATOMIC_RELEASE); }

}  // namespace surefoot
