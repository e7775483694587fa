#include "text/tasks/surest.h"

#include <algorithm>
#include <utility>

namespace mezzo::text {

std::vector<SureMistake> surest(std::vector<SureMistake> wrong) {
  const auto is_surer = [](const SureMistake& left, const SureMistake& right) {
    return left.first != right.first ? left.first > right.first : left.second < right.second;
  };
  const size_t count = std::min(wrong.size(), kMostMistakes);
  std::ranges::partial_sort(wrong, wrong.begin() + static_cast<ptrdiff_t>(count), is_surer);
  wrong.resize(count);
  return wrong;
}

std::vector<Mistake> surest_mistakes(const at::Tensor& probabilities,
                                     std::span<const int64_t> is,
                                     std::span<const int64_t> predicted,
                                     const std::vector<std::string>& names) {
  const auto probability = probabilities.accessor<double, 2>();
  std::vector<SureMistake> wrong;
  for (size_t i = 0; i < is.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    if (is[i] != predicted[i]) wrong.emplace_back(probability[row][predicted[i]], row);
  }
  std::vector<Mistake> mistakes;
  for (const auto& [score, row] : surest(std::move(wrong))) {
    const auto i = static_cast<size_t>(row);
    mistakes.push_back({row, names[static_cast<size_t>(is[i])], names[static_cast<size_t>(predicted[i])], score});
  }
  return mistakes;
}

}  // namespace mezzo::text
