#include "mapped_rows.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edk {

void expect_scattered_reads(const void* data, int64_t n_bytes) {
#if defined(_WIN32)
  (void)data, (void)n_bytes;
#else
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(data), stop = start + static_cast<uintptr_t>(n_bytes);
  const uintptr_t first = (start + page - 1) / page * page, last = stop / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_RANDOM);
#endif
}

}  // namespace edk
