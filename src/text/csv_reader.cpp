#include "text/csv_reader.h"

#include <utility>

namespace mezzo::text {

CsvReader::CsvReader(std::string_view csv,
                     char delimiter,
                     std::function<void(int64_t line, const std::string& found)> fail)
    : csv_(csv), delimiter_(delimiter), fail_(std::move(fail)) {}

/// The next character; counts lines. CR LF is one line break, counted at its LF.
char CsvReader::take() {
  const char c = csv_[position_++];
  if (c == '\n' || (c == '\r' && (at_end() || csv_[position_] != '\n'))) ++line_;
  return c;
}

std::string CsvReader::quoted_field() {
  const int64_t opened = line_;
  std::string field;
  take();
  while (true) {
    if (at_end()) fail_(opened, "a field opens with a double quote that is never closed");
    const char c = take();
    if (c == '"') {
      if (at_end() || csv_[position_] != '"') break;
      take();
    }
    field += c;
  }
  if (!at_end() && csv_[position_] != delimiter_ && !at_line_break()) {
    fail_(line_, "text after the closing quote of a field; inside quotes, write a quote twice");
  }
  return field;
}

std::string CsvReader::plain_field() {
  const size_t begin = position_;
  while (!at_end() && csv_[position_] != delimiter_ && !at_line_break()) ++position_;
  return std::string(csv_.substr(begin, position_ - begin));
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  while (!at_end() && at_line_break()) take();
  if (at_end()) return false;
  record_line_ = line_;
  while (true) {
    fields.push_back(!at_end() && csv_[position_] == '"' ? quoted_field() : plain_field());
    if (at_end()) return true;
    if (at_line_break()) break;
    take();  // the delimiter
  }
  if (take() == '\r' && !at_end() && csv_[position_] == '\n') take();
  return true;
}

}  // namespace mezzo::text
