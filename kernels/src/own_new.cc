// Memory for C++ that no other library of the process sees.
//
// Where the C++ library is linked in, its operators new and delete would be exported, and loaders of
// Mach-O would have the whole process use one set of them. ELF has exports.map against that. This
// file is compiled for macOS only, with a flag that hides what it defines.
#include <cstdlib>
#include <new>

namespace {

void* checked(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* aligned(size_t n_bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  const int failed = posix_memalign(&memory, static_cast<size_t>(alignment), n_bytes);
  return checked(failed ? nullptr : memory);
}

}  // namespace

void* operator new(size_t n) { return checked(std::malloc(n > 0 ? n : 1)); }
void* operator new[](size_t n) { return operator new(n); }
void* operator new(size_t n, std::align_val_t a) { return aligned(n, a); }
void* operator new[](size_t n, std::align_val_t a) { return aligned(n, a); }

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
