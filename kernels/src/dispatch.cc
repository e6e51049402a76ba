// Which kernels this machine can run, best first, and which one is in force.
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu_features.h"
#include "kernels.h"

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

/// Best to worst.
const Candidate* candidates() {
  static const Candidate table[] = {
#if defined(EDGEDEC_HAVE_AVX512VNNI)
      {&avx512vnni::kKernels, runs_avx512vnni()},
#endif
#if defined(EDGEDEC_HAVE_AVXVNNI)
      {&avxvnni::kKernels, runs_avxvnni()},
#endif
#if defined(EDGEDEC_HAVE_AVX2)
      {&avx2::kKernels, runs_avx2()},
#endif
#if defined(EDGEDEC_HAVE_NEONI8MM)
      {&neoni8mm::kKernels, runs_neoni8mm()},
#endif
#if defined(EDGEDEC_HAVE_NEONDOT)
      {&neondot::kKernels, runs_neondot()},
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
