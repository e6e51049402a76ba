// Trees grown at their likeliest places, and what became of them; as runtime/drafting/best_first.py.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "draft_tree.h"

namespace edk {

/// A token that may follow. share: how likely it is if the source can be believed. kind: the class of
/// drafts it belongs to. state: whatever the source needs to find what follows.
struct DraftOption {
  int64_t token;
  double share;
  int32_t kind;
  int64_t state[2];
};

using DraftOptions = std::vector<DraftOption>;

/// Accepted drafts per expected one, by class of drafts; what is long past counts less.
class AcceptanceRates {
 public:
  explicit AcceptanceRates(const std::vector<double>& priors);

  double probability(double share, int32_t kind) const;

  /// Takes in a draft that was compared with the token that came.
  void learn(double share, int32_t kind, bool is_accepted);

 private:
  std::vector<double> rates_, accepted_, expected_;
};

/// The trees of one drafter in one request.
class Growth {
 public:
  /// Gives the options after one, from its state and its depth. Each token once.
  using Follow = std::function<void(const int64_t* state, int64_t depth, DraftOptions& found)>;

  /// rates: what became of drafts before; several requests may share it.
  Growth(AcceptanceRates& rates, int32_t origin) : rates_(rates), origin_(origin) {}

  /// Returns a tree within `budget` that begins with `options` behind a text of `n_tokens`.
  const DraftTree& grow(int64_t n_tokens, DraftOptions options, const Follow& follow,
                        const DraftBudget& budget);

  /// Compares the tree grown after `n_tokens` with what came, see Python's `BestFirst.learn`.
  void learn(int64_t n_tokens, const std::vector<int64_t>& emitted);

 private:
  struct Draft {
    double share;
    int32_t kind;
  };

  AcceptanceRates& rates_;
  int32_t origin_;
  DraftTree tree_;
  std::vector<Draft> drafts_;  // of each node
  int64_t grown_after_ = -1;
};

}  // namespace edk
