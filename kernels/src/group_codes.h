// Codes and scales of one group of packed weights. Included after one simd_*.h.
#pragma once

#include "inline.h"
#include "layout.h"

namespace edk {
namespace {

template <int Quad, int Bits>
inline Bytes with_high_bits(Bytes low, const Bytes* high) {
  if constexpr (Bits == 5) return with_bit4<Quad>(low, high[0]);
  if constexpr (Bits == 6) return with_bits45<2 * (Quad % 4)>(low, high[Quad / 4]);
  return low;
}

/// Nibbles of the quads of a pair. Of 3 bits, the last pair is spread over the vectors of the others.
template <int Bits, int Pair>
EDK_INLINE Bytes load_nibbles(const uint8_t* codes) {
  if constexpr (Bits == 3 && Pair == 3)
    return spare_bits(load_bytes(codes), load_bytes(codes + kVector), load_bytes(codes + 2 * kVector));
  return load_bytes(codes + Pair * kVector);
}

template <int Bits, int Pair>
EDK_INLINE void unpack_pair(const uint8_t* codes, const Bytes* high, GroupCodes* out) {
  if constexpr (Bits == 2) {
    const Bytes four = load_bytes(codes + Pair / 2 * kVector);
    out->quad[2 * Pair] = two_bits<4 * (Pair % 2)>(four);
    out->quad[2 * Pair + 1] = two_bits<4 * (Pair % 2) + 2>(four);
    return;
  }
  const Bytes both = load_nibbles<Bits, Pair>(codes);
  if constexpr (Bits == 3) {
    out->quad[2 * Pair] = to_levels(low_nibbles(both));
    out->quad[2 * Pair + 1] = to_levels(high_nibbles(both));
    return;
  }
  out->quad[2 * Pair] = with_high_bits<2 * Pair, Bits>(low_nibbles(both), high);
  out->quad[2 * Pair + 1] = with_high_bits<2 * Pair + 1, Bits>(high_nibbles(both), high);
}

/// Codes of one part of a group's channels.
template <int Bits>
EDK_INLINE GroupCodes unpack(const uint8_t* codes) {
  GroupCodes out;
  if constexpr (Bits == 8) {
    for (int j = 0; j < kQuads; ++j) out.quad[j] = load_bytes(codes + j * kVector);
  } else {
    Bytes high[2];
    for (int v = 0; v < Bits - 4; ++v) high[v] = load_bytes(codes + (4 + v) * kVector);
    unpack_pair<Bits, 0>(codes, high, &out);
    unpack_pair<Bits, 1>(codes, high, &out);
    unpack_pair<Bits, 2>(codes, high, &out);
    unpack_pair<Bits, 3>(codes, high, &out);
  }
  return out;
}

/// Codes of half `Half` of a group.
template <int Bits, int Half>
EDK_INLINE void unpack_half(const uint8_t* codes, Bytes* quads) {
  constexpr int kFirst = Half * kQuads / 2;
  if constexpr (Bits == 8) {
    for (int j = 0; j < kQuads / 2; ++j) quads[j] = load_bytes(codes + (kFirst + j) * kVector);
  } else {
    GroupCodes all;
    Bytes high[2];
    constexpr int kHigh = Bits == 6 ? Half : 0;
    if constexpr (Bits > 4) high[kHigh] = load_bytes(codes + (4 + kHigh) * kVector);
    unpack_pair<Bits, kFirst / 2>(codes, high, &all);
    unpack_pair<Bits, kFirst / 2 + 1>(codes, high, &all);
    for (int j = 0; j < kQuads / 2; ++j) quads[j] = all.quad[kFirst + j];
  }
}

/// Scales of one group and part: `scale[1]` is that of k 16-31 and used by TWO alone.
struct GroupScales {
  PartFloats scale[2];
  PartFloats minimum;
};

template <ScaleKind Kind>
EDK_INLINE GroupScales group_scales(const PartFloats outer[2], const uint8_t* own, int part) {
  const int64_t first = part * kPartChannels;
  const auto* half = reinterpret_cast<const uint16_t*>(own) + first;
  GroupScales out;
  if constexpr (Kind == ScaleKind::kTwoMin) {
    out.scale[0] = mul(outer[0], load_part_u8(own + first));
    out.minimum = sub(set1_part(0.0f), mul(outer[1], load_part_u8(own + kPanel + first)));
  } else if constexpr (Kind == ScaleKind::kTwo) {
    out.scale[0] = mul(outer[0], load_part_i8(own + first));
    out.scale[1] = mul(outer[0], load_part_i8(own + kPanel + first));
  } else {
    out.scale[0] = load_part_half(half);
    if constexpr (Kind == ScaleKind::kOneMin) out.minimum = load_part_half(half + kPanel);
  }
  return out;
}

}  // namespace
}  // namespace edk
