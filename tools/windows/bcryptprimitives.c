// The one function of Windows' bcryptprimitives.dll that the tokenizers library calls, for Wine 8.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID data, ULONG size);  // RtlGenRandom

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
  return SystemFunction036(data, (ULONG)size);
}
