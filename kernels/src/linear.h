// Matrix products of a few to many rows with packed weights. Included after one simd_*.h.
//
// One task is one panel: its weights are read once from memory, each group is unpacked once per
// tile of up to kTileRows rows, and everything a tile accumulates stays in registers.
#pragma once

#include <utility>

#include "elementary.h"
#include "rows.h"

namespace edk {
namespace {

// Ahead of the group in work. 5 to 16 kB measure alike; with 2.5 kB eight rows take 15 % longer.
constexpr int64_t kPrefetchBytes = 7168;
constexpr int64_t kSerialRows = 2;  // fewer rows are prepared faster than threads are woken

// A tile's sums must never have their address taken, or they leave the registers.
#define EDK_INLINE __attribute__((always_inline)) inline

/// A packed matrix, the rows it meets and, twice per place, what its zero point costs.
struct Operand {
  const Matrix* matrix;
  const Rows* rows;
  const int32_t* offset;  // -zero_point * half_sum, or null without zero point
};

/// One group of a tile of rows: row r of the tile is at offset r of every array.
struct TileGroup {
  const int8_t* codes;
  const float* scale;
  const float* sum;
  const int32_t* offset;

  TileGroup(const Operand& op, int64_t place)
      : codes(op.rows->codes + place * kGroup),
        scale(op.rows->scale + place),
        sum(op.rows->sum + place),
        offset(op.offset + 2 * place) {}
};

/// The eight quads of one group as unsigned bytes.
struct GroupCodes {
  Bytes quad[kQuads];
};

template <int Quad, int Bits>
inline Bytes with_high_bits(Bytes low, const Bytes* high) {
  if constexpr (Bits == 5) return with_bit4<Quad>(low, high[0]);
  if constexpr (Bits == 6) return with_bits45<2 * (Quad % 4)>(low, high[Quad / 4]);
  return low;
}

template <int Bits, int Pair>
inline void unpack_pair(const uint8_t* codes, const Bytes* high, GroupCodes* out) {
  const Bytes both = load_bytes(codes + Pair * kVector);
  out->quad[2 * Pair] = with_high_bits<2 * Pair, Bits>(low_nibbles(both), high);
  out->quad[2 * Pair + 1] = with_high_bits<2 * Pair + 1, Bits>(high_nibbles(both), high);
}

template <int Bits>
inline GroupCodes unpack(const uint8_t* codes) {
  GroupCodes out;
  if constexpr (Bits == 8) {
    for (int j = 0; j < kQuads; ++j) out.quad[j] = load_bytes(codes + j * kVector);
  } else {
    Bytes high[2];
    for (int v = 0; v < Bits - 4; ++v) high[v] = load_bytes(codes + (4 + v) * kVector);
    unpack_pair<Bits, 0>(codes, high, &out);
    unpack_pair<Bits, 1>(codes, high, &out);
    unpack_pair<Bits, 2>(codes, high, &out);
    unpack_pair<Bits, 3>(codes, high, &out);
  }
  return out;
}

/// Scales of one group: `scale[1]` is that of k 16-31 and used by TWO alone.
struct GroupScales {
  Floats scale[2];
  Floats minimum;
};

template <ScaleKind Kind>
inline GroupScales group_scales(const Floats outer[2], const uint8_t* own) {
  const auto* half = reinterpret_cast<const uint16_t*>(own);
  GroupScales out;
  if constexpr (Kind == ScaleKind::kTwoMin) {
    out.scale[0] = mul(outer[0], load_u8(own));
    out.minimum = sub(set1(0.0f), mul(outer[1], load_u8(own + kPanel)));
  } else if constexpr (Kind == ScaleKind::kTwo) {
    out.scale[0] = mul(outer[0], load_i8(own));
    out.scale[1] = mul(outer[0], load_i8(own + kPanel));
  } else {
    out.scale[0] = load_half(half);
    if constexpr (Kind == ScaleKind::kOneMin) out.minimum = load_half(half + kPanel);
  }
  return out;
}

/// Integer dot product of quads [First, Last) with one row's codes, plus `even` and `odd`: two
/// chains hide latency, and integer sums do not care.
template <int Bits, int First, int Last>
EDK_INLINE Floats dot_quads(Ints even, Ints odd, const GroupCodes& weights, const int8_t* codes) {
#pragma GCC unroll 8
  for (int j = First; j < Last; j += 2) {
    even = dot_quad<Bits>(even, weights.quad[j], codes + 4 * j);
    odd = dot_quad<Bits>(odd, weights.quad[j + 1], codes + 4 * j + 4);
  }
  return to_floats(add(even, odd));
}

/// Adds the products of one group of weights with row r of a tile.
template <int F>
EDK_INLINE Floats add_group(Floats sum, const GroupCodes& weights, const GroupScales& scales,
                            const TileGroup& tile, int r) {
  constexpr ScaleKind kKind = kFormats[F].kind;
  constexpr int kBits = kFormats[F].bits;
  const int8_t* codes = tile.codes + r * kGroup;
  const Floats row_scale = set1(tile.scale[r]);
  const Ints none = zero_ints();
  if constexpr (kKind == ScaleKind::kOneMin || kKind == ScaleKind::kTwoMin) {
    const Floats dot = dot_quads<kBits, 0, 8>(none, none, weights, codes);
    sum = fma(dot, mul(scales.scale[0], row_scale), sum);
    return fma(scales.minimum, set1(tile.sum[r]), sum);
  } else {
    const Ints first = set1(tile.offset[2 * r]), second = set1(tile.offset[2 * r + 1]);
    if constexpr (kKind == ScaleKind::kTwo) {
      const Floats low = dot_quads<kBits, 0, 4>(first, none, weights, codes);
      const Floats high = dot_quads<kBits, 4, 8>(second, none, weights, codes);
      return fma(fma(high, scales.scale[1], mul(low, scales.scale[0])), row_scale, sum);
    }
    const Floats dot = dot_quads<kBits, 0, 8>(first, second, weights, codes);
    return fma(dot, mul(scales.scale[0], row_scale), sum);
  }
}

/// Adds one group to the sums of M rows from `place`: the coarse plane of all, then the fine plane
/// of those that have one. One look tells whether any does.
template <int F, int M>
EDK_INLINE void add_groups(Floats* sum, const Operand& op, const GroupCodes& weights,
                           const GroupScales& scales, int64_t place) {
  const TileGroup coarse(op, place);
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) sum[r] = add_group<F>(sum[r], weights, scales, coarse, r);
  const uint8_t* is_fine = op.rows->is_fine + place;
  uint8_t any_fine = 0;
  for (int r = 0; r < M; ++r) any_fine |= is_fine[r];
  if (__builtin_expect(!any_fine, 1)) return;
  const TileGroup fine(op, place + op.rows->plane);
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r)
    if (is_fine[r]) sum[r] = add_group<F>(sum[r], weights, scales, fine, r);
}

