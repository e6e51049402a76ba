// Statistics of logits rows in one pass over memory. Included after one simd_*.h.
//
// One task is one block of one row, small enough to stay in the nearest cache while it is read
// twice: for its largest logits, then for its sums of exponentials. Blocks have a constant width
// and are merged in order, so a row's numbers do not depend on who computed them.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "elementary.h"
#include "kernels.h"
#include "layout.h"
#include "scratch.h"

namespace edk {
namespace {

constexpr int64_t kStatsBlock = 4096;  // ids of a block
constexpr int64_t kMergeRows = 16;     // of one task: what it writes takes whole cache lines
constexpr float kLowest = -87.0f;      // below it `exp` no longer falls

/// Whether logit `a` comes before `b` in the list of the largest; NaN comes first, to be noticed.
inline bool is_larger(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

/// The largest logits seen so far, falling; of equals those seen first.
struct Largest {
  float logit[kTop] = {};
  int64_t id[kTop] = {};
  int size = 0;

  /// What a logit must exceed to be listed. Only for a full list.
  float threshold() const { return logit[kTop - 1]; }

  /// Lists a logit if it is large enough; says whether it was.
  bool offer(float z, int64_t i) {
    if (size == kTop && !is_larger(z, threshold())) return false;
    int at = size < kTop ? size++ : kTop - 1;
    for (; at > 0 && is_larger(z, logit[at - 1]); --at) {
      logit[at] = logit[at - 1];
      id[at] = id[at - 1];
    }
    logit[at] = z;
    id[at] = i;
    return true;
  }
};

/// One block of a row: z stands for a logit less the largest of the block. Each takes whole cache
/// lines, so that threads never write the same one.
struct alignas(kCacheLine) BlockStats {
  Largest largest;
  float weight;    // sum of e^z
  float weighted;  // sum of z e^z
};

inline Largest find_largest(const float* logits, int64_t first_id, int64_t n) {
  Largest found;
  for (int64_t i = 0; i < n && i < kPanel; ++i) found.offer(logits[i], first_id + i);
  for (int64_t i = kPanel; i < n; i += kPanel) {
    // A lane past the end repeats the threshold and is never above it.
    const Floats limit = set1(found.threshold());
    const Floats z = first_n(load_n(logits + i, n - i), limit, n - i);
    if (__builtin_expect(!any_above(z, limit), 1)) continue;
    for (int64_t j = i; j < n && j < i + kPanel; ++j) found.offer(logits[j], first_id + j);
  }
  return found;
}

inline void sum_weights(const float* logits, int64_t n, BlockStats* block) {
  const Floats top = set1(block->largest.logit[0]), lowest = set1(kLowest), zero = set1(0.0f);
  Floats weight = zero, weighted = zero;
  for (int64_t i = 0; i < n; i += kPanel) {
    const Floats z = max(sub(load_n(logits + i, n - i), top), lowest);
    const Floats e = first_n(exp(z), zero, n - i);
    weight = add(weight, e);
    weighted = fma(z, e, weighted);
  }
  block->weight = reduce_add(weight);
  block->weighted = reduce_add(weighted);
}

struct RowStatsPlan {
  const RowStatsArgs* args;
  int64_t n_blocks;  // of a row
  BlockStats* blocks;
};

void block_task(void* user, int64_t task) {
  const RowStatsPlan& plan = *static_cast<const RowStatsPlan*>(user);
  const int64_t row = task / plan.n_blocks, first = task % plan.n_blocks * kStatsBlock;
  const float* logits = plan.args->logits + row * plan.args->n_ids + first;
  const int64_t left = plan.args->n_ids - first, n = left < kStatsBlock ? left : kStatsBlock;
  BlockStats& block = plan.blocks[task];
  block.largest = find_largest(logits, first, n);
  block.weight = block.weighted = 0;
  if (std::isfinite(block.largest.logit[0])) sum_weights(logits, n, &block);
}

/// e^x as every ISA computes it.
inline float exp_of(float x) {
  float lane[kPanel];
  store_n(lane, exp(set1(x)), kPanel);
  return lane[0];
}

/// Natural logarithm of a positive number within 1e-12, from operations that round alike on every
/// machine.
/// Source: log m = 2 artanh((m - 1) / (m + 1)), its series cut where m in [0.7, 1.5) allows.
inline double log_of(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 0;
  for (int k = 19; k > 0; k -= 2) series = series * square + 1.0 / k;
  return 2 * s * series + exponent * 0.69314718055994531;
}

/// Writes what row `row` is, from its blocks.
void merge_row(const RowStatsPlan& plan, int64_t row) {
  const RowStatsArgs& args = *plan.args;
  const BlockStats* blocks = plan.blocks + row * plan.n_blocks;
  Largest largest;
  for (int64_t b = 0; b < plan.n_blocks; ++b) {
    const Largest& own = blocks[b].largest;
    for (int i = 0; i < own.size && largest.offer(own.logit[i], own.id[i]); ++i) continue;
  }
  const float top = largest.logit[0];
  double weight = 0, weighted = 0;
  for (int64_t b = 0; b < plan.n_blocks; ++b) {
    const float below = blocks[b].largest.logit[0] - top, z = below > kLowest ? below : kLowest;
    const double scale = exp_of(z), own = blocks[b].weight;
    weight += scale * own;
    weighted += scale * (blocks[b].weighted + z * own);
  }
  const bool is_finite = std::isfinite(top);
  const float none = std::numeric_limits<float>::quiet_NaN();
  const double log_weight = is_finite ? log_of(weight) : 0;
  args.argmax[row] = largest.id[0];
  args.log_sum_exp[row] = is_finite ? static_cast<float>(top + log_weight) : none;
  args.entropy[row] = is_finite ? static_cast<float>(log_weight - weighted / weight) : none;
  for (int i = 0; i < kTop; ++i) {
    args.top_ids[row * kTop + i] = i < largest.size ? largest.id[i] : -1;
    args.top_logits[row * kTop + i] =
        i < largest.size ? largest.logit[i] : -std::numeric_limits<float>::infinity();
  }
}

void merge_task(void* user, int64_t task) {
  const RowStatsPlan& plan = *static_cast<const RowStatsPlan*>(user);
  const int64_t begin = task * kMergeRows, end = begin + kMergeRows;
  for (int64_t r = begin; r < end && r < plan.args->rows; ++r) merge_row(plan, r);
}

void row_stats(const RowStatsArgs& args, const Parallel& parallel) {
  RowStatsPlan plan{&args, ceil_div(args.n_ids, kStatsBlock), nullptr};
  const int64_t n_blocks = args.rows * plan.n_blocks;
  const size_t bytes = static_cast<size_t>(n_blocks) * sizeof(BlockStats);
  plan.blocks = static_cast<BlockStats*>(scratch(ScratchUse::kOperator, bytes));
  parallel.run(n_blocks, block_task, &plan);
  parallel.run(ceil_div(args.rows, kMergeRows), merge_task, &plan);
}

}  // namespace
}  // namespace edk
