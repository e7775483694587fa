#include "text/data/data_check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>

#include "text/data/raw_label.h"
#include "text/io/printable.h"
#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {
namespace {

/// Without white space, and in lower case as far as ASCII goes.
std::string folded(std::string_view text) {
  std::string result;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = decode_utf8(p);
    if (unicode::properties(c).flags & unicode::kWhiteSpace) continue;
    append_utf8(result, c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return result;
}

bool is_empty(std::string_view text) {
  for (const char* p = text.data(); p != text.data() + text.size();) {
    if (!(unicode::properties(decode_utf8(p)).flags & unicode::kWhiteSpace)) return false;
  }
  return true;
}

std::string name_of(const RawLabel& label) {
  if (const auto* number = std::get_if<double>(&label)) return fmt::format("{}", *number);
  if (const auto* names = std::get_if<std::vector<std::string>>(&label)) {
    return names->empty() ? "none" : quoted_name(fmt::format("{}", fmt::join(*names, "|")));
  }
  const auto* name = std::get_if<std::string>(&label);
  return name != nullptr ? quoted_name(*name) : "none";
}

/// Rows of one kind: how many, and the first.
struct Found {
  int64_t count = 0;
  size_t row = 0, earlier = 0;

  void add(size_t found, size_t same_as = 0) {
    if (count++ == 0) row = found, earlier = same_as;
  }
};

/// The texts of a row, or its one text and an empty one.
using TextsOfRow = std::pair<std::string_view, std::string_view>;

template <class Rows>  // LabeledRows or Dataset
TextsOfRow texts_of(const Rows& rows, size_t row) {
  return {rows.texts[row], rows.text_pairs.empty() ? std::string_view() : rows.text_pairs[row]};
}

/// Finds rows by their texts, except empty rows. Of rows with equal texts it holds the first.
class RowIndex {
 public:
  template <class Rows>
  explicit RowIndex(const Rows& rows) {
    rows_.reserve(rows.texts.size());
    for (const int64_t place : rows.texts.storage_order()) {
      const auto i = static_cast<size_t>(place);
      const TextsOfRow texts = texts_of(rows, i);
      if (is_empty(texts.first) && is_empty(texts.second)) continue;
      size_t& first = rows_.emplace(texts, i).first->second;
      first = std::min(first, i);
    }
  }

  std::optional<size_t> find(const TextsOfRow& texts) const {
    const auto found = rows_.find(texts);
    return found == rows_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  struct Hash {
    size_t operator()(const TextsOfRow& texts) const {
      const std::hash<std::string_view> hash;
      return hash(texts.first) * 31 + hash(texts.second);
    }
  };
  std::unordered_map<TextsOfRow, size_t, Hash> rows_;
};

void describe_texts(const LabeledRows& rows, std::vector<std::string>& lines) {
  const RowIndex index(rows);
  Found empty, again, contradicting;
  for (size_t i = 0; i < rows.texts.size(); ++i) {
    const auto first = index.find(texts_of(rows, i));
    if (!first) {
      empty.add(i);
    } else if (*first != i) {
      const bool same_label = rows.labels[i] == rows.labels[*first];
      (same_label ? again : contradicting).add(i, *first);
    }
  }
  const auto repeats = [](const Found& found) { return found.count == 1 ? "repeats" : "repeat"; };
  if (empty.count > 0) {
    lines.push_back(fmt::format("{} of {} texts in {} {} empty, the first at {}", empty.count, rows.texts.size(),
                                rows.places.file, empty.count == 1 ? "is" : "are", rows.places.at(empty.row)));
  }
  if (again.count > 0) {
    lines.push_back(fmt::format("{} of {} texts in {} {} an earlier text with the same label, such as {} and {}",
                                again.count, rows.texts.size(), rows.places.file, repeats(again),
                                rows.places.at(again.row), rows.places.at(again.earlier)));
  }
  if (contradicting.count > 0) {
    lines.push_back(
        fmt::format("{} of {} texts in {} {} an earlier text with another label, such as {} ({}) and {} ({})",
                    contradicting.count, rows.texts.size(), rows.places.file, repeats(contradicting),
                    rows.places.at(contradicting.row), name_of(rows.labels[contradicting.row]),
                    rows.places.at(contradicting.earlier), name_of(rows.labels[contradicting.earlier])));
  }
}

void describe_names(const LabeledRows& rows, std::vector<std::string>& lines) {
  std::map<std::string_view, size_t> names;  // and their first rows
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    for (const std::string& name : names_of(rows.labels[i])) names.emplace(name, i);
  }
  using Label = std::pair<std::string_view, size_t>;  // and its first row
  std::unordered_map<std::string, Label> by_letters;
  std::optional<std::pair<Label, Label>> first;
  size_t alike = 0;
  std::set<std::string> classes;
  for (const Label label : names) {
    if (!classes.insert(canonical_label(label.first)).second) continue;  // LabelMap merges them
    const auto [same, is_new] = by_letters.emplace(folded(label.first), label);
    if (is_new) continue;
    ++alike;
    if (!first) first = {label, same->second};
  }
  if (!first) return;
  const auto& [label, same] = *first;
  lines.push_back(
      fmt::format("{} of {} labels in {} {} from another label only in white space or case, such as "
                  "{} at {} and {} at {}",
                  alike, classes.size(), rows.places.file, alike == 1 ? "differs" : "differ", quoted_name(label.first),
                  rows.places.at(label.second), quoted_name(same.first), rows.places.at(same.second)));
}

void check_word_labels_differ(const LabeledRows& rows) {
  const std::string* first = nullptr;
  for (const RawLabel& label : rows.labels) {
    const auto* names = std::get_if<std::vector<std::string>>(&label);
    if (names == nullptr) return;  // which is refused by its row
    for (const std::string& name : *names) {
      if (first != nullptr && name != *first) return;
      first = &name;
    }
  }
  TORCH_CHECK_VALUE(first != nullptr, rows.places.file, ": no text has a word, so there is nothing to learn from");
  TORCH_CHECK_VALUE(false, rows.places.file, ": all words have the same label, ", quoted_name(*first),
                    "; training needs different labels");
}

}  // namespace

void check_has_text(const LabeledRows& rows) {
  const bool has_text = !std::ranges::all_of(rows.texts, is_empty) || !std::ranges::all_of(rows.text_pairs, is_empty);
  TORCH_CHECK_VALUE(has_text, rows.places.file, ": all of its ", rows.texts.size(),
                    " texts are empty, so there is nothing to learn from. Is 'text' the right column?");
}

void check_labels_differ(const LabeledRows& rows) {
  if (!rows.words.empty()) return check_word_labels_differ(rows);
  const RawLabel& first = rows.labels.front();
  const bool one_label = std::ranges::all_of(rows.labels, [&](const RawLabel& label) {
    const auto *a = std::get_if<std::string>(&first), *b = std::get_if<std::string>(&label);
    return label == first || (a != nullptr && b != nullptr && canonical_label(*a) == canonical_label(*b));
  });
  TORCH_CHECK_VALUE(!one_label, rows.places.file,
                    rows.labels.size() == 1 ? ": its only text has the label " : ": all texts have the same label, ",
                    name_of(first), "; training needs different labels");
}

void check_are_classes(const LabeledRows& rows, const LabelMap& labels, const std::string& task_flag) {
  constexpr int64_t kMost = 20;
  int64_t fractions = 0;
  const std::string* example = nullptr;
  for (const std::string& name : labels.names()) {
    const std::string pointed = with_decimal_point(name);
    const auto number = label_number(pointed.empty() ? name : pointed);
    if (!number) return;
    if (*number == std::trunc(*number)) continue;
    ++fractions;
    example = &name;
  }
  const bool few_rows_each = fractions > 0 && labels.size() * 2 > std::ssize(rows.labels);
  TORCH_CHECK_VALUE(fractions <= kMost && !few_rows_each, rows.places.file, ": the labels are numbers such as ",
                    *example, ", ", labels.size(), " different ones.", advice_of_point(*example), " Pass ", task_flag,
                    " regression to predict numbers, or ", task_flag,
                    " single_label_classification to train a class for each.");
}

std::vector<std::string> odd_texts(const LabeledRows& rows) {
  std::vector<std::string> lines;
  describe_texts(rows, lines);
  return lines;
}

std::string note_of_positions(const LabeledRows& rows, std::span<const std::string> names) {
  constexpr size_t kFew = 10;
  if (rows.labels.empty() || !are_positions(rows, names)) return "";
  const std::string& number = std::get<std::string>(rows.labels.front());
  const auto id = position_of(number, names);
  if (!id) return "";                              // label_ids() refuses it
  if (names[*id] == "LABEL_" + number) return "";  // transformers' for no name
  std::vector<std::string> meanings;
  for (size_t i = 0; i < names.size() && names.size() <= kFew; ++i) {
    meanings.push_back(fmt::format("{} is {}", i, quoted_name(names[i])));
  }
  if (meanings.empty()) {
    meanings.push_back(fmt::format("{} is {}, first at {}", number, quoted_name(names[*id]), rows.places.at(0)));
  }
  return fmt::format("the labels in {} are numbers, read as positions in the model's list of labels: {}",
                     rows.places.file, fmt::join(meanings, ", "));
}

std::vector<std::string> odd_rows(const LabeledRows& rows, const LabelMap& labels) {
  std::vector<std::string> lines = odd_texts(rows);
  describe_names(rows, lines);
  if (auto note = note_of_positions(rows, labels.names()); !note.empty()) lines.push_back(std::move(note));
  return lines;
}

std::string labels_like_identifiers(const LabeledRows& rows, const std::string& label_column) {
  constexpr int64_t kFewest = 20;
  std::unordered_map<std::string, int64_t> counts;
  for (const RawLabel& label : rows.labels) {
    const auto* name = std::get_if<std::string>(&label);
    if (name == nullptr) return "";
    ++counts[canonical_label(*name)];
  }
  const auto own = std::ranges::count_if(counts, [](const auto& label) { return label.second == 1; });
  const int64_t texts = std::ssize(rows.labels);
  if (texts < kFewest || own * 2 <= texts) return "";
  return fmt::format("{} texts in {} have {} different labels; is {} the right column? --label-column names it", texts,
                     rows.places.file, counts.size(), quoted_name(label_column));
}

std::vector<std::string> shared_texts(const Dataset& train, const Dataset& held_out, const std::string& role) {
  const RowIndex index(train);
  Found shared;
  for (size_t i = 0; i < held_out.texts.size(); ++i) {
    if (const auto found = index.find(texts_of(held_out, i))) shared.add(i, *found);
  }
  if (shared.count == 0) return {};
  return {fmt::format("{} of {} {} texts also occur in training, such as {} and {}: {} scores are optimistic",
                      shared.count, held_out.size(), role, held_out.places.at(shared.row),
                      train.places.at(shared.earlier), role)};
}

std::vector<std::string> labels_without_text(const std::vector<bool>& has_text,
                                             const LabelMap& labels,
                                             const std::string& text) {
  constexpr size_t kShown = 10;
  std::vector<std::string> missing;
  for (int64_t id = 0; id < labels.size(); ++id) {
    if (!has_text[id]) missing.push_back(quoted_name(labels.name(id)));
  }
  if (missing.empty()) return {};
  return {fmt::format("{} of {} labels {} no {}: {}{}", missing.size(), labels.size(),
                      missing.size() == 1 ? "has" : "have", text,
                      fmt::join(std::span(missing).first(std::min(kShown, missing.size())), ", "),
                      missing.size() > kShown ? ", …" : "")};
}

}  // namespace mezzo::text
