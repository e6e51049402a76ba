#include <algorithm>

#include "custom_ops.h"
#include "layer_gate.h"
#include "mapped_files.h"
#include "matrix_input.h"

namespace edk {
namespace {

/// Linear(x float [..., k], norm_weight?, residual?, w0, b0?, w1?, b1?, w2?, b2?, layer_gates?)
///   -> float [..., N]
/// with w uint8 [bytes], layer_gates as LayerGate says, the rest float. Attributes: formats and n
/// (one per matrix), k, epsilon, gate, gate_index?. See LinearArgs for what it computes.
class LinearOp {
 public:
  static constexpr const char* kName = "Linear";
  static constexpr Port kPorts[] = {
      {"x", kFloat, kRequired},           {"norm_weight", kFloat, kOptional},
      {"residual", kFloat, kOptional},    {"w0", kUint8, kRequired},
      {"b0", kFloat, kOptional},          {"w1", kUint8, kOptional},
      {"b1", kFloat, kOptional},          {"w2", kUint8, kOptional},
      {"b2", kFloat, kOptional},          LayerGate::kPort,
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit LinearOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  static constexpr size_t kResidual = 2;
  static constexpr size_t kFirstMatrixPort = 3;
  static constexpr size_t kLayerGates = 9;

  void set_port(LinearArgs& args, size_t port, const Tensor& tensor) const;

  LayerGate layer_gate_;
  LinearArgs args_;  // as far as attributes and constants say
  int64_t n_out_ = 0;
  bool is_constant_[kLayerGates] = {};
};

LinearOp::LinearOp(const Node& node) : layer_gate_(node) {
  const std::vector<int64_t> formats = node.integers("formats"), n = node.integers("n");
  if (formats.empty() || formats.size() > kMaxMatrices || n.size() != formats.size()) {
    fail("attributes formats and n have %zu and %zu entries, expected one per matrix, 1 to %d",
         formats.size(), n.size(), kMaxMatrices);
  }
  args_.k = node.integer("k", 1, kMaxK);
  args_.epsilon = node.number("epsilon");
  if (!(args_.epsilon >= 0)) fail("attribute epsilon is %g, expected 0 or more", args_.epsilon);
  args_.gate = node.integer("gate", 0, 1) == 1;
  args_.n_matrices = static_cast<int>(formats.size());
  for (size_t i = 0; i < formats.size(); ++i) {
    args_.matrices[i] = matrix_attributes(formats[i], n[i], args_.k);
    n_out_ += n[i];
  }
  if (args_.gate) {
    if (n.size() != 2 || n[0] != n[1]) fail("gate expects two matrices with equal n");
    n_out_ = n[0];
  }
  // x and residual change with every call.
  for (size_t port = 1; port < kLayerGates; ++port) {
    if (port == kResidual) continue;
    const Tensor tensor = node.constant(port);
    is_constant_[port] = tensor.is_present();
    if (is_constant_[port]) set_port(args_, port, tensor);
  }
  for (const Matrix& matrix : args_.matrices)
    if (matrix.packed) expect_whole_reads(matrix.packed, packed_nbytes(matrix.format, matrix.n, args_.k));
}

void LinearOp::set_port(LinearArgs& args, size_t port, const Tensor& tensor) const {
  const char* name = kPorts[port].name;
  if (port == 1) {
    if (tensor.is_present()) tensor.expect_shape(name, {args.k});
    args.norm_weight = tensor.as<const float>();
    return;
  }
  const size_t i = (port - kFirstMatrixPort) / 2;
  if (i >= static_cast<size_t>(args.n_matrices)) {
    if (tensor.is_present()) fail("input %s has no entry in attributes formats and n", name);
    return;
  }
  Matrix& matrix = args.matrices[i];
  if ((port - kFirstMatrixPort) % 2 == 0) return set_packed(matrix, args.k, tensor, name);
  if (!tensor.is_present()) return;
  if (args.gate) fail("gate expects no bias, got %s", name);
  tensor.expect_shape(name, {matrix.n});
  matrix.bias = tensor.as<const float>();
}

void LinearOp::compute(const Kernels& kernels, const Call& call) const {
  LinearArgs args = args_;
  for (size_t port = 1; port < kLayerGates; ++port) {
    if (port != kResidual && !is_constant_[port]) set_port(args, port, call.input(port));
  }
  const Tensor x = call.input(0), residual = call.input(kResidual);
  if (x.rank < 1 || x.last_dim() != args.k) {
    fail("x has shape %s, expected the last size to be %lld", x.shape().c_str(),
         static_cast<long long>(args.k));
  }
  int64_t dims[kMaxRank];
  std::copy_n(x.dims, x.rank, dims);
  dims[x.rank - 1] = n_out_;
  if (residual.is_present()) {
    if (args.gate) fail("gate expects no residual");
    if (residual.rank != x.rank || !std::equal(dims, dims + x.rank, residual.dims)) {
      fail("residual has shape %s, expected that of the output, x %s with last size %lld",
           residual.shape().c_str(), x.shape().c_str(), static_cast<long long>(n_out_));
    }
  }
  args.x = x.as<const float>();
  args.rows = x.n_elements() / args.k;
  args.residual = residual.as<const float>();
  args.out = call.output(dims, x.rank);
  if (layer_gate_.is_open(call.input(kLayerGates))) {
    if (args.rows > 0) kernels.linear(args, call);
  } else if (residual.is_present()) {
    std::copy_n(args.residual, args.rows * n_out_, args.out);
  }
}

const Registration<LinearOp> kLinearRegistration;

}  // namespace
}  // namespace edk
