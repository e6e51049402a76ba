#pragma once

#include "layer_gate.h"

namespace edk {

/// Linear(x float [..., k], norm_weight?, residual?, w0, b0?, w1?, b1?, w2?, b2?, layer_gates?)
///   -> float [..., N]
/// with w uint8 [bytes], layer_gates as LayerGate says, the rest float. Attributes: formats and n
/// (one per matrix), k, epsilon, gate, gate_index?. See LinearArgs for what it computes.
class LinearOp {
 public:
  static constexpr const char* kName = "Linear";
  static constexpr Port kPorts[] = {
      {"x", kOrtFloat, kOrtRequired},           {"norm_weight", kOrtFloat, kOrtOptional},
      {"residual", kOrtFloat, kOrtOptional},    {"w0", kOrtUint8, kOrtRequired},
      {"b0", kOrtFloat, kOrtOptional},          {"w1", kOrtUint8, kOrtOptional},
      {"b1", kOrtFloat, kOrtOptional},          {"w2", kOrtUint8, kOrtOptional},
      {"b2", kOrtFloat, kOrtOptional},          LayerGate::kPort,
  };
  static constexpr int kOutputs[] = {kOrtFloat};

  explicit LinearOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  static constexpr size_t kResidual = 2;
  static constexpr size_t kFirstMatrixPort = 3;
  static constexpr size_t kLayerGates = 9;

  void set_port(LinearArgs& args, size_t port, const Tensor& tensor) const;

  LayerGate layer_gate_;
  LinearArgs args_;  // as far as attributes and constants tell
  int64_t n_out_ = 0;
  bool is_constant_[kLayerGates] = {};
};

}  // namespace edk
