#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/metric_schedule.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint.h"
#include "text/run_setup.h"

/// What Trainer is put together from. Each is a pure function of the settings.
namespace mezzo::text {

/// Some texts of the training set, and their number among the run's micro-batches, which keys dropout.
struct MicroBatch {
  std::vector<int64_t> indices;
  uint32_t number;
};

/// How many steps a run takes, and of what.
struct RunPlan {
  int64_t batches_per_epoch, steps_per_epoch, total_steps;
  LrSchedule schedule;
  Batching batching;
  int64_t batch_size, grad_accumulation;
  uint64_t seed;

  /// The micro-batches of step `step`, counted from 0.
  std::vector<MicroBatch> micro_batches(const TokenizedTexts& texts, int64_t step) const;
  double epochs_after(int64_t steps) const { return static_cast<double>(steps) / static_cast<double>(steps_per_epoch); }

 private:
  mutable int64_t cached_epoch_ = -1;  // whose batches `cached_batches_` holds
  mutable std::vector<std::vector<int64_t>> cached_batches_;
};

RunPlan plan_run(const TrainConfig& config, int64_t num_texts);

/// The settings that decide a run's numbers, and hashes of its data: what a checkpoint must agree with to go on.
std::map<std::string, std::string> result_settings(const TrainConfig& config, const RunSetup& setup);

/// The checkpoint that `config.resume` asks for.
/// @throws c10::ValueError  where it belongs to another run, naming the first setting that differs.
std::optional<Checkpoint> find_checkpoint(const TrainConfig& config,
                                          const std::map<std::string, std::string>& identity);

std::vector<NamedParameter> named_parameters(const BertForSequenceClassification& model);

/// @throws c10::ValueError  where the checkpoint's weights are not those of `parameters`.
void load_weights(const Checkpoint& checkpoint, std::vector<NamedParameter>& parameters);

/// The layer of a parameter of BERT, by its name: the embeddings are 0, pooler and classifier `num_layers + 1`.
int64_t bert_layer(const std::string& name, int64_t num_layers);

/// Groups without weight decay for biases and norms, and by layer where the learning rate decays with depth.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config,
                                          const std::vector<NamedParameter>& parameters,
                                          int64_t num_layers);

/// Of the schedules that follow the loss on dev; nullopt for the others. --learning-rate is the largest it may reach.
std::optional<MetricSchedule> make_metric_schedule(const TrainConfig& config);

/// Enabled in fp16 alone.
GradScalerOptions scaler_options(const TrainConfig& config, Precision precision);
GradScaler::StateDict scaler_state(const Checkpoint& checkpoint);

}  // namespace mezzo::text
