#include "scratch.h"

#include <atomic>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace edk {
namespace {

// Under AddressSanitizer every use gets memory of its own size, so that its ends are seen, and of
// another content, so that results differ from call to call where something was read unwritten.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#endif

int next_fill() {
  static std::atomic<unsigned> n_uses{0};
  constexpr int fills[] = {0x00, 0xff, 0x5a};
  return fills[n_uses++ % 3];
}

constexpr std::align_val_t kAlignment{64};

struct Buffer {
  void* data = nullptr;
  size_t size = 0;
  ~Buffer() { ::operator delete(data, kAlignment); }

  void* at_least(size_t bytes) {
    if (!kIsSanitized && bytes <= size) return data;
    const size_t wanted = kIsSanitized ? bytes : bytes + bytes / 2;
    void* grown = ::operator new(wanted, kAlignment);
    if (kIsSanitized) std::memset(grown, next_fill(), wanted);
    ::operator delete(data, kAlignment);
    data = grown;
    size = wanted;
    return data;
  }
};

thread_local Buffer buffers[3];

}  // namespace

void* scratch(ScratchUse use, size_t bytes) { return buffers[static_cast<int>(use)].at_least(bytes); }

Memory current_scratch(ScratchUse use) {
  const Buffer& buffer = buffers[static_cast<int>(use)];
  ASAN_UNPOISON_MEMORY_REGION(buffer.data, buffer.size);  // what Carver left between arrays
  return {buffer.data, buffer.size};
}

}  // namespace edk
