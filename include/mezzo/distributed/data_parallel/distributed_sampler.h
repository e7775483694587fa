#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mezzo::distributed {

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
  /// The number of processes that share the data set.
  TORCH_ARG(int64_t, num_replicas) = 1;
  /// The number of this process among them.
  TORCH_ARG(int64_t, rank) = 0;
  /// false: keeps the order of the data set.
  TORCH_ARG(bool, shuffle) = true;
  /// Seed of the shuffle; the epoch is added. Must be the same on all ranks.
  TORCH_ARG(uint64_t, seed) = 0;
  /// true: drops the last indices, fewer than the number of ranks, so that all ranks get the same
  /// number.
  TORCH_ARG(bool, drop_last) = false;
  /// true: repeats some indices, so that all ranks get the same number. With false, each index
  /// occurs exactly once over all ranks, as an evaluation needs, and sizes differ by at most one.
  TORCH_ARG(bool, padding) = true;
};

/// This rank's share of a data set's indices: every `num_replicas`-th index of a permutation. All
/// ranks compute the same permutation, without communication. Not thread-safe.
///
/// It is also a sampler for `torch::data::make_data_loader`. There `reset` begins the epoch given
/// to `set_epoch`, and archives keep epoch and position.
/// @see torch.utils.data.DistributedSampler (Python), with the same indices. Differs:
///     `padding(false)`; rank and number of ranks must be given. LibTorch's
///     DistributedRandomSampler shuffles differently.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// @throws c10::ValueError  for a negative size, a rank outside [0, num_replicas), or drop_last
  ///     without padding
  explicit DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options = {});

  /// The share of this epoch: indices into the data set.
  std::vector<int64_t> indices() const;
  /// The number of indices; equal in every epoch.
  int64_t size() const;

  /// Sets the epoch, so that each epoch is shuffled differently. Call it with the same value on all
  /// ranks, before `indices` or `reset`.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  /// The epoch given to `set_epoch`.
  int64_t epoch() const { return epoch_; }

  /// Begins the epoch. `new_size` must be the data set's size, if given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The next indices, at most `batch_size`; nullopt at the end of the epoch.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Writes epoch and position.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads epoch and position.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  int64_t dataset_size_;
  DistributedSamplerOptions options_;
  int64_t epoch_ = 0;
  std::vector<int64_t> order_;  // of the epoch that `reset` began
  size_t position_ = 0;
};

}  // namespace mezzo::distributed
