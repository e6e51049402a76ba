#pragma once

#include "layer_gate.h"

namespace edk {

/// Attention over the committed prefix and the ancestors within the pass; see AttentionArgs.
/// k_cache and v_cache are written in place: float16 [L, Hkv, C/16, d, 16] and [L, Hkv, C, d], or,
/// with kv_format 1 (int8) or 2 (K5V4), both uint8 [L, Hkv, C/16, bytes of a block].
/// A row of `sequences` says of one sequence: committed tokens, rows of qkv, nodes of parents, the
/// first panel of 16 rows of the caches where it lies, and how many follow. A row of -1, 0, 0 states
/// more panels of the sequence before it. Rows and nodes of sequences follow one another; parents
/// count from the sequence's first node. A panel that several sequences have in common holds
/// committed tokens of all of them. A sequence may have fewer rows of the caches than its text is
/// long if the node has a window. A head's sink is a score that counts in the softmax of each row and
/// has no value. With shares_kv the rows' keys and values are in the caches already, where another
/// layer's node of the same pass wrote them, and qkv is [1, T, H * d].
/// Each of `sources` is the number of a sequence's first tokens that are no part of what its rows see;
/// with sees_source they see these alone. Scores of keys that lie i positions behind get row i of
/// `distance_bias`, or its last. Keys are kept without `key_offsets`, see key_offsets.h: every node of the
/// same keys has the same, and position_ids are places in a text. Attributes: layer (among those of the
/// caches), n_heads,
/// n_kv_heads, head_size, kv_format? (0), shares_kv? (0), sees_source? (0), scale?, softcap?, window? (see Scoring), gate_index? (see
/// LayerGate).
class AttentionOp {
 public:
  static constexpr const char* kName = "Attention";
  static constexpr Port kPorts[] = {
      {"qkv", kFloat, kRequired},       // [1, T, (H + 2 Hkv) * d]
      {"position_ids", kInt64, kRequired},  // [1, T]
      {"parents", kInt64, kRequired},       // [1, P]: P - T nodes of earlier passes, T rows
      {"sequences", kInt64, kRequired},     // [S, 5]
      {"cos", kFloat, kRequired},           // [positions, d / 2]
      {"sin", kFloat, kRequired},           // [positions, d / 2]
      {"k_cache", kAny, kRequired},         {"v_cache", kAny, kRequired},
      LayerGate::kPort,                     {"sinks", kFloat, kOptional},  // [H]
      {"sources", kInt64, kOptional},                 // [sequences]
      {"distance_bias", kFloat, kOptional},           // [n, H]
      {"key_offsets", kFloat, kOptional},             // [Hkv, d]
  };
  static constexpr int kOutputs[] = {kFloat};

  explicit AttentionOp(const Node& node);
  void compute(const Kernels& kernels, const Call& call) const;

 private:
  void set_tables(AttentionArgs& args, const Call& call) const;
  void set_kv_cache(AttentionArgs& args, const Call& call) const;
  void set_sequence(AttentionArgs& args, const int64_t* sequence) const;
  void set_distance_bias(AttentionArgs& args, const Call& call) const;
  void set_key_offsets(AttentionArgs& args, const Call& call) const;
  int64_t set_run(const AttentionArgs& args, const int64_t* stated, KvRun* run) const;
  void check_kv_shapes(const Tensor& k, const Tensor& v) const;

  LayerGate layer_gate_;
  AttentionArgs args_;  // the attributes
  int64_t layer_;
  Tensor cos_, sin_;  // present if constant
};

}  // namespace edk
