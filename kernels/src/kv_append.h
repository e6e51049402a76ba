// Rotary positions and the rows a pass appends to the KV cache.
// Included after one simd_*.h.
#pragma once

#include <cmath>

#include "attention_plan.h"

namespace edk {
namespace {

/// One half-pair of the rotation of `x` [head_size]: 16 or fewer elements from `i`.
struct Rotated {
  Floats low, high;

  Rotated(const float* x, const float* cos, const float* sin, int64_t i, int64_t half) {
    const int64_t n = half - i;
    const Floats a = load_n(x + i, n), b = load_n(x + half + i, n);
    const Floats c = load_n(cos + i, n), s = load_n(sin + i, n);
    low = fma(a, c, sub(set1(0.0f), mul(b, s)));
    high = fma(b, c, mul(a, s));
  }
};

inline void append_query(const AttentionPlan& plan, int64_t r, int head) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size, half = d / 2;
  const int64_t width = (a.n_heads + 2 * a.n_kv_heads) * d;
  const int kv_head = head / plan.group;
  float* out = plan.queries + ((kv_head * a.rows + r) * plan.group + head % plan.group) * d;
  const Floats scale = set1(1.0f / std::sqrt(static_cast<float>(d)));
  for (int64_t i = 0; i < half; i += 16) {
    const Rotated rotated(a.qkv + r * width + head * d, a.cos + a.positions[r] * half,
                          a.sin + a.positions[r] * half, i, half);
    store_n(out + i, mul(rotated.low, scale), half - i);
    store_n(out + half + i, mul(rotated.high, scale), half - i);
  }
}

/// Scatters up to 16 values into consecutive dimensions of one slot of a K block.
inline void scatter_key(uint16_t* slot, int64_t dimension, Floats values, int64_t n) {
  uint16_t halves[16];
  store_half_n(halves, values, 16);
  for (int64_t i = 0; i < 16 && i < n; ++i) slot[(dimension + i) * kPanel] = halves[i];
}

inline void append_key_value(const AttentionPlan& plan, int64_t r, int head) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size, half = d / 2, at = a.past + a.known + r;
  const float* row = a.qkv + r * (a.n_heads + 2 * a.n_kv_heads) * d;
  const float* key = row + (a.n_heads + head) * d;
  const float* value = key + a.n_kv_heads * d;
  uint16_t* slot = a.k_cache + head * a.capacity * d + at / kPanel * d * kPanel + at % kPanel;
  for (int64_t i = 0; i < half; i += 16) {
    const Rotated rotated(key, a.cos + a.positions[r] * half, a.sin + a.positions[r] * half, i,
                          half);
    scatter_key(slot, i, rotated.low, half - i);
    scatter_key(slot, half + i, rotated.high, half - i);
  }
  uint16_t* out = a.v_cache + (head * a.capacity + at) * d;
  for (int64_t i = 0; i < d; i += 16) store_half_n(out + i, load_n(value + i, d - i), d - i);
}

void append_task(void* user, int64_t r) {
  const AttentionPlan& plan = *static_cast<const AttentionPlan*>(user);
  for (int head = 0; head < plan.args->n_heads; ++head) append_query(plan, r, head);
  for (int head = 0; head < plan.args->n_kv_heads; ++head) append_key_value(plan, r, head);
}

}  // namespace
}  // namespace edk
