// Mixtures of experts: every row goes through the few gated MLPs that its router scores choose.
// Included after one simd_*.h.
//
// A row's part in an expert is a share. Shares lie expert by expert, so that each chosen expert's
// weights are read once for all its rows, with the tiles of linear.h, and no others are. What the
// shares of a row become is added up in the order of their ranks, whoever shares the pass.
#pragma once

#include <cstring>

#include "linear.h"
#include "mapped_files.h"

namespace edk {
namespace {

constexpr int64_t kSerialSums = 1 << 15;  // fewer values are added up faster than threads are woken
constexpr int64_t kSumPanels = 8;         // of the output, of one task

/// An expert that rows chose. Its shares are [first, first + n).
struct ExpertRows {
  int64_t expert;
  int64_t first;
  int64_t n;
  Rows in;     // x
  Rows gated;  // between the halves of the MLP
};

/// Who goes where.
struct Routes {
  int32_t* ids;       // [rows, n_used], falling scores
  float* weights;     // [rows, n_used]
  int64_t* share_of;  // [rows, n_used]
  int64_t* row_of;    // [shares]
  int64_t* next;      // [n_experts], the share that the expert's next row takes
  ExpertRows* chosen;
  int64_t n_chosen;
};

/// Everything the tasks of one call share.
struct ExpertsPlan {
  const ExpertsArgs* args;
  int64_t shares;
  Routes routes;
  Rows rows;       // x, each row a tile of its own
  Rows gated;      // as far as all experts have it in common
  int zero_gate;   // which zero point of `rows`
  int zero_up;
  int zero_down;   // which of `gated`
  int64_t gated_panels;  // of gate and of up, in one task
  float* hidden;   // [shares, gate.n], what `gated` is prepared from
  float* results;  // [shares, down.n]
};

/// Lists the experts of the largest logits; of equals the lower one is first.
inline void choose_experts(const float* logits, int64_t n_experts, int64_t n_used, int32_t* ids) {
  int64_t size = 0;
  for (int64_t e = 0; e < n_experts; ++e) {
    if (size == n_used && !(logits[e] > logits[ids[size - 1]])) continue;
    int64_t at = size < n_used ? size++ : size - 1;
    for (; at > 0 && logits[e] > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
  }
}

/// Sum of e^(logit - top).
inline float sum_of_exps(const float* logits, int64_t n, float top) {
  Floats total = set1(0.0f);
  for (int64_t i = 0; i < n; i += kPanel) {
    const Floats e = exp(sub(load_n(logits + i, n - i), set1(top)));
    total = add(total, first_n(e, set1(0.0f), n - i));
  }
  return reduce_add(total);
}

/// Writes what each chosen expert counts for: its softmax among the chosen, or among all.
inline void weigh_experts(const ExpertsArgs& args, const float* logits, const int32_t* ids,
                          float* weights) {
  const int64_t n = args.n_used;
  const float top = logits[ids[0]];
  for (int64_t i = 0; i < n; ++i) weights[i] = logits[ids[i]];
  const float total =
      args.is_normed ? sum_of_exps(weights, n, top) : sum_of_exps(logits, args.n_experts, top);
  for (int64_t i = 0; i < n; i += kPanel) {
    const Floats e = exp(sub(load_n(weights + i, n - i), set1(top)));
    store_n(weights + i, div(e, set1(total)), n - i);
  }
}

/// Routes all rows; experts and the rows of each are in rising order.
void route(const ExpertsArgs& args, Routes* routes) {
  for (int64_t e = 0; e < args.n_experts; ++e) routes->next[e] = 0;
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* logits = args.router + r * args.n_experts;
    int32_t* ids = routes->ids + r * args.n_used;
    choose_experts(logits, args.n_experts, args.n_used, ids);
    weigh_experts(args, logits, ids, routes->weights + r * args.n_used);
    for (int64_t i = 0; i < args.n_used; ++i) ++routes->next[ids[i]];
  }
  int64_t first = 0;
  for (int64_t e = 0; e < args.n_experts; ++e) {
    const int64_t n = routes->next[e];
    if (n > 0) routes->chosen[routes->n_chosen++] = {e, first, n, {}, {}};
    routes->next[e] = first;
    first += n;
  }
  for (int64_t i = 0; i < args.rows * args.n_used; ++i) {
    routes->share_of[i] = routes->next[routes->ids[i]]++;
    routes->row_of[routes->share_of[i]] = i / args.n_used;
  }
}

/// Takes the routes' arrays.
void carve_routes(const ExpertsArgs& args, int64_t shares, Carver& carver, Routes* routes) {
  routes->ids = carver.take<int32_t>(shares);
  routes->weights = carver.take<float>(shares);
  routes->share_of = carver.take<int64_t>(shares);
  routes->row_of = carver.take<int64_t>(shares);
  routes->next = carver.take<int64_t>(args.n_experts);
  routes->chosen = carver.take<ExpertRows>(min_of(shares, args.n_experts));
}

/// Makes room for n rows in tiles of at most `tile_rows`.
inline void take_rows(Carver& carver, int64_t n, int64_t tile_rows, bool has_float,
                      bool has_quantised, Rows* rows) {
  const int64_t bytes = GroupRows::bytes(min_of(n, tile_rows), rows->n_zero);
  rows->group_bytes = ceil_div(bytes, kCacheLine) * kCacheLine;
  rows->plane_bytes = ceil_div(n, tile_rows) * rows->groups * rows->group_bytes;
  if (has_float) rows->normed = carver.take<float>(n * rows->k);
  if (has_quantised) rows->coarse = carver.take<uint8_t>(2 * rows->plane_bytes);
}

/// Row r of `plan.rows` as rows of its own.
inline Rows single_row(const ExpertsPlan& plan, int64_t r) {
  Rows row = plan.rows;
  if (row.coarse) row.coarse += r * row.groups * row.group_bytes;
  if (row.normed) row.normed += r * row.k;
  return row;
}

/// Takes the plan's arrays. An expert of one row reads that where it was prepared.
void carve_experts(ExpertsPlan* plan, Carver& carver) {
  const ExpertsArgs& args = *plan->args;
  const bool gate_is_float = is_float(args.gate.format), up_is_float = is_float(args.up.format);
  const bool has_float = gate_is_float || up_is_float;
  const bool has_quantised = !gate_is_float || !up_is_float;
  const bool down_is_float = is_float(args.down.format);
  take_rows(carver, args.rows, 1, has_float, has_quantised, &plan->rows);
  for (int64_t c = 0; c < plan->routes.n_chosen; ++c) {
    ExpertRows& own = plan->routes.chosen[c];
    own.in = single_row(*plan, plan->routes.row_of[own.first]);
    if (own.n > 1) take_rows(carver, own.n, kTileRows, has_float, has_quantised, &own.in);
    own.gated = plan->gated;
    take_rows(carver, own.n, kTileRows, down_is_float, !down_is_float, &own.gated);
  }
  plan->hidden = carver.take<float>(plan->shares * args.gate.n);
  plan->results = carver.take<float>(plan->shares * args.down.n);
}

void prepare_single_task(void* user, int64_t r) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const ExpertsArgs& args = *plan.args;
  LinearArgs row;
  row.x = args.x + r * args.k;
  row.k = args.k;
  row.norm_weight = args.norm_weight;
  row.epsilon = args.epsilon;
  prepare_tile(row, single_row(plan, r), 0, 1);
}

/// Copies the only row of a group to be row r of another.
inline void copy_group_row(const GroupRows& from, const GroupRows& to, int64_t r, int n_zero) {
  std::memcpy(to.codes(r), from.codes(0), kGroup);
  to.scale()[r] = from.scale()[0];
  to.sum()[r] = from.sum()[0];
  for (int i = 0; i < n_zero; ++i)
    std::memcpy(to.offsets(i) + 2 * r, from.offsets(i), 2 * sizeof(int32_t));
}

/// Puts row r of `tile`, prepared by itself as `row`, where the tile's products look for it.
inline void gather_row(const Rows& row, const Rows& rows, int64_t tile, int64_t m, int64_t r) {
  for (int64_t g = 0; rows.coarse && g < rows.groups; ++g) {
    const GroupRows from = row.at(0, g, 1), to = rows.at(tile, g, m);
    if (r == 0) *to.fine() = 0;
    copy_group_row(from, to, r, rows.n_zero);
    if (*from.fine() == 0) continue;
    *to.fine() |= uint32_t{1} << r;
    copy_group_row(row.fine(from), rows.fine(to), r, rows.n_zero);
  }
  if (!rows.normed) return;
  float* normed = rows.normed + (tile * kTileRows + r) * rows.k;
  std::memcpy(normed, row.normed, static_cast<size_t>(rows.k) * sizeof(float));
}

void gather_task(void* user, int64_t c) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const ExpertRows& own = plan.routes.chosen[c];
  if (own.n == 1) return;
  for (int64_t i = 0; i < own.n; ++i) {
    const int64_t tile = i / kTileRows, m = min_of(own.n - tile * kTileRows, kTileRows);
    const Rows row = single_row(plan, plan.routes.row_of[own.first + i]);
    gather_row(row, own.in, tile, m, i % kTileRows);
  }
}

