// torch.classes.mezzo.GradScaler and the view of an optimizer in Python that it steps.

#include "mezzo/amp/grad_scaler.h"

#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/operator.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "mezzo/optim/detail/gradient_measurement.h"

namespace mezzo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using kernels::if_defined;

/// An optimizer in Python for the time of one step: its parameters and its capabilities. `step` only notes that Python
/// is to step.
class OptimizerView : public torch::CustomClassHolder,
                      public torch::optim::Optimizer,
                      public detail::AmpScalingOptimizer {
 public:
  /// The work that the scaler leaves to the optimizer.
  enum class Kind {
    kUnscaled,   ///< nothing
    kOnDevice,   ///< the scale and the decision, as PyTorch's fused ones take them
    kMeasuring,  ///< these, with max_grad_norm: mezzo.optim
  };

  OptimizerView(std::string class_name,
                int64_t kind,
                const std::vector<std::vector<at::Tensor>>& groups,
                const std::vector<std::string>& names,
                const std::vector<OptionalTensor>& half_copies,
                double max_grad_norm,
                bool takes_sparse)
      : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), /*defaults=*/nullptr),
        class_name_(std::move(class_name)),
        kind_(static_cast<Kind>(kind)),
        takes_sparse_(takes_sparse),
        measurement_(max_grad_norm) {
    size_t index = 0;
    for (const auto& group : groups) {
      param_groups_.emplace_back(group);
      for (const at::Tensor& parameter : group) {
        const void* const key = parameter.unsafeGetTensorImpl();
        if (index < names.size()) {
          names_.emplace(key, names[index]);
        }
        if (index < half_copies.size() && half_copies[index]) {
          half_copies_.emplace(key, *half_copies[index]);
        }
        ++index;
      }
    }
  }

  bool steps_on_device() const override { return kind_ != Kind::kUnscaled; }
  std::string class_name() const override { return class_name_; }
  std::string name_of(const at::Tensor& parameter) const override {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    return found == names_.end() ? std::string() : found->second;
  }
  at::Tensor half_copy_of(const at::Tensor& parameter) const override {
    const auto found = half_copies_.find(parameter.unsafeGetTensorImpl());
    return found == half_copies_.end() ? at::Tensor() : found->second;
  }

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    return ask(kind_ == Kind::kMeasuring ? measurement_.before_step(*this) : detail::MeasuredGradients(), {}, {});
  }
  at::Tensor step_scaled(const OptionalTensor& grad_scale, const at::Tensor& found_inf) override {
    return ask(kind_ == Kind::kMeasuring ? measurement_.before_scaled_step(*this, grad_scale, found_inf)
                                         : detail::MeasuredGradients(),
               grad_scale, found_inf);
  }
  OptionalTensor check_gradients(const OptionalTensor& scale) override {
    return kind_ == Kind::kMeasuring ? measurement_.check(*this, scale, takes_sparse_) : std::nullopt;
  }
  at::Tensor found_inf() const override { return measured_.statistics.found_inf; }

  /// Whether the scaler has called step since the last time that this was asked.
  bool take_request() { return std::exchange(is_requested_, false); }
  OptionalTensor grad_scale() const { return grad_scale_; }
  OptionalTensor given_found_inf() const {
    return if_defined(measured_.statistics.found_inf.defined() ? measured_.statistics.found_inf : given_found_inf_);
  }

  using Measured = std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;
  /// norm, found_inf, inv_scale, clip
  Measured measured() const {
    return {if_defined(measured_.statistics.norm), if_defined(measured_.statistics.found_inf),
            if_defined(measured_.inv_scale), if_defined(measured_.clip)};
  }
  /// The same, for a step that no scaler of mezzo makes.
  Measured measure(const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
    measured_ = grad_scale || found_inf
                    ? measurement_.before_scaled_step(*this, grad_scale, found_inf.value_or(at::Tensor()))
                    : measurement_.before_step(*this);
    return measured();
  }

 private:
  at::Tensor ask(detail::MeasuredGradients measured, const OptionalTensor& grad_scale, const at::Tensor& found_inf) {
    measured_ = std::move(measured);
    grad_scale_ = grad_scale;
    given_found_inf_ = found_inf;
    is_requested_ = true;
    return {};
  }

  const std::string class_name_;
  const Kind kind_;
  const bool takes_sparse_;
  std::map<const void*, std::string> names_;
  std::map<const void*, at::Tensor> half_copies_;
  detail::GradientMeasurement measurement_;
  detail::MeasuredGradients measured_;
  OptionalTensor grad_scale_;
  at::Tensor given_found_inf_;
  bool is_requested_ = false;
};

struct StepResultHolder : torch::CustomClassHolder {
  explicit StepResultHolder(StepResult the_result) : result(std::move(the_result)) {}
  StepResult result;
};

struct GradScalerHolder : torch::CustomClassHolder {
  explicit GradScalerHolder(GradScalerOptions options) : scaler(std::move(options)) {}
  GradScaler scaler;
};

