#include "mezzo/text/train/step_interval.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

namespace mezzo::text {
namespace {

template <class Number>
bool is_all_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

}  // namespace

StepInterval StepInterval::parse(std::string_view flag, const std::string& text) {
  constexpr int64_t kMostSteps = 1'000'000'000;  // a year of 30 a second
  if (text == "epoch") return epochs(1);
  int64_t count = 0;
  if (is_all_number(text, count) && count >= 0 && count <= kMostSteps) return steps(count);
  double share = 0;
  if (is_all_number(text, share) && share > 0 && share < 1) return epochs(share);
  TORCH_CHECK_VALUE(false, flag, " is '", text, "', expected a number of steps from 0 to ", kMostSteps,
                    ", epoch, or a share of an epoch such as 0.25");
}

std::string StepInterval::text() const {
  return share_ == 0 ? fmt::format("{}", steps_) : share_ == 1 ? "epoch" : fmt::format("{}", share_);
}

int64_t StepInterval::in_steps(int64_t steps_per_epoch) const {
  return share_ == 0 ? steps_ : static_cast<int64_t>(std::ceil(share_ * static_cast<double>(steps_per_epoch)));
}

StepInterval default_eval_interval(int64_t steps_per_epoch) {
  constexpr double kSteps = 50;
  const auto evaluations = std::clamp<int64_t>(std::llround(static_cast<double>(steps_per_epoch) / kSteps), 1, 10);
  return StepInterval::steps((steps_per_epoch + evaluations - 1) / evaluations);
}

}  // namespace mezzo::text
