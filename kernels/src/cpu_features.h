// Whether this processor has the instructions of a set, and the system lets programs use them.
#pragma once

namespace edk {

#if defined(__x86_64__)
bool runs_avx2();  // with FMA and half floats
bool runs_avxvnni();
bool runs_avx512vnni();

extern const bool kIsAmd;  // who made the processor; known once the library is loaded
#elif defined(__aarch64__)
bool runs_neondot();
bool runs_neoni8mm();
#endif

}  // namespace edk
