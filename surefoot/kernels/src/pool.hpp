// Threads that wait between calls. Work is split into pieces that do not depend on the number of threads.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace surefoot {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A barrier: all threads wait for each other. Spins for a moment, then yields: on a busy machine, the thread that we wait
// for may need this very core.
constexpr int SPINS = 2000;

// Thrown in threads that wait for a thread that has failed.
struct Broken {};

class Barrier {
 public:
  int size = 1;  // changes only while no thread waits
  void wait() {
    if (size == 1) return;
    const uint64_t phase = phase_.load(std::memory_order_acquire);
    if (phase & BROKEN) throw Broken();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.fetch_add(1, std::memory_order_release);
      return;
    }
    uint64_t now = phase;
    for (int spins = 0; (now = phase_.load(std::memory_order_acquire)) == phase; spins++) {
      if (spins < SPINS) relax(); else sched_yield();
    }
    if (now & BROKEN) throw Broken();
  }
  // Releases all threads that wait or will wait. True for the first call.
  bool break_up() { return !(phase_.fetch_or(BROKEN, std::memory_order_acq_rel) & BROKEN); }
  bool broken() const { return phase_.load(std::memory_order_acquire) & BROKEN; }
  void mend() { arrived_ = 0, phase_ = 0; }  // call while no thread waits

 private:
  static constexpr uint64_t BROKEN = uint64_t{1} << 63;
  std::atomic<int> arrived_{0};
  std::atomic<uint64_t> phase_{0};
};

class Pool {
 public:
  // Uses this many threads, including the caller's, or as many as the system allows.
  explicit Pool(int threads) {
    sigset_t every, before;  // signals must go to Python's main thread from the start
    sigfillset(&every);
    threads_.reserve(threads - 1);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    try {
      for (int rank = 1; rank < threads; rank++) threads_.emplace_back([this, rank] { work(rank); });
    } catch (const std::exception&) {  // a limit on threads, or no memory for another stack
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    barrier_.size = size();
  }
  ~Pool() {
    hand_out(nullptr);
    for (auto& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return 1 + (int)threads_.size(); }
  Barrier& barrier() { return barrier_; }

  // Runs body(rank) on every thread; the caller is rank 0. An exception on any of them is thrown here, and the others leave
  // at their next barrier.
  void run(const std::function<void(int)>& body) {
    if (threads_.empty()) return body(0);
    hand_out(&body);
    attempt(body, 0);
    for (int spins = 0; left_.load(std::memory_order_acquire); spins++) {
      if (spins < SPINS) relax(); else sched_yield();
    }
    if (!barrier_.broken()) return;
    barrier_.mend();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // Call before work that allocates on every thread. A thread's exception storage is allocated when it first throws; if
  // there is no memory then, the process ends. One thread at a time, so that memory found free stays free.
  void make_room() {
    if (has_room_) return;
    bool enough = true;
    run([&](int) {
      std::lock_guard<std::mutex> hold(mutex_);
      void* volatile room = std::malloc(4096);
      std::free(room);
      volatile int asked = room ? std::uncaught_exceptions() : -1;
      enough = enough && asked >= 0;
    });
    if (!enough) throw std::bad_alloc();
    has_room_ = true;
  }

 private:
  void hand_out(const std::function<void(int)>* body) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = body, left_ = (int)threads_.size(), round_++;
    }
    wake_.notify_all();
  }
  void work(int rank) {
    for (int64_t seen = 0;;) {
      const std::function<void(int)>* body;
      {
        std::unique_lock<std::mutex> hold(mutex_);
        wake_.wait(hold, [&] { return round_ != seen; });
        seen = round_, body = body_;
      }
      if (!body) return;
      attempt(*body, rank);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }
  void attempt(const std::function<void(int)>& body, int rank) noexcept {
    try {
      body(rank);
    } catch (const Broken&) {
    } catch (...) {
      if (barrier_.break_up()) failure_ = std::current_exception();
    }
  }

  Barrier barrier_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<int> left_{0};
  int64_t round_ = 0;
  bool has_room_ = false;
  std::exception_ptr failure_;
};

}  // namespace surefoot
