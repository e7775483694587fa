#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "mezzo/optim/detail/gradient_measurement.h"
#include "mezzo/optim/detail/gradient_statistics.h"
#include "mezzo/optim/named_parameter.h"
#include "mezzo/optim/optimizer_options.h"
#include "mezzo/optim/torch_state.h"

namespace mezzo {

namespace detail {
class DeferredRows;
}
struct GradientFactors;  // of src/kernels/parameter_update.h
struct ParameterUpdate;

/// Named parameters that share hyperparameters.
struct ParamGroup {
  std::vector<NamedParameter> params;       ///< leaf tensors
  std::optional<double> weight_decay = {};  ///< at least 0; nullopt: the optimizer's default
  double lr_scale = 1;                      ///< at least 0; `Optimizer::set_lr` multiplies by it
};

/// The parameters of an optimizer. Converts from groups, and from parameters as one group:
/// `{{"weight", weight}, {"bias", bias}}` or a vector. Also converts from a module, `*model`, as
/// one group of the parameters that require a gradient.
class ParamGroups {
 public:
  /// Several groups.
  ParamGroups(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {}
  /// Several groups.
  ParamGroups(std::initializer_list<ParamGroup> groups) : groups_(groups) {}
  /// One group.
  ParamGroups(std::vector<NamedParameter> parameters);
  /// One group.
  ParamGroups(std::initializer_list<NamedParameter> parameters) : ParamGroups(std::vector(parameters)) {}
  /// One group: the module's parameters that require a gradient.
  ParamGroups(const torch::nn::Module& module);

 private:
  friend class Optimizer;
  std::vector<ParamGroup> groups_;
};

/// The base of mezzo's optimizers, which replace LibTorch's. The parameter groups, their options,
/// the state and archives have LibTorch's classes. A change of a group's options takes effect at
/// the next step.
///
/// In addition to LibTorch, an optimizer unscales, clips, checks and updates in one step, and
/// decides on the device whether to skip. A step reads gradients at most twice: to check and
/// measure them, if asked, and to apply them. The step refreshes half copies and never writes to
/// gradients.
///
/// Parameters of float16 or bfloat16 have float32 moments, unlike in PyTorch. On the CPU, dense
/// float32, float16 and bfloat16 tensors are updated by kernels whose results do not depend on the
/// number of threads. All other tensors are updated by LibTorch's fused operations.
///
/// On a host with several NUMA nodes, a parameter's first step moves its moments near the CPU
/// threads that update them. Pointers to their data are invalid then.
///
/// Names of parameters are optional, and two parameters may share a name. Not thread-safe. A call
/// waits for the device only if its comment says so.
/// @see torch::optim::Optimizer
class Optimizer : public torch::optim::Optimizer, public detail::AmpScalingOptimizer {
 public:
  /// A copy would share the moments. A scaler and a scheduler identify an optimizer by its address:
  /// move it before they use it.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  /// Moves are allowed before a scaler or scheduler uses the optimizer.
  Optimizer(Optimizer&&) = default;
  /// Moves are allowed before a scaler or scheduler uses the optimizer.
  Optimizer& operator=(Optimizer&&) = default;

  /// Adds parameters to train, such as layers that were frozen before.
  /// @throws c10::ValueError  as the constructors; nothing has changed then
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// The same for a group with names.
  void add_param_group(ParamGroup group);

  /// The groups with names, half copies and `lr_scale`. Unnamed parameters have an empty name.
  std::vector<ParamGroup> named_param_groups() const;

