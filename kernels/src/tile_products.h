// Products of one panel of packed weights with the rows of one tile or two. Included after one simd_*.h.
//
// Each group is unpacked once for up to kMostRows rows. Where registers hold fewer than a panel's
// channels, a group is worked on part by part, so that a part's unpacked weights stay in registers; where
// they hold half of them, see group_halves.h.
#pragma once

#include <utility>

#include "group_codes.h"
#include "inline.h"
#include "rows.h"

#ifndef EDK_PARTS
#error "the instruction set does not say in how many parts a panel is worked on"
#elif EDK_PARTS == 2
#include "group_halves.h"
#endif

namespace edk {
namespace {

/// A packed matrix, the rows it meets and which of their zero points is its own.
struct Operand {
  const Matrix* matrix;
  const Rows* rows;
  int zero;
};

/// Adds the products of one group of weights with row r of a tile.
template <int F>
EDK_INLINE PartFloats add_group(PartFloats sum, const GroupCodes& weights,
                                const GroupScales& scales, const GroupRows& rows, int zero, int r) {
  constexpr ScaleKind kKind = kFormats[F].kind;
  constexpr int kBits = product_bits(kFormats[F].bits);
  const int8_t* codes = rows.codes(r);
  const PartFloats row_scale = set1_part(rows.scale()[r]);
  const PartInts none = set1_part(0);
  if constexpr (kKind == ScaleKind::kOneMin || kKind == ScaleKind::kTwoMin) {
    const PartFloats dot = to_floats(dot_quads<kBits, 0, 8>(none, none, weights, codes));
    sum = fma(dot, mul(scales.scale[0], row_scale), sum);
    return fma(scales.minimum, set1_part(rows.sum()[r]), sum);
  } else {
    const int32_t* offset = rows.offsets(zero) + 2 * r;
    const PartInts first = set1_part(offset[0]), second = set1_part(offset[1]);
    if constexpr (kKind == ScaleKind::kTwo) {
      const PartFloats low = to_floats(dot_quads<kBits, 0, 4>(first, none, weights, codes));
      const PartFloats high = to_floats(dot_quads<kBits, 4, 8>(second, none, weights, codes));
      return fma(fma(high, scales.scale[1], mul(low, scales.scale[0])), row_scale, sum);
    }
    constexpr int kZero = kFormats[F].zero_point;
    const PartFloats dot = to_floats(dot_quads<kBits, 0, 8, kZero>(first, second, weights, codes));
    return fma(dot, mul(scales.scale[0], row_scale), sum);
  }
}

/// Adds one group to the sums of M rows: the coarse plane of all, then the fine plane of those that
/// have one. One look tells whether any does.
template <int F, int M>
EDK_INLINE void add_groups(PartFloats* sum, const Operand& op, const GroupCodes& weights,
                           const GroupScales& scales, const GroupRows& coarse) {
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) sum[r] = add_group<F>(sum[r], weights, scales, coarse, op.zero, r);
  const uint32_t with_fine = *coarse.fine();
  if (__builtin_expect(!with_fine, 1)) return;
  const GroupRows fine = op.rows->fine(coarse);
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r)
    if (with_fine >> r & 1) sum[r] = add_group<F>(sum[r], weights, scales, fine, op.zero, r);
}

/// Scales that all groups of a block share, of one part.
template <int F>
EDK_INLINE void load_outer(const uint8_t* panel, int part, PartFloats* outer) {
  const auto* half = reinterpret_cast<const uint16_t*>(panel) + part * kPartChannels;
  if constexpr (group_scales_offset(F) != 0) outer[0] = load_part_half(half);
  if constexpr (kFormats[F].kind == ScaleKind::kTwoMin) outer[1] = load_part_half(half + kPanel);
}

/// Bytes of a block, header included, that one group fetches: lines that nobody asks for in time hold up
/// all that follow.
template <int F>
constexpr int64_t kShare = ceil_div(block_bytes(F, kGroupsPerBlock), kGroupsPerBlock);

