#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

/// The fields read from a row, and the program's flag that names another column for each.
struct Column {
  std::string name;
  std::string_view flag;
  bool is_required = true;
};

struct Columns {
  Column text, text_pair, label;
  std::vector<Column> flags = {};  ///< in place of `label`: one for each label

  explicit Columns(const LoadRowsOptions& options);

  bool is_flag(std::string_view name) const;
  /// Whether no setting reads the column.
  bool is_other(std::string_view name) const;
  /// Which columns that must be there are not among `present`, and the flags that name others: "no column 'text' among
  /// 'a', 'b'. Pass --text-column 'a'". Empty if all are there.
  /// @param what  "column" or "key".
  std::string missing(const std::vector<std::string>& present, std::string_view what = "column") const;
};

struct Row {
  std::string text = {};
  std::optional<std::string> text_pair = {};
  RawLabel label = {};
  std::vector<std::string> flags = {};                 ///< in place of the label: Columns::flags that are set
  std::optional<std::vector<std::string>> words = {};  ///< in place of the text
  std::string others = {};                             ///< as of LabeledRows
};

/// Gathers the rows of files and checks that they are of one kind.
class RowCollector {
 public:
  /// @param options  must live as long as this.
  RowCollector(std::span<const std::filesystem::path> files, const LoadRowsOptions& options);

  /// The rows of another file follow.
  void begin_file(std::string file);

  /// Of the file.
  int64_t size() const { return std::ssize(rows_.texts) - first_; }
  bool full() const { return options_.limit() > 0 && std::ssize(rows_.texts) >= options_.limit(); }
  bool has_words() const { return has_words_; }
  bool has_labels() const { return label_kind() != LabelKind::kNone; }
  LabelKind label_kind() const { return options_.label_kind(); }
  const LoadRowsOptions& options() const { return options_; }
  const Columns& columns() const { return columns_; }
  /// Whether the column is a text or a label, and not one of Row::others.
  bool reads(std::string_view column) const {
    return !columns_.is_other(column) && (has_labels() || column != columns_.label.name);
  }

  /// The beginning of an error message about the row after the collected ones.
  std::string where(int64_t line) const;
  /// The same for an error outside of rows.
  std::string between(int64_t line) const;

  /// @throws c10::ValueError  for a row of another kind than the first.
  void add(Row row, int64_t line);

  /// Keeps a sentence for the user, about the file.
  void note(std::string_view what);

  LabeledRows take() { return std::move(rows_); }

 private:
  void add_words(Row& row, int64_t line);
  void check_label(RawLabel& label, int64_t line);
  void check_pair(bool is_pair, int64_t line) const;

  const LoadRowsOptions& options_;
  const Columns columns_;
  const bool has_words_;
  LabeledRows rows_;
  std::string file_;   // that is read
  int64_t first_ = 0;  // row of the file
  int32_t num_files_ = 0;
};

}  // namespace mezzo::text
