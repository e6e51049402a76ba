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
constexpr float kSmallestScale = 1.17549435e-38f;  // below it, 1 / scale may be infinite
constexpr float kFineSteps = 254.0f;    // steps of the fine plane in one step of the coarse one

/// All rows of one pass. A row's numbers depend on that row alone.
///
/// Rows lie in tiles of kTileRows, and a tile lies group by group, so that a dot product reads every
/// array at one address and constant offsets: `place(r, g)`. The fine plane lies `plane` places
/// after the coarse one, in the same order.
struct Rows {
  int64_t k = 0;  // columns of the weights
  int64_t groups = 0;
  int64_t plane = 0;            // places of one plane
  float* normed = nullptr;      // [rows, k] in plain order, only when a float format reads it
  int8_t* codes = nullptr;      // 32 per place; those past k are zero
  uint8_t* is_fine = nullptr;   // per place of the coarse plane: its fine place is set
  float* scale = nullptr;       // per place
  float* sum = nullptr;         // per place: scale * (sum of codes)
  int32_t* half_sum = nullptr;  // 2 per place: sum of codes over 16

  int64_t place(int64_t r, int64_t g) const {
    return (r / kTileRows * groups + g) * kTileRows + r % kTileRows;
  }
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

/// Writes the codes at `place` for values given in steps of `scale`; returns what rounding left.
/// Steps that are no number become some code: the row's scale spoils its results anyway.
struct Quantised {
  Floats rest[2];

  Quantised(const Floats steps[2], float scale, const Rows& rows, int64_t place) {
    int32_t total = 0;
    for (int h = 0; h < 2; ++h) {
      const Floats code = max(min(round(steps[h]), set1(127.0f)), set1(-127.0f));
      rest[h] = sub(steps[h], code);
      store_i8(rows.codes + place * kGroup + 16 * h, to_ints(code));
      const int32_t sum = reduce_add(to_ints(code));
      rows.half_sum[2 * place + h] = sum;
      total += sum;
    }
    rows.scale[place] = scale;
    rows.sum[place] = scale * static_cast<float>(total);
  }
};

inline void quantise_group(const GroupValues& values, float scale, float fine_above,
                           const Rows& rows, int64_t place) {
  const Floats inverse = set1(scale >= kSmallestScale ? 1.0f / scale : 0.0f);
  const Floats steps[2] = {mul(values.half[0], inverse), mul(values.half[1], inverse)};
  const Quantised coarse(steps, scale, rows, place);
  rows.is_fine[place] = scale > fine_above;
  if (!rows.is_fine[place]) return;
  const Floats finer = set1(kFineSteps);
  const Floats rest[2] = {mul(coarse.rest[0], finer), mul(coarse.rest[1], finer)};
  Quantised(rest, scale / kFineSteps, rows, place + rows.plane);
}

/// One row's values, group by group; norming is cheap enough to do again in a second pass.
class RowReader {
 public:
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
  const float* x_;
  const float* weight_;
  int64_t k_;
  float inverse_;
};

inline void quantise_row(const RowReader& reader, const Rows& rows, int64_t r) {
  double total = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const GroupValues values = reader.group(g);
    const float scale = reduce_max(max(abs(values.half[0]), abs(values.half[1]))) / 127.0f;
    rows.scale[rows.place(r, g)] = scale;
    total += static_cast<double>(scale);
  }
  const float mean = static_cast<float>(total / static_cast<double>(rows.groups));
  for (int64_t g = 0; g < rows.groups; ++g)
    quantise_group(reader.group(g), rows.scale[rows.place(r, g)], kFineThreshold * mean, rows,
                   rows.place(r, g));
}

inline void prepare_row(const LinearArgs& args, const Rows& rows, int64_t r) {
  const RowReader reader(args, r);
  if (rows.codes) quantise_row(reader, rows, r);
  for (int64_t g = 0; rows.normed && g < rows.groups; ++g) {
    const GroupValues values = reader.group(g);
    for (int64_t h = 0; 16 * h < reader.size(g); ++h)
      store_n(rows.normed + r * args.k + g * kGroup + 16 * h, values.half[h], reader.size(g) - 16 * h);
  }
}

}  // namespace
}  // namespace edk
