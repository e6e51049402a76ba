// The part of ONNX Runtime's C interface that these operators use, and no more.
//
// The interface is a table of function pointers that only ever grows, so a function is known by
// its place in it. Runtimes from 1.24 on have all that are named here. The layout of OrtCustomOp is
// that of interface version 17, which its field `version` says.
// Source: onnxruntime_c_api.h of ONNX Runtime (MIT licence).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;

struct OrtApi {
  void (*slots[415])();
};

struct OrtApiBase {
  const OrtApi* (*get_api)(uint32_t version);
  const char* (*get_version_string)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*create_kernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*get_name)(const OrtCustomOp*);
  const char* (*get_execution_provider)(const OrtCustomOp*);
  int (*get_input_type)(const OrtCustomOp*, size_t index);
  size_t (*get_input_type_count)(const OrtCustomOp*);
  int (*get_output_type)(const OrtCustomOp*, size_t index);
  size_t (*get_output_type_count)(const OrtCustomOp*);
  void (*kernel_compute)(void* kernel, OrtKernelContext*);
  void (*kernel_destroy)(void* kernel);
  int (*get_input_characteristic)(const OrtCustomOp*, size_t index);
  int (*get_output_characteristic)(const OrtCustomOp*, size_t index);
  int (*get_input_memory_type)(const OrtCustomOp*, size_t index);
  int (*get_variadic_input_min_arity)(const OrtCustomOp*);
  int (*get_variadic_input_homogeneity)(const OrtCustomOp*);
  int (*get_variadic_output_min_arity)(const OrtCustomOp*);
  int (*get_variadic_output_homogeneity)(const OrtCustomOp*);
  OrtStatus* (*create_kernel_v2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                                 void** kernel);
  OrtStatus* (*kernel_compute_v2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*infer_output_shape)(const OrtCustomOp*, void*);
  int (*get_start_version)(const OrtCustomOp*);
  int (*get_end_version)(const OrtCustomOp*);
};

}  // extern "C"

namespace edk {

constexpr uint32_t kOrtApiVersion = 24, kOrtCustomOpVersion = 17;

enum OrtCode { kOrtFail = 1, kOrtInvalidArgument = 2 };
constexpr int kOrtMemoryDefault = 0;

using CreateOrtStatus = OrtStatus* (*)(int code, const char* message);

/// Returns the one function that is needed of runtimes of any version.
inline CreateOrtStatus create_status_of(const OrtApi& api) {
  return reinterpret_cast<CreateOrtStatus>(api.slots[0]);
}

/// The functions of the table by name. A null status means success.
struct OrtFunctions {
  CreateOrtStatus create_status;
  void (*release_status)(OrtStatus*);
  OrtStatus* (*create_custom_op_domain)(const char* name, OrtCustomOpDomain**);
  OrtStatus* (*custom_op_domain_add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*add_custom_op_domain)(OrtSessionOptions*, OrtCustomOpDomain*);
  OrtStatus* (*get_tensor_mutable_data)(OrtValue*, void**);
  OrtStatus* (*get_type_and_shape)(const OrtValue*, int* type, const int64_t** dims, size_t* rank);
  OrtStatus* (*get_attribute_float)(const OrtKernelInfo*, const char* name, float*);
  OrtStatus* (*get_attribute_int64)(const OrtKernelInfo*, const char* name, int64_t*);
  OrtStatus* (*get_attribute_int64s)(const OrtKernelInfo*, const char* name, int64_t*, size_t*);
  OrtStatus* (*get_input)(const OrtKernelContext*, size_t index, const OrtValue**);
  OrtStatus* (*get_output)(OrtKernelContext*, size_t index, const int64_t* dims, size_t n_dims,
                           OrtValue**);
  OrtStatus* (*get_input_name)(const OrtKernelInfo*, size_t index, char* name, size_t* size);
  OrtStatus* (*get_constant_input)(const OrtKernelInfo*, size_t index, int* is_constant,
                                   const OrtValue**);
  OrtStatus* (*parallel_for)(const OrtKernelContext*, void (*fn)(void*, size_t), size_t total,
                             size_t n_batches, void* user);

  explicit OrtFunctions(const OrtApi& api) {
    create_status = create_status_of(api);
    take(api, 93, release_status);
    take(api, 26, create_custom_op_domain);
    take(api, 27, custom_op_domain_add);
    take(api, 28, add_custom_op_domain);
    take(api, 51, get_tensor_mutable_data);
    take(api, 414, get_type_and_shape);
    take(api, 85, get_attribute_float);
    take(api, 86, get_attribute_int64);
    take(api, 163, get_attribute_int64s);
    take(api, 90, get_input);
    take(api, 91, get_output);
    take(api, 232, get_input_name);
    take(api, 249, get_constant_input);
    take(api, 274, parallel_for);
  }

 private:
  template <class Function>
  static void take(const OrtApi& api, size_t slot, Function& function) {
    function = reinterpret_cast<Function>(api.slots[slot]);
  }
};

}  // namespace edk
