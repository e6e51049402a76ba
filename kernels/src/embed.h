#pragma once

#include "kernels.h"

namespace edk {

/// Looks rows up; the same code serves every ISA.
void embed(const EmbedArgs& args, const Parallel& parallel);

}  // namespace edk
