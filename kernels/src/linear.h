// Matrix products of a few to many rows with packed weights. Included after one simd_*.h.
//
// One task is one panel, or some of a gated pair: its weights are read once from memory, and multiplied
// with the rows tile by tile.
#pragma once

#include "carver.h"
#include "gated.h"
#include "tile_products.h"

namespace edk {
namespace {

constexpr int64_t kSerialGroups = 256;  // fewer groups of rows are prepared faster than threads woken
constexpr int64_t kShares = 4;          // of the preparation of a few rows

/// Everything the tasks of one call share.
struct LinearPlan {
  const LinearArgs* args;
  Rows rows;
  Operand operands[kMaxMatrices];
  MeasuredRow* measured;  // [rows], where there are few tiles
  float* scales;          // [rows, groups up to whole cache lines], likewise
  int64_t n_out;
  int64_t tiles;
  int64_t gated_panels;   // of each matrix of a gated pair, in one task
};

/// Writes 16 or fewer channels of row `r`, starting at column `column`.
inline void store_row(const LinearPlan& plan, Floats y, int64_t r, int64_t column, int64_t n) {
  const int64_t at = r * plan.n_out + column;
  if (plan.args->residual) y = add(load_n(plan.args->residual + at, n), y);
  store_n(plan.args->out + at, y, n);
}

/// Asks for the lines that `store_row` will write of m rows, the first being `row`, from `column` on. While
/// a store waits for its line, all later ones wait for it, those of the next panel's sums too.
inline void fetch_outputs(const LinearPlan& plan, int64_t row, int64_t m, int64_t column) {
  for (int64_t r = row; r < row + m; ++r)
    __builtin_prefetch(plan.args->out + r * plan.n_out + column, 1);
}

inline Floats add_bias(Floats y, const Matrix& matrix, int64_t column, int64_t n) {
  return matrix.bias ? add(y, load_n(matrix.bias + column, n)) : y;
}

inline int64_t rows_of_tile(const LinearPlan& plan, int64_t tile) {
  return min_of(plan.args->rows - tile * kTileRows, kTileRows);
}

/// Panel `p` of matrix `i` for all rows; `offset` is the matrix's first output column.
inline void run_panel(const LinearPlan& plan, int i, int64_t p, int64_t offset) {
  const Matrix& matrix = plan.args->matrices[i];
  const int64_t column = p * kPanel, n = matrix.n - column;
  for (int64_t row = 0, m; row < plan.args->rows; row += m) {
    m = rows_at_once(plan.args->rows - row);
    Floats sums[kMostRows];
    fetch_outputs(plan, row, m, offset + column);
    multiply_panel(plan.operands[i], matrix.packed, p, row / kTileRows, m, sums);
    for (int64_t r = 0; r < m; ++r)
      store_row(plan, add_bias(sums[r], matrix, column, n), row + r, offset + column, n);
  }
}

/// Panels [first, end) of a gated pair for all rows; such a pair has neither bias nor residual.
inline void run_gated_panels(const LinearPlan& plan, int64_t first, int64_t end) {
  const GatedPair pair{plan.operands[0], plan.operands[1], plan.args->matrices[0].packed,
                       plan.args->matrices[1].packed};
  for (int64_t row = 0, m; row < plan.args->rows; row += m) {
    m = rows_at_once(plan.args->rows - row);
    for (int64_t p = first; p < end; ++p) fetch_outputs(plan, row, m, p * kPanel);
    run_gated(pair, first, end, row / kTileRows, m, silu_gate, [&](int64_t p, int64_t r, Floats y) {
      store_row(plan, y, row + r, p * kPanel, plan.n_out - p * kPanel);
    });
  }
}

void linear_task(void* user, int64_t task) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  if (plan.args->gate) {
    const int64_t first = task * plan.gated_panels, panels = ceil_div(plan.n_out, kPanel);
    return run_gated_panels(plan, first, min_of(first + plan.gated_panels, panels));
  }
  int64_t offset = 0;
  for (int i = 0; i < plan.args->n_matrices; ++i) {
    const int64_t panels = ceil_div(plan.args->matrices[i].n, kPanel);
    if (task < panels) return run_panel(plan, i, task, offset);
    task -= panels;
    offset += plan.args->matrices[i].n;
  }
}

void prepare_tile_task(void* user, int64_t tile) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  prepare_tile(*plan.args, plan.rows, tile, rows_of_tile(plan, tile));
}

/// From one row's scales to the next's: whole cache lines.
int64_t scales_stride(const Rows& rows) { return ceil_div(rows.groups, kPanel) * kPanel; }

