// Files of which each line is a text or a word.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "text/data/raw_label.h"
#include "text/data/row_formats.h"

namespace mezzo::text {
namespace {

/// Calls `use` with each line, less its line break, and its number until it returns false. Lines end with LF or CR LF,
/// or with CR if the bytes at hand have no LF, as old Macs wrote files.
template <class Use>
void for_each_line(TextInput& input, Use&& use) {
  const std::string_view begin = input.at_hand();
  const size_t first_return = begin.find('\r');
  const bool is_of_mac =
      first_return != begin.npos && begin.find('\n') == begin.npos && first_return + 1 < begin.size();
  const char line_end = is_of_mac ? '\r' : '\n';
  for (int64_t number = 1; !input.at_end(); ++number) {
    std::string line;
    while (!input.at_end()) {
      const std::string_view text = input.at_hand();
      const size_t end = text.find(line_end);
      line += text.substr(0, end);
      input.skip(std::min(end, text.size() - 1) + 1);
      if (end != text.npos) break;
    }
    if (line.ends_with('\r')) line.pop_back();
    if (!use(std::move(line), number)) return;
  }
}

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
    const auto where = [&] { return rows.where(number); };
    if (number == 1) {
      has_fasttext_labels = !labels.empty();
      TORCH_CHECK_VALUE(!rows.has_labels() || (can_have && has_fasttext_labels), where(),
                        "a .txt file can only have fastText's labels (__label__spam and a text). If the file is a "
                        "table, pass --delimiter, such as --delimiter tab.");
    }
    TORCH_CHECK_VALUE(has_fasttext_labels || labels.empty(), where(), "the line has the fastText label __label__",
                      labels.front(), ", and line 1 has none. Give line 1 a label, or remove this one.");
    Row row;
    if (has_fasttext_labels) {
      if (kind == LabelKind::kSeveral) row.label = std::move(labels);
      if (kind == LabelKind::kClass) {
        TORCH_CHECK_VALUE(
            labels.size() == 1, where(), "the line has ", labels.size(), " labels of the form __label__name",
            labels.empty()
                ? ", and every row needs one."
                : ". Several labels a text need " + rows.options().on_other_task() + " multi_label_classification.");
        row.label = std::move(labels.front());
      }
    }
    row.text = std::move(line);
    rows.add(std::move(row), number);
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

/// Whether a label marks an entity or its absence, as O, B-PER and I-PER do.
bool is_tag(std::string_view label) { return label == "O" || (label.size() > 2 && label[1] == '-'); }

/// How many columns a text has whose first column numbers the words from 0 or 1, as in CoNLL-U and GermEval; 0 if it
/// does not. CoNLL-U writes 3-4 for a word of two parts, and 3.1 for a word that is left out of the text.
/// @param text  the first bytes of the file: their first text of several words counts.
size_t count_numbered_columns(std::string_view text) {
  std::vector<std::vector<std::string>> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    auto columns = columns_of(text.substr(0, end));
    text.remove_prefix(std::min(end + (text.substr(end).starts_with("\r\n") ? 2 : 1), text.size()));
    const bool ends_text = columns.empty() || columns.front() == "-DOCSTART-";
    if (ends_text && words.size() > 1) break;
    if (ends_text) words.clear();
    if (!ends_text && !columns.front().starts_with('#')) words.push_back(std::move(columns));
  }
  if (words.size() < 2) return 0;
  int64_t next = words.front().front().starts_with('0') ? 0 : 1;
  const bool are_numbers = std::ranges::all_of(words, [&](const auto& columns) {
    const std::string number = std::to_string(next);
    const bool is_next = columns.front() == number || columns.front() == number + ".";
    next += is_next;
    return is_next || columns.front().starts_with(number + "-") ||
           columns.front().starts_with(std::to_string(next - 1) + ".");
  });
  const size_t count = words.front().size();
  // Tags beside numbers leave no column for the words: the numbers are words.
  const bool are_tags = std::ranges::all_of(words, [](const auto& columns) { return is_tag(columns.back()); });
  return are_numbers && (count > 2 || (count == 2 && !are_tags)) ? count : 0;
}

/// The number of a column, from 1; 0 for the usual name.
size_t number_of(const Column& column, const std::string& usual, const RowCollector& rows) {
  if (column.name == usual) return 0;
  size_t number = 0;
  const char* const end = column.name.data() + column.name.size();
  const bool is_number = std::from_chars(column.name.data(), end, number).ptr == end && number > 0;
  TORCH_CHECK_VALUE(is_number, rows.between(1), "the columns of a .conll file have numbers, from 1. Pass ", column.flag,
                    " with a number, not '", column.name, "'.");
  return number;
}

}  // namespace

