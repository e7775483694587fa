// Files of which each line is a text or a word.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
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
    const std::string where = rows.where(number);
    if (number == 1) {
      has_fasttext_labels = !labels.empty();
      TORCH_CHECK_VALUE(!rows.has_labels() || (can_have && has_fasttext_labels), where,
                        "a .txt file has no labels but those of fastText (__label__spam and a text). If the file is a "
                        "table, pass --delimiter, such as --delimiter tab.");
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

/// A line of a .conll file.
struct Word {
  int64_t line = 0;
  std::vector<std::string> columns;

  bool is_comment() const { return columns.front().starts_with('#'); }
  /// CoNLL-U writes 3-4 for a word of two parts, and 3.1 for a word that is left out of the text; German files write 3.
  bool is_numbered() const { return columns.front().find_first_of("-.", 1) >= columns.front().size() - 1; }
};

/// Whether the first column numbers the words from 0 or 1, as in CoNLL-U and GermEval, and another can be the words.
bool are_numbered(std::span<const Word> words) {
  if (!words.empty() && words.front().is_comment()) words = words.subspan(1);
  if (words.size() < 2) return false;
  int64_t next = words.front().columns.front().starts_with('0') ? 0 : 1;
  const bool are_numbers = std::ranges::all_of(words, [&](const Word& word) {
    const std::string& text = word.columns.front();
    const std::string number = std::to_string(next);
    const bool is_next = text == number || text == number + ".";
    next += is_next;
    return is_next || text.starts_with(number + "-") || text.starts_with(std::to_string(next - 1) + ".");
  });
  const auto& last = words.back().columns;
  // Tags beside numbers leave no column for the words: the numbers are words.
  return are_numbers && (last.size() > 2 || (last.size() == 2 && !std::ranges::all_of(words, [](const Word& word) {
                                               return is_tag(word.columns.back());
                                             })));
}

class ConllReader {
 public:
  explicit ConllReader(RowCollector& rows) : rows_(rows) {
    const Columns& columns = rows.columns();
    TORCH_CHECK_VALUE(rows.has_words(), rows.between(1),
                      "a .conll file has words and their labels, which are for models of --task token_classification.");
    TORCH_CHECK_VALUE(!columns.text_pair.is_required, rows.between(1),
                      "a .conll file has no pairs of texts. Leave --pair-column out.");
    const ColumnNames usual;
    text_ = number_of(columns.text, usual.text);
    label_ = number_of(columns.label, usual.label);
    is_decided_ = text_ > 0;
  }

  void read(TextInput& input) {
    for_each_line(input, [&](const std::string& line, int64_t number) {
      auto columns = columns_of(line);
      if (columns.empty() || columns.front() == "-DOCSTART-") {
        end_text();
        return !rows_.full();
      }
      add({number, std::move(columns)}, line);
      return true;
    });
    if (!rows_.full()) end_text();
    is_decided_ = true;
    if (!rows_.full()) end_text();
  }

 private:
  /// @return 0 for the usual name
  int64_t number_of(const Column& column, const std::string& usual) const {
    if (column.name == usual) return 0;
    int64_t number = 0;
    const char* const end = column.name.data() + column.name.size();
    const bool is_number = std::from_chars(column.name.data(), end, number).ptr == end && number > 0;
    TORCH_CHECK_VALUE(is_number, rows_.between(1), "the columns of a .conll file have numbers, from 1. Pass ",
                      column.flag, " with a number, not '", column.name, "'.");
    return number;
  }

  void add(Word word, const std::string& line) {
    TORCH_CHECK_VALUE(line.find('\r') == line.npos, rows_.between(word.line),
                      "the line holds a carriage return. Save the file with lines that end in LF or CR LF.");
    if (text_ > 1 && word.is_comment()) return;
    if (words_.empty() && line.starts_with("# ") && line.find(" = ") != line.npos) return;  // of CoNLL-U
    TORCH_CHECK_VALUE(!line.starts_with("#begin document"), rows_.between(word.line),
                      "the file is in the format of CoNLL-2012. Its words are column 4: pass --text-column 4 and "
                      "--label-column NUMBER.");
    words_.push_back(std::move(word));
  }

  /// Keeps texts until one of two words tells whether the first column numbers them.
  void end_text() {
    if (!words_.empty()) {
      const bool is_numbered = !is_decided_ && are_numbered(words_);
      if (!is_decided_ && words_.size() > 1) is_decided_ = true;
      if (is_numbered) skip_numbers(words_.back().columns.size());
      waiting_.push_back(std::exchange(words_, {}));
    }
    if (!is_decided_) return;
    for (const auto& words : std::exchange(waiting_, {})) {
      if (!rows_.full()) add_row(words);
    }
  }

  void skip_numbers(size_t num_columns) {
    constexpr size_t kColumnsOfConllU = 10;
    constexpr int64_t kUpos = 4;
    has_numbers_ = true;
    text_ = 2;
    if (label_ == 0 && num_columns == kColumnsOfConllU) label_ = kUpos;
    rows_.note(fmt::format("column 1 numbers the words, so words are column 2{}",
                           rows_.has_labels() ? fmt::format(" and labels column {}; --label-column NUMBER changes it",
                                                            label_ > 0 ? label_ : static_cast<int64_t>(num_columns))
                                              : "; --text-column NUMBER changes it"));
  }

  void add_row(std::span<const Word> words) {
    Row row{.words = std::vector<std::string>()};
    std::vector<std::string> labels;
    for (const Word& word : words) {
      const auto& columns = word.columns;
      if (has_numbers_ && (word.is_comment() || !word.is_numbered())) continue;
      const bool has_label = label_ > 0 || std::ssize(columns) > std::max<int64_t>(text_, 1);
      TORCH_CHECK_VALUE(!rows_.has_labels() || has_label, rows_.where(word.line),
                        "the line has a word alone. Put its label into the last column.");
      const auto cell = [&](int64_t number, std::string_view flag) {
        TORCH_CHECK_VALUE(number <= std::ssize(columns), rows_.where(word.line), "the line has ", columns.size(),
                          " columns, and ", flag, " is ", number, ".");
        return columns[static_cast<size_t>(number - 1)];
      };
      row.words->push_back(cell(std::max<int64_t>(text_, 1), "--text-column"));
      if (rows_.has_labels()) labels.push_back(label_ > 0 ? cell(label_, "--label-column") : columns.back());
    }
    if (row.words->empty()) return;
    if (rows_.has_labels()) row.label = std::move(labels);
    rows_.add(std::move(row), words.front().line);
  }

  RowCollector& rows_;
  int64_t text_ = 0, label_ = 0;  // columns from 1; 0 for the first and the last
  bool has_numbers_ = false;      // in the first column
  bool is_decided_ = false;       // whether it has
  std::vector<Word> words_;       // of the text that is being read
  std::vector<std::vector<Word>> waiting_;
};

}  // namespace

void read_conll(TextInput& input, RowCollector& rows) { ConllReader(rows).read(input); }

}  // namespace mezzo::text
