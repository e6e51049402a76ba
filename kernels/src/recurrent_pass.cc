#include "recurrent_pass.h"

namespace edk {

constexpr int64_t kMaxPast = int64_t{1} << 31;  // far from where positions overflow

RecurrentPass::RecurrentPass(const Tensor& parents_in, const Tensor& past_in, int64_t n_rows)
    : parents(parents_in.as<const int64_t>()), rows(n_rows) {
  parents_in.expect_shape("parents", {1, -1});
  past_in.expect_shape("past", {1});
  past = *past_in.as<const int64_t>();
  known = parents_in.dims[1] - rows;
  if (known < 0) {
    fail("parents are %lld, expected one for each of %lld rows",
         static_cast<long long>(parents_in.dims[1]), static_cast<long long>(rows));
  }
  if (past < 0 || past > kMaxPast) {
    fail("past is %lld, expected 0 to %lld", static_cast<long long>(past),
         static_cast<long long>(kMaxPast));
  }
  for (int64_t i = 0; i < known + rows; ++i) {
    if (parents[i] >= -1 && parents[i] < i) continue;
    fail("parents[%lld] is %lld, expected -1 to %lld", static_cast<long long>(i),
         static_cast<long long>(parents[i]), static_cast<long long>(i - 1));
  }
}

float* RecurrentPass::kept_rows(const Tensor& kept, int64_t layer, int64_t row_size,
                                int64_t size, int64_t base) const {
  kept.expect_shape("kept", {-1, -1, row_size});
  if (layer >= kept.dims[0]) {
    fail("layer is %lld, but kept has %lld layers", static_cast<long long>(layer),
         static_cast<long long>(kept.dims[0]));
  }
  const int64_t seen = past - base + (base < size - 1 ? base : size - 1);
  if (known + rows > kept.dims[1] - seen) {
    fail("%lld tokens before the pass + %lld nodes do not fit %lld kept rows",
         static_cast<long long>(seen), static_cast<long long>(known + rows),
         static_cast<long long>(kept.dims[1]));
  }
  return kept.as<float>() + layer * kept.dims[1] * row_size;
}

}  // namespace edk
