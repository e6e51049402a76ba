// Arrays in scratch. Included after one simd_*.h.
#pragma once

#include "layout.h"
#include "scratch.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace edk {
namespace {

/// Cuts memory into consecutive 64-byte aligned arrays; with a null base it sizes. AddressSanitizer
/// sees where each ends.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<uint8_t*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_, end = at + count * static_cast<int64_t>(sizeof(T));
    used_ = ceil_div(end, kCacheLine) * kCacheLine;
#if defined(__SANITIZE_ADDRESS__)
    used_ += kCacheLine;
    if (base_) ASAN_POISON_MEMORY_REGION(base_ + end, static_cast<size_t>(used_ - end));
#endif
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* base_;
  int64_t used_ = 0;
};

/// Has `layout` take its arrays from this thread's scratch of the given use. It is called twice: what
/// it takes first has no place yet.
template <class Layout>
void lay_out(ScratchUse use, const Layout& layout) {
  Carver sizes(nullptr);
  layout(sizes);
  Carver places(scratch(use, static_cast<size_t>(sizes.used())));
  layout(places);
}

}  // namespace
}  // namespace edk
