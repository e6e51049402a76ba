// What an operator sees of the runtime that calls it: checked tensors, attributes and threads.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace edk {

/// A failed check. Becomes the runtime's own kind of error at the boundary and never crosses it.
class OpError : public std::exception {
 public:
  explicit OpError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Throws an OpError with a printf-formatted text: what was got, what was expected.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

/// The kernels in force; fails if there are none.
const Kernels& usable_kernels();

constexpr int kMaxRank = 8;

/// Element types, numbered as ONNX does.
enum Element { kAny = 0, kFloat = 1, kUint8 = 2, kInt64 = 7, kFloat16 = 10 };

/// A borrowed tensor; `data` is null and `rank` is -1 when an optional input is absent.
struct Tensor {
  void* data = nullptr;
  int element = kAny;
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

/// A node of the graph while its operator is made.
class Node {
 public:
  virtual ~Node() = default;

  int64_t integer(const char* name, int64_t low, int64_t high) const;
  int64_t integer_or(const char* name, int64_t fallback) const;  // for one that may be missing
  std::vector<int64_t> integers(const char* name) const;
  float number(const char* name) const;
  float number_or(const char* name, float fallback) const;  // for one that may be missing

  /// The value of input `index` if it is a constant of the graph; absent otherwise.
  virtual Tensor constant(size_t index) const = 0;

 protected:
  /// These set `value` to an attribute; false if it is missing or of another type.
  virtual bool find(const char* name, int64_t& value) const = 0;
  virtual bool find(const char* name, float& value) const = 0;
  virtual bool find(const char* name, std::vector<int64_t>& values) const = 0;
};

/// One call of an operator, with the threads it may use.
class Call : public Parallel {
 public:
  /// Input `index`; absent if the node leaves it out.
  virtual Tensor input(size_t index) const = 0;

  /// Memory of output `index` in the given shape.
  template <class T = float>
  T* output(const int64_t* dims, int rank, size_t index = 0) const {
    return static_cast<T*>(output_data(index, dims, rank));
  }

 private:
  virtual void* output_data(size_t index, const int64_t* dims, int rank) const = 0;
};

constexpr int kRequired = 0, kOptional = 1;

/// One input of an operator.
struct Port {
  const char* name;
  int element;
  int presence;
};

}  // namespace edk
