// Fetches what the next operator reads into the caches of threads that have nothing else to do: between
// two operators, and while one thread alone works, memory would be idle otherwise.
#pragma once

#include <atomic>
#include <cstddef>
#include <unordered_map>

#include "kernels.h"

namespace edk {

/// What was read after what: the next pass, most likely, does the same.
class ReadAhead {
  struct Step {
    const Reading what;
    std::atomic<const Step*> next{nullptr};
    explicit Step(const Reading& reading) : what(reading) {}
  };

 public:
  /// How far a thread has come.
  struct Place {
    const void* step = nullptr;
    int64_t line = 0;  // of the thread's own part
  };

  /// An operator begins, and reads `now`. Called by one thread, while others fetch.
  void announce(const Reading& now);

  /// Asks for a few more lines of what thread `thread` of `n_threads` will read next, as far as they fit
  /// into the second cache beside all else.
  void fetch_some(Place& place, size_t thread, size_t n_threads) const;

 private:
  std::unordered_map<const uint8_t*, Step> steps_;  // by their first byte; those of a session
  Step* current_ = nullptr;
  std::atomic<const Step*> next_{nullptr};
};

}  // namespace edk
