#pragma once

#include <cstddef>

/// Reads Parquet files for mezzo. Arrow is large, so this is a separate module (mezzo_parquet.so), which is loaded if
/// there is a file to read. No C++ type passes between mezzo and the module.
/// The name changes with the declarations below, so that a module of another build is not loaded.
#define MEZZO_READ_PARQUET mezzo_read_parquet_3

constexpr const char* kOfArrow = "Arrow: ";

extern "C" {

enum MezzoCellType { kMezzoNull, kMezzoText, kMezzoNumber, kMezzoBoolean, kMezzoList, kMezzoObject };

struct MezzoCell {
  MezzoCellType type;
  const char* bytes;  ///< of a text, maybe invalid UTF-8; of null, numbers and booleans as JSON writes them
  /// The length of `bytes`. Of a list or an object: the number of elements, which follow. A text, the key, goes before
  /// each element of an object.
  std::size_t size;
};

/// Called with each row: the elements of an object. Columns that are not read are null; classes of Hugging Face's
/// datasets (ClassLabel) are their names. Returns false to read no further. Must not throw.
using MezzoParquetRow = bool (*)(void* context, const MezzoCell* cells, std::size_t columns);

/// @param path  of the file, in the encoding of the system
/// @param wanted  names of columns with text, numbers, booleans or lists of them
/// @param wants_others  whether the other columns are read
/// @return nullptr, or an error message, after kOfArrow if it is Arrow's: text that lasts until this thread calls the
///   function again
const char* MEZZO_READ_PARQUET(const char* path,
                               const char* const* wanted,
                               std::size_t num_wanted,
                               bool wants_others,
                               MezzoParquetRow on_row,
                               void* context);
}
