#include "mezzo/amp/overflow_report.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "amp/text_table.h"
#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "memory/device_copy.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"

namespace mezzo {
namespace {

/// A gradient's values, and whose they are.
struct Checked {
  OverflowedGradient about;
  at::Tensor values;
};

std::vector<Checked> collect(torch::optim::Optimizer& optimizer) {
  std::vector<Checked> checked;
  size_t index = 0;
  for (const auto& [owner, master] : detail::gradient_owners(optimizer)) {
    if (const at::Tensor& gradient = owner.grad(); gradient.defined()) {
      const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
      checked.push_back({{.parameter = detail::parameter_name(optimizer, index),
                          .index = index,
                          .shape = gradient.sizes().vec(),
                          .dtype = gradient.scalar_type(),
                          .num_values = values.numel()},
                         values});
    }
    ++index;
  }
  return checked;
}

/// All rows on one device, to be read with one wait; float64 if the device has it, to hold counts.
at::Tensor gather(const std::vector<at::Tensor>& rows) {
  std::vector<at::Tensor> together;
  for (const at::Tensor& row : rows) {
    together.push_back(copy_to(row, rows.front().device(), accumulation_dtype(row.device())));
  }
  return at::stack(together).cpu().to(at::kDouble);
}

/// Drops the gradients that are finite throughout.
void keep_non_finite(std::vector<Checked>& checked) {
  std::erase_if(checked, [](const Checked& gradient) { return gradient.values.numel() == 0; });
  if (checked.empty()) {
    return;
  }
  std::vector<at::Tensor> ranges;
  for (const Checked& gradient : checked) {
    const auto [least, greatest] = at::aminmax(gradient.values);  // many times as fast as a norm, or isfinite
    ranges.push_back(at::stack({least, greatest}));
  }
  const auto finite = gather(ranges).isfinite().all(/*dim=*/1);
  size_t i = 0;
  std::erase_if(checked, [&](const Checked&) { return finite.const_data_ptr<bool>()[i++]; });
}

/// Counts of inf and NaN, and the largest finite magnitude: [3].
at::Tensor details(const at::Tensor& values) {
  const auto dtype = accumulation_dtype(values.device());
  const auto magnitude = values.abs();
  const auto largest = at::where(magnitude.isfinite(), magnitude, 0).max();
  return at::stack({magnitude.isinf().sum().to(dtype), magnitude.isnan().sum().to(dtype), largest.to(dtype)});
}

std::string shape_of(const OverflowedGradient& gradient) { return c10::str(at::IntArrayRef(gradient.shape)); }

}  // namespace

OverflowReport overflow_report(torch::optim::Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  auto checked = collect(optimizer);
  OverflowReport report{
      .optimizer = detail::name_of(optimizer), .num_gradients = static_cast<int64_t>(checked.size()), .overflowed = {}};
  keep_non_finite(checked);
  if (checked.empty()) {
    return report;
  }
  std::vector<at::Tensor> rows;
  for (const Checked& gradient : checked) {
    rows.push_back(details(gradient.values));
  }
  const auto numbers = gather(rows);
  const auto number = numbers.accessor<double, 2>();
  for (size_t i = 0; i < checked.size(); ++i) {
    auto& gradient = report.overflowed.emplace_back(std::move(checked[i].about));
    gradient.num_inf = static_cast<int64_t>(number[static_cast<int64_t>(i)][0]);
    gradient.num_nan = static_cast<int64_t>(number[static_cast<int64_t>(i)][1]);
    gradient.largest_finite = number[static_cast<int64_t>(i)][2];
  }
  return report;
}

bool OverflowReport::has_nan() const {
  return std::any_of(overflowed.begin(), overflowed.end(), [](const auto& gradient) { return gradient.num_nan > 0; });
}

std::string OverflowReport::summary(size_t most) const {
  auto text = c10::str(overflowed.size(), " of ", num_gradients, " gradients of ", optimizer, " held inf or NaN");
  for (size_t i = 0; i < std::min(most, overflowed.size()); ++i) {
    const auto& gradient = overflowed[i];
    text += c10::str(i == 0 ? ": " : ", ", gradient.parameter, " ", shape_of(gradient), " (", gradient.num_inf,
                     " inf, ", gradient.num_nan, " NaN, largest finite ", gradient.largest_finite, ")");
  }
  return overflowed.size() > most && most > 0 ? text + ", …" : text;
}

std::string OverflowReport::to_string(size_t most) const {
  std::vector<std::vector<std::string>> rows = {
      {"parameter", "shape", "dtype", "inf", "NaN", "of values", "largest finite"}};
  for (size_t i = 0; i < std::min(most, overflowed.size()); ++i) {
    const auto& gradient = overflowed[i];
    rows.push_back({gradient.parameter, shape_of(gradient), dtype_name(gradient.dtype),
                    std::to_string(gradient.num_inf), std::to_string(gradient.num_nan),
                    std::to_string(gradient.num_values), c10::str(gradient.largest_finite)});
  }
  const size_t shown = rows.size() - 1;
  return summary(/*most=*/0) + '\n' + (shown > 0 ? text_table(rows, /*left=*/3, "  ") : "") +
         (shown < overflowed.size() ? c10::str("  … and ", overflowed.size() - shown, " more\n") : "");
}

}  // namespace mezzo
