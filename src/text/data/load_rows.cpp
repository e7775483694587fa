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
#include "text/io/read_file.h"
#include "text/io/text_input.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

/// Moves to the file's text: what follows a byte order mark.
void begin_text(TextInput& input, const std::string& file) {
  const std::string mark(input.ahead(2));
  using namespace std::string_view_literals;
  for (const auto& [begin, program] : {std::pair("\xFD"
                                                 "7zXZ\0"sv,
                                                 "xz"),
                                       {"BZh"sv, "bzip2"},
                                       {"PK\x03\x04"sv, "zip"}}) {
    TORCH_CHECK_VALUE(input.ahead(begin.size()) != begin, file, ": the file is compressed by ", program,
                      ", which is not read. Decompress it, or compress it by gzip or zstd.");
  }
  const bool is_gzip = mark == "\x1F\x8B";
  TORCH_CHECK_VALUE(!is_gzip && input.ahead(4) != "\x28\xB5\x2F\xFD", file, ": the file is compressed. Name it ", file,
                    is_gzip ? ".gz." : ".zst.");
  check_is_utf8_text(file, input.at_hand());
  if (input.ahead(3) == "\xEF\xBB\xBF") input.skip(3);
  TORCH_CHECK_VALUE(!input.at_end(), file, ": the file is empty.");
}

/// ".csv" of "a.csv" and of "a.CSV.gz".
std::string format_of(std::filesystem::path path) {
  if (is_compressed(path)) path.replace_extension();
  std::string format = path.extension().string();
  std::ranges::transform(format, format.begin(), [](unsigned char c) { return std::tolower(c); });
  return format;
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
  rows.rows_with_invalid_utf8 += more.rows_with_invalid_utf8;
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

std::vector<std::string> ColumnNames::label_columns() const { return split_names(label, "--label-column"); }

void ColumnNames::validate(bool has_labels) const {
  TORCH_CHECK_VALUE(!text.empty(), "--text-column is empty; name a column");
  TORCH_CHECK_VALUE(!label.empty() || !has_labels, "--label-column is empty; name a column");
  const std::string& pair = text_pair.empty() ? "text_pair" : text_pair;
  const auto labels = has_labels ? label_columns() : std::vector<std::string>();
  const auto is_label = [&](const std::string& name) { return std::ranges::find(labels, name) != labels.end(); };
  TORCH_CHECK_VALUE(text != pair && !is_label(text) && !is_label(pair), "--text-column '", text, "', --pair-column '",
                    pair, "' and --label-column '", label, "' must be different columns, but two have one name");
}

bool repair_utf8(std::string& text) {
  if (find_invalid_utf8(text) == text.size()) return false;
  text = replace_invalid_utf8(text);
  return true;
}

LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& options) {
  const std::string file = path.string();
  TORCH_CHECK_VALUE(options.limit() >= 0, "load_rows: limit must be 0 (all rows) or positive, got ", options.limit(),
                    ".");
  options.columns().validate(options.label_kind() != LabelKind::kNone);
  const std::string format = format_of(path);
  constexpr std::string_view kFormats[] = {".json", ".jsonl", ".csv", ".tsv", ".txt", ".conll", ".parquet"};
  TORCH_CHECK_VALUE(std::ranges::find(kFormats, format) != std::end(kFormats), file,
                    ": a data file must be named .json, .jsonl, .csv, .tsv, .txt or .conll, with .gz or .zst after "
                    "that where it is compressed, or .parquet.");
  RowCollector rows(file, options);
  if (format == ".parquet") {
    TORCH_CHECK_VALUE(!is_compressed(path), file, ": a .parquet file is compressed within. Decompress it.");
    read_parquet(path, rows);
    return rows.finish();
  }
  TextInput input = TextInput::open(path);
  begin_text(input, file);
  if (format == ".json") {
    read_json(input, rows);
  } else if (format == ".jsonl") {
    read_jsonl(input, rows);
  } else if (format == ".txt") {
    read_txt(input, rows);
  } else if (format == ".conll") {
    read_conll(input, rows);
  } else {
    read_csv(input, format == ".tsv" ? '\t' : ',', rows);
  }
  return rows.finish();
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
