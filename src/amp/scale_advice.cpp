#include "mezzo/amp/scale_advice.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

#include "amp/text_table.h"
#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "memory/device_copy.h"

namespace mezzo {
namespace {

constexpr double kLargestHalf = 65504;
constexpr int kHalfLost = -26;       // 2^-25, the first magnitude of exponent -25, is half of float16's least
constexpr int kHalfSubnormal = -15;  // the last exponent below float16's normal numbers
constexpr int kHeadroom = 2;         // doublings left above the largest gradient
constexpr int kMostDoublings = 24;
constexpr double kTolerableLoss = 1e-3;
constexpr size_t kMostObjections = 4;

// The bins of the device's histogram: zeros, the exponents, non-finite values.
constexpr int64_t kDeviceBins = static_cast<int64_t>(GradientExponents::kBins) + 2;
constexpr int64_t kChunk = 1 << 24;  // histc counts in float32, which is exact so far

/// Counts per bin, then the largest finite magnitude: float64 [kDeviceBins + 1],
/// on the gradient's device, or on the CPU if the device has no float64.
at::Tensor histogram(const at::Tensor& gradient, double scale) {
  auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  if (accumulation_dtype(values.device()) != at::kDouble) {
    values = values.cpu();
  }
  auto counts = at::zeros({kDeviceBins}, values.options().dtype(at::kDouble));
  auto largest = at::zeros({1}, counts.options());
  for (const at::Tensor& chunk : values.reshape({-1}).split(kChunk)) {
    if (chunk.numel() == 0) {
      continue;
    }
    const auto magnitude = chunk.abs().to(at::kFloat).mul_(1 / scale);
    const auto exponent =
        std::get<1>(at::frexp(magnitude)).sub_(GradientExponents::kLowest);  // of [0.5, 1): 1 too many
    const auto bin = at::where(magnitude.isfinite(), at::where(magnitude == 0, 0, exponent), kDeviceBins - 1);
    counts += at::histc(bin.to(at::kFloat), kDeviceBins, -0.5, static_cast<double>(kDeviceBins) - 0.5);
    const auto finite = at::where(magnitude.isfinite(), magnitude, 0);
    largest = at::maximum(largest, finite.max().to(at::kDouble));
  }
  return at::cat({counts, largest});
}

/// Of non-zero values, the share whose exponent is in [low, high], times `scale`.
double share_between(const GradientExponents& exponents, int low, int high, double scale) {
  const int shift = std::ilogb(scale);
  int64_t count = 0;
  for (int e = std::max(low - shift, GradientExponents::kLowest);
       e <= std::min(high - shift, GradientExponents::kHighest); ++e) {
    count += exponents.count(e);
  }
  const int64_t all = exponents.nonzero();
  return all > 0 ? static_cast<double>(count) / static_cast<double>(all) : 0;
}

std::string digits(double value, int precision) {
  std::ostringstream out;
  out << std::setprecision(precision) << value;
  return out.str();
}

std::string fixed(double value, int decimals) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(decimals) << value;
  return out.str();
}

/// Powers of two to the last digit, others as people write them.
std::string scale_text(double scale) { return digits(scale, scale == std::floor(scale) ? 10 : 6); }

std::string percent(double share) { return fixed(100 * share, 2) + " %"; }

}  // namespace

int64_t GradientExponents::nonzero() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

double GradientExponents::share_lost(double scale) const {
  return share_between(*this, /*low=*/-10000, kHalfLost, scale);
}

double GradientExponents::share_underflowed(double scale) const {
  const int64_t all = nonzero();
  return underflowed > 0 && all > 0 ? static_cast<double>(underflowed) / static_cast<double>(all) : share_lost(scale);
}

double GradientExponents::share_subnormal(double scale) const {
  return share_between(*this, kHalfLost + 1, kHalfSubnormal, scale);
}

double GradientExponents::headroom(double scale) const {
  return largest > 0 ? std::log2(kLargestHalf) - std::log2(largest) - std::log2(scale)
                     : std::numeric_limits<double>::infinity();
}

