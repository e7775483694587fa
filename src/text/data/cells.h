#pragma once

#include <string>
#include <vector>

#include "text/data/raw_label.h"
#include "text/data/row_collector.h"
#include "text/io/json.h"

namespace mezzo::text {

/// A value of a row in JSON or Parquet.
struct Cell {
  JsonReader::Type type = JsonReader::Type::kNull;
  std::string text = {};            ///< a string, or a number or a boolean as JSON writes it
  std::vector<Cell> elements = {};  ///< of an array
};

/// Sets the value of a column that RowCollector::reads().
/// @throws c10::ValueError  after `where`, for a cell of another type
void set_cell(Row& row, const std::string& column, Cell cell, const RowCollector& rows, Where where);

/// Refuses a row without a column that is read, except a label that only this row lacks: RowCollector refuses that.
void check_columns(Row& row, const std::vector<std::string>& columns, const RowCollector& rows, Where where);

}  // namespace mezzo::text
