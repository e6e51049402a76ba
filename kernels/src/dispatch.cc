// Which kernels this machine can run, best first, and which one is in force.
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels.h"

#if defined(EDGEDEC_HAVE_NEONDOT)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace edk {

namespace scalar { extern const Kernels kKernels; }
#if defined(EDGEDEC_HAVE_AVX512VNNI)
namespace avx512vnni { extern const Kernels kKernels; }
#endif
#if defined(EDGEDEC_HAVE_AVXVNNI)
namespace avxvnni { extern const Kernels kKernels; }
#endif
#if defined(EDGEDEC_HAVE_AVX2)
namespace avx2 { extern const Kernels kKernels; }
#endif
#if defined(EDGEDEC_HAVE_NEONI8MM)
namespace neoni8mm { extern const Kernels kKernels; }
#endif
#if defined(EDGEDEC_HAVE_NEONDOT)
namespace neondot { extern const Kernels kKernels; }
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool is_usable;
};

#if defined(EDGEDEC_HAVE_AVX2)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#endif

#if defined(EDGEDEC_HAVE_NEONDOT)
bool has_neon(unsigned long first, unsigned long second) {
  return (getauxval(AT_HWCAP) & first) == first && (getauxval(AT_HWCAP2) & second) == second;
}
#endif

/// Best to worst. The operating system's support for the registers is part of the feature bits.
const Candidate* candidates() {
  static const Candidate table[] = {
#if defined(EDGEDEC_HAVE_AVX512VNNI)
      {&avx512vnni::kKernels,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma")},
#endif
#if defined(EDGEDEC_HAVE_AVXVNNI)
      {&avxvnni::kKernels, has_avx2() && __builtin_cpu_supports("avxvnni")},
#endif
#if defined(EDGEDEC_HAVE_AVX2)
      {&avx2::kKernels, has_avx2()},
#endif
#if defined(EDGEDEC_HAVE_NEONI8MM)
      {&neoni8mm::kKernels, has_neon(HWCAP_ASIMDDP, HWCAP2_I8MM)},
#endif
#if defined(EDGEDEC_HAVE_NEONDOT)
      {&neondot::kKernels, has_neon(HWCAP_ASIMDDP, 0)},
#endif
      {&scalar::kKernels, true},
      {nullptr, false},
  };
  return table;
}

}  // namespace

const Kernels* kernels_for(const char* isa) {
  for (const Candidate* c = candidates(); c->kernels; ++c)
    if (c->is_usable && std::strcmp(c->kernels->isa, isa) == 0) return c->kernels;
  return nullptr;
}

const char* available_isas() {
  static const std::string names = [] {
    std::string list;
    for (const Candidate* c = candidates(); c->kernels; ++c)
      if (c->is_usable) list += (list.empty() ? "" : ",") + std::string(c->kernels->isa);
    return list;
  }();
  return names.c_str();
}

const Kernels* active_kernels(const char** why) {
  const char* wanted = std::getenv("EDGEDEC_ISA");
  if (!wanted || !*wanted) {
    const Candidate* c = candidates();
    while (!c->is_usable) ++c;  // scalar ends the search
    return c->kernels;
  }
  const Kernels* found = kernels_for(wanted);
  if (!found && why) *why = "EDGEDEC_ISA names an instruction set that this machine or build lacks";
  return found;
}

}  // namespace edk
