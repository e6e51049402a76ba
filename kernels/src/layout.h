// The packed layout of a matrix [n, k], shared by every ISA.
//
// Rows (output channels) are cut into panels of 16; the last panel is filled with zero rows. A panel
// is one contiguous stream, so that a pass over the weights reads memory strictly forwards.
//
// Float formats: panel = [k][16] elements.
//
// Quantised formats: panel = blocks of 256 k, the last one shorter (a whole number of groups of 32;
// k is filled with zero codes, which meet zero activations). A block is a header, padded to 64
// bytes, then the codes of its g groups:
//
//   header   ONE      g x [16 x f16 scale]
//            ONE_MIN  g x [16 x f16 scale, 16 x f16 minimum]
//            TWO_MIN  16 x f16 scale, 16 x f16 minimum, g x [16 x u8 sub_scale, 16 x u8 sub_minimum]
//            TWO      16 x f16 scale, 2g x [16 x i8 sub_scale]
//   codes    a group is 8 quads of 4 consecutive k; byte 4c + t of a quad belongs to channel c, k = 4j + t.
//     4 bit  4 x 64 bytes: vector v holds quad 2v in its low nibbles, quad 2v + 1 in its high ones
//     2 bit  2 x 64 bytes: bits 2i, 2i+1 of vector v are quad 4v + i
//     3 bit  3 x 64 bytes: as 4 bit for quads 0 to 5, in bits 0-2 of each nibble; bit 3 of the low
//            nibbles of vector v is bit v of quad 6, that of the high ones of quad 7
//     5 bit  as 4 bit for bits 0-3, then 64 bytes: bit j of a byte is bit 4 of quad j
//     6 bit  as 4 bit for bits 0-3, then 2 x 64 bytes: bits 2i, 2i+1 of vector v are bits 4, 5 of
//            quad 4v + i
//     8 bit  8 x 64 bytes, one vector per quad
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edk {

enum class ScaleKind { kNone, kOne, kOneMin, kTwoMin, kTwo };

/// One row of the format table of models/quant.py; the position is the format's index.
struct Format {
  int bits;
  ScaleKind kind;
  int zero_point;
};

constexpr Format kFormats[] = {
    {32, ScaleKind::kNone, 0},   {16, ScaleKind::kNone, 0},   {16, ScaleKind::kNone, 0},
    {4, ScaleKind::kOne, 8},     {4, ScaleKind::kOneMin, 0},  {5, ScaleKind::kOne, 16},
    {5, ScaleKind::kOneMin, 0},  {8, ScaleKind::kOne, 128},   {8, ScaleKind::kOneMin, 0},
    {4, ScaleKind::kTwoMin, 0},  {5, ScaleKind::kTwoMin, 0},  {6, ScaleKind::kTwo, 32},
    {3, ScaleKind::kOne, 16},    {2, ScaleKind::kOne, 1},
};
constexpr int kNumFormats = sizeof(kFormats) / sizeof(kFormats[0]);
enum FormatIndex { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ8_1, kQ4K, kQ5K, kQ6K, kQ3Nl, kQ2_0 };

constexpr int64_t kCacheLine = 64;                 // bytes; no two threads ever write the same one
// Weights are fetched so far ahead of the group in work: early from memory into the second cache, soon
// from there into the first. 8 to 24 kB and 1 to 3 kB measure alike. Straight into the first, two to
// four rows take 10 to 20 % longer: its few requests then wait for memory, and all other loads for them.
constexpr int64_t kEarlyBytes = 8192;
constexpr int64_t kEarlierBytes = 16384;  // with one row, whose groups take less time each
constexpr int64_t kSoonBytes = 1536;
constexpr int kVector = 4 * kPanel;                // bytes of one quad of all channels
constexpr int kQuads = kGroup / 4;                 // quads of a group
constexpr int kGroupsPerBlock = kSuper / kGroup;

/// What the codes of 3 bits stand for: codes of `q5_0`. Twice, so that bit 3 of an index does not matter.
constexpr uint8_t kThreeBitLevels[16] = {0, 6, 10, 13, 16, 19, 23, 28, 0, 6, 10, 13, 16, 19, 23, 28};

/// Bits of what products are taken with, for codes of `bits`.
constexpr int product_bits(int bits) { return bits == 3 ? 5 : bits == 2 ? 4 : bits; }

constexpr bool is_float(int format) { return kFormats[format].kind == ScaleKind::kNone; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/// Bytes of the codes of one group of one panel.
constexpr int64_t group_bytes(int format) { return kFormats[format].bits * kGroup * kPanel / 8; }

/// Offset of the first group's own scales inside a block header.
constexpr int64_t group_scales_offset(int format) {
  return kFormats[format].kind == ScaleKind::kTwoMin ? 4 * kPanel
         : kFormats[format].kind == ScaleKind::kTwo  ? 2 * kPanel
                                                     : 0;
}

/// Bytes of one group's own scales inside a block header.
constexpr int64_t group_scales_bytes(int format) {
  return kFormats[format].kind == ScaleKind::kOneMin ? 4 * kPanel : 2 * kPanel;
}

/// Bytes of the header of a block of `groups` groups.
constexpr int64_t header_bytes(int format, int64_t groups) {
  return ceil_div(group_scales_offset(format) + groups * group_scales_bytes(format), 64) * 64;
}

constexpr int64_t block_bytes(int format, int64_t groups) {
  return header_bytes(format, groups) + groups * group_bytes(format);
}

/// Bytes of one panel of a matrix with `k` columns.
constexpr int64_t panel_bytes(int format, int64_t k) {
  if (is_float(format)) return k * kPanel * kFormats[format].bits / 8;
  const int64_t groups = ceil_div(k, kGroup);
  const int64_t rest = groups % kGroupsPerBlock;
  return (groups / kGroupsPerBlock) * block_bytes(format, kGroupsPerBlock) +
         (rest ? block_bytes(format, rest) : 0);
}

}  // namespace edk
