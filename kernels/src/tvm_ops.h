// From a class to an operator of a program that TVM compiled. Such a program calls one function,
// edgedec.run(node, inputs..., outputs...), and its nodes are listed as text, one a line:
//
//   NAME key=value ...
//
// Keys: inputs, the ports that the arguments are for; constant.PORT, element type, offset into the
// weights and sizes; and the operator's attributes, lists with commas, floats in hexadecimal.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "op_support.h"
#include "pool.h"

namespace edk {

/// The weights that constants lie in.
struct Weights {
  const uint8_t* data = nullptr;
  int64_t n_bytes = 0;
};

/// One line of the list.
class ListedNode : public Node {
 public:
  ListedNode(const std::string& line, Weights weights);

  const std::string& name() const { return name_; }
  Tensor constant(size_t index) const override;

 protected:
  bool find(const char* name, int64_t& value) const override;
  bool find(const char* name, float& value) const override;
  bool find(const char* name, std::vector<int64_t>& values) const override;

 private:
  std::string name_;
  std::map<std::string, std::string> values_;
  Weights weights_;
};

/// An operator of any class.
class ListedOp {
 public:
  virtual ~ListedOp() = default;
  virtual void compute(const Kernels& kernels, const Call& call) const = 0;
};

template <class Op>
class ListedOpOf : public ListedOp {
 public:
  explicit ListedOpOf(const Node& node) : op_(node) {}
  void compute(const Kernels& kernels, const Call& call) const override {
    op_.compute(kernels, call);
  }

 private:
  Op op_;
};

using MakeListedOp = std::unique_ptr<ListedOp> (*)(const Node& node);

/// The operators that were registered, by name.
std::map<std::string, MakeListedOp>& listed_ops();

template <class Op>
std::unique_ptr<ListedOp> make_listed_op(const Node& node) {
  return std::make_unique<ListedOpOf<Op>>(node);
}

}  // namespace edk
