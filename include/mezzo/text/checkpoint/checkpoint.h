#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/Scalar.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/io/safetensors.h"

namespace mezzo::text {

/// The format of checkpoints that this version writes. Other formats are refused.
constexpr int64_t kCheckpointFormat = 6;

/// The values that determine a run's numbers, by name. They must agree when the run is resumed. A
/// difference in an earlier group may cause a difference in a later group.
struct RunIdentity {
  /// Values by name, as text.
  using Values = std::map<std::string, std::string>;
  Values flags;  ///< settings, and the number of ranks
  Values model;  ///< fields of config.json
  Values data;   ///< hashes of labels and tokenized texts
};

/// The best model of the evaluations on dev.
struct BestModel {
  int64_t step = 0;    ///< step of its evaluation
  std::string metric;  ///< name of the metric that it is the best by, on dev
  double value = 0;    ///< of that metric; NaN if it is not defined
  double loss = 0;     ///< on dev
  std::string hash;    ///< of its model.safetensors
};

/// The counters of a run. @see transformers.TrainerState (Python)
struct TrainerState {
  std::string run;                ///< name of the run, chosen at its start; the same in its run.json
  int64_t step = 0;               ///< optimizer steps done, skipped ones included
  int64_t steps_taken = 0;        ///< steps that updated the weights; drives the learning-rate schedule
  int64_t samples = 0;            ///< texts seen
  int64_t tokens = 0;             ///< tokens seen
  double seconds = 0;             ///< wall time so far, evaluations included
  double step_seconds = 0;        ///< wall time of the optimizer steps alone
  int64_t last_eval_step = 0;     ///< step of the last evaluation on dev; 0: no evaluation yet
  std::optional<BestModel> best;  ///< nullopt before the first evaluation on dev
};

/// The state for a bit-identical resume of a run: counters, weights and optimizer state. Random
/// numbers and the order of data are functions of the seed and the counters.
struct Checkpoint : TrainerState {
  std::map<std::string, c10::Scalar> scaler;  ///< GradScaler's state; empty if it is off
  std::map<std::string, double> schedule;     ///< state of ReduceLROnPlateau or GreedyLR; empty for the other schedules
  RunIdentity identity;                       ///< must agree with the run that resumes
  RunIdentity::Values environment;            ///< versions, processor, threads and device of the run that wrote it
  NamedTensors weights;                       ///< float32
  NamedTensors optimizer;                     ///< state by name
  NamedTensors average;                       ///< EMA of the weights; empty without `ema_decay`
  NamedTensors best_adapter;                  ///< trained weights of `best` with LoRA; empty without LoRA
  std::filesystem::path best_weights;         ///< after a load: the file of `best`
};

/// Reads a checkpoint of a training run. Its tensors are mapped: do not write to them.
/// @throws c10::ValueError  naming the file, if it is missing, truncated, altered or of another
///     format
Checkpoint load_checkpoint(const std::filesystem::path& checkpoint);

/// The newest intact checkpoint of `folder`, if there is one. Damaged checkpoints are skipped, and
/// their errors are added to `problems`.
/// @throws c10::ValueError  if a newer checkpoint cannot be read although it is not damaged: the
///     disk fails, or its format belongs to another version
std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder,
                                                 std::vector<std::string>& problems);

}  // namespace mezzo::text
