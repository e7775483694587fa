#include "mezzo/text/data/dataset.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <span>

#include "mezzo/text/data/tokenized_texts.h"
#include "text/data/raw_label.h"
#include "text/io/printable.h"

namespace mezzo::text {
namespace {

std::string list_names(const LabelMap& labels) {
  constexpr size_t kShown = 20;
  const auto& names = labels.names();
  std::string list = fmt::format("{}", fmt::join(std::span(names).first(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown) list += fmt::format(", … ({} in all)", names.size());
  return list;
}

using Names = std::vector<std::string>;

/// @param fits  whether it is of the kind that is asked for.
void check_label(const LabeledRows& rows, size_t row, bool fits) {
  TORCH_CHECK_VALUE(!std::holds_alternative<std::monostate>(rows.labels[row]), rows.where(row),
                    "the row has no label. Give it one, or remove the row.");
  TORCH_CHECK_VALUE(fits, rows.where(row),
                    "the label is of another kind than the task's. Read the file for this task.");
}

/// @param is_position  whether the name is a position in the list of labels
int64_t find_id(const LabeledRows& rows,
                size_t row,
                const std::string& name,
                const LabelMap& labels,
                std::string_view on_unknown_label,
                bool is_position = false) {
  const auto id = is_position ? position_of(name, labels.names()) : labels.id(name);
  TORCH_CHECK_VALUE(id || !is_missing_label(name, true), rows.where(row), "the label ", quoted_name(name),
                    " is a missing value. Give the row a label, or remove it.");
  TORCH_CHECK_VALUE(id, rows.where(row), "unknown label ", quoted_name(name),
                    is_position ? ". The labels, numbered from 0, are: " : ". The labels are: ", list_names(labels),
                    on_unknown_label.empty() ? "." : ". ", on_unknown_label);
  return *id;
}

}  // namespace

std::string RowPlaces::at(size_t row) const {
  return fmt::format("{}:{}", file_ids.empty() ? file : files[file_ids[row]], lines[row]);
}

std::string LabeledRows::where(size_t row) const {
  const auto& ids = places.file_ids;
  const size_t first = ids.empty() ? 0 : std::ranges::find(ids, ids[row]) - ids.begin();
  return fmt::format("{}: row {}: ", places.at(row), row - first + 1);
}

LabelMap LabelMap::from_names(std::vector<std::string> names) {
  TORCH_CHECK_VALUE(!names.empty(), "LabelMap: at least one label name expected, got none.");
  LabelMap map;
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(!name.empty(), "LabelMap: a label name is empty.");
    TORCH_CHECK_VALUE(map.ids_.emplace(name, static_cast<int64_t>(map.ids_.size())).second,
                      "LabelMap: two labels are named '", name, "'.");
  }
  for (const std::string& name : names) map.ids_.emplace(canonical_label(name), map.ids_.at(name));
  map.names_ = std::move(names);
  return map;
}

LabelMap LabelMap::from_rows(const LabeledRows& rows) {
  std::unordered_map<std::string_view, size_t> first_rows;
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    check_label(rows, i, !std::holds_alternative<double>(rows.labels[i]));
    for (const std::string& name : names_of(rows.labels[i])) first_rows.emplace(name, i);
  }
  TORCH_CHECK_VALUE(first_rows.size() <= kMaxLabels, rows.places.file, ": has ", first_rows.size(),
                    " different labels, at most ", kMaxLabels, " can be trained. Are these labels, or identifiers?");
  std::vector<std::pair<size_t, std::string_view>> spellings;
  for (const auto& [name, row] : first_rows) spellings.emplace_back(row, name);
  std::ranges::sort(spellings);
  const bool has_number =
      std::ranges::any_of(spellings, [](const auto& s) { return label_number(s.second).has_value(); });
  const bool are_numbers = has_number && std::ranges::all_of(spellings, [](const auto& s) {
                             return label_number(s.second) || is_missing_label(s.second, /*beside_numbers=*/true);
                           });
  Names names;
  std::set<std::string> seen;
  for (const auto& [row, name] : spellings) {
    TORCH_CHECK_VALUE(!is_missing_label(name, are_numbers), rows.where(row), "the label ", quoted_name(name),
                      " is a missing value. Give the row a label, remove it, or name all labels with --labels.");
    if (seen.insert(canonical_label(name)).second) names.emplace_back(name);
  }
  std::ranges::sort(names);
  if (are_numbers) std::ranges::stable_sort(names, {}, [](const std::string& name) { return *label_number(name); });
  return from_names(std::move(names));
}

std::optional<int64_t> LabelMap::id(std::string_view name) const {
  auto found = ids_.find(std::string(name));
  if (found == ids_.end()) found = ids_.find(canonical_label(name));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

at::Tensor label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label) {
  at::Tensor ids = at::empty({static_cast<int64_t>(rows.labels.size())}, at::kLong);
  const bool is_position = are_positions(rows, labels.names());
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    const auto* name = std::get_if<std::string>(&rows.labels[i]);
    check_label(rows, i, name != nullptr);
    ids.mutable_data_ptr<int64_t>()[i] = find_id(rows, i, *name, labels, on_unknown_label, is_position);
  }
  return ids;
}

