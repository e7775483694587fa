#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "text/data/raw_label.h"
#include "text/data/row_formats.h"
#include "text/io/csv_reader.h"
#include "text/io/json.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

struct CsvColumns {
  size_t count = 0;
  size_t text = 0;
  std::optional<size_t> text_pair, label;
  std::vector<size_t> flags;   // of Columns::flags
  std::vector<size_t> others;  // that are not read
};

constexpr std::string_view kDelimiters = ",;\t|";

std::string name_of(char delimiter) {
  return delimiter == '\t' ? "tab" : delimiter == ',' ? "comma" : fmt::format("'{}'", delimiter);
}

/// The fields of the first records, without the last one if `text` may end inside of it. Empty if quotes do not fit the
/// delimiter; nullopt if the first record goes on after `text`.
std::optional<std::vector<std::vector<std::string>>> first_records(std::string_view text,
                                                                   char delimiter,
                                                                   bool unquoted) {
  constexpr size_t kMost = 50;
  struct Fault {};
  TextInput input(text);
  CsvReader csv(input, delimiter, [](int64_t, const std::string&) { throw Fault(); }, unquoted);
  std::vector<std::vector<std::string>> records;
  try {
    for (std::vector<std::string> fields; records.size() < kMost && csv.next(fields);) records.push_back(fields);
  } catch (const Fault&) {
    if (records.empty() && input.at_end()) return std::nullopt;
    return records;
  }
  if (records.size() > 1 && input.at_end() && !text.ends_with('\n') && !text.ends_with('\r')) records.pop_back();
  return records;
}

/// The delimiter with which the header has all columns that are read. Else the one that splits the first records into
/// most fields, the same number in each.
/// @param of_name  the delimiter of the file's name, which wins a tie.
char detect_delimiter(std::string_view text, char of_name, bool unquoted, const Columns& columns) {
  std::string delimiters(1, of_name);
  std::ranges::copy_if(kDelimiters, std::back_inserter(delimiters), [&](char c) { return c != of_name; });
  char best = of_name;
  size_t most = 1;
  for (const char delimiter : delimiters) {
    const auto records = first_records(text, delimiter, unquoted);
    if (!records && delimiter == of_name) return of_name;
    if (!records || records->empty()) continue;
    const auto& header = records->front();
    if (columns.missing(header).empty()) return delimiter;
    const bool are_alike = std::ranges::all_of(*records, [&](const auto& row) { return row.size() == header.size(); });
    if (are_alike && header.size() > most) {
      best = delimiter;
      most = header.size();
    }
  }
  return best;
}

/// Moves past a first line "sep=;", by which a file tells Excel its delimiter.
/// @return the delimiter; 0 if the line is missing
char take_line_of_excel(TextInput& input) {
  std::string_view line = input.at_hand();
  line = line.substr(0, line.find_first_of("\r\n"));
  const size_t length = line.size();
  if (line.starts_with('"') && line.ends_with('"') && length > 1) line = line.substr(1, length - 2);
  const bool is_there = line.size() == 5 && line.starts_with("sep=") && kDelimiters.find(line[4]) != line.npos;
  const char delimiter = is_there ? line[4] : '\0';
  if (is_there) input.skip(length);
  return delimiter;
}

/// Of a file without a header.
std::vector<std::string> numbers(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 1; i <= count; ++i) names.push_back(std::to_string(i));
  return names;
}