  /// The learning rate of the first group whose `lr_scale` is not 0, divided by this `lr_scale`.
  /// Waits for the device if the learning rate is a tensor on a device.
  double lr() const;
  /// Sets the learning rate of each group to `lr` times its `lr_scale`. If the learning rate is a
  /// tensor, writes to that tensor; steps that are already queued do not see the change.
  /// @throws c10::ValueError  for a number that is negative or not finite
  void set_lr(double lr);
  /// Makes every step read the learning rate from `lr` when the step runs. So neither a device nor
  /// a captured graph waits for the value. `lr` is 0-dim, float64, on the device of a parameter. It
  /// is shared with the caller, who may change it in place between steps.
  ///
  /// Each group multiplies it by `lr_scale` in float64; the results are bit-identical to a plain
  /// number. The learning rates in the groups' options are then ignored. Parameters on other
  /// devices use a copy, made at every step. Saved states hold the value.
  /// @throws c10::ValueError  for another shape, dtype or device, for a device without float64
  ///     (MPS), and for a tensor that requires a gradient; nothing has changed then
  /// @throws c10::ValueError  on the CPU, here and at each step, for a value that is negative or
  ///     not finite. On other devices values are not checked.
  /// @see torch.optim's `lr` as a Tensor with `capturable=True` (Python). Differs: in float64;
  ///     LibTorch's fused kernels for CUDA, which mezzo runs for float64 parameters, round it to
  ///     float32.
  void set_lr(at::Tensor lr);
  /// The tensor given to `set_lr`; undefined if the learning rate is a number.
  at::Tensor lr_tensor() const override { return lr_tensor_; }

  /// As LibTorch's, also for half copies, and in recorded steps (GraphedStep). A call through
  /// `torch::optim::Optimizer&` runs LibTorch's function: the gradients of half copies stay, and
  /// the next backward adds to them.
  void zero_grad(bool set_to_none = true);

  /// Updates every parameter that has a gradient. With `max_grad_norm`, does nothing if the
  /// gradients' norm is inf or NaN. Without it, such gradients reach the weights, as in PyTorch.
  /// @param closure  if given, called first, with gradients enabled; its loss is returned
  /// @throws c10::ValueError  for an option out of its range, with the group's number
  /// @throws c10::ValueError  with the parameter's name, for a sparse gradient that the optimizer
  ///     does not support, or gradients on both a parameter and its half copy
  at::Tensor step(LossClosure closure = nullptr) override;

  /// The norm of the true gradients at the last step, before clipping: 0-dim, on the device of the
  /// first gradient, or of the loss scale. Its dtype is float32, or float64 if a gradient is float64. Measured
  /// with `max_grad_norm`, or by a scaler's check of scaled dense gradients; else undefined.
  const at::Tensor& grad_norm() const { return grad_norm_; }
  /// 1 if the last step was skipped, else 0: float32, 0-dim; undefined if nothing was checked.
  at::Tensor found_inf() const override { return found_inf_; }

  /// On a host with several NUMA nodes, moves parameters and half copies near the CPU threads that
  /// update them; else does nothing. Pointers to their data are invalid then. Do not call it for
  /// parameters in shared memory. A table of deferred rows stays. Call it once, before training and
  /// after `AdamW::defer_rows`. `mezzo train` calls it.
  void place_weights();

  /// See AmpScalingOptimizer.
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override;
  /// See AmpScalingOptimizer.
  std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& scale) override;
  /// See AmpScalingOptimizer.
  at::Tensor half_copy_of(const at::Tensor& parameter) const override;
  /// See AmpScalingOptimizer.
  std::string name_of(const at::Tensor& parameter) const override;

  /// Passes to `hook` the statistics of each `check_gradients`, and of each step without such a
  /// check. `grad_norm`, `found_inf` and clipping use its result. Optimizers of several processes
  /// that divide one model's parameters combine their statistics this way
  /// (ZeroRedundancyOptimizer). A step that neither measures gradients nor gets a `found_inf` does
  /// not call the hook.
  void register_statistics_hook(detail::GradientStatisticsHook hook) { measurement_.register_hook(std::move(hook)); }

  /// State tensors by "slot/parameter name", e.g. "exp_avg/bert.pooler.dense.bias", sharing memory
  /// with the optimizer. A parameter without a unique name is identified by its number. Parameters
  /// that never had a gradient have no state.
  std::map<std::string, at::Tensor> state_dict() const;

  /// The names of all parameters in the state, group after group.
  std::vector<std::string> state_keys() const;

