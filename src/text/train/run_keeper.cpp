#include "text/train/run_keeper.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/models/pretrained.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/words.h"
#include "text/machine/machine_memory.h"

namespace mezzo::text {
namespace {

using Look = BestModelFile::Look;

std::unique_ptr<RunFolder> lock_folder(const TrainConfig& config, const Ranks& ranks) {
  std::unique_ptr<RunFolder> folder;
  ranks.all_or_none([&] {
    if (ranks.is_main() && !config.dry_run) {
      folder = std::make_unique<RunFolder>(config);
    }
  });
  return folder;
}

}  // namespace

RunKeeper::RunKeeper(const TrainConfig& config, const Ranks& ranks, State state)
    : ranks_(ranks), state_(std::move(state)), path_(config.output), folder_(lock_folder(config, ranks)) {}

void RunKeeper::check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps) {
  if (folder_) {
    folder_->check(resumed, identity, total_steps);
  }
}

std::string RunKeeper::open(const TrainConfig& config,
                            const RunSetup& setup,
                            const RunPlan& plan,
                            const RunIdentity& identity,
                            const std::optional<Checkpoint>& resumed) {
  if (!folder_) return "";
  output_.emplace(config, setup, plan, identity, *folder_, resumed);
  checkpoints_.emplace(path_ / "checkpoints", config.keep);
  best_model_.emplace(path_ / kWeightsFile);
  if (resumed) {
    checkpoints_->goes_on_from(*resumed);
  }
  if (resumed && resumed->best) {
    output_->best(*resumed->best);
    // Its file is missing in a new folder, and belongs to a later step if the run had gone on after the checkpoint.
    best_model_->expect(resumed->best->hash);
    try {
      best_model_->mend(Look::kThorough, [&] { return std::optional(resumed->best_weights); });
    } catch (const std::exception& error) {
      failed(resumed->step, message_of(error));
      throw;
    }
  }
  return folder_->run();
}

void RunKeeper::end_if_failed() {
  finish_saving();
  put_out([](RunOutput& output) { output.flush(); });
  if (!ranks_.any(has_failed())) return;
  Checkpoint checkpoint = state_();
  if (output_ && folder_->is_there()) {
    const bool has_best = !checkpoint.best || !best_model_is_wrong() || find_copy(*checkpoint.best);
    if (!has_best) {
      checkpoint.best.reset();
      checkpoint.last_eval_step =
          std::min(checkpoint.last_eval_step, checkpoint.step - 1);  // its model is the best of now
    }
    if (has_best ? !checkpoints_->has(checkpoint.step) : !checkpoints_->has_any()) {
      save_if_possible(checkpoint);
    }
    put_out([](RunOutput& output) { output.flush(); });  // the disk may now take records that it refused before
  }
  ranks_.all_or_none([&] {
    if (error_) {
      std::rethrow_exception(error_);
    }
  });
}

std::string RunKeeper::save_model(const ModelConfig& config, const NamedTensors& weights) {
  finish_saving(/*goes_on=*/true);
  std::string hash;
  put_out([&](RunOutput&) {
    if (error_) {
      return;  // the checkpoint to come has the best model that is there
    }
    folder_->check_is_there();
    hash = save_pretrained(config, weights, path_);
    best_model_->written(hash);
  });
  return hash;
}

void RunKeeper::mend_best_model(const std::optional<BestModel>& best, Look look) {
  if (!best || (look == Look::kQuick && saving_.is_under_way())) {  // which may read it now; the next look is soon
    return;
  }
  finish_saving();
  if (const std::string problem = best_model_->mend(look, [&] { return find_copy(*best); }); !problem.empty()) {
    output_->warn(problem + "; put back from a checkpoint");
  }
}

void RunKeeper::save() {
  finish_saving();
  if (const Checkpoint checkpoint = state_(); ranks_.is_main()) {
    warn(write(checkpoint));
  }
}

