// What the operators compute, free of any runtime: plain structs in, plain buffers out.
//
// Batch invariance: the result for one row never depends on the number of rows, on the other rows,
// on the thread count or on tiling, and is the same bit pattern on every ISA. Vector lanes are
// output channels or positions; every reduction runs in one fixed order; multiply-add is fused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edk {

constexpr int kPanel = 16;   // output channels side by side
constexpr int kGroup = 32;   // consecutive k that share an activation scale
constexpr int kSuper = 256;  // consecutive k that share a block header

constexpr int kMaxMatrices = 3;

/// Memory that the tasks of one operator read once each, in their order: spans one behind the other, or
/// side by side, as those of a gated pair.
struct Reading {
  const uint8_t* data[kMaxMatrices] = {};
  int64_t bytes[kMaxMatrices] = {};
  int n_spans = 0;  // 0: what is read is not known
  bool is_side_by_side = false;
};

/// Runs `fn(user, i)` for every i in [0, n), on however many threads it owns.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const = 0;

  /// Tells what the tasks of the operator that begins will read. Threads without work may fetch what
  /// followed it last time.
  virtual void announce(const Reading&) const {}
};

/// A packed matrix [n, k]; `packed` holds `packed_nbytes(format, n, k)` bytes.
struct Matrix {
  const uint8_t* packed = nullptr;
  const float* bias = nullptr;  // [n] or null
  int format = 0;               // index of the format table
  int64_t n = 0;
};

/// out[r] = concat_i(W_i h_r + b_i) + residual[r], or silu(W_0 h_r) * (W_1 h_r) when `gate`,
/// where h_r is x[r], or its RMS norm when `norm_weight` is given.
struct LinearArgs {
  const float* x = nullptr;  // [rows, k]
  int64_t rows = 0;
  int64_t k = 0;
  const float* norm_weight = nullptr;  // [k] or null
  float epsilon = 0;
  const float* residual = nullptr;  // [rows, n_out] or null
  Matrix matrices[kMaxMatrices];
  int n_matrices = 0;
  bool gate = false;
  float* out = nullptr;  // [rows, n_out]; may be the residual itself
};

/// out[r] = row ids[r] of `table`, as float.
struct EmbedArgs {
  const int64_t* ids = nullptr;  // [rows], each in [0, table.n)
  int64_t rows = 0;
  int64_t k = 0;
  Matrix table;
  float* out = nullptr;  // [rows, k]
};

/// How the KV cache holds a head's keys and values: blocks of 16 slots, one after the other.
///
/// float16: K block [head_size][16], V block [16][head_size].
/// int8: 16 float16 scales, one per slot, then codes in [-127, 127]: K block [head_size][16], V block
/// [16][head_size in whole vectors of 16]; both take as many bytes. Keys, and queries with them, are
/// first multiplied by an orthogonal matrix (kv_append.h), which leaves their products alone and
/// spreads channels far larger than the others, as trained models have them, over all.
/// K5V4: 16 such scales, then codes of kv_levels.h: 5 bits of a key, 4 of a value. A K block holds eight
/// channels after the other, fewer in the end. Byte 16 j + t of theirs has the sizes of channels 2 j, low,
/// and 2 j + 1 of slot t; bit c of the 16 bytes behind those is set where channel c is negative. Byte
/// 16 j + i of a row of a V block holds dimensions 32 j + i, low, and 32 j + 16 + i: [16][head_size in
/// whole runs of 32]. Values are multiplied by that matrix, too, and what attention makes of them, in
/// return, again.
enum KvFormat { kKvFloat16 = 0, kKvInt8 = 1, kKvK5V4 = 2 };
constexpr int kNumKvFormats = 3;

/// Bytes of a block of keys.
constexpr int64_t kv_key_bytes(int kv_format, int64_t head_size) {
  return kv_format == kKvFloat16 ? 2 * kPanel * head_size
         : kv_format == kKvInt8  ? 2 * kPanel + kPanel * ((head_size + 15) / 16 * 16)
                                 : 2 * kPanel + kPanel * (head_size / 2 + (head_size + 7) / 8);
}
/// Bytes of a block of values.
constexpr int64_t kv_value_bytes(int kv_format, int64_t head_size) {
  return kv_format == kKvK5V4 ? 2 * kPanel + kPanel * ((head_size + 31) / 32 * 16)
                              : kv_key_bytes(kv_format, head_size);
}

