#include "optim/deferred_rows.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "kernels/cpu/share_out.h"
#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::detail {

DeferredRows::DeferredRows(at::Tensor table)
    : table_(std::move(table)), done_(table_.size(0)), is_read_(table_.size(0)) {
  zero_gradient();
}

void DeferredRows::read(const at::Tensor& ids) {
  const auto all = ids.to(at::kLong).contiguous();
  std::vector<int64_t> behind;
  for (const int64_t row : at::ArrayRef(all.const_data_ptr<int64_t>(), all.numel())) {
    TORCH_CHECK_INDEX(row >= 0 && row < table_.size(0), "AdamW: row ", row, " of a table of ", table_.size(0), " rows");
    if (!is_read_[row]) {
      is_read_[row] = true;
      read_.push_back(row);
      if (done_[row] < steps_.size()) {
        behind.push_back(row);
      }
    }
  }
  catch_up(behind);
}

void DeferredRows::catch_up() {
  std::vector<int64_t> behind;
  for (int64_t row = 0; row < table_.size(0); ++row) {
    if (done_[row] < steps_.size()) {
      behind.push_back(row);
    }
  }
  catch_up(behind);
  steps_.clear();
  std::ranges::fill(done_, 0);
}

void DeferredRows::catch_up(const std::vector<int64_t>& behind) {
  if (behind.empty()) {
    return;
  }
  const int64_t columns = table_.size(1);
  auto *const weights = static_cast<float*>(table_.data_ptr()), *const exp_avg = moments_[0].data_ptr<float>(),
              *const exp_avg_sq = moments_[1].data_ptr<float>();
  kernels::cpu::share_out(std::ssize(behind), [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      const int64_t row = behind[i], begin = row * columns;
      kernels::cpu::element_kernels().adam_without_gradient(weights + begin, exp_avg + begin, exp_avg_sq + begin,
                                                            columns, steps_.data() + done_[row],
                                                            static_cast<int64_t>(steps_.size() - done_[row]));
      done_[row] = steps_.size();
    }
  });
  table_.unsafeGetTensorImpl()->bump_version();
}

void DeferredRows::update(kernels::ParameterUpdates updates,
                          const kernels::AdamSettings& settings,
                          const GradientFactors& factors) {
  const auto of_table =
      std::ranges::find_if(updates, [&](const ParameterUpdate& update) { return update.param.is_same(table_); });
  if (of_table == updates.end()) {
    kernels::adam(updates, settings, factors);
    return;
  }
  if (settings.amsgrad) {  // a loaded state has turned it on
    catch_up();
    kernels::adam(updates, settings, factors);
    return;
  }
  const ParameterUpdate whole = *of_table;
  const auto rows = at::tensor(read_);
  ParameterUpdate& part = *of_table;
  std::vector<std::pair<at::Tensor, at::Tensor*>> written{{whole.param, &part.param}};
  for (size_t i = 0; i < whole.slots.size(); ++i) {
    written.emplace_back(whole.slots[i], &part.slots[i]);
  }
  for (const auto& [from, to] : written) {
    *to = from.index_select(0, rows);
  }
  part.gradient = whole.gradient.index_select(0, rows);
  const float steps_before = whole.step.item<float>();
  kernels::adam(updates, settings, factors);
  const float step = whole.step.item<float>();
  if (step == steps_before) {  // it was skipped
    return;
  }
  for (auto& [to, from] : written) {
    to.index_copy_(0, rows, *from);
  }
  is_updated_ = true;
  moments_ = whole.slots;
  const double lr = (factors.lr.defined() ? factors.lr.item<double>() : 1) * whole.lr;
  steps_.push_back(
      kernels::adam_constants(settings, lr, whole.weight_decay, step, {}, kernels::flushes_denormals(settings)));
  for (const int64_t row : read_) {
    done_[row] = steps_.size();
  }
}

void DeferredRows::zero_gradient() {
  at::Tensor& gradient = table_.mutable_grad();
  if (!gradient.defined()) {
    gradient = at::zeros_like(table_.detach());
  } else if (is_updated_) {
    gradient.detach_().index_fill_(0, at::tensor(read_), 0);
  } else {
    gradient.detach_().zero_();
  }
  is_updated_ = false;
  for (const int64_t row : read_) {
    is_read_[row] = false;
  }
  read_.clear();
}

}  // namespace mezzo::detail
