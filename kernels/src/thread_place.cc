#include "thread_place.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace edk {

void stay_on(int processor) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);
#elif defined(_WIN32)
  // A mask is of the 64 processors of one group.
  if (processor < 64) SetThreadAffinityMask(GetCurrentThread(), DWORD_PTR{1} << processor);
#else
  (void)processor;
#endif
}

}  // namespace edk
