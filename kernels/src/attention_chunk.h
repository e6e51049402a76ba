// Attention of a few query vectors to one chunk of their own sequences.
// Included after one simd_*.h.
#pragma once

#include "attention_plan.h"
#include "elementary.h"

namespace edk {
namespace {

// How far ahead of its use a line of the cache is asked for. A Zen 5 core that decodes after 4095
// positions, head size 64, reads 36 GB/s with it and 19 GB/s without.
constexpr int64_t kPairsAhead = 2;    // pairs of K blocks
constexpr int64_t kValuesAhead = 64;  // rows

/// What one chunk gives each query vector: the largest score, the sum of weights relative to it,
/// and the weighted sum of values.
struct Partials {
  float* largest;  // [vectors, chunks]
  float* total;    // [vectors, chunks]
  float* values;   // [vectors, chunks, width]

  static int64_t n_floats(const AttentionPlan& plan, int64_t vectors) {
    return vectors * plan.chunks * (plan.width + 2);
  }
  static Partials at(float* memory, const AttentionPlan& plan, int64_t vectors) {
    const int64_t n = vectors * plan.chunks;
    return {memory + n * plan.width, memory + n * plan.width + n, memory};
  }
  Partials from(const AttentionPlan& plan, int64_t vector) const {
    const int64_t n = vector * plan.chunks;
    return {largest + n, total + n, values + n * plan.width};
  }
};

/// Scores of Q queries against two K blocks [head_size, 16] that lie one after the other.
template <int Q>
inline void score_blocks(const float* queries, int64_t d, const uint16_t* keys, float* scores,
                         int64_t stride) {
  Floats near[Q], far[Q];
  for (int q = 0; q < Q; ++q) near[q] = far[q] = set1(0.0f);
  for (int64_t i = 0; i < d; ++i) {
    prefetch(keys + 2 * (kPairsAhead * d + i) * kPanel);
    const Floats key = load_half(keys + i * kPanel), next = load_half(keys + (d + i) * kPanel);
    for (int q = 0; q < Q; ++q) {
      const Floats query = set1(queries[q * d + i]);
      near[q] = fma(query, key, near[q]);
      far[q] = fma(query, next, far[q]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    store_n(scores + q * stride, near[q], 16);
    store_n(scores + q * stride + kPanel, far[q], 16);
  }
}

template <int Q>
inline void score_last_block(const float* queries, int64_t d, const uint16_t* keys, float* scores,
                             int64_t stride) {
  Floats sum[Q];
  for (int q = 0; q < Q; ++q) sum[q] = set1(0.0f);
  for (int64_t i = 0; i < d; ++i) {
    const Floats key = load_half(keys + i * kPanel);
    for (int q = 0; q < Q; ++q) sum[q] = fma(set1(queries[q * d + i]), key, sum[q]);
  }
  for (int q = 0; q < Q; ++q) store_n(scores + q * stride, sum[q], 16);
}

/// Scores against cache slots [begin, end), begin at a block's start, in slot order.
template <int Q>
inline void score_slots(const AttentionPlan& plan, const QueryTile& tile, int64_t begin,
                        int64_t end, float* scores, int64_t stride) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size, blocks = ceil_div(end - begin, kPanel);
  const float* queries = plan.queries + (tile.kv_head * plan.vectors() + tile.first) * d;
  const uint16_t* keys = a.k_cache + (tile.kv_head * a.capacity + begin) * d;
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2)
    score_blocks<Q>(queries, d, keys + block * d * kPanel, scores + block * kPanel, stride);
  if (block < blocks)
    score_last_block<Q>(queries, d, keys + block * d * kPanel, scores + block * kPanel, stride);
}

/// Replaces n scores by exp(score - largest), zero up to a whole vector.
inline void exponentiate(float* scores, int64_t n, float* largest, float* total) {
  const Floats lowest = set1(-3.0e38f);
  Floats top = lowest, sum = set1(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) top = max(top, load(scores + i));
  if (i < n) top = max(top, first_n(load(scores + i), lowest, n - i));
  *largest = reduce_max(top);
  top = set1(*largest);
  for (i = 0; i + 16 <= n; i += 16) {
    const Floats e = exp(sub(load(scores + i), top));
    store_n(scores + i, e, 16);
    sum = add(sum, e);
  }
  if (i < n) {
    const Floats e = first_n(exp(sub(load(scores + i), top)), set1(0.0f), n - i);
    store_n(scores + i, e, 16);
    sum = add(sum, e);
  }
  *total = reduce_add(sum);
}

/// A chunk as one tile sees it.
struct ChunkView {
  int64_t begin, end;  // positions, the last chunk's end is that of the longest row
  int64_t shared;      // positions below it lie at the same slots for every query
  int64_t contiguous;  // positions below it lie at the slot of their own number
};

/// Scores of each query against its own positions [begin, end) in order; what a row does not see is
/// undefined. `nodes` is memory for scores against the pending tree.
template <int Q>
inline void score_chunk(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                        float* scores, float* nodes) {
  const AttentionArgs& a = *plan.args;
  if (view.contiguous > view.begin)
    score_slots<Q>(plan, tile, view.begin, view.contiguous, scores, kChunk);
  if (view.end <= view.contiguous) return;
  const int64_t first_slot = a.past / kPanel * kPanel, stride = plan.nodes + 2 * kPanel;
  score_slots<Q>(plan, tile, first_slot, a.past + plan.nodes, nodes, stride);
  const int64_t start = max_of(view.begin, a.past);
  for (int q = 0; q < Q; ++q) {
    const float* by_slot = nodes + q * stride + a.past - first_slot;
    for (int64_t t = start; t < min_of(view.end, tile.visible[q]); ++t)
      scores[q * kChunk + t - view.begin] = by_slot[tile.path[q][t - a.past]];
  }
}

/// Weighted sums of values for dimensions [i, i + 16 V): `shared` rows for all queries at once,
/// then what each query sees beyond them.
template <int Q, int V>
inline void sum_values(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                       const float* weights, int64_t i, float* out) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size;
  const uint16_t* values = a.v_cache + tile.kv_head * a.capacity * d + i;
  Floats sum[Q][V];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) sum[q][v] = set1(0.0f);
  const auto add_row = [&](int q, Floats weight, const uint16_t* row) {
    for (int v = 0; v < V; ++v)
      sum[q][v] = fma(weight, load_half_n(row + 16 * v, max_of(d - i - 16 * v, 0)), sum[q][v]);
  };
  if (i + 16 * V <= d) {
    for (int64_t t = view.begin; t < view.shared; ++t) {
      Floats value[V];
      for (int v = 0; v < V; v += 2) prefetch(values + (t + kValuesAhead) * d + 16 * v);
      for (int v = 0; v < V; ++v) value[v] = load_half(values + t * d + 16 * v);
      for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v)
          sum[q][v] = fma(set1(weights[q * kChunk + t - view.begin]), value[v], sum[q][v]);
    }
  } else {
    for (int64_t t = view.begin; t < view.shared; ++t)
      for (int q = 0; q < Q; ++q)
        add_row(q, set1(weights[q * kChunk + t - view.begin]), values + t * d);
  }
  for (int q = 0; q < Q; ++q) {
    const int64_t end = min_of(view.end, tile.visible[q]);
    for (int64_t t = max_of(view.begin, view.shared); t < end; ++t) {
      const int64_t slot = plan.is_chain ? t : a.past + tile.path[q][t - a.past];
      add_row(q, set1(weights[q * kChunk + t - view.begin]), values + slot * d);
    }
    for (int v = 0; v < V && i + 16 * v < d; ++v)
      store_n(out + q * plan.chunks * plan.width + i + 16 * v, sum[q][v], 16);
  }
}

