#include <algorithm>
#include <unordered_map>

#include "drafters.h"

namespace edk {
namespace {

constexpr double kRankPriors[] = {0.45, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02, 0.01};
constexpr double kSeedPriors[] = {0.3, 0.1, 0.05, 0.04, 0.03, 0.02, 0.02, 0.01};
constexpr int64_t kDepthStarts[] = {1, 2, 3, 5};
constexpr int32_t kColumns = std::size(kDepthStarts);
constexpr int64_t kRanks = VerifiedRows::kTop;

/// Successors of a token, likeliest first.
struct Row {
  int64_t tokens[kRanks];
  int64_t n = 0;
};

std::vector<double> priors() {
  std::vector<double> found;
  for (const auto& table : {kRankPriors, kSeedPriors}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) found.insert(found.end(), kColumns, table[rank]);
  }
  return found;
}

class Recycling : public Drafter {
 public:
  Recycling() : Drafter(priors()) {}

  std::unique_ptr<Drafting> begin(const Tokens& prompt, int32_t origin) override;

  void clear() override {
    table_.clear();
    seeds_.clear();
  }

  std::vector<Known> known(int64_t, int64_t last) const override {
    std::vector<Known> found;
    bool is_seed = false;
    if (const Row* row = find(last, is_seed)) {
      for (int64_t rank = 0; rank < row->n; ++rank) found.push_back({row->tokens[rank], 1.0});
    }
    return found;
  }

  int64_t size() const override { return static_cast<int64_t>(table_.size() + seeds_.size()); }

  /// Keeps what the model found likeliest after `token`.
  void store(int64_t token, const int64_t* ids) {
    Row& row = table_[token];
    row.n = 0;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      if (ids[rank] >= 0) row.tokens[row.n++] = ids[rank];
    }
  }

  void add_options(int64_t token, int64_t depth, DraftOptions& options) const {
    bool is_seed = false;
    const Row* row = find(token, is_seed);
    if (row == nullptr) return;
    const int64_t first = is_seed ? kRanks : 0;
    const int32_t column = class_of(kDepthStarts, depth + 1);
    for (int64_t rank = 0; rank < row->n; ++rank) {
      const auto kind = static_cast<int32_t>(first + rank) * kColumns + column;
      options.push_back({row->tokens[rank], 1.0, kind, {row->tokens[rank], 0}});
    }
  }

 private:
  const Row* find(int64_t token, bool& is_seed) const {
    auto place = table_.find(token);
    if (place != table_.end()) return &place->second;
    is_seed = true;
    place = seeds_.find(token);
    return place == seeds_.end() ? nullptr : &place->second;
  }

  /// Notes that `successor` came after `token` in a prompt, the latest first.
  void seed(int64_t token, int64_t successor) {
    Row& row = seeds_[token];
    int64_t* end = std::find(row.tokens, row.tokens + row.n, successor);
    if (end == row.tokens + row.n) {
      row.n = std::min(row.n + 1, kRanks);
      end = row.tokens + row.n - 1;
    }
    std::copy_backward(row.tokens, end, end + 1);
    row.tokens[0] = successor;
  }

  std::unordered_map<int64_t, Row> table_;  // what the model found
  std::unordered_map<int64_t, Row> seeds_;  // neighbours in prompts of tokens without a row yet
};

/// Returns the nodes with a verified row, `kRoot` for the text's end, the most credible last: what
/// was accepted, and what comes after more tokens.
std::vector<int32_t> rows_to_store(const DraftOutcome& outcome) {
  const auto n = static_cast<int32_t>(
      std::min<int64_t>(outcome.rows.n - 1, outcome.tree.size()));
  std::vector<int32_t> order;
  for (int32_t i = n - 1; i >= 0; --i) {
    if (std::find(outcome.path.begin(), outcome.path.end(), i) == outcome.path.end()) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return outcome.tree[a].depth < outcome.tree[b].depth;
  });
  order.push_back(kRoot);
  for (int32_t i : outcome.path) {
    if (i < n) order.push_back(i);
  }
  return order;
}

class RecyclingDrafting : public Drafting {
 public:
  RecyclingDrafting(Recycling& drafter, int32_t origin)
      : Drafting(drafter.rates, origin), drafter_(drafter) {}

  const DraftTree& propose(const Tokens& text, const DraftBudget& budget) override {
    DraftOptions first;
    drafter_.add_options(text.back(), 0, first);
    const auto options = [this](const int64_t* state, int64_t depth, DraftOptions& found) {
      drafter_.add_options(state[0], depth, found);
    };
    return growth_.grow(static_cast<int64_t>(text.size()), std::move(first), options, budget);
  }

  void observe(const Tokens& text, const DraftOutcome& outcome) override {
    growth_.learn(static_cast<int64_t>(text.size()), outcome.emitted);
    if (outcome.rows.n < 1) return;
    for (int32_t i : rows_to_store(outcome)) {
      drafter_.store(i == kRoot ? text.back() : outcome.tree[i].token,
                     outcome.rows.top_ids + (i + 1) * kRanks);
    }
  }

  void end(const Tokens&) override {}

 private:
  Recycling& drafter_;
};

std::unique_ptr<Drafting> Recycling::begin(const Tokens& prompt, int32_t origin) {
  for (size_t i = 1; i < prompt.size(); ++i) {
    if (table_.find(prompt[i - 1]) == table_.end()) seed(prompt[i - 1], prompt[i]);
  }
  return std::make_unique<RecyclingDrafting>(*this, origin);
}

}  // namespace

std::unique_ptr<Drafter> make_recycling() { return std::make_unique<Recycling>(); }

}  // namespace edk
