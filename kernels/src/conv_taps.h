// Which kept rows the causal convolution of each new token reads.
#pragma once

#include <cstdint>

namespace edk {
namespace {

/// Node i of the pending tree, and position t, as in AttentionArgs; position t lies at row t modulo
/// `n_kept`. The rows are nodes from `known` on; negative ones are committed tokens, -1 the last.
struct ConvPlace {
  const int64_t* parents;
  int64_t past;
  int64_t known;
  int64_t rows;
  int64_t size;
  int64_t n_kept;
};

/// Writes `size` addresses for each row of the pass, the oldest first, its own the last; null where
/// the text has not begun.
inline void conv_taps(const ConvPlace& place, const float* kept, int64_t row_size,
                      const float** taps) {
  for (int64_t r = 0; r < place.rows; ++r) {
    int64_t node = place.known + r;  // negative: node -1 is the last committed token
    for (int64_t k = place.size - 1; k >= 0; --k) {
      const int64_t position = place.past + node;
      taps[r * place.size + k] =
          position < 0 ? nullptr : kept + position % place.n_kept * row_size;
      node = node < 0 ? node - 1 : place.parents[node];
    }
  }
}

}  // namespace
}  // namespace edk
