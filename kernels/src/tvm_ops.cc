// The door through which programs that TVM compiled find the operators.
#include "tvm_ops.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "export.h"
#include "shared_object.h"
#include "tvm_abi.h"

namespace edk {

std::map<std::string, MakeListedOp>& listed_ops() {
  static std::map<std::string, MakeListedOp> ops;
  return ops;
}

namespace {

constexpr size_t kMaxPorts = 10;

std::vector<int64_t> read_integers(const std::string& text) {
  std::vector<int64_t> values;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stoll(item));
  return values;
}

int64_t element_bytes(int element) {
  switch (element) {
    case kFloat: return 4;
    case kUint8: return 1;
    default: fail("a constant of element type %d, expected floats or bytes", element);
  }
}

/// A node with what its calls need.
struct Entry {
  std::string name;
  std::unique_ptr<ListedOp> op;
  std::vector<int64_t> inputs;   // port of each argument that is no output
  std::vector<Tensor> constants;  // by port
};

/// The nodes of one graph, over its weights.
struct Program {
  const Kernels& kernels;
  std::vector<Entry> entries;
};

Entry make_entry(const std::string& line, Weights weights) {
  const ListedNode node(line, weights);
  const auto found = listed_ops().find(node.name());
  if (found == listed_ops().end()) fail("there is no operator %s", node.name().c_str());
  try {
    std::vector<Tensor> constants;
    for (size_t port = 0; port < kMaxPorts; ++port) constants.push_back(node.constant(port));
    return {node.name(), found->second(node), node.integers("inputs"), std::move(constants)};
  } catch (const OpError& error) {
    fail("%s: %s", node.name().c_str(), error.what());
  }
}

/// What this thread's pass runs on.
thread_local const Program* current_program = nullptr;

int element_of(const TvmDataType& type) {
  if (type.lanes != 1) return kAny;
  if (type.code == kTvmCodeFloat) return type.bits == 32 ? kFloat : type.bits == 16 ? kFloat16 : kAny;
  if (type.code == kTvmCodeInt && type.bits == 64) return kInt64;
  return type.code == kTvmCodeUint && type.bits == 8 ? kUint8 : kAny;
}

Tensor read_tensor(const TvmAny& argument) {
  const TvmTensor* from = nullptr;
  if (argument.type_index == kTvmTensorPointer) {
    from = static_cast<const TvmTensor*>(argument.pointer);
  } else if (argument.type_index == kTvmTensorObject) {
    from = &static_cast<const TvmTensorObject*>(argument.pointer)->tensor;
  } else {
    fail("got an argument of TVM's type %d, expected a tensor", argument.type_index);
  }
  if (from->rank < 0 || from->rank > kMaxRank) {
    fail("got a tensor of rank %d, expected at most %d", from->rank, kMaxRank);
  }
  Tensor tensor;
  tensor.data = static_cast<uint8_t*>(from->data) + from->byte_offset;
  tensor.element = element_of(from->type);
  tensor.rank = from->rank;
  std::copy_n(from->dims, from->rank, tensor.dims);
  return tensor;
}

/// One call of edgedec.run.
class ProgramCall : public Call {
 public:
  ProgramCall(const Entry& entry, const Pool& pool, const TvmAny* args, size_t n_args)
      : entry_(entry), pool_(pool), args_(args), n_args_(n_args) {}

  Tensor input(size_t index) const override {
    const auto& ports = entry_.inputs;
    const auto found = std::find(ports.begin(), ports.end(), static_cast<int64_t>(index));
    if (found == ports.end()) return index < kMaxPorts ? entry_.constants[index] : Tensor{};
    return argument(static_cast<size_t>(found - ports.begin()));
  }

  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override {
    pool_.run(n, fn, user);
  }

  void announce(const Reading& now) const override { pool_.announce(now); }

 private:
  Tensor argument(size_t index) const {
    if (index >= n_args_) fail("got %zu arguments, expected more than %zu", n_args_, index);
    return read_tensor(args_[index]);
  }

  void* output_data(size_t index, const int64_t* dims, int rank) const override {
    const Tensor tensor = argument(entry_.inputs.size() + index);
    if (tensor.rank != rank || !std::equal(dims, dims + rank, tensor.dims)) {
      Tensor wanted;
      wanted.rank = rank;
      std::copy_n(dims, rank, wanted.dims);
      fail("output %zu has shape %s, expected %s", index, tensor.shape().c_str(),
           wanted.shape().c_str());
    }
    return tensor.data;
  }

  const Entry& entry_;
  const Pool& pool_;
  const TvmAny* args_;
  size_t n_args_;
};

TvmFunctions tvm;

/// edgedec.run(node, inputs..., outputs...).
int run_node(void*, const TvmAny* args, int32_t n_args, TvmAny* result) {
  const char* name = "run";
  std::string text;
  try {
    if (current_program == nullptr) fail("there is no pass under way");
    const auto& entries = current_program->entries;
    if (n_args < 1 || args[0].type_index != kTvmInt || args[0].integer < 0 ||
        args[0].integer >= static_cast<int64_t>(entries.size())) {
      fail("the first argument is no number of a node, of which there are %zu", entries.size());
    }
    const Entry& entry = entries[static_cast<size_t>(args[0].integer)];
    name = entry.name.c_str();
    pool_of_pass->check_not_stopped();
    const ProgramCall call(entry, *pool_of_pass, args + 1, static_cast<size_t>(n_args) - 1);
    entry.op->compute(current_program->kernels, call);
    result->type_index = kTvmNone;
    result->integer = 0;
    return 0;
  } catch (const std::exception& error) {
    text = error.what();
  }
  tvm.raise("RuntimeError", ("edgedec." + std::string(name) + ": " + text).c_str());
  return -1;
}

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(find_symbol(library, name));
  return function != nullptr;
}

}  // namespace

