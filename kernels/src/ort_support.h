// ONNX Runtime behind what the operators see of a runtime.
#pragma once

#include "op_support.h"
#include "ort_abi.h"

namespace edk {

/// Returns the functions of a table: the same for all nodes, so that they stay in caches.
const OrtFunctions& functions_of(const OrtApi& api);

/// A node of the graph while ONNX Runtime makes its kernel.
class OrtNode : public Node {
 public:
  OrtNode(const OrtFunctions& ort, const OrtKernelInfo* info) : ort_(ort), info_(info) {}

  Tensor constant(size_t index) const override;

 protected:
  bool find(const char* name, int64_t& value) const override;
  bool find(const char* name, float& value) const override;
  bool find(const char* name, std::vector<int64_t>& values) const override;

 private:
  const OrtFunctions& ort_;
  const OrtKernelInfo* info_;
};

/// Returns which of the first inputs a node does not leave out: bit i for input i.
uint64_t given_inputs(const OrtFunctions& ort, const OrtKernelInfo* info, size_t n_inputs);

/// One call of a kernel; its threads are those of the pass, or else of the session.
class OrtCall : public Call {
 public:
  /// given: see `given_inputs`. ONNX Runtime is not asked for others.
  OrtCall(const OrtFunctions& ort, OrtKernelContext* context, uint64_t given)
      : ort_(ort), context_(context), given_(given) {}

  Tensor input(size_t index) const override;
  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override;
  void announce(const Reading& now) const override;

 private:
  void* output_data(size_t index, const int64_t* dims, int rank) const override;

  const OrtFunctions& ort_;
  OrtKernelContext* context_;
  uint64_t given_;
};

}  // namespace edk
