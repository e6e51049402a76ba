#include "draft_tree.h"

#include <algorithm>
#include <queue>

namespace edk {
namespace {

/// Where several trees agree on all tokens so far. trees: those that propose this place, a bit each.
struct Place {
  int64_t token;
  double probability;
  int32_t origin;
  uint64_t trees;
  std::vector<int32_t> children;
};

/// A place that may become a node. value: probability that it is accepted, its ancestors included.
struct Slot {
  double value;
  int64_t number;  // of equal values the first comes first
  int32_t parent;
  double probability;
  int32_t origin;
  int32_t place;

  bool operator<(const Slot& other) const {
    return value != other.value ? value < other.value : number > other.number;
  }
};

/// A child as its siblings leave it.
struct Left {
  double probability;
  int32_t place;
};

int32_t place_of(std::vector<Place>& places, int32_t parent, int64_t token) {
  for (int32_t at : places[static_cast<size_t>(parent)].children) {
    if (places[static_cast<size_t>(at)].token == token) return at;
  }
  const auto made = static_cast<int32_t>(places.size());
  places.push_back({token, -1.0, -1, 0, {}});
  places[static_cast<size_t>(parent)].children.push_back(made);
  return made;
}

/// Returns the places of all trees, the root's first.
std::vector<Place> merged(const std::vector<const DraftTree*>& trees) {
  std::vector<Place> places{{kRoot, -1.0, -1, 0, {}}};
  std::vector<int32_t> at;  // place of each node
  for (size_t i_tree = 0; i_tree < trees.size(); ++i_tree) {
    at.clear();
    for (const DraftNode& node : trees[i_tree]->nodes()) {
      const int32_t parent = node.parent == kRoot ? 0 : at[static_cast<size_t>(node.parent)];
      const int32_t found = place_of(places, parent, node.token);
      Place& place = places[static_cast<size_t>(found)];
      place.trees |= uint64_t{1} << i_tree;
      const bool is_as_likely = node.probability == place.probability;
      if (node.probability > place.probability || (is_as_likely && node.origin > place.origin)) {
        place.probability = node.probability;
        place.origin = node.origin;
      }
      at.push_back(found);
    }
  }
  return places;
}

/// Puts the children of `place` into `kept`, likeliest first, each with what likelier ones leave
/// that its trees do not propose.
void combine(const std::vector<Place>& places, const Place& place, std::vector<Left>& kept) {
  kept.clear();
  std::vector<int32_t> order = place.children;
  const auto at = [&](int32_t i) -> const Place& { return places[static_cast<size_t>(i)]; };
  if (order.size() == 1) {
    kept.push_back({std::min(kMaxProbability, at(order[0]).probability), order[0]});
    return;
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return at(a).probability > at(b).probability;
  });
  for (int32_t child : order) {
    double taken = 0;
    for (const Left& other : kept) {
      if (!(at(other.place).trees & at(child).trees)) taken += other.probability;
    }
    const double left = std::min(kMaxProbability, at(child).probability * (1 - taken));
    if (left > 0) kept.push_back({left, child});
  }
  std::stable_sort(kept.begin(), kept.end(), [](const Left& a, const Left& b) {
    return a.probability > b.probability;
  });
}

}  // namespace

void DraftTree::clear() {
  nodes_.clear();
  links_.clear();
  root_ = {};
}

int32_t DraftTree::append(int64_t token, int32_t parent, double probability, int32_t origin) {
  const int32_t index = size();
  const int32_t depth = parent == kRoot ? 1 : (*this)[parent].depth + 1;
  nodes_.push_back({token, probability, parent, depth, origin});
  links_.push_back({});
  Links& above = parent == kRoot ? root_ : links_[static_cast<size_t>(parent)];
  if (above.last_child < 0) {
    above.first_child = index;
  } else {
    links_[static_cast<size_t>(above.last_child)].sibling = index;
  }
  above.last_child = index;
  return index;
}

int32_t DraftTree::first_child(int32_t parent) const {
  return parent == kRoot ? root_.first_child : links_[static_cast<size_t>(parent)].first_child;
}

int32_t DraftTree::child(int32_t parent, int64_t token) const {
  for (int32_t i = first_child(parent); i >= 0; i = next_sibling(i)) {
    if ((*this)[i].token == token) return i;
  }
  return -1;
}

DraftTree fuse(const std::vector<const DraftTree*>& trees, const DraftBudget& budget) {
  const std::vector<Place> places = merged(trees);
  DraftTree tree;
  std::priority_queue<Slot> slots;
  std::vector<Left> children;
  int64_t n_slots = 0;
  int32_t parent = kRoot, depth = 0, place = 0;
  double value = 1.0;
  while (tree.size() < budget.n_nodes) {
    if (depth < budget.depth && !places[static_cast<size_t>(place)].children.empty()) {
      combine(places, places[static_cast<size_t>(place)], children);
      for (const Left& child : children) {
        if (value * child.probability < budget.min_value) continue;
        const int32_t origin = places[static_cast<size_t>(child.place)].origin;
        slots.push({value * child.probability, ++n_slots, parent, child.probability, origin,
                    child.place});
      }
    }
    if (slots.empty()) break;
    const Slot best = slots.top();
    slots.pop();
    place = best.place;
    value = best.value;
    parent = tree.append(places[static_cast<size_t>(place)].token, best.parent, best.probability,
                         best.origin);
    depth = tree[parent].depth;
  }
  return tree;
}

}  // namespace edk
