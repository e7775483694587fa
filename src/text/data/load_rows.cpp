// load_rows() of dataset.h: from files to rows.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>

#include "mezzo/text/data/dataset.h"
#include "mezzo/text/data/split_words.h"
#include "mezzo/text/words/nearest_name.h"
#include "text/io/csv_reader.h"
#include "text/io/json_reader.h"
#include "text/io/text_input.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

/// Each label costs a row of the classifier; a larger integer is no label
/// but somebody's identifier.
constexpr int64_t kMaxIntegerLabel = 999'999;

/// Moves to the file's text: what follows a byte order mark.
void begin_text(TextInput& input, const std::string& file) {
  const std::string_view mark = input.ahead(2);
  TORCH_CHECK_VALUE(mark != "\xFF\xFE" && mark != "\xFE\xFF", file, ": the file is UTF-16. Save it as UTF-8.");
  if (input.ahead(3) == "\xEF\xBB\xBF") input.skip(3);
  TORCH_CHECK_VALUE(!input.at_end(), file, ": the file is empty.");
}

/// What is read of a row, and the program's flag that names another place for it.
struct Column {
  std::string name;
  std::string_view flag;
  bool is_required = true;
};

struct Columns {
  Column text, text_pair, label;

  explicit Columns(const LoadRowsOptions& options)
      : text{options.columns().text, "--text-column"},
        text_pair{options.columns().text_pair, "--pair-column"},
        label{options.columns().label, "--label-column", options.label_kind() != LabelKind::kNone} {
    if (text_pair.name.empty()) text_pair = {"text_pair", text_pair.flag, false};
  }

  /// Whether nobody has named others.
  bool are_usual() const {
    const ColumnNames usual;
    return text.name == usual.text && !text_pair.is_required && label.name == usual.label;
  }

  /// What to do where `missing` is not among `present`: a near name, or the only one of no other use, may be meant.
  std::string advice(const Column& missing, const std::vector<std::string>& present) const {
    std::vector<std::string> others;
    std::ranges::copy_if(present, std::back_inserter(others), [&](const std::string& name) {
      return name != text.name && name != text_pair.name && name != label.name;
    });
    const std::optional<std::string> found = others.size() == 1 ? others.front() : nearest_name(missing.name, others);
    if (!found) return "";
    const std::string name = replace_invalid_utf8(*found);
    return fmt::format(" Rename '{0}' to '{1}', or pass {2} '{0}'.", name, missing.name, missing.flag);
  }
};

struct Row {
  std::string text = {};
  std::optional<std::string> text_pair = {};
  RawLabel label = {};
  std::optional<std::vector<std::string>> words = {};  // in place of the text
};

/// Gathers the rows of one file and checks that they are of one kind.
class RowCollector {
 public:
  RowCollector(std::string file, const LoadRowsOptions& options)
      : options_(options), columns_(options), has_words_(options.words() || options.label_kind() == LabelKind::kWords) {
    rows_.file = std::move(file);
  }

  bool full() const { return options_.limit() > 0 && size() >= options_.limit(); }
  bool has_words() const { return has_words_; }
  bool has_labels() const { return label_kind() != LabelKind::kNone; }
  LabelKind label_kind() const { return options_.label_kind(); }
  const Columns& columns() const { return columns_; }

  /// What an error in the row after those that are here begins with.
  std::string where(int64_t line) const { return fmt::format("{}:{}: row {}: ", rows_.file, line, size() + 1); }

  /// Of what is wrong outside of rows.
  std::string between(int64_t line) const { return fmt::format("{}:{}: ", rows_.file, line); }

  void add(Row row, int64_t line) {
    check_label(row.label, line);
    check_pair(row.text_pair.has_value(), line);
    if (has_words_) add_words(row, line);
    rows_.texts.push_back(std::move(row.text));
    if (row.text_pair) rows_.text_pairs.push_back(std::move(*row.text_pair));
    rows_.labels.push_back(std::move(row.label));
    rows_.lines.push_back(line);
  }

  /// add() for bytes that may be any.
  void add_bytes(Row row, int64_t line) {
    bool replaced = false;
    const auto repair = [&](std::string& bytes) {
      if (find_invalid_utf8(bytes) == bytes.size()) return;
      bytes = replace_invalid_utf8(bytes);
      replaced = true;
    };
    repair(row.text);
    if (row.text_pair) repair(*row.text_pair);
    if (row.words) std::ranges::for_each(*row.words, repair);
    if (auto* name = std::get_if<std::string>(&row.label)) repair(*name);
    if (auto* names = std::get_if<std::vector<std::string>>(&row.label)) std::ranges::for_each(*names, repair);
    add(std::move(row), line);
    rows_.rows_with_invalid_utf8 += replaced;
  }

