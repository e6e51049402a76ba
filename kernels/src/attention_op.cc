#include "attention_op.h"

#include <utility>
#include <vector>

#include "custom_ops.h"

namespace edk {
namespace {

enum {
  kQkv, kPositions, kParents, kSequences, kCos, kSin, kKCache, kVCache, kLayerGates, kSinks, kSources,
  kDistanceBias, kKeyOffsets
};
constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxHeadSize = 1 << 12;
enum { kPast, kRows, kNodes, kFirstPanel, kPanels, kSequenceFields };
constexpr int64_t kMaxPast = int64_t{1} << 31;  // far from where positions overflow
constexpr int64_t kMorePanels = -1;             // instead of committed tokens

/// Fails unless low(i) <= values[i] < high(i) for all i in [0, n).
template <class Bound>
void expect_range(const char* name, const int64_t* values, int64_t n, int64_t low, Bound high) {
  for (int64_t i = 0; i < n; ++i) {
    if (values[i] >= low && values[i] < high(i)) continue;
    fail("%s[%lld] is %lld, expected %lld to %lld", name, static_cast<long long>(i),
         static_cast<long long>(values[i]), static_cast<long long>(low),
         static_cast<long long>(high(i) - 1));
  }
}

Scoring read_scoring(const Node& node) {
  Scoring scoring;
  for (auto [name, to] : {std::pair{"scale", &scoring.scale}, {"softcap", &scoring.softcap}}) {
    *to = node.number_or(name, 0);
    if (!(*to >= 0 && *to < 1e30f)) fail("attribute %s is %g, expected 0 or more", name, *to);
  }
  scoring.window = node.integer_or("window", 0);
  if (scoring.window < 0) {
    fail("attribute window is %lld, expected 0 or more", static_cast<long long>(scoring.window));
  }
  return scoring;
}

/// Fails unless the position of each row is its place in its own sequence.
void expect_places(const AttentionArgs& args) {
  thread_local std::vector<int64_t> depths;
  depths.resize(static_cast<size_t>(args.known + args.rows));
  for (int64_t i = 0; i < args.known + args.rows; ++i) {
    const auto at = static_cast<size_t>(i);
    depths[at] = args.parents[i] < 0 ? 0 : depths[static_cast<size_t>(args.parents[i])] + 1;
    const int64_t r = i - args.known, place = args.past + (args.sees_all ? i : depths[at]);
    if (r < 0 || args.positions[r] == place) continue;
    fail("position_ids[%lld] is %lld, expected %lld, its place in the text: key_offsets are given",
         static_cast<long long>(r), static_cast<long long>(args.positions[r]),
         static_cast<long long>(place));
  }
}

/// Rows of `sequences` that state where the panels of the first of n are.
int64_t count_runs(const int64_t* sequence, int64_t n) {
  int64_t runs = 1;
  for (; runs < n; ++runs) {
    const int64_t* row = sequence + runs * kSequenceFields;
    if (row[kPast] != kMorePanels) break;
    if (row[kRows] != 0 || row[kNodes] != 0) {
      fail("more panels of a sequence come with %lld rows and %lld nodes, expected 0",
           static_cast<long long>(row[kRows]), static_cast<long long>(row[kNodes]));
    }
  }
  return runs;
}

}  // namespace

AttentionOp::AttentionOp(const Node& node)
    : layer_gate_(node), layer_(node.integer("layer", 0, INT32_MAX)), cos_(node.constant(kCos)),
      sin_(node.constant(kSin)) {
  args_.n_heads = static_cast<int>(node.integer("n_heads", 1, kMaxHeads));
  args_.n_kv_heads = static_cast<int>(node.integer("n_kv_heads", 1, kMaxHeads));
  args_.head_size = static_cast<int>(node.integer("head_size", 2, kMaxHeadSize));
  if (args_.n_heads % args_.n_kv_heads != 0) {
    fail("n_heads %d is not a multiple of n_kv_heads %d", args_.n_heads, args_.n_kv_heads);
  }
  const int64_t kv_format = node.integer_or("kv_format", kKvFloat16);
  if (kv_format < 0 || kv_format >= kNumKvFormats) {
    fail("kv_format is %lld, expected 0 to %d", static_cast<long long>(kv_format),
         kNumKvFormats - 1);
  }
  args_.kv_format = static_cast<int>(kv_format);
  args_.scoring = read_scoring(node);
  args_.shares_kv = node.integer_or("shares_kv", 0) != 0;
  args_.sees_all = node.integer_or("sees_all", 0) != 0;
  args_.sees_source = node.integer_or("sees_source", 0) != 0;
  if (args_.sees_source && !args_.shares_kv) fail("sees_source needs shares_kv, which is 0");
  if (args_.head_size % 2 != 0) fail("head_size %d is odd, expected even", args_.head_size);
  for (size_t port : {kKCache, kVCache}) {
    if (node.constant(port).is_present()) {
      fail("%s is a constant, expected an input: it is written in place", kPorts[port].name);
    }
  }
}

void AttentionOp::compute(const Kernels& kernels, const Call& call) const {
  AttentionArgs all[kMaxSequences];
  KvRun runs[kMaxKvRuns];
  AttentionArgs args = args_;
  const Tensor qkv = call.input(kQkv), parents = call.input(kParents);
  const Tensor sequences = call.input(kSequences);
  const int64_t kv_heads = args.shares_kv ? 0 : args.n_kv_heads;
  const int64_t width = (int64_t{args.n_heads} + 2 * kv_heads) * args.head_size;
  qkv.expect_shape("qkv", {1, -1, width});
  call.input(kPositions).expect_shape("position_ids", {1, qkv.dims[1]});
  parents.expect_shape("parents", {1, -1});
  sequences.expect_shape("sequences", {-1, kSequenceFields});
  if (sequences.dims[0] > kMaxKvRuns) {
    fail("sequences are %lld, expected at most %lld", static_cast<long long>(sequences.dims[0]),
         static_cast<long long>(kMaxKvRuns));
  }
  const int64_t out_dims[] = {1, qkv.dims[1], int64_t{args.n_heads} * args.head_size};
  args.rows = qkv.dims[1];
  args.positions = call.input(kPositions).as<const int64_t>();
  set_tables(args, call);
  set_kv_cache(args, call);
  if (const Tensor sinks = call.input(kSinks); sinks.is_present()) {
    sinks.expect_shape("sinks", {args.n_heads});
    args.sinks = sinks.as<const float>();
  }
  set_distance_bias(args, call);
  set_key_offsets(args, call);
  const Tensor sources = call.input(kSources);
  if (sources.is_present()) sources.expect_shape("sources", {-1});
  args.qkv = qkv.as<const float>();
  args.parents = parents.as<const int64_t>();
  args.out = call.output(out_dims, 3);
  int64_t rows_left = qkv.dims[1], nodes_left = parents.dims[1], n = 0, n_stated = 0;
  for (int64_t i = 0, next; i < sequences.dims[0]; i = next) {
    const int64_t* sequence = sequences.as<const int64_t>() + i * kSequenceFields;
    next = i + count_runs(sequence, sequences.dims[0] - i);
    args.runs = runs + i;
    args.capacity = 0;
    for (int64_t j = i; j < next; ++j)
      args.capacity += set_run(args, sequence + (j - i) * kSequenceFields, &runs[j]);
    if (sources.is_present()) {
      if (n_stated == sources.dims[0]) {
        fail("sources are %lld, expected one for each sequence",
             static_cast<long long>(sources.dims[0]));
      }
      args.source = sources.as<const int64_t>()[n_stated++];
    }
    set_sequence(args, sequence);
    rows_left -= args.rows;
    nodes_left -= args.known + args.rows;
    if (rows_left < 0 || nodes_left < 0) break;
    expect_range("parents", args.parents, args.known + args.rows, -1, [](int64_t k) { return k; });
    if (args.key_offsets) expect_places(args);
    if (args.rows > 0) {
      if (n == kMaxSequences) {
        fail("more than %lld sequences have rows", static_cast<long long>(kMaxSequences));
      }
      all[n++] = args;
    }
    args.qkv += args.rows * width;
    args.positions += args.rows;
    args.parents += args.known + args.rows;
    args.out += args.rows * out_dims[2];
  }
  if (rows_left != 0 || nodes_left != 0) {
    fail("sequences have not as many rows and nodes as qkv and parents: %lld rows and %lld nodes "
         "are left over", static_cast<long long>(rows_left), static_cast<long long>(nodes_left));
  }
  if (n == 0 || !layer_gate_.is_open(call.input(kLayerGates))) return;
  all[0].n_sequences = n;
  kernels.attention(all[0], call);
}

int64_t AttentionOp::set_run(const AttentionArgs& args, const int64_t* stated, KvRun* run) const {
  const int64_t first = stated[kFirstPanel], panels = stated[kPanels];
  const int64_t all_panels = args.head_rows / kPanel;
  if (first < 0 || panels < 0 || first > all_panels || panels > all_panels - first) {
    fail("a sequence has %lld panels from panel %lld on, the KV cache has %lld",
         static_cast<long long>(panels), static_cast<long long>(first),
         static_cast<long long>(all_panels));
  }
  *run = {first, panels};
  return panels * kPanel;
}

void AttentionOp::set_sequence(AttentionArgs& args, const int64_t* sequence) const {
  args.past = sequence[kPast];
  args.rows = sequence[kRows];
  const int64_t nodes = sequence[kNodes], window = args.scoring.window;
  if (args.past < 0 || args.past > kMaxPast) {
    fail("a sequence has %lld committed tokens, expected 0 to %lld",
         static_cast<long long>(args.past), static_cast<long long>(kMaxPast));
  }
  if (args.source < 0 || args.source > args.past) {
    fail("a sequence has a source of %lld tokens, expected 0 to %lld",
         static_cast<long long>(args.source), static_cast<long long>(args.past));
  }
  if (args.rows < 0 || nodes < args.rows || nodes > kMaxPast) {
    fail("a sequence has %lld rows and %lld nodes, expected rows of 0 or more and as many nodes or "
         "more", static_cast<long long>(args.rows), static_cast<long long>(nodes));
  }
  args.known = nodes - args.rows;
  const bool has_ring = window > 0 && window <= args.past && !args.sees_all;
  const int64_t seen = has_ring ? window - 1 : args.past;
  if (seen > args.capacity - nodes) {
    fail("%lld committed tokens + %lld rows do not fit the KV cache of %lld rows",
         static_cast<long long>(args.past), static_cast<long long>(nodes),
         static_cast<long long>(args.capacity));
  }
}

void AttentionOp::set_distance_bias(AttentionArgs& args, const Call& call) const {
  const Tensor bias = call.input(kDistanceBias);
  if (!bias.is_present()) return;
  bias.expect_shape("distance_bias", {-1, args.n_heads});
  if (bias.dims[0] < 1) fail("distance_bias is empty, expected a row of distance 0 and maybe more");
  args.distance_bias = bias.as<const float>();
  args.n_distances = bias.dims[0];
}

void AttentionOp::set_key_offsets(AttentionArgs& args, const Call& call) const {
  const Tensor offsets = call.input(kKeyOffsets);
  if (!offsets.is_present()) return;
  offsets.expect_shape("key_offsets", {args.n_kv_heads, args.head_size});
  if (call.input(kSources).is_present()) fail("key_offsets come with sources, expected one of them");
  args.key_offsets = offsets.as<const float>();
}

void AttentionOp::set_tables(AttentionArgs& args, const Call& call) const {
  const Tensor cos = cos_.is_present() ? cos_ : call.input(kCos);
  const Tensor sin = sin_.is_present() ? sin_ : call.input(kSin);
  cos.expect_shape("cos", {-1, args.head_size / 2});
  sin.expect_shape("sin", {cos.dims[0], args.head_size / 2});
  args.cos = cos.as<const float>();
  args.sin = sin.as<const float>();
  const int64_t n_positions = cos.dims[0];
  args.n_positions = n_positions;
  expect_range("position_ids", args.positions, args.rows, 0,
               [n_positions](int64_t) { return n_positions; });
}

void AttentionOp::set_kv_cache(AttentionArgs& args, const Call& call) const {
  const Tensor k = call.input(kKCache), v = call.input(kVCache);
  check_kv_shapes(k, v);
  args.head_rows = k.dims[2] * kPanel;
  const int64_t blocks = layer_ * args.n_kv_heads * k.dims[2];
  args.k_cache = k.as<uint8_t>() + blocks * kv_key_bytes(args.kv_format, args.head_size);
  args.v_cache = v.as<uint8_t>() + blocks * kv_value_bytes(args.kv_format, args.head_size);
}

void AttentionOp::check_kv_shapes(const Tensor& k, const Tensor& v) const {
  const bool is_half = args_.kv_format == kKvFloat16;
  for (const auto& [name, tensor] : {std::pair{"k_cache", k}, std::pair{"v_cache", v}}) {
    tensor.expect_element(name, is_half ? kFloat16 : kUint8, is_half ? "float16" : "uint8");
  }
  const int64_t row = is_half ? args_.head_size : kv_value_bytes(args_.kv_format, args_.head_size);
  v.expect_shape("v_cache", {-1, args_.n_kv_heads, -1, row});
  if (layer_ >= v.dims[0]) {
    fail("layer is %lld, but the KV cache has %lld layers", static_cast<long long>(layer_),
         static_cast<long long>(v.dims[0]));
  }
  if (!is_half) {
    const int64_t block = kv_key_bytes(args_.kv_format, args_.head_size);
    return k.expect_shape("k_cache", {v.dims[0], v.dims[1], v.dims[2], block});
  }
  if (v.dims[2] % kPanel != 0) {
    fail("the KV cache has %lld rows, expected a multiple of %d", static_cast<long long>(v.dims[2]),
         kPanel);
  }
  k.expect_shape("k_cache",
                 {v.dims[0], v.dims[1], v.dims[2] / kPanel, args_.head_size, kPanel});
}

const Registration<AttentionOp> kAttentionRegistration;

}  // namespace edk
