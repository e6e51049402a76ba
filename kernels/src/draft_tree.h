// Drafted tokens as a tree, and several trees in one.
//
// The arithmetic is that of Python's floats, operation by operation: tests compare all bits with the
// drafters of tests/runtime/drafting/reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edk {

constexpr int32_t kRoot = -1;             // parent of nodes that follow the text's last token
constexpr double kMaxProbability = 0.98;  // no draft is believed to be more certain

/// A drafted token; runtime/drafting/draft_tree.py says what the fields are. origin: number of the
/// drafter.
struct DraftNode {
  int64_t token;
  double probability;
  int32_t parent;
  int32_t depth;
  int32_t origin;
};

/// How much may be drafted, see Python's `Budget`.
struct DraftBudget {
  int64_t n_nodes;
  int64_t depth;
  double min_value;
};

/// Nodes, parents before children; the children of a node in the order in which they came.
class DraftTree {
 public:
  void clear();

  /// Returns the number of `token` behind `parent`, which has no such node yet.
  int32_t append(int64_t token, int32_t parent, double probability, int32_t origin);

  /// Returns the first child of `parent`, -1 if it has none.
  int32_t first_child(int32_t parent) const;

  /// Returns the child of the same parent that came after `node`, -1 if none did.
  int32_t next_sibling(int32_t node) const { return links_[static_cast<size_t>(node)].sibling; }

  /// Returns the node of `token` behind `parent`, -1 if there is none.
  int32_t child(int32_t parent, int64_t token) const;

  const std::vector<DraftNode>& nodes() const { return nodes_; }
  const DraftNode& operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }

 private:
  struct Links {
    int32_t first_child = -1, last_child = -1, sibling = -1;
  };

  std::vector<DraftNode> nodes_;
  std::vector<Links> links_;  // of each node
  Links root_;
};

/// Returns the likeliest nodes of all paths of `trees`, at most 64, within `budget`; see `fuse` in
/// runtime/drafting/fusion.py, here without a draft model.
DraftTree fuse(const std::vector<const DraftTree*>& trees, const DraftBudget& budget);

}  // namespace edk
