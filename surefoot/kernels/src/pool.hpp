// Threads that wait between calls. Work is cut into pieces that do not depend on how many threads there are.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace surefoot {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Everybody waits for everybody. Spins for a moment, then lets others run: on a busy machine the one that is waited
// for may need this very core.
constexpr int SPINS = 2000;

class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void wait() {
    if (size_ == 1) return;
    int phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.fetch_add(1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
      if (spins < SPINS) relax(); else sched_yield();
    }
  }

 private:
  const int size_;
  std::atomic<int> arrived_{0}, phase_{0};
};

class Pool {
 public:
  explicit Pool(int threads) : size_(threads), owner_(getpid()), barrier_(threads) {}
  ~Pool() { stop(); }
  int size() const { return size_; }
  Barrier& barrier() { return barrier_; }

  // body(rank) on every thread, the caller being rank 0.
  void run(const std::function<void(int)>& body) {
    if (size_ == 1) {
      body(0);
      return;
    }
    if (getpid() != owner_) {  // a forked child: its threads are the parent's
      for (auto& thread : threads_) thread.detach();
      threads_.clear();
      owner_ = getpid();
    }
    if (threads_.empty()) start();
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = &body, left_ = size_ - 1, round_++;
    }
    wake_.notify_all();
    body(0);
    for (int spins = 0; left_.load(std::memory_order_acquire); spins++) {
      if (spins < SPINS) relax(); else sched_yield();
    }
  }

 private:
  void start() {
    sigset_t every, before;  // signals are for Python's main thread, from the first moment on
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    for (int rank = 1; rank < size_; rank++) threads_.emplace_back([this, rank] { work(rank); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
      (*body)(rank);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }
  void stop() {
    if (threads_.empty()) return;
    if (getpid() != owner_) {  // in a forked child they do not exist
      for (auto& thread : threads_) thread.detach();
      return;
    }
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = nullptr, round_++;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  const int size_;
  pid_t owner_;
  Barrier barrier_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<int> left_{0};
  int64_t round_ = 0;
};

}  // namespace surefoot