std::vector<GradientExponents> count_gradient_exponents(const std::vector<NamedGradients>& groups, double scale) {
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0, "the scale of gradients must be positive and finite, ", "got ",
                    scale, ".");
  const c10::NoGradGuard no_grad;
  std::vector<GradientExponents> result;
  std::vector<at::Tensor> rows;
  std::vector<size_t> group_of_row;
  for (const NamedGradients& group : groups) {
    result.emplace_back().name = group.name;
    for (const at::Tensor& gradient : group.gradients) {
      if (!gradient.defined()) {
        continue;
      }
      TORCH_CHECK_VALUE(gradient.is_floating_point(), "gradient exponents: group ", group.name,
                        " has a gradient of dtype ", dtype_name(gradient.scalar_type()),
                        "; only gradients in floating point have exponents.");
      const auto row = histogram(gradient, scale);
      rows.push_back(rows.empty() ? row : copy_to(row, rows.front().device()));
      group_of_row.push_back(result.size() - 1);
    }
  }
  if (rows.empty()) {
    return result;
  }
  const auto table = at::stack(rows).cpu();
  const auto cell = table.accessor<double, 2>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = cell[static_cast<int64_t>(i)];
    GradientExponents& group = result[group_of_row[i]];
    group.zeros += static_cast<int64_t>(row[0]);
    for (size_t bin = 0; bin < GradientExponents::kBins; ++bin) {
      group.counts[bin] += static_cast<int64_t>(row[static_cast<int64_t>(bin) + 1]);
    }
    group.non_finite += static_cast<int64_t>(row[kDeviceBins - 1]);
    group.largest = std::max(group.largest, row[kDeviceBins]);
  }
  return result;
}

ScaleAdvice advise_scale(std::vector<GradientExponents> groups, double current_scale) {
  ScaleAdvice advice{.groups = std::move(groups), .scale = current_scale};
  double headroom = std::numeric_limits<double>::infinity();
  for (const GradientExponents& group : advice.groups) {
    headroom = std::min(headroom, group.headroom(1));
    advice.needs_scale = advice.needs_scale || group.share_lost(1) > kTolerableLoss;
  }
  const double doublings = std::clamp<double>(std::floor(headroom) - kHeadroom, -kMostDoublings, kMostDoublings);
  advice.recommended_scale = std::isfinite(headroom) ? std::exp2(doublings) : current_scale;
  return advice;
}

std::string ScaleAdvice::objection() const {
  std::vector<std::pair<double, std::string>> losses;
  std::vector<std::string> zeros;
  double least_headroom = std::numeric_limits<double>::infinity();
  for (const auto& group : groups) {
    const double lost = group.share_underflowed(scale);
    if (lost > std::max(kTolerableLoss, 2 * group.share_lost(recommended_scale))) {
      losses.emplace_back(lost, group.name);
    }
    if (group.nonzero() == 0 && group.zeros > 0) {
      zeros.push_back(group.name);
    }
    least_headroom = std::min(least_headroom, group.headroom(scale));
  }
  if (!losses.empty()) {
    std::stable_sort(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> named;
    for (size_t i = 0; i < std::min(kMostObjections, losses.size()); ++i) {
      named.push_back(percent(losses[i].first) + " of " + losses[i].second);
    }
    return c10::str("the scale is too small for float16: of gradients that are not 0, it loses ",
                    c10::Join(", ", named), losses.size() > kMostObjections ? ", …" : "");
  }
  if (least_headroom < 0) {
    return c10::str("the scale is too large for float16: the largest scaled gradient exceeds ", kLargestHalf);
  }
  return zeros.empty() ? ""
                       : "all gradients are 0 of " + c10::Join(", ", zeros) + ": the scale may be too small for them";
}

std::string ScaleAdvice::to_string() const {
  std::vector<std::vector<std::string>> rows = {
      {"gradients", "largest", "zero", "lost at 1", "lost at scale", "subnormal", "doublings to 65504"}};
  for (const auto& group : groups) {
    const auto all = static_cast<double>(group.nonzero() + group.zeros + group.non_finite);
    rows.push_back({group.name, digits(group.largest, 3), percent(all > 0 ? static_cast<double>(group.zeros) / all : 0),
                    percent(group.share_lost(1)), percent(group.share_underflowed(scale)),
                    percent(group.share_subnormal(scale)), fixed(group.headroom(scale), 1)});
  }
  const std::string against = objection();
  return text_table(rows, /*left=*/1) + "scale " + scale_text(scale) +
         "; recommended for float16: " + scale_text(recommended_scale) +
         (needs_scale || !against.empty() ? "" : " (these gradients need almost no scale)") + '\n' +
         (against.empty() ? "" : against + '\n');
}

}  // namespace mezzo