  LabeledRows finish() {
    TORCH_CHECK_VALUE(!rows_.texts.empty(), rows_.file, ": the file has no rows.");
    return std::move(rows_);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(rows_.texts.size()); }

  void add_words(Row& row, int64_t line) {
    TORCH_CHECK_VALUE(!row.text_pair, where(line),
                      "the row is a pair of texts, and words are labelled in single ones.");
    if (row.words) {
      row.text = join_words(*row.words);
    } else {
      row.words = split_words(row.text).words;
    }
    const auto* labels = std::get_if<std::vector<std::string>>(&row.label);
    TORCH_CHECK_VALUE(labels == nullptr || labels->size() == row.words->size(), where(line), row.words->size(),
                      row.words->size() == 1 ? " word" : " words", " but ", labels == nullptr ? 0 : labels->size(),
                      labels != nullptr && labels->size() == 1 ? " label" : " labels", ". Give each word one.");
    rows_.words.push_back(std::move(*row.words));
  }

  void check_label(RawLabel& label, int64_t line) {
    const auto* name = std::get_if<std::string>(&label);
    if (name != nullptr && name->empty()) label = std::monostate();
    if (std::holds_alternative<std::monostate>(label)) {
      TORCH_CHECK_VALUE(!has_labels(), where(line), "the row has no label. Give it one, or remove the row.");
      return;
    }
    if (labeled_line_ == 0) {
      labeled_line_ = line;
      kind_ = label.index();
    }
    TORCH_CHECK_VALUE(label.index() == kind_, where(line), "the label is ", kind_name(label.index()), " where line ",
                      labeled_line_, " has ", kind_name(kind_), ". Use one kind of label in a file.");
  }

  void check_pair(bool is_pair, int64_t line) const {
    if (rows_.texts.empty()) return;
    const bool first_is_pair = !rows_.text_pairs.empty();
    TORCH_CHECK_VALUE(is_pair == first_is_pair, where(line), is_pair ? "the row has a" : "the row has no",
                      " text_pair where line ", rows_.lines.front(), first_is_pair ? " has one" : " has none",
                      ". Give every row of a file one, or none.");
  }

  static const char* kind_name(size_t kind) { return kind == 1 ? "an integer" : "a string"; }

  const LoadRowsOptions& options_;
  const Columns columns_;
  const bool has_words_;
  LabeledRows rows_;
  int64_t labeled_line_ = 0;  // the first with a label, and what kind that is
  size_t kind_ = 0;
};

/// @param number  as JSON writes it.
int64_t integer_label(std::string_view number, const std::string& where) {
  TORCH_CHECK_VALUE(
      number.find_first_of(".eE") == number.npos, where, "label ", number,
      " is not a whole number. Labels are integers from 0, or strings; --task regression learns numbers.");
  TORCH_CHECK_VALUE(!number.starts_with('-'), where, "label ", number,
                    " is negative. Labels are integers from 0, or strings.");
  int64_t value = 0;
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  TORCH_CHECK_VALUE(result.ec == std::errc() && value <= kMaxIntegerLabel, where, "label ", number, " is above ",
                    kMaxIntegerLabel, ". Number the labels from 0, or write them as strings.");
  return value;
}

/// @param what  "text" or "text_pair"
std::string json_text(JsonReader& json, const std::string& what) {
  if (json.peek() != JsonReader::Type::kString) {
    json.fail("the " + what + " is " + to_string(json.peek()) + ", not a string");
  }
  return json.string();
}

/// What labels of a kind are, for a message.
std::string_view expectation(LabelKind kind) {
  switch (kind) {
    case LabelKind::kNone: return "";
    case LabelKind::kClass: return "a string or an integer";
    case LabelKind::kSeveral: return "an array of strings";
    case LabelKind::kNumber: return "a number";
    case LabelKind::kWords: return "an array of strings, one for each word";
  }
  return "";
}

double number_label(std::string_view number, const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == number.data() + number.size() && std::isfinite(value), where,
                    "label '", replace_invalid_utf8(number), "' is not a finite number.");
  return value;
}