ListedNode::ListedNode(const std::string& line, Weights weights) : weights_(weights) {
  std::istringstream stream(line);
  stream >> name_;
  for (std::string item; stream >> item;) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) fail("%s is no attribute", item.c_str());
    values_[item.substr(0, equals)] = item.substr(equals + 1);
  }
}

Tensor ListedNode::constant(size_t index) const {
  std::vector<int64_t> place;
  if (!find(("constant." + std::to_string(index)).c_str(), place)) return {};
  if (place.size() < 2 || place.size() > 2 + kMaxRank) fail("constant %zu has no place", index);
  Tensor tensor;
  tensor.element = static_cast<int>(place[0]);
  tensor.rank = static_cast<int>(place.size()) - 2;
  std::copy(place.begin() + 2, place.end(), tensor.dims);
  // Divided rather than multiplied, so that no product overflows.
  int64_t left = (weights_.n_bytes - place[1]) / element_bytes(tensor.element);
  bool fits = place[1] >= 0 && place[1] <= weights_.n_bytes;
  for (int i = 0; fits && i < tensor.rank; ++i) {
    fits = tensor.dims[i] > 0 && tensor.dims[i] <= left;
    if (fits) left /= tensor.dims[i];
  }
  if (!fits) {
    fail("constant %zu, %s at byte %lld, lies outside the %lld bytes of weights", index,
         tensor.shape().c_str(), static_cast<long long>(place[1]),
         static_cast<long long>(weights_.n_bytes));
  }
  tensor.data = const_cast<uint8_t*>(weights_.data) + place[1];  // operators read constants only
  return tensor;
}

bool ListedNode::find(const char* name, int64_t& value) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return false;
  value = std::stoll(found->second);
  return true;
}

bool ListedNode::find(const char* name, float& value) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return false;
  value = std::strtof(found->second.c_str(), nullptr);
  return true;
}

bool ListedNode::find(const char* name, std::vector<int64_t>& values) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return false;
  values = read_integers(found->second);
  return true;
}

}  // namespace edk

/// Makes edgedec.run known to the TVM-FFI library that `dlopen` gave; 0 if it is not one.
EDGEDEC_EXPORT int edgedec_tvm_register(void* library) {
  using edk::tvm;
  if (!edk::look_up(library, "TVMFFIFunctionCreate", tvm.create_function) ||
      !edk::look_up(library, "TVMFFIFunctionSetGlobal", tvm.set_global) ||
      !edk::look_up(library, "TVMFFIObjectDecRef", tvm.release) ||
      !edk::look_up(library, "TVMFFIErrorSetRaisedFromCStr", tvm.raise)) {
    return 0;
  }
  void* function = nullptr;
  if (tvm.create_function(nullptr, edk::run_node, nullptr, &function) != 0) return 0;
  const TvmBytes name = {"edgedec.run", 11};
  const int failed = tvm.set_global(&name, function, 1);
  tvm.release(function);
  return failed == 0;
}

/// The nodes of `list` over their weights, which have to outlive them. Null, with a text in `why`
/// [n_why], if they cannot be made.
EDGEDEC_EXPORT void* edgedec_program_open(const char* list, const uint8_t* weights,
                                          int64_t n_bytes, char* why, int64_t n_why) {
  try {
    auto program = std::make_unique<edk::Program>(edk::Program{edk::usable_kernels(), {}});
    std::istringstream stream(list);
    for (std::string line; std::getline(stream, line);) {
      program->entries.push_back(edk::make_entry(line, {weights, n_bytes}));
    }
    return program.release();
  } catch (const std::exception& error) {
    std::snprintf(why, static_cast<size_t>(n_why), "%s", error.what());
    return nullptr;
  }
}

EDGEDEC_EXPORT void edgedec_program_close(void* program) {
  delete static_cast<edk::Program*>(program);
}

/// Threads for passes; see Pool. processors [n_processors] may be empty. Null without memory or threads.
EDGEDEC_EXPORT void* edgedec_pool_open(int n_threads, const int* processors, int n_processors) {
  try {
    return new edk::Pool(n_threads, std::vector<int>(processors, processors + n_processors));
  } catch (const std::exception&) {
    return nullptr;
  }
}

EDGEDEC_EXPORT void edgedec_pool_close(void* pool) {
  if (edk::pool_of_pass == pool) edk::pool_of_pass = nullptr;
  delete static_cast<edk::Pool*>(pool);
}

/// Wakes the threads of `pool` for a pass that is about to begin. Called from any thread.
EDGEDEC_EXPORT void edgedec_pool_wake(void* pool) { static_cast<edk::Pool*>(pool)->wake(); }

/// From here to `edgedec_pass_end`, operators that this thread calls run on `pool`, and its calls of
/// edgedec.run are for `program`, which is null where ONNX Runtime calls the operators.
EDGEDEC_EXPORT void edgedec_pass_begin(const void* program, void* pool) {
  auto* threads = static_cast<edk::Pool*>(pool);
  edk::current_program = static_cast<const edk::Program*>(program);
  edk::pool_of_pass = threads;
  threads->begin_pass();
}

EDGEDEC_EXPORT void edgedec_pass_end(void* pool) {
  edk::current_program = nullptr;
  edk::pool_of_pass = nullptr;
  static_cast<edk::Pool*>(pool)->end_pass();
}

/// Ends the pass that runs on `pool`, between two nodes. Called from any thread.
EDGEDEC_EXPORT void edgedec_pass_stop(void* pool) { static_cast<edk::Pool*>(pool)->stop(); }
