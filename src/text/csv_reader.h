#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// Splits RFC 4180 text into records: fields between delimiters, those that hold a delimiter, a quote or a line break
/// in double quotes, with "" for a quote. Takes also what spreadsheets and Python's csv module write: records ended by
/// LF, CR or CR LF, fields of different number, a quote inside a field that does not start with one. Skips blank lines.
class CsvReader {
 public:
  /// @param fail  called with the line and what is wrong; must throw.
  CsvReader(std::string_view csv, char delimiter, std::function<void(int64_t line, const std::string& found)> fail);

  /// The next record, or false at the end.
  bool next(std::vector<std::string>& fields);

  /// The line on which the last record began, from 1.
  int64_t line() const { return record_line_; }

 private:
  bool at_end() const { return position_ == csv_.size(); }
  bool at_line_break() const { return csv_[position_] == '\n' || csv_[position_] == '\r'; }
  char take();
  std::string quoted_field();
  std::string plain_field();

  std::string_view csv_;
  char delimiter_;
  std::function<void(int64_t, const std::string&)> fail_;
  size_t position_ = 0;
  int64_t line_ = 1;
  int64_t record_line_ = 0;
};

}  // namespace mezzo::text
