// The first half of a gated MLP: what one matrix's products let through of those of another.
// Included after one simd_*.h.
#pragma once

#include "elementary.h"
#include "tile_products.h"

namespace edk {
namespace {

constexpr int64_t kGatedPanels = 8;  // most panels of each of the two matrices in one task
constexpr int64_t kGatedTasks = 16;  // a pair is cut into so many at least, for many threads

/// How many of `panels` of a gated pair make a task: of more than one tile each is read again from the
/// nearest cache, which holds one panel; and all threads must get some.
inline int64_t gated_panels(int64_t panels, int64_t tiles) {
  const int64_t most = min_of(panels / kGatedTasks, kGatedPanels);
  return tiles > 1 || most < 1 ? 1 : most;
}

/// Two matrices, each with its panels, which lie one behind the other.
struct GatedPair {
  Operand gate;
  Operand up;
  const uint8_t* gate_panels;
  const uint8_t* up_panels;
};

/// silu of `gate`, times `up`.
inline Floats silu_gate(int64_t, Floats gate, Floats up) { return mul(silu(gate), up); }

/// Calls `store(p, r, activate(p, gate, up))` with the channels of each of the panels [first, end), at most kGatedPanels, for
/// each of the m rows that begin with `tile`, as many as `rows_at_once` says. Those of the one matrix are
/// read before those of the other: each change interrupts what the processor fetches ahead by itself.
template <class Activate, class Store>
inline void run_gated(const GatedPair& pair, int64_t first, int64_t end, int64_t tile, int64_t m,
                      const Activate& activate, const Store& store) {
  Floats gates[kGatedPanels][kMostRows], ups[kMostRows];
  for (int64_t p = first; p < end; ++p)
    multiply_panel(pair.gate, pair.gate_panels, p, tile, m, gates[p - first]);
  for (int64_t p = first; p < end; ++p) {
    multiply_panel(pair.up, pair.up_panels, p, tile, m, ups);
    for (int64_t r = 0; r < m; ++r) store(p, r, activate(p, gates[p - first][r], ups[r]));
  }
}

}  // namespace
}  // namespace edk
