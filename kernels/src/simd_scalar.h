// Sixteen lanes in plain C++: the fallback everywhere, and the truth for every other ISA.
#pragma once

// Lanes are memory here. All of a tile in one function would take the compiler minutes and gain
// nothing.
#define EDK_INLINE __attribute__((noinline))

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kv_levels.h"
#include "layout.h"

namespace edk {
namespace {

constexpr int kTileRows = 4;  // rows whose sums are held at once
constexpr int kQueries = 8;  // most query vectors that one read of keys or values serves
constexpr int kSums = 8;  // sums of attention, of sixteen lanes each, that registers hold at once

struct Floats {
  float lane[16];
};
struct Ints {
  int32_t lane[16];
};
struct Bytes {
  uint8_t lane[64];
};

template <class Fn>
inline Floats each(Fn fn) {
  Floats out;
  for (int i = 0; i < 16; ++i) out.lane[i] = fn(i);
  return out;
}

inline Floats set1(float x) {
  return each([=](int) { return x; });
}
inline Floats load(const float* p) {
  return each([=](int i) { return p[i]; });
}
/// Loads the first `n` of 16 lanes; the others are zero.
inline Floats load_n(const float* p, int64_t n) {
  return each([=](int i) { return i < n ? p[i] : 0.0f; });
}
inline Floats load_half(const uint16_t* p) {
  return each([=](int i) { return half_to_float(p[i]); });
}
inline Floats load_half_n(const uint16_t* p, int64_t n) {
  return each([=](int i) { return i < n ? half_to_float(p[i]) : 0.0f; });
}
inline Floats load_bfloat(const uint16_t* p) {
  return each([=](int i) { return bfloat_to_float(p[i]); });
}
inline Floats load_u8(const uint8_t* p) {
  return each([=](int i) { return static_cast<float>(p[i]); });
}
inline Floats load_i8(const uint8_t* p) {
  return each([=](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
/// Loads the levels of KV caches whose numbers are the low nibbles of 16 bytes.
inline Floats load_low_levels(const uint8_t* p) {
  return each([=](int i) { return static_cast<float>(kKvLevels[p[i] & 15]); });
}
/// Loads those whose numbers are the high nibbles.
inline Floats load_high_levels(const uint8_t* p) {
  return each([=](int i) { return static_cast<float>(kKvLevels[p[i] >> 4]); });
}
/// Loads channel `channel` of eight of 16 keys: the sizes are the low nibbles of p if its number is even,
/// else the high ones, and bit `channel` of `signs` says where they are negative.
inline Floats load_signed_sizes(const uint8_t* p, const uint8_t* signs, int channel) {
  return each([=](int i) {
    const auto size = static_cast<float>(kKvSizes[channel % 2 ? p[i] >> 4 : p[i] & 15]);
    return signs[i] >> channel & 1 ? -size : size;
  });
}
inline void store_n(float* p, Floats a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = a.lane[i];
}
inline void store_half_n(uint16_t* p, Floats a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = float_to_half(a.lane[i]);
}
/// Stores 16 lanes of integers in [-128, 127] as bytes.
inline void store_i8(int8_t* p, Ints a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.lane[i]);
}

inline Floats add(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats sub(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Floats mul(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats div(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
/// a * b + c, rounded once.
inline Floats fma(Floats a, Floats b, Floats c) {
  return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
inline Floats max(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(Floats a, Floats b) {
  return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats abs(Floats a) {
  return each([&](int i) { return std::fabs(a.lane[i]); });
}
/// Rounds to the nearest integer, ties to even.
inline Floats round(Floats a) {
  return each([&](int i) { return std::nearbyint(a.lane[i]); });
}
/// Says whether some lane of `a` is above that of `b`; one that is no number counts as above.
inline bool any_above(Floats a, Floats b) {
  bool out = false;
  for (int i = 0; i < 16; ++i) out |= !(a.lane[i] <= b.lane[i]);
  return out;
}
/// Takes lanes [0, n) of `a`, the others of `b`.
inline Floats first_n(Floats a, Floats b, int64_t n) {
  return each([&](int i) { return i < n ? a.lane[i] : b.lane[i]; });
}
/// Truncates; what does not fit, NaN included, becomes INT32_MIN as on x86.
inline Ints to_ints(Floats a) {
  Ints out;
  for (int i = 0; i < 16; ++i) {
    const bool fits = a.lane[i] >= -2147483648.0f && a.lane[i] < 2147483648.0f;
    out.lane[i] = fits ? static_cast<int32_t>(a.lane[i]) : INT32_MIN;
  }
  return out;
}
/// 2^a for integral a in [-126, 127].
inline Floats power_of_two(Floats a) {
  const Ints exponent = to_ints(a);
  return each([&](int i) {
    return bits_to_float((static_cast<uint32_t>(exponent.lane[i]) + 127u) << 23);
  });
}

/// Sums the lanes as a tree: lane i with i + 8, then + 4, + 2, + 1.
inline float reduce_add(Floats a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.lane[i] += a.lane[i + half];
  return a.lane[0];
}
inline float reduce_max(Floats a) {
  float out = a.lane[0];
  for (int i = 1; i < 16; ++i) out = a.lane[i] > out ? a.lane[i] : out;
  return out;
}

inline Ints zero_ints() { return Ints{}; }
inline Ints set1(int32_t x) {
  Ints out;
  for (int i = 0; i < 16; ++i) out.lane[i] = x;
  return out;
}
inline Floats to_floats(Ints a) {
  return each([&](int i) { return static_cast<float>(a.lane[i]); });
}
inline Ints add(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
  return a;
}
inline int32_t reduce_add(Ints a) {
  int32_t out = 0;
  for (int i = 0; i < 16; ++i) out += a.lane[i];
  return out;
}

inline Bytes load_bytes(const uint8_t* p) {
  Bytes out;
  std::memcpy(out.lane, p, 64);
  return out;
}
inline Bytes low_nibbles(Bytes a) {
  for (uint8_t& x : a.lane) x &= 15;
  return a;
}
inline Bytes high_nibbles(Bytes a) {
  for (uint8_t& x : a.lane) x >>= 4;
  return a;
}
/// `low` plus bit `Bit` of `high` moved to bit 4.
template <int Bit>
inline Bytes with_bit4(Bytes low, Bytes high) {
  for (int i = 0; i < 64; ++i)
    low.lane[i] = static_cast<uint8_t>(low.lane[i] | (((high.lane[i] >> Bit) & 1) << 4));
  return low;
}
/// `low` plus bits `Bit`, `Bit + 1` of `high` moved to bits 4, 5.
template <int Bit>
inline Bytes with_bits45(Bytes low, Bytes high) {
  for (int i = 0; i < 64; ++i)
    low.lane[i] = static_cast<uint8_t>(low.lane[i] | (((high.lane[i] >> Bit) & 3) << 4));
  return low;
}
/// Bits `Bit`, `Bit + 1` of each byte.
template <int Bit>
inline Bytes two_bits(Bytes a) {
  for (uint8_t& x : a.lane) x = (x >> Bit) & 3;
  return a;
}
/// Quads 6 and 7 of codes of 3 bits, as two nibbles a byte, from the vectors of quads 0 to 5.
inline Bytes spare_bits(Bytes a, Bytes b, Bytes c) {
  for (int i = 0; i < 64; ++i)
    a.lane[i] = static_cast<uint8_t>(((a.lane[i] >> 3) & 0x11) | ((b.lane[i] >> 2) & 0x22) |
                                     ((c.lane[i] >> 1) & 0x44));
  return a;
}
/// What codes of 3 bits stand for; bit 3 of a byte may be set.
inline Bytes to_levels(Bytes codes) {
  for (uint8_t& x : codes.lane) x = kThreeBitLevels[x];
  return codes;
}
/// Adds to each lane the dot product of its four unsigned bytes, of `Bits` bits each, with the signed
/// quad at `quad`.
template <int Bits>
inline Ints dot_quad(Ints sum, Bytes unsigned_bytes, const int8_t* quad) {
  for (int i = 0; i < 16; ++i)
    for (int t = 0; t < 4; ++t) sum.lane[i] += unsigned_bytes.lane[4 * i + t] * quad[t];
  return sum;
}

inline void prefetch(const void*) {}

inline void prefetch_early(const void*) {}

/// As `prefetch_early`, of what is read once in a pass.
inline void prefetch_once(const void*) {}

/// Whether `prefetch_once` is better than `prefetch_early` on this processor.
constexpr bool has_prefetch_once() { return false; }

}  // namespace
}  // namespace edk

#include "one_part.h"
