#include <algorithm>
#include <deque>

#include "drafters.h"
#include "suffix_automaton.h"

namespace edk {
namespace {

constexpr size_t kBranches = 3;
constexpr size_t kIdle = 4;      // texts whose index is kept, for the next turns of conversations
constexpr int kShorter = 2;      // shorter matches asked for what the longest does not know
constexpr double kLeastLeft = 0.1;

// As runtime/drafting/match_classes.py.
constexpr int64_t kLengthStarts[] = {1, 2, 3, 4, 6, 9};
constexpr double kLengthPriors[] = {0.25, 0.45, 0.6, 0.75, 0.85, 0.92};
constexpr int64_t kDepthStarts[] = {1, 2, 3, 5};
constexpr double kDepthDoubts[] = {1.0, 0.8, 0.65, 0.55};

int32_t match_class(int64_t length, int64_t depth) {
  return class_of(kLengthStarts, length) * 4 + class_of(kDepthStarts, depth);
}

std::vector<double> match_priors() {
  std::vector<double> priors;
  for (double prior : kLengthPriors) {
    for (double doubt : kDepthDoubts) priors.push_back(1 - (1 - prior) * doubt);
  }
  return priors;
}

/// A token after a state. share: how often it came there.
struct Share {
  int64_t token;
  double share;
  int32_t to;
};

/// Returns the likeliest tokens after `state` that are not `taken`. The latest occurrence counts
/// twice: texts go on as they went of late.
std::vector<Share> shares_after(const SuffixAutomaton& index, int32_t state, const Tokens& taken) {
  std::vector<SuffixAutomaton::Edge> found;
  for (const SuffixAutomaton::Edge& edge : index.edges(state)) {
    if (std::find(taken.begin(), taken.end(), edge.token) == taken.end()) found.push_back(edge);
  }
  if (found.size() == 1) return {{found[0].token, 1.0, found[0].to}};
  int64_t newest = -1, total = 1;
  for (const SuffixAutomaton::Edge& edge : found) {
    newest = std::max(newest, index.latest(edge.to));
    total += index.count(edge.to);
  }
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    if (index.count(a.to) != index.count(b.to)) return index.count(a.to) > index.count(b.to);
    return index.latest(a.to) > index.latest(b.to);
  });
  std::vector<Share> shares;
  for (size_t i = 0; i < std::min(kBranches, found.size()); ++i) {
    const int32_t to = found[i].to;
    const int64_t weight = index.count(to) + (index.latest(to) == newest);
    shares.push_back(
        {found[i].token, static_cast<double>(weight) / static_cast<double>(total), to});
  }
  return shares;
}

using Index = std::unique_ptr<SuffixAutomaton>;

class Lookup : public Drafter {
 public:
  Lookup() : Drafter(match_priors()) {}

  std::unique_ptr<Drafting> begin(const Tokens& prompt, int32_t origin) override;
  void clear() override { idle_.clear(); }
  std::vector<Known> known(int64_t, int64_t) const override { return {}; }
  int64_t size() const override { return static_cast<int64_t>(idle_.size()); }

  /// Keeps the index of a text that ended.
  void give_back(Index index) {
    idle_.push_back(std::move(index));
    if (idle_.size() > kIdle) idle_.pop_front();
  }

 private:
  Index take(const Tokens& prompt);

  std::deque<Index> idle_;
};

class LookupDrafting : public Drafting {
 public:
  LookupDrafting(Lookup& drafter, Index index, const Tokens& text, int32_t origin)
      : Drafting(drafter.rates, origin), drafter_(drafter), index_(std::move(index)) {
    follow(text);
  }

  const DraftTree& propose(const Tokens& text, const DraftBudget& budget) override {
    follow(text);
    const auto options = [this](const int64_t* state, int64_t depth, DraftOptions& found) {
      add_options(static_cast<int32_t>(state[0]), state[1], depth, found);
    };
    return growth_.grow(static_cast<int64_t>(text.size()), first_options(), options, budget);
  }

  void observe(const Tokens& text, const DraftOutcome& outcome) override {
    growth_.learn(static_cast<int64_t>(text.size()), outcome.emitted);
  }

  void end(const Tokens& text) override {
    if (index_->tokens().size() > text.size()) {
      index_ = std::make_unique<SuffixAutomaton>();
      follow(text);
    }
    drafter_.give_back(std::move(index_));
  }

  int64_t longest_match() const override { return index_->length(index_->longest_repeat()); }

 private:
  void follow(const Tokens& text) {
    for (size_t i = index_->tokens().size(); i < text.size(); ++i) index_->append(text[i]);
  }

  /// Returns what may follow the text, by its longest match and by shorter ones.
  DraftOptions first_options() const {
    DraftOptions options;
    Tokens taken;
    double left = 1.0;
    int32_t state = index_->longest_repeat();
    for (int i = 0; i <= kShorter; ++i) {
      if (state == SuffixAutomaton::kStart || left < kLeastLeft) break;
      const int64_t length = index_->length(state);
      const int32_t kind = match_class(length, 1);
      const double rest = left;
      for (const Share& share : shares_after(*index_, state, taken)) {
        options.push_back({share.token, rest * share.share, kind, {share.to, length}});
        left -= drafter_.rates.probability(rest * share.share, kind);
        taken.push_back(share.token);
      }
      state = index_->shorter(state);
    }
    return options;
  }

  void add_options(int32_t state, int64_t length, int64_t depth, DraftOptions& options) const {
    std::vector<Share> shares = shares_after(*index_, state, {});
    while (shares.empty()) {  // the end of the text: it may be a loop
      state = index_->shorter(state);
      if (state == SuffixAutomaton::kStart) return;  // a match of no length
      length = std::min(length, index_->length(state));
      shares = shares_after(*index_, state, {});
    }
    const int32_t kind = match_class(length, depth + 1);
    for (const Share& share : shares) {
      options.push_back({share.token, share.share, kind, {share.to, length}});
    }
  }

  Lookup& drafter_;
  Index index_;  // of a beginning of the text
};

std::unique_ptr<Drafting> Lookup::begin(const Tokens& prompt, int32_t origin) {
  return std::make_unique<LookupDrafting>(*this, take(prompt), prompt, origin);
}

/// Returns the index of the longest earlier text that `prompt` goes on, or an empty one.
Index Lookup::take(const Tokens& prompt) {
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const Tokens& known = (*it)->tokens();
    const bool fits =
        known.size() <= prompt.size() && std::equal(known.begin(), known.end(), prompt.begin());
    if (fits && (best == idle_.end() || known.size() > (*best)->tokens().size())) best = it;
  }
  if (best == idle_.end()) return std::make_unique<SuffixAutomaton>();
  Index found = std::move(*best);
  idle_.erase(best);
  return found;
}

}  // namespace

std::unique_ptr<Drafter> make_lookup() { return std::make_unique<Lookup>(); }

}  // namespace edk
