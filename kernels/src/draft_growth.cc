#include "draft_growth.h"

#include <algorithm>

namespace edk {
namespace {

constexpr double kMaxRate = 2.0;
constexpr double kMemory = 0.97;      // what one draft leaves of the weight of those before it
constexpr double kPriorWeight = 6.0;  // drafts that weigh as much as the belief a class begins with

struct Slot {
  double value;
  int64_t number;
  int32_t parent;
  double probability;
  DraftOption option;

  bool operator<(const Slot& other) const {
    return value != other.value ? value < other.value : number > other.number;
  }
};

}  // namespace

AcceptanceRates::AcceptanceRates(const std::vector<double>& priors)
    : rates_(priors), expected_(priors.size(), kPriorWeight) {
  for (double prior : priors) accepted_.push_back(prior * kPriorWeight);
}

double AcceptanceRates::probability(double share, int32_t kind) const {
  return std::min(kMaxProbability, share * rates_[static_cast<size_t>(kind)]);
}

void AcceptanceRates::learn(double share, int32_t kind, bool is_accepted) {
  const auto at = static_cast<size_t>(kind);
  accepted_[at] = kMemory * accepted_[at] + (is_accepted ? 1 : 0);
  expected_[at] = kMemory * expected_[at] + share;
  rates_[at] = std::min(kMaxRate, accepted_[at] / std::max(expected_[at], 1e-6));
}

const DraftTree& Growth::grow(int64_t n_tokens, DraftOptions options, const Follow& follow,
                              const DraftBudget& budget) {
  tree_.clear();
  drafts_.clear();
  grown_after_ = n_tokens;
  std::priority_queue<Slot> slots;
  int64_t n_slots = 0, depth = 0;
  int32_t parent = kRoot;
  double value = 1.0;
  if (budget.depth < 1) options.clear();
  while (tree_.size() < budget.n_nodes) {
    for (const DraftOption& option : options) {
      const double probability = rates_.probability(option.share, option.kind);
      if (value * probability < budget.min_value) continue;
      slots.push({value * probability, ++n_slots, parent, probability, option});
    }
    if (slots.empty()) break;
    const Slot best = slots.top();
    slots.pop();
    value = best.value;
    parent = tree_.append(best.option.token, best.parent, best.probability, origin_);
    drafts_.push_back({best.option.share, best.option.kind});
    depth = tree_[parent].depth;
    options.clear();
    if (depth < budget.depth) follow(best.option.state, depth, options);
  }
  return tree_;
}

void Growth::learn(int64_t n_tokens, const std::vector<int64_t>& emitted) {
  int32_t parent = grown_after_ == n_tokens ? kRoot : tree_.size();
  for (int64_t token : emitted) {
    if (parent == tree_.size()) break;
    int32_t found = tree_.size();
    for (int32_t i = tree_.first_child(parent); i >= 0; i = tree_.next_sibling(i)) {
      const bool is_accepted = tree_[i].token == token;
      const Draft& draft = drafts_[static_cast<size_t>(i)];
      rates_.learn(draft.share, draft.kind, is_accepted);
      if (is_accepted) found = i;
    }
    parent = found;
  }
  tree_.clear();
  drafts_.clear();
  grown_after_ = -1;
}

}  // namespace edk