  /// Loads a `state_dict`. Parameters without entries start again. Copies into the existing
  /// tensors, so that a recorded step (GraphedStep) continues with the new values.
  /// @throws c10::ValueError  for an entry that does not belong here; nothing has changed then
  void load_state_dict(const std::map<std::string, at::Tensor>& state);
  /// Checks a `state_dict` with the same errors; changes nothing.
  void check_state_dict(const std::map<std::string, at::Tensor>& state) const;

  /// The state in the layout of torch.optim's `state_dict` (Python); tensors are shared.
  TorchOptimizerState torch_state_dict() const;

  /// Loads such a state: tensors, in place, and all options of the groups. Groups keep their
  /// `lr_scale`.
  /// @throws c10::ValueError  for groups or tensors of other shapes, and for options that are out
  ///     of range or unknown to this optimizer; nothing has changed then
  void load_torch_state_dict(const TorchOptimizerState& state);

  /// Deletes the state of the `index`-th parameter.
  void drop_state(size_t index);

  /// Applies postponed updates (AdamW::defer_rows).
  virtual void catch_up() const {}

 protected:
  /// Option values by name.
  using NamedOptions = detail::NamedOptions;

  /// @param defaults  options of groups that bring none
  Optimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults, const StepOptions& options);

  /// Adds the groups of a constructor.
  void add_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  /// Adds the groups of a constructor.
  void add_groups(ParamGroups groups);

  /// The options of a group, by PyTorch's names.
  virtual NamedOptions read_options(const torch::optim::OptimizerOptions& options) const = 0;
  /// @throws c10::ValueError  for a name that the options lack
  virtual void write_option(torch::optim::OptimizerOptions& options,
                            std::string_view name,
                            const TorchOption& value) const = 0;
  /// @throws c10::ValueError  for a parameter that this optimizer cannot train
  virtual void check_parameter(const at::Tensor& parameter) const;
  /// The moments of a parameter with these options. They start at 0.
  virtual std::vector<std::string_view> slot_names(const torch::optim::OptimizerOptions& options) const = 0;
  /// A new state of a parameter.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;
  /// The tensor of one moment in a state.
  virtual at::Tensor& slot(torch::optim::OptimizerParamState& state, std::string_view name) const = 0;
  /// The count of steps in a state; nullptr if LibTorch's class has none.
  virtual int64_t* step_count(torch::optim::OptimizerParamState& state) const = 0;
  /// Whether the optimizer accepts sparse gradients.
  virtual bool takes_sparse_gradients() const { return false; }
  /// One step of parameters of one device and one set of options, without autograd. `lr` and
  /// `weight_decay` come from the updates instead.
  virtual void update(const torch::optim::OptimizerOptions& options,
                      const std::vector<ParameterUpdate>& updates,
                      const GradientFactors& factors) = 0;

  /// Whether steps go along the gradient.
  bool maximizes() const { return options_.maximize; }
  /// Whether updates of bfloat16 parameters round at random.
  bool rounds_stochastically() const { return options_.stochastic_rounding_seed.has_value(); }
  /// Of a parameter whose rows are updated when they are read; else null.
  virtual detail::DeferredRows* deferred_rows(const at::Tensor& /*parameter*/) { return nullptr; }

  /// Writes step counts and learning rate from a device into the groups and the state, before
  /// LibTorch's templates save them. Waits for the device.
  void write_device_values() const;
  /// Copies the groups and the state into `saved`, for LibTorch's templates to write.
  void copy_archived(torch::optim::Optimizer& saved) const;
  /// Writes the parts of the state that LibTorch's classes lack.
  void save_own(torch::serialize::OutputArchive& archive) const;
  /// @param loaded  an optimizer of the same parameters, filled by LibTorch's templates
  void load_from(const torch::optim::Optimizer& loaded, torch::serialize::InputArchive& archive);

 private:
  struct About {
    std::string name;
    at::Tensor half_copy;
    NormRole norm = NormRole::kUnknown;
  };
  struct StateTensors {
    at::Tensor* step = nullptr;  // nullptr: the optimizer does not count
    std::vector<at::Tensor*> slots;
  };
  struct Batch;