/// How a row weighs the positions of its own sequence.
struct Scoring {
  float scale = 0;     // of the products of query and keys; 0 for 1 / sqrt(head_size)
  float softcap = 0;   // bound c that a scaled product s bends towards, c tanh(s / c); 0 for none
  int64_t window = 0;  // positions that it sees, its own the last; with sees_all as many that begin
                       // with its own, too; 0 for all
};

/// Most sequences whose rows share a pass.
constexpr int64_t kMaxSequences = 64;

/// Panels of the caches that follow one another, in the order of a sequence's positions. Sequences
/// that begin alike may have panels in common, which nobody writes to then.
struct KvRun {
  int64_t first;   // panel of the caches
  int64_t panels;
};

/// Most runs of all sequences of a pass.
constexpr int64_t kMaxKvRuns = 256;

/// Rotates q and k, writes k and v into the caches, attends to the prefix and to ancestors, for the
/// rows of one sequence, or of several: the first of `n_sequences` that lie one after the other in
/// memory, which share attributes and shapes but for rows, nodes and past. Rows of one change nothing
/// in those of another.
///
/// The pending tree has `known` nodes whose keys and values earlier passes left behind the committed
/// ones; row r of this pass is node known + r. Node i takes the place of position past + i, and
/// position t lies at slot t modulo `capacity` of the caches: with a window they need to hold no more
/// than what the first row sees before itself, and the nodes.
struct AttentionArgs {
  const float* qkv = nullptr;          // [rows, (n_heads + 2 n_kv_heads) * head_size]; with shares_kv
                                       // queries alone: [rows, n_heads * head_size]
  const int64_t* positions = nullptr;  // [rows], each in [0, n_positions)
  const int64_t* parents = nullptr;    // [known + rows], each in [-1, node)
  int64_t rows = 0;
  int64_t known = 0;
  int64_t past = 0;            // rows of the caches already committed
  const float* cos = nullptr;  // [n_positions, head_size / 2]
  const float* sin = nullptr;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_size = 0;
  int kv_format = kKvFloat16;
  Scoring scoring;
  const KvRun* runs = nullptr;  // where the sequence's panels are
  int64_t capacity = 0;        // rows of all its panels
  int64_t head_rows = 0;       // from one head's cache to the next head's, a multiple of kPanel
  uint8_t* k_cache = nullptr;  // [n_kv_heads, head_rows / 16, kv_key_bytes], this layer
  uint8_t* v_cache = nullptr;  // [n_kv_heads, head_rows / 16, kv_value_bytes], this layer
  float* out = nullptr;        // [rows, n_heads * head_size]
  int64_t n_sequences = 1;
  const float* sinks = nullptr;  // [n_heads], a score of no position that counts in the softmax, or null
  bool shares_kv = false;  // the rows' keys and values are in the caches, another layer's, already
  bool sees_all = false;   // a row sees all nodes of its sequence, not its ancestors alone
  int64_t source = 0;      // first rows of the caches that are no part of the rows' own sequence: those
                           // of a text that an encoder has read, at most `past`
  bool sees_source = false;  // rows see these, all of them, and nothing else; with shares_kv
  const float* distance_bias = nullptr;  // [n_distances, n_heads], added to the score of a key so many
                                         // positions behind; the last one to all that are farther
  int64_t n_distances = 0;
  const float* key_offsets = nullptr;  // [n_kv_heads, head_size], or null: taken from keys before their
                                       // rotation; scores get back what that takes from them. The
                                       // position of a row is then its place in its own sequence
  int64_t n_positions = 0;  // rows of cos and sin, read with key_offsets alone
};

/// out[r] = qkv[r] with every head of queries and of keys RMS-normed; values are copied, or normed
/// without weights. Without KV heads there are queries alone.
struct HeadNormArgs {
  const float* qkv = nullptr;  // [rows, (n_heads + 2 n_kv_heads) * head_size]
  int64_t rows = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_size = 0;
  const float* q_weight = nullptr;  // [head_size]
  const float* k_weight = nullptr;  // [head_size]
  float epsilon = 0;
  float* out = nullptr;  // as qkv
  bool norms_values = false;
};

