#pragma once

#include "op_support.h"

namespace edk {

// Bounds that keep every byte count far inside 64 bits.
constexpr int64_t kMaxN = int64_t{1} << 31;
constexpr int64_t kMaxK = int64_t{1} << 24;

constexpr int kPackedAlignment = 4;  // bytes; a panel holds 16-bit scales or 32-bit floats

/// A matrix without its weights; fails on a format that does not exist or does not fit `k`.
Matrix matrix_attributes(int64_t format, int64_t n, int64_t k);

/// Points `matrix` at `packed`; fails if its byte count is not that of the matrix, or its
/// address odd.
void set_packed(Matrix& matrix, int64_t k, const Tensor& packed, const char* name);

/// Points `matrix` at `packed`, which holds as many of its kind one after the other; fails as
/// `set_packed`.
void set_packed_experts(Matrix& matrix, int64_t n_experts, int64_t k, const Tensor& packed,
                        const char* name);

}  // namespace edk
