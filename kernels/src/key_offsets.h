// Offsets of keys: what a head's keys have in common before their rotation, kept out of the KV cache.
// Included after one simd_*.h.
//
// A cache of few bits holds k - o better than k where o is large, as the biases of some models' keys are.
// A score lacks q' R(p) o then, for a rotated query q and a key at position p. A pair of channels adds
// a cos(w p) + b sin(w p) to that, where a and b depend on the query alone: `meet_offsets`. At p + j it
// adds a' cos(w j) + b' sin(w j), where a' and b' depend on the query and p. So a run of positions takes
// two numbers of a pair, and a small table that all queries and heads share: `add_offset_scores`.
#pragma once

#include "attention_plan.h"
#include "carver.h"
#include "inline.h"

namespace edk {
namespace {

constexpr int64_t kOffsetRun = 32;  // positions that the table covers

/// Gives `offsets` its memory.
inline void take_offsets(Carver& carver, const AttentionArgs& a, KeyOffsets* offsets) {
  const int64_t half = a.key_offsets ? a.head_size / 2 : 0;
  offsets->counts = carver.take<int32_t>(half ? a.n_kv_heads : 0);
  offsets->pairs = carver.take<int32_t>(a.n_kv_heads * half);
  offsets->table = carver.take<float>(half * 2 * kOffsetRun);
}

/// Fills `offsets`. Pairs of channels without an offset take no part.
inline void fill_offsets(const AttentionArgs& a, KeyOffsets* offsets) {
  const int64_t half = a.head_size / 2;
  for (int64_t head = 0; head < a.n_kv_heads; ++head) {
    const float* offset = a.key_offsets + head * a.head_size;
    int32_t n = 0, *pairs = offsets->pairs + head * half;
    for (int32_t i = 0; i < half; ++i)
      if (offset[i] != 0 || offset[half + i] != 0) pairs[n++] = i;
    offsets->counts[head] = n;
  }
  for (int64_t i = 0; i < half; ++i) {
    const float stretch = a.cos[i];  // position 0 is not turned
    for (int64_t j = 0; j < kOffsetRun; ++j) {
      const bool is_there = j < a.n_positions && stretch != 0;
      float* entry = offsets->table + i * 2 * kOffsetRun + j;
      entry[0] = is_there ? a.cos[j * half + i] / stretch : 0.0f;
      entry[kOffsetRun] = is_there ? a.sin[j * half + i] / stretch : 0.0f;
    }
  }
}

/// Writes a key [head_size] without its offset to `out`, which it returns.
inline const float* without_offset(const AttentionArgs& a, int64_t kv_head, const float* key,
                                   float* out) {
  const int64_t d = a.head_size;
  const float* offset = a.key_offsets + kv_head * d;
  for (int64_t i = 0; i < d; i += 16)
    store_n(out + i, sub(load_n(key + i, d - i), load_n(offset + i, d - i)), d - i);
  return out;
}

/// Writes what of a rotated query meets the offsets of its KV head, times `scale`: [2, head_size / 2].
inline void meet_offsets(const AttentionArgs& a, int64_t kv_head, const float* query, float scale,
                         float* out) {
  const int64_t half = a.head_size / 2;
  const float* offset = a.key_offsets + kv_head * a.head_size;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i;
    const Floats x = load_n(query + i, n), y = load_n(query + half + i, n);
    const Floats u = load_n(offset + i, n), v = load_n(offset + half + i, n);
    const Floats of_cos = fma(x, u, mul(y, v)), of_sin = sub(mul(y, u), mul(x, v));
    store_n(out + i, mul(of_cos, set1(scale)), n);
    store_n(out + half + i, mul(of_sin, set1(scale)), n);
  }
}

/// Turns what `meet_offsets` wrote to a position: [2, head_size / 2].
inline void turn_offsets(const AttentionArgs& a, const float* met, int64_t position, float* out) {
  const int64_t half = a.head_size / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i;
    const Floats x = load_n(met + i, n), y = load_n(met + half + i, n);
    const Floats c = load_n(a.cos + position * half + i, n);
    const Floats s = load_n(a.sin + position * half + i, n);
    store_n(out + i, fma(x, c, mul(y, s)), n);
    store_n(out + half + i, sub(mul(y, c), mul(x, s)), n);
  }
}

/// Floats that `add_offset_scores` needs.
inline int64_t offset_floats(const AttentionPlan& plan) {
  return plan.offsets ? kQueries * plan.args->head_size : 0;
}

/// Adds what the offsets add to the scores of a run of positions for Q queries. `turned`: [Q, 2,
/// head_size / 2].
template <int Q>
inline void add_offset_run(const AttentionPlan& plan, int64_t kv_head, const float* turned,
                           float* scores) {
  const int64_t d = plan.args->head_size, half = d / 2;
  const int32_t* pairs = plan.offsets->pairs + kv_head * half;
  const int32_t* end = pairs + plan.offsets->counts[kv_head];
  for (int64_t j = 0; j < kOffsetRun; j += 16) {
    Floats sum[Q];
#pragma GCC unroll 16
    for (int q = 0; q < Q; ++q) sum[q] = load(scores + q * kChunk + j);
    for (const int32_t* pair = pairs; pair < end; ++pair) {
      const float* entry = plan.offsets->table + *pair * 2 * kOffsetRun + j;
      const Floats c = load(entry), s = load(entry + kOffsetRun);
      const float* by = turned + *pair;
#pragma GCC unroll 16
      for (int q = 0; q < Q; ++q) {
        sum[q] = fma(set1(by[q * d]), c, sum[q]);
        sum[q] = fma(set1(by[q * d + half]), s, sum[q]);
      }
    }
#pragma GCC unroll 16
    for (int q = 0; q < Q; ++q) store_n(scores + q * kChunk + j, sum[q], 16);
  }
}

/// Adds what the offsets add to the scores of Q queries against positions [first, end) of their own
/// sequences, and to some beside them. Scores begin with that of `begin`, where a run does. `memory` is
/// for what is turned.
template <int Q>
inline void add_offset_scores(const AttentionPlan& plan, const QueryTile& tile, int64_t begin,
                              int64_t first, int64_t end, float* scores, float* memory) {
  const AttentionArgs& a = *plan.args;
  if (plan.offsets->counts[tile.kv_head] == 0) return;
  const float* met = plan.of_offsets + (tile.kv_head * plan.vectors() + tile.first) * a.head_size;
  for (int64_t p = first / kOffsetRun * kOffsetRun; p < end; p += kOffsetRun) {
    for (int q = 0; q < Q; ++q)
      turn_offsets(a, met + q * a.head_size, p, memory + q * a.head_size);
    add_offset_run<Q>(plan, tile.kv_head, memory, scores + p - begin);
  }
}

}  // namespace
}  // namespace edk
