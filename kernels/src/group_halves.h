// Products of a group where registers hold fewer than a panel's channels. The group is worked on in two
// halves of its quads, each for the channels of all parts: their unpacked weights fill half the
// registers, and a quad of a row that was loaded serves all parts. Part by part, each would be loaded
// again: on a Zen 5 one row took 1.1 times as long so with AVX2, eight rows 1.1 times with AVX-VNNI.
// Included by tile_products.h.
#pragma once

#include "group_codes.h"
#include "inline.h"
#include "rows.h"

namespace edk {
namespace {

template <int Bits, int Half>
EDK_INLINE HalfCodes unpack_half(const uint8_t* codes) {
  HalfCodes out;
  for (int p = 0; p < kParts; ++p) unpack_half<Bits, Half>(codes + p * (kVector / kParts), out.quad[p]);
  return out;
}

/// What one row has of a group after the first half, by part.
struct HalfGroup {
  PartInts dots[kParts];
  PartFloats scaled[kParts];  // of formats whose halves have scales of their own
};

/// One row of a group, of the coarse plane or of the fine one.
template <int F>
struct RowOfGroup {
  static constexpr ScaleKind kKind = kFormats[F].kind;
  static constexpr int kBits = product_bits(kFormats[F].bits);
  static constexpr int kZero = kKind == ScaleKind::kOne ? kFormats[F].zero_point : 0;

  const GroupRows& rows;
  int r;

  /// Whether dot products begin with what the zero point takes off.
  static constexpr bool kHasOffset =
      kKind == ScaleKind::kTwo || (kKind == ScaleKind::kOne && !kIsZeroLeftOut<kZero>);

  EDK_INLINE void begin(HalfGroup& group, const HalfCodes& weights, const GroupScales* scales,
                        int zero) const {
    if constexpr (kHasOffset) {
      const int32_t* offset = rows.offsets(zero) + 2 * r;
      const PartInts from = kKind == ScaleKind::kTwo ? set1_part(offset[0]) : both_offsets(offset);
      for (int p = 0; p < kParts; ++p) group.dots[p] = from;
    }
    dot_half<kBits, kZero, !kHasOffset>(group.dots, weights, rows.codes(r));
    if constexpr (kKind == ScaleKind::kTwo)
      for (int p = 0; p < kParts; ++p)
        group.scaled[p] = mul(to_floats(whole_dot<kBits, kZero>(group.dots[p])), scales[p].scale[0]);
  }

  /// Adds the group to the row's sums, which lie `Step` apart.
  template <int Step>
  EDK_INLINE void finish(PartFloats* sum, HalfGroup& group, const HalfCodes& weights,
                         const GroupScales* scales, int zero) const {
    if constexpr (kKind == ScaleKind::kTwo)
      for (int p = 0; p < kParts; ++p) group.dots[p] = set1_part(rows.offsets(zero)[2 * r + 1]);
    dot_half<kBits, kZero, false>(group.dots, weights, rows.codes(r) + kGroup / 2);
    const PartFloats row_scale = set1_part(rows.scale()[r]);
    for (int p = 0; p < kParts; ++p) {
      PartFloats& to = sum[p * Step];
      const PartFloats dot = to_floats(whole_dot<kBits, kZero>(group.dots[p]));
      if constexpr (kKind == ScaleKind::kTwo) {
        to = fma(fma(dot, scales[p].scale[1], group.scaled[p]), row_scale, to);
        continue;
      }
      to = fma(dot, mul(scales[p].scale[0], row_scale), to);
      if constexpr (kKind == ScaleKind::kOneMin || kKind == ScaleKind::kTwoMin)
        to = fma(scales[p].minimum, set1_part(rows.sum()[r]), to);
    }
  }
};

/// Adds one group to the sums of the M rows of each of `Tiles` tiles, the first of which is `tile`: the
/// coarse plane of all, then the fine plane of those that have one.
template <int F, int M, int Tiles>
EDK_INLINE void add_group_in_halves(PartFloats* sum, const Rows& all, int zero, const uint8_t* codes,
                                    const GroupScales* scales, const GroupRows& tile) {
  constexpr int kRows = Tiles * M;
  HalfGroup coarse[kRows], fine[kRows];
  const HalfCodes first = unpack_half<kFormats[F].bits, 0>(codes);
#pragma GCC unroll 2
  for (int t = 0; t < Tiles; ++t) {
    const GroupRows rows{tile.base + t * all.tile_bytes(), M};
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r)
      RowOfGroup<F>{rows, r}.begin(coarse[t * M + r], first, scales, zero);
    const uint32_t with_fine = *rows.fine();
    if (__builtin_expect(!with_fine, 1)) continue;
    const GroupRows fine_rows = all.fine(rows);
    for (int r = 0; r < M; ++r)
      if (with_fine >> r & 1) RowOfGroup<F>{fine_rows, r}.begin(fine[t * M + r], first, scales, zero);
  }
  // Else the compiler spreads all codes over registers before the first half, and runs out.
  asm volatile("" : "+r"(codes));
  const HalfCodes second = unpack_half<kFormats[F].bits, 1>(codes);
#pragma GCC unroll 2
  for (int t = 0; t < Tiles; ++t) {
    const GroupRows rows{tile.base + t * all.tile_bytes(), M};
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r)
      RowOfGroup<F>{rows, r}.template finish<kRows>(sum + t * M + r, coarse[t * M + r], second, scales,
                                                    zero);
    const uint32_t with_fine = *rows.fine();
    if (__builtin_expect(!with_fine, 1)) continue;
    const GroupRows fine_rows = all.fine(rows);
    for (int r = 0; r < M; ++r)
      if (with_fine >> r & 1)
        RowOfGroup<F>{fine_rows, r}.template finish<kRows>(sum + t * M + r, fine[t * M + r], second,
                                                           scales, zero);
  }
}

}  // namespace
}  // namespace edk