/// Products of one panel with rows [first, first + M).
template <int F, int M>
void quantised_tile(const Operand& op, const uint8_t* panel, int64_t first, Floats* out) {
  constexpr ScaleKind kKind = kFormats[F].kind;
  Floats sum[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) sum[r] = set1(0.0f);
  for (int64_t block = 0; block < op.rows->groups; block += kGroupsPerBlock) {
    const int64_t left = op.rows->groups - block;
    const int64_t groups = left < kGroupsPerBlock ? left : kGroupsPerBlock;
    Floats outer[2];
    if constexpr (group_scales_offset(F) != 0) {
      outer[0] = load_half(reinterpret_cast<const uint16_t*>(panel));
      if constexpr (kKind == ScaleKind::kTwoMin)
        outer[1] = load_half(reinterpret_cast<const uint16_t*>(panel) + kPanel);
    }
    const uint8_t* own = panel + group_scales_offset(F);
    const uint8_t* codes = panel + header_bytes(F, groups);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t line = 0; line < group_bytes(F) + group_scales_bytes(F); line += 64)
        prefetch(codes + kPrefetchBytes + line);
      const GroupCodes weights = unpack<kFormats[F].bits>(codes);
      const GroupScales scales = group_scales<kKind>(outer, own);
      add_groups<F, M>(sum, op, weights, scales, op.rows->place(first, block + g));
      own += group_scales_bytes(F);
      codes += group_bytes(F);
    }
    panel = codes;
  }
  for (int r = 0; r < M; ++r) out[r] = sum[r];
}

template <int F>
inline Floats load_weights(const uint8_t* panel, int64_t k) {
  if constexpr (F == kF32) return load(reinterpret_cast<const float*>(panel) + k * kPanel);
  const auto* half = reinterpret_cast<const uint16_t*>(panel) + k * kPanel;
  if constexpr (F == kF16) return load_half(half);
  return load_bfloat(half);
}

