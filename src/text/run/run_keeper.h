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
#include "text/run/background_save.h"
#include "text/run/run_folder.h"
#include "text/run/run_output.h"
#include "text/setup/ranks.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"

namespace mezzo::text {

/// What a run keeps on the disk: its folder, records, best model and checkpoints; and what is saved
/// where writing fails. All of it belongs to the main rank. The others make the same calls, and
/// those that say so wait for each other.
class RunKeeper {
 public:
  /// The run as it is now, with all that a checkpoint holds. Collective; complete on the main rank.
  using State = std::function<Checkpoint()>;

  /// Locks the folder of the run, where there is one; a dry run has none. Collective.
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

  /// What is shown and recorded; nullptr on the other ranks.
  RunOutput* output() { return output_ ? &*output_ : nullptr; }

  /// Where work(output) fails, the ranks go on together to where they stop, so that what
  /// is in memory can be saved.
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

  /// Where it has on the main rank: saves a checkpoint, unless there is one of the step or the whole folder is gone,
  /// and throws. Records are on the disk before, where they can be: a power cut may leave the
  /// checkpoint as the newest one. Where the best model is lost, an earlier checkpoint is worth
  /// more than one without it: what comes after it is found again. Collective.
  void end_if_failed();

  /// The weights become the run's model. Returns the hash of their file; of none on the other
  /// ranks, or where the checkpoint to come is to have the best model that is there.
  std::string save_model(const ModelConfig& config, const NamedTensors& weights);

  /// Within put_out(): while a run goes on, the best weights lie in a file alone; puts it
  /// back where it is damaged.
  void mend_best_model(const std::optional<BestModel>& best, BestModelFile::Look look);
  bool best_model_is_wrong() const { return !best_model_->problem(BestModelFile::Look::kThorough).empty(); }

  /// Saves a checkpoint. Collective.
  void save();
  /// Likewise, but training goes on while it is written, and does not end because it could not be: the disk
  /// may have room again later.
  void save_in_between();
  /// Tells what came of a checkpoint in between, once it is known. To be asked at each step.
  void look_after_saving();
  /// Saves a checkpoint of the step, unless there is one: what was resumed from may lie in another folder. Collective.
  void save_where_missing(int64_t step);
  /// What went wrong with those in between.
  const std::vector<std::string>& failed_saves() const { return failed_saves_; }

  /// Writes down that the run failed, if it can.
  void failed(int64_t step, const std::string& error) noexcept;

 private:
  std::string write(const Checkpoint& checkpoint);
  void save_if_possible(const Checkpoint& checkpoint);
  bool has_room_for_a_copy(const Checkpoint& checkpoint) const;
  void finish_saving(bool goes_on = false);
  void could_not_save(int64_t step, const std::exception& error, bool goes_on);
  void warn(const std::string& warning);
  void check_folder() const;
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
  BackgroundSave saving_;  // the last, so that it ends before what it writes with
};

}  // namespace mezzo::text
