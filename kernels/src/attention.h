// Rotary positions, KV append and attention over the committed prefix and a row's own ancestors.
// Included after one simd_*.h.
//
// A row's scores are laid out in the order of its own sequence (prefix, ancestors by depth, itself)
// wherever those rows lie in the cache, and every sum runs in that order: a token inside a tree is
// computed exactly as it would be in a chain.
#pragma once

#include <cmath>

#include "elementary.h"
#include "layout.h"
#include "scratch.h"

namespace edk {
namespace {

constexpr int kQueries = 4;           // query vectors that share one read of the cache
constexpr int kValueVectors = 4;      // vectors of a head accumulated at once: 4 x 4 sums in registers
constexpr int64_t kSerialAppend = 4;  // fewer rows are appended faster than threads are woken

struct AttentionPlan {
  const AttentionArgs* args;
  int group;        // query heads per KV head
  bool is_chain;    // every parent is the node before
  float* queries;   // [n_kv_heads, rows, group, head_size], rotated and scaled
  int64_t nodes;    // of the pending tree: known ones and this pass's rows
  int32_t* depth;   // [nodes]: nodes that a node sees, itself included
  int32_t* path;    // [nodes, nodes]: those nodes, oldest first; trees only
  int64_t stride;   // floats of one query's scores
};

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
    const Rotated rotated(key, a.cos + a.positions[r] * half, a.sin + a.positions[r] * half, i, half);
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

/// Up to kQueries query vectors of one KV head: vector v is row v / group, head v % group.
struct QueryTile {
  int kv_head;
  int64_t first;  // vector
  int64_t row(const AttentionPlan& plan, int q) const { return (first + q) / plan.group; }
  int64_t visible(const AttentionPlan& plan, int q) const {
    return plan.args->past + plan.depth[plan.args->known + row(plan, q)];
  }
};

/// Scores of Q queries against two K blocks [head_size, 16] that lie one after the other.
template <int Q>
inline void score_blocks(const float* queries, int64_t d, const uint16_t* keys, float* scores,
                         int64_t stride) {
  Floats near[Q], far[Q];
  for (int q = 0; q < Q; ++q) near[q] = far[q] = set1(0.0f);
  for (int64_t i = 0; i < d; ++i) {
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

/// Scores against cache slots [0, end), in slot order.
template <int Q>
inline void score_slots(const AttentionPlan& plan, const QueryTile& tile, int64_t end, float* scores) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size, blocks = ceil_div(end, kPanel);
  const float* queries = plan.queries + (tile.kv_head * a.rows * plan.group + tile.first) * d;
  const uint16_t* keys = a.k_cache + tile.kv_head * a.capacity * d;
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2)
    score_blocks<Q>(queries, d, keys + block * d * kPanel, scores + block * kPanel, plan.stride);
  if (block < blocks)
    score_last_block<Q>(queries, d, keys + block * d * kPanel, scores + block * kPanel, plan.stride);
}

/// Turns scores of the tree's nodes from slot order into the order of `node`'s own sequence.
inline void order_by_path(const AttentionPlan& plan, int64_t node, float* scores) {
  const int32_t* path = plan.path + node * plan.nodes;
  float* own = scores + plan.args->past;
  for (int32_t j = 0; j < plan.depth[node]; ++j) own[j] = own[path[j]];  // path[j] >= j
}

/// Replaces n scores by exp(score - max), zero up to a whole vector, and returns their sum.
inline float exponentiate(float* scores, int64_t n) {
  const Floats lowest = set1(-3.0e38f);
  Floats largest = lowest;
  for (int64_t i = 0; i < n; i += 16)
    largest = max(largest, first_n(load(scores + i), lowest, n - i));
  const Floats top = set1(reduce_max(largest));
  Floats sum = set1(0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const Floats e = first_n(exp(sub(load(scores + i), top)), set1(0.0f), n - i);
    store_n(scores + i, e, 16);
    sum = add(sum, e);
  }
  return reduce_add(sum);
}

/// Weighted sums of values for dimensions [i, i + 64): `shared` rows for all queries at once, then
/// what each query sees beyond them.
template <int Q>
inline void sum_values(const AttentionPlan& plan, const QueryTile& tile, int64_t shared,
                       const float* weights, const float* totals, int64_t i) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size;
  const uint16_t* values = a.v_cache + tile.kv_head * a.capacity * d + i;
  Floats sum[Q][kValueVectors];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < kValueVectors; ++v) sum[q][v] = set1(0.0f);
  const auto add_row = [&](int q, Floats weight, const uint16_t* row) {
    for (int v = 0; v < kValueVectors; ++v)
      sum[q][v] = fma(weight, load_half_n(row + 16 * v, d - i - 16 * v > 0 ? d - i - 16 * v : 0), sum[q][v]);
  };
  if (i + 16 * kValueVectors <= d) {
    for (int64_t t = 0; t < shared; ++t) {
      Floats value[kValueVectors];
      for (int v = 0; v < kValueVectors; ++v) value[v] = load_half(values + t * d + 16 * v);
      for (int q = 0; q < Q; ++q)
        for (int v = 0; v < kValueVectors; ++v)
          sum[q][v] = fma(set1(weights[q * plan.stride + t]), value[v], sum[q][v]);
    }
  } else {
    for (int64_t t = 0; t < shared; ++t)
      for (int q = 0; q < Q; ++q) add_row(q, set1(weights[q * plan.stride + t]), values + t * d);
  }
  for (int q = 0; q < Q; ++q) {
    const int64_t row = tile.row(plan, q);
    for (int64_t t = shared; t < tile.visible(plan, q); ++t) {
      const int32_t* path = plan.path + (a.known + row) * plan.nodes;
      const int64_t slot = plan.is_chain ? t : a.past + path[t - a.past];
      add_row(q, set1(weights[q * plan.stride + t]), values + slot * d);
    }
    const int64_t head = tile.kv_head * plan.group + (tile.first + q) % plan.group;
    float* out = a.out + (row * a.n_heads + head) * d + i;
    for (int v = 0; v < kValueVectors && i + 16 * v < d; ++v)
      store_n(out + 16 * v, div(sum[q][v], set1(totals[q])), d - i - 16 * v);
  }
}

