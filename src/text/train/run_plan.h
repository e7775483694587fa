#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/text/data/batching.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"

namespace mezzo::text {

/// One rank's part of some texts of the training set.
struct MicroBatch {
  std::vector<int64_t> indices;
  bool is_stand_in;  ///< there was no text left for this share: it has another's, which is not to count
  uint32_t number;   ///< among the micro-batches of all shares of the run; keys dropout
};

/// How texts are dealt out to shares.
enum class Balance { kRows, kTokens };

/// How many steps a run takes, and of what.
struct RunPlan {
  int64_t batches_per_epoch, steps_per_epoch, total_steps;
  int64_t eval_every, save_every;  ///< steps; 0: never
  LrSchedule schedule;
  Batching batching;
  int64_t batch_size;  ///< of a micro-batch of all shares together
  int64_t grad_accumulation;
  uint64_t seed;
  int rank, ranks;
  int64_t shares;  ///< that a batch is dealt out in, which decide the run's numbers, and not the ranks that take them
  Balance balance;

  /// Texts of all ranks in step `step`, counted from 0.
  int64_t samples(const TokenizedTexts& texts, int64_t step) const;
  /// Targets of all ranks in that step, of which its loss is the mean; one at least.
  int64_t targets(const TokenizedTexts& texts, int64_t step) const;
  /// This rank's micro-batches of that step: as many on every rank, so that all make the same calls.
  std::vector<MicroBatch> micro_batches(const TokenizedTexts& texts, int64_t step) const;
  double epochs_after(int64_t steps) const { return static_cast<double>(steps) / static_cast<double>(steps_per_epoch); }

 private:
  std::span<const std::vector<int64_t>> batches_of(const TokenizedTexts& texts, int64_t step) const;
  std::vector<int64_t> texts_of(int64_t share, const std::vector<int64_t>& batch, const TokenizedTexts& texts) const;

  mutable int64_t cached_epoch_ = -1;  // whose batches `cached_batches_` holds
  mutable std::vector<std::vector<int64_t>> cached_batches_;
};

/// Gives the settings that depend on the steps of an epoch their values: the default of `epochs`, and the intervals in
/// steps.
/// @param config  whose batch size and shares are numbers.
void choose_by_steps(TrainConfig& config, int64_t num_texts);

/// @param config  whose batch size and shares are numbers.
RunPlan plan_run(const TrainConfig& config, int64_t num_texts, const Ranks& ranks);

}  // namespace mezzo::text
