// Read from the processor itself: `__builtin_cpu_supports` knows nothing where the compiler's own
// runtime library is not the one that is linked.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, CPUID and XGETBV.
#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>

#include "cpu_features.h"

namespace edk {
namespace {

constexpr uint64_t kYmmState = 0x06;  // XMM, and the upper halves of YMM
constexpr uint64_t kZmmState = 0xe6;  // these, masks, ZMM

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// All zero where the processor has no such leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(unsigned word, int place) { return (word >> place & 1) != 0; }

/// Registers that the system saves when it changes threads.
uint64_t saved_state(const Registers& basic) {
  if (!bit(basic.ecx, 27)) return 0;  // XGETBV would be an illegal instruction
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

struct Features {
  bool avx2, avxvnni, avx512vnni;
};

Features read_features() {
  const Registers basic = cpuid(1, 0);
  const Registers more = cpuid(7, 0);
  const Registers most = more.eax >= 1 ? cpuid(7, 1) : Registers{};
  const uint64_t saved = saved_state(basic);
  const bool has_fma = bit(basic.ecx, 12), has_f16c = bit(basic.ecx, 29);
  const bool has_avx512 = bit(more.ebx, 16) && bit(more.ebx, 17) && bit(more.ebx, 30) &&
                          bit(more.ebx, 31);  // F, DQ, BW, VL
  Features found;
  found.avx2 = (saved & kYmmState) == kYmmState && bit(more.ebx, 5) && has_fma && has_f16c;
  found.avxvnni = found.avx2 && bit(most.eax, 4);
  found.avx512vnni =
      (saved & kZmmState) == kZmmState && found.avx2 && has_avx512 && bit(more.ecx, 11);
  return found;
}

const Features& features() {
  static const Features found = read_features();
  return found;
}

}  // namespace

bool runs_avx2() { return features().avx2; }
bool runs_avxvnni() { return features().avxvnni; }
bool runs_avx512vnni() { return features().avx512vnni; }

const bool kIsAmd = cpuid(0, 0).ebx == 0x68747541;  // "Auth", of "AuthenticAMD"

}  // namespace edk

#endif
