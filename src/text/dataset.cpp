#include "mezzo/text/dataset.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace mezzo::text {
namespace {

std::string where(const LabeledRows& rows, size_t row) {
  return fmt::format("{}:{}: row {}: ", rows.file, rows.lines[row], row + 1);
}

std::string list_names(const LabelMap& labels) {
  constexpr size_t kShown = 20;
  const auto& names = labels.names();
  std::string list = fmt::format("{}", fmt::join(std::span(names).first(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown) list += fmt::format(", … ({} in all)", names.size());
  return list;
}

int64_t find_id(const LabeledRows& rows, size_t row, const LabelMap& labels) {
  const RawLabel& label = rows.labels[row];
  TORCH_CHECK_VALUE(!std::holds_alternative<std::monostate>(label), where(rows, row),
                    "the row has no label. Give it one, or remove the row.");
  const auto* name = std::get_if<std::string>(&label);
  const std::optional<int64_t> id = name != nullptr ? labels.id(*name) : std::get<int64_t>(label);
  TORCH_CHECK_VALUE(id && *id < labels.size(), where(rows, row), "unknown label ",
                    name != nullptr ? "'" + *name + "'" : std::to_string(*id),
                    name != nullptr ? ". The labels are: " : ". The labels, numbered from 0, are: ", list_names(labels),
                    ".");
  return *id;
}

}  // namespace

LabelMap LabelMap::from_names(std::vector<std::string> names) {
  TORCH_CHECK_VALUE(!names.empty(), "LabelMap: at least one label name expected, got none.");
  LabelMap map;
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(!name.empty(), "LabelMap: a label name is empty.");
    TORCH_CHECK_VALUE(map.ids_.emplace(name, static_cast<int64_t>(map.ids_.size())).second,
                      "LabelMap: two labels are named '", name, "'.");
  }
  map.names_ = std::move(names);
  return map;
}

LabelMap LabelMap::from_rows(const LabeledRows& rows) {
  std::set<std::string> names;
  int64_t count = 0;
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    if (const auto* name = std::get_if<std::string>(&rows.labels[i])) {
      names.insert(*name);
    } else {
      const auto* id = std::get_if<int64_t>(&rows.labels[i]);
      TORCH_CHECK_VALUE(id != nullptr, where(rows, i), "the row has no label. Give it one, or remove the row.");
      count = std::max(count, *id + 1);
    }
  }
  if (!names.empty()) return from_names({names.begin(), names.end()});
  std::vector<std::string> numbers;
  for (int64_t id = 0; id < count; ++id) numbers.push_back(std::to_string(id));
  return from_names(std::move(numbers));
}

std::optional<int64_t> LabelMap::id(std::string_view name) const {
  const auto found = ids_.find(std::string(name));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

Dataset to_dataset(LabeledRows rows, const LabelMap& labels) {
  Dataset dataset;
  dataset.labels.reserve(rows.labels.size());
  for (size_t i = 0; i < rows.labels.size(); ++i) dataset.labels.push_back(find_id(rows, i, labels));
  dataset.texts = std::move(rows.texts);
  return dataset;
}

std::pair<Dataset, Dataset> split_dataset(Dataset dataset, double ratio, uint64_t seed) {
  TORCH_CHECK_VALUE(ratio > 0 && ratio < 1, "split_dataset: ratio must be between 0 and 1, got ", ratio, ".");
  const int64_t total = dataset.size();
  const int64_t second = std::llround(static_cast<double>(total) * ratio);
  TORCH_CHECK_VALUE(second > 0 && second < total, "split_dataset: a ratio of ", ratio, " leaves one part of ", total,
                    " rows empty. Use more rows or another ratio.");
  const at::Tensor order =
      at::randperm(total, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kLong).device(at::kCPU));
  std::pair<Dataset, Dataset> parts;
  const int64_t* rows = order.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < total; ++i) {
    Dataset& part = i < total - second ? parts.first : parts.second;
    part.texts.push_back(std::move(dataset.texts[rows[i]]));
    part.labels.push_back(dataset.labels[rows[i]]);
  }
  return parts;
}

}  // namespace mezzo::text