void read_conll(TextInput& input, RowCollector& rows) {
  TORCH_CHECK_VALUE(rows.has_words(), rows.between(1),
                    "a .conll file has words and their labels, which are for models of --task token_classification.");
  TORCH_CHECK_VALUE(!rows.columns().text_pair.is_required, rows.between(1),
                    "a .conll file has no pairs of texts. Leave --pair-column out.");
  size_t text = number_of(rows.columns().text, ColumnNames().text, rows);
  size_t label = rows.has_labels() ? number_of(rows.columns().label, ColumnNames().label, rows) : 0;
  const size_t numbered = text == 0 ? count_numbered_columns(input.at_hand()) : 0;
  if (numbered > 0) {
    constexpr size_t kColumnsOfConllU = 10, kUpos = 4;
    text = 2;
    if (label == 0 && numbered == kColumnsOfConllU) label = kUpos;
    rows.note(fmt::format("column 1 numbers the words, so words are column 2{}; {} NUMBER changes it",
                          rows.has_labels() ? fmt::format(" and labels column {}", label > 0 ? label : numbered) : "",
                          rows.has_labels() ? "--label-column" : "--text-column"));
  }
  text = std::max<size_t>(text, 1);
  std::vector<std::string> words, labels;
  int64_t first_line = 0;
  const auto end_row = [&] {
    if (words.empty()) return;
    Row row{.words = std::exchange(words, {})};
    if (rows.has_labels()) row.label = std::exchange(labels, {});
    rows.add(std::move(row), first_line);
  };
  for_each_line(input, [&](const std::string& line, int64_t number) {
    auto columns = columns_of(line);
    if (columns.empty() || columns.front() == "-DOCSTART-") {
      end_row();
      return !rows.full();
    }
    TORCH_CHECK_VALUE(line.find('\r') == line.npos, rows.between(number),
                      "the line holds a carriage return. Save the file with lines that end in LF or CR LF.");
    const bool is_comment_of_conll_u = words.empty() && line.starts_with("# ") && line.find(" = ") != line.npos;
    if (is_comment_of_conll_u || (text > 1 && line.starts_with('#'))) return true;
    TORCH_CHECK_VALUE(!line.starts_with("#begin document"), rows.between(number),
                      "the file is in the format of CoNLL-2012. Its words are column 4: pass --text-column 4 and "
                      "--label-column NUMBER.");
    if (numbered > 0 && columns.front().find_first_of("-.", 1) < columns.front().size() - 1) return true;
    if (words.empty()) first_line = number;
    TORCH_CHECK_VALUE(!rows.has_labels() || label > 0 || columns.size() > text, rows.where(number),
                      "the line has only a word. Put its label into the last column.");
    TORCH_CHECK_VALUE(std::max(text, label) <= columns.size(), rows.where(number), "the line has ", columns.size(),
                      columns.size() == 1 ? " column" : " columns", ", and column ", std::max(text, label),
                      " is needed.");
    words.push_back(columns[text - 1]);
    if (rows.has_labels()) labels.push_back(label > 0 ? columns[label - 1] : columns.back());
    return true;
  });
  if (!rows.full()) end_row();
}

}  // namespace mezzo::text
