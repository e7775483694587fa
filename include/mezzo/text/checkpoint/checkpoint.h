#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

/// The format of checkpoints written by this version; others are refused.
constexpr int64_t kCheckpointFormat = 4;

/// What decides a run's numbers, by name. Must agree when the run goes on. A difference in an
/// earlier group may be the cause of one in a later.
struct RunIdentity {
  using Values = std::map<std::string, std::string>;
  Values flags;  ///< settings, and the number of ranks
  Values model;  ///< fields of config.json
  Values data;   ///< hashes of labels and tokenized texts
};

/// The best model of the evaluations on dev.
struct BestModel {
  int64_t step = 0;    ///< after which it was found
  std::string metric;  ///< the name of what it is the best by, on dev
  double value = 0;    ///< of that metric; NaN where it is not defined
  double loss = 0;     ///< on dev
  std::string hash;    ///< of its model.safetensors
};

/// All that a run needs to go on to the bit: weights, optimizer state, and where it was. Random
/// numbers and the order of data are functions of the seed and of these counters, so nothing else
/// is kept.
struct Checkpoint {
  std::string run;                         ///< made up when the run began; the same in its run.json
  int64_t step = 0;                        ///< optimizer steps done, skipped ones too
  int64_t steps_taken = 0;                 ///< those that updated the weights; drives the learning-rate schedule
  int64_t samples = 0;                     ///< texts seen
  int64_t tokens = 0;                      ///< tokens seen
  double seconds = 0;                      ///< wall time so far, evaluations included
  double step_seconds = 0;                 ///< of the optimizer steps alone
  int64_t last_eval_step = 0;              ///< after which dev was last evaluated; 0: never
  std::optional<BestModel> best;           ///< none before the first evaluation on dev
  std::map<std::string, double> scaler;    ///< GradScaler's state; empty where it is off
  std::map<std::string, double> schedule;  ///< state of ReduceLROnPlateau or GreedyLR; empty for the other schedules
  RunIdentity identity;                    ///< must agree with the run that goes on
  RunIdentity::Values environment;         ///< versions, processor, threads, device that it was written with
  std::vector<std::pair<std::string, at::Tensor>> weights;    ///< float32
  std::vector<std::pair<std::string, at::Tensor>> optimizer;  ///< state by name
  std::filesystem::path best_weights;                         ///< of a checkpoint that was read: the file of `best`
};

/// Reads a checkpoint that a training run wrote; tensors are mapped, not to be written to.
/// @throws c10::ValueError  naming the file that is missing, cut short,
///   altered or of another format.
Checkpoint load_checkpoint(const std::filesystem::path& checkpoint);

/// The newest checkpoint of `folder` that is intact, if there is one. Damaged ones are passed over;
/// what was wrong with them is added to `problems`.
/// @throws c10::ValueError  where one newer than that is not damaged as far as one can see, but cannot be
///   read: the disk fails, or its format is of another version.
std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder,
                                                 std::vector<std::string>& problems);

}  // namespace mezzo::text
