// The entry of every call. Every exported function is `return guarded([&] { … });`, because an exception that left it would
// end the process. Results go through pointers; the return value is a `Status`, which surefoot/kernels/calls.py raises.
#pragma once
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#define EXPORT __attribute__((visibility("default")))

namespace surefoot {

enum Status : int { OK = 0, NO_MEMORY = 1, FAILED = 2 };

static thread_local char last_error[256] = "";  // message of this thread's last call that FAILED

template <typename Body>
static inline int guarded(const Body& body) noexcept {
  try {
    body();
    return OK;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  } catch (const std::length_error&) {  // more than a vector can ever hold
    return NO_MEMORY;
  } catch (const std::exception& error) {
    std::snprintf(last_error, sizeof last_error, "%s", error.what());
  } catch (...) {
    std::snprintf(last_error, sizeof last_error, "unknown exception");
  }
  return FAILED;
}

// Throws if another library's function returned an error.
static inline void require(int status) {
  if (status == NO_MEMORY) throw std::bad_alloc();
  if (status != OK) throw std::runtime_error("a function of another library failed");
}

}  // namespace surefoot
