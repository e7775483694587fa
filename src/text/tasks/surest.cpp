#include "text/tasks/surest.h"

#include <ATen/ops/argsort.h>

#include "text/tasks/elements.h"

namespace mezzo::text {

std::vector<int64_t> surest(const at::Tensor& is_wrong, const at::Tensor& sureness) {
  constexpr int64_t kMost = 20;
  const auto wrong = is_wrong.nonzero().squeeze(1);
  const auto order = at::argsort(sureness.index_select(0, wrong), /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto rows = wrong.index_select(0, order.slice(0, 0, kMost));
  return {elements<int64_t>(rows).begin(), elements<int64_t>(rows).end()};
}

std::vector<Mistake> surest_mistakes(const at::Tensor& probabilities,
                                     const at::Tensor& is,
                                     const at::Tensor& predicted,
                                     const std::vector<std::string>& names) {
  const auto sureness = probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1);
  std::vector<Mistake> mistakes;
  for (const int64_t row : surest(predicted.ne(is), sureness)) {
    mistakes.push_back(
        {row, names[is[row].item<int64_t>()], names[predicted[row].item<int64_t>()], sureness[row].item<double>()});
  }
  return mistakes;
}

}  // namespace mezzo::text
