// Sixteen lanes in two AVX2 registers, channels 0-7 and 8-15; with AVX-VNNI where the flags allow.
// Each function means what simd_scalar.h says. A part of a panel is one register: see group_halves.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu_features.h"
#include "half.h"
#include "inline.h"
#include "kv_levels.h"
#include "layout.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "built without the flags of this ISA"
#endif

namespace edk {
namespace {

constexpr int kTileRows = 8;
constexpr int kQueries = 6;  // most query vectors that one read of keys or values serves
constexpr int kSums = 6;  // sums of attention, of sixteen lanes each, that registers hold at once
#define EDK_PARTS 2
constexpr int kParts = EDK_PARTS;
constexpr int kPartChannels = kPanel / kParts;

struct Floats {
  __m256 half[2];
};
struct Ints {
  __m256i half[2];
};
using PartFloats = __m256;
struct PartInts {
  __m256i v;
};
struct Bytes {  // of one part
  __m256i v;
};

/// Eight lanes of a mask: those below `n`.
inline __m256i first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n > 8 ? 8 : n < 0 ? 0 : n)), lane);
}

inline Floats set1(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline Floats load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline Floats load_n(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  return {{_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))}};
}
inline __m256 load_part_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_half(const uint16_t* p) { return {{load_part_half(p), load_part_half(p + 8)}}; }
inline Floats load_half_n(const uint16_t* p, int64_t n) {
  if (n >= 16) return load_half(p);
  uint16_t some[16] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = p[i];
  return load_half(some);
}
inline __m256 load_8_bfloats(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Floats load_bfloat(const uint16_t* p) { return {{load_8_bfloats(p), load_8_bfloats(p + 8)}}; }
inline __m256 load_part_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_u8(const uint8_t* p) { return {{load_part_u8(p), load_part_u8(p + 8)}}; }
inline __m256 load_part_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_i8(const uint8_t* p) { return {{load_part_i8(p), load_part_i8(p + 8)}}; }
inline Floats widen(__m128i bytes) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
}
inline __m128i look_up(const int8_t (&table)[16], __m128i nibbles) {
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)),
                          _mm_and_si128(nibbles, _mm_set1_epi8(15)));
}
inline Floats levels_of(__m128i nibbles) { return widen(look_up(kKvLevels, nibbles)); }
inline Floats load_low_levels(const uint8_t* p) {
  return levels_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_high_levels(const uint8_t* p) {
  return levels_of(_mm_srli_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), 4));
}
inline Floats load_signed_sizes(const uint8_t* p, const uint8_t* signs, int channel) {
  __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if (channel % 2) nibbles = _mm_srli_epi16(nibbles, 4);
  const __m128i bit = _mm_set1_epi8(static_cast<char>(1 << channel));
  const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(signs));
  const __m128i is_negative = _mm_cmpeq_epi8(_mm_and_si128(some, bit), bit);
  const __m128i flipped = _mm_xor_si128(look_up(kKvSizes, nibbles), is_negative);
  return widen(_mm_sub_epi8(flipped, is_negative));
}
inline void store_n(float* p, Floats a, int64_t n) {
  if (n >= 16) {
    _mm256_storeu_ps(p, a.half[0]);
    _mm256_storeu_ps(p + 8, a.half[1]);
    return;
  }
  _mm256_maskstore_ps(p, first_lanes(n), a.half[0]);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.half[1]);
}
inline void store_half_n(uint16_t* p, Floats a, int64_t n) {
  uint16_t all[16];
  for (int h = 0; h < 2; ++h)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(all + 8 * h),
                     _mm256_cvtps_ph(a.half[h], _MM_FROUND_TO_NEAREST_INT));
  std::memcpy(p, all, sizeof(uint16_t) * static_cast<size_t>(n < 0 ? 0 : n > 16 ? 16 : n));
}
inline void store_i8(int8_t* p, Ints a) {
  const __m256i mixed = _mm256_packs_epi32(a.half[0], a.half[1]);  // by lane of 128 bits
  const __m256i words = _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

inline Floats add(Floats a, Floats b) {
  return {{_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])}};
}
inline Floats sub(Floats a, Floats b) {
  return {{_mm256_sub_ps(a.half[0], b.half[0]), _mm256_sub_ps(a.half[1], b.half[1])}};
}
inline Floats mul(Floats a, Floats b) {
  return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}
