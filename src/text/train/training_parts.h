#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/metric_schedule.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "text/train/ranks.h"
#include "text/train/run_setup.h"

/// What Trainer is put together from. Each is a pure function of the settings.
namespace mezzo::text {

/// What one rank takes of some texts of the training set.
struct MicroBatch {
  std::vector<int64_t> indices;
  bool is_stand_in;  ///< there was no text left for this rank: it has another's, which is not to count
  uint32_t number;   ///< among the micro-batches of all ranks of the run; keys dropout
};

/// How texts are shared out among ranks.
enum class Balance { kRows, kTokens };

/// How many steps a run takes, and of what.
struct RunPlan {
  int64_t batches_per_epoch, steps_per_epoch, total_steps;
  LrSchedule schedule;
  Batching batching;
  int64_t batch_size;  ///< of a micro-batch of all ranks together
  int64_t grad_accumulation;
  uint64_t seed;
  int rank, ranks;
  Balance balance;

  /// Texts of all ranks in step `step`, counted from 0.
  int64_t samples(const TokenizedTexts& texts, int64_t step) const;
  /// This rank's micro-batches of that step.
  std::vector<MicroBatch> micro_batches(const TokenizedTexts& texts, int64_t step) const;
  double epochs_after(int64_t steps) const { return static_cast<double>(steps) / static_cast<double>(steps_per_epoch); }

 private:
  std::span<const std::vector<int64_t>> batches_of(const TokenizedTexts& texts, int64_t step) const;
  std::vector<int64_t> share_of(const std::vector<int64_t>& batch, const TokenizedTexts& texts) const;

  mutable int64_t cached_epoch_ = -1;  // whose batches `cached_batches_` holds
  mutable std::vector<std::vector<int64_t>> cached_batches_;
};

/// @param config  whose batch size is a number.
RunPlan plan_run(const TrainConfig& config, int64_t num_texts, const Ranks& ranks);

/// @throws c10::ValueError  where the checkpoint's weights are not those of `parameters`.
void load_weights(const Checkpoint& checkpoint, std::vector<NamedParameter>& parameters);

/// Without weight decay for biases and norms, and by layer where the learning rate decays with depth.
std::vector<ParamGroup> make_groups(const TrainConfig& config,
                                    const std::vector<NamedParameter>& parameters,
                                    ModelForTask& model);

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::vector<ParamGroup> groups);

/// Of the schedules that follow the loss on dev; nullopt for the others. --learning-rate is the largest it may reach.
std::optional<MetricSchedule> make_metric_schedule(const TrainConfig& config);

/// How the ranks' gradients are added up. Collective.
distributed::CommHook make_comm_hook(const TrainConfig& config, distributed::ProcessGroup& group);

/// Enabled in fp16 alone.
GradScalerOptions scaler_options(const TrainConfig& config, Precision precision);
GradScaler::StateDict scaler_state(const Checkpoint& checkpoint);

}  // namespace mezzo::text
