// What tasks on several threads throw, handed to the thread that waits for them.
#pragma once

#include <atomic>
#include <exception>

namespace edk {

/// Keeps the first exception of many tasks: one that left a pool's thread would end the process.
class FirstError {
 public:
  /// Runs `task` unless an earlier one failed.
  template <class Task>
  void guard(Task task) noexcept {
    if (has_error_.load(std::memory_order_relaxed)) return;
    try {
      task();
    } catch (...) {
      if (!has_error_.exchange(true)) error_ = std::current_exception();
    }
  }

  /// Throws what was kept, if anything. All tasks have ended.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> has_error_{false};
  std::exception_ptr error_;
};

}  // namespace edk
