// Attention of a few query vectors to one chunk of their own sequences.
// Included after one simd_*.h.
#pragma once

#include "attention_plan.h"
#include "carver.h"
#include "elementary.h"
#include "inline.h"
#include "key_offsets.h"
#include "kv_layout.h"

namespace edk {
namespace {

/// What the chunks give the query vectors of one tile: the largest score, the sum of weights relative
/// to it, and the weighted sum of values. What one chunk gives one tile takes whole cache lines, so
/// that threads which work on different chunks never write the same line.
struct Partials {
  static constexpr int64_t kStats = ceil_div(2 * kQueries, 16) * 16;  // floats of one chunk

  float* stats;   // [tiles, chunks, kStats]: largest scores, then sums
  float* values;  // [tiles, kQueries, chunks, width]

  static Partials take(Carver& carver, const AttentionPlan& plan, int64_t tiles) {
    const int64_t n = tiles * plan.chunks;
    return {carver.take<float>(n * kStats), carver.take<float>(n * kQueries * plan.width)};
  }
  Partials of_tile(const AttentionPlan& plan, int64_t tile) const {
    const int64_t n = tile * plan.chunks;
    return {stats + n * kStats, values + n * kQueries * plan.width};
  }
  float* largest(int64_t q, int64_t chunk) const { return stats + chunk * kStats + q; }
  float* total(int64_t q, int64_t chunk) const { return largest(q, chunk) + kQueries; }
  float* values_of(const AttentionPlan& plan, int64_t q, int64_t chunk) const {
    return values + (q * plan.chunks + chunk) * plan.width;
  }
};

/// Sums that each of `q` queries has in registers at once.
constexpr int sums_each(int q) { return 4 * q <= kSums ? 4 : 2 * q <= kSums ? 2 : 1; }

/// Blocks of keys that `q` queries meet at once. More than two need more of the nearest cache than there
/// is, with what is asked for ahead.
constexpr int blocks_each(int q) { return q > 2 && sums_each(q) > 2 ? 2 : sums_each(q); }

/// Asks for the lines of `bytes` bytes.
EDK_INLINE void prefetch_all(const uint8_t* p, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += kCacheLine) prefetch(p + line);
}

/// Has what lies at p loaded when it is used. Compilers would keep it in a register, and in its stead a
/// sum in memory, which each step waits for.
EDK_INLINE const float* load_again(const float* p) {
  asm volatile("" : "+r"(p));
  return p;
}

/// Adds the products of a channel of Q queries, d apart, and of `Blocks` K blocks. It is number `which`
/// of `n` that share the bytes at `keys`.
template <class Keys, int Q, int Blocks>
EDK_INLINE void add_products(Floats (&sum)[Blocks * Q], const float* queries, int64_t d,
                             const uint8_t* keys, int64_t block_bytes, int64_t which, int64_t n) {
#pragma GCC unroll 4
  for (int b = 0; b < Blocks; ++b) {
    const Floats key = Keys::load(keys + b * block_bytes, which, n);
    const float* query = load_again(queries);
#pragma GCC unroll 16
    for (int q = 0; q < Q; ++q) sum[b * Q + q] = fma(set1(query[q * d]), key, sum[b * Q + q]);
  }
}

/// Scores of Q queries against `Blocks` K blocks that lie one after the other.
///
/// Lines are asked for ahead of their use. A Zen 5 core that decodes after 4095 positions, head size
/// 64, reads 36 GB/s of float16 so, and 19 GB/s otherwise. Loops are unrolled here, for compilers do it
/// too late to keep sums in registers.
template <class Elements, int Q, int Blocks>
inline void score_blocks(const AttentionPlan& plan, const float* queries, const uint8_t* block,
                         float* scores, int64_t stride) {
  using Keys = typename Elements::Keys;
  constexpr int64_t kTogether = Keys::kTogether, kRow = Keys::kBytes;
  const int64_t d = plan.args->head_size;
  const uint8_t* keys = block + Elements::kHeader;
  const uint8_t* ahead = block + Elements::kBlocksAhead * plan.key_bytes;
  Floats sum[Blocks * Q];
#pragma GCC unroll 32
  for (Floats& s : sum) s = set1(0.0f);
  int64_t i = 0;
  for (; i + kTogether <= d; i += kTogether, keys += kRow) {
    prefetch_all(ahead + Blocks * (i / kTogether) * kRow, Blocks * kRow);
#pragma GCC unroll 8
    for (int k = 0; k < kTogether; ++k)
      add_products<Keys, Q, Blocks>(sum, queries + i + k, d, keys, plan.key_bytes, k, kTogether);
  }
  for (int64_t k = 0; i + k < d; ++k)
    add_products<Keys, Q, Blocks>(sum, queries + i + k, d, keys, plan.key_bytes, k, d - i);
#pragma GCC unroll 4
  for (int b = 0; b < Blocks; ++b) {
#pragma GCC unroll 16
    for (int q = 0; q < Q; ++q) {
      Floats s = sum[b * Q + q];
      if constexpr (Elements::kIsQuantised)
        s = mul(s, load_half(block_scales(block + b * plan.key_bytes)));
      store_n(scores + q * stride + b * kPanel, s, 16);
    }
  }
}

/// Scores against n positions, the first at a block's start, whose blocks lie one after the other.
template <class Elements, int Q>
inline void score_run(const AttentionPlan& plan, const float* queries, const uint8_t* block, int64_t n,
                      float* scores, int64_t stride) {
  constexpr int kBlocks = blocks_each(Q);
  int64_t left = ceil_div(n, kPanel);
  for (; left >= kBlocks; left -= kBlocks) {
    score_blocks<Elements, Q, kBlocks>(plan, queries, block, scores, stride);
    block += kBlocks * plan.key_bytes;
    scores += kBlocks * kPanel;
  }
  for (; left > 0; --left, block += plan.key_bytes, scores += kPanel)
    score_blocks<Elements, Q, 1>(plan, queries, block, scores, stride);
}

/// Scores against positions [begin, end) of the cache, begin at a block's start, in order.
template <class Elements, int Q>
inline void score_positions(const AttentionPlan& plan, const QueryTile& tile, int64_t begin,
                            int64_t end, float* scores, int64_t stride) {
  const AttentionArgs& a = *plan.args;
  const KvBlocks<const uint8_t> keys(a.k_cache, a, tile.kv_head, plan.key_bytes);
  const float* queries = plan.queries + (tile.kv_head * plan.vectors() + tile.first) * a.head_size;
  while (begin < end) {
    const int64_t stop = min_of(end, keys.end_of_run(begin));
    score_run<Elements, Q>(plan, queries, keys.at(begin), stop - begin, scores, stride);
    scores += stop - begin;
    begin = stop;
  }
}

/// Bends n scores towards a bound.
inline void bend(float* scores, int64_t n, float bound) {
  const Floats up = set1(bound), down = set1(1 / bound);
  for (int64_t i = 0; i < n; i += 16)
    store_n(scores + i, mul(up, tanh(mul(load(scores + i), down))), 16);
}

/// Adds the biases of their distances to the scores of positions [begin, begin + n) for query q.
inline void add_distance_bias(const AttentionPlan& plan, const QueryTile& tile, int q, int64_t begin,
                              int64_t n, float* scores) {
  const AttentionArgs& a = *plan.args;
  const int64_t head = tile.kv_head * plan.group + (tile.first + q) % plan.group;
  const float* biases = a.distance_bias + head;
  const int64_t own = tile.visible[q] - 1 - begin;
  for (int64_t t = max_of(tile.first_seen[q] - begin, 0); t < n; ++t)
    scores[t] += biases[min_of(own - t, a.n_distances - 1) * a.n_heads];
}

/// Replaces n scores by exp(score - largest), zero up to a whole vector and for the first `hidden`,
/// which are fewer than n.
inline void exponentiate(float* scores, int64_t hidden, int64_t n, float* largest, float* total) {
  const Floats lowest = set1(-3.0e38f), zero = set1(0.0f);
  const int64_t first = hidden / 16 * 16;  // of the vectors that are not wholly hidden
  for (int64_t t = first; t < hidden; ++t) scores[t] = -3.0e38f;
  for (int64_t t = 0; t < first; t += 16) store_n(scores + t, zero, 16);
  Floats top = lowest, sum = zero;
  int64_t i = first;
  for (; i + 16 <= n; i += 16) top = max(top, load(scores + i));
  if (i < n) top = max(top, first_n(load(scores + i), lowest, n - i));
  *largest = reduce_max(top);
  top = set1(*largest);
  for (i = first; i < n; i += 16) {
    Floats e = exp(sub(load(scores + i), top));
    if (i < hidden) e = first_n(zero, e, hidden - i);
    if (i + 16 > n) e = first_n(e, zero, n - i);
    store_n(scores + i, e, 16);
    sum = add(sum, e);
  }
  *total = reduce_add(sum);
}

/// A chunk as one tile sees it.
struct ChunkView {
  int64_t begin, end;  // positions, the last chunk's end is that of the longest row
  int64_t first;       // the first position that a query sees
  int64_t shared;      // positions below it lie at the same place for every query
  int64_t contiguous;  // positions below it lie at the place of their own number
};

/// Scores of each query against its own positions [begin, end) in order; what a row does not see is
/// undefined. `nodes` is memory for scores against the pending tree.
template <class Elements, int Q>
inline void score_chunk(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                        float* scores, float* nodes) {
  const AttentionArgs& a = *plan.args;
  if (view.contiguous > view.first) {
    const int64_t begin = view.first / kPanel * kPanel;
    float* of_first = scores + begin - view.begin;
    score_positions<Elements, Q>(plan, tile, begin, view.contiguous, of_first, kChunk);
  }
  if (view.end <= view.contiguous) return;
  const int64_t begin = a.past / kPanel * kPanel, stride = plan.nodes + 2 * kPanel;
  score_positions<Elements, Q>(plan, tile, begin, a.past + plan.nodes, nodes, stride);
  const int64_t start = max_of(view.first, a.past);
  for (int q = 0; q < Q; ++q) {
    const float* by_node = nodes + q * stride + a.past - begin;
    for (int64_t t = start; t < min_of(view.end, tile.visible[q]); ++t)
      scores[q * kChunk + t - view.begin] = by_node[tile.path[q][t - a.past]];
  }
}

/// Multiplies the weights of one query by the scales of the values they belong to.
inline void scale_weights(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                          int q, float* weights) {
  const KvBlocks<const uint8_t> values(plan.args->v_cache, *plan.args, tile.kv_head,
                                       plan.value_bytes);
  const int64_t end = min_of(view.end, tile.visible[q]);
  const int64_t contiguous = min_of(end, view.contiguous);
  for (int64_t t = view.first / kPanel * kPanel; t < contiguous; t += kPanel) {
    const Floats scales = load_half(block_scales(values.at(t)));
    float* block = weights + t - view.begin;
    store_n(block, mul(load(block), scales), contiguous - t);
  }
  for (int64_t t = max_of(view.first, contiguous); t < end; ++t) {
    const int64_t place = tile.place(plan, q, t);
    const Floats scale = load_half_n(block_scales(values.at(place)) + place % kPanel, 1);
    float* weight = weights + t - view.begin;
    store_n(weight, mul(load_n(weight, 1), scale), 1);
  }
}

/// Adds the values of n positions, `row` and those behind it, in the weights of Q queries: from vector
/// `first` of those that share bytes on. Of the last vector, `size` dimensions exist. The first `fetched`
/// bytes of later positions are asked for.
template <class Elements, int Q, int V>
EDK_INLINE void add_rows(Floats (&sum)[Q][V], const float* weights, const uint8_t* row,
                         int64_t row_bytes, int64_t n, int64_t first, int64_t size,
                         int64_t fetched) {
  using Values = typename Elements::Values;
  constexpr int kTogether = Values::kTogether;
  const uint8_t* ahead = row + Elements::kBlocksAhead * (kPanel * row_bytes + Elements::kHeader);
  for (int64_t t = 0; t < n; ++t, row += row_bytes, ahead += row_bytes) {
    prefetch_all(ahead, fetched);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const uint8_t* some = row + v / kTogether * Values::kBytes;
      const Floats value =
          V == 1 ? Values::load_n(some, first, size) : Values::load(some, v % kTogether);
      const float* weight = load_again(weights + t);
#pragma GCC unroll 16
      for (int q = 0; q < Q; ++q) sum[q][v] = fma(set1(weight[q * kChunk]), value, sum[q][v]);
    }
  }
}

