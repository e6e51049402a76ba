// What one pass of attention works on, worked out once before its tasks run.
// Included after one simd_*.h.
#pragma once

#include "kernels.h"
#include "layout.h"

namespace edk {
namespace {

constexpr int64_t kChunk = 256;  // positions of a row's own sequence that are summed at once

constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/// What the sequences of a pass share of the offsets of keys; see key_offsets.h.
struct KeyOffsets {
  int32_t* counts;  // [n_kv_heads], pairs of channels that have an offset
  int32_t* pairs;   // [n_kv_heads, head_size / 2], the first of a row are these
  float* table;     // [head_size / 2, 2, kOffsetRun], cosines and sines of the first positions
};

struct AttentionPlan {
  const AttentionArgs* args;
  const KeyOffsets* offsets;  // null without some
  int group;       // query heads per KV head
  bool is_chain;   // what a row sees lies in the order of the nodes
  int64_t nodes;   // of the pending tree: known ones and this pass's rows
  int64_t first_chunk;  // the first that a row sees anything of
  int64_t chunks;  // from that one to the last of the longest possible row
  int64_t width;   // head_size in whole vectors
  int64_t key_bytes;    // of a block of keys
  int64_t value_bytes;  // of a block of values
  int64_t tiles;  // of the query vectors of one KV head
  int64_t tile;   // query vectors of each but the last
  float* queries;  // [n_kv_heads, rows, group, head_size], rotated and scaled
  float* of_offsets;  // as queries: what of a query meets the offsets, first of cosines, then of sines
  int32_t* depth;  // [nodes]: nodes that a node sees, itself included
  int32_t* path;   // [nodes, nodes]: those nodes, oldest first; trees only

  int64_t vectors() const { return args->rows * group; }  // queries of one KV head
  /// Positions up to the last that a row sees: the prefix, its ancestors, itself; or the source.
  int64_t visible(int64_t row) const {
    return args->sees_source ? args->source : args->past + depth[args->known + row];
  }
  /// The first of them that is inside the row's window, and behind the source.
  int64_t first_seen(int64_t row) const {
    if (args->sees_source) return 0;
    const int64_t window = args->scoring.window;
    const int64_t end = args->sees_all ? args->past + args->known + row + 1 : visible(row);
    return window > 0 ? max_of(end - window, args->source) : args->source;
  }
};

/// Up to kQueries query vectors of one KV head, whose sums stay in registers: vector v is row v / group,
/// head v % group.
struct QueryTile {
  int kv_head;
  int64_t first;  // vector
  int size;
  int64_t visible[kQueries];      // positions up to the query's own
  int64_t first_seen[kQueries];   // of those, the first inside its window
  const int32_t* path[kQueries];  // nodes behind the prefix that it sees; trees only
  int64_t longest;                // of visible
  int64_t earliest;               // of first_seen

  QueryTile(const AttentionPlan& plan, int kv_head, int64_t index)
      : kv_head(kv_head), first(index * plan.tile),
        size(static_cast<int>(min_of(plan.vectors() - first, plan.tile))), longest(0),
        earliest(INT64_MAX) {
    int64_t row = first / plan.group, next = (row + 1) * plan.group - first;
    for (int q = 0; q < size; ++q) {
      if (q == next) ++row, next += plan.group;
      visible[q] = plan.visible(row);
      first_seen[q] = plan.first_seen(row);
      path[q] = plan.is_chain ? nullptr : plan.path + (plan.args->known + row) * plan.nodes;
      longest = max_of(longest, visible[q]);
      earliest = min_of(earliest, first_seen[q]);
    }
  }

  /// Position of the cache where position t of a query's own sequence lies.
  int64_t place(const AttentionPlan& plan, int q, int64_t t) const {
    return t < plan.args->past || plan.is_chain ? t : plan.args->past + path[q][t - plan.args->past];
  }
};

/// Everything but what lies in memory of its own.
inline AttentionPlan plan_pass(const AttentionArgs& args) {
  AttentionPlan plan{};
  plan.args = &args;
  plan.group = args.n_heads / args.n_kv_heads;
  plan.nodes = args.known + args.rows;
  plan.is_chain = true;
  for (int64_t i = 0; i < plan.nodes && !args.sees_all && !args.sees_source; ++i)
    plan.is_chain &= args.parents[i] == i - 1;
  const int64_t window = args.scoring.window, before = args.sees_source ? 0 : args.source;
  const int64_t end = args.sees_source ? max_of(args.source, 1) : args.past + plan.nodes;
  plan.first_chunk = (window > 0 ? max_of(args.past + 1 - window, before) : before) / kChunk;
  plan.chunks = ceil_div(end, kChunk) - plan.first_chunk;
  plan.width = ceil_div(args.head_size, 16) * 16;
  plan.key_bytes = kv_key_bytes(args.kv_format, args.head_size);
  plan.value_bytes = kv_value_bytes(args.kv_format, args.head_size);
  plan.tiles = ceil_div(plan.vectors(), kQueries);
  plan.tile = ceil_div(plan.vectors(), max_of(plan.tiles, 1));
  return plan;
}

/// Nodes up to the last that node i sees, of a pass whose nodes see each other.
inline int64_t last_seen(const AttentionArgs& a, const AttentionPlan& plan, int64_t i) {
  return a.scoring.window > 0 ? i + min_of(plan.nodes - i, a.scoring.window) : plan.nodes;
}

/// Fills depth and path from the parents, where these decide what a row sees.
inline void trace_paths(const AttentionArgs& a, AttentionPlan* plan) {
  for (int64_t i = 0; i < plan->nodes; ++i) {
    const int64_t parent = a.parents[i];
    plan->depth[i] = static_cast<int32_t>(
        a.sees_all ? last_seen(a, *plan, i) : 1 + (parent < 0 ? 0 : plan->depth[parent]));
    if (plan->is_chain) continue;
    int32_t* path = plan->path + i * plan->nodes;
    for (int32_t j = 0; j + 1 < plan->depth[i]; ++j) path[j] = plan->path[parent * plan->nodes + j];
    path[plan->depth[i] - 1] = static_cast<int32_t>(i);
  }
}

}  // namespace
}  // namespace edk