CsvColumns csv_columns(const std::vector<std::string>& header,
                       const std::string& where,
                       bool is_in_file,
                       const Columns& columns) {
  const auto find = [&](const Column& column) -> std::optional<size_t> {
    const auto found = std::ranges::find(header, column.name);
    if (found == header.end()) return std::nullopt;
    TORCH_CHECK_VALUE(std::find(found + 1, header.end(), column.name) == header.end(), where, "two columns '",
                      column.name, "'. Rename one.");
    return found - header.begin();
  };
  const auto text = find(columns.text), label = find(columns.label);
  const bool may_be_row = is_in_file && !text && !label;
  const std::string missing = columns.missing(header);
  TORCH_CHECK_VALUE(
      missing.empty(), where, missing, ".",
      may_be_row ? " If this line is a row and not a header, name the columns: --columns text,label." : "");
  CsvColumns found{
      header.size(), *text, find(columns.text_pair), columns.label.is_required ? label : std::nullopt, {}, {}};
  for (const Column& flag : columns.flags) found.flags.push_back(*find(flag));
  for (size_t i = 0; i < header.size(); ++i) {
    if (i != found.text && i != found.text_pair && i != found.label && !columns.is_flag(header[i])) {
      found.others.push_back(i);
    }
  }
  return found;
}

