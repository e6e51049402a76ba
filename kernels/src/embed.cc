// Rows of a packed table as floats: one row is a strided gather, so there is nothing to vectorise.
#include "embed.h"

#include "half.h"
#include "layout.h"

namespace edk {
namespace {

/// What the code of 3 bits in byte `byte` of quad `quad` stands for.
int level_at(const uint8_t* codes, int quad, int byte) {
  const int shift = 4 * (quad % 2);
  if (quad < 6) return kThreeBitLevels[(codes[quad / 2 * kVector + byte] >> shift) & 7];
  int code = 0;
  for (int v = 0; v < 3; ++v) code |= ((codes[v * kVector + byte] >> (3 + shift)) & 1) << v;
  return kThreeBitLevels[code];
}

int code_at(const uint8_t* codes, int bits, int channel, int k_in_group) {
  const int quad = k_in_group / 4, byte = 4 * channel + k_in_group % 4;
  if (bits == 3) return level_at(codes, quad, byte);
  if (bits == 2) return (codes[quad / 4 * kVector + byte] >> (2 * (quad % 4))) & 3;
  if (bits == 8) return codes[quad * kVector + byte];
  const int nibble = (codes[quad / 2 * kVector + byte] >> (4 * (quad % 2))) & 15;
  const uint8_t* high = codes + kQuads / 2 * kVector;
  if (bits == 5) return nibble | (((high[byte] >> quad) & 1) << 4);
  if (bits == 6) return nibble | (((high[quad / 4 * kVector + byte] >> (2 * (quad % 4))) & 3) << 4);
  return nibble;
}

/// Scale and minimum of channel `c` for position `k_in_group` of group `g` of a block.
struct GroupScale {
  float scale;
  float minimum;
};

GroupScale scale_at(int format, const uint8_t* header, int64_t g, int c, int k_in_group) {
  const auto* outer = reinterpret_cast<const uint16_t*>(header);
  const uint8_t* own = header + group_scales_offset(format) + g * group_scales_bytes(format);
  const auto* half = reinterpret_cast<const uint16_t*>(own);
  switch (kFormats[format].kind) {
    case ScaleKind::kOneMin:
      return {half_to_float(half[c]), half_to_float(half[kPanel + c])};
    case ScaleKind::kTwoMin:
      return {half_to_float(outer[c]) * static_cast<float>(own[c]),
              -(half_to_float(outer[kPanel + c]) * static_cast<float>(own[kPanel + c]))};
    case ScaleKind::kTwo: {
      const auto sub = static_cast<int8_t>(own[(k_in_group / 16) * kPanel + c]);
      return {half_to_float(outer[c]) * static_cast<float>(sub), 0.0f};
    }
    default:
      return {half_to_float(half[c]), 0.0f};
  }
}

void quantised_row(int format, const uint8_t* panel, int channel, int64_t k, float* out) {
  const int bits = kFormats[format].bits, zero = kFormats[format].zero_point;
  const bool has_minimum = zero == 0;
  const int64_t n_groups = ceil_div(k, kGroup);
  for (int64_t first = 0; first < n_groups; first += kGroupsPerBlock) {
    const int64_t left = n_groups - first, groups = left < kGroupsPerBlock ? left : kGroupsPerBlock;
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* codes = panel + header_bytes(format, groups) + g * group_bytes(format);
      const int64_t start = (first + g) * kGroup, stop = start + kGroup < k ? kGroup : k - start;
      GroupScale s = scale_at(format, panel, g, channel, 0);
      for (int i = 0; i < stop; ++i) {
        if (i == 16) s = scale_at(format, panel, g, channel, i);
        const float code = static_cast<float>(code_at(codes, bits, channel, i) - zero);
        out[start + i] = has_minimum ? s.scale * code + s.minimum : s.scale * code;
      }
    }
    panel += block_bytes(format, groups);
  }
}

void float_row(int format, const uint8_t* panel, int channel, int64_t k, float* out) {
  const auto* wide = reinterpret_cast<const float*>(panel);
  const auto* narrow = reinterpret_cast<const uint16_t*>(panel);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t at = i * kPanel + channel;
    out[i] = format == kF32    ? wide[at]
             : format == kF16 ? half_to_float(narrow[at])
                              : bfloat_to_float(narrow[at]);
  }
}

}  // namespace

void embed(const EmbedArgs& args, const Parallel& parallel) {
  const auto row = [](void* user, int64_t r) {
    const auto& a = *static_cast<const EmbedArgs*>(user);
    const int format = a.table.format;
    const uint8_t* panel = a.table.packed + a.ids[r] / kPanel * panel_bytes(format, a.k);
    const int channel = static_cast<int>(a.ids[r] % kPanel);
    float* out = a.out + r * a.k;
    if (is_float(format))
      float_row(format, panel, channel, a.k, out);
    else
      quantised_row(format, panel, channel, a.k, out);
  };
  auto* user = const_cast<EmbedArgs*>(&args);
  if (args.rows < 8)  // waking threads costs more than a few rows
    for (int64_t r = 0; r < args.rows; ++r) row(user, r);
  else
    parallel.run(args.rows, row, user);
}

}  // namespace edk
