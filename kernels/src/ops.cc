// All kernels for one instruction set. CMake compiles this file once per row of its table, with that
// row's flags, EDK_ISA its name and EDK_SIMD its header.
#include EDK_SIMD
// The lanes come first: the kernels below are written over them.
#include "attention.h"
#include "embed.h"
#include "experts.h"
#include "head_norm.h"
#include "linear.h"
#include "peak_products.h"
#include "row_stats.h"
#include "short_conv.h"
#include "state_space.h"

#define EDK_QUOTED(text) #text
#define EDK_NAME(isa) EDK_QUOTED(isa)
#define EDK_ENTRY(name, Args) name,

namespace edk::EDK_ISA {
extern const Kernels kKernels;
const Kernels kKernels = {EDK_NAME(EDK_ISA), EDK_OPERATORS(EDK_ENTRY) multiply};
}  // namespace edk::EDK_ISA
