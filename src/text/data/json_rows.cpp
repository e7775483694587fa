#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/data/raw_label.h"
#include "text/data/row_formats.h"
#include "text/io/json.h"

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
  JsonRows(TextInput& json, RowCollector& rows, int64_t first_line)
      : json_(json, [this] { return where(); }, first_line), rows_(rows) {}

  void read(bool are_lines) {
    if (json_.at_end()) return;
    is_in_row_ = true;  // for a value that is neither a row nor an array
    json_.advise_null(false);
    const char first = json_.first_in_array();
    const bool may_be_row = first == '[' ? are_lines && rows_.has_words()
                                         : first == '\0' || (first == '"' && rows_.has_labels()) || are_lines;
    if (first == '{' || !may_be_row) {
      read_array();
      if (!rows_.full()) json_.expect_end();
      return;
    }
    is_outermost_ = true;
    while (!rows_.full() && !json_.at_end()) read_row();
  }

  void read_row_alone() {
    read_row();
    json_.expect_end();
  }

 private:
  /// @param first  character inside of an array
  static bool holds_rows(char first) { return first == '{' || first == '['; }

  std::string where() const { return is_in_row_ ? rows_.where(json_.line()) : rows_.between(json_.line()); }

  void read_array() {
    is_outermost_ = is_in_row_ = false;
    json_.begin_array();
    while (json_.next_element()) {
      read_row();
      if (rows_.full()) return;
    }
  }

  void read_row() {
    is_in_row_ = true;
    json_.advise_null(false);
    const JsonReader::Type type = json_.peek();
    const int64_t line = json_.line();
    row_ = {};
    if (type == JsonReader::Type::kArray) {
      read_pair();
    } else if (type == JsonReader::Type::kObject) {
      is_in_row_ = read_object();
      if (!is_in_row_) return;
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
    if (rows_.has_words() && json_.peek() == JsonReader::Type::kString) {
      json_.fail(R"(the row is an array that begins with a string; words are written [[…], […]] or {"text": […]})");
    }
    read_text("text");
    if (!json_.next_element()) return;
    read_label(rows_.columns().label.name);
    if (json_.next_element()) json_.fail("the row has more than two elements; it must be [text, label]");
  }

  /// @return whether the object is a row, not one whose array "data" holds the rows.
  bool read_object() {
    const Columns& columns = rows_.columns();
    bool has_text = false, has_label = false;
    std::vector<std::string> keys;
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
        if (json_.peek() == JsonReader::Type::kNull && !columns.text_pair.is_required) {
          json_.skip();
        } else {
          row_.text_pair = json_text(json_, key);
        }
      } else if (key == columns.label.name) {
        has_label = true;
        read_label(key);
      } else if (columns.is_flag(key)) {
        if (read_flag(key)) names.push_back(key);
      } else {
        if (key == "data" && is_outermost_ && !has_text && !has_label && holds_rows(json_.first_in_array())) {
          read_array();
          while (!rows_.full() && json_.next_key(key)) json_.skip();
          return false;
        }
        other_value(key);
      }
      keys.push_back(std::move(key));
    }
    const std::string missing = columns.missing(keys, "key");
    // A label that is missing in a later row is missing in that row alone: add() says so.
    const bool has_pair = !columns.text_pair.is_required || row_.text_pair.has_value();
    const bool misses_label_alone = has_text && has_pair && columns.flags.empty();
    if (!missing.empty() && (!misses_label_alone || rows_.size() == 0)) json_.fail("the row has " + missing);
    if (!columns.flags.empty()) row_.label = label_set(std::move(names), where());
    is_outermost_ = false;
    return true;
  }

  JsonReader json_;
  RowCollector& rows_;
  bool is_outermost_ = false;  // the value may be an object around the rows
  bool is_in_row_ = false;
  Row row_;  // that is being read
};

}  // namespace

void read_json(TextInput& input, bool are_lines, RowCollector& rows) { JsonRows(input, rows, 1).read(are_lines); }

void read_json_row(const std::string& text, int64_t line, RowCollector& rows) {
  TextInput json(text);
  JsonRows(json, rows, line).read_row_alone();
}

}  // namespace mezzo::text
