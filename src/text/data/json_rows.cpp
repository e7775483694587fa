#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "text/data/cells.h"
#include "text/data/row_formats.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

using Type = JsonReader::Type;

/// The value that comes next. Of an object, which no column is read from, the type alone.
Cell read_cell(JsonReader& json) {
  Cell cell{json.peek()};
  switch (cell.type) {
    case Type::kString: cell.text = json.string(); break;
    case Type::kNumber: cell.text = json.number(); break;
    case Type::kBool: cell.text = json.boolean() ? "true" : "false"; break;
    case Type::kArray:
      json.begin_array();
      while (json.next_element()) cell.elements.push_back(read_cell(json));
      break;
    case Type::kNull:
    case Type::kObject: json.skip();
  }
  return cell;
}

class JsonRows {
 public:
  JsonRows(TextInput& json, RowCollector& rows) : json_(json, [this] { return where(json_.line()); }), rows_(rows) {}

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

 private:
  /// An array or object that is read in the outermost object: a value of a row, or a column.
  struct Nested {
    std::string key;
    Cell cell;
    int64_t line = 0;
  };

  /// @param first  character inside of an array
  static bool holds_rows(char first) { return first == '{' || first == '['; }

  std::string where(int64_t line) const { return is_in_row_ ? rows_.where(line) : rows_.between(line); }

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
    row_ = {};
    json_.advise_null(false);
    const Type type = json_.peek();
    const int64_t line = json_.line();
    std::vector<std::string> keys;
    if (type == Type::kArray) {
      keys = read_pair();
    } else if (type == Type::kObject) {
      is_in_row_ = read_object(keys);
      if (!is_in_row_) return;
    } else if (type == Type::kString && !rows_.has_labels()) {
      keys = {rows_.columns().text.name};
      read_value(keys.front());
    } else {
      json_.fail("the row is " + to_string(type) +
                 (rows_.has_labels() ? R"(, not [text, label] or {"text": …, "label": …})"
                                     : R"(, not a text, [text] or {"text": …})"));
    }
    check_columns(row_, keys, rows_, [&] { return where(json_.line()); });
    rows_.add(std::move(row_), line);
    is_in_row_ = false;
  }

  /// @param may_be_column  whether the value is one of a file's first object
  void read_value(const std::string& key, bool may_be_column = false) {
    if (rows_.reads(key)) {
      json_.peek();
      const int64_t line = json_.line();
      Cell cell = read_cell(json_);
      if (may_be_column && (cell.type == Type::kObject || cell.type == Type::kArray)) {
        nested_.push_back({key, std::move(cell), line});
      } else {
        set_cell(row_, key, std::move(cell), rows_, [&] { return where(line); });
      }
    } else if (rows_.options().other_columns()) {
      add_json_member(row_.others, key, json_.copy());
    } else {
      json_.skip();
    }
  }

  std::vector<std::string> read_pair() {
    const Columns& columns = rows_.columns();
    const bool needs_pair = columns.text_pair.is_required;
    if (needs_pair || !columns.flags.empty()) {
      json_.fail(fmt::format("the row is an array, which has no \"{}\"",
                             columns.flags.empty() ? columns.text_pair.name : columns.flags.front().name));
    }
    json_.begin_array();
    if (!json_.next_element()) {
      json_.fail(std::string("the row is an empty array, not [text") + (rows_.has_labels() ? ", label]" : "]"));
    }
    if (rows_.has_words() && json_.peek() == Type::kString) {
      json_.fail(R"(the row is an array that begins with a string; words are written [[…], […]] or {"text": […]})");
    }
    read_value(columns.text.name);
    if (json_.next_element()) {
      read_value(columns.label.name);
      if (json_.next_element()) json_.fail("the row has more than two elements; it must be [text, label]");
    }
    return {columns.text.name, columns.label.name};  // RowCollector refuses a missing label
  }

  /// @return whether the object is a row. If not, its array "data" held the rows.
  bool read_object(std::vector<std::string>& keys) {
    const Columns& columns = rows_.columns();
    bool may_hold_rows = is_outermost_;
    json_.begin_object();
    for (std::string key; json_.next_key(key); keys.push_back(std::move(key))) {
      const bool is_pair = key == columns.text_pair.name;
      json_.advise_null(!rows_.reads(key) || (is_pair && !columns.text_pair.is_required));
      may_hold_rows = may_hold_rows && key != columns.text.name && key != columns.label.name;
      if (key == "data" && may_hold_rows && columns.is_other(key) && holds_rows(json_.first_in_array())) {
        read_array();
        while (!rows_.full() && json_.next_key(key)) json_.skip();
        return false;
      }
      read_value(key, /*may_be_column=*/is_outermost_);
    }
    is_outermost_ = false;
    take_nested();
    return true;
  }

  /// Sets the arrays and objects of a file's first object, unless it is the only one and they are columns.
  void take_nested() {
    const Columns& columns = rows_.columns();
    const auto is_column = [&](const std::string& key) {
      return std::ranges::any_of(nested_, [&](const Nested& value) {
        return value.key == key && (value.cell.type == Type::kObject || !rows_.has_words());
      });
    };
    if (is_column(columns.text.name) && (!rows_.has_labels() || is_column(columns.label.name)) && json_.at_end()) {
      is_in_row_ = false;
      json_.fail("the file holds columns, not rows. Write it with to_json(orient='records', lines=True)");
    }
    for (Nested& value : std::exchange(nested_, {})) {
      set_cell(row_, value.key, std::move(value.cell), rows_, [&] { return where(value.line); });
    }
  }

  JsonReader json_;
  RowCollector& rows_;
  bool is_outermost_ = false;  // the value may be an object around the rows
  bool is_in_row_ = false;
  Row row_;  // that is being read
  std::vector<Nested> nested_;
};

}  // namespace

void read_json(TextInput& input, bool are_lines, RowCollector& rows) { JsonRows(input, rows).read(are_lines); }

}  // namespace mezzo::text
