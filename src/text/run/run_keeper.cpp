#include "text/run/run_keeper.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

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
  if (!folder_) {
    return "";
  }
  output_.emplace(config, setup, plan, identity, *folder_, resumed);
  checkpoints_.emplace(path_ / "checkpoints", config.keep);
  best_model_.emplace(path_ / "model.safetensors");
  if (resumed) {
    checkpoints_->goes_on_from(*resumed);
  }
  if (resumed && resumed->best) {
    output_->best(*resumed->best);
    // Its file is not there in a new folder, and of a later step where the run had
    // gone on after the checkpoint.
    best_model_->expect(resumed->best->hash);
    best_model_->mend(Look::kThorough, [&] { return std::optional(resumed->best_weights); });
  }
  return folder_->run();
}

void RunKeeper::end_if_failed() {
  put_out([](RunOutput& output) { output.flush(); });
  if (!ranks_.any(has_failed())) {
    return;
  }
  Checkpoint checkpoint = state_();
  if (output_ && folder_->is_there()) {
    const bool has_best = !checkpoint.best || !best_model_is_wrong() || find_copy(*checkpoint.best);
    if (!has_best) {
      checkpoint.best.reset();
      checkpoint.last_eval_step =
          std::min(checkpoint.last_eval_step, checkpoint.step - 1);  // its model is the best of now
    }
    if (has_best || !checkpoints_->has_any()) {
      save_if_possible(checkpoint);
    }
  }
  ranks_.all_or_none([&] {
    if (error_) {
      std::rethrow_exception(error_);
    }
  });
}

std::string RunKeeper::save_model(const ModelConfig& config,
                                  const std::vector<std::pair<std::string, at::Tensor>>& weights) {
  std::string hash;
  put_out([&](RunOutput& output) {
    if (error_) {
      return;  // the checkpoint to come has the best model that is there
    }
    check_folder();
    hash = output.save_model(config, weights);
    best_model_->written(hash);
  });
  return hash;
}

void RunKeeper::mend_best_model(const std::optional<BestModel>& best, Look look) {
  if (!best) {
    return;
  }
  if (const std::string problem = best_model_->mend(look, [&] { return find_copy(*best); }); !problem.empty()) {
    output_->warn(problem + "; put back from a checkpoint");
  }
}

void RunKeeper::save() {
  if (const Checkpoint checkpoint = state_(); ranks_.is_main()) {
    write(checkpoint);
  }
}

void RunKeeper::save_in_between() {
  put_out([](RunOutput& output) { output.flush(); });
  if (const Checkpoint checkpoint = state_(); ranks_.is_main() && !error_) {  // else the run ends next
    save_if_possible(checkpoint);
  }
}

void RunKeeper::save_where_missing(int64_t step) {
  if (step > 0 && ranks_.any(ranks_.is_main() && !checkpoints_->has(step))) {
    save();
  }
}

void RunKeeper::failed(int64_t step, const std::string& error) noexcept {
  try {
    if (output_ && folder_->is_there()) {
      output_->failed(step, error);
    } else if (output_) {
      output_->training_done();
    }
  } catch (const std::exception&) {  // such as a closed stderr: `error` is the one to report
  }
}

void RunKeeper::write(const Checkpoint& checkpoint) {
  check_folder();
  checkpoints_->save(checkpoint, best_model_->path());
}

void RunKeeper::save_if_possible(const Checkpoint& checkpoint) {
  try {
    write(checkpoint);
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    failed_saves_.emplace_back(torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
    output_->warn(fmt::format("the checkpoint of step {} could not be saved{}: {}", checkpoint.step,
                              error_ ? "" : ", training goes on", failed_saves_.back()));
  }
}

void RunKeeper::check_folder() const {
  TORCH_CHECK(folder_->is_there(), path_.string(), ": was removed, moved or replaced while the run was going");
}

std::optional<std::filesystem::path> RunKeeper::find_copy(const BestModel& best) const {
  return checkpoints_->find_weights(best.hash);
}

}  // namespace mezzo::text
