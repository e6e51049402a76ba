// What Python's ctypes calls to draft: the drafters of drafters.h, and their rounds.
//
// One thread at a time: callers hold Python's lock while they are here. Nothing is thrown into them.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "draft_rounds.h"
#include "export.h"

namespace edk {
namespace {

enum Result { kDone = 0, kNoMemory = -1, kBadText = -2, kBadTree = -3 };

static_assert(sizeof(DraftNode) == 32, "kernels/drafting.py reads it");

using SharedDrafter = std::shared_ptr<Drafter>;
using SharedTeam = std::shared_ptr<DraftTeam>;

/// The text of a round: its first tokens that are known already, and those behind them.
struct TextChange {
  int64_t n_kept;
  const int64_t* tokens;
  int64_t n;
};

template <class Call>
int guarded(const Call& call) {
  try {
    return call();
  } catch (const std::exception&) {  // whoever calls checks all else, so only memory can fail
    return kNoMemory;
  }
}

/// Calls `call` once `rounds` have their text.
template <class Call>
int with_text(DraftRounds* rounds, const TextChange& text, const Call& call) {
  return guarded([&]() -> int {
    return rounds->set_text(text.n_kept, text.tokens, text.n) ? call() : kBadText;
  });
}

/// Writes what `rounds` proposed to `out`, which has room for `room` nodes; returns how many there are.
int show(const DraftRounds& rounds, uint8_t* out, int64_t room) {
  const std::vector<DraftNode>& nodes = rounds.tree().nodes();
  const size_t n_shown = std::min(nodes.size(), static_cast<size_t>(room));
  if (n_shown > 0) std::memcpy(out, nodes.data(), n_shown * sizeof(DraftNode));
  return static_cast<int>(n_shown);
}

/// Puts the tree of `tokens` and `parents` [n] into `tree`, or without tokens the first nodes of what
/// `rounds` proposed last. Returns false if that is no tree.
bool read_verified(const DraftRounds& rounds, const int64_t* tokens, const int64_t* parents,
                   int64_t n, DraftTree& tree) {
  const DraftTree& proposed = rounds.tree();
  if (n < 0 || (tokens == nullptr && n > proposed.size())) return false;
  for (int32_t i = 0; i < n; ++i) {
    const int64_t parent = tokens == nullptr ? proposed[i].parent : parents[i];
    if (parent < kRoot || parent >= i) return false;
    const int64_t token = tokens == nullptr ? proposed[i].token : tokens[i];
    tree.append(token, static_cast<int32_t>(parent), 0, 0);
  }
  return true;
}

SharedDrafter make_drafter(const char* name, int64_t n_most) {
  if (std::strcmp(name, "lookup") == 0) return make_lookup();
  if (std::strcmp(name, "trigram") == 0) return make_trigram(n_most);
  if (std::strcmp(name, "recycling") == 0) return make_recycling();
  return nullptr;
}

}  // namespace
}  // namespace edk