/// out[r] = residual[r] + sum_e w_e down_e (silu(gate_e h) * (up_e h)) over the `n_used` experts of the
/// largest logits, where h is x[r], or its RMS norm when `norm_weight` is given, and w_e the softmax of
/// the logits. Products get a bias where there is one. With a `limit` c the gated product is
/// min(gate, c) / (1 + e^(-1.702 min(gate, c))) * (1 + max(-c, min(up, c))).
///
/// A matrix holds that of every expert, [n, columns], one after the other; so does a bias [n].
struct ExpertsArgs {
  const float* x = nullptr;  // [rows, k]
  int64_t rows = 0;
  int64_t k = 0;
  const float* norm_weight = nullptr;  // [k] or null
  float epsilon = 0;
  const float* residual = nullptr;  // [rows, down.n] or null
  const float* router = nullptr;    // [rows, n_experts], logits
  int64_t n_experts = 0;
  int64_t n_used = 0;      // at most n_experts
  bool is_normed = false;  // the softmax is over the chosen ones alone
  Matrix gate;             // k columns
  Matrix up;               // k columns, n as gate
  Matrix down;             // gate.n columns
  float* out = nullptr;    // [rows, down.n]; may be the residual itself
  const float* gate_bias = nullptr;  // [n_experts, gate.n] or null
  const float* up_bias = nullptr;    // as gate_bias
  const float* down_bias = nullptr;  // [n_experts, down.n] or null
  float limit = 0;                   // 0: the gated product is as above
};

constexpr int64_t kMaxConvSize = 64;

/// out[r] = c[r] * (bias + sum_k weight[k] kept[tap k of r]) for each channel, where kept[r] = b[r] x[r]
/// and the taps of a row are its latest ancestors, itself the last; before the text begins they are 0.
/// Nodes and positions as in AttentionArgs; position t lies at row t modulo `n_kept`.
struct ShortConvArgs {
  const float* bcx = nullptr;        // [rows, 3 * channels]: b, c and x
  const int64_t* parents = nullptr;  // [known + rows], each in [-1, node)
  int64_t rows = 0;
  int64_t known = 0;
  int64_t past = 0;
  int64_t channels = 0;
  int64_t size = 0;               // taps, at most kMaxConvSize
  const float* weight = nullptr;  // [channels, size]
  const float* bias = nullptr;    // [channels] or null
  int64_t n_kept = 0;             // at least those that the first row reads before itself, and the nodes
  float* kept = nullptr;          // [n_kept, channels], this layer; written
  float* out = nullptr;           // [rows, channels]
};

/// Bytes of the states of all heads: blocks of 16 values of [state_size][16] floats, head by head.
constexpr int64_t state_floats(int64_t n_heads, int64_t head_size, int64_t state_size) {
  return n_heads * ((head_size + kPanel - 1) / kPanel) * state_size * kPanel;
}

