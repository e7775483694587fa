#include "text/setup/run_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mezzo/distributed/data_parallel/balance.h"

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

int64_t RunPlan::targets(const TokenizedTexts& texts, int64_t step) const {
  int64_t count = 0;
  for (const auto& batch : batches_of(texts, step)) {
    count += texts.count_targets(batch);
  }
  return std::max<int64_t>(count, 1);  // of words that have no token there may be none
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

}  // namespace mezzo::text
