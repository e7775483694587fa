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

/// Which rank updates which parameter, by name: group after group, the largest tensors first, each
/// goes to the rank with the fewest elements so far. The partition of
/// torch.distributed.optim.ZeroRedundancyOptimizer. A pure function.
/// @throws c10::ValueError  for two parameters of one name
std::map<std::string, int> partition_parameters(const std::vector<ParamGroup>& groups, int num_ranks);

struct ZeroRedundancyOptimizerOptions {
  /// Weights are broadcast in messages of about this size.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
};

/// What the broadcasts of weights sent, since construction.
struct ZeroRedundancyStatistics {
  int64_t steps = 0;           ///< after which weights were broadcast; on the CPU, a skipped step sends none
  int64_t messages = 0;        ///< broadcasts
  int64_t bytes_sent = 0;      ///< of this rank's share, counted once, to however many ranks it went
  int64_t bytes_received = 0;  ///< of the other shares
};

/// Divides an optimizer's state among the ranks (ZeRO stage 1, Rajbhandari et al. 2020): each keeps
/// the moments of its share of the parameters alone, updates those, and gives the new weights to
/// the others. The weights are bit-identical to those of the whole optimizer on one rank; the total
/// gradient norm may round differently.
/// @code
/// ZeroRedundancyOptimizer optimizer(group, std::make_unique<mezzo::AdamW>(groups, options));
/// scaler.scale(loss).backward();   // gradients averaged over the ranks, as by DistributedDataParallel
/// scaler.step(optimizer);
/// scaler.update();
/// optimizer.zero_grad();
/// @endcode
///
/// With ShardedMasterWeights only the half-precision weights are broadcast, half the bytes, and
/// masters exist once over all ranks. Float32 weights are never sent in less: ranks would differ from the
/// owner.
///
/// The groups are copies of the wrapped optimizer's: a change of their options, such as by
/// torch::optim::StepLR, counts from the next step on. `state()` is empty: see `local().state()`.
/// Parameters cannot be added.
///
/// `step`, `check_gradients`, `step_scaled` and `save` are collective: every rank makes the same calls in
/// the same order, also where it has no gradient. They wait for the other ranks, and for a CUDA
/// device only where the process group does. What breaks on one rank ends the others' calls with an
/// error that names it. Not thread-safe. The process group must outlive it.
///
/// @see torch.distributed.optim.ZeroRedundancyOptimizer (Python). Differs: wraps an optimizer,
///     instead of making it; norm, clipping and found_inf are those of all ranks; `state_dict`
///     consolidates by itself.
class ZeroRedundancyOptimizer : public torch::optim::Optimizer, public mezzo::detail::AmpScalingOptimizer {
 public:
  /// Takes `optimizer`, made alike on every rank with all parameters and not used yet. Collective.
  /// @throws c10::Error  on all ranks, where the parameters differ between ranks, one has a half copy,
  ///     though another rank updates it, or the optimizer has state already.
  ZeroRedundancyOptimizer(ProcessGroup& group,
                          std::unique_ptr<mezzo::Optimizer> optimizer,
                          ZeroRedundancyOptimizerOptions options = {});
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// The optimizer that updates this rank's share, to look at: it has all parameters, and
  /// state of that share alone.
  const mezzo::Optimizer& local() const { return *local_; }

  /// As mezzo::Optimizer has them.
  double lr() const;
  void set_lr(double lr);
  void set_lr(at::Tensor lr) { local_->set_lr(std::move(lr)); }  ///< each rank's own
  at::Tensor lr_tensor() const override { return local_->lr_tensor(); }
  void zero_grad(bool set_to_none = true) { local_->zero_grad(set_to_none); }
  /// As mezzo::Optimizer has them, of all ranks together: the same on each.
  const at::Tensor& grad_norm() const { return local_->grad_norm(); }
  at::Tensor found_inf() const override { return local_->found_inf(); }

  at::Tensor step(LossClosure closure = nullptr) override;
  std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& scale) override;
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override;
  at::Tensor half_copy_of(const at::Tensor& parameter) const override { return local_->half_copy_of(parameter); }
  std::string name_of(const at::Tensor& parameter) const override { return local_->name_of(parameter); }
  /// Whether this rank updates no float16 parameter.
  bool allows_half_gradients() const override;

  /// For `torch::save`, which every rank calls. Rank 0's archive is that of the whole optimizer on
  /// one rank; the others' have their shares alone. Collective.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// For `torch::load`: takes its share of rank 0's archive, or of a plain optimizer's. Each rank
  /// must be given it; nothing is communicated.
  /// @throws c10::ValueError  as Optimizer's
  void load(torch::serialize::InputArchive& archive) override;

  /// The state of all ranks, as the whole optimizer would give it: complete on rank `to`,
  /// empty on the others. Collective. What other ranks had lies on the group's device; rank
  /// `to`'s own tensors are shared.
  std::map<std::string, at::Tensor> state_dict(int to = 0) const;

  /// Takes its share of a whole state, made by any number of ranks or by a plain optimizer. Each
  /// rank must be given it; nothing is communicated.
  /// @throws c10::ValueError  as Optimizer's.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

  /// All weights in the precision they are trained in: masters, where there are some, from
  /// the ranks that keep them. Complete on rank `to`, empty on the others. Collective. Rank
  /// `to`'s own tensors are shared.
  std::map<std::string, at::Tensor> weights(int to = 0);

  /// Bytes of optimizer state on this rank, without masters.
  int64_t state_bytes() const;
  /// Whether this rank updates the parameter.
  bool owns(const std::string& name) const { return owner_.at(name) == group_.rank(); }
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