inline Floats div(Floats a, Floats b) {
  return {{_mm256_div_ps(a.half[0], b.half[0]), _mm256_div_ps(a.half[1], b.half[1])}};
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return {{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
           _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
inline Floats max(Floats a, Floats b) {
  return {{_mm256_max_ps(a.half[0], b.half[0]), _mm256_max_ps(a.half[1], b.half[1])}};
}
inline Floats min(Floats a, Floats b) {
  return {{_mm256_min_ps(a.half[0], b.half[0]), _mm256_min_ps(a.half[1], b.half[1])}};
}
inline Floats abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {{_mm256_andnot_ps(sign, a.half[0]), _mm256_andnot_ps(sign, a.half[1])}};
}
inline Floats round(Floats a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {{_mm256_round_ps(a.half[0], kNearest), _mm256_round_ps(a.half[1], kNearest)}};
}
inline bool any_above(Floats a, Floats b) {
  const __m256 low = _mm256_cmp_ps(a.half[0], b.half[0], _CMP_NLE_UQ);
  const __m256 high = _mm256_cmp_ps(a.half[1], b.half[1], _CMP_NLE_UQ);
  return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
}
inline Floats first_n(Floats a, Floats b, int64_t n) {
  return {{_mm256_blendv_ps(b.half[0], a.half[0], _mm256_castsi256_ps(first_lanes(n))),
           _mm256_blendv_ps(b.half[1], a.half[1], _mm256_castsi256_ps(first_lanes(n - 8)))}};
}
inline __m256 power_of_two_8(__m256 a) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(a), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Floats power_of_two(Floats a) {
  return {{power_of_two_8(a.half[0]), power_of_two_8(a.half[1])}};
}

inline float reduce_add(Floats a) {
  const __m256 by8 = _mm256_add_ps(a.half[0], a.half[1]);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float reduce_max(Floats a) {
  const __m256 by8 = _mm256_max_ps(a.half[0], a.half[1]);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

inline Ints set1(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
inline Ints zero_ints() { return set1(int32_t{0}); }
inline Ints to_ints(Floats a) {
  return {{_mm256_cvttps_epi32(a.half[0]), _mm256_cvttps_epi32(a.half[1])}};
}
inline Floats to_floats(Ints a) {
  return {{_mm256_cvtepi32_ps(a.half[0]), _mm256_cvtepi32_ps(a.half[1])}};
}
inline Ints add(Ints a, Ints b) {
  return {{_mm256_add_epi32(a.half[0], b.half[0]), _mm256_add_epi32(a.half[1], b.half[1])}};
}
inline int32_t reduce_add(Ints a) {
  const __m256i by8 = _mm256_add_epi32(a.half[0], a.half[1]);
  const __m128i by4 =
      _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  const __m128i by2 = _mm_add_epi32(by4, _mm_unpackhi_epi64(by4, by4));
  return _mm_cvtsi128_si32(_mm_add_epi32(by2, _mm_shuffle_epi32(by2, 1)));
}

inline PartFloats set1_part(float x) { return _mm256_set1_ps(x); }
inline PartInts set1_part(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline PartFloats sub(PartFloats a, PartFloats b) { return _mm256_sub_ps(a, b); }
inline PartFloats mul(PartFloats a, PartFloats b) { return _mm256_mul_ps(a, b); }
inline PartFloats fma(PartFloats a, PartFloats b, PartFloats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline PartFloats to_floats(PartInts a) { return _mm256_cvtepi32_ps(a.v); }
inline PartInts add(PartInts a, PartInts b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline int32_t reduce_add(PartInts a) { return reduce_add(Ints{{a.v, _mm256_setzero_si256()}}); }
template <int Step>
EDK_INLINE Floats join(const PartFloats* parts) {
  return {{parts[0], parts[Step]}};
}

inline Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline Bytes and_bytes(Bytes a, char mask) {
  return {_mm256_and_si256(a.v, _mm256_set1_epi8(mask))};
}
/// Moves bit `From` of every byte to bit `To`; bits that cross into a neighbour are masked later.
template <int From, int To>
inline Bytes shift_bits(Bytes a) {
  if constexpr (From < To) return {_mm256_slli_epi16(a.v, To - From)};
  if constexpr (From > To) return {_mm256_srli_epi16(a.v, From - To)};
  return a;
}
inline Bytes or_bytes(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Bytes low_nibbles(Bytes a) { return and_bytes(a, 15); }
inline Bytes high_nibbles(Bytes a) { return and_bytes(shift_bits<4, 0>(a), 15); }
template <int Bit>
inline Bytes with_bit4(Bytes low, Bytes high) {
  return or_bytes(low, and_bytes(shift_bits<Bit, 4>(high), 0x10));
}
template <int Bit>
inline Bytes with_bits45(Bytes low, Bytes high) {
  return or_bytes(low, and_bytes(shift_bits<Bit, 4>(high), 0x30));
}
template <int Bit>
inline Bytes two_bits(Bytes a) {
  return and_bytes(shift_bits<Bit, 0>(a), 3);
}

inline Bytes spare_bits(Bytes a, Bytes b, Bytes c) {
  const Bytes first = and_bytes(shift_bits<3, 0>(a), 0x11), second = and_bytes(shift_bits<3, 1>(b), 0x22);
  return or_bytes(or_bytes(first, second), and_bytes(shift_bits<3, 2>(c), 0x44));
}
inline Bytes to_levels(Bytes codes) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kThreeBitLevels));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), codes.v)};
}

struct GroupCodes {
  Bytes quad[kQuads];
};

/// One quad in all lanes.
inline __m256i load_quad(const int8_t* quad) {
  int32_t four;
  std::memcpy(&four, quad, 4);
  return _mm256_set1_epi32(four);
}

/// The quads of half a group, of all parts.
constexpr int kHalfQuads = kQuads / 2;
struct HalfCodes {
  Bytes quad[kParts][kHalfQuads];
};

#if defined(__AVXVNNI__)
/// Whether products with weights of a zero point leave that out; else the row's offset takes it off.
template <int Zero>
constexpr bool kIsZeroLeftOut = false;

/// What the dot product of 16 codes with weights of a zero point takes off for that.
inline int32_t zero_offset(Ints codes, int32_t zero) { return -zero * reduce_add(codes); }

/// The offsets of both halves of a row's group.
inline PartInts both_offsets(const int32_t* offset) { return set1_part(offset[0] + offset[1]); }

/// Adds the products of half a group with half a row's group; `IsFirst` takes `sums` for zero.
template <int Bits, int Zero, bool IsFirst>
EDK_INLINE void dot_half(PartInts* sums, const HalfCodes& weights, const int8_t* codes) {
#pragma GCC unroll 4
  for (int j = 0; j < kHalfQuads; ++j) {
    const __m256i quad = load_quad(codes + 4 * j);
    for (int p = 0; p < kParts; ++p) {
      const __m256i sum = IsFirst && j == 0 ? _mm256_setzero_si256() : sums[p].v;
      sums[p].v = _mm256_dpbusd_avx_epi32(sum, weights.quad[p][j].v, quad);
    }
  }
}

template <int Bits, int Zero>
EDK_INLINE PartInts whole_dot(PartInts sum) {
  return sum;
}

template <int Bits, int First, int Last, int Zero = 0>
EDK_INLINE PartInts dot_quads(PartInts even, PartInts odd, const GroupCodes& weights,
                              const int8_t* codes) {
#pragma GCC unroll 8
  for (int j = First; j < Last; j += 2) {
    even.v = _mm256_dpbusd_avx_epi32(even.v, weights.quad[j].v, load_quad(codes + 4 * j));
    odd.v = _mm256_dpbusd_avx_epi32(odd.v, weights.quad[j + 1].v, load_quad(codes + 4 * j + 4));
  }
  return add(even, odd);
}
#else
/// Quads whose products add up in 16 bits: the instruction that multiplies unsigned by signed bytes
/// adds pairs and saturates at 32,767. Activation codes reach 127; so eight quads of codes below 16
/// come to 30,480, four below 32 to 31,496, two below 64 to 32,004. One of 8-bit codes might exceed
/// it and goes through 16-bit lanes.
constexpr int quads_in_16_bits(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 0; }

/// Products of a quad of 8-bit codes, summed.
inline __m256i dot_wide(__m256i weights, __m256i quad) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(quad, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(quad, 8));
  return _mm256_add_epi32(even, odd);
}

/// Products of a quad of codes less 128, summed. Magnitudes are the unsigned bytes, and signs go to the
/// other side: pairs come to 2 * 128 * 127 = 32,512 at most.
inline __m256i dot_signed(__m256i weights, __m256i quad) {
  const __m256i values = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8(values), _mm256_sign_epi8(quad, values));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <int Bits, int First, int Last, int Zero = 0>
EDK_INLINE PartInts dot_quads(PartInts even, PartInts odd, const GroupCodes& weights,
                              const int8_t* codes) {
  if constexpr (Zero == 128) {  // what `even` and `odd` would take off is never put in
    __m256i signed_sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = First; j < Last; ++j)
      signed_sum =
          _mm256_add_epi32(signed_sum, dot_signed(weights.quad[j].v, load_quad(codes + 4 * j)));
    return {signed_sum};
  }
  __m256i sum = _mm256_add_epi32(even.v, odd.v);
  if constexpr (Bits == 8) {
#pragma GCC unroll 8
    for (int j = First; j < Last; ++j)
      sum = _mm256_add_epi32(sum, dot_wide(weights.quad[j].v, load_quad(codes + 4 * j)));
    return {sum};
  }
  constexpr int kStep = quads_in_16_bits(Bits) < Last - First ? quads_in_16_bits(Bits) : Last - First;
#pragma GCC unroll 8
  for (int j = First; j < Last; j += kStep) {
    __m256i pairs[2];  // two chains; the compiler's tree would take the registers of the weights
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) {
      const __m256i quad = load_quad(codes + 4 * (j + i));
      const __m256i dot = _mm256_maddubs_epi16(weights.quad[j + i].v, quad);
      pairs[i % 2] = i < 2 ? dot : _mm256_add_epi16(pairs[i % 2], dot);
      asm("" : "+x"(pairs[i % 2]));
    }
    const __m256i all_pairs = _mm256_add_epi16(pairs[0], pairs[1]);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(all_pairs, _mm256_set1_epi16(1)));
  }
  return {sum};
}

