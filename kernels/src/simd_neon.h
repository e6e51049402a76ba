// Sixteen lanes in four NEON registers, channels 0-3 to 12-15; dot products by DOTPROD, or by I8MM's
// mixed-sign form where the flags allow. Each function means what simd_scalar.h says.
//
// Products are worked on in four parts, a register each: the weights of one group and part fill eight,
// and the codes and sums of rows fit in beside them.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "half.h"
#include "inline.h"
#include "kv_levels.h"
#include "layout.h"

#if !defined(__ARM_FEATURE_DOTPROD)
#error "built without the flags of this ISA"
#endif

namespace edk {
namespace {

constexpr int kTileRows = 8;  // rows whose sums are held at once
constexpr int kQueries = 6;  // most query vectors that one read of keys or values serves
constexpr int kSums = 6;  // sums of attention, of sixteen lanes each, that registers hold at once
#define EDK_PARTS 4
constexpr int kParts = EDK_PARTS;  // parts of a panel, worked on one after the other
constexpr int kPartChannels = kPanel / kParts;

struct Floats {
  float32x4_t part[4];
};
struct Ints {
  int32x4_t part[4];
};
using PartFloats = float32x4_t;
struct PartInts {
  int32x4_t v;
};
struct Bytes {  // of a part: four consecutive k of each channel
  uint8x16_t v;
};

template <class Fn>
inline Floats each(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}

/// Copies the first `n` of 16 elements; the others are zero.
template <class T>
struct Some {
  T lane[16] = {};
  Some(const T* p, int64_t n) {
    for (int64_t i = 0; i < n && i < 16; ++i) lane[i] = p[i];
  }
};

inline Floats set1(float x) {
  return each([=](int) { return vdupq_n_f32(x); });
}
inline Floats load(const float* p) {
  return each([=](int i) { return vld1q_f32(p + 4 * i); });
}
inline Floats load_n(const float* p, int64_t n) {
  return n >= 16 ? load(p) : load(Some<float>(p, n).lane);
}
inline Floats load_half(const uint16_t* p) {
  return each([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Floats load_half_n(const uint16_t* p, int64_t n) {
  return n >= 16 ? load_half(p) : load_half(Some<uint16_t>(p, n).lane);
}
inline Floats load_bfloat(const uint16_t* p) {
  return each([=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline Floats load_u8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
           vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
           vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
}
inline Floats widen(int8x16_t bytes) {
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
           vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline Floats load_i8(const uint8_t* p) { return widen(vreinterpretq_s8_u8(vld1q_u8(p))); }
inline Floats load_low_levels(const uint8_t* p) {
  return widen(vqtbl1q_s8(vld1q_s8(kKvLevels), vandq_u8(vld1q_u8(p), vdupq_n_u8(15))));
}
inline Floats load_high_levels(const uint8_t* p) {
  return widen(vqtbl1q_s8(vld1q_s8(kKvLevels), vshrq_n_u8(vld1q_u8(p), 4)));
}
inline Floats load_signed_sizes(const uint8_t* p, const uint8_t* signs, int channel) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint8x16_t nibbles = channel % 2 ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15));
  const int8x16_t sizes = vqtbl1q_s8(vld1q_s8(kKvSizes), nibbles);
  const uint8x16_t is_negative =
      vtstq_u8(vld1q_u8(signs), vdupq_n_u8(static_cast<uint8_t>(1 << channel)));
  return widen(vbslq_s8(is_negative, vnegq_s8(sizes), sizes));
}
inline void store(float* p, Floats a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.part[i]);
}
inline void store_n(float* p, Floats a, int64_t n) {
  if (n >= 16) return store(p, a);
  float all[16];
  store(all, a);
  for (int64_t i = 0; i < n; ++i) p[i] = all[i];
}
inline void store_half_n(uint16_t* p, Floats a, int64_t n) {
  uint16_t all[16];
  for (int i = 0; i < 4; ++i) vst1_u16(all + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.part[i])));
  for (int64_t i = 0; i < n && i < 16; ++i) p[i] = all[i];
}
inline void store_i8(int8_t* p, Ints a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.part[0]), vmovn_s32(a.part[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.part[2]), vmovn_s32(a.part[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

inline Floats add(Floats a, Floats b) {
  return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats sub(Floats a, Floats b) {
  return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Floats mul(Floats a, Floats b) {
  return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats div(Floats a, Floats b) {
  return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
/// A comparison and a choice rather than FMAX, which treats NaN and signed zeros otherwise.
inline Floats max(Floats a, Floats b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats min(Floats a, Floats b) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats abs(Floats a) {
  return each([&](int i) { return vabsq_f32(a.part[i]); });
}
inline Floats round(Floats a) {
  return each([&](int i) { return vrndnq_f32(a.part[i]); });
}
inline bool any_above(Floats a, Floats b) {
  uint32x4_t all_below = vdupq_n_u32(0xffffffffu);
  for (int i = 0; i < 4; ++i) all_below = vandq_u32(all_below, vcleq_f32(a.part[i], b.part[i]));
  return vminvq_u32(all_below) == 0;
}
inline Floats first_n(Floats a, Floats b, int64_t n) {
  const int32_t index[4] = {0, 1, 2, 3};
  const int32_t limit = static_cast<int32_t>(n > 16 ? 16 : n);
  return each([&](int i) {
    const uint32x4_t mask = vcltq_s32(vld1q_s32(index), vdupq_n_s32(limit - 4 * i));
    return vbslq_f32(mask, a.part[i], b.part[i]);
  });
}
inline Floats power_of_two(Floats a) {
  return each([&](int i) {
    const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(a.part[i]), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  });
}

inline float reduce_add(Floats a) {
  const float32x4_t low = vaddq_f32(a.part[0], a.part[2]), high = vaddq_f32(a.part[1], a.part[3]);
  const float32x4_t by4 = vaddq_f32(low, high);
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
}
inline float reduce_max(Floats a) {
  float lane[16];
  store(lane, a);
  float out = lane[0];
  for (int i = 1; i < 16; ++i) out = lane[i] > out ? lane[i] : out;
  return out;
}

inline Ints set1(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {{v, v, v, v}};
}
inline Ints zero_ints() { return set1(int32_t{0}); }
inline Ints to_ints(Floats a) {
  Ints out;
  for (int i = 0; i < 4; ++i) out.part[i] = vcvtq_s32_f32(a.part[i]);
  return out;
}
inline Floats to_floats(Ints a) {
  return each([&](int i) { return vcvtq_f32_s32(a.part[i]); });
}
inline Ints add(Ints a, Ints b) {
  for (int i = 0; i < 4; ++i) a.part[i] = vaddq_s32(a.part[i], b.part[i]);
  return a;
}
inline int32_t reduce_add(Ints a) {
  return vaddvq_s32(
      vaddq_s32(vaddq_s32(a.part[0], a.part[1]), vaddq_s32(a.part[2], a.part[3])));
}

inline PartFloats set1_part(float x) { return vdupq_n_f32(x); }
inline PartInts set1_part(int32_t x) { return {vdupq_n_s32(x)}; }
inline PartFloats load_part_half(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
/// The bytes of four channels, with others behind them.
inline uint8x8_t load_four(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return vcreate_u8(four);
}
inline PartFloats load_part_u8(const uint8_t* p) {
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four(p)))));
}
inline PartFloats load_part_i8(const uint8_t* p) {
  const int8x8_t bytes = vreinterpret_s8_u8(load_four(p));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
inline PartFloats sub(PartFloats a, PartFloats b) { return vsubq_f32(a, b); }
inline PartFloats mul(PartFloats a, PartFloats b) { return vmulq_f32(a, b); }
inline PartFloats fma(PartFloats a, PartFloats b, PartFloats c) { return vfmaq_f32(c, a, b); }
inline PartFloats to_floats(PartInts a) { return vcvtq_f32_s32(a.v); }
inline PartInts add(PartInts a, PartInts b) { return {vaddq_s32(a.v, b.v)}; }
inline int32_t reduce_add(PartInts a) { return vaddvq_s32(a.v); }

/// What the dot product of 16 codes with weights of a zero point takes off for that.
inline int32_t zero_offset(Ints codes, int32_t zero) { return -zero * reduce_add(codes); }

template <int Step>
EDK_INLINE Floats join(const PartFloats* parts) {
  return {{parts[0], parts[Step], parts[2 * Step], parts[3 * Step]}};
}

inline Bytes load_bytes(const uint8_t* p) { return {vld1q_u8(p)}; }
inline Bytes low_nibbles(Bytes a) { return {vandq_u8(a.v, vdupq_n_u8(15))}; }
inline Bytes high_nibbles(Bytes a) { return {vshrq_n_u8(a.v, 4)}; }
/// Moves bit `From` of every byte to bit `To`.
template <int From, int To>
inline uint8x16_t shift_bits(uint8x16_t a) {
  if constexpr (From < To) return vshlq_n_u8(a, To - From);
  if constexpr (From > To) return vshrq_n_u8(a, From - To);
  return a;
}
template <int Bit>
inline Bytes with_masked(Bytes low, Bytes high, uint8_t mask) {
  return {vorrq_u8(low.v, vandq_u8(shift_bits<Bit, 4>(high.v), vdupq_n_u8(mask)))};
}
template <int Bit>
inline Bytes with_bit4(Bytes low, Bytes high) {
  return with_masked<Bit>(low, high, 0x10);
}
template <int Bit>
inline Bytes with_bits45(Bytes low, Bytes high) {
  return with_masked<Bit>(low, high, 0x30);
}

inline uint8x16_t and_bytes(uint8x16_t a, uint8_t mask) { return vandq_u8(a, vdupq_n_u8(mask)); }
template <int Bit>
inline Bytes two_bits(Bytes a) {
  return {and_bytes(shift_bits<Bit, 0>(a.v), 3)};
}
inline Bytes spare_bits(Bytes a, Bytes b, Bytes c) {
  const uint8x16_t first = and_bytes(shift_bits<3, 0>(a.v), 0x11);
  const uint8x16_t second = and_bytes(shift_bits<3, 1>(b.v), 0x22);
  return {vorrq_u8(vorrq_u8(first, second), and_bytes(shift_bits<3, 2>(c.v), 0x44))};
}
inline Bytes to_levels(Bytes codes) { return {vqtbl1q_u8(vld1q_u8(kThreeBitLevels), codes.v)}; }

/// The eight quads of one group as unsigned bytes, of the channels of a part.
struct GroupCodes {
  Bytes quad[kQuads];
};

inline int8x16_t signed_bytes(Bytes a) { return vreinterpretq_s8_u8(a.v); }
/// Codes less 128.
inline int8x16_t less_128(Bytes a) {
  return vreinterpretq_s8_u8(veorq_u8(a.v, vdupq_n_u8(128)));
}

/// Adds the products of a quad with the one at `Lane` of four. Zero: as of `dot_quads`.
template <int Bits, int Zero, int Lane>
inline int32x4_t dot_quad(int32x4_t sum, Bytes weights, int8x16_t four) {
  if constexpr (Zero == 128) return vdotq_laneq_s32(sum, less_128(weights), four, Lane);
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_laneq_s32(sum, weights.v, four, Lane);
#else
  // DOTPROD wants equal signs: codes below 128 are signed bytes already; an 8-bit code is
  // (code - 128) + 64 + 64, each of which is.
  if constexpr (Bits < 8) return vdotq_laneq_s32(sum, signed_bytes(weights), four, Lane);
  const int8x16_t sixty_four = vdupq_n_s8(64);
  sum = vdotq_laneq_s32(sum, less_128(weights), four, Lane);
  return vdotq_laneq_s32(vdotq_laneq_s32(sum, sixty_four, four, Lane), sixty_four, four, Lane);
#endif
}

template <int Bits, int Zero>
EDK_INLINE int32x4_t dot_four(int32x4_t sum, const Bytes* quad, const int8_t* codes) {
  const int8x16_t four = vld1q_s8(codes);
  sum = dot_quad<Bits, Zero, 0>(sum, quad[0], four);
  sum = dot_quad<Bits, Zero, 1>(sum, quad[1], four);
  sum = dot_quad<Bits, Zero, 2>(sum, quad[2], four);
  return dot_quad<Bits, Zero, 3>(sum, quad[3], four);
}

/// Integer dot product of quads [First, Last) with one row's codes, plus `even` and `odd`: in one
/// chain, since sums are passed on early. Zero: the zero point of the weights, whose product with
/// the sum of the codes those two take off.
template <int Bits, int First, int Last, int Zero = 0>
EDK_INLINE PartInts dot_quads(PartInts even, PartInts odd, const GroupCodes& weights,
                              const int8_t* codes) {
  static_assert((First == 0 || First == 4) && (Last == 4 || Last == 8));
  int32x4_t sum = vaddq_s32(even.v, odd.v);
  if constexpr (Zero == 128) sum = vdupq_n_s32(0);  // what they would take off is never put in
  if constexpr (First == 0) sum = dot_four<Bits, Zero>(sum, weights.quad, codes);
  if constexpr (Last == 8) sum = dot_four<Bits, Zero>(sum, weights.quad + 4, codes + 16);
  return {sum};
}

// Always inlined: of a call of what has no effect GCC leaves nothing.
EDK_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

EDK_INLINE void prefetch_early(const void* p) { __builtin_prefetch(p, 0, 2); }

EDK_INLINE void prefetch_once(const void* p) { __builtin_prefetch(p, 0, 0); }

constexpr bool has_prefetch_once() { return false; }  // not measured

}  // namespace
}  // namespace edk