/// A set of names: those of two rows are equal where the rows have the same labels.
RawLabel label_set(std::vector<std::string> names, const std::string& where) {
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  const bool has_empty = !names.empty() && names.front().empty();
  TORCH_CHECK_VALUE(!has_empty, where, "one of the labels is an empty string. Name it, or leave it out.");
  return names;
}

/// @param what  "labels" or "words"
std::vector<std::string> json_strings(JsonReader& json, const std::string& what) {
  std::vector<std::string> strings;
  json.begin_array();
  while (json.next_element()) {
    if (json.peek() != JsonReader::Type::kString) {
      json.fail("one of the " + what + " is " + to_string(json.peek()) + ", not a string");
    }
    strings.push_back(json.string());
  }
  return strings;
}

/// The names of words, as they stand there.
RawLabel word_labels(std::vector<std::string> names, const std::string& where) {
  TORCH_CHECK_VALUE(std::ranges::find(names, "") == names.end(), where,
                    "one of the labels is an empty string. Name it; words of no entity are labelled O.");
  return names;
}

RawLabel json_label(JsonReader& json, LabelKind kind, const std::string& where) {
  using Type = JsonReader::Type;
  const Type type = json.peek();
  if (type == Type::kNull || kind == LabelKind::kNone) {
    json.skip();
    return std::monostate();
  }
  if (kind == LabelKind::kSeveral && type == Type::kArray) return label_set(json_strings(json, "labels"), where);
  if (kind == LabelKind::kWords && type == Type::kArray) return word_labels(json_strings(json, "labels"), where);
  if (kind == LabelKind::kNumber && type == Type::kNumber) return number_label(json.number(), where);
  if (kind == LabelKind::kClass && type == Type::kString) return json.string();
  if (kind == LabelKind::kClass && type == Type::kNumber) return integer_label(json.number(), where);
  const bool are_several = kind == LabelKind::kClass && type == Type::kArray;
  json.fail(fmt::format("the label is {}, not {}{}", to_string(type), expectation(kind),
                        are_several ? "; several labels a text need --task multi_label_classification, labels of words "
                                      "--task token_classification"
                                    : ""));
}

class JsonRows {
 public:
  JsonRows(TextInput& json, RowCollector& rows, int64_t first_line)
      : json_(json, [this] { return where(); }, first_line), rows_(rows) {}

  void read_array() {
    TORCH_CHECK_VALUE(json_.peek() == JsonReader::Type::kArray, rows_.where(json_.line()), "the file is ",
                      to_string(json_.peek()), ", not an array of rows. For one object a line, name it .jsonl.");
    json_.begin_array();
    while (json_.next_element()) {
      read_row();
      if (rows_.full()) return;
    }
    json_.expect_end();
  }

  void read_line() {
    read_row();
    json_.expect_end();
  }

 private:
  std::string where() const { return is_in_row_ ? rows_.where(json_.line()) : rows_.between(json_.line()); }

  void read_row() {
    is_in_row_ = true;
    const JsonReader::Type type = json_.peek();
    const int64_t line = json_.line();
    row_ = {};
    if (type == JsonReader::Type::kArray) {
      read_pair();
    } else if (type == JsonReader::Type::kObject) {
      read_object();
    } else if (type == JsonReader::Type::kString && !rows_.has_labels()) {
      read_text("text");
    } else {
      json_.fail("the row is " + to_string(type) + R"(, not [text, label] or {"text": …, "label": …})");
    }
    rows_.add(std::move(row_), line);
    is_in_row_ = false;
  }

  /// @param what  its key
  void read_text(const std::string& what) {
    const bool is_array = json_.peek() == JsonReader::Type::kArray;
    if (rows_.has_words() && is_array) {
      row_.words = json_strings(json_, "words");
    } else if (rows_.label_kind() == LabelKind::kWords) {
      json_.fail("the " + what + " is " + to_string(json_.peek()) +
                 ", not an array of words, which --task token_classification labels");
    } else {
      if (is_array) {
        json_.fail("the " + what + " is an array, not a string; words are for models of --task token_classification");
      }
      row_.text = json_text(json_, what);
    }
  }

  void read_pair() {
    const Column& pair = rows_.columns().text_pair;
    if (pair.is_required) json_.fail("the row is an array, which has no \"" + pair.name + "\"");
    json_.begin_array();
    if (!json_.next_element()) json_.fail("the row is an empty array, not [text, label]");
    if (rows_.has_words() && json_.peek() == JsonReader::Type::kString) {
      json_.fail(R"(the row is an array that begins with a string; words are written [[…], […]] or {"text": […]})");
    }
    read_text("text");
    if (!json_.next_element()) return;
    row_.label = json_label(json_, rows_.label_kind(), where());
    if (json_.next_element()) json_.fail("the row has more than two elements; it must be [text, label]");
  }