/// Prepares what the first half of the MLP made of an expert's rows.
void prepare_gated_task(void* user, int64_t c) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const ExpertRows& own = plan.routes.chosen[c];
  LinearArgs rows;
  rows.k = plan.args->gate.n;
  rows.x = plan.hidden + own.first * rows.k;
  for (int64_t i = 0; i < own.n; i += kTileRows)
    prepare_tile(rows, own.gated, i / kTileRows, min_of(own.n - i, kTileRows));
}

/// The panels of an expert's part of `matrix` [n, k].
inline const uint8_t* expert_panels(const Matrix& matrix, int64_t k, int64_t expert) {
  return matrix.packed + expert * ceil_div(matrix.n, kPanel) * panel_bytes(matrix.format, k);
}

/// Has the matrices of the chosen experts read, where those are on the disk, and of no others.
inline void bring_in_chosen(const ExpertsPlan& plan) {
  const ExpertsArgs& args = *plan.args;
  const auto bring_in_part = [](const Matrix& matrix, int64_t k, int64_t expert) {
    bring_in(expert_panels(matrix, k, expert), expert_panels(matrix, k, expert + 1) -
                                                   expert_panels(matrix, k, expert));
  };
  for (int64_t c = 0; c < plan.routes.n_chosen; ++c) {
    const int64_t expert = plan.routes.chosen[c].expert;
    bring_in_part(args.gate, args.k, expert);
    bring_in_part(args.up, args.k, expert);
    bring_in_part(args.down, args.gate.n, expert);
  }
}

