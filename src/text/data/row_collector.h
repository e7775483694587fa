#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

/// What is read of a row, and the program's flag that names another place for it.
struct Column {
  std::string name;
  std::string_view flag;
  bool is_required = true;
};

struct Columns {
  Column text, text_pair, label;
  std::vector<Column> flags = {};  ///< in place of `label`: one for each label

  explicit Columns(const LoadRowsOptions& options);

  /// Whether nobody has named others.
  bool are_usual() const;
  bool is_flag(std::string_view name) const;
  /// Whether the column is none of those that are read.
  bool is_other(std::string_view name) const;
  /// What to do where `missing` is not among `present`: a near name, or the only one of no other use, may be meant.
  std::string advice(const Column& missing, const std::vector<std::string>& present) const;
};

struct Row {
  std::string text = {};
  std::optional<std::string> text_pair = {};
  RawLabel label = {};
  std::optional<std::vector<std::string>> words = {};  ///< in place of the text
  std::string others = {};                             ///< as of LabeledRows
  bool has_invalid_utf8 = false;                       ///< of the others, where it became U+FFFD
};

/// Gathers the rows of one file and checks that they are of one kind.
class RowCollector {
 public:
  /// @param options  must live as long as this.
  RowCollector(std::string file, const LoadRowsOptions& options);

  bool full() const { return options_.limit() > 0 && size() >= options_.limit(); }
  bool has_words() const { return has_words_; }
  bool has_labels() const { return label_kind() != LabelKind::kNone; }
  LabelKind label_kind() const { return options_.label_kind(); }
  const LoadRowsOptions& options() const { return options_; }
  const Columns& columns() const { return columns_; }

  /// What an error in the row after those that are here begins with.
  std::string where(int64_t line) const;
  /// Of what is wrong outside of rows.
  std::string between(int64_t line) const;

  /// @throws c10::ValueError  for a row of another kind than the first.
  void add(Row row, int64_t line);
  /// add() for bytes that may be any.
  void add_bytes(Row row, int64_t line);

  /// The row that was added last had such bytes.
  void note_invalid_utf8() { ++rows_.rows_with_invalid_utf8; }

  /// @throws c10::ValueError  where there are none.
  LabeledRows finish();

 private:
  int64_t size() const { return static_cast<int64_t>(rows_.texts.size()); }
  void add_words(Row& row, int64_t line);
  void check_label(RawLabel& label, int64_t line);
  void check_pair(bool is_pair, int64_t line) const;

  const LoadRowsOptions& options_;
  const Columns columns_;
  const bool has_words_;
  LabeledRows rows_;
};

}  // namespace mezzo::text
