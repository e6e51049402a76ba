// Where a thread runs.
#pragma once

namespace edk {

/// Keeps the calling thread on `processor`, counted from 0. Where that is refused, or the system knows
/// no such thing, the system chooses.
void stay_on(int processor);

}  // namespace edk
