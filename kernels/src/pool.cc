#include "pool.h"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "first_error.h"
#include "op_support.h"

namespace edk {
namespace {

/// Looks that a waiting thread takes before it offers its processor to others.
constexpr int kPatience = 4096;

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once `is_done`, having waited at full speed for as long as that is likely to be short.
template <class Condition>
void wait_until(Condition is_done) {
  for (int looks = 0; !is_done(); ++looks) {
    looks < kPatience ? pause_briefly() : std::this_thread::yield();
  }
}

void stay_on(int processor) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);  // where it is refused, the system chooses
#else
  (void)processor;
#endif
}

}  // namespace

struct Pool::Work {
  void (*fn)(void* user, int64_t i);
  void* user;
  FirstError error;
};

Pool::Pool(int n_threads, std::vector<int> processors) : shares_(static_cast<size_t>(n_threads)) {
  try {
    for (size_t i = 1; i < static_cast<size_t>(n_threads); ++i) {
      const int processor = i < processors.size() ? processors[i] : -1;
      helpers_.emplace_back([this, i, processor] { help(i, processor); });
    }
  } catch (const std::exception&) {
    // Fewer threads do the same work.
  }
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Pool::begin_pass() {
  is_stopped_.store(false);
  if (helpers_.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_awake_.store(true);
  }
  wake_.notify_all();
}

void Pool::end_pass() { is_awake_.store(false); }

void Pool::check_not_stopped() const {
  if (is_stopped_.load(std::memory_order_relaxed)) fail("the pass was stopped");
}

void Pool::run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const {
  if (n == 1) return fn(user, 0);
  Work work{fn, user, {}};
  const auto n_shares = static_cast<int64_t>(shares_.size());
  for (int64_t i = 0; i < n_shares; ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.next.store(i * n / n_shares, std::memory_order_relaxed);
    share.end = (i + 1) * n / n_shares;
  }
  if (helpers_.empty()) {
    do_tasks(0, work);
  } else {
    work_ = &work;
    round_.fetch_add(1);  // odd: helpers may come in
    do_tasks(0, work);
    round_.fetch_add(1);  // even: no other does, and those who are inside are waited for
    wait_until([this] { return n_inside_.load() == 0; });
  }
  work.error.rethrow();
}

void Pool::do_tasks(size_t thread, Work& work) const {
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(thread + i) % shares_.size()];
    for (int64_t task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
      work.error.guard([&] { work.fn(work.user, task); });
    }
  }
}

void Pool::help(size_t thread, int processor) {
  if (processor >= 0) stay_on(processor);
  uint64_t last = 0;
  for (;;) {
    uint64_t round = last;
    wait_until([&] {
      round = round_.load(std::memory_order_acquire);
      return (round % 2 == 1 && round != last) || !is_awake_.load(std::memory_order_relaxed);
    });
    if (round % 2 == 1 && round != last) {
      // Either the caller sees this helper inside, or this helper sees that the round is over.
      n_inside_.fetch_add(1);
      if (round_.load() == round) do_tasks(thread, *work_);
      n_inside_.fetch_sub(1);
      last = round;
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return is_awake_.load() || is_ending_; });
    if (is_ending_) return;
  }
}

}  // namespace edk
