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

/// What a file has for labels.
enum class LabelKind {
  kNone,     ///< nothing that is read
  kClass,    ///< one class a row: a name, a number or a boolean
  kSeveral,  ///< any number of names a row, none included; or a column of 0 and 1 for each name
  kNumber,   ///< one number a row, to be predicted as it is
  kWords     ///< a name for each word of a row
};

/// A label as a file gives it: none; a class as it is written, numbers too; a number to predict; several names, sorted,
/// or the names of the words.
using RawLabel = std::variant<std::monostate, std::string, double, std::vector<std::string>>;

/// Where rows are from.
struct RowPlaces {
  std::string file;                     ///< its path; of several, what to call them in a message
  std::vector<int64_t> lines;           ///< where each row begins in its file, from 1
  std::vector<std::string> files = {};  ///< where there are several, …
  std::vector<int32_t> file_ids = {};   ///< … which of them each row is of

  /// "file:line" of a row.
  std::string at(size_t row) const;
};

/// Replaces each invalid sequence of `text` by U+FFFD.
/// @return whether there was one
bool repair_utf8(std::string& text);

/// The rows of a data file, or of several. All text is valid UTF-8.
struct LabeledRows {
  RowPlaces places;
  Texts texts;
  Texts text_pairs = {};                             ///< the second text of each row; empty where rows are single texts
  std::vector<std::vector<std::string>> words = {};  ///< of each row; empty where nobody asked for them
  std::vector<RawLabel> labels;
  std::vector<std::string> others = {};  ///< the other columns of each row as a JSON object, "" for none; where asked

  /// Sentences for the user, which begin with the file: a detected encoding or delimiter, bytes that became U+FFFD.
  std::vector<std::string> notes = {};

  /// What an error in a row begins with: "file:line: row N: ", N from 1 in its file.
  std::string where(size_t row) const;
};

/// How data files are written: the columns, or keys of a JSON row, that are read, and their encoding.
struct ColumnNames {
  std::string text = "text";
  std::string text_pair = "";   ///< which all rows must have then; empty: "text_pair", if they have it
  std::string label = "label";  ///< several with commas between them, each of which says whether a text has that label
  bool unquoted = false;        ///< a quote in a table is a character as others are, not the beginning of a field
  /// A name that iconv knows, such as "GB18030"; "auto": see load_rows().
  std::string encoding = "auto";
  /// Of a table: an ASCII character, or "tab"; "auto": see load_rows().
  std::string delimiter = "auto";
  std::string columns = "";  ///< names of a table's columns with commas between them; the file then has no header
  bool no_header = false;    ///< the first line of a table is a row; without `columns`, names are numbers from 1

  /// @param has_labels  whether the labels' matters, too.
  /// @throws c10::ValueError  naming the flag of the program, if a value cannot be meant.
  void validate(bool has_labels) const;
  /// The names that are read: numbers from 1 if the file has no header and `columns` is empty. The text is then column
  /// 1 and the label column 2, unless others are given.
  ColumnNames as_read() const;
  /// The columns that `label` names.
  std::vector<std::string> label_columns() const;
  char delimiter_char() const;  ///< of a delimiter that is not "auto"
  bool has_header() const { return columns.empty() && !no_header; }
  /// Whether a file is read as a table for any of these, whatever its name.
  bool is_of_table() const { return delimiter != "auto" || !has_header(); }
};

/// @return the words of a text, each a part of the text, in their order.
using WordSplitter = std::function<std::vector<std::string>(std::string_view text)>;

using RowsRead = std::function<void(const std::string& file, int64_t rows)>;

struct LoadRowsOptions {
  /// Reads only the first rows, and nothing of the file after them except a block; 0 for all.
  TORCH_ARG(int64_t, limit) = 0;
  /// kNone takes all rows for texts alone, JSON rows that are a plain string and .txt files, too; of other kinds each
  /// row has a label.
  TORCH_ARG(LabelKind, label_kind) = LabelKind::kClass;
  /// If set, rows have words, as they have with LabelKind::kWords. Splits a text that is not given as words; see
  /// Tokenizer::split_words().
  TORCH_ARG(WordSplitter, split_words) = {};
  TORCH_ARG(ColumnNames, columns) = {};
  /// Messages about labels of another kind put this before the name of the task that fits. A program without --task
  /// gives "a model trained with --task".
  TORCH_ARG(std::string, on_other_task) = "--task";
  /// Whether LabeledRows::others is wanted. With LabelKind::kNone a label is one of them.
  TORCH_ARG(bool, other_columns) = false;
  /// Of the texts; null: all in memory.
  TORCH_ARG(std::shared_ptr<RowMemory>, memory) = nullptr;
  /// Called now and then with the file and how many of its rows are read.
  TORCH_ARG(RowsRead, on_rows) = {};
};

