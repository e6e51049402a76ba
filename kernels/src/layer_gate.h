#pragma once

#include "op_support.h"

namespace edk {

/// Whether a node runs in a pass: entry `gate_index` (an attribute, -1 or missing: always) of the
/// optional input layer_gates int64 [sub-layers], 1 to run and 0 to be skipped. A skipped node
/// leaves its output as it finds it, unless it adds to a residual stream, which then passes
/// through.
class LayerGate {
 public:
  static constexpr Port kPort = {"layer_gates", kInt64, kOptional};

  explicit LayerGate(const Node& node) : index_(node.integer_or("gate_index", -1)) {
    if (index_ < -1) fail("attribute gate_index is %lld, expected -1 or more", as_long(index_));
  }

  bool is_open(const Tensor& gates) const {
    if (index_ < 0) {
      if (gates.is_present()) fail("layer_gates is given, but attribute gate_index names none");
      return true;
    }
    if (gates.rank != 1 || gates.dims[0] <= index_) {
      fail("layer_gates has shape %s, expected [more than %lld]", gates.shape().c_str(),
           as_long(index_));
    }
    const int64_t gate = gates.as<const int64_t>()[index_];
    if (gate != 0 && gate != 1) {
      fail("layer_gates[%lld] is %lld, expected 0 or 1", as_long(index_), as_long(gate));
    }
    return gate == 1;
  }

 private:
  static long long as_long(int64_t value) { return value; }

  int64_t index_;
};

}  // namespace edk
