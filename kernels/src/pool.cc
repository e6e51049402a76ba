#include "pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "first_error.h"
#include "op_support.h"
#include "thread_place.h"

namespace edk {
namespace {

/// Looks that a waiting thread takes before it sleeps: some 100 us, far more than what lies between
/// two operators. Where others want its processor, whoever it waits for may be waiting for that.
constexpr int kPatience = 2048;

/// How long a helper looks for the next pass: while a text is written, it comes sooner, and to wake a helper
/// takes the caller 30 us.
constexpr std::chrono::microseconds kBetweenPasses{500};

/// Passes of all pools that are under way: their threads need the processors.
std::atomic<int> n_passes{0};

/// Of its own tasks that are left, a thread takes a third at a time: each taking waits for all that was
/// begun before.
constexpr int64_t kShareTaken = 3;

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Looks for as long as `is_done` is likely to come true soon; returns whether it has.
template <class Condition>
bool comes_soon(Condition is_done) {
  for (int looks = 0; looks < kPatience; ++looks) {
    if (is_done()) return true;
    pause_briefly();
  }
  return false;
}

/// Looks for a time that does not depend on how long a look takes; returns whether `is_done` came true.
template <class Condition>
bool comes_within(std::chrono::microseconds time, Condition is_done) {
  const auto stop = std::chrono::steady_clock::now() + time;
  do {
    for (int looks = 0; looks < 16; ++looks) {
      if (is_done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < stop);
  return false;
}

}  // namespace

thread_local const Pool* pool_of_pass = nullptr;

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
  end_pass();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_.store(true);
  }
  opened_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Pool::begin_pass() {
  is_stopped_.store(false);
  wake();
}

void Pool::wake() {
  uint64_t pass = pass_.load();
  if (pass % 2 == 0 && pass_.compare_exchange_strong(pass, pass + 1)) {
    n_passes.fetch_add(1);
    wake_helpers();
  }
}

void Pool::end_pass() {
  uint64_t pass = pass_.load();
  if (pass % 2 == 1 && pass_.compare_exchange_strong(pass, pass + 1)) n_passes.fetch_sub(1);
}

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
  if (!helpers_.empty()) open_round(work);
  do_tasks(0, work);
  if (!helpers_.empty()) close_round();
  work.error.rethrow();
}

/// Lets helpers in.
void Pool::open_round(Work& work) const {
  work_ = &work;
  round_.fetch_add(1);
  wake_helpers();
}

/// A helper that is about to sleep looks at round and pass after it is counted, so that it is either woken
/// or sees the new ones.
void Pool::wake_helpers() const {
  if (n_asleep_.load() == 0) return;
  { const std::lock_guard<std::mutex> lock(mutex_); }
  opened_.notify_all();
}

/// Lets no other helper in, and waits for those who are.
void Pool::close_round() const {
  round_.fetch_add(1);
  const auto are_out = [this] { return n_inside_.load() == 0; };
  if (comes_soon(are_out)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  is_caller_asleep_.store(true);
  left_.wait(lock, are_out);
  is_caller_asleep_.store(false);
}

void Pool::do_tasks(size_t thread, Work& work) const {
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(thread + i) % shares_.size()];
    for (;;) {
      const int64_t left = share.end - share.next.load(std::memory_order_relaxed);
      if (left <= 0) break;
      const int64_t n = std::max<int64_t>(left / kShareTaken, 1);
      const int64_t first = share.next.fetch_add(n, std::memory_order_relaxed);
      const int64_t end = std::min(first + n, share.end);
      for (int64_t task = first; task < end; ++task)
        work.error.guard([&] { work.fn(work.user, task); });
    }
  }
}

bool Pool::is_open(uint64_t last) const {
  const uint64_t round = round_.load();
  return round % 2 == 1 && round != last;
}

/// Returns when a round may be open that is not `last`, or the pool ends.
void Pool::await_round(size_t thread, uint64_t last, ReadAhead::Place& place) const {
  const uint64_t pass = pass_.load();
  const auto is_awake = [&] {
    return is_open(last) || is_ending_.load() || pass_.load() != pass;
  };
  const auto look = [&] {
    if (is_awake()) return true;
    read_ahead_.fetch_some(place, thread, shares_.size());
    return false;
  };
  const auto look_between = [&] { return look() || n_passes.load() > 0; };
  const bool is_between = pass % 2 == 0;
  is_between ? comes_within(kBetweenPasses, look_between) : comes_soon(look);
  if (is_awake()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  n_asleep_.fetch_add(1);
  opened_.wait(lock, is_awake);
  n_asleep_.fetch_sub(1);
}

void Pool::help(size_t thread, int processor) {
  if (processor >= 0) stay_on(processor);
  uint64_t last = 0;
  ReadAhead::Place place;
  for (;;) {
    await_round(thread, last, place);
    if (is_ending_.load()) return;
    if (!is_open(last)) continue;
    // Either the caller sees this helper inside, or this helper sees that the round is over.
    n_inside_.fetch_add(1);
    const uint64_t round = round_.load();
    if (round % 2 == 1) {
      do_tasks(thread, *work_);
      last = round;
    }
    if (n_inside_.fetch_sub(1) == 1 && is_caller_asleep_.load()) {
      { const std::lock_guard<std::mutex> lock(mutex_); }
      left_.notify_one();
    }
  }
}

}  // namespace edk