/// Reads a data file of the format that its name says. docs/data.md describes the formats and the labels.
/// - `.json`, `.jsonl`: rows `[text, label]` or `{"text": …, "text_pair": …, "label": …}`: one array, the array
///   `data` of an object, or one row after the other. RFC 8259 without exceptions, values nested at most 127 deep.
/// - `.csv`, `.tsv`: a table as in RFC 4180 whose header names `text`, `label` and maybe `text_pair`. The delimiter is
///   the one of a line `sep=;`, or the one by which the header has these columns, or the one by which the first rows
///   have most fields, all alike.
/// - `.txt`: one text a line, with fastText's labels if the first line has one; or a table, if its header has tabs or
///   ColumnNames::is_of_table().
/// - `.conll`: one word a line and an empty line between texts.
/// - `.parquet`: columns as in a table. Needs Arrow in the build, and mezzo_parquet.so beside the program
///   or in lib/mezzo.
///
/// All except Parquet may be compressed: `.csv.gz`, `.jsonl.zst`. Text is UTF-8, or in the encoding that ColumnNames
/// names or that is detected. Bytes that the encoding does not allow become U+FFFD; more than one in 1,000 is an error.
/// @throws c10::ValueError  for a file that cannot be read, has no rows, or breaks a rule; the message gives file, line
///   and row
LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& options = {});

/// The rows of several files, which are of one kind, one after the other.
LabeledRows load_rows(std::span<const std::filesystem::path> paths, const LoadRowsOptions& options = {});

/// A name for them in messages: "a.csv and 2 more files".
std::string name_of_files(std::span<const std::filesystem::path> paths);

/// Names between commas. A name that holds a comma is quoted as in a .csv.
/// @param flag  of the program, for the message
/// @throws c10::ValueError  if a name is empty or given twice
std::vector<std::string> split_names(std::string_view text, std::string_view flag);

/// The names of a classifier's labels: id to name and back.
class LabelMap {
 public:
  /// @throws c10::ValueError  when there are none, or one is empty or repeated.
  static LabelMap from_names(std::vector<std::string> names);

  /// More are no classes but somebody's identifiers: a classifier would take
  /// a row of weights for each.
  static constexpr int64_t kMaxLabels = 100'000;

  /// For training: each label that a row has, as it is written first. Numbers are sorted by value, other labels by
  /// their bytes. Two spellings of a number or a boolean are one label: 1 and 1.0, true and True.
  /// @see sklearn.preprocessing.LabelEncoder (Python), which has the same order.
  /// @throws c10::ValueError  for a row whose label is missing or NaN, and for more labels than kMaxLabels
  static LabelMap from_rows(const LabeledRows& rows);

  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  /// @throws std::out_of_range
  const std::string& name(int64_t id) const { return names_.at(static_cast<size_t>(id)); }
  /// Of a name, or of another spelling of it.
  std::optional<int64_t> id(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, int64_t> ids_;
};

/// Texts, and what a task makes of their labels.
struct Dataset {
  Texts texts;
  Texts text_pairs = {};                             ///< the second text of each row; empty where rows are single texts
  at::Tensor targets;                                ///< row i is text i's; undefined where there are none
  RowPlaces places = {};                             ///< without lines where they are not known
  std::vector<std::vector<std::string>> words = {};  ///< of each row; empty where they are not known

  int64_t size() const { return static_cast<int64_t>(texts.size()); }
};

/// A line if integers in `rows` are positions in the list of labels, as label_ids() reads them: "0 is 'negative', 1 is
/// 'positive'". Empty otherwise.
/// @param names  of the labels, in their order.
std::string note_of_positions(const LabeledRows& rows, std::span<const std::string> names);

/// The id of each row's label, [N] int64. Where all are integers and no name of `labels` is a number, they are ids.
/// @throws c10::ValueError  for a row without a label or with one that `labels` lacks; the message
///     gives file, line and row, lists the known labels, and ends with `on_unknown_label`
at::Tensor label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// Which labels each row has, of LabelKind::kSeveral: [N, labels] float32 of ones and zeros.
/// @throws c10::ValueError  as label_ids()
at::Tensor label_flags(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// The id of each word's label, [N, most words of a row] int32; behind a row's last word -100.
/// @throws c10::ValueError  as label_ids()
at::Tensor word_label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label = "");

/// @param targets  of `rows`, as a Task makes them.
Dataset to_dataset(LabeledRows rows, at::Tensor targets);

/// Shuffles and splits off `ratio` of the rows, rounded, as the second part (for `--dev-ratio`).
/// The same in every run with one `seed`, and as in Python: the second part is the end of
/// `torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))`. Leaves torch's
/// default generator alone.
/// @throws c10::ValueError  unless `ratio` is between 0 and 1 and each part has a row
std::pair<Dataset, Dataset> split_dataset(const Dataset& dataset, double ratio, uint64_t seed);

/// Likewise, with the same share of each class in both parts, to a row (for `--stratify`): the classes with the
/// largest remainders get one more until there are as many rows as `fraction` says. A class keeps at least one row in
/// the first part.
/// @param dataset  with targets [N] int64, from 0.
/// @see sklearn.model_selection.train_test_split (Python) with `stratify`, which draws other rows, and
///   refuses a class of one.
std::pair<Dataset, Dataset> split_by_class(const Dataset& dataset, double fraction, uint64_t seed);

/// Splits off one of `folds` parts, which together hold each row once, as the second part (for `--folds`). By class,
/// each fold has as many rows of each as scikit-learn's StratifiedKFold gives it; else sizes differ by a row at most.
/// Which rows these are depends on `seed`.
/// @param fold  from 0.
/// @param by_class  with targets [N] int64, from 0.
/// @throws c10::ValueError  for less than two folds, or more than there are rows.
std::pair<Dataset, Dataset> split_fold(
    const Dataset& dataset, int64_t folds, int64_t fold, bool by_class, uint64_t seed);

}  // namespace mezzo::text
