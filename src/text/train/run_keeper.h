#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "text/checkpoint/best_model_file.h"
#include "text/checkpoint/checkpoint_store.h"
#include "text/train/background_save.h"
#include "text/train/ranks.h"
#include "text/train/run_folder.h"
#include "text/train/run_output.h"
#include "text/train/run_plan.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// Saves a run's files: folder, records, best model and checkpoints. All of it belongs to the main rank. The others
/// make the same calls, and wait for each other in collective calls.
class RunKeeper {
 public:
  /// The run as it is now, with all that a checkpoint holds. Collective; complete on the main rank.
  using State = std::function<Checkpoint()>;

  /// Locks the folder of the run, if it exists; a dry run has none. Collective.
  /// @param config  must live as long as this is used.
  RunKeeper(const TrainConfig& config, const Ranks& ranks, State state);

  /// Whether the run may begin in its folder, or go on there to `total_steps`. Changes
  /// nothing. @throws c10::ValueError
  void check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps);

  /// After the check: makes and clears the folder, and begins the records. Returns the run's name.
  /// @param config, setup, plan, identity  must live as long as this is used.
  std::string open(const TrainConfig& config,
                   const RunSetup& setup,
                   const RunPlan& plan,
                   const RunIdentity& identity,
                   const std::optional<Checkpoint>& resumed);

  /// The run's output, shown and recorded; nullptr on the other ranks.
  RunOutput* output() { return output_ ? &*output_ : nullptr; }

  /// If work(output) fails, the ranks go on to the end of the step together, so that the state in memory can be saved.
  template <class Work>
  void put_out(const Work& work) {
    try {
      if (output_) {
        work(*output_);
      }
    } catch (const std::exception&) {
      error_ = error_ ? error_ : std::current_exception();
    }
  }

  /// Whether something could not be put out here.
  bool has_failed() const { return error_ != nullptr; }

  /// If something failed on the main rank: flushes the records, saves a checkpoint, and throws. Saves none if there is
  /// one of the step, or if the folder is gone. Nor if the best model is lost and an earlier checkpoint has it.
  /// Collective.
  void end_if_failed();

  /// Saves the weights as the run's model. Returns the hash of the file; "" on other ranks and after a failure.
  std::string save_model(const ModelConfig& config, const NamedTensors& weights);

  /// Within put_out(): puts back the file of the best weights, which are nowhere else, if it is damaged.
  void mend_best_model(const std::optional<BestModel>& best, BestModelFile::Look look);
  bool best_model_is_wrong() const { return !best_model_->problem(BestModelFile::Look::kThorough).empty(); }

  /// Saves a checkpoint. Collective.
  void save();
  /// Saves a checkpoint while training goes on. The run does not end if that fails: the disk may have free space again
  /// later.
  void save_in_between();
  /// Warns if a checkpoint in between could not be saved. To be called after each step.
  void look_after_saving();
  /// Saves a checkpoint of the step, unless there is one. Collective.
  void save_where_missing(int64_t step);
  /// Errors of save_in_between().
  const std::vector<std::string>& failed_saves() const { return failed_saves_; }

  /// The run has ended: writes its last record, run.json and the report, and warns of failed_saves(). Collective.
  /// @param seconds  of training
  /// @param evaluation  of the kept model on `split`; nullopt if `split` has no texts
  void end(const TrainerState& state,
           double seconds,
           const std::optional<Evaluation>& evaluation,
           const std::string& split);
  /// Writes down that the run failed, if it can.
  void failed(int64_t step, const std::string& error) noexcept;

 private:
  std::string write(const Checkpoint& checkpoint);
  void save_if_possible(const Checkpoint& checkpoint);
  bool has_room_for_a_copy(const Checkpoint& checkpoint) const;
  void finish_saving(bool goes_on = false);
  void could_not_save(int64_t step, const std::exception& error, bool goes_on);
  void warn(const std::string& warning);
  std::optional<std::filesystem::path> find_copy(const BestModel& best) const;

  const Ranks& ranks_;
  const State state_;
  const std::filesystem::path path_;
  const std::unique_ptr<RunFolder> folder_;
  std::optional<RunOutput> output_;
  std::optional<CheckpointStore> checkpoints_;
  std::optional<BestModelFile> best_model_;
  std::vector<std::string> failed_saves_;
  std::exception_ptr error_;
  BackgroundSave saving_;  // the last member, so that it ends before the members that it writes with
};

}  // namespace mezzo::text
