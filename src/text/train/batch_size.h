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

/// More tokens in a micro-batch of all shares make a step no faster per token (products of a
/// rank reach their full speed at some 500 rows, measured on 2 cores), and a training run
/// has fewer steps to learn in.
constexpr int64_t kMaxAutoTokens = 8192;

/// What `--batch-size auto` came to.
struct BatchSizeChoice {
  int64_t texts = 0;   ///< per micro-batch of a share
  std::string reason;  ///< for the user
};

/// The largest batch whose memory, were its texts the longest of the training set, fits what
/// `memory` has available except a reserve, and which has on average no more than kMaxAutoTokens
/// tokens with all shares together.
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

/// `config` with numbers for shares, batch size and epochs, and intervals in steps. The first two are those of the run
/// that goes on, or one share a rank, and a batch that all ranks have the memory for. Adds the choice to `setup.notes`.
/// Collective.
/// @param before  the flags of the run that goes on; empty without one.
TrainConfig with_batch_size(TrainConfig config, RunSetup& setup, const Ranks& ranks, const RunIdentity::Values& before);

}  // namespace mezzo::text
