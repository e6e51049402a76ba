// Sixteen lanes in one AVX-512 register. Each function means what simd_scalar.h says.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu_features.h"
#include "inline.h"
#include "kv_levels.h"
#include "layout.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__) || !defined(__AVX512VNNI__) || !defined(__FMA__)
#error "built without the flags of this ISA"
#endif

namespace edk {
namespace {

constexpr int kTileRows = 8;  // rows whose sums are held at once
constexpr int kQueries = 8;  // most query vectors that one read of keys or values serves
constexpr int kSums = 24;  // sums of attention, of sixteen lanes each, that registers hold at once

using Floats = __m512;
using Bytes = __m512i;
struct Ints {  // a type of its own, so that bytes and lanes cannot be mixed up
  __m512i v;
};

inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
}

inline Floats set1(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline Floats load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats load_half_n(const uint16_t* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline Floats load_bfloat(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Floats load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
/// The instruction looks at the low nibble of a lane alone.
inline Floats levels_of(__m512i nibbles) {
  return _mm512_permutexvar_ps(nibbles, _mm512_loadu_ps(kKvFloatLevels));
}
inline Floats load_low_levels(const uint8_t* p) {
  return levels_of(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_high_levels(const uint8_t* p) {
  return levels_of(_mm512_srli_epi32(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 4));
}
inline Floats load_signed_sizes(const uint8_t* p, const uint8_t* signs, int channel) {
  __m512i nibbles = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  if (channel % 2) nibbles = _mm512_srli_epi32(nibbles, 4);
  const Floats sizes = _mm512_permutexvar_ps(nibbles, _mm512_loadu_ps(kKvFloatSizes));
  const __mmask16 is_negative =
      _mm_test_epi8_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(signs)),
                         _mm_set1_epi8(static_cast<char>(1 << channel)));
  return _mm512_mask_sub_ps(sizes, is_negative, _mm512_setzero_ps(), sizes);
}
inline void store_n(float* p, Floats a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
inline void store_half_n(uint16_t* p, Floats a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_i8(int8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats round(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline bool any_above(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ) != 0;
}
inline Floats first_n(Floats a, Floats b, int64_t n) {
  return _mm512_mask_blend_ps(first_lanes(n), b, a);
}
inline Floats power_of_two(Floats a) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(a), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

inline float reduce_add(Floats a) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float reduce_max(Floats a) { return _mm512_reduce_max_ps(a); }

inline Ints zero_ints() { return {_mm512_setzero_si512()}; }
inline Ints set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints to_ints(Floats a) { return {_mm512_cvttps_epi32(a)}; }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a.v); }
inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline int32_t reduce_add(Ints a) { return _mm512_reduce_add_epi32(a.v); }

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes a) {
  return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15));
}

/// Moves bit `From` of every byte to bit `To`; bits that cross into a neighbour are masked later.
template <int From, int To>
inline Bytes shift_bits(Bytes a) {
  if constexpr (From < To) return _mm512_slli_epi16(a, To - From);
  if constexpr (From > To) return _mm512_srli_epi16(a, From - To);
  return a;
}
/// low | (high & mask)
inline Bytes or_masked(Bytes low, Bytes high, char mask) {
  return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(mask), 0xf8);
}
template <int Bit>
inline Bytes with_bit4(Bytes low, Bytes high) {
  return or_masked(low, shift_bits<Bit, 4>(high), 0x10);
}
template <int Bit>
inline Bytes with_bits45(Bytes low, Bytes high) {
  return or_masked(low, shift_bits<Bit, 4>(high), 0x30);
}
template <int Bit>
inline Bytes two_bits(Bytes a) {
  return _mm512_and_si512(shift_bits<Bit, 0>(a), _mm512_set1_epi8(3));
}
inline Bytes spare_bits(Bytes a, Bytes b, Bytes c) {
  const Bytes first = _mm512_and_si512(shift_bits<3, 0>(a), _mm512_set1_epi8(0x11));
  return or_masked(or_masked(first, shift_bits<3, 1>(b), 0x22), shift_bits<3, 2>(c), 0x44);
}
inline Bytes to_levels(Bytes codes) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kThreeBitLevels));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), codes);
}
/// The instruction spreads the quad itself; compilers spend a second one on that.
template <int Bits>
inline Ints dot_quad(Ints sum, Bytes unsigned_bytes, const int8_t* quad) {
  using Quad = const int8_t[4];
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum.v)
      : "v"(unsigned_bytes), "m"(*reinterpret_cast<Quad*>(quad)));
  return sum;
}

// Always inlined: of a call of what has no effect GCC leaves nothing.
EDK_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_NTA); }

EDK_INLINE void prefetch_early(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

EDK_INLINE void prefetch_once(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_NTA); }

/// Measured faster on AMD's processors only; others perhaps keep such lines out of the second cache.
inline bool has_prefetch_once() { return kIsAmd; }

}  // namespace
}  // namespace edk

#include "one_part.h"