constexpr float kClampedSlope = 1.702f;

/// What `gate` lets through of `up` where both stay within `limit`. A NaN stays one: the second operand
/// of min and max.
inline Floats clamped_gate(Floats gate, Floats up, float limit) {
  const Floats bound = set1(limit);
  gate = min(bound, gate);
  up = max(set1(-limit), min(bound, up));
  const Floats slow = exp(mul(gate, set1(-kClampedSlope)));
  return mul(div(gate, add(set1(1.0f), slow)), add(up, set1(1.0f)));
}

/// `y`, channels of one expert from `column` of n on, plus their bias if there is one.
inline Floats add_expert_bias(Floats y, const float* bias, int64_t expert, int64_t n,
                              int64_t column) {
  return bias ? add(y, load_n(bias + expert * n + column, n - column)) : y;
}

/// Panels [first, end) of gate and up of one expert.
inline void run_gated_panels(const ExpertsPlan& plan, const ExpertRows& own, int64_t first,
                             int64_t end) {
  const Matrix &gate = plan.args->gate, &up = plan.args->up;
  const GatedPair pair{{&gate, &own.in, plan.zero_gate},
                       {&up, &own.in, plan.zero_up},
                       expert_panels(gate, plan.args->k, own.expert),
                       expert_panels(up, plan.args->k, own.expert)};
  const ExpertsArgs& args = *plan.args;
  const auto activate = [&](int64_t p, Floats a, Floats b) {
    a = add_expert_bias(a, args.gate_bias, own.expert, gate.n, p * kPanel);
    b = add_expert_bias(b, args.up_bias, own.expert, gate.n, p * kPanel);
    return args.limit > 0 ? clamped_gate(a, b, args.limit) : silu_gate(p, a, b);
  };
  for (int64_t i = 0, m; i < own.n; i += m) {
    m = rows_at_once(own.n - i);
    run_gated(pair, first, end, i / kTileRows, m, activate, [&](int64_t p, int64_t r, Floats y) {
      store_n(plan.hidden + (own.first + i + r) * gate.n + p * kPanel, y, gate.n - p * kPanel);
    });
  }
}

/// Some panels of gate and up of one expert.
void gate_task(void* user, int64_t task) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const int64_t panels = ceil_div(plan.args->gate.n, kPanel);
  const int64_t tasks = ceil_div(panels, plan.gated_panels);
  const ExpertRows& own = plan.routes.chosen[task / tasks];
  const int64_t first = task % tasks * plan.gated_panels;
  const int64_t end = min_of(first + plan.gated_panels, panels);
  const int64_t at_once = own.n > kTileRows ? 1 : plan.gated_panels;
  for (int64_t p = first; p < end; p += at_once)
    run_gated_panels(plan, own, p, min_of(p + at_once, end));
}

