#include "text/train/training_parts.h"

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"

namespace mezzo::text {
void load_weights(const Checkpoint& checkpoint, std::vector<NamedParameter>& parameters) {
  at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> saved(checkpoint.weights.begin(), checkpoint.weights.end());
  for (NamedParameter& parameter : parameters) {
    const auto weight = saved.find(parameter.name);
    TORCH_CHECK_VALUE(weight != saved.end() && weight->second.sizes() == parameter.tensor.sizes(),
                      "--resume: the checkpoint has no weight ", parameter.name, " of shape ", parameter.tensor.sizes(),
                      "; it is of another model");
    parameter.tensor.copy_(weight->second);
  }
}

std::vector<ParamGroup> make_groups(const TrainConfig& config,
                                    const std::vector<NamedParameter>& parameters,
                                    const ModelForTask& model) {
  std::vector<NamedParameter> trained;
  std::ranges::copy_if(parameters, std::back_inserter(trained),
                       [](const NamedParameter& p) { return p.tensor.requires_grad(); });
  const auto layer = [&](const NamedParameter& p) { return model.layer_of(p.name); };
  return make_param_groups(trained, {.weight_decay = config.weight_decay,
                                     .decays = usually_decays,
                                     .layer_lr_decay = config.layer_lr_decay,
                                     .layer = layer});
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::vector<ParamGroup> groups) {
  // Without clipping the norm is measured all the same, for the records, and where it is not
  // finite the step is skipped.
  const double max_norm = config.max_grad_norm > 0 ? config.max_grad_norm : std::numeric_limits<double>::infinity();
  const auto with = [&](auto options) { return options.lr(config.learning_rate.value()).max_grad_norm(max_norm); };
  const auto with_adam = [&](auto options) {
    options.betas({config.adam_beta1, config.adam_beta2}).eps(config.adam_epsilon.value_or(options.eps()));
    return with(options);
  };
  if (config.optimizer == "adamw") return std::make_unique<AdamW>(std::move(groups), with_adam(AdamWOptions()));
  if (config.optimizer == "adam") return std::make_unique<Adam>(std::move(groups), with_adam(AdamOptions()));
  if (config.optimizer == "sgd") return std::make_unique<SGD>(std::move(groups), with(SGDOptions()));
  return std::make_unique<LAMB>(std::move(groups), with_adam(LAMBOptions()));
}

std::unique_ptr<ReduceLROnPlateau> make_metric_scheduler(const TrainConfig& config) {
  if (!follows_metric(config.schedule)) {
    return nullptr;
  }
  const double peak = config.learning_rate.value();
  const auto lr = at::full({}, peak, at::kDouble);
  const auto configure = [&](ReduceLROnPlateauOptions& options) {
    options.factor = config.lr_factor.value_or(options.factor);
    options.patience = config.lr_patience;
    options.eps = 0;
    options.min_lr = peak * config.min_lr_ratio;
  };
  if (config.schedule != "greedy") {
    ReduceLROnPlateauOptions options;
    configure(options);
    return std::make_unique<ReduceLROnPlateau>(lr, options);
  }
  GreedyLROptions options;
  configure(options);
  options.max_lr = peak;
  return std::make_unique<GreedyLR>(lr, options);
}

distributed::CommHook make_comm_hook(const TrainConfig& config, distributed::ProcessGroup& group) {
  using namespace distributed;
  if (config.gradient_compression == "fp16") return sum_wrapper(fp16_compress_hook);
  if (config.gradient_compression == "bf16") return sum_wrapper(bf16_compress_hook);
  if (config.all_reduce == "auto" && group.options().device().is_cpu()) {
    if (auto shared_memory = SharedMemoryAllReduce::create(group)) {
      return shared_memory_hook(std::move(shared_memory));
    }
    if (group.rank() == 0 && group.environment().local_world_size == group.size()) {
      TORCH_WARN_ONCE(
          "the ranks are on one host but cannot share memory (which may be full, or they may be in different "
          "containers), so gradients go through sockets, which is slower. Pass --all-reduce backend to choose that "
          "without a warning.");
    }
  }
  return allreduce_sum_hook;
}

GradScalerOptions scaler_options(const TrainConfig& config, Precision precision) {
  const auto [is_fixed, scale] = config.parsed_loss_scale();
  return GradScalerOptions()
      .enabled(precision == Precision::kFloat16)
      .static_scale(is_fixed)
      .init_scale(scale)
      .growth_interval(config.growth_interval)
      .growth_factor(config.growth_factor)
      .backoff_factor(config.backoff_factor);
}

constexpr double kMostCounted = 9007199254740992.0;  // 2^53

GradScaler::StateDict scaler_state(const Checkpoint& checkpoint) {
  GradScaler::StateDict state;
  for (const auto& [key, value] : checkpoint.scaler) {
    const bool is_count = (key == "growth_interval" || key == "_growth_tracker") && value == std::trunc(value) &&
                          std::abs(value) < kMostCounted;  // the scaler refuses another
    state[key] = is_count ? c10::Scalar(static_cast<int64_t>(value)) : c10::Scalar(value);
  }
  return state;
}

}  // namespace mezzo::text
