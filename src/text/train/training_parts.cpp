#include "text/train/training_parts.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mezzo/distributed/data_parallel/balance.h"
#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"

namespace mezzo::text {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::span<const std::vector<int64_t>> RunPlan::batches_of(const TokenizedTexts& texts, int64_t step) const {
  const int64_t epoch = step / steps_per_epoch;
  if (epoch != cached_epoch_) {
    cached_batches_ = epoch_batches(texts, batch_size, batching, seed, epoch);
    cached_epoch_ = epoch;
  }
  const int64_t first = step % steps_per_epoch * grad_accumulation;
  return std::span(cached_batches_).subspan(first, std::min(grad_accumulation, batches_per_epoch - first));
}

int64_t RunPlan::samples(const TokenizedTexts& texts, int64_t step) const {
  int64_t count = 0;
  for (const auto& batch : batches_of(texts, step)) {
    count += static_cast<int64_t>(batch.size());
  }
  return count;
}

/// By rows, every `ranks`-th text, as torch's DistributedSampler deals them.
std::vector<int64_t> RunPlan::share_of(const std::vector<int64_t>& batch, const TokenizedTexts& texts) const {
  std::vector<int64_t> share;
  if (balance == Balance::kTokens) {
    std::vector<int64_t> lengths;
    for (int64_t index : batch) {
      lengths.push_back(static_cast<int64_t>(texts.ids[index].size()));
    }
    const auto parts = distributed::balance_by_tokens(lengths, ranks);
    for (int64_t place : parts[rank]) {
      share.push_back(batch[place]);
    }
  } else {
    for (size_t place = rank; place < batch.size(); place += ranks) {
      share.push_back(batch[place]);
    }
  }
  return share;
}

std::vector<MicroBatch> RunPlan::micro_batches(const TokenizedTexts& texts, int64_t step) const {
  std::vector<MicroBatch> result;
  const int64_t epoch = step / steps_per_epoch;
  int64_t number = epoch * batches_per_epoch + step % steps_per_epoch * grad_accumulation;
  for (const auto& batch : batches_of(texts, step)) {
    auto share = share_of(batch, texts);
    const bool is_empty = share.empty();
    result.push_back({is_empty ? std::vector{batch.front()} : std::move(share), is_empty,
                      static_cast<uint32_t>(number++ * ranks + rank)});
  }
  return result;
}

RunPlan plan_run(const TrainConfig& config, int64_t num_texts, const Ranks& ranks) {
  RunPlan plan{};
  plan.batching = parse_batching(config.batching);
  plan.batch_size = config.batch_size.value() * ranks.size();
  plan.grad_accumulation = config.grad_accumulation;
  plan.seed = config.seed;
  plan.rank = ranks.rank();
  plan.ranks = ranks.size();
  plan.balance = config.balance == "tokens" ? Balance::kTokens : Balance::kRows;
  plan.batches_per_epoch = ceil_div(num_texts, plan.batch_size);
  plan.steps_per_epoch = ceil_div(plan.batches_per_epoch, config.grad_accumulation);
  const double steps = config.epochs * static_cast<double>(plan.steps_per_epoch);
  plan.total_steps = config.max_steps.value_or(static_cast<int64_t>(std::ceil(steps)));
  plan.schedule = {
      .kind = parse_lr_schedule(config.schedule),
      .warmup_steps = static_cast<int64_t>(std::ceil(config.warmup_ratio * static_cast<double>(plan.total_steps))),
      .total_steps = plan.total_steps,
      .min_lr_ratio = config.min_lr_ratio,
      .num_cycles = config.lr_cycles,
      .power = config.lr_power,
      .timescale = std::nullopt,
      .warmup_lr_ratio = std::nullopt,
      .decay_steps = static_cast<int64_t>(config.decay_ratio * static_cast<double>(plan.total_steps))};
  return plan;
}

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
                                    ModelForTask& model) {
  const auto layer = [&](const NamedParameter& p) { return model.layer_of(p.name); };
  return make_param_groups(parameters, {.weight_decay = config.weight_decay,
                                        .decays = usually_decays,
                                        .layer_lr_decay = config.layer_lr_decay,
                                        .layer = layer});
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::vector<ParamGroup> groups) {
  // Without clipping the norm is measured all the same, for the records, and where it is not finite the step is
  // skipped.
  const double max_norm = config.max_grad_norm > 0 ? config.max_grad_norm : std::numeric_limits<double>::infinity();
  const auto with = [&](auto options) { return options.lr(config.learning_rate).max_grad_norm(max_norm); };
  if (config.optimizer == "adamw") return std::make_unique<AdamW>(std::move(groups), with(AdamWOptions()));
  if (config.optimizer == "adam") return std::make_unique<Adam>(std::move(groups), with(AdamOptions()));
  if (config.optimizer == "sgd") return std::make_unique<SGD>(std::move(groups), with(SGDOptions()));
  return std::make_unique<LAMB>(std::move(groups), with(LAMBOptions()));
}

std::optional<MetricSchedule> make_metric_schedule(const TrainConfig& config) {
  const auto kind = parse_lr_schedule(config.schedule);
  if (!follows_metric(kind)) {
    return std::nullopt;
  }
  auto options = kind == LrScheduleKind::kGreedy ? MetricScheduleOptions::greedy() : MetricScheduleOptions();
  options.factor(config.lr_factor.value_or(options.factor()));
  options.patience(config.lr_patience).eps(0).max_lr(config.learning_rate);
  options.min_lr(config.learning_rate * config.min_lr_ratio);
  return MetricSchedule(kind, config.learning_rate, options);
}

distributed::CommHook make_comm_hook(const TrainConfig& config, distributed::ProcessGroup& group) {
  using namespace distributed;
  if (config.gradient_compression == "fp16") return sum_wrapper(fp16_compress_hook);
  if (config.gradient_compression == "bf16") return sum_wrapper(bf16_compress_hook);
  if (config.all_reduce == "auto" && group.options().device().is_cpu()) {
    if (auto shared_memory = SharedMemoryAllReduce::create(group)) {
      return shared_memory_hook(std::move(shared_memory));
    }
  }
  return allreduce_sum_hook;
}

GradScalerOptions scaler_options(const TrainConfig& config, Precision precision) {
  return GradScalerOptions()
      .enabled(precision == Precision::kFloat16)
      .static_scale(config.loss_scale.has_value())
      .init_scale(config.loss_scale.value_or(config.init_scale))
      .growth_interval(config.growth_interval)
      .growth_factor(config.growth_factor)
      .backoff_factor(config.backoff_factor);
}

GradScaler::StateDict scaler_state(const Checkpoint& checkpoint) {
  GradScaler::StateDict state;
  for (const auto& [key, value] : checkpoint.scaler) {
    const bool is_count = key == "growth_interval" || key == "_growth_tracker";
    state[key] = is_count ? c10::Scalar(static_cast<int64_t>(value)) : c10::Scalar(value);
  }
  return state;
}

}  // namespace mezzo::text
