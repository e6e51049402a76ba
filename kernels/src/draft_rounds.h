// The rounds of one request in which several drafters propose together. How much of it is verified is
// decided by runtime/decoding/draft_length.py.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft_tree.h"
#include "drafters.h"

namespace edk {

/// Drafters that propose together. The number of one among them is the origin of its drafts.
struct DraftTeam {
  std::vector<std::shared_ptr<Drafter>> drafters;
};

/// A team's part in one request.
class DraftRounds {
 public:
  DraftRounds(std::shared_ptr<DraftTeam> team, Tokens prompt);

  /// Has the text be its first `n_kept` tokens and `tokens` [n] behind them. Returns false, and changes
  /// nothing, if it has fewer or that is no token at all.
  bool set_text(int64_t n_kept, const int64_t* tokens, int64_t n);

  /// Has all propose what `budget` allows; the likeliest nodes of all are `tree()`, likeliest first.
  void propose(const DraftBudget& budget);

  /// What was proposed last.
  const DraftTree& tree() const { return tree_; }

  /// Learns from the round that followed the text. verified: the tree that was. n_accepted: of the
  /// first emitted tokens, which were drafts.
  void observe(const DraftTree& verified, const Tokens& emitted, int64_t n_accepted,
               const VerifiedRows& rows);

  /// The output ended with the text. Nothing else is called afterwards.
  void end();

  int64_t longest_match() const { return draftings_.front()->longest_match(); }

 private:
  std::shared_ptr<DraftTeam> team_;
  Tokens text_;
  std::vector<std::unique_ptr<Drafting>> draftings_;
  DraftTree tree_;
};

}  // namespace edk
