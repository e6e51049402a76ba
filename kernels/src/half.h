// float16 and bfloat16 to float32 and back, rounding to nearest even as the hardware does.
#pragma once

#include <cstdint>
#include <cstring>

namespace edk {
namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
  if (exponent == 31)  // infinity, or a NaN made quiet
    return bits_to_float(sign | 0x7f800000u | (mantissa ? 0x400000u : 0u) | (mantissa << 13));
  if (exponent == 0) {  // subnormal: mantissa * 2^-24 is exact
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return bits_to_float(sign | float_to_bits(magnitude));
  }
  return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 makes the FPU round at 2^-24
    const uint32_t rounded = float_to_bits(bits_to_float(magnitude) + 0.5f) - float_to_bits(0.5f);
    return static_cast<uint16_t>(sign | rounded);
  }
  const uint32_t even = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}

inline float bfloat_to_float(uint16_t value) { return bits_to_float(static_cast<uint32_t>(value) << 16); }

}  // namespace
}  // namespace edk
