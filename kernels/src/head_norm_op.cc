#include "custom_ops.h"

namespace edk {
namespace {

/// HeadNorm(qkv float [..., (H + 2 Hkv) * d], q_weight float [d], k_weight float [d])
///   -> float [..., (H + 2 Hkv) * d]. Attributes: n_heads, n_kv_heads, epsilon, value_norm? (0). See
/// HeadNormArgs.
class HeadNormOp {
 public:
  static constexpr const char* kName = "HeadNorm";
  static constexpr Port kPorts[] = {
      {"qkv", kFloat, kRequired},
      {"q_weight", kFloat, kRequired},
      {"k_weight", kFloat, kRequired},
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit HeadNormOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  HeadNormArgs args_;  // the attributes
};

constexpr int64_t kMaxHeads = 1 << 16;

HeadNormOp::HeadNormOp(const Node& node) {
  args_.n_heads = node.integer("n_heads", 1, kMaxHeads);
  args_.n_kv_heads = node.integer("n_kv_heads", 0, kMaxHeads);
  args_.norms_values = node.integer_or("value_norm", 0) != 0;
  args_.epsilon = node.number("epsilon");
  if (!(args_.epsilon >= 0)) fail("attribute epsilon is %g, expected 0 or more", args_.epsilon);
}

void HeadNormOp::compute(const Kernels& kernels, const Call& call) const {
  const Tensor qkv = call.input(0), q_weight = call.input(1), k_weight = call.input(2);
  HeadNormArgs args = args_;
  q_weight.expect_shape("q_weight", {-1});
  args.head_size = q_weight.dims[0];
  k_weight.expect_shape("k_weight", {args.head_size});
  const int64_t width = (args.n_heads + 2 * args.n_kv_heads) * args.head_size;
  if (width == 0 || qkv.last_dim() != width) {
    fail("qkv has shape %s, expected the last size to be %lld: %lld + 2 * %lld heads of %lld",
         qkv.shape().c_str(), static_cast<long long>(width), static_cast<long long>(args.n_heads),
         static_cast<long long>(args.n_kv_heads), static_cast<long long>(args.head_size));
  }
  args.rows = qkv.n_elements() / width;
  args.qkv = qkv.as<const float>();
  args.q_weight = q_weight.as<const float>();
  args.k_weight = k_weight.as<const float>();
  args.out = call.output(qkv.dims, qkv.rank);
  if (args.rows > 0) kernels.head_norm(args, call);
}

const Registration<HeadNormOp> kHeadNormRegistration;

}  // namespace
}  // namespace edk