at::Tensor label_flags(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label) {
  auto flags = at::zeros({static_cast<int64_t>(rows.labels.size()), labels.size()}, at::kFloat);
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    const auto* names = std::get_if<Names>(&rows.labels[i]);
    check_label(rows, i, names != nullptr);
    float* row = flags.mutable_data_ptr<float>() + static_cast<int64_t>(i) * labels.size();
    for (const std::string& name : *names) {
      row[find_id(rows, i, name, labels, on_unknown_label)] = 1;
    }
  }
  return flags;
}

at::Tensor word_label_ids(const LabeledRows& rows, const LabelMap& labels, std::string_view on_unknown_label) {
  size_t most = 0, longest = 0, words = 0;
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    const auto* names = std::get_if<Names>(&rows.labels[i]);
    check_label(rows, i, names != nullptr);
    words += names->size();
    if (names->size() > most) {
      most = names->size();
      longest = i;
    }
  }
  // A row of the matrix for each text, as long as the longest.
  constexpr size_t kMostTimes = 1000, kRoom = size_t{1} << 26;
  TORCH_CHECK_VALUE(most == 0 || rows.labels.size() <= (kMostTimes * words + kRoom) / most, rows.where(longest),
                    "this text is too long. It has ", most, " of the ", words, " words of all ", rows.labels.size(),
                    " texts. If it is several texts, split it. If not, leave it out.");
  const auto count = static_cast<int64_t>(rows.labels.size());
  auto ids = at::full({count, static_cast<int64_t>(most)}, TokenizedTexts::kNoTarget, at::kInt);
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    auto* id = ids.mutable_data_ptr<int32_t>() + i * most;
    for (const std::string& name : std::get<Names>(rows.labels[i])) {
      *id++ = static_cast<int32_t>(find_id(rows, i, name, labels, on_unknown_label));
    }
  }
  return ids;
}

Dataset to_dataset(LabeledRows rows, at::Tensor targets) {
  return {std::move(rows.texts), std::move(rows.text_pairs), std::move(targets), std::move(rows.places),
          std::move(rows.words)};
}

namespace {

template <class T>
std::vector<T> select(const std::vector<T>& rows, std::span<const int64_t> places) {
  std::vector<T> selected;
  for (const int64_t place : rows.empty() ? std::span<const int64_t>() : places) selected.push_back(rows[place]);
  return selected;
}

/// @param order  of all rows; the last `second` make the second part.
std::pair<Dataset, Dataset> split_at(const Dataset& dataset, const at::Tensor& order, int64_t second) {
  const auto part = [&](int64_t begin, int64_t count) {
    const std::span places(order.const_data_ptr<int64_t>() + begin, count);
    const RowPlaces& from = dataset.places;
    return Dataset{.texts = dataset.texts.select(places),
                   .text_pairs = dataset.text_pairs.select(places),
                   .targets = dataset.targets.defined() ? dataset.targets.index_select(0, order.narrow(0, begin, count))
                                                        : at::Tensor(),
                   .places = {from.file, select(from.lines, places), from.files, select(from.file_ids, places)},
                   .words = select(dataset.words, places)};
  };
  return {part(0, dataset.size() - second), part(dataset.size() - second, second)};
}

/// @param share  as a caller names it.
/// @return how many rows the second part has.
int64_t size_of_second(const char* function, const char* share_name, int64_t total, double share) {
  TORCH_CHECK_VALUE(share > 0 && share < 1, function, ": ", share_name, " must be between 0 and 1, got ", share, ".");
  const int64_t second = std::llround(static_cast<double>(total) * share);
  TORCH_CHECK_VALUE(second > 0 && second < total, function, ": a ", share_name, " of ", share, " leaves one part of ",
                    total, " rows empty. Use more rows or another ", share_name, ".");
  return second;
}

at::Tensor random_order(int64_t count, uint64_t seed) {
  return at::randperm(count, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kLong).device(at::kCPU));
}

