// Dot products with nothing in their way: weights stay in registers, rows in the nearest cache.
// Included after one simd_*.h.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "layout.h"

namespace edk {
namespace {

// Independent sums: enough to hide the latency of a dot product, few enough for the registers.
constexpr int kChains = 4;

int64_t multiply(int64_t n_rounds, int32_t* sum) {
  alignas(64) uint8_t bytes[kQuads * kVector];
  alignas(64) int8_t codes[kChains * kGroup];
  for (int i = 0; i < kQuads * kVector; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < kChains * kGroup; ++i) codes[i] = static_cast<int8_t>(i - 64);
  GroupCodes weights;
  for (int j = 0; j < kQuads; ++j) weights.quad[j] = low_nibbles(load_bytes(bytes + j * kVector));
  PartInts sums[kChains];
  for (PartInts& chain : sums) chain = set1_part(0);
  const int8_t* row = codes;
  for (int64_t i = 0; i < n_rounds; ++i) {
    // The codes might be others now: else the compiler would multiply once and add many times.
    asm volatile("" : "+r"(row));
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c)
      sums[c] = add(sums[c], dot_quads<4, 0, kQuads>(set1_part(0), set1_part(0), weights,
                                                     row + c * kGroup));
  }
  uint32_t all = 0;  // unsigned, since it wraps
  for (const PartInts& chain : sums) all += static_cast<uint32_t>(reduce_add(chain));
  *sum = static_cast<int32_t>(all);
  return n_rounds * kChains * kGroup * kPartChannels;
}

}  // namespace
}  // namespace edk
