#include "custom_ops.h"
#include "recurrent_pass.h"

namespace edk {
namespace {

/// ShortConv(bcx float [1, T, 3C], parents int64 [1, P], past int64 [1], kept float [L, Q, C],
/// weight float [C, 1, K], bias? float [C]) -> float [1, T, C]: see ShortConvArgs. kept is written in
/// place. Attribute: layer, among those of kept.
class ShortConvOp {
 public:
  static constexpr const char* kName = "ShortConv";
  static constexpr Port kPorts[] = {
      {"bcx", kFloat, kRequired},  {"parents", kInt64, kRequired}, {"past", kInt64, kRequired},
      {"kept", kFloat, kRequired}, {"weight", kFloat, kRequired},  {"bias", kFloat, kOptional},
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit ShortConvOp(const Node& node) : layer_(node.integer("layer", 0, INT32_MAX)) {
    if (node.constant(kKept).is_present()) {
      fail("kept is a constant, expected an input: it is written in place");
    }
  }

  void compute(const Kernels& kernels, const Call& call) const;

 private:
  enum { kBcx, kParents, kPast, kKept, kWeight, kBias };
  int64_t layer_;
};

void ShortConvOp::compute(const Kernels& kernels, const Call& call) const {
  const Tensor bcx = call.input(kBcx), kept = call.input(kKept);
  const Tensor weight = call.input(kWeight), bias = call.input(kBias);
  ShortConvArgs args;
  weight.expect_shape("weight", {-1, 1, -1});
  args.channels = weight.dims[0];
  args.size = weight.dims[2];
  if (args.channels < 1 || args.size < 1 || args.size > kMaxConvSize) {
    fail("weight has shape %s, expected one channel or more and a size of 1 to %lld",
         weight.shape().c_str(), static_cast<long long>(kMaxConvSize));
  }
  bcx.expect_shape("bcx", {1, -1, 3 * args.channels});
  if (bias.is_present()) bias.expect_shape("bias", {args.channels});
  const RecurrentPass pass(call.input(kParents), call.input(kPast), bcx.dims[1]);
  args.kept = pass.kept_rows(kept, layer_, args.channels, args.size, pass.past);
  args.n_kept = kept.dims[1];
  args.bcx = bcx.as<const float>();
  args.parents = pass.parents;
  args.past = pass.past;
  args.known = pass.known;
  args.rows = pass.rows;
  args.weight = weight.as<const float>();
  args.bias = bias.as<const float>();
  const int64_t dims[] = {1, args.rows, args.channels};
  args.out = call.output(dims, 3);
  if (args.rows > 0) kernels.short_conv(args, call);
}

const Registration<ShortConvOp> kShortConvRegistration;

}  // namespace
}  // namespace edk
