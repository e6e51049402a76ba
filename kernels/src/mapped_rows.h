// Hints to the system about mapped files.
#pragma once

#include <cstdint>

namespace edk {

/// Says that few bytes of `data` [n_bytes] will be read, here and there: where it is a mapped file the
/// system then reads what is asked for and not what lies around it. Changes no result.
void expect_scattered_reads(const void* data, int64_t n_bytes);

}  // namespace edk