/// Weighted sums of values for dimensions [i, i + 16 V): `shared` rows for all queries at once,
/// then what each query sees beyond them.
template <class Elements, int Q, int V>
inline void sum_values(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                       const float* weights, int64_t i, float* out) {
  const AttentionArgs& a = *plan.args;
  using Values = typename Elements::Values;
  const KvBlocks<const uint8_t> values(a.v_cache, a, tile.kv_head, plan.value_bytes);
  constexpr int64_t kTogether = Values::kTogether, kAll = V * Values::kBytes / kTogether;
  const int64_t d = a.head_size, row_bytes = Values::row(d);
  const int64_t vector = i / 16, first = vector % kTogether;  // 0 if there are several
  const int64_t offset = Elements::kHeader + vector / kTogether * Values::kBytes;
  // Parts of a line are not worth asking for: whoever comes first asks for all.
  const int64_t fetched = kAll >= kCacheLine ? kAll : i == 0 ? row_bytes : 0;
  Floats sum[Q][V];
  for (auto& of_query : sum)
    for (Floats& s : of_query) s = set1(0.0f);
  for (int64_t t = view.first; t < view.shared;) {
    const int64_t end = min_of((t / kPanel + 1) * kPanel, view.shared);
    const uint8_t* row = values.at(t) + offset + t % kPanel * row_bytes;
    add_rows<Elements, Q, V>(sum, weights + t - view.begin, row, row_bytes, end - t, first, d - i,
                             fetched);
    t = end;
  }
  for (int q = 0; q < Q; ++q) {
    const int64_t end = min_of(view.end, tile.visible[q]);
    for (int64_t t = max_of(view.first, view.shared); t < end; ++t) {
      const int64_t place = tile.place(plan, q, t);
      const uint8_t* row = values.at(place) + offset + place % kPanel * row_bytes;
      const Floats weight = set1(weights[q * kChunk + t - view.begin]);
      for (int64_t v = 0; v < V; ++v) {
        const uint8_t* some = row + v / kTogether * Values::kBytes;
        const Floats value = Values::load_n(some, (first + v) % kTogether, d - i - 16 * v);
        sum[q][v] = fma(weight, value, sum[q][v]);
      }
    }
    for (int v = 0; v < V; ++v)
      store_n(out + q * plan.chunks * plan.width + i + 16 * v, sum[q][v], 16);
  }
}

