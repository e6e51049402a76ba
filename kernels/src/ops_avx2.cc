#include "simd_avx2.h"
// The lanes come first: the operators below are written over them.
#include "attention.h"
#include "embed.h"
#include "linear.h"
#include "multiply.h"
#include "row_stats.h"

namespace edk {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {kIsa, linear, embed, attention, row_stats, multiply};
}  // namespace edk
