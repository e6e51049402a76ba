#include "op_support.h"

#include <cstdarg>
#include <cstdio>

namespace edk {
namespace {

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

const Kernels& usable_kernels() {
  const char* why = nullptr;
  const Kernels* kernels = active_kernels(&why);
  if (kernels == nullptr) fail("no usable instruction set: %s", why);
  return *kernels;
}

int64_t Node::integer(const char* name, int64_t low, int64_t high) const {
  int64_t value = 0;
  if (!find(name, value)) fail("attribute %s is missing or not an integer", name);
  if (value < low || value > high) {
    fail("attribute %s is %lld, expected %lld to %lld", name, static_cast<long long>(value),
         static_cast<long long>(low), static_cast<long long>(high));
  }
  return value;
}

int64_t Node::integer_or(const char* name, int64_t fallback) const {
  int64_t value = fallback;
  return find(name, value) ? value : fallback;
}

std::vector<int64_t> Node::integers(const char* name) const {
  std::vector<int64_t> values;
  if (!find(name, values)) fail("attribute %s is missing or not a list of integers", name);
  return values;
}

float Node::number(const char* name) const {
  float value = 0;
  if (!find(name, value)) fail("attribute %s is missing or not a float", name);
  return value;
}

float Node::number_or(const char* name, float fallback) const {
  float value = fallback;
  return find(name, value) ? value : fallback;
}

}  // namespace edk
