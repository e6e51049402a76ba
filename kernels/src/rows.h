// Activation rows as the dot products read them: normed, then quantised to int8 by groups of 32.
// Included after one simd_*.h.
#pragma once

#include <cmath>

#include "layout.h"
#include "scratch.h"

namespace edk {
namespace {

/// All rows of one pass. A row's numbers depend on that row alone.
struct Rows {
  int64_t k = 0;         // columns of the weights
  int64_t padded_k = 0;  // k rounded up to a whole group; codes past k are zero
  int64_t groups = 0;
  float* normed = nullptr;      // [rows, k], only when a float format reads it
  int8_t* codes = nullptr;      // [rows, padded_k]
  float* scale = nullptr;       // [rows, groups]: amax / 127
  float* sum = nullptr;         // [rows, groups]: scale * (sum of codes)
  int32_t* half_sum = nullptr;  // [rows, 2 groups]: sum of codes over 16
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

inline void quantise_group(const GroupValues& values, const Rows& rows, int64_t r, int64_t g) {
  const float largest = reduce_max(max(abs(values.half[0]), abs(values.half[1])));
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const float scale = largest / 127.0f;
  int32_t total = 0;
  for (int h = 0; h < 2; ++h) {
    const Ints codes = to_ints(round(mul(values.half[h], set1(inverse))));
    store_i8(rows.codes + r * rows.padded_k + g * kGroup + 16 * h, codes);
    const int32_t sum = reduce_add(codes);
    rows.half_sum[(r * rows.groups + g) * 2 + h] = sum;
    total += sum;
  }
  rows.scale[r * rows.groups + g] = scale;
  rows.sum[r * rows.groups + g] = scale * static_cast<float>(total);
}

inline void prepare_row(const LinearArgs& args, const Rows& rows, int64_t r) {
  const float* x = args.x + r * args.k;
  const float inverse = args.norm_weight ? rms_inverse(x, args.k, args.epsilon) : 1.0f;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const int64_t at = g * kGroup, n = args.k - at < kGroup ? args.k - at : kGroup;
    const GroupValues values(x + at, args.norm_weight ? args.norm_weight + at : nullptr, inverse, n);
    if (rows.codes) quantise_group(values, rows, r, g);
    for (int h = 0; rows.normed && h < 2; ++h)
      store_n(rows.normed + r * args.k + at + 16 * h, values.half[h], n - 16 * h > 0 ? n - 16 * h : 0);
  }
}

}  // namespace
}  // namespace edk
