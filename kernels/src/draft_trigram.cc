#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "drafters.h"

namespace edk {
namespace {

constexpr int64_t kCandidates = 4;          // of a verified row
constexpr double kLeastProbability = 0.03;  // of a candidate that is counted
constexpr double kPriorTotal = 0.5;         // counts that would have to be seen to be half believed
constexpr size_t kOptions = 8;              // successors kept per pair
constexpr double kFull = 32.0;  // a pair's counts are halved when they sum up to more: what is new counts more
constexpr double kTotalStarts[] = {0.0, 1.5, 3.0, 8.0};
constexpr int64_t kDepthStarts[] = {1, 2, 4};
constexpr double kPriors[] = {0.7, 0.8, 0.9, 0.9};

struct Pair {
  int64_t before, last;
  bool operator==(const Pair& other) const { return before == other.before && last == other.last; }
};

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t mixed = static_cast<uint64_t>(pair.before) * 0x9E3779B97F4A7C15u +
                           static_cast<uint64_t>(pair.last);
    return static_cast<size_t>(mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u >> 7;
  }
};

using Counts = std::vector<Drafter::Known>;

double sum(const Counts& counts) {
  double total = 0;
  for (const Drafter::Known& count : counts) total += count.weight;
  return total;
}

/// Keeps the largest counts, halved when they sum up to much.
void reduce(Counts& counts) {
  const double scale = sum(counts) > kFull ? 0.5 : 1.0;
  std::stable_sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
    return a.weight > b.weight;
  });
  if (counts.size() > kOptions) counts.resize(kOptions);
  for (Drafter::Known& count : counts) count.weight *= scale;
}

std::vector<double> priors() {
  std::vector<double> found;
  for (double prior : kPriors) found.insert(found.end(), std::size(kDepthStarts), prior);
  return found;
}

class Trigram : public Drafter {
 public:
  explicit Trigram(int64_t max_pairs) : Drafter(priors()), max_pairs_(max_pairs) {}

  std::unique_ptr<Drafting> begin(const Tokens& prompt, int32_t origin) override;

  void clear() override {
    places_.clear();
    entries_.clear();
    oldest_ = newest_ = -1;
  }

  std::vector<Known> known(int64_t before, int64_t last) const override {
    const auto place = places_.find({before, last});
    return place == places_.end() ? Counts{} : at(place->second).counts;
  }

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }

  /// Counts what came, or may have come, after two tokens.
  void add(Pair pair, const Counts& found) {
    Counts& counts = touch(pair).counts;
    for (const Known& one : found) {
      const auto same = std::find_if(counts.begin(), counts.end(),
                                     [&](const Known& old) { return old.token == one.token; });
      if (same == counts.end()) {
        counts.push_back(one);
      } else {
        same->weight += one.weight;
      }
    }
    if (counts.size() > kOptions || sum(counts) > kFull) reduce(counts);
  }

  /// Adds what may follow two tokens, `depth` of them drafted already.
  void add_options(Pair pair, int64_t depth, DraftOptions& options) const {
    const auto place = places_.find(pair);
    if (place == places_.end()) return;
    const Counts& counts = at(place->second).counts;
    const double total = sum(counts);
    const int32_t row = class_of(kTotalStarts, total);
    const int32_t kind = row * 3 + class_of(kDepthStarts, depth + 1);
    const double scale = 1.0 / (total + kPriorTotal);
    for (const Known& count : counts) {
      options.push_back({count.token, count.weight * scale, kind, {pair.last, count.token}});
    }
  }

 private:
  /// A pair, between those touched before it and after it.
  struct Entry {
    Pair pair;
    Counts counts;
    int32_t older, newer;
  };

  const Entry& at(int32_t i) const { return entries_[static_cast<size_t>(i)]; }
  Entry& at(int32_t i) { return entries_[static_cast<size_t>(i)]; }

  void unlink(int32_t i) {
    const Entry& entry = at(i);
    (entry.older < 0 ? oldest_ : at(entry.older).newer) = entry.newer;
    (entry.newer < 0 ? newest_ : at(entry.newer).older) = entry.older;
  }

  /// Returns the entry of `pair` as the one touched last; a new one may take the place of the oldest.
  Entry& touch(Pair pair) {
    const auto place = places_.find(pair);
    int32_t i = static_cast<int32_t>(entries_.size());
    if (place != places_.end()) {
      i = place->second;
      unlink(i);
    } else if (size() >= max_pairs_ && oldest_ >= 0) {
      i = oldest_;
      unlink(i);
      places_.erase(at(i).pair);
      at(i).counts.clear();
      places_.emplace(pair, i);
    } else {
      entries_.emplace_back();
      places_.emplace(pair, i);
    }
    Entry& entry = at(i);
    entry.pair = pair;
    entry.older = newest_;
    entry.newer = -1;
    (newest_ < 0 ? oldest_ : at(newest_).newer) = i;
    newest_ = i;
    return entry;
  }

  int64_t max_pairs_;
  std::unordered_map<Pair, int32_t, PairHash> places_;
  std::vector<Entry> entries_;
  int32_t oldest_ = -1, newest_ = -1;
};