/// Weighted sums of all values.
template <class Elements, int Q>
inline void sum_all_values(const AttentionPlan& plan, const QueryTile& tile, const ChunkView& view,
                           const float* weights, float* out) {
  constexpr int V = sums_each(Q);
  const int64_t d = plan.args->head_size;
  int64_t i = 0;
  for (; i + 16 * V <= d; i += 16 * V)
    sum_values<Elements, Q, V>(plan, tile, view, weights, i, out);
  for (; i < d; i += 16) sum_values<Elements, Q, 1>(plan, tile, view, weights, i, out);
}

/// Floats that attend_chunk needs for scores.
inline int64_t score_floats(const AttentionPlan& plan) {
  const int64_t nodes = plan.is_chain ? 0 : plan.nodes + 2 * kPanel;
  return kQueries * (kChunk + nodes) + offset_floats(plan);
}

template <class Elements, int Q>
void attend_chunk(const AttentionPlan& plan, const QueryTile& tile, int64_t chunk, float* scores,
                  const Partials& out) {
  const AttentionArgs& a = *plan.args;
  ChunkView view;
  view.begin = (plan.first_chunk + chunk) * kChunk;
  if (view.begin >= tile.longest || view.begin + kChunk <= tile.earliest) return;
  view.end = min_of(view.begin + kChunk, tile.longest);
  view.first = max_of(view.begin, tile.earliest);
  view.contiguous = min_of(view.end, plan.is_chain ? tile.longest : a.past);
  view.shared = min_of(view.end, plan.is_chain ? tile.visible[0] : a.past);
  float* memory = scores + kQueries * kChunk;
  score_chunk<Elements, Q>(plan, tile, view, scores, memory);
  if (plan.offsets) add_offset_scores<Q>(plan, tile, view.begin, view.first, view.end, scores, memory);
  for (int q = 0; q < Q; ++q) {
    const int64_t n = min_of(view.end, tile.visible[q]) - view.begin;
    const int64_t hidden = max_of(tile.first_seen[q] - view.begin, 0);
    if (hidden >= n) continue;
    float* of_query = scores + q * kChunk;
    const int64_t unseen = hidden / 16 * 16;
    if (a.scoring.softcap > 0) bend(of_query + unseen, n - unseen, a.scoring.softcap);
    if (a.distance_bias) add_distance_bias(plan, tile, q, view.begin, n, of_query);
    exponentiate(of_query, hidden, n, out.largest(q, chunk), out.total(q, chunk));
    if constexpr (Elements::kIsQuantised) scale_weights(plan, tile, view, q, of_query);
  }
  sum_all_values<Elements, Q>(plan, tile, view, scores, out.values_of(plan, 0, chunk));
}

}  // namespace
}  // namespace edk
