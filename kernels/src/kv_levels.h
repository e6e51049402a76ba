// What the codes of an int4 KV cache stand for, times the scale of their row.
#pragma once

#include <cstdint>

namespace edk {

/// Lloyd's 16 levels for a normal distribution, whose largest is 2.7326 deviations, in steps of 1 / 127
/// of that: bytes, so that instructions that look bytes up find them.
/// Source: Max, "Quantizing for minimum distortion", 1960, table I.
constexpr int8_t kKvLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                  6,    18,  31,  44,  58,  75,  96,  127};
constexpr float kKvFloatLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                      6,    18,  31,  44,  58,  75,  96,  127};
/// A level more for each of these that a number is above: halfway between two levels.
constexpr float kKvLevelBounds[15] = {-111.5f, -85.5f, -66.5f, -51, -37.5f, -24.5f, -12, 0,
                                      12,      24.5f,  37.5f,  51,  66.5f,  85.5f,  111.5f};
/// Step of levels in deviations of a row.
constexpr float kKvLevelStep = 2.7326f / 127;

}  // namespace edk