/// With one row, whose groups follow each other fastest, the processor itself brings lines from the second
/// cache to the first sooner than if asked to.
template <int F, int M, bool Once>
EDK_INLINE void fetch_share(const uint8_t* share) {
  for (int64_t line = 0; line < kShare<F>; line += kCacheLine) {
    const uint8_t* early = share + (M == 1 ? kEarlierBytes : kEarlyBytes) + line;
    Once ? prefetch_once(early) : prefetch_early(early);
    if constexpr (M > 1) prefetch(share + kSoonBytes + line);
  }
}

/// Products of one panel with the M rows of each of `Tiles` tiles, the first being `tile`. Once: weights
/// come by `prefetch_once`.
template <int F, int M, int Tiles, bool Once = false>
void quantised_tiles(const Operand& op, const uint8_t* panel, int64_t tile, Floats* out) {
  constexpr int kRows = Tiles * M;
  PartFloats sum[kParts * kRows];
#pragma GCC unroll 32
  for (int i = 0; i < kParts * kRows; ++i) sum[i] = set1_part(0.0f);
  for (int64_t block = 0; block < op.rows->groups; block += kGroupsPerBlock) {
    const int64_t left = op.rows->groups - block;
    const int64_t groups = left < kGroupsPerBlock ? left : kGroupsPerBlock;
    PartFloats outer[kParts][2];
    for (int part = 0; part < kParts; ++part) load_outer<F>(panel, part, outer[part]);
    const uint8_t* own = panel + group_scales_offset(F);
    const uint8_t* codes = panel + header_bytes(F, groups);
    const uint8_t* share = panel;
    for (int64_t g = 0; g < groups; ++g) {
      fetch_share<F, M, Once>(share);
      share += kShare<F>;
      const GroupRows rows = op.rows->at(tile, block + g, M);
      GroupScales scales[kParts];
      for (int part = 0; part < kParts; ++part)
        scales[part] = group_scales<kFormats[F].kind>(outer[part], own, part);
#if EDK_PARTS == 2
      PartFloats* sums = sum;
      // GCC would copy all sums of so many rows from one place in memory to another in every group.
      if constexpr (kRows == kTileRows) asm volatile("" : "+r"(sums) : : "memory");
      add_group_in_halves<F, M, Tiles>(sums, *op.rows, op.zero, codes, scales, rows);
#else
      auto tiles = rows.base;
      for (int part = 0; part < kParts; ++part) {
        // Else the compiler spreads all codes over registers before the first part, and runs out.
        if constexpr (kParts > 1) asm volatile("" : "+r"(tiles));
        const GroupCodes weights = unpack<kFormats[F].bits>(codes + part * (kVector / kParts));
#pragma GCC unroll 2
        for (int t = 0; t < Tiles; ++t)
          add_groups<F, M>(sum + part * kRows + t * M, op, weights, scales[part],
                           GroupRows{tiles + t * op.rows->tile_bytes(), M});
      }
#endif
      own += group_scales_bytes(F);
      codes += group_bytes(F);
    }
    panel = codes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) out[r] = join<kRows>(sum + r);
}

template <int F>
inline Floats load_weights(const uint8_t* panel, int64_t k) {
  if constexpr (F == kF32) return load(reinterpret_cast<const float*>(panel) + k * kPanel);
  const auto* half = reinterpret_cast<const uint16_t*>(panel) + k * kPanel;
  if constexpr (F == kF16) return load_half(half);
  return load_bfloat(half);
}

