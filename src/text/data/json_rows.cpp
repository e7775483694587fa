#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "mezzo/text/io/nearest_name.h"
#include "text/data/for_each_line.h"
#include "text/data/raw_label.h"
#include "text/data/row_formats.h"
#include "text/io/json.h"
#include "text/words/printable.h"

namespace mezzo::text {
namespace {

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
    case LabelKind::kClass: return "a string, a number or a boolean";
    case LabelKind::kSeveral: return "an array of strings";
    case LabelKind::kNumber: return "a number";
    case LabelKind::kWords: return "an array of strings, one for each word";
  }
  return "";
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

/// A number or a boolean as it is written.
std::string scalar(JsonReader& json) {
  if (json.peek() == JsonReader::Type::kNumber) return std::string(json.number());
  return json.boolean() ? "true" : "false";
}

RawLabel json_label(JsonReader& json, const LoadRowsOptions& options, const std::string& where) {
  using Type = JsonReader::Type;
  const LabelKind kind = options.label_kind();
  const Type type = json.peek();
  if (type == Type::kNull || kind == LabelKind::kNone) {
    json.skip();
    return std::monostate();
  }
  if (kind == LabelKind::kSeveral && type == Type::kArray) return label_set(json_strings(json, "labels"), where);
  if (kind == LabelKind::kWords && type == Type::kArray) return word_labels(json_strings(json, "labels"), where);
  if (kind == LabelKind::kNumber && type == Type::kNumber) return number_label(json.number(), where);
  if (kind == LabelKind::kClass && type == Type::kString) {
    std::string name = json.string();
    check_is_no_list(name, options, where);
    return name;
  }
  if (kind == LabelKind::kClass && (type == Type::kNumber || type == Type::kBool)) return scalar(json);
  const bool are_several = kind == LabelKind::kClass && type == Type::kArray;
  json.fail(fmt::format("the label is {}, not {}{}", to_string(type), expectation(kind),
                        are_several ? fmt::format("; several labels a text need {0} multi_label_classification, "
                                                  "labels of words need {0} token_classification",
                                                  options.on_other_task())
                                    : ""));
}

class JsonRows {
 public:
  /// @param is_line  whether the row is a line of a file of JSON Lines
  JsonRows(TextInput& json, RowCollector& rows, int64_t first_line, bool is_line)
      : json_(json, [this] { return where(); }, first_line), rows_(rows), is_line_(is_line) {}

  void read_array() {
    const JsonReader::Type type = json_.peek();
    const int64_t line = json_.line();
    if (type == JsonReader::Type::kObject) check_is_not_around_rows(line);
    TORCH_CHECK_VALUE(type == JsonReader::Type::kArray, rows_.where(line), "the file is ", to_string(type),
                      ", not an array of rows. For one object a line, name it .jsonl.");
    json_.begin_array();
    while (json_.next_element()) {
      read_row();
      if (rows_.full()) return;
    }
    json_.expect_end();
  }

  void read_row_alone() {
    read_row();
    json_.expect_end();
  }

 private:
  /// Refuses a file of one object around the rows, as {"data": [...]}.
  void check_is_not_around_rows(int64_t line) {
    std::string array;
    json_.begin_object();
    for (std::string key; json_.next_key(key); json_.skip()) {
      if (!rows_.columns().is_other(key)) return;
      if (array.empty() && json_.holds_objects_or_arrays()) array = key;
    }
    TORCH_CHECK_VALUE(array.empty(), rows_.between(line), "the file", around_rows(array), ".");
  }

  std::string around_rows(const std::string& array) const {
    return fmt::format(
        " is an object without \"{}\". If its array '{}' holds the rows, save that array alone as a .json file",
        printable(rows_.columns().text.name), printable(array));
  }

  std::string where() const { return is_in_row_ ? rows_.where(json_.line()) : rows_.between(json_.line()); }

