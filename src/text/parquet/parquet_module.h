#pragma once

#include <cstddef>

/// Reads Parquet files for mezzo, in a module of its own (mezzo_parquet.so), which is loaded when there is one to
/// read: Arrow, which it needs, is large. No C++ type passes between the two.
extern "C" {

/// Called with each row as a JSON object: columns in the file's order, those that nobody wants null. Returns false to
/// read no further. Must not throw.
using MezzoParquetRow = bool (*)(void* context, const char* json, std::size_t size);

/// @param path  of the file, in the encoding of the system
/// @param wanted  names of columns; nullptr: all
/// @return nullptr, or what is wrong: text that lasts until this thread calls it again
const char* mezzo_read_parquet(
    const char* path, const char* const* wanted, std::size_t num_wanted, MezzoParquetRow on_row, void* context);
}
