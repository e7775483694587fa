#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

/// All that a run needs to go on to the bit: weights, optimizer state, and
/// where it was. Random numbers and the order of data are functions of the seed
/// and of these counters, so nothing else is kept.
struct Checkpoint {
  int64_t step = 0;                             ///< optimizer steps done, skipped ones too
  int64_t steps_taken = 0;                      ///< those that updated the weights; drives the learning-rate schedule
  int64_t samples = 0;                          ///< texts seen
  int64_t tokens = 0;                           ///< tokens seen
  double seconds = 0;                           ///< wall time so far, evaluations included
  double step_seconds = 0;                      ///< of the optimizer steps alone
  int64_t last_eval_step = 0;                   ///< after which dev was last evaluated; 0: never
  std::optional<double> best_accuracy;          ///< of dev evaluations; its weights lie in the output folder
  int64_t best_step = 0;                        ///< after which that was; 0: never
  std::map<std::string, double> scaler;         ///< GradScaler's state; empty where it is off
  std::map<std::string, double> schedule;       ///< MetricSchedule's state; empty for the other schedules
  std::map<std::string, std::string> settings;  ///< that decide the result; must agree when the run resumes
  std::vector<std::pair<std::string, at::Tensor>> weights;    ///< float32
  std::vector<std::pair<std::string, at::Tensor>> optimizer;  ///< state by name
};

/// Writes `checkpoint` as `folder`/step-N, complete or not at all: written
/// aside, flushed to the disk, a hash of each file noted, renamed. Then removes
/// all but the newest `keep` checkpoints.
void save_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& folder, int64_t keep);

/// Reads a checkpoint written by save_checkpoint; tensors are mapped, not to be written to.
/// @throws c10::ValueError  naming the file that is missing, cut short or altered.
Checkpoint load_checkpoint(const std::filesystem::path& checkpoint);

/// The newest checkpoint of `folder` that is intact, if there is one. Damaged
/// ones are passed over; what was wrong with them is added to `problems`.
std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder,
                                                 std::vector<std::string>& problems);

}  // namespace mezzo::text
