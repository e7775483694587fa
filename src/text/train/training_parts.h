#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/setup/train_config.h"

/// What Trainer is put together from. Each is a pure function of the settings.
namespace mezzo::text {

/// @throws c10::ValueError  where the checkpoint's weights are not those of `parameters`.
void load_weights(const Checkpoint& checkpoint, std::vector<NamedParameter>& parameters);

/// Without weight decay for biases and norms, and by layer where the
/// learning rate decays with depth.
std::vector<ParamGroup> make_groups(const TrainConfig& config,
                                    const std::vector<NamedParameter>& parameters,
                                    const ModelForTask& model);

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, std::vector<ParamGroup> groups);

/// Drives a learning rate of its own by the loss on dev, from --learning-rate, which is its largest
/// value; nullptr for a schedule that follows the steps.
std::unique_ptr<ReduceLROnPlateau> make_metric_scheduler(const TrainConfig& config);

/// How the ranks' gradients are added up. Collective.
distributed::CommHook make_comm_hook(const TrainConfig& config, distributed::ProcessGroup& group);

/// Enabled in fp16 alone.
GradScalerOptions scaler_options(const TrainConfig& config, Precision precision);
GradScaler::StateDict scaler_state(const Checkpoint& checkpoint);

}  // namespace mezzo::text
