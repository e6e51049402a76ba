// Rotary positions and the rows a pass appends to the KV cache.
// Included after one simd_*.h.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention_plan.h"
#include "carver.h"
#include "key_offsets.h"
#include "kv_layout.h"

namespace edk {
namespace {

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

/// Rotates `x` [head_size] to the position of row `r`.
inline void rotate(const AttentionArgs& a, int64_t r, const float* x, float* out) {
  const int64_t half = a.head_size / 2, at = a.positions[r] * half;
  for (int64_t i = 0; i < half; i += 16) {
    const Rotated rotated(x, a.cos + at, a.sin + at, i, half);
    store_n(out + i, rotated.low, half - i);
    store_n(out + half + i, rotated.high, half - i);
  }
}

/// Hadamard matrices of size `run` along the diagonal of a 16 by 16 matrix.
struct LaneHadamard {
  float row[16][16];

  constexpr explicit LaneHadamard(int run) : row() {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 16; ++j) {
        int common = i & j & (run - 1), sign = 1;
        for (; common; common &= common - 1) sign = -sign;
        row[i][j] = static_cast<float>(i / run == j / run ? sign : 0);
      }
  }
};
constexpr LaneHadamard kLaneHadamard[] = {LaneHadamard(1), LaneHadamard(2), LaneHadamard(4),
                                          LaneHadamard(8), LaneHadamard(16)};

/// Multiplies each run of 2^n elements of `x` [d], n as large as fits, by the Hadamard matrix of that
/// size, made orthogonal: first what is 16 or more elements apart, then the lanes of a vector.
/// Source: rotations against outliers as in QuaRot (arXiv 2404.00456).
inline void mix(float* x, int64_t d) {
  const int64_t run = d & -d;
  for (int64_t half = 16; half < run; half *= 2)
    for (int64_t i = 0; i < d; i += 16) {
      if (i & half) continue;
      const Floats low = load(x + i), high = load(x + i + half);
      store_n(x + i, add(low, high), 16);
      store_n(x + i + half, sub(low, high), 16);
    }
  int log = 0;
  while (log < 4 && run >> (log + 1) << (log + 1) == run) ++log;
  const LaneHadamard& lanes = kLaneHadamard[log];
  const Floats scale = set1(1.0f / std::sqrt(static_cast<float>(run)));
  for (int64_t i = 0; i < d; i += 16) {
    Floats sum = set1(0.0f);
    for (int64_t j = 0; j < 16 && i + j < d; ++j)
      sum = fma(set1(x[i + j]), load(lanes.row[j]), sum);
    store_n(x + i, mul(sum, scale), d - i);
  }
}

/// Writes `x` [d] as codes, `step` bytes apart, whose scale is entry `lane` of the block's.
inline void store_codes(const float* x, int64_t d, uint8_t* block, int64_t lane, uint8_t* codes,
                        int64_t step) {
  Floats largest = set1(0.0f);
  for (int64_t i = 0; i < d; i += 16) largest = max(largest, abs(load_n(x + i, d - i)));
  const float wanted = reduce_max(largest) / 127;
  auto* stored = reinterpret_cast<uint16_t*>(block) + lane;
  store_half_n(stored, min(set1(wanted), set1(65504.0f)), 1);
  float scale[16];
  store_n(scale, load_half_n(stored, 1), 16);
  const Floats inverse = set1(scale[0] > 0 ? 1 / scale[0] : 0.0f);
  for (int64_t i = 0; i < d; i += 16) {
    const Floats rounded = round(mul(load_n(x + i, d - i), inverse));
    int8_t some[16];
    store_i8(some, to_ints(max(min(rounded, set1(127.0f)), set1(-127.0f))));
    for (int64_t j = 0; j < 16 && i + j < d; ++j)
      codes[(i + j) * step] = static_cast<uint8_t>(some[j]);
  }
}

/// Codes of values: numbers of levels.
struct ValueCodes {
  static constexpr float kStep = kKvLevelStep;
  static uint8_t of(float x) {
    uint8_t code = 0;
    for (float bound : kKvLevelBounds) code += x > bound;
    return code;
  }
  static float level(uint8_t code) { return kKvFloatLevels[code]; }
};

/// Codes of keys: numbers of sizes, and 16 more where they are negative.
struct KeyCodes {
  static constexpr float kStep = kKvSizeStep;
  static uint8_t of(float x) {
    uint8_t code = x < 0 ? 16 : 0;
    for (float bound : kKvSizeBounds) code += std::fabs(x) > bound;
    return code;
  }
  static float level(uint8_t code) {
    return code < 16 ? kKvFloatSizes[code] : -kKvFloatSizes[code - 16];
  }
};

/// Writes `x` [d] as `Codes` whose scale is entry `lane` of the block's, 32 at a time: `put` gets the
/// number of the first and the codes. A code is that of the level nearest to the number in deviations of
/// the row; the scale, that which then leaves the smallest error.
template <class Codes, class Put>
inline void store_levels(const float* x, int64_t d, uint8_t* block, int64_t lane, Codes,
                         const Put& put) {
  Floats squares = set1(0.0f), products = squares, weights = squares;
  for (int64_t i = 0; i < d; i += 16) {
    const Floats some = load_n(x + i, d - i);
    squares = fma(some, some, squares);
  }
  const float unit = std::sqrt(reduce_add(squares) / static_cast<float>(d)) * Codes::kStep;
  const Floats inverse = min(set1(unit > 0 ? 1 / unit : 0.0f), set1(3.0e38f));
  for (int64_t i = 0; i < d; i += 32) {
    uint8_t codes[32] = {};
    for (int64_t j = 0; j < 32 && i + j < d; j += 16) {
      const Floats some = load_n(x + i + j, d - i - j);
      float scaled[16], levels[16];
      store_n(scaled, mul(some, inverse), 16);
      for (int64_t t = 0; t < 16; ++t) {
        codes[j + t] = Codes::of(scaled[t]);
        levels[t] = Codes::level(codes[j + t]);
      }
      const Floats level = load_n(levels, d - i - j);
      products = fma(some, level, products);
      weights = fma(level, level, weights);
    }
    put(i, codes);
  }
  const float best = reduce_add(products) / reduce_add(weights);
  const float scale = best > 0 ? best < 65504.0f ? best : 65504.0f : 0.0f;
  store_half_n(reinterpret_cast<uint16_t*>(block) + lane, set1(scale), 1);
}

/// Writes a key and a value [head_size] at `slot` of the blocks that it lies in.
template <class Elements>
struct Slot;

template <>
struct Slot<KvElements<kKvFloat16>> {
  static void store(const float* key, const float* value, int64_t d, uint8_t* keys, uint8_t* values,
                    int64_t lane) {
    auto* to_key = reinterpret_cast<uint16_t*>(keys) + lane;
    for (int64_t i = 0; i < d; i += 16) {
      uint16_t some[16];
      store_half_n(some, load_n(key + i, d - i), 16);
      for (int64_t j = 0; j < 16 && i + j < d; ++j) to_key[(i + j) * kPanel] = some[j];
    }
    auto* to_value = reinterpret_cast<uint16_t*>(values) + lane * d;
    for (int64_t i = 0; i < d; i += 16) store_half_n(to_value + i, load_n(value + i, d - i), d - i);
  }
};

template <>
struct Slot<KvElements<kKvInt8>> {
  using Elements = KvElements<kKvInt8>;
  static void store(const float* key, const float* value, int64_t d, uint8_t* keys, uint8_t* values,
                    int64_t lane) {
    store_codes(key, d, keys, lane, keys + Elements::kHeader + lane, kPanel);
    uint8_t* row = values + Elements::kHeader + lane * Elements::Values::row(d);
    store_codes(value, d, values, lane, row, 1);
  }
};

template <>
struct Slot<KvElements<kKvK5V4>> {
  using Elements = KvElements<kKvK5V4>;
  static void store(const float* key, const float* value, int64_t d, uint8_t* keys, uint8_t* values,
                    int64_t lane) {
    uint8_t* of_slot = keys + Elements::kHeader + lane;
    store_levels(key, d, keys, lane, KeyCodes(), [=](int64_t i, const uint8_t* codes) {
      for (int64_t j = 0; j < 32 && i + j < d; j += 8) {
        uint8_t* eight = of_slot + (i + j) / 8 * Elements::Keys::kBytes;
        const int64_t n = min_of(8, d - i - j);
        unsigned signs = 0;
        for (int64_t k = 0; k < n; ++k) signs |= static_cast<unsigned>(codes[j + k] >> 4) << k;
        for (int64_t k = 0; k < n; k += 2)
          eight[k / 2 * kPanel] =
              static_cast<uint8_t>((codes[j + k] & 15) | codes[j + k + 1] << 4);
        eight[n / 2 * kPanel] = static_cast<uint8_t>(signs);
      }
    });
    uint8_t* row = values + Elements::kHeader + lane * Elements::Values::row(d);
    store_levels(value, d, values, lane, ValueCodes(), [=](int64_t i, const uint8_t* codes) {
      for (int64_t j = 0; j < 16; ++j)
        row[i / 2 + j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
    });
  }
};

/// Slots that one task appends to, a multiple of kPanel: of keys, which lie channel by channel, slots
/// of one block share every cache line; two blocks of an int8 cache end where a line does.
constexpr int64_t kAppendSlots = 2 * kPanel;

/// Spans of slots that the rows of a pass fall into.
inline int64_t append_spans(const AttentionArgs& a) {
  const int64_t first = a.past + a.known;
  return (first + a.rows - 1) / kAppendSlots - first / kAppendSlots + 1;
}

/// Rotates the queries of one KV head that belong to row r, and shrinks them.
template <class Elements>
inline void place_queries(const AttentionPlan& plan, int64_t kv_head, int64_t r, const float* row) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size;
  const float scale = a.scoring.scale;
  const float shrink = scale > 0 ? scale : 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t g = 0; g < plan.group; ++g) {
    float* out = plan.queries + ((kv_head * a.rows + r) * plan.group + g) * d;
    rotate(a, r, row + (kv_head * plan.group + g) * d, out);
    if (a.key_offsets)
      meet_offsets(a, kv_head, out, shrink, plan.of_offsets + (out - plan.queries));
    if (Elements::kIsQuantised) mix(out, d);
    for (int64_t i = 0; i < d; i += 16)
      store_n(out + i, mul(load_n(out + i, d - i), set1(shrink)), d - i);
  }
}