/// The labels of a cell, with `|` between them.
std::vector<std::string> names_of_cell(std::string_view cell) {
  std::vector<std::string> names;
  for (size_t begin = 0; !cell.empty() && begin <= cell.size();) {
    const size_t end = std::min(cell.find('|', begin), cell.size());
    names.emplace_back(cell.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

/// @param rows  those before it, not of LabelKind::kWords.
RawLabel label_of_cell(std::string cell, const RowCollector& rows, Where where) {
  check_is_no_list(cell, rows.options(), where);
  if (rows.label_kind() == LabelKind::kSeveral) return names_of_cell(cell);
  if (rows.label_kind() == LabelKind::kNumber && !cell.empty()) return number_label(cell, where);
  return cell;
}

/// Names that differ: "id", "id.1", "id.2" of three columns "id", as pandas has them.
std::vector<std::string> unique_names(const std::vector<std::string>& header) {
  std::vector<std::string> names;
  std::set<std::string> taken(header.begin(), header.end());
  std::map<std::string, int64_t> seen;
  for (const std::string& name : header) {
    int64_t& count = seen[name];
    std::string unique = name;
    while (count > 0 && !taken.insert(unique = fmt::format("{}.{}", name, count)).second) ++count;
    ++count;
    names.push_back(std::move(unique));
  }
  return names;
}

/// Refuses a line that is the header again, as in files that cat joined. It may begin with a byte order mark.
void check_is_no_header(const std::vector<std::string>& fields, const std::vector<std::string>& header, Where where) {
  std::string_view first = fields.front();
  const bool has_mark = first.starts_with("\xEF\xBB\xBF");
  if (has_mark) first.remove_prefix(3);
  const bool is_header = first == header.front() && std::equal(fields.begin() + 1, fields.end(), header.begin() + 1) &&
                         (has_mark || header.size() > 1);  // else it may be a text: one word
  TORCH_CHECK_VALUE(!is_header, where(), "the line is the header again. Remove it, or give the files one by one.");
}

/// Refuses a first line that names the columns although --no-header is given.
void check_has_no_header(const std::vector<std::string>& fields, Where where) {
  const ColumnNames usual;
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(fields, [&](const std::string& field) { return ascii_lower(field) == name; });
  };
  TORCH_CHECK_VALUE(!has(usual.text) || !has(usual.label), where(),
                    "the line looks like a header. Leave out --no-header.");
}

/// Refuses a header that the given delimiter does not split, and another one does.
void check_splits_header(const std::vector<std::string>& header,
                         char delimiter,
                         const std::string& where,
                         const Columns& columns) {
  if (header.size() != 1) return;
  const std::string missing = columns.missing(header);
  for (const char other : kDelimiters) {
    TORCH_CHECK_VALUE(missing.empty() || other == delimiter || header.front().find(other) == std::string::npos, where,
                      missing.substr(0, missing.find(". Pass ")), ". The columns look separated by ",
                      other == '\t' ? "tabs" : fmt::format("'{}'", other), ". Leave out --delimiter.");
  }
}

/// The cells of other columns, as a JSON object.
std::string json_of_others(const std::vector<std::string>& names,
                           const std::vector<std::string>& fields,
                           const std::vector<size_t>& others) {
  std::string object;
  for (const size_t i : others) add_json_member(object, names[i], quoted_json(fields[i]));
  return object;
}

}  // namespace

bool begins_table(std::string_view text, const Columns& columns) {
  const auto records = first_records(text, '\t', /*unquoted=*/false);
  if (!records || records->empty() || !columns.missing(records->front()).empty()) return false;
  const size_t count = records->front().size();
  return count > 1 && std::ranges::all_of(*records, [&](const auto& fields) { return fields.size() == count; });
}

void read_csv(TextInput& input, char delimiter, RowCollector& rows) {
  const LoadRowsOptions& options = rows.options();
  const ColumnNames& format = options.columns();
  const auto fail = [&](int64_t line, const std::string& found) {
    TORCH_CHECK_VALUE(false, rows.between(line), found, ", or pass --unquoted if quotes are ordinary characters.");
  };
  TORCH_CHECK_VALUE(rows.label_kind() != LabelKind::kWords, rows.between(1),
                    "a cell cannot hold labels of words. Use .conll, .json or .jsonl.");
  const char of_name = delimiter;
  if (format.delimiter != "auto") {
    delimiter = format.delimiter_char();
  } else if (const char of_excel = take_line_of_excel(input); of_excel != '\0') {
    delimiter = of_excel;
  } else {
    delimiter = detect_delimiter(input.at_hand(), of_name, format.unquoted, rows.columns());
    if (delimiter != of_name) {
      rows.note(fmt::format("columns are separated by {} (detected); --delimiter changes it", name_of(delimiter)));
    }
  }
  CsvReader csv(input, delimiter, fail, format.unquoted);
  std::vector<std::string> fields;
  if (!csv.next(fields)) return;
  const bool has_header = format.has_header();
  const std::vector<std::string> header = has_header               ? fields
                                          : format.columns.empty() ? numbers(fields.size())
                                                                   : split_names(format.columns, "--columns");
  if (has_header && format.delimiter != "auto") {
    check_splits_header(header, delimiter, rows.between(csv.line()), rows.columns());
  }
  if (format.no_header && format.columns.empty()) {
    check_has_no_header(fields, [&] { return rows.between(csv.line()); });
  }
  const CsvColumns columns = csv_columns(header, rows.between(csv.line()), has_header, rows.columns());
  const std::vector<std::string> names = unique_names(header);
  int64_t num_skipped = 0;
  for (bool is_first = true; !rows.full(); is_first = false) {
    if ((has_header || !is_first) && !csv.next(fields)) break;
    if (fields.size() > 1 && std::ranges::all_of(fields, &std::string::empty)) {  // spreadsheets write such rows
      ++num_skipped;
      continue;
    }
    const int64_t line = csv.line();
    const auto where = [&] { return rows.where(line); };
    TORCH_CHECK_VALUE(fields.size() == columns.count, where(), fields.size(), fields.size() == 1 ? " field" : " fields",
                      " where ",
                      has_header               ? "the header names "
                      : format.columns.empty() ? "the first row has "
                                               : "--columns names ",
                      columns.count, format.unquoted ? ". A text cannot hold a " : ". Quote a text that holds a ",
                      name_of(delimiter), ", or pass the right --delimiter.");
    if (!format.no_header) check_is_no_header(fields, header, [&] { return rows.between(line); });
    Row row;
    if (options.other_columns()) row.others = json_of_others(names, fields, columns.others);
    row.text = std::move(fields[columns.text]);
    if (columns.label) row.label = label_of_cell(std::move(fields[*columns.label]), rows, where);
    for (size_t i = 0; i < columns.flags.size(); ++i) {
      const std::string& name = rows.columns().flags[i].name;
      if (flag_label(fields[columns.flags[i]], name, where)) row.flags.push_back(name);
    }
    if (columns.text_pair) row.text_pair = std::move(fields[*columns.text_pair]);
    rows.add(std::move(row), line);
  }
  if (num_skipped > 0) {
    rows.note(fmt::format("skipped {} {} without any value", num_skipped, num_skipped == 1 ? "row" : "rows"));
  }
}

}  // namespace mezzo::text
