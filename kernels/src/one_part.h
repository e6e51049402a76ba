// Panels worked on whole, for instruction sets whose registers hold sixteen lanes or that have many.
// Included at the end of such a simd_*.h; simd_avx2.h has two parts.
#pragma once

#include "inline.h"
#include "layout.h"

namespace edk {
namespace {

#define EDK_PARTS 1
constexpr int kParts = EDK_PARTS;                // registers that hold a panel's channels
constexpr int kPartChannels = kPanel / kParts;

using PartFloats = Floats;  // one lane per channel of a part
using PartInts = Ints;

inline PartFloats set1_part(float x) { return set1(x); }
inline PartInts set1_part(int32_t x) { return set1(x); }
inline PartFloats load_part_half(const uint16_t* p) { return load_half(p); }
inline PartFloats load_part_u8(const uint8_t* p) { return load_u8(p); }
inline PartFloats load_part_i8(const uint8_t* p) { return load_i8(p); }
/// The sixteen lanes of all parts, which lie `Step` apart.
template <int Step>
EDK_INLINE Floats join(const PartFloats* parts) {
  return parts[0];
}

/// What the dot product of 16 codes with weights of a zero point takes off for that.
inline int32_t zero_offset(Ints codes, int32_t zero) { return -zero * reduce_add(codes); }

/// The eight quads of one group as unsigned bytes, of the channels of a part.
struct GroupCodes {
  Bytes quad[kQuads];
};

/// Integer dot product of quads [First, Last) with one row's codes, plus `even` and `odd`: two
/// chains hide latency, and integer sums do not care. Zero: the zero point of the weights, whose product
/// with the sum of the codes both together take off.
template <int Bits, int First, int Last, int Zero = 0>
EDK_INLINE PartInts dot_quads(PartInts even, PartInts odd, const GroupCodes& weights,
                              const int8_t* codes) {
#pragma GCC unroll 8
  for (int j = First; j < Last; j += 2) {
    even = dot_quad<Bits>(even, weights.quad[j], codes + 4 * j);
    odd = dot_quad<Bits>(odd, weights.quad[j + 1], codes + 4 * j + 4);
  }
  return add(even, odd);
}

}  // namespace
}  // namespace edk