void RunKeeper::save_in_between() {
  finish_saving(/*goes_on=*/true);
  put_out([](RunOutput& output) { output.flush(); });
  Checkpoint checkpoint = state_();
  put_out([&](RunOutput&) { mend_best_model(checkpoint.best, Look::kQuick); });
  if (!ranks_.is_main() || error_) {
    return;  // a run that failed ends next
  }
  if (!has_room_for_a_copy(checkpoint)) {
    save_if_possible(checkpoint);
    return;
  }
  try {
    saving_.begin(checkpoint, [this](const Checkpoint& copy) { return write(copy); });
  } catch (const std::exception&) {  // no thread, or too little memory after all
    save_if_possible(checkpoint);
  }
}

/// The kernel gives memory that it does not have, and ends the program that uses it.
bool RunKeeper::has_room_for_a_copy(const Checkpoint& checkpoint) const {
  int64_t bytes = 0;
  for (const auto& file : checkpoint_format::kTensorFiles) {
    for (const auto& [name, tensor] : checkpoint.*file.tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  try {
    return bytes + bytes / 4 < machine_memory(at::kCPU).available;
  } catch (const std::exception&) {
    return false;  // it does not tell
  }
}

void RunKeeper::look_after_saving() {
  if (saving_.is_done()) {
    finish_saving(/*goes_on=*/true);
  }
}

void RunKeeper::finish_saving(bool goes_on) {
  if (!saving_.is_under_way()) return;
  const auto [step, error, warning] = saving_.finish();
  if (!error) {
    put_out([&, &warning = warning](RunOutput&) { warn(warning); });
    return;
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& why) {
    put_out([&, step = step](RunOutput&) { could_not_save(step, why, goes_on); });
  }
}

void RunKeeper::save_where_missing(int64_t step) {
  finish_saving();
  if (step > 0 && ranks_.any(ranks_.is_main() && !checkpoints_->has(step))) {
    save();
  }
}

void RunKeeper::end(const TrainerState& state,
                    double seconds,
                    const std::optional<Evaluation>& evaluation,
                    const std::string& split) {
  put_out([&](RunOutput& output) {
    output.end({.steps = state.step,
                .minutes = seconds / 60,
                .samples_per_second = static_cast<double>(state.samples) / state.step_seconds,
                .tokens_per_second = static_cast<double>(state.tokens) / state.step_seconds,
                .peak_memory_bytes = peak_memory_bytes(),
                .best_step = state.best ? std::optional(state.best->step) : std::nullopt},
               evaluation, split);
    if (!failed_saves_.empty()) {
      output.warn(fmt::format("trained to the end, but {} could not be saved; the last: {}",
                              counted(std::ssize(failed_saves_), "checkpoint"), failed_saves_.back()));
    }
  });
  end_if_failed();
}

void RunKeeper::failed(int64_t step, const std::string& error) noexcept {
  try {
    finish_saving();
    if (output_ && folder_->is_there()) {
      output_->failed(step, error);
    } else if (output_) {
      output_->training_done();
    }
  } catch (const std::exception&) {  // such as a closed stderr: `error` is the one to report
  }
}

std::string RunKeeper::write(const Checkpoint& checkpoint) {
  folder_->check_is_there();
  return checkpoints_->save(checkpoint, best_model_->path());
}

void RunKeeper::warn(const std::string& warning) {
  if (!warning.empty()) {
    output_->warn(warning);
  }
}

void RunKeeper::save_if_possible(const Checkpoint& checkpoint) {
  try {
    warn(write(checkpoint));
  } catch (const std::exception& error) {
    could_not_save(checkpoint.step, error, /*goes_on=*/!error_);
  }
}

void RunKeeper::could_not_save(int64_t step, const std::exception& error, bool goes_on) {
  failed_saves_.push_back(message_of(error));
  output_->warn(fmt::format("the checkpoint of step {} could not be saved{}: {}", step,
                            goes_on ? ", training goes on" : "", failed_saves_.back()));
}

std::optional<std::filesystem::path> RunKeeper::find_copy(const BestModel& best) const {
  return checkpoints_->find_weights(best.hash);
}

}  // namespace mezzo::text
