#include "kernels/optimizer_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/check_arguments.h"
#include "kernels/cpu/update_order.h"
#include "kernels/dense_layout.h"
#include "kernels/device_kernels.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalTensors = c10::List<OptionalTensor>;

bool can_run(const ParameterUpdate& update) {
  const at::Tensor &param = update.param, &half_copy = update.half_copy;
  const bool slots_fit = std::ranges::all_of(update.slots, [&](const at::Tensor& slot) {
    return slot.scalar_type() == at::kFloat && same_dense_layout(slot, param);
  });
  return param.is_non_overlapping_and_dense() && has_kernel(param.scalar_type()) &&
         has_kernel(update.gradient.scalar_type()) && slots_fit &&
         (!update.step.defined() || update.step.scalar_type() == at::kFloat) &&
         (!half_copy.defined() || (is_half(half_copy.scalar_type()) && same_dense_layout(half_copy, param)));
}

/// By the kernel of the device, if it can take the update, else by the specification.
template <bool kByDevice, class Settings>
void update_with(UpdateKernel<Settings>* DeviceKernels::* kernel,
                 const ParameterUpdates& updates,
                 const Settings& settings,
                 const GradientFactors& factors) {
  if (updates.empty()) {
    return;
  }
  const auto device = updates.front().param.device();
  auto* const fast_kernel = kernels_for<kByDevice>(device).*kernel;
  auto* const reference_kernel = reference::kDeviceKernels.*kernel;
  if (fast_kernel == reference_kernel) {
    return reference_kernel(updates, settings, factors);
  }
  auto in_float32 = factors;
  if (factors.clip.defined() && factors.clip.scalar_type() == at::kDouble) {
    in_float32.clip = factors.clip.to(at::kFloat);
  }
  const auto check = [&](const at::Tensor& factor, at::ScalarType dtype) {
    TORCH_CHECK_VALUE(!factor.defined() || is_number(factor, dtype, device),
                      "mezzo: a factor of an update must be one ", dtype, " number on the parameters' device, got ",
                      factor.scalar_type(), " ", factor.sizes(), " on ", factor.device());
  };
  for (const at::Tensor& factor : {in_float32.inv_scale, in_float32.clip, in_float32.found_inf}) {
    check(factor, at::kFloat);
  }
  check(factors.lr, at::kDouble);
  ParameterUpdates fast, others;
  for (const ParameterUpdate& update : updates) {
    if (can_run(update)) {
      fast.push_back(update);
      fast.back().gradient = in_layout_of(update.param, update.gradient);
    } else {
      others.push_back(update);
    }
  }
  if (!fast.empty()) {
    fast_kernel(fast, settings, in_float32);
  }
  if (!others.empty()) {
    reference_kernel(others, settings, factors);
  }
  for (const ParameterUpdate& update : fast) {  // as in-place operations do, for autograd and caches of casts
    update.param.unsafeGetTensorImpl()->bump_version();
    if (update.half_copy.defined()) {
      update.half_copy.unsafeGetTensorImpl()->bump_version();
    }
  }
}

// An operator takes updates as lists with an entry for each parameter; steps and slots may be empty
// where an optimizer has none.
#define MEZZO_UPDATE_LISTS                                                                                       \
  "Tensor(a!)[] params, Tensor[] gradients, Tensor(b!)?[] half_copies, Tensor(c!)[] steps, Tensor(d!)[] slots, " \
  "float[] lrs, float[] weight_decays, int[] indices, int? rounding_seed"
#define MEZZO_FACTORS "Tensor? inv_scale, Tensor? clip, Tensor? found_inf, Tensor? lr"

size_t num_slots(const AdamSettings& settings) { return settings.amsgrad ? 3 : 2; }
size_t num_slots(const SgdSettings& settings) { return settings.momentum == 0 ? 0 : 1; }
size_t num_slots(const LambSettings&) { return 2; }
size_t num_slots(const MuonSettings&) { return 1; }
size_t num_slots(const RmspropSettings& settings) {
  return 1 + (settings.momentum == 0 ? 0 : 1) + (settings.centered ? 1 : 0);
}
bool counts_steps(const AdamSettings&) { return true; }
bool counts_steps(const SgdSettings& settings) { return settings.momentum != 0 && settings.dampening != 0; }
bool counts_steps(const LambSettings&) { return true; }
bool counts_steps(const MuonSettings&) { return false; }
bool counts_steps(const RmspropSettings&) { return false; }

