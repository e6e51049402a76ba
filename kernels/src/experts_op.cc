#include <algorithm>

#include "custom_ops.h"
#include "layer_gate.h"
#include "matrix_input.h"

namespace edk {
namespace {

/// Experts(x float [..., k], norm_weight? float [k], residual? float [..., k], router float [..., E],
///         gate, up, down uint8 [E, bytes], layer_gates?, gate_bias? float [E * n], up_bias? float
///         [E * n], down_bias? float [E * k]) -> float [..., k]
/// with layer_gates as LayerGate says. Attributes: formats (of gate, up and down), k, n (rows of gate
/// and of up), n_experts, n_used, normed, epsilon, gate_index?, limit?. See ExpertsArgs for what it
/// computes.
class ExpertsOp {
 public:
  static constexpr const char* kName = "Experts";
  static constexpr Port kPorts[] = {
      {"x", kFloat, kRequired},        {"norm_weight", kFloat, kOptional},
      {"residual", kFloat, kOptional}, {"router", kFloat, kRequired},
      {"gate", kUint8, kRequired},     {"up", kUint8, kRequired},
      {"down", kUint8, kRequired},     LayerGate::kPort,
      {"gate_bias", kFloat, kOptional}, {"up_bias", kFloat, kOptional},
      {"down_bias", kFloat, kOptional},
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit ExpertsOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  static constexpr size_t kNormWeight = 1;
  static constexpr size_t kGate = 4;
  static constexpr size_t kLayerGates = 7;
  static constexpr size_t kBiases = 8;

  void set_norm(ExpertsArgs& args, const Tensor& tensor) const;
  void set_matrix(ExpertsArgs& args, size_t port, const Tensor& tensor) const;
  const float* bias_of(const Call& call, size_t index, int64_t n) const;

  LayerGate layer_gate_;
  ExpertsArgs args_;  // as far as attributes and constants say
  bool is_constant_[kLayerGates] = {};
};

constexpr int64_t kMaxExperts = 1 << 16;

/// Gate, up or down.
Matrix& matrix_of(ExpertsArgs& args, size_t index) {
  return index == 0 ? args.gate : index == 1 ? args.up : args.down;
}

ExpertsOp::ExpertsOp(const Node& node) : layer_gate_(node) {
  const std::vector<int64_t> formats = node.integers("formats");
  if (formats.size() != 3) fail("attribute formats has %zu entries, expected 3", formats.size());
  args_.k = node.integer("k", 1, kMaxK);
  const int64_t n = node.integer("n", 1, kMaxK);
  args_.n_experts = node.integer("n_experts", 1, kMaxExperts);
  args_.n_used = node.integer("n_used", 1, args_.n_experts);
  args_.is_normed = node.integer("normed", 0, 1) == 1;
  args_.epsilon = node.number("epsilon");
  if (!(args_.epsilon >= 0)) fail("attribute epsilon is %g, expected 0 or more", args_.epsilon);
  args_.limit = node.number_or("limit", 0);
  if (!(args_.limit >= 0 && args_.limit < 1e30f)) {
    fail("attribute limit is %g, expected 0 or more", args_.limit);
  }
  args_.gate = matrix_attributes(formats[0], n, args_.k);
  args_.up = matrix_attributes(formats[1], n, args_.k);
  args_.down = matrix_attributes(formats[2], args_.k, n);
  for (size_t port = kNormWeight; port < kLayerGates; ++port) {
    if (port != kNormWeight && port < kGate) continue;  // residual and router change with every call
    const Tensor tensor = node.constant(port);
    is_constant_[port] = tensor.is_present();
    if (!is_constant_[port]) continue;
    port == kNormWeight ? set_norm(args_, tensor) : set_matrix(args_, port, tensor);
  }
}

void ExpertsOp::set_norm(ExpertsArgs& args, const Tensor& tensor) const {
  if (tensor.is_present()) tensor.expect_shape("norm_weight", {args.k});
  args.norm_weight = tensor.as<const float>();
}

void ExpertsOp::set_matrix(ExpertsArgs& args, size_t port, const Tensor& tensor) const {
  const int64_t k = port + 1 == kLayerGates ? args.gate.n : args.k;
  set_packed_experts(matrix_of(args, port - kGate), args.n_experts, k, tensor, kPorts[port].name);
}

/// The bias of all experts' gate, up or down of n rows; null if there is none.
const float* ExpertsOp::bias_of(const Call& call, size_t index, int64_t n) const {
  const Tensor bias = call.input(kBiases + index);
  if (bias.is_present()) bias.expect_shape(kPorts[kBiases + index].name, {args_.n_experts * n});
  return bias.as<const float>();
}

void ExpertsOp::compute(const Kernels& kernels, const Call& call) const {
  ExpertsArgs args = args_;
  if (!is_constant_[kNormWeight]) set_norm(args, call.input(kNormWeight));
  for (size_t port = kGate; port < kLayerGates; ++port) {
    if (!is_constant_[port]) set_matrix(args, port, call.input(port));
  }
  args.gate_bias = bias_of(call, 0, args.gate.n);
  args.up_bias = bias_of(call, 1, args.gate.n);
  args.down_bias = bias_of(call, 2, args.k);
  const Tensor x = call.input(0), residual = call.input(2), router = call.input(3);
  if (x.rank < 1 || x.last_dim() != args.k) {
    fail("x has shape %s, expected the last size to be %lld", x.shape().c_str(),
         static_cast<long long>(args.k));
  }
  if (residual.is_present() &&
      (residual.rank != x.rank || !std::equal(x.dims, x.dims + x.rank, residual.dims))) {
    fail("residual has shape %s, expected that of x, %s", residual.shape().c_str(),
         x.shape().c_str());
  }
  if (router.rank != x.rank || !std::equal(x.dims, x.dims + x.rank - 1, router.dims) ||
      router.last_dim() != args.n_experts) {
    fail("router has shape %s, expected that of x, %s, with last size %lld",
         router.shape().c_str(), x.shape().c_str(), static_cast<long long>(args.n_experts));
  }
  args.x = x.as<const float>();
  args.rows = x.n_elements() / args.k;
  args.residual = residual.as<const float>();
  args.router = router.as<const float>();
  args.out = call.output(x.dims, x.rank);
  if (layer_gate_.is_open(call.input(kLayerGates))) {
    if (args.rows > 0) kernels.experts(args, call);
  } else if (residual.is_present()) {
    std::copy_n(args.residual, args.rows * args.k, args.out);
  }
}

const Registration<ExpertsOp> kExpertsRegistration;

}  // namespace
}  // namespace edk
