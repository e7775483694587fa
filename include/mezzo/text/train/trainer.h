#pragma once

#include "mezzo/cpp20.h"

#include <functional>
#include <optional>

#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/train/train_config.h"

namespace mezzo::text {

/// The result of a run.
struct TrainResult {
  bool finished = false;                 ///< false: stopped on request, with a checkpoint unless it was a dry run
  bool paused = false;                   ///< not finished, because `pause_at` was reached
  bool saves_failed = false;             ///< an intermediate checkpoint could not be written
  int64_t steps = 0;                     ///< optimizer steps done
  std::optional<Evaluation> evaluation;  ///< on test, else on dev; nullopt without both, or if already finished
};

/// Fine-tunes a model with the settings of `config`. Leaves in `config.output` the best model on
/// dev (or the last, without dev rows) as a Hugging Face folder. Also leaves metrics.jsonl,
/// report.html, run.json, tensorboard/ and checkpoints/.
///
/// The same config gives the same weights on the same machine, also if the run was stopped and
/// resumed. On a CUDA device, it therefore enables LibTorch's deterministic kernels while it runs,
/// and sets CUBLAS_WORKSPACE_CONFIG if it is unset.
///
/// With `config.dry_run`, prints the plan and its costs, after a few steps on trial, and leaves
/// `config.output` unchanged. With `config.resume` "auto", a finished run with at least the same
/// number of steps is left unchanged, and the result has `finished`. The settings of the
/// checkpoint, training, dev and test data and `calibrate` must be equal.
///
/// With `group`, every rank calls it with the same config. A batch is `batch_size` texts of each
/// rank, gradients are averaged over all texts, and every rank ends with the same weights. Rank 0
/// writes and prints. To resume on several hosts, all hosts must see `output`.
/// @param stop_requested  Called after every step and during evaluation. When it is true on any
///     rank, a checkpoint is saved and the run ends. The first call is after all input is read and
///     checked, before any output. Until then, the process may simply be ended.
/// @param group  nullptr: one process
/// @throws c10::ValueError  for wrong settings or files, before any output
/// @throws c10::Error  if the run fails
TrainResult train(const TrainConfig& config,
                  const std::function<bool()>& stop_requested,
                  distributed::ProcessGroup* group = nullptr);

}  // namespace mezzo::text