/// @param slots  the first of all parameters, then the second of all, ...
ParameterUpdates updates_of(at::TensorList params,
                            at::TensorList gradients,
                            const OptionalTensors& half_copies,
                            at::TensorList steps,
                            at::TensorList slots,
                            at::ArrayRef<double> lrs,
                            at::ArrayRef<double> weight_decays,
                            at::IntArrayRef indices,
                            std::optional<int64_t> rounding_seed,
                            size_t num_slots,
                            bool needs_step) {
  const size_t count = params.size();
  TORCH_CHECK_VALUE(gradients.size() == count && half_copies.size() == count && lrs.size() == count &&
                        weight_decays.size() == count && indices.size() == count &&
                        (steps.empty() || steps.size() == count),
                    "mezzo: an update of ", count, " parameters needs as many gradients, half copies, learning rates, ",
                    "weight decays and indices, and as many steps or none");
  TORCH_CHECK_VALUE(slots.size() == num_slots * count && (count == 0 || !needs_step || !steps.empty()),
                    "mezzo: this update needs ", num_slots, " slots of each parameter",
                    needs_step ? " and its step" : "");
  if (count == 0) {
    return {};
  }
  for (const at::TensorList tensors : {params, gradients, steps, slots}) {
    check_same_device(tensors, params[0].device());
  }
  ParameterUpdates updates(count);
  for (size_t i = 0; i < count; ++i) {
    ParameterUpdate& update = updates[i];
    update.param = params[i];
    update.gradient = gradients[i];
    update.half_copy = half_copies.get(i).value_or(at::Tensor());
    update.step = steps.empty() ? at::Tensor() : steps[i];
    TORCH_CHECK_VALUE(!update.step.defined() || update.step.numel() == 1, "mezzo: the step of parameter ", i,
                      " must be one number, got ", update.step.sizes());
    if (update.half_copy.defined()) {
      check_same_device(update.half_copy, update.param.device());
    }
    const auto fits = [&](const at::Tensor& tensor) { return tensor.sizes() == params[i].sizes(); };
    TORCH_CHECK_VALUE(fits(update.gradient) && (!update.half_copy.defined() || fits(update.half_copy)),
                      "mezzo: parameter ", i, " has sizes ", params[i].sizes(),
                      ", but its gradient or half copy has other sizes");
    for (size_t slot = i; slot < slots.size(); slot += count) {
      TORCH_CHECK_VALUE(fits(slots[slot]), "mezzo: parameter ", i, " has sizes ", params[i].sizes(),
                        ", one of its slots has sizes ", slots[slot].sizes());
      update.slots.push_back(slots[slot]);
    }
    update.lr = lrs[i];
    update.weight_decay = weight_decays[i];
    update.index = static_cast<uint32_t>(indices[i]);
    if (rounding_seed) {
      update.rounding_seed = static_cast<uint64_t>(*rounding_seed);
    }
  }
  return updates;
}

/// The lists of some updates.
struct UpdateLists {
  explicit UpdateLists(const ParameterUpdates& updates) {
    const size_t num_slots = updates.empty() ? 0 : updates.front().slots.size();
    slots.resize(num_slots * updates.size());
    half_copies.reserve(updates.size());
    for (size_t i = 0; i < updates.size(); ++i) {
      const ParameterUpdate& update = updates[i];
      params.push_back(update.param);
      gradients.push_back(update.gradient);
      half_copies.push_back(if_defined(update.half_copy));
      if (update.step.defined()) {
        steps.push_back(update.step);
      }
      for (size_t slot = 0; slot < num_slots; ++slot) {
        slots[slot * updates.size() + i] = update.slots[slot];
      }
      lrs.push_back(update.lr);
      weight_decays.push_back(update.weight_decay);
      indices.push_back(update.index);
      if (update.rounding_seed) {
        rounding_seed = static_cast<int64_t>(*update.rounding_seed);
      }
    }
  }

  std::vector<at::Tensor> params, gradients, steps, slots;
  OptionalTensors half_copies;
  std::vector<double> lrs, weight_decays;
  std::vector<int64_t> indices;
  std::optional<int64_t> rounding_seed;
};

/// Moves the slots that ask for it near the CPU threads that update them.
void place_slots(const ParameterUpdates& updates, const std::vector<at::Tensor>& params) {
  for (size_t slot = 0; slot < updates.front().slots.size(); ++slot) {
    std::vector<at::Tensor> slots;
    for (const ParameterUpdate& update : updates) {
      slots.push_back(update.places_slots ? update.slots[slot] : at::Tensor());
    }
    cpu::place_in_update_order(params, slots);
  }
}

/// The updates that a kernel for dense gradients takes.
template <class Settings>
const ParameterUpdates& with_dense_gradients(const ParameterUpdates& updates,
                                             const Settings& /*settings*/,
                                             const GradientFactors& /*factors*/) {
  return updates;
}

