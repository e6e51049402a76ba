// The part of TVM-FFI's C interface that these operators use, and no more.
//
// Its functions are looked up in the library that the process has loaded; nothing is linked.
// Source: tvm/ffi/c_api.h and dlpack.h of TVM-FFI 0.1 (Apache-2.0).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TvmDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct TvmTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  TvmDataType type;
  const int64_t* dims;
  const int64_t* strides;
  uint64_t byte_offset;
};

struct TvmObject {
  uint64_t n_references;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct TvmTensorObject {
  TvmObject header;
  TvmTensor tensor;
};

struct TvmAny {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t integer;
    void* pointer;
  };
};

struct TvmBytes {
  const char* data;
  size_t size;
};

}  // extern "C"

namespace edk {

enum TvmTypeIndex { kTvmNone = 0, kTvmInt = 1, kTvmTensorPointer = 7, kTvmTensorObject = 70 };
enum TvmTypeCode { kTvmCodeInt = 0, kTvmCodeUint = 1, kTvmCodeFloat = 2 };

using TvmCall = int (*)(void* self, const TvmAny* args, int32_t n_args, TvmAny* result);

/// The functions by name. Those that return a number return 0 for success.
struct TvmFunctions {
  int (*create_function)(void* self, TvmCall call, void (*deleter)(void*), void** function);
  int (*set_global)(const TvmBytes* name, void* function, int may_replace);
  int (*release)(void* object);
  void (*raise)(const char* kind, const char* message);
};

}  // namespace edk
