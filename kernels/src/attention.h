// Rotary positions, KV append and attention over the committed prefix and a row's own ancestors.
// Included after one simd_*.h.
//
// A row's own sequence (prefix, ancestors by depth, itself) is cut into chunks of fixed length.
// Every sum inside a chunk runs in the order of that sequence, wherever its rows lie in the cache,
// and chunks are merged in rising order: a token inside a tree is computed exactly as it would be in
// a chain, and whether chunks are computed one after the other or side by side changes nothing.
#pragma once

#include <utility>

#include "attention_chunk.h"
#include "kv_append.h"

namespace edk {
namespace {

constexpr int64_t kFewRows = 4;  // fewer rows are handled faster than threads are woken
constexpr int64_t kManyVectors = 128;  // of one KV head: enough tasks without cutting rows into chunks
constexpr int64_t kSpan = 32 / kQueries;  // tiles of one task, then: each chunk is read once for them
constexpr int64_t kFewTasks = 8;    // too few for threads to end at about the same time

/// How the rows of one sequence are cut into tasks. Changes no result.
struct AttentionTasks {
  const AttentionPlan* plan;
  int64_t tiles;      // of one KV head
  int64_t span;       // tiles of one task
  int64_t spans;      // of one KV head
  bool is_split;      // a task is one chunk of a span, and rows are merged when all are done
  Partials partials;  // of all vectors, if split
  int64_t readers;    // sequences from this one on that read a chunk one after the other
  int64_t chunks;     // most of theirs
};

inline AttentionTasks cut_tasks(const AttentionPlan& plan) {
  AttentionTasks tasks{};
  tasks.plan = &plan;
  tasks.tiles = plan.tiles;
  const bool has_many = plan.vectors() >= kManyVectors;
  tasks.is_split = plan.chunks > 1 && !has_many;
  const bool is_cut_enough = tasks.is_split && plan.args->n_kv_heads * plan.chunks >= kFewTasks;
  tasks.span = has_many ? kSpan : is_cut_enough ? tasks.tiles : 1;
  tasks.spans = ceil_div(tasks.tiles, tasks.span);
  tasks.readers = 1;
  tasks.chunks = plan.chunks;
  return tasks;
}

/// Says whether two sequences begin with the same panels, a chunk of them or more.
inline bool begin_alike(const AttentionArgs& a, const AttentionArgs& b) {
  const int64_t panels = min_of(a.runs->panels, b.runs->panels);
  return a.scoring.window == 0 && a.runs->first == b.runs->first &&
         min_of(panels * kPanel, min_of(a.past, b.past)) >= kChunk;
}

/// Brings sequences together that begin alike: one task reads a chunk for all of them, so that what
/// they have in common comes from memory once. Changes no result.
inline void group_readers(AttentionTasks* tasks, int64_t n) {
  for (int64_t i = 0; i < n; i += tasks[i].readers) {
    AttentionTasks& first = tasks[i];
    for (int64_t j = i + 1; first.is_split && j < n; ++j) {
      if (!tasks[j].is_split || !begin_alike(*first.plan->args, *tasks[j].plan->args)) continue;
      first.chunks = max_of(first.chunks, tasks[j].plan->chunks);
      std::swap(tasks[i + first.readers++], tasks[j]);
    }
    for (int64_t j = 1; j < first.readers; ++j) tasks[i + j].readers = 0;
  }
}

/// One chunk of one tile, whose size becomes a constant.
template <class Elements, int Q = kQueries>
inline void attend_tile(const AttentionPlan& plan, const QueryTile& tile, int64_t chunk,
                        float* scores, const Partials& out) {
  if constexpr (Q > 1) {
    if (tile.size < Q) return attend_tile<Elements, Q - 1>(plan, tile, chunk, scores, out);
  }
  attend_chunk<Elements, Q>(plan, tile, chunk, scores, out);
}

/// Replaces the largest scores of n chunks by what each chunk counts for; returns the sum of all
/// weights.
inline float weigh_chunks(float* largest, const float* totals, int64_t n) {
  if (n == 1) return *largest = 1, *totals;
  const Floats lowest = set1(-3.0e38f);
  Floats top = lowest, total = set1(0.0f);
  for (int64_t c = 0; c < n; c += 16)
    top = max(top, first_n(load_n(largest + c, n - c), lowest, n - c));
  top = set1(reduce_max(top));
  for (int64_t c = 0; c < n; c += 16) {
    const Floats scale = exp(sub(load_n(largest + c, n - c), top));
    total = fma(first_n(scale, set1(0.0f), n - c), load_n(totals + c, n - c), total);
    store_n(largest + c, scale, n - c);
  }
  return reduce_add(total);
}

/// Floats that `merge` needs: a largest score and a sum of each chunk, and of the sink.
inline int64_t merge_floats(const AttentionPlan& plan) { return 2 * (plan.chunks + 1); }

/// Writes the attended head of query q of a tile, vector `vector` of its KV head, from the chunks of
/// its window in rising order. A sink is one more chunk, of one score and no values. `memory` is for
/// what the chunks count for.
template <class Elements>
inline void merge(const AttentionPlan& plan, int kv_head, int64_t vector, const Partials& tile,
                  float* memory) {
  const AttentionArgs& a = *plan.args;
  const int64_t row = vector / plan.group, head = kv_head * plan.group + vector % plan.group;
  const int64_t first = plan.first_seen(row) / kChunk - plan.first_chunk, q = vector % plan.tile;
  const int64_t n = ceil_div(plan.visible(row), kChunk) - plan.first_chunk - first;
  float *weights = memory, *totals = memory + plan.chunks + 1;
  for (int64_t c = 0; c < n; ++c) {
    weights[c] = *tile.largest(q, first + c);
    totals[c] = *tile.total(q, first + c);
  }
  if (a.sinks) weights[n] = a.sinks[head], totals[n] = 1;
  const bool sees_some = n > 0 || a.sinks;  // else all is 0
  const Floats total = set1(sees_some ? weigh_chunks(weights, totals, a.sinks ? n + 1 : n) : 1.0f);
  float* out = a.out + (row * a.n_heads + head) * a.head_size;
  for (int64_t i = 0; i < a.head_size; i += 16) {
    Floats sum = set1(0.0f);
    for (int64_t c = 0; c < n; ++c)
      sum = fma(set1(weights[c]), load(tile.values_of(plan, q, first + c) + i), sum);
    store_n(out + i, div(sum, total), a.head_size - i);
  }
  if constexpr (Elements::kMixesValues) mix(out, a.head_size);
}

/// One chunk of one span.
template <class Elements>
void attend_chunk_of_span(const AttentionTasks& tasks, int kv_head, int64_t chunk, int64_t span) {
  const AttentionPlan& plan = *tasks.plan;
  const int64_t begin = span * tasks.span, end = min_of(begin + tasks.span, tasks.tiles);
  const size_t bytes = static_cast<size_t>(score_floats(plan)) * 4;
  auto* scores = static_cast<float*>(scratch(ScratchUse::kTask, bytes));
  for (int64_t t = begin; t < end; ++t) {
    const QueryTile tile(plan, kv_head, t);
    attend_tile<Elements>(plan, tile, chunk, scores,
                          tasks.partials.of_tile(plan, kv_head * tasks.tiles + t));
  }
}

/// One chunk, for a span of one sequence or for all of several that begin alike.
template <class Elements>
void attend_chunk_of_readers(const AttentionTasks* tasks, int64_t task) {
  const bool are_several = tasks->readers > 1;
  const int64_t spans = are_several ? 1 : tasks->spans, unit = task / spans;
  const int kv_head = static_cast<int>(unit / tasks->chunks);
  const int64_t chunk = unit % tasks->chunks;
  if (!are_several) return attend_chunk_of_span<Elements>(*tasks, kv_head, chunk, task % spans);
  for (const AttentionTasks* of = tasks; of < tasks + tasks->readers; ++of)
    for (int64_t span = 0; span < of->spans && chunk < of->plan->chunks; ++span)
      attend_chunk_of_span<Elements>(*of, kv_head, chunk, span);
}

/// All chunks of one span, then its merging. Long rows come first: what remains last is short.
template <class Elements>
void attend_span(const AttentionTasks& tasks, int64_t task) {
  const AttentionPlan& plan = *tasks.plan;
  const int64_t begin = (tasks.spans - 1 - task % tasks.spans) * tasks.span;
  const int64_t end = min_of(begin + tasks.span, tasks.tiles);
  const int kv_head = static_cast<int>(task / tasks.spans);
  Partials partials;
  float *scores, *merging;
  lay_out(ScratchUse::kTask, [&](Carver& carver) {
    partials = Partials::take(carver, plan, tasks.span);
    scores = carver.take<float>(score_floats(plan));
    merging = carver.take<float>(merge_floats(plan));
  });
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk)
    for (int64_t t = begin; t < end; ++t)
      attend_tile<Elements>(plan, QueryTile(plan, kv_head, t), chunk, scores,
                            partials.of_tile(plan, t - begin));
  for (int64_t v = begin * plan.tile; v < min_of(end * plan.tile, plan.vectors()); ++v)
    merge<Elements>(plan, kv_head, v, partials.of_tile(plan, v / plan.tile - begin), merging);
}

template <class Elements>
void merge_row(const AttentionTasks& tasks, int64_t row) {
  const AttentionPlan& plan = *tasks.plan;
  const size_t bytes = static_cast<size_t>(merge_floats(plan)) * 4;
  auto* memory = static_cast<float*>(scratch(ScratchUse::kTask, bytes));
  for (int kv_head = 0; kv_head < plan.args->n_kv_heads; ++kv_head)
    for (int64_t v = row * plan.group; v < (row + 1) * plan.group; ++v)
      merge<Elements>(plan, kv_head, v,
                      tasks.partials.of_tile(plan, kv_head * tasks.tiles + v / plan.tile), memory);
}

/// The rows of a pass, sequence by sequence.
struct SharedPass {
  KeyOffsets offsets;
  AttentionPlan plans[kMaxSequences];
  AttentionTasks tasks[kMaxSequences];
  int64_t n;
};

/// Gives a plan its memory.
void take_memory(Carver& carver, AttentionPlan* plan) {
  const AttentionArgs& a = *plan->args;
  const int64_t queries = a.rows * a.n_heads * a.head_size;
  plan->queries = carver.take<float>(queries);
  plan->of_offsets = carver.take<float>(a.key_offsets ? queries : 0);
  plan->depth = carver.take<int32_t>(plan->nodes);
  plan->path = carver.take<int32_t>(plan->is_chain ? 0 : plan->nodes * plan->nodes);
}

template <class Elements>
struct AppendWork {
  static int64_t tasks(const AttentionTasks& of) {
    return of.plan->args->n_kv_heads * append_spans(*of.plan->args);
  }
  static void run(const AttentionTasks& of, int64_t task) { append_rows<Elements>(*of.plan, task); }
};

template <class Elements>
struct AttendWork {
  static int64_t tasks(const AttentionTasks& of) {
    if (!of.is_split) return of.plan->args->n_kv_heads * of.spans;
    if (of.readers == 0) return 0;  // the first of those that begin alike does the work
    return of.plan->args->n_kv_heads * of.chunks * (of.readers > 1 ? 1 : of.spans);
  }
  static void run(const AttentionTasks& of, int64_t task) {
    if (of.is_split) return attend_chunk_of_readers<Elements>(&of, task);
    attend_span<Elements>(of, task);
  }
};

template <class Elements>
struct MergeWork {
  static int64_t tasks(const AttentionTasks& of) { return of.is_split ? of.plan->args->rows : 0; }
  static void run(const AttentionTasks& of, int64_t task) { merge_row<Elements>(of, task); }
};

/// Task of all sequences, numbered through.
template <class Work>
void shared_task(void* user, int64_t task) {
  const AttentionTasks* of = static_cast<const SharedPass*>(user)->tasks;
  for (int64_t n = Work::tasks(*of); task >= n; n = Work::tasks(*++of)) task -= n;
  Work::run(*of, task);
}

/// Does `Work` for all sequences; here, if the pass has few rows and the work is little.
template <class Work>
void run_shared(SharedPass& pass, const Parallel& parallel, bool is_little) {
  int64_t n = 0, rows = 0;
  for (int64_t i = 0; i < pass.n; ++i) {
    n += Work::tasks(pass.tasks[i]);
    rows += pass.plans[i].args->rows;
  }
  if (!is_little || rows >= kFewRows) return parallel.run(n, shared_task<Work>, &pass);
  for (int64_t i = 0; i < n; ++i) shared_task<Work>(&pass, i);
}

template <class Elements>
void attend_pass(const AttentionArgs* args, const Parallel& parallel) {
  SharedPass pass;
  pass.n = args->n_sequences;
  bool is_split = false;
  for (int64_t i = 0; i < pass.n; ++i) {
    pass.plans[i] = plan_pass(args[i]);
    if (args->key_offsets) pass.plans[i].offsets = &pass.offsets;
    pass.tasks[i] = cut_tasks(pass.plans[i]);
    is_split |= pass.tasks[i].is_split;
  }
  group_readers(pass.tasks, pass.n);
  lay_out(ScratchUse::kOperator, [&](Carver& carver) {
    take_offsets(carver, *args, &pass.offsets);
    for (AttentionPlan* plan = pass.plans; plan < pass.plans + pass.n; ++plan)
      take_memory(carver, plan);
    for (AttentionTasks* of = pass.tasks; of < pass.tasks + pass.n; ++of)
      if (of->is_split)
        of->partials = Partials::take(carver, *of->plan, of->plan->args->n_kv_heads * of->tiles);
  });
  if (args->key_offsets) fill_offsets(*args, &pass.offsets);
  for (int64_t i = 0; i < pass.n; ++i) trace_paths(args[i], &pass.plans[i]);
  run_shared<AppendWork<Elements>>(pass, parallel, true);
  run_shared<AttendWork<Elements>>(pass, parallel, false);
  if (is_split) run_shared<MergeWork<Elements>>(pass, parallel, true);
}

template <int Format = 0>
void attend_format(const AttentionArgs* args, const Parallel& parallel) {
  if constexpr (Format + 1 < kNumKvFormats) {
    if (args->kv_format != Format) return attend_format<Format + 1>(args, parallel);
  }
  attend_pass<KvElements<Format>>(args, parallel);
}

void attention(const AttentionArgs& args, const Parallel& parallel) {
  attend_format(&args, parallel);
}

}  // namespace
}  // namespace edk
