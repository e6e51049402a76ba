// Dot products with nothing in their way: weights stay in registers, quads in the nearest cache.
// Included after one simd_*.h.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edk {
namespace {

// Independent sums: enough to hide the latency of a dot product, few enough for the registers.
constexpr int kChains = kTileRows + kTileRows / 2;
constexpr int kRepeats = 8;  // of every chain in a round, so that the loop itself costs nothing

int64_t multiply(int64_t n_rounds, int32_t* sum) {
  alignas(64) uint8_t bytes[64];
  alignas(64) int8_t quads[4 * kChains];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 4 * kChains; ++i) quads[i] = static_cast<int8_t>(i - 2 * kChains);
  const Bytes weights = low_nibbles(load_bytes(bytes));
  Ints sums[kChains];
  for (Ints& chain : sums) chain = zero_ints();
  const int8_t* quad = quads;
  for (int64_t i = 0; i < n_rounds; ++i) {
#pragma GCC unroll 128
    for (int j = 0; j < kRepeats * kChains; ++j) {
      const int c = j % kChains;
      // The quads might be others now: else the compiler would multiply once and add many times.
      if (c == 0) asm volatile("" : "+r"(quad));
      sums[c] = dot_quad<4>(sums[c], weights, quad + 4 * c);
    }
  }
  uint32_t all = 0;  // unsigned, since it wraps
  for (const Ints& chain : sums) all += static_cast<uint32_t>(reduce_add(chain));
  *sum = static_cast<int32_t>(all);
  return n_rounds * kRepeats * kChains * 4 * kPanel;
}

}  // namespace
}  // namespace edk