  void read_object() {
    const Columns& columns = rows_.columns();
    bool has_text = false, has_pair = false, has_label = false;
    const auto take = [&](bool& seen, const std::string& key) {
      if (std::exchange(seen, true)) json_.fail("the row has two keys \"" + key + "\"");
    };
    std::vector<std::string> others;
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      if (key == columns.text.name) {
        take(has_text, key);
        read_text(key);
      } else if (key == columns.text_pair.name) {
        take(has_pair, key);
        if (json_.peek() == JsonReader::Type::kNull && !columns.text_pair.is_required) {
          json_.skip();
        } else {
          row_.text_pair = json_text(json_, key);
        }
      } else if (key == columns.label.name) {
        take(has_label, key);
        row_.label = json_label(json_, rows_.label_kind(), where());
      } else {
        json_.skip();
        others.push_back(std::move(key));
      }
    }
    if (!has_text) fail_without(columns.text, others);
    if (!has_pair && columns.text_pair.is_required) fail_without(columns.text_pair, others);
    const bool misses_label = !has_label && rows_.has_labels();
    if (misses_label && nearest_name(columns.label.name, others)) fail_without(columns.label, others);
  }

  [[noreturn]] void fail_without(const Column& column, const std::vector<std::string>& others) const {
    std::string advice = rows_.columns().advice(column, others);
    if (!advice.empty()) advice = "." + advice.substr(0, advice.size() - 1);  // fail() ends the sentence
    json_.fail(fmt::format("the row has no key \"{}\"{}", column.name, advice));
  }

  JsonReader json_;
  RowCollector& rows_;
  bool is_in_row_ = false;
  Row row_;  // that is being read
};

/// Calls `use` with each line, less its line break, and its number until it returns false.
template <class Use>
void for_each_line(TextInput& input, Use&& use) {
  for (int64_t number = 1; !input.at_end(); ++number) {
    std::string line;
    while (!input.at_end()) {
      const std::string_view text = input.at_hand();
      const size_t end = text.find('\n');
      line += text.substr(0, end);
      input.skip(std::min(end, text.size() - 1) + 1);
      if (end != text.npos) break;
    }
    if (line.ends_with('\r')) line.pop_back();
    if (!use(std::move(line), number)) return;
  }
}

void read_jsonl(TextInput& input, RowCollector& rows) {
  for_each_line(input, [&](const std::string& line, int64_t number) {
    TextInput json(line);
    if (line.find_first_not_of(" \t\r") != line.npos) JsonRows(json, rows, number).read_line();
    return !rows.full();
  });
}

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