/// Makes the drafter `name`; null if there is none, or no memory. n_most: entries of its table.
EDGEDEC_EXPORT void* edgedec_drafter_open(const char* name, int64_t n_most) {
  try {
    edk::SharedDrafter drafter = edk::make_drafter(name, n_most);
    return drafter ? new edk::SharedDrafter(std::move(drafter)) : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// Lets go of a drafter; requests that go on keep it.
EDGEDEC_EXPORT void edgedec_drafter_close(edk::SharedDrafter* drafter) { delete drafter; }

EDGEDEC_EXPORT void edgedec_drafter_clear(edk::SharedDrafter* drafter) { (*drafter)->clear(); }

/// Returns the number of entries that a drafter keeps.
EDGEDEC_EXPORT int64_t edgedec_drafter_size(edk::SharedDrafter* drafter) {
  return (*drafter)->size();
}

/// Writes what is known to follow two tokens to `tokens` and `weights`, at most `n_most`; returns how
/// many there are.
EDGEDEC_EXPORT int edgedec_drafter_known(edk::SharedDrafter* drafter, int64_t before, int64_t last,
                                         int64_t* tokens, double* weights, int n_most) {
  return edk::guarded([&] {
    const std::vector<edk::Drafter::Known> known = (*drafter)->known(before, last);
    const int n = static_cast<int>(known.size());
    for (int i = 0; i < n && i < n_most; ++i) {
      tokens[i] = known[static_cast<size_t>(i)].token;
      weights[i] = known[static_cast<size_t>(i)].weight;
    }
    return n;
  });
}

/// Returns a team of `drafters` [n]; null without memory.
EDGEDEC_EXPORT void* edgedec_draft_team_open(edk::SharedDrafter* const* drafters, int64_t n) {
  try {
    auto team = std::make_shared<edk::DraftTeam>();
    for (int64_t i = 0; i < n; ++i) team->drafters.push_back(*drafters[i]);
    return new edk::SharedTeam(std::move(team));
  } catch (const std::exception&) {
    return nullptr;
  }
}

EDGEDEC_EXPORT void edgedec_draft_team_close(edk::SharedTeam* team) { delete team; }

/// Begins a request with the prompt `tokens` [n]; null without memory.
EDGEDEC_EXPORT void* edgedec_draft_rounds_open(edk::SharedTeam* team, const int64_t* tokens,
                                               int64_t n) {
  try {
    return new edk::DraftRounds(*team, edk::Tokens(tokens, tokens + n));
  } catch (const std::exception&) {
    return nullptr;
  }
}

EDGEDEC_EXPORT void edgedec_draft_rounds_close(edk::DraftRounds* rounds) { delete rounds; }

/// Has the team propose behind the text. Writes nodes to `out`, which has room for `room` of them;
/// returns how many, or a `Result` that failed.
EDGEDEC_EXPORT int edgedec_draft_rounds_grow(edk::DraftRounds* rounds, int64_t n_kept,
                                             const int64_t* tokens, int64_t n_tokens,
                                             int64_t n_nodes, int64_t depth, double min_value,
                                             uint8_t* out, int64_t room) {
  return edk::with_text(rounds, {n_kept, tokens, n_tokens}, [&] {
    rounds->propose({n_nodes, depth, min_value});
    return edk::show(*rounds, out, room);
  });
}

/// Has the team learn from the round behind the text that emitted `emitted`, the first `n_accepted` of
/// them drafts. The tree verified is that of `verified` tokens and `parents` [n_verified], or, without
/// these, the beginning of what was proposed. Its rows are [n_rows]. Returns a `Result`.
EDGEDEC_EXPORT int edgedec_draft_rounds_observe(edk::DraftRounds* rounds, int64_t n_kept,
                                                const int64_t* tokens, int64_t n_tokens,
                                                const int64_t* emitted, int64_t n_emitted,
                                                int64_t n_accepted, const int64_t* verified,
                                                const int64_t* parents, int64_t n_verified,
                                                const int64_t* top_ids, const float* top_logits,
                                                const float* log_sum_exp, int64_t n_rows) {
  return edk::with_text(rounds, {n_kept, tokens, n_tokens}, [&]() -> int {
    edk::DraftTree tree;
    if (!edk::read_verified(*rounds, verified, parents, n_verified, tree)) return edk::kBadTree;
    const edk::Tokens tokens_emitted(emitted, emitted + n_emitted);
    rounds->observe(tree, tokens_emitted, n_accepted, {top_ids, top_logits, log_sum_exp, n_rows});
    return edk::kDone;
  });
}

/// The output ended with the text. Nothing else may be asked afterwards.
EDGEDEC_EXPORT int edgedec_draft_rounds_end(edk::DraftRounds* rounds, int64_t n_kept,
                                            const int64_t* tokens, int64_t n_tokens) {
  return edk::with_text(rounds, {n_kept, tokens, n_tokens}, [&]() -> int {
    rounds->end();
    return edk::kDone;
  });
}

/// Returns the length of the longest suffix of the text that occurs earlier, as far as it is indexed.
EDGEDEC_EXPORT int64_t edgedec_draft_rounds_longest_match(edk::DraftRounds* rounds) {
  return rounds->longest_match();
}
