// The door through which ONNX Runtime finds the operators.
#include "custom_ops.h"

#include <map>
#include <mutex>

#include "export.h"

namespace edk {

std::vector<const OrtCustomOp*>& registered_ops() {
  static std::vector<const OrtCustomOp*> ops;
  return ops;
}

namespace {

OrtStatus* make_domain(const OrtFunctions& ort, OrtCustomOpDomain** domain) {
  OrtStatus* status = ort.create_custom_op_domain("edgedec", domain);
  for (const OrtCustomOp* op : registered_ops()) {
    if (status == nullptr) status = ort.custom_op_domain_add(*domain, op);
  }
  return status;
}

}  // namespace
}  // namespace edk

/// Adds the operators to a session. One domain serves all sessions of a runtime; it outlives them
/// all, so it is never released.
EDGEDEC_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static std::mutex mutex;
  static std::map<const OrtApi*, OrtCustomOpDomain*> domains;
  const OrtApi* api = base->get_api(edk::kOrtApiVersion);
  if (api == nullptr) {
    return edk::create_status_of(*base->get_api(1))(
        edk::kOrtFail, "edgedec needs ONNX Runtime 1.24 or newer: upgrade onnxruntime");
  }
  const edk::OrtFunctions& ort = edk::functions_of(*api);
  const std::lock_guard<std::mutex> lock(mutex);
  OrtCustomOpDomain*& domain = domains[api];
  if (domain == nullptr) {
    if (OrtStatus* status = edk::make_domain(ort, &domain)) return status;
  }
  return ort.add_custom_op_domain(options, domain);
}
