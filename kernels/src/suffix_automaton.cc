#include "suffix_automaton.h"

namespace edk {
namespace {

constexpr int kMaxWalk = 64;     // suffixes counted per token; a text of one token has as many as tokens
constexpr size_t kManyEdges = 16;  // that are not searched one by one

}  // namespace

void SuffixAutomaton::append(int64_t token) {
  const auto made = static_cast<int32_t>(states_.size());
  states_.emplace_back();
  at(made).length = at(last_).length + 1;
  int32_t state = last_;
  Edge* found = nullptr;
  while (state >= 0 && (found = edge(state, token)) == nullptr) {
    add_edge(state, token, made);
    state = at(state).link;
  }
  if (state >= 0) {
    const int32_t link = suffix_state(state, token);
    at(made).link = link;
  }
  last_ = made;
  tokens_.push_back(token);
  count_suffixes();
}

SuffixAutomaton::Edge* SuffixAutomaton::edge(int32_t state, int64_t token) {
  State& from = at(state);
  if (from.places != nullptr) {
    const auto place = from.places->find(token);
    return place == from.places->end() ? nullptr : &from.edges[place->second];
  }
  for (Edge& edge : from.edges) {
    if (edge.token == token) return &edge;
  }
  return nullptr;
}

void SuffixAutomaton::add_edge(int32_t state, int64_t token, int32_t to) {
  State& from = at(state);
  from.edges.push_back({token, to});
  if (from.places != nullptr) {
    from.places->emplace(token, from.edges.size() - 1);
  } else if (from.edges.size() > kManyEdges) {
    from.places = std::make_unique<Places>();
    for (size_t i = 0; i < from.edges.size(); ++i) from.places->emplace(from.edges[i].token, i);
  }
}

/// Returns the state of exactly the longest of `state` and `token`, made if need be.
int32_t SuffixAutomaton::suffix_state(int32_t state, int64_t token) {
  const int32_t found = edge(state, token)->to;
  const int32_t length = at(state).length + 1;
  if (at(found).length == length) return found;
  const auto clone = static_cast<int32_t>(states_.size());
  states_.emplace_back();
  State& from = at(found);
  State& made = at(clone);
  made.edges = from.edges;
  if (from.places != nullptr) made.places = std::make_unique<Places>(*from.places);
  made.link = from.link;
  made.length = length;
  made.count = from.count;
  made.latest = from.latest;
  from.link = clone;
  while (state >= 0) {
    Edge* there = edge(state, token);
    if (there == nullptr || there->to != found) break;
    there->to = clone;
    state = at(state).link;
  }
  return clone;
}

/// Notes that every suffix of the text ends here.
void SuffixAutomaton::count_suffixes() {
  const auto position = static_cast<int32_t>(tokens_.size()) - 1;
  int32_t state = last_;
  for (int i = 0; i < kMaxWalk && state != kStart; ++i) {
    ++at(state).count;
    at(state).latest = position;
    state = at(state).link;
  }
}

}  // namespace edk
