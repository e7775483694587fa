#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "mezzo/text/data/rows.h"

namespace mezzo::text {

/// The kind of labels in a file.
enum class LabelKind {
  kNone,     ///< labels are not read
  kClass,    ///< one class per row: a name, a number or a boolean
  kSeveral,  ///< any number of names per row, also none; or a column of 0 and 1 for each name
  kNumber,   ///< one number per row, to be predicted
  kWords     ///< a name for each word of a row
};

/// The label of a row in a file: none, a class as text (also a number), a number to predict, or
/// several names. Names are sorted, or in the order of the words.
using RawLabel = std::variant<std::monostate, std::string, double, std::vector<std::string>>;

/// The origin of rows.
struct RowPlaces {
  std::string file;                     ///< its path; of several files, their name in messages
  std::vector<int64_t> lines;           ///< first line of each row in its file, from 1
  std::vector<std::string> files = {};  ///< paths, if there are several files
  std::vector<int32_t> file_ids = {};   ///< index into `files` of each row

  /// "file:line" of a row.
  std::string at(size_t row) const;
};

/// Replaces each invalid sequence of `text` by U+FFFD.
/// @return whether `text` was invalid
bool repair_utf8(std::string& text);

/// The rows of a data file, or of several. All text is valid UTF-8.
struct LabeledRows {
  RowPlaces places;                                  ///< files and lines of the rows
  Texts texts;                                       ///< the text of each row
  Texts text_pairs = {};                             ///< the second text of each row; empty if rows are single texts
  std::vector<std::vector<std::string>> words = {};  ///< of each row; empty unless requested
  std::vector<RawLabel> labels;                      ///< of each row; empty without labels
  std::vector<std::string> others = {};  ///< other columns of each row as a JSON object or ""; empty unless requested
  /// Notes for the user, which begin with the file: a detected encoding or delimiter, bytes replaced by U+FFFD.
  std::vector<std::string> notes = {};

  /// The start of an error message about a row: "file:line: row N: ". N counts from 1 in its file.
  std::string where(size_t row) const;
};

/// The columns of a table, or keys of a JSON row, that are read, and the encoding of the file.
struct ColumnNames {
  std::string text = "text";    ///< column of the text
  std::string text_pair = "";   ///< necessary column of the second text; empty: "text_pair", if all rows have it
  std::string label = "label";  ///< column of the label; several, separated by commas, hold 0 and 1 for one label each
  bool unquoted = false;        ///< quotes in a table are normal characters
  /// A name known to iconv, such as "GB18030"; "auto": see load_rows().
  std::string encoding = "auto";
  /// The delimiter of a table: an ASCII character, or "tab"; "auto": see load_rows().
  std::string delimiter = "auto";
  std::string columns = "";  ///< names of a table's columns, separated by commas; the file then has no header
  bool no_header = false;    ///< the first line of a table is a row; without `columns`, names are numbers from 1

  /// @param has_labels  whether the label column is checked
  /// @throws c10::ValueError  naming the program's flag, for an invalid value
  void validate(bool has_labels) const;
  /// The names to read. They are numbers from 1 if the file has no header and `columns` is empty.
  /// The text is then column 1 and the label column 2, unless others are given.
  ColumnNames as_read() const;
  /// The columns that `label` names.
  std::vector<std::string> label_columns() const;
  char delimiter_char() const;  ///< of a delimiter other than "auto"
  /// Whether the first line of a table holds the names of its columns.
  bool has_header() const { return columns.empty() && !no_header; }
  /// Whether these options make any file a table, whatever its name.
  bool is_of_table() const { return delimiter != "auto" || !has_header(); }
};

/// Returns the words of a text, in order. Each is a part of the text.
using WordSplitter = std::function<std::vector<std::string>(std::string_view text)>;

/// Called with a file and the number of its rows read so far.
using RowsRead = std::function<void(const std::string& file, int64_t rows)>;

/// Options of load_rows().
struct LoadRowsOptions {
  /// Reads only this number of rows, and at most one block of the file after them. 0: all rows.
  TORCH_ARG(int64_t, limit) = 0;
  /// kNone takes all rows as texts without labels, also JSON rows that are a plain string, and .txt
  /// files. For other kinds each row has a label.
  TORCH_ARG(LabelKind, label_kind) = LabelKind::kClass;
  /// If set, rows have words, as with LabelKind::kWords. Splits a text that is not given as words;
  /// see Tokenizer::split_words().
  TORCH_ARG(WordSplitter, split_words) = {};
  /// The columns to read.
  TORCH_ARG(ColumnNames, columns) = {};
  /// Messages about labels of another kind put this before the name of a fitting task. A program
  /// without --task passes "a model trained with --task".
  TORCH_ARG(std::string, on_other_task) = "--task";
  /// Whether to fill LabeledRows::others. With LabelKind::kNone it includes a label.
  TORCH_ARG(bool, other_columns) = false;
  /// Limits the memory of the texts; null: all in memory.
  TORCH_ARG(std::shared_ptr<RowMemory>, memory) = nullptr;
  /// Called from time to time with the file and the number of its rows read.
  TORCH_ARG(RowsRead, on_rows) = {};
};

/// Reads a data file in the format of its name. docs/data.md describes the formats and the labels.
/// * `.json`, `.jsonl`: rows `[text, label]` or `{"text": …, "text_pair": …, "label": …}`. The file
///   is one array, an object with an array `data`, or one row after another. Strict RFC 8259, with
///   values nested at most 127 deep.
/// * `.csv`, `.tsv`: a table by RFC 4180 whose header has `text`, `label` and optionally
///   `text_pair`. The delimiter comes from a line `sep=;`. Otherwise it is the character that gives
///   the header these columns, or else the one that divides the first rows into the largest equal
///   number of fields.
/// * `.txt`: one text per line, with fastText's labels if the first line has one. Or a table, if
///   its header has tabs or ColumnNames::is_of_table() is true.
/// * `.conll`: one word per line and an empty line between texts.
/// * `.parquet`: columns as in a table. Needs Arrow in the build, and mezzo_parquet.so beside the
///   program or in lib/mezzo.
///
/// All formats except Parquet may be compressed: `.csv.gz`, `.jsonl.zst`. Text is UTF-8, or in the
/// encoding that ColumnNames names or that is detected. Invalid bytes become U+FFFD; more than one
/// in 1,000 is an error.
/// @throws c10::ValueError  for a file that cannot be read, has no rows, or is invalid; the message
///     has file, line and row
LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& options = {});

