// An index of all substrings of a growing text, in a step of constant amortised time a token; as
// tests/runtime/drafting/reference/suffix_automaton.py, the text of which says what it is.
//
// Source: Blumer et al. (1985); as a drafter, SAM-Decoding (Hu et al., 2024, section 3).
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace edk {

class SuffixAutomaton {
 public:
  static constexpr int32_t kStart = 0;  // the state of the empty string

  /// What came after a state: the token, and the state of both together.
  struct Edge {
    int64_t token;
    int32_t to;
  };

  SuffixAutomaton() : states_(1) { states_[0].link = -1; }

  void append(int64_t token);

  const std::vector<int64_t>& tokens() const { return tokens_; }

  /// The state of the longest suffix of the text that occurs earlier, too.
  int32_t longest_repeat() const { return shorter(last_); }

  /// The state of the longest suffix that occurs more often; `kStart` ends at itself.
  int32_t shorter(int32_t state) const { return at(state).link < 0 ? kStart : at(state).link; }

  /// Length of the longest substring of `state`.
  int64_t length(int32_t state) const { return at(state).length; }

  /// How often what `state` stands for was seen, and where last. Both lag behind for short suffixes
  /// of texts that repeat themselves endlessly.
  int64_t count(int32_t state) const { return at(state).count; }
  int64_t latest(int32_t state) const { return at(state).latest; }

  /// What came after `state`, in the order in which it first did.
  const std::vector<Edge>& edges(int32_t state) const { return at(state).edges; }

 private:
  using Places = std::unordered_map<int64_t, size_t>;

  struct State {
    int32_t link = kStart;  // of the longest suffix that ends at more places
    int32_t length = 0;
    int32_t count = 0;
    int32_t latest = -1;
    std::vector<Edge> edges;
    std::unique_ptr<Places> places;  // of tokens among many edges
  };

  const State& at(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  State& at(int32_t state) { return states_[static_cast<size_t>(state)]; }
  Edge* edge(int32_t state, int64_t token);
  void add_edge(int32_t state, int64_t token, int32_t to);
  int32_t suffix_state(int32_t state, int64_t token);
  void count_suffixes();

  std::vector<int64_t> tokens_;
  std::vector<State> states_;
  int32_t last_ = kStart;
};

}  // namespace edk
