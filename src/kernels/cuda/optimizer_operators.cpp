#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/tensor_lists.h"
#include "kernels/cuda/tensors.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

/// `update` for lists that hold all parameters.
template <class Settings, class Update>
void update_all(const ParameterUpdates& updates,
                const Settings& settings,
                bool flushes,
                const GradientFactors& factors,
                const Update& update) {
  using List = ParameterList<Settings>;
  using Constants = typename Settings::Constants;
  const OnDeviceOf device(updates.front().param);
  const auto constants = at::empty({std::min<int64_t>(std::ssize(updates), List::kMost) * int64_t{sizeof(Constants)}},
                                   updates.front().param.options().dtype(at::kByte));
  List list{};
  list.settings = settings;
  list.flushes_denormals = flushes;
  list.constants = static_cast<Constants*>(constants.mutable_data_ptr());
  list.factors = {number(factors.inv_scale), number(factors.clip), number(factors.found_inf),
                  factors.lr.defined() ? factors.lr.const_data_ptr<double>() : nullptr};
  if (const auto& first = updates.front(); first.rounding_seed) {
    list.rounds_stochastically = true;
    list.rounding_seed = rounding_key_seed(first);
  }
  for_lists(
      updates, list,
      [](auto& to, const ParameterUpdate& from) {
        Parameter& p = to.parameters[to.count];
        p = {span_of(from.param),
             span_of(from.gradient),
             span_of(from.half_copy),
             {},
             number(from.step),
             from.param.numel(),
             from.lr,
             from.weight_decay,
             from.index};
        std::ranges::transform(from.slots, p.slots, number);
        return blocks_of(p.size);
      },
      [&](auto& filled) { update(filled, device.stream); });
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  update_all(updates, settings, flushes_denormals(settings), factors,
             [](const auto& list, Stream stream) { adam(list, stream); });
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  update_all(updates, settings, true, factors, [](const auto& list, Stream stream) { sgd(list, stream); });
}

void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors) {
  update_all(updates, settings, flushes_denormals(settings), factors,
             [](const auto& list, Stream stream) { rmsprop(list, stream); });
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  update_all(updates, settings, false, factors, [&](auto& list, Stream stream) {
    const auto norms = at::empty({list.first_block[list.count], 2}, updates.front().param.options().dtype(at::kDouble));
    list.norms = norms.template mutable_data_ptr<double>();
    lamb(list, stream);
  });
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  const OnDeviceOf device(gradients.front());
  const auto options = gradients.front().options();
  int64_t blocks = 0;
  for (const at::Tensor& gradient : gradients) {
    blocks += blocks_of(gradient.numel());
  }
  const auto sums = at::empty({blocks}, options.dtype(at::kDouble));
  auto* next = sums.mutable_data_ptr<double>();
  for_lists(
      gradients, GradientList{},
      [](GradientList& list, const at::Tensor& gradient) {
        list.gradients[list.count] = {span_of(gradient), gradient.numel()};
        return blocks_of(gradient.numel());
      },
      [&](GradientList& list) {
        list.sums = next;
        sum_squares(list, device.stream);
        next += list.first_block[list.count];
      });
  const auto empty = [&](at::ScalarType dtype) { return at::empty({}, options.dtype(dtype)); };
  GradientSummary summary{empty(at::kFloat), empty(at::kFloat), empty(at::kDouble), empty(at::kFloat),
                          empty(at::kFloat)};
  summarize({sums.const_data_ptr<double>(), blocks, number(scale), static_cast<float>(max_norm), number(summary.norm),
             number(summary.found_inf), summary.sum_of_squares.mutable_data_ptr<double>(), number(summary.inv_scale),
             number(summary.clip)},
            device.stream);
  return summary;
}

}  // namespace mezzo::kernels::MEZZO_CUDA
