#include "ort_support.h"

#include <cstdarg>
#include <cstdio>

#include "first_error.h"

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
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(ort, ort.get_tensor_type_and_shape(value, &info), "describe a tensor");
  size_t rank = 0;
  OrtStatus* status = ort.get_tensor_element_type(info, &tensor.element);
  if (status == nullptr) status = ort.get_dimensions_count(info, &rank);
  if (status == nullptr && rank <= kMaxRank) status = ort.get_dimensions(info, tensor.dims, rank);
  ort.release_tensor_type_and_shape(info);
  check(ort, status, "tell type and shape of a tensor");
  if (rank > kMaxRank) fail("got a tensor of rank %zu, expected at most %d", rank, kMaxRank);
  tensor.rank = static_cast<int>(rank);
  // The interface has no read-only access; only the KV cache is ever written through this.
  check(ort, ort.get_tensor_mutable_data(const_cast<OrtValue*>(value), &tensor.data),
        "give access to a tensor");
  return tensor;
}

std::string join(const int64_t* dims, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i) text += ", ";
    text += dims[i] < 0 ? "any" : std::to_string(dims[i]);
  }
  return text + "]";
}

}  // namespace

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw OpError(text);
}

int64_t Tensor::n_elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dims[i];
  return n;
}

std::string Tensor::shape() const {
  return is_present() ? join(dims, static_cast<size_t>(rank)) : "absent";
}

void Tensor::expect_shape(const char* name, std::initializer_list<int64_t> expected) const {
  bool is_equal = rank == static_cast<int>(expected.size());
  int i = 0;
  for (auto want = expected.begin(); is_equal && want != expected.end(); ++want, ++i) {
    is_equal = *want < 0 || *want == dims[i];
  }
  if (is_equal) return;
  fail("%s has shape %s, expected %s", name, shape().c_str(),
       join(expected.begin(), expected.size()).c_str());
}

void Tensor::expect_element(const char* name, int expected, const char* expected_name) const {
  if (element == expected) return;
  fail("%s has elements of ONNX type %d, expected %s", name, element, expected_name);
}

int64_t Node::integer(const char* name, int64_t low, int64_t high) const {
  int64_t value = 0;
  if (OrtStatus* status = ort_.get_attribute_int64(info_, name, &value)) {
    ort_.release_status(status);
    fail("attribute %s is missing or not an integer", name);
  }
  if (value < low || value > high) {
    fail("attribute %s is %lld, expected %lld to %lld", name, static_cast<long long>(value),
         static_cast<long long>(low), static_cast<long long>(high));
  }
  return value;
}

int64_t Node::integer_or(const char* name, int64_t fallback) const {
  int64_t value = fallback;
  OrtStatus* status = ort_.get_attribute_int64(info_, name, &value);
  if (status == nullptr) return value;
  ort_.release_status(status);
  return fallback;
}

std::vector<int64_t> Node::integers(const char* name) const {
  size_t n = 0;
  OrtStatus* status = ort_.get_attribute_int64s(info_, name, nullptr, &n);
  std::vector<int64_t> values(status == nullptr ? n : 0);
  if (status == nullptr && n > 0) {
    status = ort_.get_attribute_int64s(info_, name, values.data(), &n);
  }
  if (status != nullptr) {
    ort_.release_status(status);
    fail("attribute %s is missing or not a list of integers", name);
  }
  return values;
}

float Node::number(const char* name) const {
  float value = 0;
  if (OrtStatus* status = ort_.get_attribute_float(info_, name, &value)) {
    ort_.release_status(status);
    fail("attribute %s is missing or not a float", name);
  }
  return value;
}

float Node::number_or(const char* name, float fallback) const {
  float value = 0;
  OrtStatus* status = ort_.get_attribute_float(info_, name, &value);
  if (status == nullptr) return value;
  ort_.release_status(status);
  return fallback;
}

Tensor Node::constant(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(ort_, ort_.get_constant_input(info_, index, &is_constant, &value), "look up a constant");
  return is_constant ? read_tensor(ort_, value) : Tensor{};
}

Tensor Call::input(size_t index) const {
  const OrtValue* value = nullptr;
  check(ort_, ort_.get_input(context_, index, &value), "give access to an input");
  return read_tensor(ort_, value);
}

void* Call::output_data(size_t index, const int64_t* dims, int rank) const {
  OrtValue* value = nullptr;
  void* data = nullptr;
  check(ort_, ort_.get_output(context_, index, dims, static_cast<size_t>(rank), &value),
        "allocate an output");
  check(ort_, ort_.get_tensor_mutable_data(value, &data), "give access to an output");
  return data;
}

void Call::run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const {
  if (n == 1) return fn(user, 0);
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
