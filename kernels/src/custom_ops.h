// From a class to an operator of ONNX Runtime, domain "edgedec". A class has kName, kPorts, kOutputs,
// is made from a Node, and computes a Call.
//
// Whatever a graph or a caller gets wrong becomes an OrtStatus with a text. Constant inputs are
// checked once, when the kernel is made; everything else on each call, before memory is touched.
#pragma once

#include <climits>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include "ort_support.h"
#include "tvm_ops.h"

namespace edk {

/// Runs `body`; what it throws becomes a status that names the operator.
template <class Body>
OrtStatus* guarded(const OrtFunctions& ort, const char* op, Body body) {
  std::string text;
  int code = kOrtFail;
  try {
    body();
    return nullptr;
  } catch (const OpError& error) {
    code = kOrtInvalidArgument;
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return ort.create_status(code, ("edgedec." + std::string(op) + ": " + text).c_str());
}

/// What ONNX Runtime keeps for one node.
template <class Op>
struct Instance {
  const OrtFunctions& ort;
  const Kernels& kernels;
  uint64_t given;
  Op op;

  Instance(const OrtApi& api, const OrtKernelInfo* info)
      : ort(functions_of(api)),
        kernels(usable_kernels()),
        given(given_inputs(ort, info, std::size(Op::kPorts))),
        op(OrtNode(ort, info)) {}
};

template <class Op>
OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) {
  return guarded(functions_of(*api), Op::kName, [&] { *kernel = new Instance<Op>(*api, info); });
}

template <class Op>
OrtStatus* compute_kernel(void* kernel, OrtKernelContext* context) {
  auto& instance = *static_cast<Instance<Op>*>(kernel);
  return guarded(instance.ort, Op::kName, [&] {
    instance.op.compute(instance.kernels, OrtCall(instance.ort, context, instance.given));
  });
}

/// Describes `Op` to ONNX Runtime: names, types, and the functions above.
template <class Op>
const OrtCustomOp* describe() {
  static const OrtCustomOp op = [] {
    OrtCustomOp d{};
    d.version = kOrtCustomOpVersion;
    d.get_name = [](const OrtCustomOp*) { return Op::kName; };
    d.get_execution_provider = [](const OrtCustomOp*) -> const char* { return nullptr; };
    d.get_input_type = [](const OrtCustomOp*, size_t i) { return Op::kPorts[i].element; };
    d.get_input_type_count = [](const OrtCustomOp*) { return std::size(Op::kPorts); };
    d.get_output_type = [](const OrtCustomOp*, size_t i) -> int { return Op::kOutputs[i]; };
    d.get_output_type_count = [](const OrtCustomOp*) { return std::size(Op::kOutputs); };
    d.get_input_characteristic = [](const OrtCustomOp*, size_t i) { return Op::kPorts[i].presence; };
    d.get_output_characteristic = [](const OrtCustomOp*, size_t) -> int { return kRequired; };
    d.get_input_memory_type = [](const OrtCustomOp*, size_t) { return kOrtMemoryDefault; };
    d.get_start_version = [](const OrtCustomOp*) { return 1; };
    d.get_end_version = [](const OrtCustomOp*) { return INT_MAX; };
    d.create_kernel_v2 = create_kernel<Op>;
    d.kernel_compute_v2 = compute_kernel<Op>;
    d.kernel_destroy = [](void* kernel) { delete static_cast<Instance<Op>*>(kernel); };
    return d;
  }();
  return &op;
}

/// The operators that were registered.
std::vector<const OrtCustomOp*>& registered_ops();

/// Registers `Op` with every runtime when the library is loaded: each NAME_op.cc has one of these.
template <class Op>
struct Registration {
  Registration() {
    registered_ops().push_back(describe<Op>());
    listed_ops()[Op::kName] = make_listed_op<Op>;
  }
};

}  // namespace edk
