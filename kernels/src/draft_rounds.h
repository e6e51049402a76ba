// The rounds of one request in which several drafters propose together, weighed by what became of
// their drafts before and by what passes cost; as tests/runtime/drafting/reference/rounds.py.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft_tree.h"
#include "drafters.h"

namespace edk {

/// How estimates of a drafter compare with what came true of late; as Python's `Trust`.
class Trust {
 public:
  /// What to multiply estimates with.
  double factor() const;
  void observe(double estimate, bool is_accepted);

  /// A round went by without news.
  void forget();

 private:
  double estimated_ = 0, accepted_ = 0;
};

/// Drafters that propose together, with the trust that all requests have in them. The number of one
/// among them is the origin of its drafts.
struct DraftTeam {
  std::vector<std::shared_ptr<Drafter>> drafters;
  std::vector<Trust> trust;
};

/// A team's part in one request.
class DraftRounds {
 public:
  DraftRounds(std::shared_ptr<DraftTeam> team, Tokens prompt);

  /// Has the text be its first `n_kept` tokens and `tokens` [n] behind them. Returns false, and changes
  /// nothing, if it has fewer or that is no token at all.
  bool set_text(int64_t n_kept, const int64_t* tokens, int64_t n);

  /// Has the first drafter alone propose what `budget` allows; returns all of `tree()`.
  DraftCut propose_alone(const DraftBudget& budget);

  /// Has all propose at most as many and as deep as `room`; returns what of
  /// `tree()` pays for its rows.
  DraftCut propose(const DraftBudget& room, const PassCosts& costs);

  /// What was proposed last, whether or not it pays.
  const DraftTree& tree() const { return tree_; }

  /// Learns from the round that followed the text. verified: the tree that was. n_accepted: of the
  /// first emitted tokens, which were drafts.
  void observe(const DraftTree& verified, const Tokens& emitted, int64_t n_accepted,
               const VerifiedRows& rows);

  /// The output ended with the text. Nothing else is called afterwards.
  void end();

  int64_t longest_match() const { return draftings_.front()->longest_match(); }

 private:
  void weigh(const Tokens& emitted);

  std::shared_ptr<DraftTeam> team_;
  Tokens text_;
  std::vector<std::unique_ptr<Drafting>> draftings_;
  DraftTree tree_;
  bool is_weighed_ = false;  // `tree_` waits for what becomes of it
  int64_t n_asked_ = 0;
};

}  // namespace edk
