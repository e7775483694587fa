#pragma once

#include <filesystem>

#include "text/data/row_collector.h"

namespace mezzo::text {

/// Adds the rows of a Parquet file. Dates and values of other types that JSON lacks are strings.
/// @throws c10::ValueError  naming the file, if it is damaged, or if this build of mezzo reads no Parquet
void read_parquet(const std::filesystem::path& file, RowCollector& rows);

}  // namespace mezzo::text
