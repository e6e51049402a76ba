#include "mapped_files.h"

#include <algorithm>

#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edk {
namespace {

#if defined(MADV_RANDOM)
constexpr int kScattered = MADV_RANDOM;
#else
constexpr int kScattered = -1;
#endif
#if defined(MADV_HUGEPAGE)
constexpr int kWhole = MADV_HUGEPAGE;
#else
constexpr int kWhole = -1;
#endif

/// Gives the system `hint` about the whole pages of `data` [n_bytes], if it knows that one.
void advise(const void* data, int64_t n_bytes, int hint) {
#if defined(_WIN32)
  (void)data, (void)n_bytes, (void)hint;
#else
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(data), stop = start + static_cast<uintptr_t>(n_bytes);
  const uintptr_t first = (start + page - 1) / page * page, last = stop / page * page;
  if (hint >= 0 && first < last) madvise(reinterpret_cast<void*>(first), last - first, hint);
#endif
}

constexpr uintptr_t kPagesAtOnce = 512;

}  // namespace

void expect_scattered_reads(const void* data, int64_t n_bytes) { advise(data, n_bytes, kScattered); }

void expect_whole_reads(const void* data, int64_t n_bytes) { advise(data, n_bytes, kWhole); }

void bring_in(const void* data, int64_t n_bytes) {
#if defined(__linux__)
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(data), stop = start + static_cast<uintptr_t>(n_bytes);
  unsigned char is_there[kPagesAtOnce];
  for (uintptr_t first = start / page * page; first < stop; first += kPagesAtOnce * page) {
    const uintptr_t n = std::min(kPagesAtOnce, (stop - first + page - 1) / page);
    if (mincore(reinterpret_cast<void*>(first), n * page, is_there) != 0) return;
    uintptr_t begin = 0, end = n;
    while (begin < n && (is_there[begin] & 1)) ++begin;
    while (end > begin && (is_there[end - 1] & 1)) --end;
    if (begin < end) madvise(reinterpret_cast<void*>(first + begin * page), (end - begin) * page, MADV_WILLNEED);
  }
#else
  (void)data, (void)n_bytes;
#endif
}

}  // namespace edk