  template <class Add>
  void add_or_undo(const Add& add);
  void append(const ParamGroup& group);
  void check_groups();
  void check_options(const NamedOptions& options, std::string_view where) const;
  double scale_of(size_t group) const { return group < lr_scales_.size() ? lr_scales_[group] : 1.0; }
  double base_lr() const;
  std::vector<std::string_view> all_slot_names(const torch::optim::OptimizerOptions& options) const;
  int64_t* count_of(const void* parameter) const;
  TorchOptions torch_options(const torch::optim::OptimizerOptions& options) const;
  StateTensors state_tensors(const at::Tensor& parameter, const std::vector<std::string_view>& names, bool replaces);
  using StateVisitor = std::function<void(size_t index, std::string_view slot, const at::Tensor& tensor)>;
  void visit_state(const StateVisitor& visit) const;
  std::vector<Batch> collect_batches();
  void apply(const detail::MeasuredGradients& measured);

  StepOptions options_;
  at::Tensor lr_tensor_;  // in place of that of the options, if defined
  detail::GradientMeasurement measurement_;
  std::unordered_map<const void*, About> about_;       // by TensorImpl, as `state_`
  std::vector<double> lr_scales_;                      // of groups; 1 beyond the end
  size_t num_checked_ = 0;                             // parameters
  std::unordered_map<const void*, at::Tensor> steps_;  // step counts, where the kernels read and write them
  at::Tensor grad_norm_, found_inf_;
  std::unordered_set<const void*> new_states_;  // of parameters, whose moments the next step moves
};

namespace detail {

/// Calls `visit(name, value)` for the options of LibTorch's class `Options`.
template <class Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  if constexpr (requires { options.betas(); }) {
    visit("betas", options.betas());
  }
  if constexpr (requires { options.alpha(); }) {
    visit("alpha", options.alpha());
    visit("centered", options.centered());
  }
  if constexpr (requires { options.eps(); }) {
    visit("eps", options.eps());
  }
  visit("weight_decay", options.weight_decay());
  if constexpr (requires { options.amsgrad(); }) {
    visit("amsgrad", options.amsgrad());
  }
  if constexpr (requires { options.momentum(); }) {
    visit("momentum", options.momentum());
  }
  if constexpr (requires { options.dampening(); }) {
    visit("dampening", options.dampening());
  }
  if constexpr (requires { options.nesterov(); }) {
    visit("nesterov", options.nesterov());
  }
  if constexpr (requires { options.ns_steps(); }) {
    visit("ns_coefficients", options.ns_coefficients());
    visit("ns_steps", options.ns_steps());
    visit("adjust_lr_fn", options.adjust_lr_fn());
  }
}