/// As `quantised_tile`, in float32: even and odd k are two chains, added at the end.
template <int F, int M>
void float_tile(const Operand& op, const uint8_t* panel, int64_t first, Floats* out) {
  const int64_t k = op.rows->k;
  const float* x = op.rows->normed + first * k;
  Floats even[M], odd[M];
  for (int r = 0; r < M; ++r) even[r] = odd[r] = set1(0.0f);
  for (int64_t i = 0; i < k; i += 2) {
    const Floats weights = load_weights<F>(panel, i);
    for (int r = 0; r < M; ++r) even[r] = fma(set1(x[r * k + i]), weights, even[r]);
    if (i + 1 == k) break;
    const Floats next = load_weights<F>(panel, i + 1);
    for (int r = 0; r < M; ++r) odd[r] = fma(set1(x[r * k + i + 1]), next, odd[r]);
  }
  for (int r = 0; r < M; ++r) out[r] = add(even[r], odd[r]);
}

template <int F, int M>
inline void tile_of_format(const Operand& op, const uint8_t* panel, int64_t first, Floats* out) {
  if constexpr (is_float(F))
    float_tile<F, M>(op, panel, first, out);
  else
    quantised_tile<F, M>(op, panel, first, out);
}

using Tile = void (*)(const Operand&, const uint8_t*, int64_t, Floats*);

template <int F, int... Index>
inline Tile tile_from(int64_t m, std::integer_sequence<int, Index...>) {
  static constexpr Tile table[] = {tile_of_format<F, Index + 1>...};
  return table[m - 1];
}

template <int F>
inline Tile tile_of_rows(int64_t m) {
  return tile_from<F>(m, std::make_integer_sequence<int, kTileRows>());
}

inline Tile find_tile(int format, int64_t m) {
  switch (format) {
    case kF32: return tile_of_rows<kF32>(m);
    case kF16: return tile_of_rows<kF16>(m);
    case kBf16: return tile_of_rows<kBf16>(m);
    case kQ4_0: return tile_of_rows<kQ4_0>(m);
    case kQ4_1: return tile_of_rows<kQ4_1>(m);
    case kQ5_0: return tile_of_rows<kQ5_0>(m);
    case kQ5_1: return tile_of_rows<kQ5_1>(m);
    case kQ8_0: return tile_of_rows<kQ8_0>(m);
    case kQ8_1: return tile_of_rows<kQ8_1>(m);
    case kQ4K: return tile_of_rows<kQ4K>(m);
    case kQ5K: return tile_of_rows<kQ5K>(m);
    default: return tile_of_rows<kQ6K>(m);
  }
}

/// Everything the tasks of one call share.
struct LinearPlan {
  const LinearArgs* args;
  Rows rows;
  Operand operands[kMaxMatrices];
  int32_t* offsets[kMaxMatrices];
  int64_t n_out;
};

/// Writes 16 or fewer channels of row `r`, starting at column `column`.
inline void store_row(const LinearPlan& plan, Floats y, int64_t r, int64_t column, int64_t n) {
  const int64_t at = r * plan.n_out + column;
  if (plan.args->residual) y = add(load_n(plan.args->residual + at, n), y);
  store_n(plan.args->out + at, y, n);
}

inline Floats add_bias(Floats y, const Matrix& matrix, int64_t column, int64_t n) {
  return matrix.bias ? add(y, load_n(matrix.bias + column, n)) : y;
}

/// Panel `p` of matrix `i` for all rows; `offset` is the matrix's first output column.
inline void run_panel(const LinearPlan& plan, int i, int64_t p, int64_t offset) {
  const Matrix& matrix = plan.args->matrices[i];
  const uint8_t* panel = matrix.packed + p * panel_bytes(matrix.format, plan.args->k);
  const int64_t column = p * kPanel, n = matrix.n - column;
  for (int64_t r = 0; r < plan.args->rows; r += kTileRows) {
    const int64_t m = plan.args->rows - r < kTileRows ? plan.args->rows - r : kTileRows;
    Floats sums[kTileRows];
    find_tile(matrix.format, m)(plan.operands[i], panel, r, sums);
    for (int64_t t = 0; t < m; ++t)
      store_row(plan, add_bias(sums[t], matrix, column, n), r + t, offset + column, n);
  }
}

/// Panel `p` of both matrices of a gated pair.
inline void run_gated_panel(const LinearPlan& plan, int64_t p) {
  const Matrix& gate = plan.args->matrices[0];
  const Matrix& up = plan.args->matrices[1];
  const int64_t column = p * kPanel, n = gate.n - column;
  for (int64_t r = 0; r < plan.args->rows; r += kTileRows) {
    const int64_t m = plan.args->rows - r < kTileRows ? plan.args->rows - r : kTileRows;
    Floats gates[kTileRows], ups[kTileRows];
    find_tile(gate.format, m)(plan.operands[0],
                              gate.packed + p * panel_bytes(gate.format, plan.args->k), r, gates);
    find_tile(up.format, m)(plan.operands[1],
                            up.packed + p * panel_bytes(up.format, plan.args->k), r, ups);
    for (int64_t t = 0; t < m; ++t)
      store_row(plan,
                mul(silu(add_bias(gates[t], gate, column, n)), add_bias(ups[t], up, column, n)),
                r + t, column, n);
  }
}

