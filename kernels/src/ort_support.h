// ONNX Runtime as the operators see it: checked tensors, attributes and threads.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "ort_abi.h"

namespace edk {

/// A failed check. Becomes an OrtStatus at the boundary and never crosses it.
class OpError : public std::exception {
 public:
  explicit OpError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Throws an OpError with a printf-formatted text: what was got, what was expected.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

constexpr int kMaxRank = 8;

/// A borrowed tensor; `data` is null and `rank` is -1 when an optional input is absent.
struct Tensor {
  void* data = nullptr;
  int element = 0;  // an OrtElement
  int rank = -1;
  int64_t dims[kMaxRank] = {};

  bool is_present() const { return rank >= 0; }
  int64_t n_elements() const;
  int64_t last_dim() const { return rank > 0 ? dims[rank - 1] : 1; }
  std::string shape() const;

  /// Fails unless the shape is `expected`; -1 stands for any size.
  void expect_shape(const char* name, std::initializer_list<int64_t> expected) const;

  /// Fails unless the elements are of type `expected`, called `expected_name`.
  void expect_element(const char* name, int expected, const char* expected_name) const;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// A node of the graph while its kernel is made.
class Node {
 public:
  Node(const OrtFunctions& ort, const OrtKernelInfo* info) : ort_(ort), info_(info) {}

  int64_t integer(const char* name, int64_t low, int64_t high) const;
  int64_t integer_or(const char* name, int64_t fallback) const;  // for one that may be missing
  std::vector<int64_t> integers(const char* name) const;
  float number(const char* name) const;
  float number_or(const char* name, float fallback) const;  // for one that may be missing

  /// The value of input `index` if it is a constant of the graph; absent otherwise.
  Tensor constant(size_t index) const;

 private:
  const OrtFunctions& ort_;
  const OrtKernelInfo* info_;
};

/// One call of a kernel; its threads are those of the session.
class Call : public Parallel {
 public:
  Call(const OrtFunctions& ort, OrtKernelContext* context) : ort_(ort), context_(context) {}

  /// Input `index`; absent if the node leaves it out.
  Tensor input(size_t index) const;

  /// Memory of output `index` in the given shape.
  template <class T = float>
  T* output(const int64_t* dims, int rank, size_t index = 0) const {
    return static_cast<T*>(output_data(index, dims, rank));
  }

  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override;

 private:
  void* output_data(size_t index, const int64_t* dims, int rank) const;

  const OrtFunctions& ort_;
  OrtKernelContext* context_;
};

/// One input of an operator.
struct Port {
  const char* name;
  int element;
  int presence;
};

}  // namespace edk
