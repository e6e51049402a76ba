#include "read_ahead.h"

#include "layout.h"

namespace edk {
namespace {

// SmolLM2 decodes 2 to 4 % faster so on a Zen 5, whose second cache is 1 MB; 64 to 512 kB measure alike.
constexpr int64_t kMostLines = 2048;
constexpr int64_t kLinesAtOnce = 4;  // between two looks for work

/// Line `line` of the part that is for `thread`; null behind its end. Tasks are shared out alike.
const uint8_t* line_of(const Reading& what, int64_t thread, int64_t n_threads, int64_t line) {
  if (what.is_side_by_side) {
    const int64_t span = line % what.n_spans, bytes = what.bytes[span];
    const int64_t at = bytes * thread / n_threads + line / what.n_spans * kCacheLine;
    return at < bytes * (thread + 1) / n_threads ? what.data[span] + at : nullptr;
  }
  int64_t all = 0;
  for (int i = 0; i < what.n_spans; ++i) all += what.bytes[i];
  int64_t at = all * thread / n_threads + line * kCacheLine;
  if (at >= all * (thread + 1) / n_threads) return nullptr;
  int span = 0;
  while (at >= what.bytes[span]) at -= what.bytes[span++];
  return what.data[span] + at;
}

}  // namespace

void ReadAhead::announce(const Reading& now) {
  if (now.n_spans == 0) {
    current_ = nullptr;
    next_.store(nullptr, std::memory_order_relaxed);
    return;
  }
  Step& step = steps_.try_emplace(now.data[0], now).first->second;
  if (current_ != nullptr) current_->next.store(&step, std::memory_order_release);
  current_ = &step;
  next_.store(step.next.load(std::memory_order_relaxed), std::memory_order_release);
}

void ReadAhead::fetch_some(Place& place, size_t thread, size_t n_threads) const {
  const Step* step = next_.load(std::memory_order_acquire);
  if (step != place.step) place = {step, 0};
  if (step == nullptr) return;
  const int64_t stop = min_of(place.line + kLinesAtOnce, kMostLines);
  for (; place.line < stop; ++place.line) {
    const uint8_t* line = line_of(step->what, static_cast<int64_t>(thread),
                                  static_cast<int64_t>(n_threads), place.line);
    if (line == nullptr) {
      place.line = kMostLines;
      return;
    }
    __builtin_prefetch(line, 0, 2);
  }
}

}  // namespace edk
