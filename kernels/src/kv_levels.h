// What the codes of a K5V4 KV cache stand for, times the scale of their row.
#pragma once

#include <cstdint>

namespace edk {

/// Lloyd's 16 levels for a normal distribution, whose largest is 2.7326 deviations, in steps of 1 / 127
/// of that: bytes, so that instructions that look bytes up find them.
/// Source: Max, "Quantizing for minimum distortion", 1960, table I.
/// Of values.
constexpr int8_t kKvLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                  6,    18,  31,  44,  58,  75,  96,  127};
constexpr float kKvFloatLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                      6,    18,  31,  44,  58,  75,  96,  127};
/// A level more for each of these that a number is above: halfway between two levels.
constexpr float kKvLevelBounds[15] = {-111.5f, -85.5f, -66.5f, -51, -37.5f, -24.5f, -12, 0,
                                      12,      24.5f,  37.5f,  51,  66.5f,  85.5f,  111.5f};
/// Step of levels in deviations of a row.
constexpr float kKvLevelStep = 2.7326f / 127;

/// Sizes of Lloyd's 32 levels, which keys have, in steps of 1 / 127 of 3.2607 deviations.
constexpr int8_t kKvSizes[16] = {3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127};
constexpr float kKvFloatSizes[16] = {3,  8,  13, 18, 24, 29, 35,  41,
                                     47, 54, 61, 70, 79, 90, 105, 127};
constexpr float kKvSizeBounds[15] = {5.5f, 10.5f, 15.5f, 21,    26.5f, 32,    38,   44,
                                     50.5f, 57.5f, 65.5f, 74.5f, 84.5f, 97.5f, 116};
constexpr float kKvSizeStep = 3.2607f / 127;

}  // namespace edk
