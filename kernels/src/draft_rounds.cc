#include "draft_rounds.h"

#include <algorithm>

namespace edk {
namespace {

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

void DraftRounds::propose(const DraftBudget& budget) {
  std::vector<const DraftTree*> found;
  for (auto& drafting : draftings_) {
    const DraftTree& tree = drafting->propose(text_, budget);
    if (tree.size() > 0) found.push_back(&tree);
  }
  tree_ = found.empty() ? DraftTree() : found.size() == 1 ? *found.front() : fuse(found, budget);
}

void DraftRounds::observe(const DraftTree& verified, const Tokens& emitted, int64_t n_accepted,
                          const VerifiedRows& rows) {
  const std::vector<int32_t> path = matching(verified, emitted, n_accepted);
  const DraftOutcome outcome{verified, path, emitted, rows};
  for (auto& drafting : draftings_) drafting->observe(text_, outcome);
}

void DraftRounds::end() {
  for (auto& drafting : draftings_) drafting->end(text_);
}

}  // namespace edk
