#include <utility>

#include "custom_ops.h"
#include "recurrent_pass.h"

namespace edk {
namespace {

/// StateSpace(x float [1, T, C], gates float [1, T, H or 2H], parents int64 [1, P], past int64 [1],
/// place int64 [4], kept float [L, Q, C + gates], states float [L, S, state_floats], weight float
/// [C, 1, K], bias? float [C], a_log float [H], dt_bias float [H], skip? float [H])
///   -> float [1, T, H * head_size]: see StateSpaceArgs. kept and states are written in place. place:
/// base; the entry of states to read, -1 for none; the node to write, and the entry, -1 for none.
/// Attributes: layer, delta (0 or 1), tiled (0 or 1), n_heads, n_groups, head_size, state_size.
class StateSpaceOp {
 public:
  static constexpr const char* kName = "StateSpace";
  static constexpr Port kPorts[] = {
      {"x", kFloat, kRequired},      {"gates", kFloat, kRequired},
      {"parents", kInt64, kRequired}, {"past", kInt64, kRequired},
      {"place", kInt64, kRequired},  {"kept", kFloat, kRequired},
      {"states", kFloat, kRequired}, {"weight", kFloat, kRequired},
      {"bias", kFloat, kOptional},   {"a_log", kFloat, kRequired},
      {"dt_bias", kFloat, kRequired}, {"skip", kFloat, kOptional},
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit StateSpaceOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  enum {
    kX, kGates, kParents, kPast, kPlace, kKept, kStates, kWeight, kBias, kALog, kDtBias, kSkip
  };

  void set_weights(StateSpaceArgs& args, const Call& call) const;
  void set_states(StateSpaceArgs& args, const Tensor& states, const int64_t* place) const;

  StateSpaceArgs args_;  // the attributes
  int64_t layer_;
};

constexpr int64_t kMaxSize = 1 << 16;

StateSpaceOp::StateSpaceOp(const Node& node) : layer_(node.integer("layer", 0, INT32_MAX)) {
  args_.is_delta = node.integer("delta", 0, 1) == 1;
  args_.is_tiled = node.integer("tiled", 0, 1) == 1;
  args_.n_heads = node.integer("n_heads", 1, kMaxSize);
  args_.n_groups = node.integer("n_groups", 1, kMaxSize);
  args_.head_size = node.integer("head_size", 1, kMaxSize);
  args_.state_size = node.integer("state_size", 1, kMaxSize);
  if (args_.n_heads % args_.n_groups != 0) {
    fail("n_heads %lld is not a multiple of n_groups %lld", static_cast<long long>(args_.n_heads),
         static_cast<long long>(args_.n_groups));
  }
  args_.channels = args_.n_heads * args_.head_size + 2 * args_.n_groups * args_.state_size;
  for (auto [port, name] : {std::pair{kKept, "kept"}, {kStates, "states"}}) {
    if (node.constant(port).is_present()) {
      fail("%s is a constant, expected an input: it is written in place", name);
    }
  }
}

void StateSpaceOp::compute(const Kernels& kernels, const Call& call) const {
  StateSpaceArgs args = args_;
  const Tensor x = call.input(kX), gates = call.input(kGates), kept = call.input(kKept);
  const Tensor place = call.input(kPlace);
  const int64_t n_gates = (args.is_delta ? 2 : 1) * args.n_heads;
  set_weights(args, call);
  x.expect_shape("x", {1, -1, args.channels});
  gates.expect_shape("gates", {1, x.dims[1], n_gates});
  place.expect_shape("place", {4});
  const RecurrentPass pass(call.input(kParents), call.input(kPast), x.dims[1]);
  const int64_t* numbers = place.as<const int64_t>();
  args.base = numbers[0];
  if (args.base < 0 || args.base > pass.past) {
    fail("place[0] is %lld, expected 0 to %lld", static_cast<long long>(args.base),
         static_cast<long long>(pass.past));
  }
  args.kept = pass.kept_rows(kept, layer_, args.channels + n_gates, args.size, args.base);
  args.n_kept = kept.dims[1];
  args.x = x.as<const float>();
  args.gates = gates.as<const float>();
  args.parents = pass.parents;
  args.past = pass.past;
  args.known = pass.known;
  args.rows = pass.rows;
  set_states(args, call.input(kStates), numbers);
  const int64_t dims[] = {1, args.rows, args.n_heads * args.head_size};
  args.out = call.output(dims, 3);
  kernels.state_space(args, call);
}

void StateSpaceOp::set_weights(StateSpaceArgs& args, const Call& call) const {
  const Tensor weight = call.input(kWeight), bias = call.input(kBias), skip = call.input(kSkip);
  weight.expect_shape("weight", {args.channels, 1, -1});
  args.size = weight.dims[2];
  if (args.size < 1 || args.size > kMaxConvSize) {
    fail("weight has shape %s, expected a size of 1 to %lld", weight.shape().c_str(),
         static_cast<long long>(kMaxConvSize));
  }
  if (bias.is_present()) bias.expect_shape("bias", {args.channels});
  if (skip.is_present()) skip.expect_shape("skip", {args.n_heads});
  call.input(kALog).expect_shape("a_log", {args.n_heads});
  call.input(kDtBias).expect_shape("dt_bias", {args.n_heads});
  args.weight = weight.as<const float>();
  args.bias = bias.as<const float>();
  args.skip = skip.as<const float>();
  args.a_log = call.input(kALog).as<const float>();
  args.dt_bias = call.input(kDtBias).as<const float>();
}

void StateSpaceOp::set_states(StateSpaceArgs& args, const Tensor& states,
                              const int64_t* place) const {
  const int64_t floats = state_floats(args.n_heads, args.head_size, args.state_size);
  states.expect_shape("states", {-1, -1, floats});
  const int64_t read = place[1], write = place[3], n = states.dims[1];
  if (layer_ >= states.dims[0]) {
    fail("layer is %lld, but states has %lld layers", static_cast<long long>(layer_),
         static_cast<long long>(states.dims[0]));
  }
  for (const int64_t entry : {read, write}) {
    if (entry >= -1 && entry < n && (entry < 0 || read != write)) continue;
    fail("place reads entry %lld and writes entry %lld of %lld states, expected two different ones",
         static_cast<long long>(read), static_cast<long long>(write), static_cast<long long>(n));
  }
  if (read < 0 && args.base > 0) {
    fail("place[0] is %lld, expected 0 where no state is read", static_cast<long long>(args.base));
  }
  float* own = states.as<float>() + layer_ * n * floats;
  args.read = read < 0 ? nullptr : own + read * floats;
  args.write = write < 0 ? nullptr : own + write * floats;
  args.write_node = place[2];
}

const Registration<StateSpaceOp> kStateSpaceRegistration;

}  // namespace
}  // namespace edk
