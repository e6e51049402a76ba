// Plain matrices into panels. With the kernels, the only code that knows the packed layout.
#include <cstring>

#include "layout.h"

namespace edk {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 31;

/// One panel of a plain matrix: rows [row, row + 16), those past `n` being zero.
struct Source {
  const PlainMatrix& plain;
  int64_t row;

  bool has(int channel) const { return row + channel < plain.n; }

  uint8_t code(int channel, int64_t k) const {
    if (!has(channel) || k >= plain.k) return 0;
    return static_cast<const uint8_t*>(plain.codes)[(row + channel) * plain.k + k];
  }

  template <class T>
  T at(const T* values, int channel, int64_t column, int64_t columns) const {
    return has(channel) && column < columns ? values[(row + channel) * columns + column] : T{0};
  }
};

/// Code bits below `bits` of quad `quad` of the group that starts at `k`, all channels.
void gather_quad(const Source& source, int64_t k, int quad, uint8_t* out) {
  for (int c = 0; c < kPanel; ++c)
    for (int t = 0; t < 4; ++t) out[4 * c + t] = source.code(c, k + 4 * quad + t);
}

/// Quads 6 and 7 go where the nibbles of quads 0 to 5 have a bit to spare.
void pack_three_bits(const uint8_t (&quad)[kQuads][kVector], uint8_t* out) {
  for (int v = 0; v < 3; ++v)
    for (int b = 0; b < kVector; ++b) {
      const int low = quad[2 * v][b] | ((quad[6][b] >> v) & 1) << 3;
      const int high = quad[2 * v + 1][b] | ((quad[7][b] >> v) & 1) << 3;
      out[v * kVector + b] = static_cast<uint8_t>(low | high << 4);
    }
}

void pack_two_bits(const uint8_t (&quad)[kQuads][kVector], uint8_t* out) {
  std::memset(out, 0, 2 * kVector);
  for (int j = 0; j < kQuads; ++j)
    for (int b = 0; b < kVector; ++b)
      out[j / 4 * kVector + b] |= static_cast<uint8_t>(quad[j][b] << 2 * (j % 4));
}

void pack_group_codes(const Source& source, int64_t k, int bits, uint8_t* out) {
  uint8_t quad[kQuads][kVector];
  for (int j = 0; j < kQuads; ++j) gather_quad(source, k, j, quad[j]);
  if (bits == 8) {
    std::memcpy(out, quad, sizeof(quad));
    return;
  }
  if (bits == 3) return pack_three_bits(quad, out);
  if (bits == 2) return pack_two_bits(quad, out);
  for (int v = 0; v < kQuads / 2; ++v)
    for (int b = 0; b < kVector; ++b)
      out[v * kVector + b] =
          static_cast<uint8_t>((quad[2 * v][b] & 15) | ((quad[2 * v + 1][b] & 15) << 4));
  uint8_t* high = out + kQuads / 2 * kVector;
  std::memset(high, 0, static_cast<size_t>(bits - 4) * kVector);
  for (int j = 0; j < kQuads; ++j)
    for (int b = 0; b < kVector; ++b) {
      if (bits == 5) high[b] |= static_cast<uint8_t>((quad[j][b] >> 4) << j);
      if (bits == 6) high[j / 4 * kVector + b] |= static_cast<uint8_t>((quad[j][b] >> 4) << 2 * (j % 4));
    }
}

void pack_group_scales(const Source& source, int64_t group, uint8_t* out) {
  const PlainMatrix& plain = source.plain;
  const int64_t groups = ceil_div(plain.k, kGroup);
  auto* half = reinterpret_cast<uint16_t*>(out);
  for (int c = 0; c < kPanel; ++c) switch (kFormats[plain.format].kind) {
      case ScaleKind::kOneMin:
        half[kPanel + c] = source.at(plain.minimum, c, group, groups);
        [[fallthrough]];
      case ScaleKind::kOne:
        half[c] = source.at(plain.scale, c, group, groups);
        break;
      case ScaleKind::kTwoMin:
        out[c] = source.at(plain.sub_scale, c, group, groups);
        out[kPanel + c] = source.at(plain.sub_minimum, c, group, groups);
        break;
      default:
        out[c] = source.at(plain.sub_scale, c, 2 * group, 2 * groups);
        out[kPanel + c] = source.at(plain.sub_scale, c, 2 * group + 1, 2 * groups);
    }
}

void pack_block(const Source& source, int64_t block, int64_t groups, uint8_t* out) {
  const PlainMatrix& plain = source.plain;
  const int format = plain.format;
  std::memset(out, 0, header_bytes(format, groups));
  auto* half = reinterpret_cast<uint16_t*>(out);
  const int64_t blocks = ceil_div(plain.k, kSuper);
  for (int c = 0; c < kPanel && group_scales_offset(format); ++c) {
    half[c] = source.at(plain.scale, c, block, blocks);
    if (kFormats[format].kind == ScaleKind::kTwoMin)
      half[kPanel + c] = source.at(plain.minimum, c, block, blocks);
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t group = block * kGroupsPerBlock + g;
    pack_group_scales(source, group,
                      out + group_scales_offset(format) + g * group_scales_bytes(format));
    pack_group_codes(source, group * kGroup, kFormats[format].bits,
                     out + header_bytes(format, groups) + g * group_bytes(format));
  }
}

void pack_float_panel(const Source& source, uint8_t* out) {
  const PlainMatrix& plain = source.plain;
  const size_t size = static_cast<size_t>(kFormats[plain.format].bits / 8);
  const auto* values = static_cast<const uint8_t*>(plain.codes);
  for (int64_t k = 0; k < plain.k; ++k)
    for (int c = 0; c < kPanel; ++c, out += size) {
      if (source.has(c))
        std::memcpy(out, values + ((source.row + c) * plain.k + k) * static_cast<int64_t>(size), size);
      else
        std::memset(out, 0, size);
    }
}

void pack_panel(const Source& source, uint8_t* out) {
  const int format = source.plain.format;
  if (is_float(format)) return pack_float_panel(source, out);
  const int64_t n_groups = ceil_div(source.plain.k, kGroup);
  for (int64_t block = 0; block * kGroupsPerBlock < n_groups; ++block) {
    const int64_t left = n_groups - block * kGroupsPerBlock;
    const int64_t groups = left < kGroupsPerBlock ? left : kGroupsPerBlock;
    pack_block(source, block, groups, out);
    out += block_bytes(format, groups);
  }
}

}  // namespace

int64_t packed_nbytes(int format, int64_t n, int64_t k) {
  if (format < 0 || format >= kNumFormats || n < 0 || k < 0 || n > kMaxDimension || k > kMaxDimension)
    return -1;
  // At most 2^28 panels of 2^37 bytes: the product is checked before it is formed.
  const int64_t panels = ceil_div(n, kPanel), bytes = panel_bytes(format, k);
  if (bytes && panels > INT64_MAX / bytes) return -1;
  return panels * bytes;
}

void pack(const PlainMatrix& plain, uint8_t* out) {
  for (int64_t row = 0; row < plain.n; row += kPanel) {
    pack_panel(Source{plain, row}, out);
    out += panel_bytes(plain.format, plain.k);
  }
}

}  // namespace edk
