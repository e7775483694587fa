#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mezzo::distributed {

struct DistributedSamplerOptions {
  /// Processes that share the data set, and this one's number among them.
  TORCH_ARG(int64_t, num_replicas) = 1;
  TORCH_ARG(int64_t, rank) = 0;
  /// false: in the data set's order.
  TORCH_ARG(bool, shuffle) = true;
  /// Of the shuffle, with the epoch added. The same on all ranks.
  TORCH_ARG(uint64_t, seed) = 0;
  /// true: leaves out the last indices, fewer than there are ranks, so that
  /// all ranks get equally many.
  TORCH_ARG(bool, drop_last) = false;
  /// true: gives some indices twice, so that all ranks get equally many. false: each index occurs
  /// exactly once over all ranks, as an evaluation needs it, and ranks differ by one in size.
  TORCH_ARG(bool, padding) = true;
};

/// This rank's share of a data set's indices: every `num_replicas`-th one of a permutation that all
/// ranks make alike, without communication. Also a sampler for `torch::data::make_data_loader`,
/// where `reset` begins the epoch that `set_epoch` named; archives keep epoch and position. Not
/// thread-safe.
/// @see torch.utils.data.DistributedSampler (Python). The same indices. Differs: `padding(false)`;
///     rank and number of ranks have to be given. LibTorch's DistributedRandomSampler shuffles
///     differently.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// @throws c10::ValueError  for a negative size, a rank outside [0, num_replicas), or
  ///   drop_last without padding.
  explicit DistributedSampler(int64_t dataset_size, DistributedSamplerOptions options = {});

  /// The share of this epoch: indices into the data set.
  std::vector<int64_t> indices() const;
  /// How many those are; the same in every epoch.
  int64_t size() const;

  /// Names the epoch, so that each is shuffled anew. Call it on all ranks alike,
  /// before `indices` or `reset`.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  int64_t epoch() const { return epoch_; }

  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  int64_t dataset_size_;
  DistributedSamplerOptions options_;
  int64_t epoch_ = 0;
  std::vector<int64_t> order_;  // of the epoch that `reset` began
  size_t position_ = 0;
};

}  // namespace mezzo::distributed
