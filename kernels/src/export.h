// What the library shows to others, under its C name; exports.map lists the names for ELF's linker.
#pragma once

#if defined(_WIN32)
#define EDGEDEC_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGEDEC_EXPORT extern "C" __attribute__((visibility("default")))
#endif
