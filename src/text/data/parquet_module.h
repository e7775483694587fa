#pragma once

#include <cstddef>

/// Reads Parquet files for mezzo, in a module of its own (mezzo_parquet.so), which is loaded when there is one to
/// read: Arrow, which it needs, is large. No C++ type passes between the two.
/// Another name with every change of what follows, so that a module of another build is not taken for one of this.
#define MEZZO_READ_PARQUET mezzo_read_parquet_2

constexpr const char* kOfArrow = "Arrow: ";

extern "C" {

/// Called with each row as a JSON object, of which columns that nobody wants are null; classes of Hugging Face's
/// datasets (ClassLabel) are their names. Returns false to read no
/// further. Must not throw.
/// @param replaced  whether bytes that are no UTF-8 became U+FFFD
using MezzoParquetRow = bool (*)(void* context, const char* json, std::size_t size, bool replaced);

/// @param path  of the file, in the encoding of the system
/// @param wanted  names of columns, whose text must be UTF-8
/// @param wants_others  whether others are read, too
/// @return nullptr, or what is wrong, after kOfArrow where it is Arrow that says so: text that lasts until this thread
/// calls it again
const char* MEZZO_READ_PARQUET(const char* path,
                               const char* const* wanted,
                               std::size_t num_wanted,
                               bool wants_others,
                               MezzoParquetRow on_row,
                               void* context);
}
