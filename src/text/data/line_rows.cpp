// Files of which each line is a text or a word.
#include <c10/util/Exception.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "text/data/for_each_line.h"
#include "text/data/raw_label.h"
#include "text/data/row_formats.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kFastTextLabel = "__label__";

/// Takes the labels out of a line of fastText: all words that begin with that prefix, and the white space behind each.
/// @return the labels; leaves the text in `line`.
std::vector<std::string> take_fasttext_labels(std::string& line) {
  using namespace std::string_view_literals;
  constexpr auto kSpace = " \t\v\f\r\0"sv;  // of fastText's Dictionary::readWord
  std::vector<std::string> labels;
  if (line.find(kFastTextLabel) == line.npos) return labels;
  std::string text;
  for (std::string_view rest = line; !rest.empty();) {
    const size_t end = std::min(rest.find_first_of(kSpace), rest.size());
    const size_t next = std::min(rest.find_first_not_of(kSpace, end), rest.size());
    if (rest.starts_with(kFastTextLabel)) {
      labels.emplace_back(rest.substr(kFastTextLabel.size(), end - kFastTextLabel.size()));
      if (next == rest.size()) text.resize(text.find_last_not_of(kSpace) + 1);
    } else {
      text += rest.substr(0, next);
    }
    rest.remove_prefix(next);
  }
  line = std::move(text);
  return labels;
}

}  // namespace

void read_txt(TextInput& input, RowCollector& rows) {
  const LabelKind kind = rows.label_kind();
  const bool can_have = kind == LabelKind::kClass || kind == LabelKind::kSeveral;
  bool has_fasttext_labels = false;
  for_each_line(input, [&](std::string line, int64_t number) {
    auto labels = take_fasttext_labels(line);
    const std::string where = rows.where(number);
    if (number == 1) {
      has_fasttext_labels = !labels.empty();
      TORCH_CHECK_VALUE(!rows.has_labels() || (can_have && has_fasttext_labels), where,
                        "a .txt file has no labels but those of fastText (__label__spam and a text). Use .json, "
                        ".jsonl, .csv or .tsv for others.");
    }
    TORCH_CHECK_VALUE(has_fasttext_labels || labels.empty(), where, "the line has the fastText label __label__",
                      labels.front(), ", and line 1 has none. Give line 1 a label, or remove this one.");
    Row row;
    if (has_fasttext_labels) {
      if (kind == LabelKind::kSeveral) row.label = label_set(std::move(labels), where);
      if (kind == LabelKind::kClass) {
        TORCH_CHECK_VALUE(
            labels.size() == 1, where, "the line has ", labels.size(), " labels of the form __label__name",
            labels.empty()
                ? ", and every row needs one."
                : ". Several labels a text need " + rows.options().on_other_task() + " multi_label_classification.");
        row.label = std::move(labels.front());
      }
    }
    row.text = std::move(line);
    rows.add_bytes(std::move(row), number);
    return !rows.full();
  });
}

namespace {

/// Whether a first column numbers the words from 0 or 1, as in CoNLL-U and GermEval. A comment may come first. CoNLL-U
/// writes 3-4 for a word of two parts, and 3.1 for a word that is left out of the text.
bool are_numbers(std::span<const std::string> column) {
  if (!column.empty() && column.front().starts_with('#')) column = column.subspan(1);
  if (column.size() < 2) return false;
  int64_t next = column.front().starts_with('0') ? 0 : 1;
  return std::ranges::all_of(column, [&](const std::string& text) {
    const std::string number = std::to_string(next);
    const bool is_next = text == number || text == number + ".";
    next += is_next;
    return is_next || text.starts_with(number + "-") || text.starts_with(std::to_string(next - 1) + ".");
  });
}

/// Whether a label marks an entity or its absence, as O, B-PER and I-PER do.
bool is_tag(std::string_view label) { return label == "O" || (label.size() > 2 && label[1] == '-'); }

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
  bool may_be_numbered = true;  // until a text of two words is not
  size_t num_columns = 0;       // of the last line
  bool are_tags = true;         // what the last columns of a text hold
  const auto end_row = [&] {
    if (words.empty()) return;
    const bool has_words_besides = num_columns > 2 || (num_columns == 2 && !are_tags);
    TORCH_CHECK_VALUE(!may_be_numbered || !has_words_besides || !are_numbers(words), rows.between(first_line),
                      "the first column numbers the words. Make the word the first column, and its label the last.");
    may_be_numbered = may_be_numbered && words.size() < 2;
    are_tags = true;
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
    TORCH_CHECK_VALUE(
        !line.starts_with("#begin document"), rows.between(number),
        "the file is in the format of CoNLL-2012. Make the word the first column, and its label the last.");
    if (words.empty()) first_line = number;
    TORCH_CHECK_VALUE(!rows.has_labels() || columns.size() > 1, rows.where(number),
                      "the line has a word alone. Put its label into the last column.");
    num_columns = columns.size();
    are_tags = are_tags && is_tag(columns.back());
    words.push_back(std::move(columns.front()));
    if (rows.has_labels()) labels.push_back(std::move(columns.back()));
    return true;
  });
  if (!rows.full()) end_row();
}

}  // namespace mezzo::text