/// How many rows of each class the second part gets.
std::vector<int64_t> shares_of_classes(const std::vector<int64_t>& counts, int64_t second, int64_t total) {
  std::vector<int64_t> shares;
  std::vector<size_t> by_remainder(counts.size());
  int64_t left = second;
  for (const int64_t count : counts) {
    shares.push_back(count * second / total);
    left -= shares.back();
  }
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::ranges::stable_sort(by_remainder, std::greater(), [&](size_t i) { return counts[i] * second % total; });
  for (size_t i = 0; left > 0 && i < by_remainder.size(); ++i) {
    const size_t label = by_remainder[i];
    if (shares[label] + 1 < counts[label]) {
      ++shares[label];
      --left;
    }
  }
  return shares;
}

/// The fold of each row.
/// @see sklearn.model_selection.StratifiedKFold (Python): sorted by class, rows are dealt out one after the other, and
///   classes are in the order in which they appear.
std::vector<int64_t> folds_by_class(std::span<const int64_t> labels, std::span<const int64_t> order, int64_t folds) {
  const auto count = static_cast<size_t>(std::ranges::max(labels)) + 1;
  std::vector<int64_t> counts(count);
  std::vector<int64_t> appearing;
  for (const int64_t label : labels) {
    if (counts[label]++ == 0) appearing.push_back(label);
  }
  std::vector<std::vector<int64_t>> left(count);  // of each class, for each fold
  int64_t dealt = 0;
  for (const int64_t label : appearing) {
    left[label].resize(folds);
    for (int64_t i = 0; i < counts[label]; ++i) ++left[label][dealt++ % folds];
  }
  std::vector<int64_t> fold_of(labels.size());
  std::vector<int64_t> next(count);  // by class, the fold that takes the next row
  for (const int64_t row : order) {
    const int64_t label = labels[row];
    while (left[label][next[label]] == 0) ++next[label];
    --left[label][next[label]];
    fold_of[row] = next[label];
  }
  return fold_of;
}

}  // namespace

std::pair<Dataset, Dataset> split_fold(
    const Dataset& dataset, int64_t folds, int64_t fold, bool by_class, uint64_t seed) {
  const int64_t total = dataset.size();
  TORCH_CHECK_VALUE(folds >= 2 && folds <= total, "split_fold: ", total, " rows cannot be split into ", folds,
                    " folds.");
  TORCH_CHECK_VALUE(fold >= 0 && fold < folds, "split_fold: fold ", fold, " is none of ", folds, ".");
  const auto shuffled = random_order(total, seed);
  const std::span<const int64_t> order(shuffled.const_data_ptr<int64_t>(), total);
  std::vector<int64_t> fold_of(total);
  if (by_class) {
    fold_of = folds_by_class({dataset.targets.const_data_ptr<int64_t>(), static_cast<size_t>(total)}, order, folds);
  } else {
    for (int64_t i = 0; i < total; ++i) fold_of[order[i]] = i % folds;
  }
  std::vector<int64_t> rows;
  for (const int64_t row : order) {
    if (fold_of[row] != fold) rows.push_back(row);
  }
  const int64_t first = std::ssize(rows);
  for (const int64_t row : order) {
    if (fold_of[row] == fold) rows.push_back(row);
  }
  return split_at(dataset, at::tensor(rows, at::kLong), total - first);
}

std::pair<Dataset, Dataset> split_dataset(const Dataset& dataset, double ratio, uint64_t seed) {
  const int64_t total = dataset.size();
  const int64_t second = size_of_second("split_dataset", "ratio", total, ratio);
  return split_at(dataset, random_order(total, seed), second);
}

std::pair<Dataset, Dataset> split_by_class(const Dataset& dataset, double fraction, uint64_t seed) {
  const int64_t total = dataset.size();
  const int64_t second = size_of_second("split_by_class", "fraction", total, fraction);
  const auto* labels = dataset.targets.const_data_ptr<int64_t>();
  std::vector<int64_t> counts(static_cast<size_t>(*std::max_element(labels, labels + total)) + 1);
  for (int64_t i = 0; i < total; ++i) ++counts[static_cast<size_t>(labels[i])];
  auto left = shares_of_classes(counts, second, total);
  const auto shuffled = random_order(total, seed);
  std::vector<int64_t> first_rows, second_rows;
  for (int64_t i = total; i-- > 0;) {  // from the end, as split_dataset() takes them
    const int64_t row = shuffled.const_data_ptr<int64_t>()[i];
    int64_t& of_class = left[static_cast<size_t>(labels[row])];
    (of_class > 0 ? second_rows : first_rows).push_back(row);
    if (of_class > 0) --of_class;
  }
  TORCH_CHECK_VALUE(!second_rows.empty(), "split_by_class: no class has two rows. Use a class with more rows.");
  const auto in_second = static_cast<int64_t>(second_rows.size());
  first_rows.insert(first_rows.end(), second_rows.begin(), second_rows.end());
  return split_at(dataset, at::tensor(first_rows, at::kLong), in_second);
}

}  // namespace mezzo::text