/// Floats that attend_chunk needs for scores.
inline int64_t score_floats(const AttentionPlan& plan) {
  return kQueries * (kChunk + (plan.is_chain ? 0 : plan.nodes + 2 * kPanel));
}

template <int Q>
void attend_chunk(const AttentionPlan& plan, const QueryTile& tile, int64_t chunk, float* scores,
                  const Partials& out) {
  constexpr int V = Q == 8 ? 2 : 4;  // sums stay in 32 registers
  const AttentionArgs& a = *plan.args;
  if (chunk * kChunk >= tile.longest) return;
  ChunkView view;
  view.begin = chunk * kChunk;
  view.end = min_of(view.begin + kChunk, tile.longest);
  view.contiguous = min_of(view.end, plan.is_chain ? tile.longest : a.past);
  view.shared = min_of(view.end, plan.is_chain ? tile.visible[0] : a.past);
  score_chunk<Q>(plan, tile, view, scores, scores + kQueries * kChunk);
  for (int q = 0; q < Q; ++q) {
    const int64_t n = min_of(view.end, tile.visible[q]) - view.begin;
    const int64_t at = q * plan.chunks + chunk;
    exponentiate(scores + q * kChunk, n, &out.largest[at], &out.total[at]);
  }
  for (int64_t i = 0; i < a.head_size; i += 16 * V)
    sum_values<Q, V>(plan, tile, view, scores, i, out.values + chunk * plan.width);
}

}  // namespace
}  // namespace edk
