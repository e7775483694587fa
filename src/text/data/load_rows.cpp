// load_rows() of dataset.h: from files to rows.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "mezzo/text/data/dataset.h"
#include "text/data/row_formats.h"
#include "text/io/byte_source.h"
#include "text/io/csv_reader.h"
#include "text/io/read_error.h"
#include "text/io/text_input.h"
#include "text/io/utf8.h"
#include "text/io/utf8_source.h"

namespace mezzo::text {
namespace {

/// ".csv" of "a.csv" and of "a.CSV.gz".
std::string format_of(std::filesystem::path path) {
  if (is_compressed(path)) path.replace_extension();
  return ascii_lower(path.extension().string());
}

/// Refuses files that are not read, and flags that are not for the format.
void check_format(const std::string& file, const std::string& format, const ColumnNames& columns) {
  constexpr std::string_view kNoTables[] = {".json", ".jsonl", ".conll", ".parquet"};
  constexpr std::string_view kTables[] = {".csv", ".tsv", ".txt"};
  constexpr std::pair<std::string_view, const char*> kOthers[] = {
      {".xlsx .xls ", "a spreadsheet. In Excel, save it as \"CSV UTF-8\""},
      {".ods ", "a spreadsheet. In LibreOffice, save it as \"Text CSV\""},
      {".docx .doc .pdf ", "a document. Write each text and its label into a row of a .csv file"}};
  for (const auto& [endings, what] : kOthers) {
    TORCH_CHECK_VALUE(format.empty() || endings.find(format + " ") == endings.npos, file, ": is ", what, ".");
  }
  const bool is_no_table = std::ranges::find(kNoTables, format) != std::end(kNoTables);
  TORCH_CHECK_VALUE(is_no_table || columns.is_of_table() || std::ranges::find(kTables, format) != std::end(kTables),
                    file,
                    ": a data file must be named .json, .jsonl, .csv, .tsv, .txt, .conll or .parquet. Except for "
                    ".parquet, .gz or .zst may follow. For a table of another name, pass --delimiter.");
  TORCH_CHECK_VALUE(!is_no_table || !columns.is_of_table(), file,
                    ": --delimiter, --columns and --no-header are for tables, but ", format, " is not a table.");
  TORCH_CHECK_VALUE(format != ".parquet" || columns.encoding == "auto", file,
                    ": --encoding is for text files, but .parquet is not one.");
}

void read_file(const std::filesystem::path& path, RowCollector& rows) {
  std::error_code none;  // a missing file and a folder may lack the ending
  const auto type = std::filesystem::status(path, none).type();
  if (type == std::filesystem::file_type::not_found) fail_to_read(path, ENOENT);
  TORCH_CHECK_VALUE(type != std::filesystem::file_type::directory, path.string(), ": is a folder. Name its files.");
  const std::string file = path.string(), format = format_of(path);
  const ColumnNames& columns = rows.options().columns();
  check_format(file, format, columns);
  if (format == ".parquet") {
    TORCH_CHECK_VALUE(!is_compressed(path), file,
                      ": a .parquet file must not be compressed as a whole. Decompress it.");
    return read_parquet(path, rows);
  }
  Utf8Source source(path, columns.encoding);
  TextInput input(source);
  if (format == ".json" || format == ".jsonl") {
    read_json(input, format == ".jsonl", rows);
  } else if (format == ".conll") {
    read_conll(input, rows);
  } else if (format == ".txt" && begins_table(input.at_hand(), rows.columns())) {  // as Excel's "Unicode Text"
    rows.note("read as a table with tabs");
    read_csv(input, '\t', rows);
  } else if (format == ".txt" && !columns.is_of_table()) {
    read_txt(input, rows);
  } else {
    read_csv(input, format == ".tsv" ? '\t' : ',', rows);
  }
  for (const std::string& note : source.notes()) rows.note(note);
}

}  // namespace

std::vector<std::string> split_names(std::string_view text, std::string_view flag) {
  std::vector<std::string> names;
  TextInput input(text);
  CsvReader csv(input, ',', [&](int64_t, const std::string& found) { TORCH_CHECK_VALUE(false, flag, ": ", found); });
  csv.next(names);
  TORCH_CHECK_VALUE(std::ranges::find(names, "") == names.end(), flag, " '", text,
                    "' has an empty name; remove a comma");
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(seen.insert(name).second, flag, " names '", name, "' twice");
  }
  return names;
}

char ColumnNames::delimiter_char() const {
  if (delimiter == "tab" || delimiter == "\\t") return '\t';
  const bool is_one = delimiter.size() == 1 && static_cast<unsigned char>(delimiter[0]) < 0x80;
  TORCH_CHECK_VALUE(is_one && std::string_view("\"\r\n").find(delimiter[0]) == std::string_view::npos,
                    "--delimiter must be auto, tab, or one ASCII character except quotes and line breaks, got '",
                    delimiter, "'");
  return delimiter[0];
}

ColumnNames ColumnNames::as_read() const {
  ColumnNames names = *this;
  if (!no_header || !columns.empty()) return names;
  const ColumnNames usual;
  if (text == usual.text) names.text = "1";
  if (label == usual.label) names.label = names.text == "2" ? "1" : "2";
  return names;
}

std::vector<std::string> ColumnNames::label_columns() const { return split_names(label, "--label-column"); }

void ColumnNames::validate(bool has_labels) const {
  TORCH_CHECK_VALUE(!text.empty(), "--text-column is empty; name a column");
  TORCH_CHECK_VALUE(!label.empty() || !has_labels, "--label-column is empty; name a column");
  const std::string& pair = text_pair.empty() ? "text_pair" : text_pair;
  const auto labels = has_labels ? label_columns() : std::vector<std::string>();
  const auto is_label = [&](const std::string& name) { return std::ranges::find(labels, name) != labels.end(); };
  TORCH_CHECK_VALUE(text != pair && !is_label(text) && !is_label(pair), "--text-column '", text, "', --pair-column '",
                    pair, "' and --label-column '", label, "' must be different columns, but two have one name");
  if (delimiter != "auto") delimiter_char();
  split_names(columns, "--columns");
}

bool repair_utf8(std::string& text) {
  if (find_invalid_utf8(text) == text.size()) return false;
  text = replace_invalid_utf8(text);
  return true;
}

LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& options) {
  return load_rows(std::span(&path, 1), options);
}

LabeledRows load_rows(std::span<const std::filesystem::path> paths, const LoadRowsOptions& given) {
  TORCH_CHECK_VALUE(!paths.empty(), "load_rows: at least one file expected, got none.");
  TORCH_CHECK_VALUE(given.limit() >= 0, "load_rows: limit must be 0 (all rows) or positive, got ", given.limit(), ".");
  given.columns().validate(given.label_kind() != LabelKind::kNone);
  LoadRowsOptions options = given;
  options.columns(given.columns().as_read());
  RowCollector rows(paths, options);
  for (size_t i = 0; i < paths.size() && !rows.full(); ++i) {
    rows.begin_file(paths[i].string());
    read_file(paths[i], rows);
    TORCH_CHECK_VALUE(rows.size() > 0, paths[i].string(), ": the file has no rows.");
  }
  return rows.take();
}

std::string name_of_files(std::span<const std::filesystem::path> paths) {
  if (paths.empty()) return "";
  const std::string first = paths.front().string();
  if (paths.size() == 1) return first;
  return paths.size() == 2 ? fmt::format("{} and {}", first, paths[1].string())
                           : fmt::format("{} and {} more files", first, paths.size() - 1);
}

}  // namespace mezzo::text
