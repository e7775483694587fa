#include "text/diagnosis.h"

#include <algorithm>

namespace mezzo::text {
namespace {

constexpr size_t kMostGradients = 8;  // once one overflows, most do

void add(GradientExponents& total, const GradientExponents& counted) {
  for (size_t i = 0; i < total.counts.size(); ++i) {
    total.counts[i] += counted.counts[i];
  }
  total.zeros += counted.zeros;
  total.non_finite += counted.non_finite;
  total.largest = std::max(total.largest, counted.largest);
}

}  // namespace

std::string Diagnosis::part_of(const std::string& parameter) {
  std::string_view rest = parameter;
  for (const std::string_view prefix : {"bert.", "encoder."}) {
    if (rest.starts_with(prefix)) {
      rest.remove_prefix(prefix.size());
    }
  }
  const bool is_layer = rest.starts_with("layer.");
  if (is_layer) {
    rest.remove_prefix(6);
  }
  return (is_layer ? "layer " : "") + std::string(rest.substr(0, rest.find('.')));
}

void Diagnosis::look_at(Optimizer& optimizer, double scale, const OverflowReport& overflow) {
  ++steps_;
  if (overflow.empty() && (counted_ < kFirstSteps || steps_ % kCountEvery == 0)) {
    count(optimizer, scale);
  }
}

void Diagnosis::count(Optimizer& optimizer, double scale) {
  std::vector<NamedGradients> groups;
  size_t index = 0;
  optimizer.visit_parameters([&](const at::Tensor& parameter) {
    const std::string part = part_of(optimizer.parameter_name(index++));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& seen) { return seen.name == part; });
    if (group == groups.end()) {
      group = groups.insert(group, {part, {}});
    }
    group->gradients.push_back(parameter.grad());
  });
  auto counted = count_gradient_exponents(groups, scale);
  ++counted_;
  if (exponents_.empty()) {
    exponents_ = std::move(counted);
    return;
  }
  for (size_t i = 0; i < exponents_.size(); ++i) {
    add(exponents_[i], counted[i]);
  }
}

std::optional<DiagnoseRecord> Diagnosis::take_gradients(int64_t step, double loss_scale) {
  if (counted_ == taken_) {
    return std::nullopt;
  }
  taken_ = counted_;
  auto advice = advise_scale(exponents_, loss_scale);
  return DiagnoseRecord{.step = step,
                        .kind = "gradients",
                        .loss_scale = loss_scale,
                        .recommended_scale = advice.recommended_scale,
                        .text = advice.to_string(),
                        .groups = std::move(advice.groups)};
}

DiagnoseRecord describe(const OverflowReport& overflow, int64_t step, double loss_scale) {
  return {.step = step,
          .kind = "overflow",
          .loss_scale = loss_scale,
          .recommended_scale = 0,
          .text = overflow.to_string(kMostGradients),
          .groups = {}};
}

}  // namespace mezzo::text
