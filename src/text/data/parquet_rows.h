#pragma once

#include <filesystem>

#include "text/data/row_collector.h"

namespace mezzo::text {

/// Adds the rows of a Parquet file, each as the JSON object of its columns would be (json_rows.cpp); dates and the
/// like are strings. Reads what is wanted of the columns alone.
/// @throws c10::ValueError  naming the file: where it is damaged, or this build of mezzo reads none
void read_parquet(const std::filesystem::path& file, RowCollector& rows);

}  // namespace mezzo::text
