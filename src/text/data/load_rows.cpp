// load_rows() of dataset.h: from files to rows.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>
#include <utility>

#include "mezzo/text/data/dataset.h"
#include "text/data/parquet_rows.h"
#include "text/data/row_formats.h"
#include "text/io/byte_source.h"
#include "text/io/csv_reader.h"
#include "text/io/text_input.h"
#include "text/io/utf8.h"
#include "text/io/utf8_source.h"

namespace mezzo::text {
namespace {

/// ".csv" of "a.csv" and of "a.CSV.gz".
std::string format_of(std::filesystem::path path) {
  if (is_compressed(path)) path.replace_extension();
  std::string format = path.extension().string();
  std::ranges::transform(format, format.begin(), [](unsigned char c) { return std::tolower(c); });
  return format;
}

/// Refuses files that are not read, and flags that are not for the format.
void check_format(const std::string& file, const std::string& format, const ColumnNames& columns) {
  constexpr std::string_view kNoTables[] = {".json", ".jsonl", ".conll", ".parquet"};
  constexpr std::string_view kTables[] = {".csv", ".tsv", ".txt"};
  constexpr std::pair<std::string_view, const char*> kOthers[] = {
      {".xlsx", "a spreadsheet. In Excel, save it as \"CSV UTF-8\""},
      {".xls", "a spreadsheet. In Excel, save it as \"CSV UTF-8\""},
      {".ods", "a spreadsheet. In LibreOffice, save it as \"Text CSV\""},
      {".docx", "a document. Write each text and its label into a row of a .csv file"},
      {".doc", "a document. Write each text and its label into a row of a .csv file"},
      {".pdf", "a document. Write each text and its label into a row of a .csv file"}};
  for (const auto& [ending, what] : kOthers) TORCH_CHECK_VALUE(format != ending, file, ": is ", what, ".");
  const bool is_no_table = std::ranges::find(kNoTables, format) != std::end(kNoTables);
  TORCH_CHECK_VALUE(is_no_table || columns.is_of_table() || std::ranges::find(kTables, format) != std::end(kTables),
                    file,
                    ": a data file must be named .json, .jsonl, .csv, .tsv, .txt, .conll or .parquet. Except for "
                    ".parquet, .gz or .zst may follow. For a table of another name, pass --delimiter.");
  TORCH_CHECK_VALUE(!is_no_table || !columns.is_of_table(), file,
                    ": --delimiter, --columns and --no-header are for tables, and ", format, " is none.");
}

/// The columns of a file without a header: their names are numbers from 1. The text is the first and the label the
/// second, unless others are given.
ColumnNames by_numbers(ColumnNames columns) {
  const ColumnNames usual;
  if (columns.text == usual.text) columns.text = "1";
  if (columns.label == usual.label) columns.label = columns.text == "2" ? "1" : "2";
  return columns;
}

template <class T>
void append(std::vector<T>& all, std::vector<T>&& more) {
  all.insert(all.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
}

/// Those of later files are to be what those of the first are.
void check_alike(const LabeledRows& first, const LabeledRows& rows) {
  TORCH_CHECK_VALUE(rows.text_pairs.empty() == first.text_pairs.empty(), rows.places.file, ": has ",
                    rows.text_pairs.empty() ? "single texts" : "pairs of texts", " where ", first.places.at(0), " has ",
                    first.text_pairs.empty() ? "a single text" : "a pair",
                    ". Give every row of all files a text_pair, or none.");
}

/// @param rows  with at least one row, as `more` has.
void append(LabeledRows& rows, LabeledRows more) {
  check_alike(rows, more);
  rows.texts.append(more.texts);
  rows.text_pairs.append(more.text_pairs);
  append(rows.words, std::move(more.words));
  append(rows.labels, std::move(more.labels));
  append(rows.places.lines, std::move(more.places.lines));
  append(rows.others, std::move(more.others));
  append(rows.notes, std::move(more.notes));
}

}  // namespace

std::vector<std::string> split_names(std::string_view text, std::string_view flag) {
  std::vector<std::string> names;
  TextInput input(text);
  CsvReader csv(input, ',', [&](int64_t, const std::string& found) { TORCH_CHECK_VALUE(false, flag, ": ", found); });
  csv.next(names);
  TORCH_CHECK_VALUE(std::ranges::find(names, "") == names.end(), flag, " '", text,
                    "' has an empty name; remove a comma");
  for (size_t i = 1; i < names.size(); ++i) {
    TORCH_CHECK_VALUE(std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) ==
                          names.begin() + static_cast<std::ptrdiff_t>(i),
                      flag, " names '", names[i], "' twice");
  }
  return names;
}

char ColumnNames::delimiter_char() const {
  if (delimiter == "tab" || delimiter == "\\t") return '\t';
  const bool is_one = delimiter.size() == 1 && static_cast<unsigned char>(delimiter[0]) < 0x80;
  TORCH_CHECK_VALUE(is_one && std::string_view("\"\r\n").find(delimiter[0]) == std::string_view::npos,
                    "--delimiter must be auto, tab, or one ASCII character that is no quote and no line break, got '",
                    delimiter, "'");
  return delimiter[0];
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

LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& given) {
  const std::string file = path.string();
  TORCH_CHECK_VALUE(given.limit() >= 0, "load_rows: limit must be 0 (all rows) or positive, got ", given.limit(), ".");
  given.columns().validate(given.label_kind() != LabelKind::kNone);
  const std::string format = format_of(path);
  check_format(file, format, given.columns());
  LoadRowsOptions options = given;
  if (given.columns().no_header && given.columns().columns.empty()) options.columns(by_numbers(given.columns()));
  RowCollector rows(file, options);
  if (format == ".parquet") {
    TORCH_CHECK_VALUE(!is_compressed(path), file, ": a .parquet file is compressed within. Decompress it.");
    read_parquet(path, rows);
    return rows.finish();
  }
  Utf8Source source(path, options.columns().encoding);
  TextInput input(source);
  if (format == ".json" || format == ".jsonl") {
    read_json(input, format == ".jsonl", rows);
  } else if (format == ".conll") {
    read_conll(input, rows);
  } else if (format == ".txt" && begins_table(input.at_hand(), rows.columns())) {  // as Excel's "Unicode Text"
    rows.note("read as a table with tabs");
    read_csv(input, '\t', rows);
  } else if (format == ".txt" && !options.columns().is_of_table()) {
    read_txt(input, rows);
  } else {
    read_csv(input, format == ".tsv" ? '\t' : ',', rows);
  }
  LabeledRows result = rows.finish();
  append(result.notes, source.notes());
  return result;
}

LabeledRows load_rows(std::span<const std::filesystem::path> paths, const LoadRowsOptions& options) {
  TORCH_CHECK_VALUE(!paths.empty(), "load_rows: at least one file expected, got none.");
  LabeledRows rows = load_rows(paths.front(), options);
  if (paths.size() == 1) return rows;
  rows.places.files.push_back(rows.places.file);
  rows.places.file_ids.assign(rows.texts.size(), 0);
  for (const auto& path : paths.subspan(1)) {
    LoadRowsOptions of_file = options;
    const auto count = static_cast<int64_t>(rows.texts.size());
    if (options.limit() > 0 && count >= options.limit()) break;
    if (options.limit() > 0) of_file.limit(options.limit() - count);
    append(rows, load_rows(path, of_file));
    rows.places.file_ids.resize(rows.texts.size(), static_cast<int32_t>(rows.places.files.size()));
    rows.places.files.push_back(path.string());
  }
  rows.places.file = name_of_files(paths);
  return rows;
}

std::string name_of_files(std::span<const std::filesystem::path> paths) {
  if (paths.empty()) return "";
  const std::string first = paths.front().string();
  if (paths.size() == 1) return first;
  return paths.size() == 2 ? fmt::format("{} and {}", first, paths[1].string())
                           : fmt::format("{} and {} more files", first, paths.size() - 1);
}

}  // namespace mezzo::text
