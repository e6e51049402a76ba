// Hints to the system about mapped files. None changes a result.
#pragma once

#include <cstdint>

namespace edk {

/// Says that few bytes of `data` [n_bytes] will be read, here and there: where it is a mapped file the
/// system then reads what is asked for and not what lies around it.
void expect_scattered_reads(const void* data, int64_t n_bytes);

/// Says that every pass will read all of `data` [n_bytes]. Linux then reads a mapped file into huge pages,
/// if its file system can: looking up small pages took a tenth to a sixth of the time of reading weights.
void expect_whole_reads(const void* data, int64_t n_bytes);

/// Begins to read what memory lacks of `data` [n_bytes], if that is a mapped file, and nothing around it. A
/// page that is not there when it is needed makes Linux read as much around it as the disk is set to.
void bring_in(const void* data, int64_t n_bytes);

}  // namespace edk