/// The rows of several files of one kind, one file after another.
LabeledRows load_rows(std::span<const std::filesystem::path> paths, const LoadRowsOptions& options = {});

/// A name for the files in messages: "a.csv and 2 more files".
std::string name_of_files(std::span<const std::filesystem::path> paths);

/// Splits names at commas. A name with a comma is quoted as in a .csv.
/// @param flag  the program's flag, for the message
/// @throws c10::ValueError  if a name is empty or given twice
std::vector<std::string> split_names(std::string_view text, std::string_view flag);

/// The names of a classifier's labels: id to name and back.
class LabelMap {
 public:
  /// @throws c10::ValueError  without names, or for an empty or repeated name
  static LabelMap from_names(std::vector<std::string> names);

  /// The largest number of labels. More are not classes but identifiers, and a classifier would
  /// need a row of weights for each.
  static constexpr int64_t kMaxLabels = 100'000;

  /// The labels of a training file, each in its first spelling. Numbers are sorted by value, other
  /// labels by their bytes. Two spellings of a number or a boolean are one label: 1 and 1.0, true
  /// and True.
  /// @see sklearn.preprocessing.LabelEncoder (Python), which has the same order
  /// @throws c10::ValueError  for a row whose label is missing or NaN, and for more labels than
  ///     kMaxLabels
  static LabelMap from_rows(const LabeledRows& rows);

  /// The number of labels.
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  /// The names in the order of ids.
  const std::vector<std::string>& names() const { return names_; }
  /// @throws std::out_of_range  for an id without a label
  const std::string& name(int64_t id) const { return names_.at(static_cast<size_t>(id)); }
  /// The id of a name, or of another spelling of it.
  std::optional<int64_t> id(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, int64_t> ids_;
};

/// Texts, and the targets that a task makes from their labels.
struct Dataset {
  Texts texts;                                       ///< the text of each row
  Texts text_pairs = {};                             ///< the second text of each row; empty if rows are single texts
  at::Tensor targets;                                ///< row i belongs to text i; undefined without labels
  RowPlaces places = {};                             ///< without lines if they are unknown
  std::vector<std::vector<std::string>> words = {};  ///< of each row; empty if they are unknown

  /// The number of rows.
  int64_t size() const { return static_cast<int64_t>(texts.size()); }
};

/// One line if integers in `rows` are positions in the list of labels, as label_ids() reads them:
/// "0 is 'negative', 1 is 'positive'". Otherwise empty.
/// @param names  names of the labels, in their order
std::string note_of_positions(const LabeledRows& rows, std::span<const std::string> names);

/// The id of each row's label, [N] int64. If all labels are integers and no name of `labels` is a
/// number, they are ids.
/// @throws c10::ValueError  for a row without a label, or with one that `labels` lacks. The message
///     has file, line and row, lists the known labels, and ends with `on_unknown_label`.
at::Tensor label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// The labels of each row, for LabelKind::kSeveral: [N, labels] float32 of ones and zeros.
/// @throws c10::ValueError  as label_ids()
at::Tensor label_flags(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// The id of each word's label, [N, most words of a row] int32; -100 after a row's last word.
/// @throws c10::ValueError  as label_ids()
at::Tensor word_label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// @param targets  of `rows`, as a Task makes them
Dataset to_dataset(LabeledRows rows, at::Tensor targets);

/// Shuffles the rows and splits off `ratio` of them, rounded, as the second part (for
/// `--dev-ratio`).
///
/// Equal in every run with one `seed`, and equal to Python: the second part is the end of
/// `torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))`. Does not use torch's
/// default generator.
/// @throws c10::ValueError  unless `ratio` is between 0 and 1 and each part has a row
std::pair<Dataset, Dataset> split_dataset(const Dataset& dataset, double ratio, uint64_t seed);

/// The same with equal shares of each class in both parts, up to one row (for `--stratify`).
/// Classes with the largest remainders get one more row until the number of rows fits `fraction`. A
/// class keeps at least one row in the first part.
/// @param dataset  with targets [N] int64, from 0
/// @see sklearn.model_selection.train_test_split (Python) with `stratify`. Differs: draws other
///     rows, and accepts a class of one row.
std::pair<Dataset, Dataset> split_by_class(const Dataset& dataset, double fraction, uint64_t seed);

/// Splits off one of `folds` parts as the second part (for `--folds`). Together the parts contain
/// each row once. By class, each fold has the number of rows per class of scikit-learn's
/// StratifiedKFold. Otherwise sizes differ by at most one row. The selection depends on `seed`.
/// @param fold  from 0
/// @param by_class  with targets [N] int64, from 0
/// @throws c10::ValueError  for less than two folds, or more folds than rows
std::pair<Dataset, Dataset> split_fold(
    const Dataset& dataset, int64_t folds, int64_t fold, bool by_class, uint64_t seed);

}  // namespace mezzo::text
