#pragma once

#include "ort_support.h"

namespace edk {

/// Embed(ids int64 [..., T], table uint8 [bytes]) -> float [..., T, k].
/// Attributes: format, n (rows of the table), k.
class EmbedOp {
 public:
  static constexpr const char* kName = "Embed";
  static constexpr Port kPorts[] = {
      {"ids", kOrtInt64, kOrtRequired},
      {"table", kOrtUint8, kOrtRequired},
  };
  static constexpr int kOutputs[] = {kOrtFloat};

  explicit EmbedOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  int64_t k_;
  Matrix table_;
  Tensor packed_;  // present if the table is a constant
};

}  // namespace edk