template <int Zero>
constexpr bool kIsZeroLeftOut = Zero == 128;

/// Whether products that share a scale add up in 16 bits. With a zero point, sums may leave that range on
/// the way, but they wrap, and what the zero point takes off brings them back: 8 products of 6-bit codes
/// come to 8 * 32 * 127 = 32,512 at most, 16 of 5-bit codes likewise.
template <int Bits, int Zero>
constexpr bool kIsNarrow = Bits == 4 || Bits == 6 || (Bits == 5 && Zero == 16);

/// What the dot product of 16 codes with weights of a zero point takes off for that, in two sums of 16
/// bits, as products are added up: of codes 0 and 1 of each quad, and of 2 and 3.
inline int32_t zero_offset(Ints codes, int32_t zero) {
  const __m256i by8 = _mm256_add_epi32(codes.half[0], codes.half[1]);
  const __m128i by4 = _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  const auto both = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_hadd_epi32(by4, by4)));
  const auto first = static_cast<uint32_t>(both), second = static_cast<uint32_t>(both >> 32);
  const auto factor = static_cast<uint32_t>(-zero);
  return static_cast<int32_t>((first * factor & 0xffff) | second * factor << 16);
}

/// The offsets of both halves of a row's group.
inline PartInts both_offsets(const int32_t* offset) {
  return {_mm256_add_epi16(_mm256_set1_epi32(offset[0]), _mm256_set1_epi32(offset[1]))};
}

