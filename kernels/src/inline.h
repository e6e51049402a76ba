// For functions whose arguments must never have their address taken, or they leave the registers.
#pragma once

#define EDK_INLINE __attribute__((always_inline)) inline
