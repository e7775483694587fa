#include "text/data/row_collector.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "mezzo/text/io/nearest_name.h"
#include "text/data/raw_label.h"
#include "text/io/printable.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

/// The column that is likely meant by one that is not there: of nearly its name, or of a usual name.
std::optional<std::string> likely_name(const Column& missing, const std::vector<std::string>& names) {
  using namespace std::string_view_literals;
  constexpr std::array kTexts{"text"sv,      "sentence"sv, "review"sv,      "content"sv, "comment"sv, "message"sv,
                              "body"sv,      "tweet"sv,    "document"sv,    "post"sv,    "query"sv,   "question"sv,
                              "utterance"sv, "title"sv,    "description"sv, "tokens"sv,  "words"sv};
  constexpr std::array kLabels{"label"sv,  "labels"sv, "class"sv, "category"sv, "sentiment"sv, "target"sv,
                               "rating"sv, "stars"sv,  "score"sv, "topic"sv,    "intent"sv,    "tags"sv};
  if (auto near = nearest_name(missing.name, names)) return near;
  const auto usual = missing.flag == "--text-column"    ? std::span<const std::string_view>(kTexts)
                     : missing.flag == "--label-column" ? std::span<const std::string_view>(kLabels)
                                                        : std::span<const std::string_view>();
  for (const std::string_view word : usual) {
    const auto ends_with_word = [&](const std::string& name) { return ascii_lower(name).ends_with(word); };
    const auto found = std::ranges::find_if(names, ends_with_word);
    if (found != names.end()) return *found;
  }
  return std::nullopt;
}

}  // namespace

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

bool Columns::is_flag(std::string_view name) const {
  return std::ranges::find(flags, name, &Column::name) != flags.end();
}

bool Columns::is_other(std::string_view name) const {
  return name != text.name && name != text_pair.name && name != label.name && !is_flag(name);
}

std::string Columns::missing(const std::vector<std::string>& present, std::string_view what) const {
  const auto is_there = [&](const std::string& name) { return std::ranges::find(present, name) != present.end(); };
  std::vector<const Column*> missing;
  const auto look = [&](const Column& column) {
    if (column.is_required && !is_there(column.name)) missing.push_back(&column);
  };
  for (const Column* column : {&text, &text_pair, &label}) look(*column);
  std::ranges::for_each(flags, look);
  if (missing.empty()) return "";
  std::vector<std::string> unused, wanted, among, advice, labels;
  std::ranges::copy_if(present, std::back_inserter(unused), [&](const std::string& name) { return is_other(name); });
  const auto meant = [&](const Column& column) -> std::string {
    if (is_there(column.name)) return column.name;
    auto name = likely_name(column, unused);
    if (!name && missing.size() == 1 && unused.size() == 1) name = unused.front();
    if (name) std::erase(unused, *name);
    return name.value_or("NAME");
  };
  for (const Column* column : missing) {
    wanted.push_back(quoted_name(column->name));
    if (is_flag(column->name)) continue;
    const std::string name = meant(*column);
    advice.push_back(fmt::format("{} {}", column->flag, name == "NAME" ? name : quoted_name(name)));
  }
  for (const Column& flag : flags) labels.push_back(meant(flag));
  if (missing.size() > advice.size()) {
    advice.push_back(fmt::format("{} {}", label.flag, quoted_name(fmt::format("{}", fmt::join(labels, ",")))));
  }
  constexpr size_t kShown = 20;
  for (const std::string& name : std::span(present).first(std::min(kShown, present.size()))) {
    among.push_back(quoted_name(name));
  }
  return fmt::format("no {}{} {} among {}{}. Pass {}", what, missing.size() == 1 ? "" : "s", fmt::join(wanted, " and "),
                     fmt::join(among, ", "), among.size() < present.size() ? ", …" : "", fmt::join(advice, " "));
}

RowCollector::RowCollector(std::span<const std::filesystem::path> files, const LoadRowsOptions& options)
    : options_(options),
      columns_(options),
      has_words_(options.split_words() || options.label_kind() == LabelKind::kWords) {
  rows_.places.file = name_of_files(files);
  for (size_t i = 0; i < files.size() && files.size() > 1; ++i) rows_.places.files.push_back(files[i].string());
  rows_.texts = Texts(options.memory());
  rows_.text_pairs = Texts(options.memory());
}

void RowCollector::begin_file(std::string file) {
  file_ = std::move(file);
  ++num_files_;
  first_ = std::ssize(rows_.texts);
}

std::string RowCollector::where(int64_t line) const { return fmt::format("{}:{}: row {}: ", file_, line, size() + 1); }

std::string RowCollector::between(int64_t line) const { return fmt::format("{}:{}: ", file_, line); }

void RowCollector::add(Row row, int64_t line) {
  if (!columns_.flags.empty()) row.label = std::move(row.flags);
  check_label(row.label, line);
  check_pair(row.text_pair.has_value(), line);
  if (has_words_) add_words(row, line);
  rows_.texts.push_back(row.text);
  if (row.text_pair) rows_.text_pairs.push_back(*row.text_pair);
  rows_.labels.push_back(std::move(row.label));
  rows_.places.lines.push_back(line);
  if (!rows_.places.files.empty()) rows_.places.file_ids.push_back(num_files_ - 1);
  if (options_.other_columns()) rows_.others.push_back(std::move(row.others));
  constexpr int64_t kRowsAtATime = 4096;
  if (options_.on_rows() && size() % kRowsAtATime == 0) options_.on_rows()(file_, size());
}

void RowCollector::note(std::string_view what) { rows_.notes.push_back(fmt::format("{}: {}", file_, what)); }

void RowCollector::add_words(Row& row, int64_t line) {
  TORCH_CHECK_VALUE(!row.text_pair, where(line),
                    "the row is a pair of texts, but words are labelled only in single texts.");
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
  auto* names = std::get_if<std::vector<std::string>>(&label);
  if (names == nullptr) return;
  TORCH_CHECK_VALUE(
      std::ranges::find(*names, "") == names->end(), where(line), "one of the labels is an empty string. ",
      label_kind() == LabelKind::kWords ? "Name it; words of no entity are labelled O." : "Name it, or leave it out.");
  if (label_kind() == LabelKind::kWords) return;
  std::ranges::sort(*names);  // so that rows with the same labels are equal
  names->erase(std::ranges::unique(*names).begin(), names->end());
}

void RowCollector::check_pair(bool is_pair, int64_t line) const {
  if (rows_.texts.empty()) return;
  const bool first_is_pair = !rows_.text_pairs.empty();
  TORCH_CHECK_VALUE(is_pair == first_is_pair, where(line), is_pair ? "the row has a" : "the row has no",
                    " text_pair where ", rows_.places.at(0), first_is_pair ? " has one" : " has none",
                    ". Give every row one, or none.");
}

}  // namespace mezzo::text
