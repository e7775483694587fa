#include "text/train/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "mezzo/optim/detail/amp_scaling_optimizer.h"

namespace mezzo::text {
namespace {

constexpr size_t kMostGradients = 8;   // once one overflows, most do
constexpr double kUsualScale = 65536;  // GradScaler's first

void add(GradientExponents& total, const GradientExponents& counted) {
  for (size_t i = 0; i < total.counts.size(); ++i) {
    total.counts[i] += counted.counts[i];
  }
  total.zeros += counted.zeros;
  total.non_finite += counted.non_finite;
  total.underflowed += counted.underflowed;
  total.largest = std::max(total.largest, counted.largest);
}

}  // namespace

void Diagnosis::look_at(torch::optim::Optimizer& optimizer, double scale, const OverflowReport& overflow) {
  ++steps_;
  if (overflow.empty() && (counted_ < kFirstSteps || steps_ % kCountEvery == 0)) {
    latest_ = count(optimizer, scale);
    ++counted_;
  }
}

std::optional<double> Diagnosis::better_scale(double scale) const {
  if (latest_.empty()) {
    return std::nullopt;
  }
  const bool any = std::any_of(latest_.begin(), latest_.end(), [](const auto& group) { return group.nonzero() > 0; });
  const double better = any ? advise_scale(latest_, scale).recommended_scale : kUsualScale;
  return better > 2 * scale ? std::optional(better) : std::nullopt;
}

void Diagnosis::found_underflow(const std::vector<GradientExponents>& at_scale,
                                std::vector<GradientExponents> true_ones) {
  latest_ = std::move(true_ones);
  for (size_t i = 0; i < latest_.size(); ++i) {
    latest_[i].underflowed = std::max<int64_t>(0, at_scale[i].zeros - latest_[i].zeros);
  }
}

void Diagnosis::end_step() {
  if (exponents_.empty()) {
    exponents_ = latest_;
  } else {
    for (size_t i = 0; i < latest_.size(); ++i) {
      add(exponents_[i], latest_[i]);
    }
  }
  latest_.clear();
}

std::vector<GradientExponents> Diagnosis::count(torch::optim::Optimizer& optimizer, double scale) const {
  std::vector<NamedGradients> groups;
  size_t index = 0;
  for (const auto& [owner, master] : mezzo::detail::gradient_owners(optimizer)) {
    const std::string part = part_of_(mezzo::detail::parameter_name(optimizer, index++));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& seen) { return seen.name == part; });
    if (group == groups.end()) {
      group = groups.insert(group, {part, {}});
    }
    group->gradients.push_back(owner.grad());
  }
  return count_gradient_exponents(groups, scale);
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

bool are_finite(const std::vector<GradientExponents>& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.non_finite == 0; });
}

DiagnoseRecord describe_cause(const StepRecord& record,
                              bool has_scale,
                              bool is_static,
                              const std::vector<GradientExponents>& unscaled) {
  constexpr const char* kRemedies = "lower --learning-rate, clip with --max-grad-norm 1, or use another --precision";
  DiagnoseRecord cause;
  cause.step = record.step;
  cause.kind = "cause";
  cause.loss_scale = record.loss_scale;
  if (!unscaled.empty()) {
    cause.recommended_scale = advise_scale(unscaled, 1).recommended_scale;
    cause.text =
        fmt::format("the loss is {:.4g}, and without a loss scale all gradients are finite: {:g} is too large and ",
                    record.loss, record.loss_scale);
    cause.text += is_static
                      ? fmt::format("never changes; pass --loss-scale dynamic, or {:g}", cause.recommended_scale)
                      : fmt::format("falls by itself; --init-scale {:g} would have fitted", cause.recommended_scale);
  } else if (!std::isfinite(record.loss)) {
    cause.text =
        fmt::format("the loss itself is inf or NaN{}: {}", has_scale ? ", so no loss scale helps" : "", kRemedies);
  } else if (has_scale) {
    cause.text = fmt::format("without a loss scale, too, gradients are inf or NaN: {}", kRemedies);
  } else {
    cause.text = fmt::format("the loss is {:.4g}, and only its gradients are inf or NaN: {}", record.loss, kRemedies);
  }
  return cause;
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
