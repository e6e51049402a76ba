#include "simd_scalar.h"
// The lanes come first: the operators below are written over them.
#include "attention.h"
#include "embed.h"
#include "linear.h"
#include "multiply.h"
#include "row_stats.h"

namespace edk {
extern const Kernels kScalarKernels;
const Kernels kScalarKernels = {kIsa, linear, embed, attention, row_stats, multiply};
}  // namespace edk