/// As `quantised_tiles` of one tile, in float32: even and odd k are two chains, added at the end.
template <int F, int M>
void float_tile(const Operand& op, const uint8_t* panel, int64_t tile, Floats* out) {
  const int64_t k = op.rows->k;
  const float* x = op.rows->normed + tile * kTileRows * k;
  Floats even[M], odd[M];
  for (int r = 0; r < M; ++r) even[r] = odd[r] = set1(0.0f);
  for (int64_t i = 0; i < k; i += 2) {
    const Floats weights = load_weights<F>(panel, i);
    for (int r = 0; r < M; ++r) even[r] = fma(set1(x[r * k + i]), weights, even[r]);
    if (i + 1 == k) break;
    const Floats next = load_weights<F>(panel, i + 1);
    for (int r = 0; r < M; ++r) odd[r] = fma(set1(x[r * k + i + 1]), next, odd[r]);
  }
  for (int r = 0; r < M; ++r) out[r] = add(even[r], odd[r]);
}

template <int F, int M>
inline void tile_of_format(const Operand& op, const uint8_t* panel, int64_t tile, Floats* out) {
  if constexpr (is_float(F))
    float_tile<F, M>(op, panel, tile, out);
  else
    quantised_tiles<F, M, 1>(op, panel, tile, out);
}

/// Two full tiles; those of floats, which need no unpacking, one after the other.
template <int F>
inline void pair_of_format(const Operand& op, const uint8_t* panel, int64_t tile, Floats* out) {
  if constexpr (is_float(F)) {
    float_tile<F, kTileRows>(op, panel, tile, out);
    float_tile<F, kTileRows>(op, panel, tile + 1, out + kTileRows);
  } else {
    quantised_tiles<F, kTileRows, 2>(op, panel, tile, out);
  }
}

using Tile = void (*)(const Operand&, const uint8_t*, int64_t, Floats*);

template <int F, int... Index>
inline Tile tile_from(int64_t m, std::integer_sequence<int, Index...>) {
  static constexpr Tile table[] = {tile_of_format<F, Index + 1>...};
  return table[m - 1];
}

template <int F>
inline Tile tile_of_rows(int64_t m) {
  if (m > kTileRows) return pair_of_format<F>;
  if constexpr (!is_float(F)) {
    if (m == 1 && has_prefetch_once()) return quantised_tiles<F, 1, 1, true>;
  }
  return tile_from<F>(m, std::make_integer_sequence<int, kTileRows>());
}

inline Tile find_tile(int format, int64_t m) {
  switch (format) {
    case kF32: return tile_of_rows<kF32>(m);
    case kF16: return tile_of_rows<kF16>(m);
    case kBf16: return tile_of_rows<kBf16>(m);
    case kQ4_0: return tile_of_rows<kQ4_0>(m);
    case kQ4_1: return tile_of_rows<kQ4_1>(m);
    case kQ5_0: return tile_of_rows<kQ5_0>(m);
    case kQ5_1: return tile_of_rows<kQ5_1>(m);
    case kQ8_0: return tile_of_rows<kQ8_0>(m);
    case kQ8_1: return tile_of_rows<kQ8_1>(m);
    case kQ4K: return tile_of_rows<kQ4K>(m);
    case kQ5K: return tile_of_rows<kQ5K>(m);
    case kQ6K: return tile_of_rows<kQ6K>(m);
    case kQ3Nl: return tile_of_rows<kQ3Nl>(m);
    default: return tile_of_rows<kQ2_0>(m);
  }
}

constexpr int64_t kMostRows = 2 * kTileRows;  // that one product takes

/// How many of the `left` rows, which begin with a tile, the next product takes: two full tiles or one.
inline int64_t rows_at_once(int64_t left) {
  return left >= kMostRows ? kMostRows : min_of(left, kTileRows);
}

/// Products of m rows that begin with a tile, as many as `rows_at_once` says, with panel `p` of those
/// that begin at `panels`.
inline void multiply_panel(const Operand& op, const uint8_t* panels, int64_t p, int64_t tile,
                           int64_t m, Floats* out) {
  const int format = op.matrix->format;
  find_tile(format, m)(op, panels + p * panel_bytes(format, op.rows->k), tile, out);
}

}  // namespace
}  // namespace edk