/// Calls `visit(name, tensor)` for the moments in LibTorch's class `State`.
template <class State, class Visit>
void visit_slots(State& state, const Visit& visit) {
  if constexpr (requires { state.exp_avg(); }) {
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  if constexpr (requires { state.square_avg(); }) {
    visit("square_avg", state.square_avg());
  }
  if constexpr (requires { state.momentum_buffer(); }) {
    visit("momentum_buffer", state.momentum_buffer());
  }
  if constexpr (requires { state.grad_avg(); }) {
    visit("grad_avg", state.grad_avg());
  }
}

/// An optimizer whose groups have LibTorch's options `Torch`, and whose state is LibTorch's
/// `State`.
template <class Options, class Torch, class State>
class OptimizerOf : public Optimizer {
 public:
  /// @throws c10::ValueError  for no parameters, a parameter that is listed twice, or one that is
  ///     not a leaf
  /// @throws c10::ValueError  for a dtype other than float32, float64, float16 and bfloat16, or a
  ///     half copy of another shape or dtype
  /// @throws c10::ValueError  for an option out of its range, or stochastic rounding with a float16
  ///     parameter
  explicit OptimizerOf(std::vector<at::Tensor> parameters, const Options& options = {})
      : Optimizer(std::make_unique<Torch>(options), options.step_options()) {
    add_groups({torch::optim::OptimizerParamGroup(std::move(parameters))});
  }
  explicit OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& options = {})
      : Optimizer(std::make_unique<Torch>(options), options.step_options()) {
    add_groups(groups);
  }
  explicit OptimizerOf(ParamGroups groups, const Options& options = {})
      : Optimizer(std::make_unique<Torch>(options), options.step_options()) {
    add_groups(std::move(groups));
  }
  explicit OptimizerOf(std::initializer_list<ParamGroup> groups, const Options& options = {})
      : OptimizerOf(ParamGroups(groups), options) {}

  void save(torch::serialize::OutputArchive& archive) const override {
    Plain saved(std::vector<torch::optim::OptimizerParamGroup>(), defaults_->clone());
    copy_archived(saved);
    torch::optim::serialize<State, Torch>(archive, saved);
    save_own(archive);
  }

  void load(torch::serialize::InputArchive& archive) override {
    Plain loaded(param_groups_, defaults_->clone());
    try {
      torch::optim::serialize<State, Torch>(archive, loaded);
    } catch (const std::exception& error) {
      const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
      TORCH_CHECK_VALUE(false, detail::name_of(*this), ": the archive to load does not fit this optimizer: ",
                        of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
    }
    load_from(loaded, archive);
  }

 protected:
  NamedOptions read_options(const torch::optim::OptimizerOptions& options) const override {
    const auto* of_torch = dynamic_cast<const Torch*>(&options);
    TORCH_CHECK_VALUE(of_torch != nullptr, detail::name_of(*this),
                      ": a parameter group has options of another optimizer's class");
    NamedOptions named;
    named.reserve(6);
    visit_options(*of_torch, [&](std::string_view name, const auto& value) { named.emplace_back(name, value); });
    if constexpr (requires { Options::check(*of_torch); }) {
      Options::check(*of_torch);
    }
    return named;
  }

  void check_parameter(const at::Tensor& parameter) const override {
    Optimizer::check_parameter(parameter);
    if constexpr (requires { Options::check_parameter(*this, parameter); }) {
      Options::check_parameter(*this, parameter);
    }
  }

  void write_option(torch::optim::OptimizerOptions& options,
                    std::string_view name,
                    const TorchOption& value) const override {
    bool is_known = false;
    visit_options(static_cast<Torch&>(options), [&]<class T>(std::string_view each, T& option) {
      if (each == name) {
        option = std::get<T>(value);
        is_known = true;
      }
    });
    TORCH_CHECK_VALUE(is_known, detail::name_of(*this), " has no option ", name);
  }

  std::vector<std::string_view> slot_names(const torch::optim::OptimizerOptions& options) const override {
    std::vector<std::string_view> names;
    State state;
    visit_slots(state, [&](std::string_view name, at::Tensor& /*tensor*/) {
      if (has_slot(static_cast<const Torch&>(options), name)) {
        names.push_back(name);
      }
    });
    return names;
  }

  std::unique_ptr<torch::optim::OptimizerParamState> make_state() const override { return std::make_unique<State>(); }

  at::Tensor& slot(torch::optim::OptimizerParamState& state, std::string_view name) const override {
    at::Tensor* found = nullptr;
    visit_slots(static_cast<State&>(state), [&](std::string_view each, at::Tensor& tensor) {
      if (each == name) {
        found = &tensor;
      }
    });
    return *found;
  }

  int64_t* step_count(torch::optim::OptimizerParamState& state) const override {
    if constexpr (requires(State& of_torch) { of_torch.step(); }) {
      return &static_cast<State&>(state).step();
    } else {
      return nullptr;
    }
  }

 private:
  /// The type that LibTorch's templates write and read.
  struct Plain : torch::optim::Optimizer {
    using torch::optim::Optimizer::Optimizer;
    at::Tensor step(LossClosure /*closure*/) override { return {}; }
  };

  /// Whether a step with these options reads and writes the moment.
  static bool has_slot(const Torch& options, std::string_view name) {
    if constexpr (requires { options.amsgrad(); }) {
      return name != "max_exp_avg_sq" || options.amsgrad();
    } else {
      if constexpr (requires { options.centered(); }) {
        if (name == "grad_avg") {
          return options.centered();
        }
      }
      return name != "momentum_buffer" || options.momentum() != 0;
    }
  }
};

}  // namespace detail
}  // namespace mezzo