/// `param` -= lr * gradient, for the rows that the gradient has.
void add_sparse(const ParameterUpdate& update, bool maximize, const GradientFactors& factors) {
  const at::Tensor& gradient = update.gradient;
  const double lr = maximize ? update.lr : -update.lr;
  const auto given = gradient._values();
  auto values = given;
  for (const at::Tensor& factor : {factors.inv_scale, factors.clip, factors.lr}) {
    values = factor.defined() ? values * factor.to(values.scalar_type()) : values;
  }
  if (factors.found_inf.defined()) {
    values = at::where(factors.found_inf != 0, at::zeros_like(values), values);
  }
  // Without a check: the indices are the gradient's.
  const bool is_plain = values.is_same(given);
  update.param.add_(is_plain ? gradient : at::_sparse_coo_tensor_unsafe(gradient._indices(), values, gradient.sizes()),
                    lr);
}

/// Makes those with sparse gradients that touch their rows alone. The gradients of other updates become dense.
ParameterUpdates with_dense_gradients(const ParameterUpdates& updates,
                                      const SgdSettings& settings,
                                      const GradientFactors& factors) {
  ParameterUpdates dense;
  for (const ParameterUpdate& update : updates) {
    const auto dtype = update.param.scalar_type();
    const bool is_plain = update.gradient.is_sparse() && settings.momentum == 0 && update.weight_decay == 0 &&
                          (dtype == at::kFloat || dtype == at::kDouble) && update.gradient.scalar_type() == dtype &&
                          !update.half_copy.defined();
    if (is_plain) {
      add_sparse(update, settings.maximize, factors);
    } else {
      dense.push_back(update);
      dense.back().gradient = update.gradient.is_sparse() ? update.gradient.to_dense() : update.gradient;
    }
  }
  return dense;
}

template <class Settings, class... Own>
Settings settings_of(Own... own) {
  return {own...};
}
template <>
MuonSettings settings_of<MuonSettings>(double momentum,
                                       bool nesterov,
                                       double a,
                                       double b,
                                       double c,
                                       double eps,
                                       int64_t ns_steps,
                                       bool matches_rms_adamw) {
  return {momentum, nesterov, {a, b, c}, eps, ns_steps, matches_rms_adamw};
}

/// The operator of an optimizer whose own settings are `Own...`. Without kernels of devices, the specification.
template <class Settings, UpdateKernel<Settings>* DeviceKernels::* kKernel, class... Own>
struct UpdateOperator {
  template <bool kByDevice>
  static void run(at::TensorList params,
                  at::TensorList gradients,
                  const OptionalTensors& half_copies,
                  at::TensorList steps,
                  at::TensorList slots,
                  at::ArrayRef<double> lrs,
                  at::ArrayRef<double> weight_decays,
                  at::IntArrayRef indices,
                  std::optional<int64_t> rounding_seed,
                  const OptionalTensor& inv_scale,
                  const OptionalTensor& clip,
                  const OptionalTensor& found_inf,
                  const OptionalTensor& lr,
                  Own... own) {
    const auto settings = settings_of<Settings>(own...);
    const auto updates = updates_of(params, gradients, half_copies, steps, slots, lrs, weight_decays, indices,
                                    rounding_seed, num_slots(settings), counts_steps(settings) || rounding_seed);
    const auto tensor = [](const OptionalTensor& factor) { return factor.value_or(at::Tensor()); };
    const GradientFactors factors{tensor(inv_scale), tensor(clip), tensor(found_inf), tensor(lr)};
    if constexpr (kKernel == nullptr) {
      for (const ParameterUpdate& update : updates) {
        TORCH_CHECK_VALUE(update.param.dim() == 2, "mezzo: Muon updates only matrices, got a parameter of sizes ",
                          update.param.sizes(), "; give it to AdamW");
      }
      reference::muon(updates, settings, factors);
    } else {
      update_with<kByDevice>(kKernel, with_dense_gradients(updates, settings, factors), settings, factors);
    }
  }

  /// @param own  the schema of `Own`
  UpdateOperator(const std::string& name, const std::string& own)
      : op(name + "(" MEZZO_UPDATE_LISTS ", " MEZZO_FACTORS ", " + own + ") -> ()",
           kernels_of_devices<&run<true>>(),
           kernel<&run<true>>(c10::DispatchKey::SparseCPU),
           kernel<&run<true>>(c10::DispatchKey::SparseCUDA),
           kernel<&run<false>>(c10::DispatchKey::CompositeExplicitAutograd),
           meta_in_place(),
           no_autograd()) {}