inline __m256i sum_pairs(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/// Adds the products of half a group with half a row's group; `IsFirst` takes `sums` for zero.
template <int Bits, int Zero, bool IsFirst>
EDK_INLINE void dot_half(PartInts* sums, const HalfCodes& weights, const int8_t* codes) {
  constexpr int kStep = Bits == 8 ? 1 : kHalfQuads;  // quads whose products add up in 16 bits
#pragma GCC unroll 4
  for (int j = 0; j < kHalfQuads; j += kStep) {
    __m256i dots[kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kStep; ++i) {
      const __m256i quad = load_quad(codes + 4 * (j + i));
      for (int p = 0; p < kParts; ++p) {
        const __m256i own = weights.quad[p][j + i].v;
        const __m256i dot = Bits == 8 ? (kIsZeroLeftOut<Zero> ? dot_signed(own, quad) : dot_wide(own, quad))
                                      : _mm256_maddubs_epi16(own, quad);
        dots[p] = i == 0 ? dot : _mm256_add_epi16(dots[p], dot);
        asm("" : "+x"(dots[p]));  // else the compiler's tree takes the registers of the weights
      }
    }
    for (int p = 0; p < kParts; ++p) {
      const __m256i dot = kIsNarrow<Bits, Zero> || Bits == 8 ? dots[p] : sum_pairs(dots[p]);
      if (IsFirst && j == 0)
        sums[p].v = dot;
      else
        sums[p].v = kIsNarrow<Bits, Zero> ? _mm256_add_epi16(sums[p].v, dot)
                                          : _mm256_add_epi32(sums[p].v, dot);
    }
  }
}

template <int Bits, int Zero>
EDK_INLINE PartInts whole_dot(PartInts sum) {
  return {kIsNarrow<Bits, Zero> ? sum_pairs(sum.v) : sum.v};
}
#endif

// Always inlined: of a call of what has no effect GCC leaves nothing.
EDK_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

EDK_INLINE void prefetch_early(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

EDK_INLINE void prefetch_once(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_NTA); }

/// Measured faster on AMD's processors only; others perhaps keep such lines out of the second cache.
inline bool has_prefetch_once() { return kIsAmd; }

}  // namespace
}  // namespace edk
