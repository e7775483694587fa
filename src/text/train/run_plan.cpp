#include "text/train/run_plan.h"

#include <ATen/ceil_div.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "mezzo/text/data/balance.h"

namespace mezzo::text {
namespace {

int64_t steps_per_epoch(const TrainConfig& config, int64_t num_texts) {
  TORCH_INTERNAL_ASSERT(config.shares > 0, "shares were not chosen");
  const int64_t batches = at::ceil_div(num_texts, config.batch_size.value() * config.shares);
  return at::ceil_div(batches, config.grad_accumulation);
}

/// Few texts need more epochs: fine-tuning takes a few hundred steps to converge (Mosbach et al. 2021; Zhang et al.
/// 2021).
double default_epochs(int64_t steps_per_epoch) {
  constexpr int64_t kEpochs = 3, kMostEpochs = 20, kLeastSteps = 300;
  return static_cast<double>(std::clamp(at::ceil_div(kLeastSteps, steps_per_epoch), kEpochs, kMostEpochs));
}

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

int64_t RunPlan::targets(const TokenizedTexts& texts, int64_t step) const {
  int64_t count = 0;
  for (const auto& batch : batches_of(texts, step)) {
    count += texts.count_targets(batch);
  }
  return std::max<int64_t>(count, 1);  // of words that have no token there may be none
}

/// By rows, every `shares`-th text, as torch's DistributedSampler deals them to ranks.
std::vector<int64_t> RunPlan::texts_of(int64_t share,
                                       const std::vector<int64_t>& batch,
                                       const TokenizedTexts& texts) const {
  std::vector<int64_t> dealt;
  if (balance == Balance::kTokens) {
    std::vector<int64_t> lengths;
    for (int64_t index : batch) {
      lengths.push_back(static_cast<int64_t>(texts.ids[index].size()));
    }
    const auto parts = balance_by_tokens(lengths, shares);
    for (int64_t place : parts[share]) {
      dealt.push_back(batch[place]);
    }
  } else {
    for (int64_t place = share; place < std::ssize(batch); place += shares) {
      dealt.push_back(batch[place]);
    }
  }
  return dealt;
}

std::vector<MicroBatch> RunPlan::micro_batches(const TokenizedTexts& texts, int64_t step) const {
  std::vector<MicroBatch> result;
  const int64_t epoch = step / steps_per_epoch;
  int64_t number = epoch * batches_per_epoch + step % steps_per_epoch * grad_accumulation;
  // Neighbours go to one rank, and the first ranks have one more. If only one rank has several shares, it adds them
  // first. Then sums of gradients in the order of ranks equal the sums with one rank per share.
  const int64_t least = shares / ranks, more = shares % ranks;
  const int64_t first = rank * least + std::min<int64_t>(rank, more), own = least + (rank < more ? 1 : 0);
  for (const auto& batch : batches_of(texts, step)) {
    for (int64_t place = 0; place < at::ceil_div<int64_t>(shares, ranks); ++place) {
      const int64_t share = std::min(first + place, shares - 1);
      auto dealt = place < own ? texts_of(share, batch, texts) : std::vector<int64_t>();
      const bool is_empty = dealt.empty();
      result.push_back({is_empty ? std::vector{batch.front()} : std::move(dealt), is_empty,
                        static_cast<uint32_t>(number * shares + share)});
    }
    ++number;
  }
  return result;
}

void choose_by_steps(TrainConfig& config, int64_t num_texts) {
  const int64_t steps = steps_per_epoch(config, num_texts);
  const StepInterval eval_every = config.eval_every.value_or(default_eval_interval(steps));
  config.epochs = config.epochs.value_or(default_epochs(steps));
  config.eval_every = StepInterval::steps(eval_every.in_steps(steps));
  config.save_every = StepInterval::steps(config.save_every.in_steps(steps));
}

RunPlan plan_run(const TrainConfig& given, int64_t num_texts, const Ranks& ranks) {
  TrainConfig config = given;
  choose_by_steps(config, num_texts);
  RunPlan plan{};
  plan.batching = parse_batching(config.batching);
  plan.shares = config.shares;
  plan.batch_size = config.batch_size.value() * plan.shares;
  plan.grad_accumulation = config.grad_accumulation;
  plan.seed = config.seed;
  plan.rank = ranks.rank();
  plan.ranks = ranks.size();
  plan.balance = config.balance == "tokens" ? Balance::kTokens : Balance::kRows;
  plan.batches_per_epoch = at::ceil_div(num_texts, plan.batch_size);
  plan.steps_per_epoch = steps_per_epoch(config, num_texts);
  plan.eval_every = config.eval_every->in_steps(plan.steps_per_epoch);
  plan.save_every = config.save_every.in_steps(plan.steps_per_epoch);
  const double steps = *config.epochs * static_cast<double>(plan.steps_per_epoch);
  plan.total_steps = config.max_steps.value_or(static_cast<int64_t>(std::ceil(steps)));
  const auto total_steps = static_cast<double>(plan.total_steps);
  LrScheduleOptions schedule;
  const double warmup_ratio = config.warmup_ratio.value_or(default_warmup_ratio(config.schedule));
  schedule.num_warmup_steps = config.warmup_steps.value_or(static_cast<int64_t>(std::ceil(warmup_ratio * total_steps)));
  schedule.num_training_steps = std::max<int64_t>(1, plan.total_steps);
  schedule.min_lr_rate = config.min_lr_ratio;
  schedule.num_cycles = config.lr_cycles;
  schedule.power = config.lr_power;
  schedule.num_decay_steps = static_cast<int64_t>(config.decay_ratio * total_steps);
  plan.schedule = get_schedule(config.schedule, schedule);
  return plan;
}

}  // namespace mezzo::text
