// Sixteen lanes in two AVX2 registers, channels 0-7 and 8-15; with AVX-VNNI where the flags allow.
// Each function means what simd_scalar.h says.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "half.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "built without the flags of this ISA"
#endif

namespace edk {
namespace {

#if defined(__AVXVNNI__)
constexpr const char* kIsa = "avxvnni";
#else
constexpr const char* kIsa = "avx2";
#endif
constexpr int kTileRows = 4;

struct Floats {
  __m256 half[2];
};
struct Ints {
  __m256i half[2];
};
struct Bytes {
  __m256i half[2];
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
inline __m256 load_8_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_half(const uint16_t* p) { return {{load_8_halves(p), load_8_halves(p + 8)}}; }
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
inline __m256 load_8_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_u8(const uint8_t* p) { return {{load_8_u8(p), load_8_u8(p + 8)}}; }
inline __m256 load_8_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_i8(const uint8_t* p) { return {{load_8_i8(p), load_8_i8(p + 8)}}; }
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
  alignas(32) int32_t lane[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), a.half[0]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane + 8), a.half[1]);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(lane[i]);
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

inline Bytes load_bytes(const uint8_t* p) {
  return {{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))}};
}
inline Bytes and_bytes(Bytes a, char mask) {
  const __m256i m = _mm256_set1_epi8(mask);
  return {{_mm256_and_si256(a.half[0], m), _mm256_and_si256(a.half[1], m)}};
}
/// Moves bit `From` of every byte to bit `To`; bits that cross into a neighbour are masked later.
template <int From, int To>
inline Bytes shift_bits(Bytes a) {
  if constexpr (From < To)
    return {{_mm256_slli_epi16(a.half[0], To - From), _mm256_slli_epi16(a.half[1], To - From)}};
  if constexpr (From > To)
    return {{_mm256_srli_epi16(a.half[0], From - To), _mm256_srli_epi16(a.half[1], From - To)}};
  return a;
}
inline Bytes or_bytes(Bytes a, Bytes b) {
  return {{_mm256_or_si256(a.half[0], b.half[0]), _mm256_or_si256(a.half[1], b.half[1])}};
}
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

#if defined(__AVXVNNI__)
template <int Bits>
inline __m256i dot_8(__m256i sum, __m256i weights, __m256i quad) {
  return _mm256_dpbusd_avx_epi32(sum, weights, quad);
}
#else
/// The pairwise product of unsigned and signed bytes saturates at 16 bits: two codes below 64 times
/// 127 stay clear of that (16,002), two 8-bit codes (64,770) do not and go through 16-bit lanes.
template <int Bits>
inline __m256i dot_8(__m256i sum, __m256i weights, __m256i quad) {
  if constexpr (Bits < 8) {
    const __m256i pairs = _mm256_maddubs_epi16(weights, quad);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(quad, 8), 8));
  const __m256i odd =
      _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(quad, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#endif

template <int Bits>
inline Ints dot_quad(Ints sum, Bytes unsigned_bytes, const int8_t* quad) {
  int32_t four;
  std::memcpy(&four, quad, 4);
  const __m256i q = _mm256_set1_epi32(four);
  return {{dot_8<Bits>(sum.half[0], unsigned_bytes.half[0], q),
           dot_8<Bits>(sum.half[1], unsigned_bytes.half[1], q)}};
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace edk