/// Places queries, keys and values of one KV head for the rows of one span of slots.
template <class Elements>
void append_rows(const AttentionPlan& plan, int64_t task) {
  const AttentionArgs& a = *plan.args;
  const int64_t d = a.head_size, head = task % a.n_kv_heads, first = a.past + a.known;
  const int64_t span = (first / kAppendSlots + task / a.n_kv_heads) * kAppendSlots;
  const int64_t end = min_of(span + kAppendSlots, first + a.rows);
  const KvBlocks<uint8_t> keys(a.k_cache, a, head, plan.key_bytes);
  const KvBlocks<uint8_t> values(a.v_cache, a, head, plan.value_bytes);
  float *key, *mixed;
  lay_out(ScratchUse::kTask, [&](Carver& carver) {
    key = carver.take<float>(d);
    mixed = carver.take<float>(Elements::kMixesValues ? d : 0);
  });
  const int64_t width = (a.n_heads + (a.shares_kv ? 0 : 2 * a.n_kv_heads)) * d;
  for (int64_t slot = max_of(span, first); slot < end; ++slot) {
    const int64_t r = slot - first;
    const float* row = a.qkv + r * width;
    place_queries<Elements>(plan, head, r, row);
    if (a.shares_kv) continue;
    const float* given = row + (a.n_heads + head) * d;
    if (a.key_offsets) given = without_offset(a, head, given, key);
    rotate(a, r, given, key);
    if (Elements::kIsQuantised) mix(key, d);
    const float* value = row + (a.n_heads + a.n_kv_heads + head) * d;
    if (Elements::kMixesValues) {
      std::copy_n(value, d, mixed);
      mix(mixed, d);
      value = mixed;
    }
    Slot<Elements>::store(key, value, d, keys.at(slot), values.at(slot), slot % kPanel);
  }
}

}  // namespace
}  // namespace edk
