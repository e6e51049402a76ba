// Programs may not ask an ARM processor what it has; every system has its own way to say so.
#if defined(__aarch64__)

#include "cpu_features.h"

#if defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace edk {

bool runs_neondot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool runs_neoni8mm() { return runs_neondot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

}  // namespace edk

#elif defined(__APPLE__)

#include <sys/sysctl.h>

namespace edk {
namespace {

bool has(const char* feature) {
  int value = 0;
  size_t n_bytes = sizeof value;
  return sysctlbyname(feature, &value, &n_bytes, nullptr, 0) == 0 && value != 0;
}

}  // namespace

bool runs_neondot() { return has("hw.optional.arm.FEAT_DotProd"); }
bool runs_neoni8mm() { return runs_neondot() && has("hw.optional.arm.FEAT_I8MM"); }

}  // namespace edk

#elif defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

namespace edk {
namespace {

// As winnt.h numbers them; older headers lack the second.
constexpr DWORD kDotProduct = 43;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
constexpr DWORD kI8mm = 66;        // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE

}  // namespace

bool runs_neondot() { return IsProcessorFeaturePresent(kDotProduct) != 0; }
bool runs_neoni8mm() { return runs_neondot() && IsProcessorFeaturePresent(kI8mm) != 0; }

}  // namespace edk

#else

namespace edk {

bool runs_neondot() { return false; }
bool runs_neoni8mm() { return false; }

}  // namespace edk

#endif
#endif
