#include "ort_support.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "first_error.h"
#include "pool.h"

namespace edk {
namespace {

/// Fails if `status` is an error, for `what` to be done.
void check(const OrtFunctions& ort, OrtStatus* status, const char* what) {
  if (status == nullptr) return;
  ort.release_status(status);
  fail("ONNX Runtime could not %s", what);
}

Tensor read_tensor(const OrtFunctions& ort, const OrtValue* value) {
  Tensor tensor;
  if (value == nullptr) return tensor;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  check(ort, ort.get_type_and_shape(value, &tensor.element, &dims, &rank),
        "tell type and shape of a tensor");
  if (rank > kMaxRank) fail("got a tensor of rank %zu, expected at most %d", rank, kMaxRank);
  std::copy_n(dims, rank, tensor.dims);
  tensor.rank = static_cast<int>(rank);
  // The interface has no read-only access; only the KV cache is ever written through this.
  check(ort, ort.get_tensor_mutable_data(const_cast<OrtValue*>(value), &tensor.data),
        "give access to a tensor");
  return tensor;
}

/// Whether `status` means success; it is released if not.
bool is_done(const OrtFunctions& ort, OrtStatus* status) {
  if (status != nullptr) ort.release_status(status);
  return status == nullptr;
}

}  // namespace

const OrtFunctions& functions_of(const OrtApi& api) {
  static std::mutex mutex;
  static std::map<const OrtApi*, OrtFunctions> known;
  const std::lock_guard<std::mutex> lock(mutex);
  return known.try_emplace(&api, api).first->second;
}

bool OrtNode::find(const char* name, int64_t& value) const {
  return is_done(ort_, ort_.get_attribute_int64(info_, name, &value));
}

bool OrtNode::find(const char* name, float& value) const {
  return is_done(ort_, ort_.get_attribute_float(info_, name, &value));
}

bool OrtNode::find(const char* name, std::vector<int64_t>& values) const {
  size_t n = 0;
  if (!is_done(ort_, ort_.get_attribute_int64s(info_, name, nullptr, &n))) return false;
  values.resize(n);
  return n == 0 || is_done(ort_, ort_.get_attribute_int64s(info_, name, values.data(), &n));
}

Tensor OrtNode::constant(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(ort_, ort_.get_constant_input(info_, index, &is_constant, &value), "look up a constant");
  return is_constant ? read_tensor(ort_, value) : Tensor{};
}

uint64_t given_inputs(const OrtFunctions& ort, const OrtKernelInfo* info, size_t n_inputs) {
  uint64_t given = 0;
  for (size_t i = 0; i < n_inputs; ++i) {
    size_t size = 0;  // with the zero at the end; inputs that are left out have no name
    if (is_done(ort, ort.get_input_name(info, i, nullptr, &size)) && size > 1) given |= uint64_t{1} << i;
  }
  return given;
}

Tensor OrtCall::input(size_t index) const {
  if ((given_ >> index & 1) == 0) return Tensor{};
  const OrtValue* value = nullptr;
  check(ort_, ort_.get_input(context_, index, &value), "give access to an input");
  return read_tensor(ort_, value);
}

void* OrtCall::output_data(size_t index, const int64_t* dims, int rank) const {
  OrtValue* value = nullptr;
  void* data = nullptr;
  check(ort_, ort_.get_output(context_, index, dims, static_cast<size_t>(rank), &value),
        "allocate an output");
  check(ort_, ort_.get_tensor_mutable_data(value, &data), "give access to an output");
  return data;
}

void OrtCall::announce(const Reading& now) const {
  if (pool_of_pass != nullptr) pool_of_pass->announce(now);
}

void OrtCall::run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const {
  if (n == 1) return fn(user, 0);
  if (pool_of_pass != nullptr) return pool_of_pass->run(n, fn, user);
  struct Work {
    void (*fn)(void* user, int64_t i);
    void* user;
    FirstError error;
  } work{fn, user, {}};
  const auto task = [](void* w, size_t i) {
    Work& work = *static_cast<Work*>(w);
    work.error.guard([&] { work.fn(work.user, static_cast<int64_t>(i)); });
  };
  check(ort_, ort_.parallel_for(context_, task, static_cast<size_t>(n), 0, &work),
        "run tasks on its threads");
  work.error.rethrow();
}

}  // namespace edk