/// @param has_fasttext_labels  whether the file begins with one.
void read_txt(TextInput& input, RowCollector& rows, bool has_fasttext_labels) {
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

struct CsvColumns {
  size_t count = 0;
  size_t text = 0;
  std::optional<size_t> text_pair, label;
};

CsvColumns csv_columns(const std::vector<std::string>& header, const std::string& where, const Columns& columns) {
  const auto find = [&](const Column& column) -> std::optional<size_t> {
    const auto found = std::ranges::find(header, column.name);
    TORCH_CHECK_VALUE(found != header.end() || !column.is_required, where, "no column '", column.name, "' among '",
                      replace_invalid_utf8(fmt::format("{}", fmt::join(header, "', '"))),
                      "'. The first line must name the columns: ", columns.text.name, " and ", columns.label.name, ".",
                      columns.advice(column, header));
    if (found == header.end()) return std::nullopt;
    TORCH_CHECK_VALUE(std::find(found + 1, header.end(), column.name) == header.end(), where, "two columns '",
                      column.name, "'. Rename one.");
    return found - header.begin();
  };
  return {header.size(), *find(columns.text), find(columns.text_pair),
          columns.label.is_required ? find(columns.label) : std::nullopt};
}

/// As JSON and Python write whole numbers: "7" and "-7", not "07", "+7" or " 7".
bool is_integer(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && std::ranges::all_of(text, is_digit) && (text[0] != '0' || text.size() == 1);
}

/// The labels of a cell, with `|` between them.
RawLabel names_of_cell(std::string_view cell, const std::string& where) {
  std::vector<std::string> names;
  for (size_t begin = 0; !cell.empty() && begin <= cell.size();) {
    const size_t end = std::min(cell.find('|', begin), cell.size());
    names.emplace_back(cell.substr(begin, end - begin));
    begin = end + 1;
  }
  return label_set(std::move(names), where);
}

void read_csv(
    TextInput& input, char delimiter, const LoadRowsOptions& options, RowCollector& rows, const std::string& file) {
  CsvReader csv(input, delimiter, [&](int64_t line, const std::string& found) {
    TORCH_CHECK_VALUE(false, file, ":", line, ": ", found, ".");
  });
  TORCH_CHECK_VALUE(rows.label_kind() != LabelKind::kWords, rows.between(1),
                    "a cell holds no labels of words. Use .conll, .json or .jsonl.");
  std::vector<std::string> fields;
  if (!csv.next(fields)) return;
  const CsvColumns columns = csv_columns(fields, fmt::format("{}:{}: ", file, csv.line()), rows.columns());

  std::vector<std::pair<Row, int64_t>> read;  // with their lines; whether labels are integers shows only at the end
  const auto limit = static_cast<size_t>(options.limit());
  while ((limit == 0 || read.size() < limit) && csv.next(fields)) {
    TORCH_CHECK_VALUE(fields.size() == columns.count, file, ":", csv.line(), ": row ", read.size() + 1, ": ",
                      fields.size(), fields.size() == 1 ? " field" : " fields", " where the header names ",
                      columns.count, ". Quote a text that holds a ", delimiter == '\t' ? "tab." : "comma.");
    Row row{.text = std::move(fields[columns.text]),
            .text_pair = {},
            .label = columns.label ? std::move(fields[*columns.label]) : std::string()};
    if (columns.text_pair) row.text_pair = std::move(fields[*columns.text_pair]);
    read.emplace_back(std::move(row), csv.line());
  }
  const bool integers = std::ranges::all_of(read, [](const auto& row) {
    const auto& label = std::get<std::string>(row.first.label);
    return label.empty() || is_integer(label);
  });
  for (auto& [row, line] : read) {
    const std::string cell = std::get<std::string>(row.label);
    const LabelKind kind = rows.label_kind();
    if (kind == LabelKind::kSeveral && columns.label) row.label = names_of_cell(cell, rows.where(line));
    if (kind == LabelKind::kNumber && !cell.empty()) row.label = number_label(cell, rows.where(line));
    if (kind == LabelKind::kClass && integers && !cell.empty()) row.label = integer_label(cell, rows.where(line));
    rows.add_bytes(std::move(row), line);
  }
}

}  // namespace

void ColumnNames::validate(bool has_labels) const {
  TORCH_CHECK_VALUE(!text.empty(), "--text-column is empty; name a column");
  TORCH_CHECK_VALUE(!label.empty() || !has_labels, "--label-column is empty; name a column");
  const std::string& pair = text_pair.empty() ? "text_pair" : text_pair;
  TORCH_CHECK_VALUE(text != pair && (!has_labels || (label != text && label != pair)), "--text-column '", text,
                    "', --pair-column '", pair, "' and --label-column '", label,
                    "' must be three columns, but two have one name");
}

LabeledRows load_rows(const std::filesystem::path& path, const LoadRowsOptions& options) {
  const std::string file = path.string();
  TORCH_CHECK_VALUE(options.limit() >= 0, "load_rows: limit must be 0 (all rows) or positive, got ", options.limit(),
                    ".");
  options.columns().validate(options.label_kind() != LabelKind::kNone);
  std::string kind = path.extension().string();
  std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::string_view kKinds[] = {".json", ".jsonl", ".csv", ".tsv", ".txt", ".conll"};
  TORCH_CHECK_VALUE(std::ranges::find(kKinds, kind) != std::end(kKinds), file,
                    ": a data file must be named .json, .jsonl, .csv, .tsv, .txt or .conll.");
  TextInput input = TextInput::open(path);
  begin_text(input, file);
  RowCollector rows(file, options);
  if (kind == ".json") {
    JsonRows(input, rows, 1).read_array();
  } else if (kind == ".jsonl") {
    read_jsonl(input, rows);
  } else if (kind == ".txt") {
    read_txt(input, rows, input.ahead(kFastTextLabel.size()) == kFastTextLabel);
  } else if (kind == ".conll") {
    read_conll(input, rows);
  } else {
    read_csv(input, kind == ".tsv" ? '\t' : ',', options, rows, file);
  }
  return rows.finish();
}

}  // namespace mezzo::text
