#include "mezzo/text/data/balance.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

namespace mezzo::text {

std::vector<std::vector<int64_t>> balance_by_tokens(const std::vector<int64_t>& lengths, int64_t num_ranks) {
  TORCH_CHECK_VALUE(num_ranks > 0, "balance_by_tokens: there must be at least 1 rank, got ", num_ranks);
  for (const int64_t length : lengths) {
    TORCH_CHECK_VALUE(length >= 0, "balance_by_tokens: a text cannot have ", length, " tokens");
  }
  std::vector<int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });

  using Load = std::tuple<int64_t, int64_t, int64_t>;  // tokens, texts, rank: of equal loads, fewer texts come first
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    loads.emplace(0, 0, rank);
  }
  std::vector<std::vector<int64_t>> parts(static_cast<size_t>(num_ranks));
  for (const int64_t text : longest_first) {
    const auto [tokens, texts, rank] = loads.top();
    loads.pop();
    parts[rank].push_back(text);
    loads.emplace(tokens + lengths[text], texts + 1, rank);
  }
  for (auto& part : parts) {
    std::sort(part.begin(), part.end());
  }
  return parts;
}

}  // namespace mezzo::text
