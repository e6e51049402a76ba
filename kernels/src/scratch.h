// Working memory that outlives a call, per thread, so that a token allocates nothing.
#pragma once

#include <cstddef>

namespace edk {

enum class ScratchUse { kOperator, kTask, kRoutes };

/// Returns at least `bytes` bytes, 64-byte aligned, valid until this thread's next call with the
/// same use. kOperator and kRoutes belong to the thread that runs the operator, kTask to whoever runs a
/// task.
void* scratch(ScratchUse use, size_t bytes);

struct Memory {
  void* data;
  size_t size;
};

/// What this thread's latest call of `scratch` with this use returned, perhaps longer. All of it may
/// be read.
Memory current_scratch(ScratchUse use);

}  // namespace edk
