// What this machine can do at most: how fast it reads memory, how fast it multiplies bytes.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edk {

/// Bytes per second at which `n_threads` threads stream through `data` [n_bytes], each its own
/// part again and again for about `seconds`. Memory's rate if `data` is far larger than the CPU's
/// caches.
double read_rate(const uint8_t* data, int64_t n_bytes, int n_threads, double seconds);

/// Multiply-accumulates of bytes per second that `n_threads` threads reach with the dot product of
/// `kernels` and nothing else in their way, for about `seconds`.
double multiply_rate(const Kernels& kernels, int n_threads, double seconds);

}  // namespace edk
