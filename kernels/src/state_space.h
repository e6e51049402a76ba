// Recurrences whose state is a matrix for each head: Mamba-2 and the gated delta rule. Included after
// one simd_*.h.
//
// A head's state is computed node by node, each from its parent's, so that a row depends on its
// ancestors alone and not on how passes cut a text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "carver.h"
#include "conv_taps.h"
#include "elementary.h"

namespace edk {
namespace {

constexpr int kBlocksAtOnce = 4;  // vectors of values whose sums are held at once

/// What a head's tasks share: taps of the tokens to replay and then of all nodes, and for the last
/// committed token and each node, at one above its number, where its state is kept for later
/// children, or -1.
struct StateSpaceWork {
  const StateSpaceArgs* args;
  const float** taps;
  int64_t* slots;
  int64_t n_slots;

  int64_t replayed() const { return args->past - args->base; }
  int64_t nodes() const { return args->known + args->rows; }
};

/// log(1 + e^x)
inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

/// One head of one pass.
class StateSpaceHead {
 public:
  StateSpaceHead(const StateSpaceWork& work, int64_t head)
      : work_(work), a_(*work.args), head_(head), d_(a_.head_size), n_(a_.state_size),
        blocks_(ceil_div(d_, kPanel)) {
    const int64_t group = a_.is_tiled ? head % a_.n_groups : head / (a_.n_heads / a_.n_groups);
    const int64_t values = a_.n_heads * d_, keys = a_.n_groups * n_;
    // Mamba-2: values, keys, queries. Delta rule: queries, keys, values.
    first_[kValue] = (a_.is_delta ? 2 * keys : 0) + head * d_;
    first_[kKey] = (a_.is_delta ? keys : values) + group * n_;
    first_[kQuery] = (a_.is_delta ? 0 : values + keys) + group * n_;
    const int64_t sizes[] = {d_, n_, n_};
    lay_out(ScratchUse::kTask, [&](Carver& carver) {
      state_ = carver.take<float>(state_floats());
      kept_ = carver.take<float>(work_.n_slots * state_floats());
      for (int part = 0; part < kParts; ++part) {
        row_[part] = carver.take<float>(ceil_div(sizes[part], kPanel) * kPanel);
        weight_[part] = carver.take<float>(ceil_div(sizes[part], kPanel) * kPanel * a_.size);
      }
    });
    for (int part = 0; part < kParts; ++part) arrange_weight(part, sizes[part]);
  }

  void run() {
    const int64_t floats = state_floats();
    if (a_.read) {
      std::copy_n(a_.read + head_ * floats, floats, state_);
    } else {
      std::fill_n(state_, floats, 0.0f);
    }
    for (int64_t t = 0; t < work_.replayed(); ++t) advance(t, nullptr);
    leave(-1);
    int64_t at = -1;
    for (int64_t node = 0; node < work_.nodes(); ++node) {
      const int64_t parent = a_.parents[node];
      if (parent != at) std::copy_n(kept_ + work_.slots[parent + 1] * floats, floats, state_);
      const int64_t row = node - a_.known;
      advance(work_.replayed() + node,
              row < 0 ? nullptr : a_.out + (row * a_.n_heads + head_) * d_);
      at = node;
      leave(node);
    }
  }

 private:
  enum { kValue, kKey, kQuery, kParts };

  int64_t state_floats() const { return blocks_ * n_ * kPanel; }

  /// Puts the weights of a part's channels beside each other, tap by tap.
  void arrange_weight(int part, int64_t size) {
    const int64_t width = ceil_div(size, kPanel) * kPanel;
    for (int64_t k = 0; k < a_.size; ++k) {
      for (int64_t i = 0; i < width; ++i) {
        weight_[part][k * width + i] =
            i < size ? a_.weight[(first_[part] + i) * a_.size + k] : 0.0f;
      }
    }
  }

  /// Keeps the state of `node`, and writes it for later passes, where that is asked for.
  void leave(int64_t node) {
    const int64_t floats = state_floats(), slot = work_.slots[node + 1];
    if (slot >= 0) std::copy_n(state_, floats, kept_ + slot * floats);
    if (a_.write && a_.write_node == node) std::copy_n(state_, floats, a_.write + head_ * floats);
  }

  /// Convolves a part's channels of token `t`, counted from the first replayed one.
  void convolve(int part, int64_t size, int64_t t) {
    const float* const* taps = work_.taps + t * a_.size;
    const int64_t width = ceil_div(size, kPanel) * kPanel;
    for (int64_t i = 0; i < size; i += kPanel) {
      const int64_t m = size - i;
      Floats sum = set1(0.0f);
      for (int64_t k = 0; k < a_.size; ++k) {
        if (!taps[k]) continue;
        const Floats x = load_n(taps[k] + first_[part] + i, m);
        sum = fma(x, load_n(weight_[part] + k * width + i, m), sum);
      }
      if (a_.bias) sum = add(sum, load_n(a_.bias + first_[part] + i, m));
      store_n(row_[part] + i, silu(sum), m);
    }
  }

