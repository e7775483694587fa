#include "text/data/cells.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

using Type = JsonReader::Type;
using Names = std::vector<std::string>;

[[noreturn]] void fail(Where where, const std::string& found) {
  TORCH_CHECK_VALUE(false, where(), in_one_line(found), ".");
}

std::string string_of(Cell cell, const std::string& column, Where where) {
  if (cell.type == Type::kString) return std::move(cell.text);
  fail(where, fmt::format("the {} is {}, not a string{}", column, to_string(cell.type),
                          cell.type == Type::kArray ? "; words are for models of --task token_classification" : ""));
}

Names strings_of(Cell cell, const char* what, Where where) {
  Names strings;
  for (Cell& element : cell.elements) {
    if (element.type != Type::kString) {
      fail(where, fmt::format("one of the {} is {}, not a string", what, to_string(element.type)));
    }
    strings.push_back(std::move(element.text));
  }
  return strings;
}

void set_text(Row& row, Cell cell, const std::string& column, const RowCollector& rows, Where where) {
  if (rows.has_words() && cell.type == Type::kArray) {
    row.words = strings_of(std::move(cell), "words", where);
  } else if (rows.label_kind() == LabelKind::kWords) {
    fail(where, fmt::format("the {} is {}, not an array of words, which --task token_classification labels", column,
                            to_string(cell.type)));
  } else {
    row.text = string_of(std::move(cell), column, where);
  }
}

RawLabel label_of(Cell cell, const LoadRowsOptions& options, Where where) {
  constexpr const char* kExpected[] = {"", "a string, a number or a boolean", "an array of strings", "a number",
                                       "an array of strings, one for each word"};
  const LabelKind kind = options.label_kind();
  const bool is_array = cell.type == Type::kArray, is_class = kind == LabelKind::kClass;
  if (cell.type == Type::kNull) return std::monostate();
  if ((kind == LabelKind::kSeveral || kind == LabelKind::kWords) && is_array) {
    return strings_of(std::move(cell), "labels", where);
  }
  if (kind == LabelKind::kNumber && cell.type == Type::kNumber) return number_label(cell.text, where);
  if (is_class && cell.type == Type::kString) check_is_no_list(cell.text, options, where);
  if (is_class && !is_array && cell.type != Type::kObject) return std::move(cell.text);
  fail(where,
       fmt::format("the label is {}, not {}{}", to_string(cell.type), kExpected[static_cast<size_t>(kind)],
                   is_class && is_array ? fmt::format("; several labels a text need {0} multi_label_classification, "
                                                      "labels of words need {0} token_classification",
                                                      options.on_other_task())
                                        : ""));
}

}  // namespace

void set_cell(Row& row, const std::string& column, Cell cell, const RowCollector& rows, Where where) {
  const Columns& columns = rows.columns();
  const bool is_nested = cell.type == Type::kArray || cell.type == Type::kObject;
  if (column == columns.text.name) {
    set_text(row, std::move(cell), column, rows, where);
  } else if (column == columns.text_pair.name) {
    const bool is_missing = cell.type == Type::kNull && !columns.text_pair.is_required;
    if (!is_missing) row.text_pair = string_of(std::move(cell), column, where);
  } else if (column == columns.label.name) {
    row.label = label_of(std::move(cell), rows.options(), where);
  } else if (is_nested) {
    fail(where, fmt::format("the label '{}' is {}, not 0, 1, true or false", column, to_string(cell.type)));
  } else if (flag_label(cell.text, column, where)) {
    row.flags.push_back(column);
  }
}

void check_columns(Row& row, const std::vector<std::string>& columns, const RowCollector& rows, Where where) {
  const Columns& wanted = rows.columns();
  const std::string missing = wanted.missing(columns, "key");
  const bool misses_label_alone = std::ranges::find(columns, wanted.text.name) != columns.end() &&
                                  (!wanted.text_pair.is_required || row.text_pair) && wanted.flags.empty();
  if (!missing.empty() && (rows.size() == 0 || !misses_label_alone)) fail(where, "the row has " + missing);
}

}  // namespace mezzo::text
