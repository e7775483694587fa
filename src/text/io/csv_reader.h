#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "text/io/text_input.h"

namespace mezzo::text {

/// Splits RFC 4180 text into records of fields between delimiters. A field with a delimiter, a quote or a line break is
/// in double quotes, with "" for a quote. Also takes the output of spreadsheets and Python's csv module. Records may
/// end with LF, CR or CR LF, and differ in their number of fields. A field that does not start with a quote may contain
/// quotes. Skips blank lines.
///
/// In tab-separated files quotes count as they do in pandas, Python's csv module and Hugging Face's datasets. But many
/// such files do not use quotes as syntax. There a text that begins with a quote would swallow the rows up to the next
/// such text. So a record over several lines is refused if each line has as many tab-separated fields as the header. A
/// text in quotes hardly ever looks like that.
class CsvReader {
 public:
  /// @param csv   must outlive this.
  /// @param fail  called with the line and the error; must throw.
  /// @param unquoted  whether a quote is a character as others are, so that no field holds a delimiter or a line break.
  CsvReader(TextInput& csv,
            char delimiter,
            std::function<void(int64_t line, const std::string& found)> fail,
            bool unquoted = false);

  /// The next record, or false at the end.
  bool next(std::vector<std::string>& fields);

  /// The line on which the last record began, from 1.
  int64_t line() const { return record_line_; }

 private:
  bool at_line_break() const { return csv_.peek() == '\n' || csv_.peek() == '\r'; }
  char take();
  void end_line();
  std::string quoted_field();
  std::string plain_field();
  void check_lines_are_no_rows(int64_t last_line) const;

  TextInput& csv_;
  char delimiter_;
  bool unquoted_;
  std::function<void(int64_t, const std::string&)> fail_;
  size_t columns_ = 0;  // of the first record
  int64_t line_ = 1;
  int64_t record_line_ = 0;

  // Of the record being read, as if there were no quotes.
  size_t fields_on_line_ = 1;
  bool line_is_blank_ = true;
  bool lines_are_rows_ = true;   // each that is not blank has as many fields as `columns_`
  int64_t long_field_line_ = 0;  // where its first field over several lines begins, or 0
};

}  // namespace mezzo::text