void linear_task(void* user, int64_t task) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  if (plan.args->gate) return run_gated_panel(plan, task);
  int64_t offset = 0;
  for (int i = 0; i < plan.args->n_matrices; ++i) {
    const int64_t panels = ceil_div(plan.args->matrices[i].n, kPanel);
    if (task < panels) return run_panel(plan, i, task, offset);
    task -= panels;
    offset += plan.args->matrices[i].n;
  }
}

/// Fills the offsets of matrix `i` for group `g` of row `r`.
inline void set_offsets(const LinearPlan& plan, int i, int64_t r, int64_t g) {
  const int32_t zero = kFormats[plan.args->matrices[i].format].zero_point;
  const int64_t coarse = plan.rows.place(r, g);
  const int planes = plan.rows.is_fine[coarse] ? 2 : 1;
  for (int p = 0; p < planes; ++p)
    for (int h = 0; h < 2; ++h) {
      const int64_t at = 2 * (coarse + p * plan.rows.plane) + h;
      plan.offsets[i][at] = -zero * plan.rows.half_sum[at];
    }
}

void prepare_task(void* user, int64_t r) {
  const LinearPlan& plan = *static_cast<const LinearPlan*>(user);
  prepare_row(*plan.args, plan.rows, r);
  for (int i = 0; i < plan.args->n_matrices; ++i)
    for (int64_t g = 0; plan.offsets[i] && g < plan.rows.groups; ++g) set_offsets(plan, i, r, g);
}

/// Cuts the operator's scratch into consecutive 64-byte aligned arrays; with a null base it sizes.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ = ceil_div(at + count * static_cast<int64_t>(sizeof(T)), 64) * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* base_;
  int64_t used_ = 0;
};

/// Lays the plan's arrays out and returns the bytes they take.
int64_t carve(LinearPlan* plan, uint8_t* base) {
  const LinearArgs& args = *plan->args;
  bool has_float = false, has_quantised = false;
  for (int i = 0; i < args.n_matrices; ++i)
    (is_float(args.matrices[i].format) ? has_float : has_quantised) = true;
  Rows& rows = plan->rows;
  rows.k = args.k;
  rows.groups = ceil_div(args.k, kGroup);
  rows.plane = ceil_div(args.rows, kTileRows) * kTileRows * rows.groups;
  Carver carver(base);
  if (has_float) rows.normed = carver.take<float>(args.rows * args.k);
  if (has_quantised) {
    rows.codes = carver.take<int8_t>(2 * rows.plane * kGroup);
    rows.is_fine = carver.take<uint8_t>(rows.plane);
    rows.scale = carver.take<float>(2 * rows.plane);
    rows.sum = carver.take<float>(2 * rows.plane);
    rows.half_sum = carver.take<int32_t>(4 * rows.plane);
  }
  for (int i = 0; i < args.n_matrices; ++i) {
    const bool has_zero = kFormats[args.matrices[i].format].zero_point != 0;
    plan->offsets[i] = has_zero ? carver.take<int32_t>(4 * rows.plane) : nullptr;
  }
  return carver.used();
}

void linear(const LinearArgs& args, const Parallel& parallel) {
  LinearPlan plan{};
  plan.args = &args;
  const int64_t bytes = carve(&plan, nullptr);
  carve(&plan, static_cast<uint8_t*>(scratch(ScratchUse::kOperator, static_cast<size_t>(bytes))));
  int64_t tasks = 0;
  for (int i = 0; i < args.n_matrices; ++i) {
    plan.operands[i] = {&args.matrices[i], &plan.rows, plan.offsets[i]};
    plan.n_out += args.gate && i ? 0 : args.matrices[i].n;
    tasks += args.gate && i ? 0 : ceil_div(args.matrices[i].n, kPanel);
  }
  if (args.rows <= kSerialRows)
    for (int64_t r = 0; r < args.rows; ++r) prepare_task(&plan, r);
  else
    parallel.run(args.rows, prepare_task, &plan);
  parallel.run(tasks, linear_task, &plan);
}

}  // namespace
}  // namespace edk
