// For functions whose arguments must never have their address taken, or they leave the registers.
// A simd_*.h whose lanes are no registers says otherwise beforehand.
#pragma once

#if !defined(EDK_INLINE)
#define EDK_INLINE __attribute__((always_inline)) inline
#endif