/// Of each row's head the state S [state_size, head_size] and the output y, where q, k and v are the
/// head's channels after a causal convolution (as in ShortConvArgs, without gates) and silu:
///   Mamba-2:    s = softplus(g + dt_bias), S = e^(-e^a_log s) S' + k (s v)^T, y = q S + skip v
///   delta rule: b = sigmoid(g1), s = softplus(g2 + dt_bias), S'' = e^(-e^a_log s) S',
///               S = S'' + k (b (v - k S''))^T, y = q S, with k, q of length 1, q / sqrt(state_size)
/// where S' is the parent's. A head shares keys and queries with the others of its group, which are
/// n_groups apart if `is_tiled`, else beside each other. Channels are values, keys, queries, for the delta rule queries, keys, values. Rows are kept as x, then gates.
///
/// States begin with that of the first `base` committed tokens, zeros if `read` is null; the others are
/// replayed from their rows. That of node `write_node`, -1 for the last committed token, is written.
struct StateSpaceArgs {
  const float* x = nullptr;          // [rows, channels]
  const float* gates = nullptr;      // [rows, n_heads], of the delta rule [rows, 2 * n_heads]
  const int64_t* parents = nullptr;  // [known + rows], each in [-1, node)
  int64_t rows = 0;
  int64_t known = 0;
  int64_t past = 0;
  int64_t base = 0;  // at most past
  bool is_delta = false;
  bool is_tiled = false;
  int64_t n_heads = 0;
  int64_t n_groups = 0;
  int64_t head_size = 0;
  int64_t state_size = 0;
  int64_t channels = 0;           // n_heads * head_size + 2 * n_groups * state_size
  int64_t size = 0;               // taps of the convolution, at most kMaxConvSize
  const float* weight = nullptr;  // [channels, size]
  const float* bias = nullptr;    // [channels] or null
  const float* a_log = nullptr;   // [n_heads]
  const float* dt_bias = nullptr; // [n_heads]
  const float* skip = nullptr;    // [n_heads] or null
  int64_t n_kept = 0;             // at least what the convolution reads before base, and all behind it
  float* kept = nullptr;          // [n_kept, channels + gates], this layer; written
  const float* read = nullptr;    // [state_floats] or null
  float* write = nullptr;         // [state_floats] or null, not where `read` is
  int64_t write_node = -1;
  float* out = nullptr;           // [rows, n_heads * head_size]
};

constexpr int kTop = 8;  // largest logits listed

/// Statistics of logits rows. NaN counts as the largest; sums of a row whose largest logit is not
/// finite are NaN.
struct RowStatsArgs {
  const float* logits = nullptr;  // [rows, n_ids], n_ids at least 1
  int64_t rows = 0;
  int64_t n_ids = 0;
  int64_t* argmax = nullptr;     // [rows], the lowest id of equals
  float* log_sum_exp = nullptr;  // [rows]
  float* entropy = nullptr;      // [rows], in nats
  int64_t* top_ids = nullptr;    // [rows, kTop], falling logits, -1 past n_ids
  float* top_logits = nullptr;   // [rows, kTop], -infinity past n_ids
};

/// Bytes of a packed matrix, or -1 for an unknown format. See layout.h.
int64_t packed_nbytes(int format, int64_t n, int64_t k);

/// A matrix [n, k] as models/quant.py's PlainTensor states it. Unused fields are null.
struct PlainMatrix {
  int format = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* codes = nullptr;          // uint8, or float32 / 16-bit floats for float formats
  const uint16_t* scale = nullptr;      // float16
  const uint16_t* minimum = nullptr;    // float16
  const uint8_t* sub_scale = nullptr;   // uint8 or int8
  const uint8_t* sub_minimum = nullptr;
};

/// Writes packed_nbytes(format, n, k) bytes to `out`.
void pack(const PlainMatrix& plain, uint8_t* out);

/// Every operator and its arguments: the table of kernels below, those that ops.cc fills and the C
/// interface (c_api.cc) follow from this list.
#define EDK_OPERATORS(X)      \
  X(attention, AttentionArgs) \
  X(embed, EmbedArgs)         \
  X(experts, ExpertsArgs)     \
  X(head_norm, HeadNormArgs)  \
  X(linear, LinearArgs)       \
  X(row_stats, RowStatsArgs)  \
  X(short_conv, ShortConvArgs) \
  X(state_space, StateSpaceArgs)

/// The operators of one instruction set.
struct Kernels {
  const char* isa;
#define EDK_FIELD(name, Args) void (*name)(const Args&, const Parallel&);
  EDK_OPERATORS(EDK_FIELD)
#undef EDK_FIELD
  /// Does `n_rounds` of dot products for measuring; returns how many multiply-accumulates that is.
  int64_t (*multiply)(int64_t n_rounds, int32_t* sum);
};

/// Kernels of the best usable ISA, or of EDGEDEC_ISA. Null, with `*why` set, if that ISA is
/// unknown or absent here. Decided once.
const Kernels* active_kernels(const char** why);

/// Kernels by ISA name; null if this machine or build lacks it.
const Kernels* kernels_for(const char* isa);

/// Names of the usable ISAs, best first, as "a,b,c".
const char* available_isas();

}  // namespace edk
