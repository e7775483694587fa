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
#include "mezzo/optim/adam.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/report/run_records.h"
#include "text/train/ranks.h"
#include "text/train/run_setup.h"
#include "text/train/weight_average.h"

namespace mezzo::text {

/// The word embeddings, if updates of the rows that no batch reads can wait (AdamW::defer_rows);
/// else undefined.
at::Tensor deferred_table(const TrainConfig& config, const ModelForTask& model, int ranks);

/// A model with all parts that update it. They are the optimizer, whole or sharded; float32 masters, if the model
/// itself is half; and the exchange of gradients, if there are several ranks. Every rank must make the same calls.
class TrainingModel {
 public:
  /// @param resumed  whose weights and optimizer state to take over; nullptr for none.
  TrainingModel(const TrainConfig& config, const RunSetup& setup, const Ranks& ranks, const Checkpoint* resumed);

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random);

  /// Before the model is used otherwise than by `forward`: makes updates of embeddings that wait.
  void catch_up() {
    if (whole_) whole_->catch_up();
  }

  /// `loss.backward()`, which exchanges gradients between ranks.
  void backward(const at::Tensor& loss) { ddp_ ? ddp_->backward(loss) : loss.backward(); }

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

  /// After a step: adds the weights to their moving average, if there is one.
  void update_average() {
    if (average_) average_->update(found_inf());
  }
  /// Exchanges the model's weights and their moving averages, if there are any: to evaluate and keep the averages, and
  /// back to train.
  void swap_average() {
    if (average_) average_->swap();
  }

  /// The float32 weights to keep, in the model's order: averages, if there are any; an adapter is merged into the base
  /// model. Collective; complete on the main rank.
  NamedTensors kept_weights();

  /// Puts the trained weights, the optimizer state, averages and the best adapter into `checkpoint`. Collective;
  /// complete on the main rank.
  void save(Checkpoint& checkpoint);
  /// From now on `save` writes the weights as they are now: the model gets other ones. Collective.
  void set_weights_aside();

  /// Whether LoRA's factors and the head are all that is trained.
  bool is_adapter() const { return is_adapter_; }
  /// Remembers the adapter as the best so far. Does nothing without LoRA.
  void keep_adapter();
  /// Puts the best adapter back into the model.
  void restore_best_adapter();
  const std::map<std::string, at::Tensor>& best_adapter() const { return best_adapter_; }

  /// The communication so far; nullopt for one rank.
  std::optional<CommunicationRecord> communication() const;

 private:
  void make_masters(const TrainConfig& config, Precision precision);
  void make_optimizer(const TrainConfig& config);
  void exchange_gradients(const TrainConfig& config);
  void load_state(const Checkpoint& checkpoint);
  NamedTensors complete(std::map<std::string, at::Tensor> by_name);

  const Ranks& ranks_;
  std::shared_ptr<ModelForTask> model_;
  bool is_sharded_;
  bool is_adapter_;
  std::map<std::string, at::Tensor> best_adapter_;
  std::vector<NamedParameter> parameters_;  // all, or the masters of trained ones
  std::optional<distributed::ShardedMasterWeights> masters_;
  std::unique_ptr<Optimizer> whole_;  // until it is sharded
  AdamW* deferring_ = nullptr;        // whole_, if updates of embeddings wait
  std::optional<distributed::ZeroRedundancyOptimizer> sharded_;
  std::optional<distributed::DistributedDataParallel<ModelForTask>> ddp_;
  std::optional<WeightAverage> average_;
  NamedTensors weights_aside_;  // of the main rank; empty until set_weights_aside()
};

}  // namespace mezzo::text
