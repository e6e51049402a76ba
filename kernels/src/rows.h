// Activation rows as the dot products read them: normed, then quantised by groups of 32.
// Included after one simd_*.h.
//
// A group's codes have 8 bits, unless its scale is far above the row's average: then its rounding
// errors would outweigh those of all others (outlier features are like that), so what rounding left
// over is quantised again into a second, fine plane. Halves the error of SmolLM2's logits for a
// second dot product in one group of twelve.
#pragma once

#include <cmath>

#include "layout.h"
#include "scratch.h"

namespace edk {
namespace {

constexpr float kFineThreshold = 2.0f;  // times the row's mean scale
constexpr int64_t kGroupsAhead = 8;    // whose lines are asked for before they are written
constexpr float kSmallestScale = 1.17549435e-38f;  // below it, 1 / scale may be infinite
constexpr float kFineSteps = 254.0f;    // steps of the fine plane in one step of the coarse one

/// One group of a tile of m rows, all that a dot product reads of it side by side: one row's fits into
/// a cache line. What each zero point of the matrices costs comes last: per row, minus the zero point
/// times the sum of the codes over k 0-15 and over k 16-31.
struct GroupRows {
  uint8_t* base;
  int64_t m;

  int8_t* codes(int64_t r) const { return reinterpret_cast<int8_t*>(base) + r * kGroup; }
  float* scale() const { return reinterpret_cast<float*>(base + m * kGroup); }
  float* sum() const { return scale() + m; }  // scale * (sum of codes)
  uint32_t* fine() const { return reinterpret_cast<uint32_t*>(sum() + m); }  // bit r: it has that plane
  int32_t* offsets(int i) const { return reinterpret_cast<int32_t*>(fine() + 1) + i * 2 * m; }

  static int64_t bytes(int64_t m, int n_zero) { return m * kGroup + 4 * (2 * m + 1 + n_zero * 2 * m); }
};

/// All rows of one pass. A row's numbers depend on that row alone.
///
/// Rows lie in tiles, a tile group by group. A group takes whole cache lines, so that threads which
/// prepare different groups never write the same line: lines that several cores write go back and
/// forth between them, which cost eight rows on two core clusters a third of their time.
struct Rows {
  int64_t k = 0;  // columns of the weights
  int64_t groups = 0;
  float* normed = nullptr;       // [rows, k] in plain order, only when a float format reads it
  uint8_t* coarse = nullptr;     // GroupRows of all tiles, `group_bytes` apart, or null
  int64_t group_bytes = 0;
  int64_t plane_bytes = 0;       // from a group's coarse plane to its fine plane
  int n_zero = 0;
  int32_t zero[kMaxMatrices] = {};  // the zero points of the matrices

  /// m: rows of the tile.
  GroupRows at(int64_t tile, int64_t g, int64_t m) const {
    return {coarse + tile * tile_bytes() + g * group_bytes, m};
  }
  int64_t tile_bytes() const { return groups * group_bytes; }
  GroupRows fine(const GroupRows& group) const { return {group.base + plane_bytes, group.m}; }
};

inline float rms_inverse(const float* x, int64_t k, float epsilon) {
  Floats squares = set1(0.0f);
  for (int64_t i = 0; i < k; i += 16) {
    const Floats v = load_n(x + i, k - i);
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(k) + epsilon);
}

/// One group of at most 32 values that start at `x`; `n` of them exist.
struct GroupValues {
  Floats half[2];

  GroupValues(const float* x, const float* weight, float inverse, int64_t n) {
    for (int h = 0; h < 2; ++h) {
      const int64_t left = n - 16 * h > 0 ? n - 16 * h : 0;
      half[h] = load_n(x + 16 * h, left);
      if (weight) half[h] = mul(mul(half[h], set1(inverse)), load_n(weight + 16 * h, left));
    }
  }
};

/// Writes values given in steps of `scale` as row r of a group; keeps what rounding left.
/// Steps that are no number become some code: the row's scale spoils its results anyway.
struct Quantised {
  Floats rest[2];

  Quantised(const Floats steps[2], float scale, const Rows& rows, const GroupRows& out, int64_t r) {
    int32_t total = 0;
    for (int h = 0; h < 2; ++h) {
      const Floats code = max(min(round(steps[h]), set1(127.0f)), set1(-127.0f));
      rest[h] = sub(steps[h], code);
      store_i8(out.codes(r) + 16 * h, to_ints(code));
      for (int i = 0; i < rows.n_zero; ++i)
        out.offsets(i)[2 * r + h] = zero_offset(to_ints(code), rows.zero[i]);
      total += reduce_add(to_ints(code));
    }
    out.scale()[r] = scale;
    out.sum()[r] = scale * static_cast<float>(total);
  }
};

/// Quantises row r of a group; says whether it has a fine plane.
inline bool quantise_group(const GroupValues& values, float scale, float fine_above,
                           const Rows& rows, const GroupRows& out, int64_t r) {
  const Floats inverse = set1(scale >= kSmallestScale ? 1.0f / scale : 0.0f);
  const Floats steps[2] = {mul(values.half[0], inverse), mul(values.half[1], inverse)};
  const Quantised coarse(steps, scale, rows, out, r);
  if (!(scale > fine_above)) return false;
  const Floats finer = set1(kFineSteps);
  const Floats rest[2] = {mul(coarse.rest[0], finer), mul(coarse.rest[1], finer)};
  Quantised(rest, scale / kFineSteps, rows, rows.fine(out), r);
  return true;
}

/// One row's values, group by group; norming is cheap enough to do again in a second pass.
class RowReader {
 public:
  RowReader() = default;
  RowReader(const LinearArgs& args, int64_t r)
      : x_(args.x + r * args.k),
        weight_(args.norm_weight),
        k_(args.k),
        inverse_(weight_ ? rms_inverse(x_, k_, args.epsilon) : 1.0f) {}

