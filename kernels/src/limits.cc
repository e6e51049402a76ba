#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "layout.h"

namespace edk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kChunkBytes = int64_t{1} << 20;  // between two looks at the clock
constexpr int64_t kRounds = 1 << 13;               // likewise
constexpr int64_t kAheadBytes = 5120;
constexpr int kWords = 16;

/// Returns what depends on every byte of `data` [n_bytes, a multiple of 128], so that all are read.
uint64_t fold(const uint8_t* data, int64_t n_bytes) {
  uint64_t folded[kWords] = {};
  for (int64_t at = 0; at < n_bytes; at += sizeof(folded)) {
    __builtin_prefetch(data + at + kAheadBytes);
    __builtin_prefetch(data + at + kAheadBytes + 64);
    uint64_t words[kWords];
    std::memcpy(words, data + at, sizeof(words));
    for (int i = 0; i < kWords; ++i) folded[i] ^= words[i];
  }
  uint64_t all = 0;
  for (const uint64_t word : folded) all ^= word;
  return all;
}

/// Returns the sum over threads of the rate at which `work(t)`, called again and again, says it
/// gets on.
template <typename Work>
double total_rate(int n_threads, double seconds, const Work& work) {
  std::vector<double> rates(n_threads);
  const auto run = [&](int t) {
    const Clock::time_point start = Clock::now();
    double done = 0;
    double elapsed = 0;
    do {
      done += static_cast<double>(work(t));
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed < seconds);
    rates[t] = done / elapsed;
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < n_threads; ++t) helpers.emplace_back(run, t);
  run(0);
  for (std::thread& helper : helpers) helper.join();
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace

double read_rate(const uint8_t* data, int64_t n_bytes, int n_threads, double seconds) {
  const int64_t span = n_bytes / n_threads / 128 * 128;
  std::vector<int64_t> positions(n_threads * 16);  // each in a cache line of its own
  return total_rate(n_threads, seconds, [&](int t) {
    int64_t& at = positions[t * 16];
    const int64_t n = std::min(kChunkBytes, span - at);
    const uint64_t folded = fold(data + t * span + at, n);
    asm volatile("" : : "r"(folded));
    at = at + n < span ? at + n : 0;
    return n;
  });
}

double multiply_rate(const Kernels& kernels, int n_threads, double seconds) {
  return total_rate(n_threads, seconds, [&](int) {
    int32_t sum = 0;
    const int64_t n = kernels.multiply(kRounds, &sum);
    asm volatile("" : : "r"(sum));
    return n;
  });
}

}  // namespace edk
