#pragma once

#include "ort_support.h"

namespace edk {

/// RowStats(logits float [..., V]) -> argmax int64 [R], log_sum_exp float [R], entropy float [R],
/// top_ids int64 [R, 8], top_logits float [R, 8], R the product of the leading sizes. See
/// RowStatsArgs.
class RowStatsOp {
 public:
  static constexpr const char* kName = "RowStats";
  static constexpr Port kPorts[] = {{"logits", kOrtFloat, kOrtRequired}};
  static constexpr int kOutputs[] = {kOrtInt64, kOrtFloat, kOrtFloat, kOrtInt64, kOrtFloat};

  explicit RowStatsOp(const Node&) {}
  void compute(const Kernels& kernels, const Call& call) const;
};

}  // namespace edk
