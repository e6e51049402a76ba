#include "scratch.h"

#include <cstdlib>
#include <new>

namespace edk {
namespace {

struct Buffer {
  void* data = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(data); }

  void* at_least(size_t bytes) {
    if (bytes <= size) return data;
    const size_t rounded = (bytes + bytes / 2 + 63) / 64 * 64;
    void* grown = std::aligned_alloc(64, rounded);
    if (!grown) throw std::bad_alloc();
    std::free(data);
    data = grown;
    size = rounded;
    return data;
  }
};

thread_local Buffer buffers[2];

}  // namespace

void* scratch(ScratchUse use, size_t bytes) { return buffers[static_cast<int>(use)].at_least(bytes); }

}  // namespace edk
