#pragma once

#include "mezzo/cpp20.h"

#include <functional>
#include <optional>

#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/train/train_config.h"

namespace mezzo::text {

/// What a run came to.
struct TrainResult {
  bool finished = false;                 ///< false: stopped on request; unless it was a dry run, a checkpoint is saved
  bool paused = false;                   ///< not finished, since `pause_at` was reached
  bool saves_failed = false;             ///< a checkpoint in between could not be written
  int64_t steps = 0;                     ///< optimizer steps done
  std::optional<Evaluation> evaluation;  ///< on test, or on dev without one; none without both, or already finished
};

/// Fine-tunes a model as `config` says, and leaves in `config.output`: the best model on dev (or
/// the last, without dev rows) as a Hugging Face folder, metrics.jsonl, report.html, run.json,
/// tensorboard/ and checkpoints/. The same config gives the same weights on the same machine, also
/// when the run was stopped and resumed in between; on a CUDA device LibTorch's deterministic
/// kernels are switched on for that while it runs, with CUBLAS_WORKSPACE_CONFIG, unless set. With
/// `config.dry_run`, prints what it would do and what that takes, by trying a few steps that it
/// forgets, and leaves `config.output` as it is.
///
/// With `config.resume` "auto" a run that has finished with at least as many steps is left as it is; the result says
/// finished. The settings that a checkpoint must agree with, training, dev and test data and `calibrate` must be the
/// same.
///
/// Called on every rank of `group` with the same config, a batch is `batch_size` texts of each
/// rank, gradients are averaged over all texts, and every rank ends with the same weights. Rank 0
/// writes and prints. Several hosts resume from an `output` that all of them see.
/// @param stop_requested  asked after every step and during evaluation; once true, on any rank, a
///     checkpoint is saved and the run ends. First asked when all is read and checked, and nothing
///     written yet: until then, the process may as well be ended.
/// @param group  nullptr: one process
/// @throws c10::ValueError  for settings or files that are wrong, before anything is written;
///     c10::Error when the run fails
TrainResult train(const TrainConfig& config,
                  const std::function<bool()>& stop_requested,
                  distributed::ProcessGroup* group = nullptr);

}  // namespace mezzo::text
