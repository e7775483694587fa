#include "text/data/row_collector.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "mezzo/text/io/nearest_name.h"
#include "text/data/raw_label.h"
#include "text/io/utf8.h"
#include "text/words/printable.h"

namespace mezzo::text {
Columns::Columns(const LoadRowsOptions& options)
    : text{options.columns().text, "--text-column"},
      text_pair{options.columns().text_pair, "--pair-column"},
      label{options.columns().label, "--label-column", options.label_kind() != LabelKind::kNone} {
  if (text_pair.name.empty()) text_pair = {"text_pair", text_pair.flag, false};
  if (const auto several = options.columns().label_columns(); label.is_required && several.size() > 1) {
    TORCH_CHECK_VALUE(options.label_kind() == LabelKind::kSeveral, "--label-column names ", several.size(),
                      " columns, one for each label, which needs ", options.on_other_task(),
                      " multi_label_classification");
    label.is_required = false;
    for (const std::string& name : several) flags.push_back({name, label.flag});
  }
}

bool Columns::are_usual() const {
  const ColumnNames usual;
  return text.name == usual.text && !text_pair.is_required && label.name == usual.label;
}

bool Columns::is_flag(std::string_view name) const {
  return std::ranges::find(flags, name, &Column::name) != flags.end();
}

bool Columns::is_other(std::string_view name) const {
  return name != text.name && name != text_pair.name && name != label.name && !is_flag(name);
}

std::string Columns::advice(const Column& missing, const std::vector<std::string>& present) const {
  std::vector<std::string> others;
  std::ranges::copy_if(present, std::back_inserter(others), [&](const std::string& name) { return is_other(name); });
  const std::optional<std::string> found = others.size() == 1 ? others.front() : nearest_name(missing.name, others);
  if (!found) return "";
  const std::string name = printable(*found);
  return fmt::format(" Rename '{0}' to '{1}', or pass {2} '{0}'.", name, missing.name, missing.flag);
}

RowCollector::RowCollector(std::string file, const LoadRowsOptions& options)
    : options_(options),
      columns_(options),
      has_words_(options.split_words() || options.label_kind() == LabelKind::kWords) {
  rows_.places.file = std::move(file);
  rows_.texts = Texts(options.memory());
  rows_.text_pairs = Texts(options.memory());
}

std::string RowCollector::where(int64_t line) const {
  return fmt::format("{}:{}: row {}: ", rows_.places.file, line, size() + 1);
}

std::string RowCollector::between(int64_t line) const { return fmt::format("{}:{}: ", rows_.places.file, line); }

void RowCollector::add(Row row, int64_t line) {
  check_label(row.label, line);
  check_pair(row.text_pair.has_value(), line);
  if (has_words_) add_words(row, line);
  rows_.texts.push_back(row.text);
  if (row.text_pair) rows_.text_pairs.push_back(*row.text_pair);
  rows_.labels.push_back(std::move(row.label));
  rows_.places.lines.push_back(line);
  if (options_.other_columns()) rows_.others.push_back(std::move(row.others));
  constexpr int64_t kRowsAtATime = 4096;
  if (options_.on_rows() && size() % kRowsAtATime == 0) options_.on_rows()(rows_.places.file, size());
}

void RowCollector::add_bytes(Row row, int64_t line) {
  bool replaced = row.has_invalid_utf8;
  const auto repair = [&](std::string& bytes) { replaced |= repair_utf8(bytes); };
  repair(row.text);
  if (row.text_pair) repair(*row.text_pair);
  if (row.words) std::ranges::for_each(*row.words, repair);
  if (auto* name = std::get_if<std::string>(&row.label)) repair(*name);
  if (auto* names = std::get_if<std::vector<std::string>>(&row.label)) std::ranges::for_each(*names, repair);
  add(std::move(row), line);
  rows_.rows_with_invalid_utf8 += replaced;
}

LabeledRows RowCollector::finish() {
  TORCH_CHECK_VALUE(!rows_.texts.empty(), rows_.places.file, ": the file has no rows.");
  return std::move(rows_);
}

void RowCollector::add_words(Row& row, int64_t line) {
  TORCH_CHECK_VALUE(!row.text_pair, where(line), "the row is a pair of texts, and words are labelled in single ones.");
  if (row.words) {
    row.text = fmt::format("{}", fmt::join(*row.words, " "));
  } else {
    row.words = options_.split_words()(row.text);
  }
  const auto* labels = std::get_if<std::vector<std::string>>(&row.label);
  TORCH_CHECK_VALUE(labels == nullptr || labels->size() == row.words->size(), where(line), row.words->size(),
                    row.words->size() == 1 ? " word" : " words", " but ", labels == nullptr ? 0 : labels->size(),
                    labels != nullptr && labels->size() == 1 ? " label" : " labels", ". Give each word one.");
  rows_.words.push_back(std::move(*row.words));
}

void RowCollector::check_label(RawLabel& label, int64_t line) {
  const auto* name = std::get_if<std::string>(&label);
  if (name != nullptr && name->empty()) label = std::monostate();
  TORCH_CHECK_VALUE(!has_labels() || !std::holds_alternative<std::monostate>(label), where(line),
                    "the row has no label. Give it one, or remove the row.");
}

void RowCollector::check_pair(bool is_pair, int64_t line) const {
  if (rows_.texts.empty()) return;
  const bool first_is_pair = !rows_.text_pairs.empty();
  TORCH_CHECK_VALUE(is_pair == first_is_pair, where(line), is_pair ? "the row has a" : "the row has no",
                    " text_pair where line ", rows_.places.lines.front(), first_is_pair ? " has one" : " has none",
                    ". Give every row of a file one, or none.");
}

}  // namespace mezzo::text
