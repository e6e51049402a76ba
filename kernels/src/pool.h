// Threads that wait for work at full speed while it is likely to come soon, and sleep otherwise.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.h"
#include "read_ahead.h"

namespace edk {

/// Threads of one model: the calling one, and helpers. One pass at a time; the caller sees to that.
class Pool : public Parallel {
 public:
  /// processors: one for each thread, the calling one first; or none, which leaves threads alone.
  Pool(int n_threads, std::vector<int> processors);
  ~Pool() override;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void begin_pass();

  /// Has helpers sleep unless the next pass begins soon: at once where another model needs their processors.
  void end_pass();

  /// Wakes helpers for a pass that is about to begin; called from any thread.
  void wake();

  /// Has the pass under way fail at its next operator; called from any thread.
  void stop() { is_stopped_.store(true); }

  /// Fails if the pass was stopped.
  void check_not_stopped() const;

  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override;
  void announce(const Reading& now) const override { read_ahead_.announce(now); }

 private:
  struct Work;

  /// Tasks that lie side by side, and with them what they read: those of one thread, until the others
  /// have none left.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void open_round(Work& work) const;
  void wake_helpers() const;
  void close_round() const;
  void do_tasks(size_t thread, Work& work) const;
  void help(size_t thread, int processor);
  void await_round(size_t thread, uint64_t last, ReadAhead::Place& place) const;
  bool is_open(uint64_t last) const;  // whether there is a round that is not `last`

  // Each on a cache line of its own: helpers watch the first while all count with the others.
  alignas(64) mutable std::atomic<uint64_t> round_{0};  // odd while there are tasks to take
  std::atomic<uint64_t> pass_{0};                       // odd from its waking to its end
  alignas(64) mutable std::atomic<int> n_inside_{0};    // helpers that may look at work_
  mutable Work* work_ = nullptr;
  mutable std::vector<Share> shares_;  // one for each thread

  mutable ReadAhead read_ahead_;

  alignas(64) mutable std::atomic<int> n_asleep_{0};          // helpers
  mutable std::atomic<bool> is_caller_asleep_{false};
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> is_ending_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable opened_, left_;
  std::vector<std::thread> helpers_;
};

/// The pool that passes of this thread run on; null if they were not begun on any.
extern thread_local const Pool* pool_of_pass;

}  // namespace edk