  void operator()(const ParameterUpdates& updates, const GradientFactors& factors, Own... own) const {
    const UpdateLists lists(updates);
    if (std::ranges::any_of(updates, &ParameterUpdate::places_slots)) {
      place_slots(updates, lists.params);
    }
    op(lists.params, lists.gradients, lists.half_copies, lists.steps, lists.slots, lists.lrs, lists.weight_decays,
       lists.indices, lists.rounding_seed, if_defined(factors.inv_scale), if_defined(factors.clip),
       if_defined(factors.found_inf), if_defined(factors.lr), own...);
  }

  Operator<std::remove_pointer_t<decltype(&run<true>)>> op;
};

const UpdateOperator<AdamSettings, &DeviceKernels::adam, double, double, double, bool, bool, bool> adam_op(
    "adam_", "float beta1, float beta2, float eps, bool amsgrad, bool decoupled, bool maximize");
const UpdateOperator<SgdSettings, &DeviceKernels::sgd, double, bool, double, bool> sgd_op(
    "sgd_", "float momentum, bool nesterov, float dampening, bool maximize");
const UpdateOperator<RmspropSettings, &DeviceKernels::rmsprop, double, double, double, bool, bool> rmsprop_op(
    "rmsprop_", "float alpha, float eps, float momentum, bool centered, bool maximize");
const UpdateOperator<LambSettings, &DeviceKernels::lamb, double, double, double, bool> lamb_op(
    "lamb_", "float beta1, float beta2, float eps, bool maximize");
const UpdateOperator<MuonSettings, nullptr, double, bool, double, double, double, double, int64_t, bool> muon_op(
    "muon_",
    "float momentum, bool nesterov, float a, float b, float c, float eps, int ns_steps, bool matches_rms_adamw");

using Summary = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <bool kByDevice>
Summary summarize(at::TensorList gradients, const OptionalTensor& scale, double max_norm) {
  TORCH_CHECK_VALUE(!gradients.empty(), "mezzo: a summary needs at least one gradient");
  const auto device = gradients.front().device();
  check_same_device(gradients, device);
  if (scale) {
    check_scale(*scale, device);
  }
  auto arrays = gradients.vec();
  if (gradients.front().is_meta()) {  // nothing is computed
    const auto is_double = [](const at::Tensor& gradient) { return gradient.scalar_type() == at::kDouble; };
    const auto of_norm = std::ranges::any_of(arrays, is_double) ? at::kDouble : at::kFloat;
    const auto number = [&](at::ScalarType dtype) { return at::empty({}, gradients.front().options().dtype(dtype)); };
    return {number(of_norm), number(at::kFloat), number(at::kDouble), number(at::kFloat), number(of_norm)};
  }
  const bool all_have_kernels =
      std::ranges::all_of(arrays, [](const at::Tensor& gradient) { return has_kernel(gradient.scalar_type()); });
  const auto* kernels = all_have_kernels ? &kernels_for<kByDevice>(device) : &reference::kDeviceKernels;
  if (kernels != &reference::kDeviceKernels) {
    std::ranges::transform(arrays, arrays.begin(), dense);
  }
  const auto summary = kernels->summarize_gradients(arrays, scale.value_or(at::Tensor()), max_norm);
  return {summary.norm, summary.found_inf, summary.sum_of_squares, summary.inv_scale, summary.clip};
}

const Operator<std::remove_pointer_t<decltype(&summarize<true>)>> summarize_op(
    "summarize_gradients(Tensor[] gradients, Tensor? scale, float max_norm) -> (Tensor norm, Tensor found_inf, "
    "Tensor sum_of_squares, Tensor inv_scale, Tensor clip)",
    kernels_of_devices<&summarize<true>>(),
    kernel<&summarize<false>>(c10::DispatchKey::CompositeExplicitAutograd),
    no_autograd());

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  adam_op(updates, factors, settings.beta1, settings.beta2, settings.eps, settings.amsgrad, settings.decoupled,
          settings.maximize);
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  sgd_op(updates, factors, settings.momentum, settings.nesterov, settings.dampening, settings.maximize);
}

void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors) {
  rmsprop_op(updates, factors, settings.alpha, settings.eps, settings.momentum, settings.centered, settings.maximize);
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  lamb_op(updates, factors, settings.beta1, settings.beta2, settings.eps, settings.maximize);
}

void muon(const ParameterUpdates& updates, const MuonSettings& settings, const GradientFactors& factors) {
  const auto [a, b, c] = settings.ns_coefficients;
  muon_op(updates, factors, settings.momentum, settings.nesterov, a, b, c, settings.eps, settings.ns_steps,
          settings.matches_rms_adamw);
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  const auto [norm, found_inf, sum_of_squares, inv_scale, clip] = summarize_op(gradients, if_defined(scale), max_norm);
  return {norm, found_inf, sum_of_squares, inv_scale, clip};
}

}  // namespace mezzo::kernels