template <int Q>
void attend(const AttentionPlan& plan, const QueryTile& tile) {
  const AttentionArgs& a = *plan.args;
  const int64_t first_row = tile.row(plan, 0), last_row = tile.row(plan, Q - 1);
  const size_t bytes = static_cast<size_t>(Q * plan.stride) * sizeof(float);
  auto* scores = static_cast<float*>(scratch(ScratchUse::kTask, bytes));
  score_slots<Q>(plan, tile, a.past + a.known + (plan.is_chain ? last_row + 1 : a.rows), scores);
  float totals[Q];
  for (int q = 0; q < Q; ++q) {
    if (!plan.is_chain) order_by_path(plan, a.known + tile.row(plan, q), scores + q * plan.stride);
    totals[q] = exponentiate(scores + q * plan.stride, tile.visible(plan, q));
  }
  const int64_t shared = a.past + (plan.is_chain ? a.known + first_row + 1 : 0);
  for (int64_t i = 0; i < a.head_size; i += 16 * kValueVectors)
    sum_values<Q>(plan, tile, shared, scores, totals, i);
}

inline int64_t tiles_per_head(const AttentionPlan& plan) {
  return ceil_div(plan.args->rows * plan.group, kQueries);
}

void attend_task(void* user, int64_t task) {
  const AttentionPlan& plan = *static_cast<const AttentionPlan*>(user);
  const int64_t tiles = tiles_per_head(plan);
  const QueryTile tile{static_cast<int>(task / tiles), task % tiles * kQueries};
  switch (plan.args->rows * plan.group - tile.first) {
    case 1: return attend<1>(plan, tile);
    case 2: return attend<2>(plan, tile);
    case 3: return attend<3>(plan, tile);
    default: return attend<kQueries>(plan, tile);
  }
}

/// Fills depth and path from the parents.
void trace_paths(const AttentionArgs& a, AttentionPlan* plan) {
  for (int64_t i = 0; i < plan->nodes; ++i) {
    const int64_t parent = a.parents[i];
    plan->depth[i] = 1 + (parent < 0 ? 0 : plan->depth[parent]);
    if (plan->is_chain) continue;
    int32_t* path = plan->path + i * plan->nodes;
    for (int32_t j = 0; j + 1 < plan->depth[i]; ++j) path[j] = plan->path[parent * plan->nodes + j];
    path[plan->depth[i] - 1] = static_cast<int32_t>(i);
  }
}

void attention(const AttentionArgs& args, const Parallel& parallel) {
  AttentionPlan plan{};
  plan.args = &args;
  plan.group = args.n_heads / args.n_kv_heads;
  plan.nodes = args.known + args.rows;
  plan.stride = ceil_div(args.past + plan.nodes, 2 * kPanel) * 2 * kPanel;
  plan.is_chain = true;
  for (int64_t i = 0; i < plan.nodes; ++i) plan.is_chain &= args.parents[i] == i - 1;
  const int64_t n_query = args.rows * args.n_heads * args.head_size;
  const int64_t n_path = plan.is_chain ? 0 : plan.nodes * plan.nodes;
  const int64_t bytes = (n_query + plan.nodes + n_path) * 4;
  plan.queries = static_cast<float*>(scratch(ScratchUse::kOperator, static_cast<size_t>(bytes)));
  plan.depth = reinterpret_cast<int32_t*>(plan.queries + n_query);
  plan.path = plan.depth + plan.nodes;
  trace_paths(args, &plan);
  if (args.rows < kSerialAppend)
    for (int64_t r = 0; r < args.rows; ++r) append_task(&plan, r);
  else
    parallel.run(args.rows, append_task, &plan);
  parallel.run(args.n_kv_heads * tiles_per_head(plan), attend_task, &plan);
}

}  // namespace
}  // namespace edk