void measure_task(void* user, int64_t r) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  float* scales = plan.scales + r * scales_stride(plan.rows);
  plan.measured[r] = measure_row(*plan.args, plan.rows, r, scales);
}

/// Prepares one of kShares shares of the groups of one tile.
void prepare_share_task(void* user, int64_t task) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  const int64_t length = ceil_div(plan.rows.groups, kShares);
  const int64_t tile = task / kShares, begin = task % kShares * length, end = begin + length;
  prepare_share(plan.measured + tile * kTileRows, plan.rows,
                RowsShare{tile, rows_of_tile(plan, tile), begin, min_of(end, plan.rows.groups)});
}

/// Which zero point of the rows is that of `format`; it is added if they lack it.
int zero_of(int format, Rows* rows) {
  const int32_t zero = kFormats[format].zero_point;
  if (zero == 0) return 0;
  for (int i = 0; i < rows->n_zero; ++i)
    if (rows->zero[i] == zero) return i;
  rows->zero[rows->n_zero] = zero;
  return rows->n_zero++;
}

/// Works out how the rows lie in memory, and how many tasks there are.
int64_t plan_linear(const LinearArgs& args, LinearPlan* plan) {
  plan->args = &args;
  plan->rows.k = args.k;
  plan->rows.groups = ceil_div(args.k, kGroup);
  int64_t tasks = 0;
  for (int i = 0; i < args.n_matrices; ++i) {
    const Matrix& matrix = args.matrices[i];
    plan->operands[i] = {&matrix, &plan->rows, zero_of(matrix.format, &plan->rows)};
    plan->n_out += args.gate && i ? 0 : matrix.n;
    tasks += args.gate && i ? 0 : ceil_div(matrix.n, kPanel);
  }
  plan->tiles = ceil_div(args.rows, kTileRows);
  plan->gated_panels = gated_panels(tasks, plan->tiles);
  if (args.gate) tasks = ceil_div(tasks, plan->gated_panels);
  const int64_t bytes =
      GroupRows::bytes(args.rows < kTileRows ? args.rows : kTileRows, plan->rows.n_zero);
  plan->rows.group_bytes = ceil_div(bytes, kCacheLine) * kCacheLine;
  return tasks;
}

/// Takes the plan's arrays.
void carve(LinearPlan* plan, Carver& carver) {
  const LinearArgs& args = *plan->args;
  bool has_float = false, has_quantised = false;
  for (int i = 0; i < args.n_matrices; ++i)
    (is_float(args.matrices[i].format) ? has_float : has_quantised) = true;
  Rows& rows = plan->rows;
  if (has_float) rows.normed = carver.take<float>(args.rows * args.k);
  if (has_quantised) {
    rows.plane_bytes = plan->tiles * rows.groups * rows.group_bytes;
    rows.coarse = carver.take<uint8_t>(2 * rows.plane_bytes);
  }
  if (plan->tiles < kShares) {
    plan->measured = carver.take<MeasuredRow>(args.rows);
    plan->scales = carver.take<float>(args.rows * scales_stride(rows));
  }
}

/// Many tiles are prepared one by one. Of few, every row is measured first, and then each of several
/// threads quantises groups of its own.
void prepare(LinearPlan* plan, const Parallel& parallel) {
  if (plan->args->rows * plan->rows.groups < kSerialGroups) {
    for (int64_t tile = 0; tile < plan->tiles; ++tile) prepare_tile_task(plan, tile);
  } else if (plan->tiles >= kShares) {
    parallel.run(plan->tiles, prepare_tile_task, plan);
  } else {
    parallel.run(plan->args->rows, measure_task, plan);
    parallel.run(plan->tiles * kShares, prepare_share_task, plan);
  }
}

/// What the tasks read of the weights. More rows than one product takes read them again, from caches
/// that others should not fill.
Reading reading_of(const LinearArgs& args) {
  Reading reading;
  if (args.rows > kMostRows) return reading;
  reading.n_spans = args.n_matrices;
  reading.is_side_by_side = args.gate;
  for (int i = 0; i < args.n_matrices; ++i) {
    const Matrix& matrix = args.matrices[i];
    reading.data[i] = matrix.packed;
    reading.bytes[i] = ceil_div(matrix.n, kPanel) * panel_bytes(matrix.format, args.k);
  }
  return reading;
}

void linear(const LinearArgs& args, const Parallel& parallel) {
  parallel.announce(reading_of(args));
  LinearPlan plan{};
  const int64_t tasks = plan_linear(args, &plan);
  lay_out(ScratchUse::kOperator, [&](Carver& carver) { carve(&plan, carver); });
  prepare(&plan, parallel);
  parallel.run(tasks, linear_task, &plan);
}

}  // namespace
}  // namespace edk
