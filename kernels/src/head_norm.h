// RMS norms of the heads of queries, of keys and of values. Included after one simd_*.h.
#pragma once

#include <algorithm>

#include "rows.h"

namespace edk {
namespace {

// Rows of one task. A task's output is whole cache lines for any width: 16 rows of any number of
// floats are a multiple of 64 bytes.
constexpr int64_t kHeadNormRows = 16;

/// Writes the norm of one head of `d` channels, times `weight` unless that is null.
inline void norm_head(const float* x, const float* weight, int64_t d, float epsilon, float* out) {
  const Floats inverse = set1(rms_inverse(x, d, epsilon));
  for (int64_t i = 0; i < d; i += kPanel) {
    const Floats normed = mul(load_n(x + i, d - i), inverse);
    store_n(out + i, weight ? mul(normed, load_n(weight + i, d - i)) : normed, d - i);
  }
}

void head_norm_task(void* user, int64_t task) {
  const HeadNormArgs& args = *static_cast<const HeadNormArgs*>(user);
  const int64_t d = args.head_size, n_placed = args.n_heads + args.n_kv_heads;
  const int64_t width = (n_placed + args.n_kv_heads) * d;
  const int64_t n_normed = args.norms_values ? n_placed + args.n_kv_heads : n_placed;
  const int64_t begin = task * kHeadNormRows, end = begin + kHeadNormRows;
  for (int64_t r = begin; r < end && r < args.rows; ++r) {
    const float* x = args.qkv + r * width;
    float* out = args.out + r * width;
    for (int64_t h = 0; h < n_normed; ++h) {
      const float* of_key = h < n_placed ? args.k_weight : nullptr;
      const float* weight = h < args.n_heads ? args.q_weight : of_key;
      norm_head(x + h * d, weight, d, args.epsilon, out + h * d);
    }
    std::copy(x + n_normed * d, x + width, out + n_normed * d);
  }
}

void head_norm(const HeadNormArgs& args, const Parallel& parallel) {
  HeadNormArgs shared = args;
  parallel.run(ceil_div(args.rows, kHeadNormRows), head_norm_task, &shared);
}

}  // namespace
}  // namespace edk
