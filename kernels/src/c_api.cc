// What Python's ctypes calls: the kernels without a runtime around them.
//
// The caller (kernels/cpu.py) checks shapes. Functions that compute return a `Result`.
#include <cstring>
#include <exception>

#include "export.h"
#include "kernels.h"
#include "limits.h"
#include "pool.h"
#include "scratch.h"

namespace edk {
namespace {

enum Result { kNoMemory = -1, kNoIsa = 0, kDone = 1 };

/// Told of every task in turn while this thread's operators run their tasks one by one: before the
/// first of `n` with -1, and after each with its number.
using Observer = void (*)(int64_t task, int64_t n);
thread_local Observer observer = nullptr;

/// Threads made for each call and joined after it: slow to start, and nothing of them stays.
class CallThreads : public Parallel {
 public:
  explicit CallThreads(int n_threads) : pool_(n_threads, {}) {}

  void run(int64_t n, void (*fn)(void* user, int64_t i), void* user) const override {
    observer == nullptr ? pool_.run(n, fn, user) : run_observed(n, fn, user);
  }

 private:
  static void run_observed(int64_t n, void (*fn)(void* user, int64_t i), void* user) {
    observer(-1, n);
    for (int64_t i = 0; i < n; ++i) {
      fn(user, i);
      observer(i, n);
    }
  }

  Pool pool_;
};

const Kernels* find_kernels(const char* isa) {
  const char* why = nullptr;
  return isa != nullptr ? kernels_for(isa) : active_kernels(&why);
}

/// Runs one operator of `isa`; nothing is thrown into the caller, which is not C++.
template <class Args>
Result compute(const char* isa, void (*Kernels::*op)(const Args&, const Parallel&),
               const Args* args, int n_threads) {
  const Kernels* kernels = find_kernels(isa);
  if (kernels == nullptr) return kNoIsa;
  try {
    (kernels->*op)(*args, CallThreads(n_threads));
    return kDone;
  } catch (const std::exception&) {  // kernels check nothing, so only memory can fail
    return kNoMemory;
  }
}

}  // namespace
}  // namespace edk

/// Bytes of the arguments of operator `name`, or of "pack"; -1 for an unknown one. A door built for
/// other sizes must not call this library.
EDGEDEC_EXPORT int64_t edgedec_args_bytes(const char* name) {
#define EDK_BYTES(op, Args) \
  if (std::strcmp(name, #op) == 0) return sizeof(edk::Args);
  EDK_OPERATORS(EDK_BYTES)
  EDK_BYTES(pack, PlainMatrix)
#undef EDK_BYTES
  return -1;
}

/// Names of the usable instruction sets, best first, as "a,b,c".
EDGEDEC_EXPORT const char* edgedec_available_isas() { return edk::available_isas(); }

/// Name of the instruction set in use; null, with `*why` set, if there is none.
EDGEDEC_EXPORT const char* edgedec_active_isa(const char** why) {
  const edk::Kernels* kernels = edk::active_kernels(why);
  return kernels != nullptr ? kernels->isa : nullptr;
}

EDGEDEC_EXPORT int64_t edgedec_packed_nbytes(int format, int64_t n, int64_t k) {
  return edk::packed_nbytes(format, n, k);
}

EDGEDEC_EXPORT void edgedec_pack(const edk::PlainMatrix* plain, uint8_t* out) {
  edk::pack(*plain, out);
}

// edgedec_NAME for each operator.
#define EDK_DOOR(name, Args)                                                                     \
  EDGEDEC_EXPORT int edgedec_##name(const char* isa, const edk::Args* args, int n_threads) {     \
    return edk::compute(isa, &edk::Kernels::name, args, n_threads);                              \
  }
EDK_OPERATORS(EDK_DOOR)
#undef EDK_DOOR

/// Has this thread's operators run their tasks one by one and report to `observer`; null ends that.
/// So tests see what a task writes, and that no two write the same cache line.
EDGEDEC_EXPORT void edgedec_observe_tasks(edk::Observer observer) { edk::observer = observer; }

/// Memory that the tasks of this thread's latest operator share, `*n_bytes` long.
EDGEDEC_EXPORT uint8_t* edgedec_shared_memory(int64_t* n_bytes) {
  const edk::Memory memory = edk::current_scratch(edk::ScratchUse::kOperator);
  *n_bytes = static_cast<int64_t>(memory.size);
  return static_cast<uint8_t*>(memory.data);
}

/// Bytes per second read from `data` [n_bytes]; see limits.h.
EDGEDEC_EXPORT double edgedec_read_rate(const uint8_t* data, int64_t n_bytes, int n_threads,
                                        double seconds) {
  return edk::read_rate(data, n_bytes, n_threads, seconds);
}

/// Multiply-accumulates of bytes per second; 0 if the instruction set is not usable here.
EDGEDEC_EXPORT double edgedec_multiply_rate(const char* isa, int n_threads, double seconds) {
  const edk::Kernels* kernels = edk::find_kernels(isa);
  return kernels != nullptr ? edk::multiply_rate(*kernels, n_threads, seconds) : 0;
}
