#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/amp/master_weights.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/distributed/zero/sharded_master_weights.h"
#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/records/run_records.h"
#include "text/setup/ranks.h"
#include "text/setup/run_setup.h"
#include "text/train/weight_average.h"

namespace mezzo::text {

/// A model with all that updates it: the optimizer, whole or sharded; float32 masters, where the
/// model itself is half; and the exchange of gradients, where there are several ranks. Every rank
/// must make the same calls.
class TrainingModel {
 public:
  /// @param resumed  whose weights and optimizer state to take over; nullptr for none.
  TrainingModel(const TrainConfig& config, const RunSetup& setup, const Ranks& ranks, const Checkpoint* resumed);

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random);

  /// While it lives, backward adds to this rank's gradients only. Empty for one rank.
  std::unique_ptr<distributed::NoSyncGuard> no_sync();

  /// Whether gradients are summed outside of the model, in float32, and so have to be
  /// exchanged before they are.
  bool has_masters() const { return masters_.has_value(); }
  void accumulate_in_masters() { masters_->accumulate_gradients(); }

  /// Whole or sharded.
  torch::optim::Optimizer& optimizer() { return sharded_ ? static_cast<torch::optim::Optimizer&>(*sharded_) : *whole_; }
  /// Of the last step.
  at::Tensor found_inf() const { return sharded_ ? sharded_->found_inf() : whole_->found_inf(); }
  void set_lr(const at::Tensor& lr) { sharded_ ? sharded_->set_lr(lr) : whole_->set_lr(lr); }
  void zero_grad() { sharded_ ? sharded_->zero_grad() : whole_->zero_grad(); }
  const at::Tensor& grad_norm() const { return sharded_ ? sharded_->grad_norm() : whole_->grad_norm(); }

  /// After a step: the moving average of the weights, where there is one, takes them in.
  void update_average() {
    if (average_) average_->update(found_inf());
  }
  /// The model gets the weights to evaluate and keep, averages where there are any, or those that are trained back.
  void swap_average() {
    if (average_) average_->swap();
  }

  /// The float32 weights that are trained, in the model's order. Collective; complete on the main rank.
  std::vector<std::pair<std::string, at::Tensor>> weights();
  /// Likewise those to keep: averages, where there are any; an adapter's merged into the others', of the model as it
  /// is.
  std::vector<std::pair<std::string, at::Tensor>> kept_weights();
  /// Averages and the kept adapter included. Collective; complete on the main rank.
  std::map<std::string, at::Tensor> optimizer_state();

  /// Whether LoRA's factors and the head are all that is trained.
  bool is_adapter() const { return is_adapter_; }
  /// Of an adapter: remembers what the model has of it as the best, and puts that back.
  void keep_adapter();
  void restore_kept_adapter();
  const std::map<std::string, at::Tensor>& kept_adapter() const { return kept_; }

  /// What was exchanged so far; nullopt for one rank.
  std::optional<CommunicationRecord> communication() const;

 private:
  void make_masters(const TrainConfig& config, Precision precision);
  void make_optimizer(const TrainConfig& config);
  void exchange_gradients(const TrainConfig& config);
  void load_state(const Checkpoint& checkpoint);
  std::vector<std::pair<std::string, at::Tensor>> complete(std::map<std::string, at::Tensor> by_name);

  const Ranks& ranks_;
  std::shared_ptr<ModelForTask> model_;
  bool is_sharded_;
  bool is_adapter_;
  std::map<std::string, at::Tensor> kept_;
  std::vector<NamedParameter> parameters_;  // all, or the masters of those that are trained
  std::optional<distributed::ShardedMasterWeights> masters_;
  std::unique_ptr<Optimizer> whole_;  // until it is sharded
  std::optional<distributed::ZeroRedundancyOptimizer> sharded_;
  std::optional<distributed::DistributedDataParallel<ModelForTask>> ddp_;
  std::optional<WeightAverage> average_;
};

}  // namespace mezzo::text
