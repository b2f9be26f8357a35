// Preloaded by test_failures.py: the kernels' allocations, and anybody's threads, fail on demand.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

static std::atomic<long> left{-1};  // allocations that still succeed; < 0: all of them
static std::atomic<long> threads{-1};
static std::atomic<long> failed{0};

static bool of_the_kernels(const void* caller) {
  Dl_info found;
  return dladdr(caller, &found) && found.dli_fname && std::strstr(found.dli_fname, "/surefoot/kernels/");
}

static void* allocate(std::size_t size, std::size_t alignment, const void* caller) {
  if (left.load() >= 0 && of_the_kernels(caller) && left.fetch_sub(1) <= 0) {
    left = 0;  // and so do all that follow
    failed++;
    throw std::bad_alloc();
  }
  size = (size + alignment - 1) / alignment * alignment;
  if (void* found = std::aligned_alloc(alignment, size ? size : alignment)) return found;
  throw std::bad_alloc();
}

void* operator new(std::size_t size) { return allocate(size, 16, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, (std::size_t)alignment, __builtin_return_address(0));
}

extern "C" {

// After `count` more allocations every one fails, until it is called with -1. Returns how many have failed so far.
long faults_memory(long count) {
  left = count;
  return failed;
}

// After `count` more threads none can be created.
void faults_threads(long count) { threads = count; }

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* given) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create real = (Create)dlsym(RTLD_NEXT, "pthread_create");
  if (threads.load() >= 0 && threads.fetch_sub(1) <= 0) {
    threads = 0;
    return EAGAIN;
  }
  return real(thread, attributes, body, given);
}
}
