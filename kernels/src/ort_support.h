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

/// One call of a kernel; its threads are those of the pass, or else of the session.
class OrtCall : public Call {
 public:
  OrtCall(const OrtFunctions& ort, OrtKernelContext* context) : ort_(ort), context_(context) {}

  Tensor input(size_t index) const override;
  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override;
  void announce(const Reading& now) const override;

 private:
  void* output_data(size_t index, const int64_t* dims, int rank) const override;

  const OrtFunctions& ort_;
  OrtKernelContext* context_;
};

}  // namespace edk
