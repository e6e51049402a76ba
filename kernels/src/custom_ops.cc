// The operators Embed, Linear, Attention and RowStats of domain "edgedec", for ONNX Runtime.
//
// Whatever a graph or a caller gets wrong becomes an OrtStatus with a text. Constant inputs are
// checked once, when the kernel is made; everything else on each call, before memory is touched.
#include <array>
#include <climits>
#include <exception>
#include <map>
#include <mutex>
#include <string>

#include "attention_op.h"
#include "embed_op.h"
#include "linear_op.h"
#include "ort_support.h"
#include "row_stats_op.h"

namespace edk {
namespace {

const Kernels& usable_kernels() {
  const char* why = nullptr;
  const Kernels* kernels = active_kernels(&why);
  if (kernels == nullptr) fail("no usable instruction set: %s", why);
  return *kernels;
}

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
  OrtFunctions ort;
  const Kernels& kernels;
  Op op;

  Instance(const OrtApi& api, const OrtKernelInfo* info)
      : ort(api), kernels(usable_kernels()), op(Node(ort, info)) {}
};

template <class Op>
OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) {
  return guarded(OrtFunctions(*api), Op::kName, [&] { *kernel = new Instance<Op>(*api, info); });
}

template <class Op>
OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  auto& instance = *static_cast<Instance<Op>*>(kernel);
  return guarded(instance.ort, Op::kName,
                 [&] { instance.op.compute(instance.kernels, Call(instance.ort, context)); });
}

/// Describes `Op` to ONNX Runtime: names, types, and the functions above.
template <class Op>
const OrtCustomOp* describe() {
  static const OrtCustomOp op = [] {
    OrtCustomOp d{};
    d.version = kOrtVersion;
    d.get_name = [](const OrtCustomOp*) { return Op::kName; };
    d.get_execution_provider = [](const OrtCustomOp*) -> const char* { return nullptr; };
    d.get_input_type = [](const OrtCustomOp*, size_t i) { return Op::kPorts[i].element; };
    d.get_input_type_count = [](const OrtCustomOp*) { return std::size(Op::kPorts); };
    d.get_output_type = [](const OrtCustomOp*, size_t i) -> int { return Op::kOutputs[i]; };
    d.get_output_type_count = [](const OrtCustomOp*) { return std::size(Op::kOutputs); };
    d.get_input_characteristic = [](const OrtCustomOp*, size_t i) { return Op::kPorts[i].presence; };
    d.get_output_characteristic = [](const OrtCustomOp*, size_t) -> int { return kOrtRequired; };
    d.get_input_memory_type = [](const OrtCustomOp*, size_t) { return kOrtMemoryDefault; };
    d.get_start_version = [](const OrtCustomOp*) { return 1; };
    d.get_end_version = [](const OrtCustomOp*) { return INT_MAX; };
    d.create_kernel_v2 = create_kernel<Op>;
    d.kernel_compute_v2 = compute<Op>;
    d.kernel_destroy = [](void* kernel) { delete static_cast<Instance<Op>*>(kernel); };
    return d;
  }();
  return &op;
}

OrtStatus* make_domain(const OrtFunctions& ort, OrtCustomOpDomain** domain) {
  OrtStatus* status = ort.create_custom_op_domain("edgedec", domain);
  for (const OrtCustomOp* op : {describe<EmbedOp>(), describe<LinearOp>(), describe<AttentionOp>(),
                                describe<RowStatsOp>()}) {
    if (status == nullptr) status = ort.custom_op_domain_add(*domain, op);
  }
  return status;
}

}  // namespace
}  // namespace edk

/// Adds the operators to a session. One domain serves all sessions of a runtime; it outlives them
/// all, so it is never released.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  static std::mutex mutex;
  static std::map<const OrtApi*, OrtCustomOpDomain*> domains;
  const OrtApi* api = base->get_api(edk::kOrtVersion);
  if (api == nullptr) {
    const OrtApi* first = base->get_api(1);
    return edk::OrtFunctions(*first).create_status(
        edk::kOrtFail, "edgedec needs ONNX Runtime 1.17 or newer: upgrade onnxruntime");
  }
  const edk::OrtFunctions ort(*api);
  const std::lock_guard<std::mutex> lock(mutex);
  OrtCustomOpDomain*& domain = domains[api];
  if (domain == nullptr) {
    if (OrtStatus* status = edk::make_domain(ort, &domain)) return status;
  }
  return ort.add_custom_op_domain(options, domain);
}
