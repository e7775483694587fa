#include "text/io/csv_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace mezzo::text {

CsvReader::CsvReader(TextInput& csv,
                     char delimiter,
                     std::function<void(int64_t line, const std::string& found)> fail,
                     bool unquoted)
    : csv_(csv), delimiter_(delimiter), unquoted_(unquoted), fail_(std::move(fail)) {}

/// The next character; counts lines. CR LF is one line break, counted at its LF.
char CsvReader::take() {
  const char c = csv_.take();
  if (c == '\n' || (c == '\r' && (csv_.at_end() || csv_.peek() != '\n'))) {
    ++line_;
    end_line();
  } else if (c != '\r') {
    line_is_blank_ = false;
    fields_on_line_ += c == delimiter_;
  }
  return c;
}

void CsvReader::end_line() {
  lines_are_rows_ = lines_are_rows_ && (line_is_blank_ || fields_on_line_ == columns_);
  fields_on_line_ = 1;
  line_is_blank_ = true;
}

std::string CsvReader::quoted_field() {
  const int64_t opened = line_;
  std::string field;
  take();
  while (true) {
    if (csv_.at_end()) {
      fail_(opened,
            "a field opens with a double quote that is never closed. Close it, put the text in quotes "
            "and double each quote inside it");
    }
    const char c = take();
    if (c == '"') {
      if (csv_.at_end() || csv_.peek() != '"') break;
      take();
    }
    field += c;
  }
  if (line_ > opened && long_field_line_ == 0) long_field_line_ = opened;
  if (!csv_.at_end() && csv_.peek() != delimiter_ && !at_line_break()) {
    fail_(line_, fmt::format("text after the closing quote of a field{}; inside quotes, write a quote twice",
                             line_ > opened ? fmt::format(" that opens on line {}", opened) : ""));
  }
  return field;
}

std::string CsvReader::plain_field() {
  std::string field;
  const auto ends = [&](char c) { return c == delimiter_ || c == '\n' || c == '\r'; };
  while (!csv_.at_end() && !ends(csv_.peek())) {
    const std::string_view text = csv_.at_hand();
    const size_t plain = std::ranges::find_if(text, ends) - text.begin();
    field += text.substr(0, plain);
    csv_.skip(plain);
    line_is_blank_ = false;
  }
  return field;
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  while (!csv_.at_end() && at_line_break()) take();
  if (csv_.at_end()) return false;
  record_line_ = line_;
  long_field_line_ = 0;
  lines_are_rows_ = true;
  int64_t last_line = 0;
  while (true) {
    const bool is_quoted = !unquoted_ && !csv_.at_end() && csv_.peek() == '"';
    fields.push_back(is_quoted ? quoted_field() : plain_field());
    last_line = line_;
    if (csv_.at_end()) {
      end_line();
      break;
    }
    if (at_line_break()) {
      if (take() == '\r' && !csv_.at_end() && csv_.peek() == '\n') take();
      break;
    }
    take();  // the delimiter
  }
  check_lines_are_no_rows(last_line);
  if (columns_ == 0) columns_ = fields.size();
  return true;
}

void CsvReader::check_lines_are_no_rows(int64_t last_line) const {
  if (delimiter_ != '\t' || columns_ < 2 || long_field_line_ == 0 || !lines_are_rows_) return;
  fail_(long_field_line_,
        fmt::format(
            "a double quote opens a field here and closes on line {}, but each of these lines has all {} columns. "
            "Put the text in quotes and double each quote inside it",
            last_line, columns_));
}

}  // namespace mezzo::text