  GroupValues group(int64_t g) const {
    const int64_t at = g * kGroup;
    return GroupValues(x_ + at, weight_ ? weight_ + at : nullptr, inverse_, size(g));
  }
  int64_t size(int64_t g) const { return k_ - g * kGroup < kGroup ? k_ - g * kGroup : kGroup; }

 private:
  const float* x_ = nullptr;
  const float* weight_ = nullptr;
  int64_t k_ = 0;
  float inverse_ = 1.0f;
};

/// One row, and what of all its groups each of them depends on. Threads may write neighbours in an
/// array of these.
struct alignas(kCacheLine) MeasuredRow {
  RowReader reader;
  const float* scales;  // [groups]
  float fine_above;     // groups of larger scales have a fine plane
};

/// Measures row r; writes `scales` [groups], if its groups will be quantised.
inline MeasuredRow measure_row(const LinearArgs& args, const Rows& rows, int64_t r, float* scales) {
  MeasuredRow row{RowReader(args, r), scales, 0.0f};
  if (!rows.coarse) return row;
  double total = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const GroupValues values = row.reader.group(g);
    scales[g] = reduce_max(max(abs(values.half[0]), abs(values.half[1]))) / 127.0f;
    total += static_cast<double>(scales[g]);
  }
  row.fine_above = kFineThreshold * static_cast<float>(total / static_cast<double>(rows.groups));
  return row;
}

/// Groups [begin, end) of the rows of one tile: what one thread prepares.
struct RowsShare {
  int64_t tile;
  int64_t m;  // rows of the tile
  int64_t begin;
  int64_t end;
};

/// Asks for the lines of groups [begin, end) of a tile, to write them. Other cores have read them for the
/// operator before; else each store waits until they gave them up, which took two thirds of the time.
inline void fetch_to_write(const Rows& rows, int64_t tile, int64_t begin, int64_t end) {
  const uint8_t* lines = rows.at(tile, begin, 0).base;
  for (int64_t at = 0; at < (end - begin) * rows.group_bytes; at += kCacheLine)
    __builtin_prefetch(lines + at, 1);
}

/// Quantises a share of the `measured` rows [m] of its tile: group by group, as a group's lines are then
/// written one after the other.
inline void quantise_share(const MeasuredRow* measured, const Rows& rows, const RowsShare& share) {
  fetch_to_write(rows, share.tile, share.begin, min_of(share.begin + kGroupsAhead, share.end));
  for (int64_t g = share.begin; g < share.end; ++g) {
    const GroupRows out = rows.at(share.tile, g, share.m);
    const int64_t later = g + kGroupsAhead;  // in this share: others write the next one
    if (later < share.end) fetch_to_write(rows, share.tile, later, later + 1);
    uint32_t with_fine = 0;
    for (int64_t r = 0; r < share.m; ++r) {
      const MeasuredRow& row = measured[r];
      const bool is_fine =
          quantise_group(row.reader.group(g), row.scales[g], row.fine_above, rows, out, r);
      with_fine |= static_cast<uint32_t>(is_fine) << r;
    }
    *out.fine() = with_fine;
  }
}

/// Writes a share of the `measured` rows [m] of its tile in plain order.
inline void norm_share(const MeasuredRow* measured, const Rows& rows, const RowsShare& share) {
  for (int64_t r = 0; r < share.m; ++r) {
    const RowReader& reader = measured[r].reader;
    float* normed = rows.normed + (share.tile * kTileRows + r) * rows.k;
    for (int64_t g = share.begin; g < share.end; ++g) {
      const GroupValues values = reader.group(g);
      for (int64_t h = 0; 16 * h < reader.size(g); ++h)
        store_n(normed + g * kGroup + 16 * h, values.half[h], reader.size(g) - 16 * h);
    }
  }
}

inline void prepare_share(const MeasuredRow* measured, const Rows& rows, const RowsShare& share) {
  if (rows.coarse) quantise_share(measured, rows, share);
  if (rows.normed) norm_share(measured, rows, share);
}

/// Prepares the m rows of one tile.
inline void prepare_tile(const LinearArgs& args, const Rows& rows, int64_t tile, int64_t m) {
  const size_t bytes = static_cast<size_t>(m * rows.groups) * sizeof(float);
  auto* scales = static_cast<float*>(scratch(ScratchUse::kTask, bytes));
  MeasuredRow measured[kTileRows];
  for (int64_t r = 0; r < m; ++r)
    measured[r] = measure_row(args, rows, tile * kTileRows + r, scales + r * rows.groups);
  prepare_share(measured, rows, RowsShare{tile, m, 0, rows.groups});
}

}  // namespace
}  // namespace edk
