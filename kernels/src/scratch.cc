#include "scratch.h"

#include <cstdlib>
#include <new>

namespace edk {
namespace {

// Under AddressSanitizer every use gets memory of its own size, so that its ends are seen.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

struct Buffer {
  void* data = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(data); }

  void* at_least(size_t bytes) {
    if (!kIsSanitized && bytes <= size) return data;
    const size_t spare = kIsSanitized ? 0 : bytes / 2;
    const size_t rounded = (bytes + spare + 63) / 64 * 64;
    void* grown = std::aligned_alloc(64, rounded);
    if (!grown) throw std::bad_alloc();
    std::free(data);
    data = grown;
    size = rounded;
    return data;
  }
};

thread_local Buffer buffers[3];

}  // namespace

void* scratch(ScratchUse use, size_t bytes) { return buffers[static_cast<int>(use)].at_least(bytes); }

Memory current_scratch(ScratchUse use) {
  const Buffer& buffer = buffers[static_cast<int>(use)];
  return {buffer.data, buffer.size};
}

}  // namespace edk
