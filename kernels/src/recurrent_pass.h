// The tree of a pass over recurrent layers, checked.
#pragma once

#include "op_support.h"

namespace edk {

/// Nodes of the pending tree: `known` of earlier passes, then `rows` of this one, behind `past`
/// committed tokens.
struct RecurrentPass {
  const int64_t* parents;
  int64_t past;
  int64_t known;
  int64_t rows;

  /// Fails unless parents [1, known + rows] come before their nodes and past [1] is a count.
  RecurrentPass(const Tensor& parents_in, const Tensor& past_in, int64_t n_rows);

  /// Returns the rows of `layer` in kept [L, Q, row_size]. Fails unless there is room for what a
  /// convolution of `size` reads before token `base`, and for all that is behind it.
  float* kept_rows(const Tensor& kept, int64_t layer, int64_t row_size, int64_t size,
                   int64_t base) const;
};

}  // namespace edk
