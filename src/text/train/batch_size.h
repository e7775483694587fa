#pragma once

#include <cstdint>
#include <string>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/machine/machine_memory.h"
#include "text/train/memory_estimate.h"
#include "text/train/ranks.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// Micro-batches of more tokens, all shares together, take as long per token, and a training run has fewer steps to
/// learn in. Products of a rank reach their full speed at some 500 rows, measured on 2 cores.
constexpr int64_t kMaxAutoTokens = 8192;

/// What `--batch-size auto` came to.
struct BatchSizeChoice {
  int64_t texts = 0;   ///< per micro-batch of a share
  std::string reason;  ///< for the user
};

/// The largest batch that fits the available memory except a reserve, and has on average at most kMaxAutoTokens tokens
/// with all shares together. Its memory is estimated as if its texts were the longest of the training set.
///
/// @param memory  of this rank's device; ranks of one host share it.
/// @throws c10::ValueError  if not even one text fits.
BatchSizeChoice choose_batch_size(const TrainConfig& config,
                                  const RunSetup& setup,
                                  const Ranks& ranks,
                                  const MachineMemory& memory);

/// For a resumed run, sets the shares and the batch size that were chosen at its start, if `config`
/// leaves them open. @throws c10::ValueError  if that is not a number
void keep_chosen(TrainConfig& config, const RunIdentity::Values& before);

/// `config` with numbers for shares, batch size and epochs, and intervals in steps. The first two come from the run
/// that goes on, or are one share a rank, and a batch that fits the memory of all ranks. Adds the choice to
/// `setup.notes`. Collective.
/// @param before  the flags of the run that goes on; empty without one.
TrainConfig with_batch_size(TrainConfig config, RunSetup& setup, const Ranks& ranks, const RunIdentity::Values& before);

}  // namespace mezzo::text
