// Functions of other shared libraries, found by name.
#pragma once

namespace edk {

/// The function or object `name` of an open library, a handle as the system gives it; null if there
/// is none.
void* find_symbol(void* library, const char* name);

}  // namespace edk
