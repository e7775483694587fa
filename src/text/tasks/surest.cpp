#include "text/tasks/surest.h"

#include <algorithm>

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

}  // namespace mezzo::text