class TrigramDrafting : public Drafting {
 public:
  TrigramDrafting(Trigram& drafter, const Tokens& text, int32_t origin)
      : Drafting(drafter.rates, origin), drafter_(drafter) {
    follow(text);
  }

  const DraftTree& propose(const Tokens& text, const DraftBudget& budget) override {
    follow(text);
    DraftOptions first;
    const size_t n = text.size();
    if (n >= 2) drafter_.add_options({text[n - 2], text[n - 1]}, 0, first);
    const auto options = [this](const int64_t* state, int64_t depth, DraftOptions& found) {
      drafter_.add_options({state[0], state[1]}, depth, found);
    };
    return growth_.grow(static_cast<int64_t>(n), std::move(first), options, budget);
  }

  void observe(const Tokens& text, const DraftOutcome& outcome) override {
    const size_t n = text.size();
    growth_.learn(static_cast<int64_t>(n), outcome.emitted);
    if (n < 2 || outcome.rows.n < 1) return;
    const int64_t anchor = text[n - 1];
    add_candidates({text[n - 2], anchor}, outcome.rows, 0);
    const auto& nodes = outcome.tree.nodes();
    for (int64_t row = 1; row < outcome.rows.n && row <= outcome.tree.size(); ++row) {
      const DraftNode& node = nodes[static_cast<size_t>(row - 1)];
      const int64_t above =
          node.parent == kRoot ? anchor : nodes[static_cast<size_t>(node.parent)].token;
      add_candidates({above, node.token}, outcome.rows, row);
    }
  }

  void end(const Tokens& text) override { follow(text); }

 private:
  /// Counts what `text` holds beyond what was counted already.
  void follow(const Tokens& text) {
    for (size_t i = std::max<size_t>(2, n_followed_); i < text.size(); ++i) {
      drafter_.add({text[i - 2], text[i - 1]}, {{text[i], 1.0}});
    }
    n_followed_ = text.size();
  }

  /// Counts the likely tokens of a row by their probabilities.
  void add_candidates(Pair pair, const VerifiedRows& rows, int64_t row) {
    Counts found;
    for (int64_t i = row * VerifiedRows::kTop; i < row * VerifiedRows::kTop + kCandidates; ++i) {
      const double logit = rows.top_logits[i], total = rows.log_sum_exp[row];
      const double probability = std::exp(logit - total);
      if (probability >= kLeastProbability && std::isfinite(probability)) {
        found.push_back({rows.top_ids[i], probability});
      }
    }
    drafter_.add(pair, found);
  }

  Trigram& drafter_;
  size_t n_followed_ = 0;
};

std::unique_ptr<Drafting> Trigram::begin(const Tokens& prompt, int32_t origin) {
  return std::make_unique<TrigramDrafting>(*this, prompt, origin);
}

}  // namespace

std::unique_ptr<Drafter> make_trigram(int64_t max_pairs) {
  return std::make_unique<Trigram>(max_pairs);
}

}  // namespace edk
