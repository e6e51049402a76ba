// The drafters that look at nothing but the text and at what the target model made of it. What each
// does, and why, is said in tests/runtime/drafting/reference, whose numbers these have bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft_growth.h"
#include "draft_tree.h"

namespace edk {

using Tokens = std::vector<int64_t>;

/// Statistics of verified rows: the first is that after the text, row i + 1 that after node i.
struct VerifiedRows {
  static constexpr int64_t kTop = 8;  // likeliest tokens listed of each row

  const int64_t* top_ids;     // [n, kTop], -1 where the vocabulary is smaller
  const float* top_logits;    // [n, kTop]
  const float* log_sum_exp;   // [n]
  int64_t n;
};

/// What verification made of a round. tree: as verified. path: its accepted nodes, root first.
struct DraftOutcome {
  const DraftTree& tree;
  const std::vector<int32_t>& path;
  const Tokens& emitted;
  VerifiedRows rows;
};

/// A drafter's part in one request.
class Drafting {
 public:
  Drafting(AcceptanceRates& rates, int32_t origin) : growth_(rates, origin) {}
  virtual ~Drafting() = default;

  /// Returns a tree behind `text` [1 or more].
  virtual const DraftTree& propose(const Tokens& text, const DraftBudget& budget) = 0;

  /// Learns from a round that followed `text`.
  virtual void observe(const Tokens& text, const DraftOutcome& outcome) = 0;

  /// The output ended with `text`.
  virtual void end(const Tokens& text) = 0;

  /// Length of the longest suffix that occurs earlier in the text, if that is known.
  virtual int64_t longest_match() const { return 0; }

 protected:
  Growth growth_;
};

/// What all requests share of a drafter.
class Drafter {
 public:
  /// A token that was learned to follow others, and its weight.
  struct Known {
    int64_t token;
    double weight;
  };

  explicit Drafter(const std::vector<double>& priors) : rates(priors) {}
  virtual ~Drafter() = default;

  /// Returns the part of a request with that prompt, which must not outlive the drafter.
  virtual std::unique_ptr<Drafting> begin(const Tokens& prompt, int32_t origin) = 0;

  /// Forgets what was learned, but for how far its drafts can be believed.
  virtual void clear() = 0;

  /// Returns what was learned of the tokens after `before` and `last`.
  virtual std::vector<Known> known(int64_t before, int64_t last) const = 0;

  /// Entries that are kept.
  virtual int64_t size() const = 0;

  AcceptanceRates rates;
};

/// Proposes what followed the end of the text where it occurred before.
std::unique_ptr<Drafter> make_lookup();

/// Proposes what most often came third after the last two tokens; of at most `max_pairs`.
std::unique_ptr<Drafter> make_trigram(int64_t max_pairs);

/// Proposes what the target model found likely when it last saw the same token.
std::unique_ptr<Drafter> make_recycling();

/// Number of the last of the rising `starts` that is at most `value`, which the first is.
template <class Starts, class Value>
int32_t class_of(const Starts& starts, Value value) {
  int32_t found = -1;
  for (const auto start : starts) found += start <= value;
  return found;
}

}  // namespace edk
