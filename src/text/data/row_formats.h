#pragma once

#include <filesystem>

#include "text/data/row_collector.h"
#include "text/io/text_input.h"

/// The formats that load_rows() reads; dataset.h describes them. Each function reads rows until the file ends or the
/// collector is full.
namespace mezzo::text {

/// An array of rows, an object whose array "data" holds them, or one row after the other.
/// @param are_lines  whether arrays of strings are rows, not an array of rows.
void read_json(TextInput& input, bool are_lines, RowCollector& rows);
/// Whether `text` begins with the header of a table with tabs, several columns and all that are read.
bool begins_table(std::string_view text, const Columns& columns);
/// @param delimiter  of the file's name, if the rows fit it.
void read_csv(TextInput& input, char delimiter, RowCollector& rows);
void read_txt(TextInput& input, RowCollector& rows);
void read_conll(TextInput& input, RowCollector& rows);
/// @throws c10::ValueError  naming the file, also if this build of mezzo reads no Parquet
void read_parquet(const std::filesystem::path& file, RowCollector& rows);

}  // namespace mezzo::text
