#include "matrix_input.h"

#include "layout.h"

namespace edk {

Matrix matrix_attributes(int64_t format, int64_t n, int64_t k) {
  if (format < 0 || format >= kNumFormats) {
    fail("format is %lld, expected 0 to %d", static_cast<long long>(format), kNumFormats - 1);
  }
  if (n < 1 || n > kMaxN) fail("n is %lld, expected 1 to 2^31", static_cast<long long>(n));
  const ScaleKind kind = kFormats[format].kind;
  if ((kind == ScaleKind::kTwo || kind == ScaleKind::kTwoMin) && k % kSuper != 0) {
    fail("k is %lld, format %lld expects a multiple of %d", static_cast<long long>(k),
         static_cast<long long>(format), kSuper);
  }
  Matrix matrix;
  matrix.format = static_cast<int>(format);
  matrix.n = n;
  return matrix;
}

namespace {

void point_at(Matrix& matrix, const Tensor& packed, const char* name,
              std::initializer_list<int64_t> shape) {
  if (!packed.is_present()) fail("input %s is missing", name);
  packed.expect_shape(name, shape);
  matrix.packed = packed.as<const uint8_t>();
  if (reinterpret_cast<uintptr_t>(matrix.packed) % kPackedAlignment != 0) {
    fail("%s lies at an odd address, expected a multiple of %d", name, kPackedAlignment);
  }
}

}  // namespace

void set_packed(Matrix& matrix, int64_t k, const Tensor& packed, const char* name) {
  point_at(matrix, packed, name, {packed_nbytes(matrix.format, matrix.n, k)});
}

void set_packed_experts(Matrix& matrix, int64_t n_experts, int64_t k, const Tensor& packed,
                        const char* name) {
  point_at(matrix, packed, name, {n_experts, packed_nbytes(matrix.format, matrix.n, k)});
}

}  // namespace edk