using Scaler = c10::intrusive_ptr<GradScalerHolder>;
using View = c10::intrusive_ptr<OptimizerView>;

/// Numbers as a Python dict.
c10::IValue state_dict(const Scaler& self) {
  c10::impl::GenericDict entries(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : self->scaler.state_dict()) {
    entries.insert(key, value);
  }
  return entries;
}

/// @param numbers  the entries of type float
/// @param integers  the entries of type int
void load_state_dict(const Scaler& self,
                     const c10::Dict<std::string, double>& numbers,
                     const c10::Dict<std::string, int64_t>& integers) {
  GradScaler::StateDict state;
  for (const auto& entry : numbers) {
    state[entry.key()] = entry.value();
  }
  for (const auto& entry : integers) {
    state[entry.key()] = entry.value();
  }
  self->scaler.load_state_dict(state);
}

Scaler make_scaler(double init_scale,
                   double growth_factor,
                   double backoff_factor,
                   int64_t growth_interval,
                   bool enabled,
                   bool static_scale,
                   double min_scale,
                   double max_scale,
                   bool allow_no_gradients,
                   int64_t hysteresis,
                   int64_t max_consecutive_skips,
                   bool reproduce_pytorch) {
  return c10::make_intrusive<GradScalerHolder>(GradScalerOptions()
                                                   .init_scale(init_scale)
                                                   .growth_factor(growth_factor)
                                                   .backoff_factor(backoff_factor)
                                                   .growth_interval(growth_interval)
                                                   .enabled(enabled)
                                                   .static_scale(static_scale)
                                                   .min_scale(min_scale)
                                                   .max_scale(max_scale)
                                                   .allow_no_gradients(allow_no_gradients)
                                                   .hysteresis(hysteresis)
                                                   .max_consecutive_skips(max_consecutive_skips)
                                                   .reproduce_pytorch(reproduce_pytorch));
}

TORCH_LIBRARY_FRAGMENT(mezzo, m) {
  m.class_<OptimizerView>("OptimizerView")
      .def(torch::init<std::string, int64_t, std::vector<std::vector<at::Tensor>>, std::vector<std::string>,
                       std::vector<OptionalTensor>, double, bool>())
      .def("take_request", &OptimizerView::take_request)
      .def("grad_scale", &OptimizerView::grad_scale)
      .def("found_inf", &OptimizerView::given_found_inf)
      .def("measured", &OptimizerView::measured)
      .def("measure", &OptimizerView::measure);

  m.class_<StepResultHolder>("StepResult")
      .def("stepped", [](const c10::intrusive_ptr<StepResultHolder>& self) { return self->result.stepped(); })
      .def("found_inf",
           [](const c10::intrusive_ptr<StepResultHolder>& self) { return if_defined(self->result.found_inf()); });

  m.class_<GradScalerHolder>("GradScaler")
      .def(torch::init(&make_scaler))
      .def("scale",
           [](const Scaler& self, const std::vector<at::Tensor>& outputs) { return self->scaler.scale(outputs); })
      .def("unscale_", [](const Scaler& self, const View& optimizer) { self->scaler.unscale_(*optimizer); })
      .def("step",
           [](const Scaler& self, const View& optimizer) {
             return c10::make_intrusive<StepResultHolder>(self->scaler.step(*optimizer));
           })
      .def("undo_step", [](const Scaler& self, const View& optimizer) { self->scaler.undo_step(*optimizer); })
      .def("update", [](const Scaler& self) { self->scaler.update(); })
      .def("set_scale", [](const Scaler& self, double new_scale) { self->scaler.update(new_scale); })
      .def("set_scale_tensor", [](const Scaler& self, const at::Tensor& new_scale) { self->scaler.update(new_scale); })
      .def("get_scale", [](const Scaler& self) { return self->scaler.get_scale(); })
      .def("get_growth_tracker", [](const Scaler& self) { return self->scaler.get_growth_tracker(); })
      .def("get_skipped_steps", [](const Scaler& self) { return self->scaler.get_skipped_steps(); })
      .def("get_growth_factor", [](const Scaler& self) { return self->scaler.get_growth_factor(); })
      .def("get_backoff_factor", [](const Scaler& self) { return self->scaler.get_backoff_factor(); })
      .def("get_growth_interval", [](const Scaler& self) { return self->scaler.get_growth_interval(); })
      .def("set_growth_factor", [](const Scaler& self, double value) { self->scaler.set_growth_factor(value); })
      .def("set_backoff_factor", [](const Scaler& self, double value) { self->scaler.set_backoff_factor(value); })
      .def("set_growth_interval", [](const Scaler& self, int64_t value) { self->scaler.set_growth_interval(value); })
      .def("state_dict", &state_dict)
      .def("load_state_dict", &load_state_dict);
}

}  // namespace
}  // namespace mezzo