  /// Scales a key or a query to length 1, times `factor`.
  void normalise(float* x, float factor) const {
    Floats squares = set1(0.0f);
    for (int64_t i = 0; i < n_; i += kPanel) {
      const Floats v = load_n(x + i, n_ - i);
      squares = fma(v, v, squares);
    }
    const Floats scale = set1(factor / std::sqrt(reduce_add(squares) + 1e-6f));
    for (int64_t i = 0; i < n_; i += kPanel) store_n(x + i, mul(load_n(x + i, n_ - i), scale), n_ - i);
  }

  /// Takes the state from the parent of token `t` to it; writes its output unless `out` is null.
  void advance(int64_t t, float* out) {
    convolve(kValue, d_, t);
    convolve(kKey, n_, t);
    if (out || a_.is_delta) convolve(kQuery, n_, t);
    const float* gates = work_.taps[t * a_.size + a_.size - 1] + a_.channels;
    const double raw = gates[(a_.is_delta ? a_.n_heads : 0) + head_];
    const double step = softplus(raw + a_.dt_bias[head_]);
    const auto decay = static_cast<float>(std::exp(-std::exp(double{a_.a_log[head_]}) * step));
    float strength = static_cast<float>(step);
    if (a_.is_delta) {
      strength = static_cast<float>(1 / (1 + std::exp(-double{gates[head_]})));
      normalise(row_[kKey], 1.0f);
      normalise(row_[kQuery], 1.0f / std::sqrt(static_cast<float>(n_)));
    }
    int64_t block = 0;
    for (; block + kBlocksAtOnce <= blocks_; block += kBlocksAtOnce) {
      advance_blocks<kBlocksAtOnce>(block, decay, strength, out);
    }
    for (; block < blocks_; ++block) advance_blocks<1>(block, decay, strength, out);
  }

  /// Advances `B` vectors of values from vector `block` on.
  template <int B>
  void advance_blocks(int64_t block, float decay, float strength, float* out) {
    float* state = state_ + block * n_ * kPanel;
    const float *key = row_[kKey], *query = row_[kQuery];
    const Floats kept = set1(decay);
    Floats change[B], y[B];
    for (int b = 0; b < B; ++b) change[b] = y[b] = set1(0.0f);
    if (a_.is_delta) {  // what the state recalls for the key
      for (int64_t i = 0; i < n_; ++i) {
        const Floats k = set1(key[i]);
        for (int b = 0; b < B; ++b) {
          change[b] = fma(k, mul(kept, load(state + (b * n_ + i) * kPanel)), change[b]);
        }
      }
    }
    for (int b = 0; b < B; ++b) {
      const int64_t at = (block + b) * kPanel;
      const Floats value = load_n(row_[kValue] + at, d_ - at);
      change[b] = mul(sub(value, change[b]), set1(strength));
    }
    for (int64_t i = 0; i < n_; ++i) {
      const Floats k = set1(key[i]), q = set1(query[i]);
      for (int b = 0; b < B; ++b) {
        float* cell = state + (b * n_ + i) * kPanel;
        const Floats now = fma(k, change[b], mul(kept, load(cell)));
        store_n(cell, now, kPanel);
        y[b] = fma(q, now, y[b]);
      }
    }
    for (int b = 0; out && b < B; ++b) {
      const int64_t at = (block + b) * kPanel;
      if (a_.skip) y[b] = fma(set1(a_.skip[head_]), load_n(row_[kValue] + at, d_ - at), y[b]);
      store_n(out + at, y[b], d_ - at);
    }
  }

  const StateSpaceWork& work_;
  const StateSpaceArgs& a_;
  int64_t head_, d_, n_, blocks_;
  int64_t first_[kParts];  // channels
  float *state_, *kept_, *row_[kParts], *weight_[kParts];
};

void state_space_task(void* user, int64_t head) {
  StateSpaceHead(*static_cast<const StateSpaceWork*>(user), head).run();
}

/// Copies what the projections gave each row to where it is kept.
inline void keep_rows(const StateSpaceArgs& args) {
  const int64_t gates = args.is_delta ? 2 * args.n_heads : args.n_heads;
  const int64_t own = args.channels + gates;
  for (int64_t r = 0; r < args.rows; ++r) {
    float* kept = args.kept + (args.past + args.known + r) % args.n_kept * own;
    std::copy_n(args.x + r * args.channels, args.channels, kept);
    std::copy_n(args.gates + r * gates, gates, kept + args.channels);
  }
}

void state_space(const StateSpaceArgs& args, const Parallel& parallel) {
  StateSpaceWork work{&args, nullptr, nullptr, 0};
  const int64_t replayed = work.replayed(), nodes = work.nodes();
  lay_out(ScratchUse::kOperator, [&](Carver& carver) {
    work.taps = carver.take<const float*>((replayed + nodes) * args.size);
    work.slots = carver.take<int64_t>(nodes + 1);
  });
  keep_rows(args);
  const int64_t own = args.channels + (args.is_delta ? 2 : 1) * args.n_heads;
  conv_taps({args.parents, args.past, -replayed, replayed + nodes, args.size, args.n_kept},
            args.kept, own, work.taps);
  std::fill_n(work.slots, nodes + 1, -1);
  for (int64_t node = 0; node < nodes; ++node) {
    int64_t& slot = work.slots[args.parents[node] + 1];
    if (args.parents[node] != node - 1 && slot < 0) slot = work.n_slots++;
  }
  parallel.run(args.n_heads, state_space_task, &work);
}

}  // namespace
}  // namespace edk
