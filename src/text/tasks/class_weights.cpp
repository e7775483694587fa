#include "text/tasks/class_weights.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace mezzo::text {

std::vector<std::pair<std::string, double>> parse_class_weights(std::string_view text) {
  std::vector<std::pair<std::string, double>> weights;
  std::set<std::string_view> seen;
  size_t begin = 0;
  const char* const text_end = text.data() + text.size();
  for (size_t equals = text.find('='); equals != text.npos; equals = text.find('=', equals + 1)) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data() + equals + 1, text_end, weight);
    if (error != std::errc() || (end != text_end && *end != ',')) continue;  // of a name
    const std::string_view name = text.substr(begin, equals - begin);
    constexpr double kLeast = 1e-6, kMost = 1e6;
    TORCH_CHECK_VALUE(weight >= kLeast && weight <= kMost, "--class-weights: the weight of '", name, "' is ", weight,
                      ", expected a number from ", kLeast, " to ", kMost);
    TORCH_CHECK_VALUE(seen.insert(name).second, "--class-weights: '", name, "' has two weights; give it one");
    weights.emplace_back(name, weight);
    begin = static_cast<size_t>(end - text.data()) + 1;
  }
  TORCH_CHECK_VALUE(begin == text.size() + 1, "--class-weights: '", text.substr(std::min(begin, text.size())),
                    "' is not NAME=WEIGHT; pass balanced, or weights such as rare=5,common=1");
  return weights;
}

}  // namespace mezzo::text
