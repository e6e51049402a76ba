#include "custom_ops.h"

namespace edk {
namespace {

/// RowStats(logits float [..., V]) -> argmax int64 [R], log_sum_exp float [R], entropy float [R],
/// top_ids int64 [R, 8], top_logits float [R, 8], R the product of the leading sizes. See
/// RowStatsArgs.
class RowStatsOp {
 public:
  static constexpr const char* kName = "RowStats";
  static constexpr Port kPorts[] = {{"logits", kFloat, kRequired}};
  static constexpr int kOutputs[] = {kInt64, kFloat, kFloat, kInt64, kFloat};

  explicit RowStatsOp(const Node&) {}
  void compute(const Kernels& kernels, const Call& call) const;
};

void RowStatsOp::compute(const Kernels& kernels, const Call& call) const {
  const Tensor logits = call.input(0);
  if (logits.rank < 1 || logits.last_dim() < 1) {
    fail("logits has shape %s, expected the last size to be 1 or more", logits.shape().c_str());
  }
  RowStatsArgs args;
  args.logits = logits.as<const float>();
  args.n_ids = logits.last_dim();
  args.rows = logits.n_elements() / args.n_ids;
  const int64_t dims[] = {args.rows, kTop};
  args.argmax = call.output<int64_t>(dims, 1, 0);
  args.log_sum_exp = call.output<float>(dims, 1, 1);
  args.entropy = call.output<float>(dims, 1, 2);
  args.top_ids = call.output<int64_t>(dims, 2, 3);
  args.top_logits = call.output<float>(dims, 2, 4);
  if (args.rows > 0) kernels.row_stats(args, call);
}

const Registration<RowStatsOp> kRowStatsRegistration;

}  // namespace
}  // namespace edk
