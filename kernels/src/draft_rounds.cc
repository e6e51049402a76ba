#include "draft_rounds.h"

#include <algorithm>

namespace edk {
namespace {

constexpr double kDecay = 0.95, kGoodFaith = 1.0, kForgotten = 0.99, kMostTrust = 1.2;
constexpr int64_t kMaxNodes = 15;    // one row of sixteen is the anchor; beyond that rows cost more
constexpr double kLeastValue = 0.02;
constexpr int64_t kLookRound = 8;  // rounds, every so many of which what is not worth a row is proposed

/// Returns the nodes of `tree`, at most `n`, from the root down, that spell a beginning of `tokens`.
std::vector<int32_t> matching(const DraftTree& tree, const Tokens& tokens, int64_t n) {
  std::vector<int32_t> path;
  for (int64_t token : tokens) {
    const int32_t child = tree.child(path.empty() ? kRoot : path.back(), token);
    if (child < 0 || static_cast<int64_t>(path.size()) >= n) break;
    path.push_back(child);
  }
  return path;
}

}  // namespace

double Trust::factor() const {
  return std::min((accepted_ + kGoodFaith) / (estimated_ + kGoodFaith), kMostTrust);
}

void Trust::observe(double estimate, bool is_accepted) {
  estimated_ = kDecay * estimated_ + estimate;
  accepted_ = kDecay * accepted_ + (is_accepted ? 1 : 0);
}

void Trust::forget() {
  estimated_ *= kForgotten;
  accepted_ *= kForgotten;
}

DraftRounds::DraftRounds(std::shared_ptr<DraftTeam> team, Tokens prompt)
    : team_(std::move(team)), text_(std::move(prompt)) {
  for (size_t i = 0; i < team_->drafters.size(); ++i) {
    draftings_.push_back(team_->drafters[i]->begin(text_, static_cast<int32_t>(i)));
  }
}

bool DraftRounds::set_text(int64_t n_kept, const int64_t* tokens, int64_t n) {
  if (n_kept < 0 || n < 0 || n_kept + n < 1 || n_kept > static_cast<int64_t>(text_.size())) {
    return false;
  }
  text_.resize(static_cast<size_t>(n_kept));
  text_.insert(text_.end(), tokens, tokens + n);
  return true;
}

DraftCut DraftRounds::propose_alone(const DraftBudget& budget) {
  tree_ = draftings_.front()->propose(text_, budget);
  is_weighed_ = false;
  return {tree_.size(), 0};
}

DraftCut DraftRounds::propose(const DraftBudget& room, const PassCosts& costs) {
  const bool is_look = ++n_asked_ % kLookRound == 0;
  const double least = is_look ? kLeastValue : std::max(kLeastValue, costs.row_share());
  const DraftBudget budget{kMaxNodes, std::min(kMaxNodes, room.depth), least};
  std::vector<DraftTree> found;
  found.reserve(draftings_.size());
  for (size_t i = 0; i < draftings_.size(); ++i) {
    const double factor = team_->trust[i].factor();
    DraftBudget own = budget;
    if (!is_look) own.min_value = least / factor;
    const DraftTree& tree = draftings_[i]->propose(text_, own);
    if (tree.size() == 0) continue;
    found.push_back(tree);
    found.back().scale(factor);
  }
  if (found.size() > 1) {
    std::vector<const DraftTree*> trees;
    for (const DraftTree& tree : found) trees.push_back(&tree);
    tree_ = fuse(trees, budget);
  } else {
    tree_ = found.empty() ? DraftTree() : std::move(found.front());
  }
  is_weighed_ = true;
  return put_best_first(tree_, costs, std::min(room.n_nodes, kMaxNodes));
}

void DraftRounds::observe(const DraftTree& verified, const Tokens& emitted, int64_t n_accepted,
                          const VerifiedRows& rows) {
  const std::vector<int32_t> path = matching(verified, emitted, n_accepted);
  const DraftOutcome outcome{verified, path, emitted, rows};
  for (auto& drafting : draftings_) drafting->observe(text_, outcome);
  if (is_weighed_) weigh(emitted);
  is_weighed_ = false;
}

/// Compares what was proposed, verified or not, with what was emitted.
void DraftRounds::weigh(const Tokens& emitted) {
  const std::vector<int32_t> path = matching(tree_, emitted, tree_.size());
  std::vector<bool> is_tested(draftings_.size());
  for (size_t above = 0; above <= path.size(); ++above) {
    const int32_t right = above < path.size() ? path[above] : -1;
    const int32_t parent = above == 0 ? kRoot : path[above - 1];
    for (int32_t i = tree_.first_child(parent); i >= 0; i = tree_.next_sibling(i)) {
      const auto origin = static_cast<size_t>(tree_[i].origin);
      Trust& trust = team_->trust[origin];
      trust.observe(tree_[i].probability / trust.factor(), i == right);
      is_tested[origin] = true;
    }
  }
  for (size_t i = 0; i < draftings_.size(); ++i) {
    if (!is_tested[i]) team_->trust[i].forget();
  }
}

void DraftRounds::end() {
  for (auto& drafting : draftings_) drafting->end(text_);
}

}  // namespace edk
