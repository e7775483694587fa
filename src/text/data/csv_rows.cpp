#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "text/data/raw_label.h"
#include "text/data/row_formats.h"
#include "text/io/csv_reader.h"
#include "text/io/json.h"
#include "text/io/utf8.h"
#include "text/words/printable.h"

namespace mezzo::text {
namespace {

struct CsvColumns {
  size_t count = 0;
  size_t text = 0;
  std::optional<size_t> text_pair, label;
  std::vector<size_t> flags;   // of Columns::flags
  std::vector<size_t> others;  // that are not read
};

/// In quotes; not all of very many.
std::string first_names(const std::vector<std::string>& header) {
  constexpr size_t kShown = 20;
  std::vector<std::string> names;
  for (const std::string& name : std::span(header).first(std::min(kShown, header.size()))) {
    names.push_back(quoted_name(name));
  }
  return fmt::format("{}{}", fmt::join(names, ", "), names.size() < header.size() ? ", …" : "");
}

/// The first line that is not empty, and its number. The line is empty if its end is not at hand.
std::pair<std::string, int64_t> first_line(TextInput& input) {
  const std::string_view text = input.at_hand();
  const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
  const size_t end = text.find_first_of("\r\n", begin);
  const std::string_view line = text.substr(begin, end == text.npos ? 0 : end - begin);
  return {std::string(line), 1 + std::ranges::count(text.substr(0, begin), '\n')};
}

/// The fields of a line; none if its quotes do not fit the delimiter, and nullopt if the last field goes on in the
/// next.
std::optional<std::vector<std::string>> split(std::string_view line, char delimiter, bool unquoted) {
  struct Fault {};
  TextInput input(line);
  CsvReader csv(input, delimiter, [](int64_t, const std::string&) { throw Fault(); }, unquoted);
  std::vector<std::string> fields;
  try {
    csv.next(fields);
  } catch (const Fault&) {
    if (input.at_end()) return std::nullopt;
    fields.clear();
  }
  return fields;
}

/// The delimiter of a header, if it differs from that of the file's name; else '\0'.
char other_delimiter(const std::string& line, char delimiter, bool unquoted, const Columns& columns) {
  const auto has_columns = [&](const std::vector<std::string>& names) {
    return std::ranges::all_of(std::array{&columns.text, &columns.text_pair, &columns.label},
                               [&](const Column* column) {
                                 return !column->is_required || std::ranges::find(names, column->name) != names.end();
                               });
  };
  const auto names = split(line, delimiter, unquoted);
  if (!names || has_columns(*names)) return '\0';
  char likely = '\0';
  for (const char other : {'\t', ';', '|', ','}) {
    if (other == delimiter) continue;
    const auto names_by_other = split(line, other, unquoted).value_or(std::vector<std::string>());
    if (has_columns(names_by_other)) return other;
    // A user may have other names. One field, or quotes that do not fit, then tell that the delimiter is wrong.
    if (likely == '\0' && names->size() <= 1 && names_by_other.size() > 1) likely = other;
  }
  return likely;
}

/// Whether the first line is "sep=;", by which Excel knows the delimiter. The next line names the columns.
bool is_of_excel(std::string_view line) { return line.starts_with("sep="); }

/// How to go on with a file whose columns `other` separates.
std::string on_other_delimiter(char other, bool has_line_of_excel) {
  const char* remove_line = has_line_of_excel ? " and remove its first line" : "";
  if (other == '\t') return fmt::format("tabs. Name the file .tsv{}", remove_line);
  if (other == ',') return fmt::format("commas. Name the file .csv{}", remove_line);
  // As strings, so that 007, None and N/A stay as they are.
  return fmt::format(
      "'{0}'. Save it with commas{1}. In Python: pandas.read_csv(FILE, sep='{0}',{2} dtype=str, keep_default_na=False)"
      ".to_csv(NEW_FILE, index=False)",
      other, has_line_of_excel ? " and without its first line" : "", has_line_of_excel ? " skiprows=1," : "");
}

CsvColumns csv_columns(const std::vector<std::string>& header, const std::string& where, const Columns& columns) {
  const auto find = [&](const Column& column) -> std::optional<size_t> {
    const auto found = std::ranges::find(header, column.name);
    TORCH_CHECK_VALUE(found != header.end() || !column.is_required || !is_of_excel(header.front()), where,
                      "the first line tells Excel the delimiter. Remove that line.");
    TORCH_CHECK_VALUE(found != header.end() || !column.is_required, where, "no column '", column.name, "' among ",
                      first_names(header), ". The first line must name the column",
                      columns.label.is_required ? "s: " : " ", columns.text.name,
                      columns.label.is_required ? " and " + columns.label.name : "", ".",
                      columns.advice(column, header));
    if (found == header.end()) return std::nullopt;
    TORCH_CHECK_VALUE(std::find(found + 1, header.end(), column.name) == header.end(), where, "two columns '",
                      column.name, "'. Rename one.");
    return found - header.begin();
  };
  CsvColumns found{header.size(),
                   *find(columns.text),
                   find(columns.text_pair),
                   columns.label.is_required ? find(columns.label) : std::nullopt,
                   {},
                   {}};
  for (const Column& flag : columns.flags) found.flags.push_back(*find(flag));
  for (size_t i = 0; i < header.size(); ++i) {
    if (i != found.text && i != found.text_pair && i != found.label && !columns.is_flag(header[i])) {
      found.others.push_back(i);
    }
  }
  return found;
}

/// The labels of a cell, with `|` between them.
RawLabel names_of_cell(std::string_view cell, const std::string& where) {
  std::vector<std::string> names;
  for (size_t begin = 0; !cell.empty() && begin <= cell.size();) {
    const size_t end = std::min(cell.find('|', begin), cell.size());
    names.emplace_back(cell.substr(begin, end - begin));
    begin = end + 1;
  }
  return label_set(std::move(names), where);
}

/// The labels whose columns say that the text has them.
RawLabel names_of_flags(const std::vector<std::string>& fields,
                        const CsvColumns& columns,
                        const RowCollector& rows,
                        int64_t line) {
  std::vector<std::string> names;
  for (size_t i = 0; i < columns.flags.size(); ++i) {
    const std::string& name = rows.columns().flags[i].name;
    if (flag_label(fields[columns.flags[i]], name, rows.where(line))) names.push_back(name);
  }
  return label_set(std::move(names), rows.where(line));
}

/// @param rows  those before it, not of LabelKind::kWords.
RawLabel label_of_cell(std::string cell, const RowCollector& rows, int64_t line) {
  check_is_no_list(cell, rows.options(), rows.where(line));
  if (rows.label_kind() == LabelKind::kSeveral) return names_of_cell(cell, rows.where(line));
  if (rows.label_kind() == LabelKind::kNumber && !cell.empty()) return number_label(cell, rows.where(line));
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
void check_is_no_header(const std::vector<std::string>& fields,
                        const std::vector<std::string>& header,
                        const std::string& where) {
  std::string_view first = fields.front();
  const bool has_mark = first.starts_with("\xEF\xBB\xBF");
  if (has_mark) first.remove_prefix(3);
  const bool is_header = first == header.front() && std::equal(fields.begin() + 1, fields.end(), header.begin() + 1) &&
                         (has_mark || header.size() > 1);  // else it may be a text: one word
  TORCH_CHECK_VALUE(!is_header, where, "the line is the header again. Remove it, or give the files one by one.");
}

/// Puts the cells of other columns into `row`.
void keep_others(const std::vector<std::string>& names,
                 const std::vector<std::string>& fields,
                 const std::vector<size_t>& others,
                 Row& row) {
  for (const size_t i : others) {
    add_json_member(row.others, names[i], quoted_json(fields[i]));
    row.has_invalid_utf8 = row.has_invalid_utf8 || find_invalid_utf8(fields[i]) != fields[i].size();
  }
}

}  // namespace

void read_csv(TextInput& input, char delimiter, RowCollector& rows) {
  const LoadRowsOptions& options = rows.options();
  const bool unquoted = options.columns().unquoted;
  const auto fail = [&](int64_t line, const std::string& found) {
    TORCH_CHECK_VALUE(false, rows.between(line), found, ".");
  };
  CsvReader csv(input, delimiter, fail, unquoted);
  TORCH_CHECK_VALUE(rows.label_kind() != LabelKind::kWords, rows.between(1),
                    "a cell holds no labels of words. Use .conll, .json or .jsonl.");
  const auto [line_of_names, number] = first_line(input);
  const char other = other_delimiter(line_of_names, delimiter, unquoted, rows.columns());
  TORCH_CHECK_VALUE(other == '\0', rows.between(number), "the columns are separated by ",
                    on_other_delimiter(other, is_of_excel(line_of_names)), ".");
  std::vector<std::string> fields;
  if (!csv.next(fields)) return;
  const CsvColumns columns = csv_columns(fields, rows.between(csv.line()), rows.columns());
  const std::vector<std::string> names = unique_names(fields);
  const std::vector<std::string> header = fields;

  while (!rows.full() && csv.next(fields)) {
    const int64_t line = csv.line();
    TORCH_CHECK_VALUE(fields.size() == columns.count, rows.where(line), fields.size(),
                      fields.size() == 1 ? " field" : " fields", " where the header names ", columns.count,
                      unquoted ? ". A text cannot hold a " : ". Quote a text that holds a ",
                      delimiter == '\t' ? "tab." : "comma.");
    check_is_no_header(fields, header, rows.between(line));
    Row row;
    if (options.other_columns()) keep_others(names, fields, columns.others, row);
    row.text = std::move(fields[columns.text]);
    if (columns.label) row.label = label_of_cell(std::move(fields[*columns.label]), rows, line);
    if (!columns.flags.empty()) row.label = names_of_flags(fields, columns, rows, line);
    if (columns.text_pair) row.text_pair = std::move(fields[*columns.text_pair]);
    rows.add_bytes(std::move(row), line);
  }
}

}  // namespace mezzo::text
