// Files of which each line is a text or a word.
#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "text/data/for_each_line.h"
#include "text/data/raw_label.h"
#include "text/data/row_formats.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kFastTextLabel = "__label__";

/// A line of fastText: labels, each behind that prefix, and the text, with white space between them.
/// @return the labels; leaves the text in `line`.
std::vector<std::string> take_fasttext_labels(std::string& line) {
  constexpr std::string_view kSpace = " \t";
  std::vector<std::string> labels;
  std::string_view rest = line;
  while (rest.starts_with(kFastTextLabel)) {
    const size_t end = std::min(rest.find_first_of(kSpace), rest.size());
    labels.emplace_back(rest.substr(kFastTextLabel.size(), end - kFastTextLabel.size()));
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace, end), rest.size()));
  }
  line = std::string(rest);
  return labels;
}

}  // namespace

void read_txt(TextInput& input, RowCollector& rows) {
  const bool has_fasttext_labels = input.ahead(kFastTextLabel.size()) == kFastTextLabel;
  const LabelKind kind = rows.label_kind();
  const bool can_have = kind == LabelKind::kClass || kind == LabelKind::kSeveral;
  TORCH_CHECK_VALUE(!rows.has_labels() || (can_have && has_fasttext_labels), rows.where(1),
                    "a .txt file has no labels but those of fastText, which begin a line (__label__spam …). Use .json, "
                    ".jsonl, .csv or .tsv where others are needed.");
  for_each_line(input, [&](std::string line, int64_t number) {
    Row row;
    if (has_fasttext_labels) {
      auto labels = take_fasttext_labels(line);
      const std::string where = rows.where(number);
      if (kind == LabelKind::kSeveral) row.label = label_set(std::move(labels), where);
      if (kind == LabelKind::kClass) {
        TORCH_CHECK_VALUE(labels.size() == 1, where, "the line has ", labels.size(),
                          " labels of the form __label__name",
                          labels.empty() ? ", and every row needs one."
                                         : ". Several labels a text need --task multi_label_classification.");
        row.label = std::move(labels.front());
      }
    }
    row.text = std::move(line);
    rows.add_bytes(std::move(row), number);
    return !rows.full();
  });
}

namespace {

/// The columns of a line, with white space between them.
std::vector<std::string> columns_of(std::string_view line) {
  constexpr std::string_view kSpace = " \t";
  std::vector<std::string> columns;
  for (size_t begin = line.find_first_not_of(kSpace); begin != line.npos;) {
    const size_t end = std::min(line.find_first_of(kSpace, begin), line.size());
    columns.emplace_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kSpace, end);
  }
  return columns;
}

}  // namespace

void read_conll(TextInput& input, RowCollector& rows) {
  TORCH_CHECK_VALUE(rows.has_words(), rows.between(1),
                    "a .conll file has words and their labels, which are for models of --task token_classification.");
  TORCH_CHECK_VALUE(rows.columns().are_usual(), rows.between(1),
                    "of a .conll file, words are the first column and labels the last; leave --text-column, "
                    "--pair-column and --label-column out.");
  std::vector<std::string> words, labels;
  int64_t first_line = 0;
  const auto end_row = [&] {
    if (words.empty()) return;
    Row row{.words = std::exchange(words, {})};
    if (rows.has_labels()) row.label = std::exchange(labels, {});
    rows.add_bytes(std::move(row), first_line);
  };
  for_each_line(input, [&](const std::string& line, int64_t number) {
    auto columns = columns_of(line);
    if (columns.empty()) {
      end_row();
      return !rows.full();
    }
    if (columns.front() == "-DOCSTART-") {
      end_row();
      return !rows.full();
    }
    TORCH_CHECK_VALUE(line.find('\r') == line.npos, rows.between(number),
                      "the line holds a carriage return. Save the file with lines that end in LF or CR LF.");
    if (words.empty() && line.starts_with("# ") && line.find(" = ") != line.npos) return true;  // of CoNLL-U
    if (words.empty()) first_line = number;
    TORCH_CHECK_VALUE(!rows.has_labels() || columns.size() > 1, rows.where(number),
                      "the line has a word alone. Put its label into the last column.");
    words.push_back(std::move(columns.front()));
    if (rows.has_labels()) labels.push_back(std::move(columns.back()));
    return true;
  });
  if (!rows.full()) end_row();
}

}  // namespace mezzo::text
