#pragma once

#include <cstdint>
#include <string>

#include "mezzo/text/setup/train_config.h"
#include "text/machine/machine_memory.h"
#include "text/setup/ranks.h"
#include "text/setup/run_setup.h"
#include "text/train/memory_estimate.h"

namespace mezzo::text {

/// More tokens in a micro-batch of all ranks make a step no faster per token (products of a
/// rank reach their full speed at some 500 rows, measured on 2 cores), and a training run
/// has fewer steps to learn in.
constexpr int64_t kMaxAutoTokens = 8192;

/// What `--batch-size auto` came to.
struct BatchSizeChoice {
  int64_t texts = 0;   ///< per micro-batch of a rank
  std::string reason;  ///< for the user
};

/// The largest batch whose memory, were its texts the longest of the training set, fits what
/// `memory` has available but for a reserve, and which has on average no more than kMaxAutoTokens
/// tokens with all ranks together.
///
/// @param memory  of this rank's device; ranks of one host share it.
/// @throws c10::ValueError  where not even one text fits.
BatchSizeChoice choose_batch_size(const TrainConfig& config,
                                  const RunSetup& setup,
                                  const Ranks& ranks,
                                  const MachineMemory& memory);

/// `config` with a number of shares: those of the checkpoint of a run that goes on, or one a rank. What they come to
/// where ranks are more or fewer is added to `setup.notes`.
/// @param resumed_shares  as the checkpoint has it; empty without one.
TrainConfig with_shares(TrainConfig config, RunSetup& setup, const Ranks& ranks, const std::string& resumed_shares);

/// `config` with a number for a batch size: that of the checkpoint of a run that goes on, or one
/// that all ranks have the memory for. What was chosen is added to `setup.notes`. Collective.
/// @param resumed_batch_size  as the checkpoint has it; empty without one.
TrainConfig with_batch_size(TrainConfig config,
                            RunSetup& setup,
                            const Ranks& ranks,
                            const std::string& resumed_batch_size);

}  // namespace mezzo::text