/// One panel of the second half of one expert.
void down_task(void* user, int64_t task) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const Matrix& down = plan.args->down;
  const int64_t panels = ceil_div(down.n, kPanel), p = task % panels, column = p * kPanel;
  const ExpertRows& own = plan.routes.chosen[task / panels];
  const uint8_t* packed = expert_panels(down, plan.args->gate.n, own.expert);
  const Operand rows{&down, &own.gated, plan.zero_down};
  for (int64_t i = 0, m; i < own.n; i += m) {
    m = rows_at_once(own.n - i);
    Floats sums[kMostRows];
    multiply_panel(rows, packed, p, i / kTileRows, m, sums);
    for (int64_t r = 0; r < m; ++r) {
      const Floats y = add_expert_bias(sums[r], plan.args->down_bias, own.expert, down.n, column);
      store_n(plan.results + (own.first + i + r) * down.n + column, y, down.n - column);
    }
  }
}

/// Adds up a few panels of all rows: the residual, then every share by its rank.
void sum_task(void* user, int64_t task) {
  const ExpertsPlan& plan = *static_cast<const ExpertsPlan*>(user);
  const ExpertsArgs& args = *plan.args;
  const int64_t n = args.down.n, begin = task * kSumPanels * kPanel;
  const int64_t end = min_of(begin + kSumPanels * kPanel, n);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t* share_of = plan.routes.share_of + r * args.n_used;
    const float* weights = plan.routes.weights + r * args.n_used;
    for (int64_t i = begin; i < end; i += kPanel) {
      Floats y = args.residual ? load_n(args.residual + r * n + i, n - i) : set1(0.0f);
      for (int64_t rank = 0; rank < args.n_used; ++rank)
        y = fma(set1(weights[rank]), load_n(plan.results + share_of[rank] * n + i, n - i), y);
      store_n(args.out + r * n + i, y, n - i);
    }
  }
}

/// Runs all tasks in parallel, or here if that is sooner.
inline void run_tasks(const Parallel& parallel, bool is_short, int64_t n,
                      void (*task)(void*, int64_t), ExpertsPlan* plan) {
  if (!is_short) return parallel.run(n, task, plan);
  for (int64_t i = 0; i < n; ++i) task(plan, i);
}

void plan_experts(const ExpertsArgs& args, ExpertsPlan* plan) {
  plan->args = &args;
  plan->shares = args.rows * args.n_used;
  plan->rows.k = args.k;
  plan->rows.groups = ceil_div(args.k, kGroup);
  plan->zero_gate = zero_of(args.gate.format, &plan->rows);
  plan->zero_up = zero_of(args.up.format, &plan->rows);
  plan->gated.k = args.gate.n;
  plan->gated.groups = ceil_div(args.gate.n, kGroup);
  plan->zero_down = zero_of(args.down.format, &plan->gated);
}

void experts(const ExpertsArgs& args, const Parallel& parallel) {
  parallel.announce(Reading{});
  ExpertsPlan plan{};
  plan_experts(args, &plan);
  lay_out(ScratchUse::kRoutes,
          [&](Carver& carver) { carve_routes(args, plan.shares, carver, &plan.routes); });
  route(args, &plan.routes);
  bring_in_chosen(plan);
  lay_out(ScratchUse::kOperator, [&](Carver& carver) { carve_experts(&plan, carver); });
  const int64_t n_chosen = plan.routes.n_chosen;
  run_tasks(parallel, args.rows * plan.rows.groups < kSerialGroups, args.rows, prepare_single_task,
            &plan);
  if (n_chosen < plan.shares)
    run_tasks(parallel, plan.shares * plan.rows.groups < kSerialGroups, n_chosen, gather_task,
              &plan);
  const int64_t panels = ceil_div(args.gate.n, kPanel);
  plan.gated_panels = gated_panels(n_chosen * panels, 1);
  parallel.run(n_chosen * ceil_div(panels, plan.gated_panels), gate_task, &plan);
  run_tasks(parallel, plan.shares * plan.gated.groups < kSerialGroups, n_chosen,
            prepare_gated_task, &plan);
  parallel.run(n_chosen * ceil_div(args.down.n, kPanel), down_task, &plan);
  run_tasks(parallel, plan.shares * args.down.n < kSerialSums,
            ceil_div(args.down.n, kSumPanels * kPanel), sum_task, &plan);
}

}  // namespace
}  // namespace edk
