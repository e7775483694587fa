#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/distributed/group/process_group.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "mezzo/optim/detail/gradient_statistics.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo::distributed {

/// The rank that updates each parameter, by name. Group after group, the largest tensors first,
/// each parameter goes to the rank with the fewest elements so far. This is the partition of
/// torch.distributed.optim.ZeroRedundancyOptimizer. A pure function.
/// @throws c10::ValueError  for two parameters of one name
std::map<std::string, int> partition_parameters(const std::vector<ParamGroup>& groups, int num_ranks);

/// Options of ZeroRedundancyOptimizer.
struct ZeroRedundancyOptimizerOptions {
  /// Weights are broadcast in messages of about this size.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
};

/// Traffic of the broadcasts of weights since construction.
struct ZeroRedundancyStatistics {
  int64_t steps = 0;           ///< steps with broadcasts; on the CPU, a skipped step sends none
  int64_t messages = 0;        ///< broadcasts
  int64_t bytes_sent = 0;      ///< of this rank's share, counted once for any number of ranks
  int64_t bytes_received = 0;  ///< of the other shares
};

/// Divides an optimizer's state among the ranks (ZeRO stage 1, Rajbhandari et al. 2020). Each rank
/// keeps only the moments of its share of the parameters, updates this share, and broadcasts the
/// new weights. The weights are bit-identical to the whole optimizer on one rank; the total
/// gradient norm may round differently.
/// @code
/// ZeroRedundancyOptimizer optimizer(group, std::make_unique<mezzo::AdamW>(groups, options));
/// scaler.scale(loss).backward();   // gradients averaged over the ranks, as by DistributedDataParallel
/// scaler.step(optimizer);
/// scaler.update();
/// optimizer.zero_grad();
/// @endcode
///
/// With ShardedMasterWeights only the half-precision weights are broadcast, which halves the bytes.
/// Each master exists once over all ranks. Float32 weights are always sent in float32: otherwise
/// ranks would differ from the owner.
///
/// The groups are copies of the wrapped optimizer's: a change of their options, such as by
/// torch::optim::StepLR, takes effect at the next step. `state()` is empty: see `local().state()`.
/// Parameters cannot be added.
///
/// `step`, `check_gradients`, `step_scaled` and `save` are collective: every rank makes the same
/// calls in the same order, also without gradients. They wait for the other ranks, and for a CUDA
/// device only if the process group does. A failure on one rank ends the calls of the others with
/// an error that names it.
///
/// Not thread-safe. The process group must outlive it.
///
/// @see torch.distributed.optim.ZeroRedundancyOptimizer (Python). Differs: wraps an optimizer
///     instead of making it. Norm, clipping and found_inf cover all ranks. `state_dict`
///     consolidates by itself.
class ZeroRedundancyOptimizer : public torch::optim::Optimizer, public mezzo::detail::AmpScalingOptimizer {
 public:
  /// Takes `optimizer`, which was made equally on every rank with all parameters and is unused.
  /// Collective.
  /// @throws c10::Error  on all ranks, if the parameters differ between ranks, the optimizer has
  ///     state already, or a parameter that another rank updates has a half copy
  ZeroRedundancyOptimizer(ProcessGroup& group,
                          std::unique_ptr<mezzo::Optimizer> optimizer,
                          ZeroRedundancyOptimizerOptions options = {});
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// The optimizer that updates this rank's share, for inspection. It has all parameters, and only
  /// the state of the share.
  const mezzo::Optimizer& local() const { return *local_; }

  /// As in mezzo::Optimizer.
  double lr() const;
  /// As in mezzo::Optimizer.
  void set_lr(double lr);
  void set_lr(at::Tensor lr) { local_->set_lr(std::move(lr)); }  ///< each rank passes a separate tensor
  /// As in mezzo::Optimizer.
  at::Tensor lr_tensor() const override { return local_->lr_tensor(); }
  /// As in mezzo::Optimizer.
  void zero_grad(bool set_to_none = true) { local_->zero_grad(set_to_none); }
  /// As in mezzo::Optimizer, over all ranks: equal on each.
  const at::Tensor& grad_norm() const { return local_->grad_norm(); }
  /// As in mezzo::Optimizer, over all ranks: equal on each.
  at::Tensor found_inf() const override { return local_->found_inf(); }

  /// As in mezzo::Optimizer; collective.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// See AmpScalingOptimizer; collective.
  std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& scale) override;
  /// See AmpScalingOptimizer; collective.
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override;
  /// See AmpScalingOptimizer.
  at::Tensor half_copy_of(const at::Tensor& parameter) const override { return local_->half_copy_of(parameter); }
  /// See AmpScalingOptimizer.
  std::string name_of(const at::Tensor& parameter) const override { return local_->name_of(parameter); }
  /// Whether this rank updates no float16 parameter.
  bool allows_half_gradients() const override;

  /// For `torch::save`, which every rank calls. Rank 0's archive equals the archive of the whole
  /// optimizer on one rank; the archives of the other ranks hold their shares. Collective.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// For `torch::load`: reads its share from rank 0's archive, or from the archive of an optimizer
  /// without ranks. Each rank must read the archive; nothing is communicated.
  /// @throws c10::ValueError  as Optimizer's
  void load(torch::serialize::InputArchive& archive) override;

  /// The state of all ranks, equal to the state of the whole optimizer: complete on rank `to`,
  /// empty on the others. Collective. State of other ranks is on the group's device; the tensors of
  /// rank `to` are shared.
  std::map<std::string, at::Tensor> state_dict(int to = 0) const;

  /// Loads its share of a whole state, made by any number of ranks or by an optimizer without
  /// ranks. Each rank must pass the whole state; nothing is communicated.
  /// @throws c10::ValueError  as Optimizer's
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

  /// All weights in the precision of training: masters, if there are any, from the ranks that keep
  /// them. Complete on rank `to`, empty on the others. Collective. The tensors of rank `to` are
  /// shared.
  std::map<std::string, at::Tensor> weights(int to = 0);

  /// Bytes of optimizer state on this rank, without masters.
  int64_t state_bytes() const;
  /// Whether this rank updates the parameter.
  bool owns(const std::string& name) const { return owner_.at(name) == group_.rank(); }
  /// Traffic of the broadcasts so far.
  const ZeroRedundancyStatistics& statistics() const { return statistics_; }

 private:
  void check_alike() const;
  void check_half_copies() const;
  void plan_messages();
  mezzo::detail::GradientStatistics statistics_of_all(const mezzo::detail::GradientStatistics& own) const;
  void copy_options_to_local() const;
  void copy_options_from_local();
  void drop_state_of_others() const;
  void broadcast_parameters();
  void exchange_messages();

  struct Message;

  ProcessGroup& group_;
  std::unique_ptr<mezzo::Optimizer> local_;
  ZeroRedundancyOptimizerOptions options_;
  std::vector<ParamGroup> groups_;  // of the wrapped optimizer, with names
  std::map<std::string, int> owner_;
  std::vector<Message> messages_;  // of one step, in the order in which all ranks send them
  ZeroRedundancyStatistics statistics_;
};

}  // namespace mezzo::distributed