  void read_row() {
    is_in_row_ = true;
    json_.advise_null(false);
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
      json_.fail("the row is " + to_string(type) +
                 (rows_.has_labels() ? R"(, not [text, label] or {"text": …, "label": …})"
                                     : R"(, not a text, [text] or {"text": …})"));
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

  /// Keeps the value where others are wanted.
  void other_value(const std::string& key) {
    if (rows_.options().other_columns()) {
      add_json_member(row_.others, key, json_.copy());
    } else {
      json_.skip();
    }
  }

  bool read_flag(const std::string& key) {
    switch (json_.peek()) {
      case JsonReader::Type::kNumber:
      case JsonReader::Type::kBool: return flag_label(scalar(json_), key, where());
      case JsonReader::Type::kString: return flag_label(json_.string(), key, where());
      case JsonReader::Type::kNull: json_.skip(); return flag_label("", key, where());
      default: json_.fail("the label '" + key + "' is " + to_string(json_.peek()) + ", not 0, 1, true or false");
    }
  }

  /// Where nobody asks for labels, one is what any other column is.
  void read_label(const std::string& key) {
    if (rows_.has_labels()) {
      row_.label = json_label(json_, rows_.options(), where());
    } else {
      other_value(key);
    }
  }

  void read_pair() {
    const Column& pair = rows_.columns().text_pair;
    const auto& flags = rows_.columns().flags;
    if (!flags.empty()) json_.fail("the row is an array, which has no \"" + flags.front().name + "\"");
    if (pair.is_required) json_.fail("the row is an array, which has no \"" + pair.name + "\"");
    json_.begin_array();
    if (!json_.next_element()) {
      json_.fail(std::string("the row is an empty array, not [text") + (rows_.has_labels() ? ", label]" : "]"));
    }
    const JsonReader::Type first = json_.peek();
    if (is_line_ && first == JsonReader::Type::kObject) {
      json_.fail("the line is an array of rows, not one row. Name the file .json");
    }
    if (is_line_ && first == JsonReader::Type::kArray && !rows_.has_words()) {
      json_.fail(
          "the line is an array of arrays. Name the file .json if they are rows; words are for models of --task "
          "token_classification");
    }
    if (rows_.has_words() && json_.peek() == JsonReader::Type::kString) {
      json_.fail(R"(the row is an array that begins with a string; words are written [[…], […]] or {"text": […]})");
    }
    read_text("text");
    if (!json_.next_element()) return;
    read_label(rows_.columns().label.name);
    if (json_.next_element()) json_.fail("the row has more than two elements; it must be [text, label]");
  }

  void read_object() {
    const Columns& columns = rows_.columns();
    bool has_text = false, has_pair = false, has_label = false;
    std::vector<std::string> others;
    std::string array;  // the key of one that may hold rows
    std::set<std::string> flags;
    std::vector<std::string> names;  // of the flags that are set
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      const bool is_pair = key == columns.text_pair.name;
      json_.advise_null(columns.is_other(key) || (is_pair && !columns.text_pair.is_required) ||
                        (key == columns.label.name && !rows_.has_labels()));
      if (key == columns.text.name) {
        has_text = true;
        read_text(key);
      } else if (is_pair) {
        has_pair = true;
        if (json_.peek() == JsonReader::Type::kNull && !columns.text_pair.is_required) {
          json_.skip();
        } else {
          row_.text_pair = json_text(json_, key);
        }
      } else if (key == columns.label.name) {
        has_label = true;
        read_label(key);
      } else if (columns.is_flag(key)) {
        flags.insert(key);
        if (read_flag(key)) names.push_back(key);
      } else {
        if (array.empty() && json_.holds_objects_or_arrays()) array = key;
        other_value(key);
        others.push_back(std::move(key));
      }
    }
    const bool may_be_around_rows = is_line_ && !has_text && !has_label && !array.empty() && !rows_.has_words();
    if (may_be_around_rows && nearest_name(columns.text.name, others).value_or(array) == array) {
      json_.fail("the row" + around_rows(array));
    }
    if (!has_text) fail_without(columns.text, others);
    if (!has_pair && columns.text_pair.is_required) fail_without(columns.text_pair, others);
    for (const Column& flag : columns.flags) {
      if (!flags.contains(flag.name)) fail_without(flag, others);
    }
    if (!columns.flags.empty()) row_.label = label_set(std::move(names), where());
    const bool misses_label = !has_label && columns.label.is_required;
    if (misses_label && nearest_name(columns.label.name, others)) fail_without(columns.label, others);
  }

  [[noreturn]] void fail_without(const Column& column, const std::vector<std::string>& others) const {
    std::string advice = rows_.columns().advice(column, others);
    if (!advice.empty()) advice = "." + advice.substr(0, advice.size() - 1);  // fail() ends the sentence
    json_.fail(fmt::format("the row has no key \"{}\"{}", column.name, advice));
  }

  JsonReader json_;
  RowCollector& rows_;
  const bool is_line_;
  bool is_in_row_ = false;
  Row row_;  // that is being read
};

}  // namespace

void read_json(TextInput& input, RowCollector& rows) { JsonRows(input, rows, 1, /*is_line=*/false).read_array(); }

void read_json_row(const std::string& text, int64_t line, RowCollector& rows) {
  TextInput json(text);
  JsonRows(json, rows, line, /*is_line=*/false).read_row_alone();
}

void read_jsonl(TextInput& input, RowCollector& rows) {
  for_each_line(input, [&](const std::string& line, int64_t number) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) return true;
    TORCH_CHECK_VALUE(line.compare(begin, line.npos, "[") != 0, rows.between(number),
                      "the file is one array of rows, not one row a line. Name it .json.");
    TextInput json(line);
    JsonRows(json, rows, number, /*is_line=*/true).read_row_alone();
    return !rows.full();
  });
}

}  // namespace mezzo::text
