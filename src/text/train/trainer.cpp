#include "mezzo/text/train/trainer.h"

#include <fmt/format.h>

#include <exception>

#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/machine/threads.h"
#include "text/io/words.h"
#include "text/models/lora.h"
#include "text/train/deterministic_guard.h"
#include "text/train/dry_run.h"
#include "text/train/evaluator.h"
#include "text/train/finished_run.h"
#include "text/train/run_files.h"
#include "text/train/run_folder.h"
#include "text/train/step_clock.h"
#include "text/train/step_queue.h"
#include "text/train/stop_policy.h"
#include "text/train/training_run.h"

namespace mezzo::text {
namespace {

class Trainer {
 public:
  Trainer(TrainConfig& config, const std::function<bool()>& stop_requested, distributed::ProcessGroup* group)
      : run_(config, stop_requested, group, [this] { return checkpoint(); }),
        policy_(run_.config, run_.plan, !run_.setup.dev.ids.empty()) {
    if (run_.config.dry_run) {
      return;  // steps are tried once it is known that they may fit
    }
    prepare_model();
    stop_requested();  // from here on its answer counts, before the first step
    run_.open();       // all else is in order
  }

  TrainResult run() {
    TrainResult result;
    try {
      run_.ranks.guard([&] { result = run_.config.dry_run ? try_steps() : take_steps(); });
    } catch (const std::exception& error) {
      run_.keeper.failed(run_.state.step, message_of(error));
      throw;
    }
    if (run_.keeper.output() != nullptr && result.finished) {
      run_.keeper.output()->print_summary();  // a stdout that cannot be written fails the program, not the run
    }
    return result;
  }

 private:
  void prepare_model() {
    run_.setup.model->set_gradient_checkpointing(run_.config.gradient_checkpointing);
    model_.emplace(run_.config, run_.setup, run_.ranks, run_.resumed ? &*run_.resumed : nullptr);
    queue_.emplace(run_, *model_);
    evaluator_.emplace(run_, *model_);
  }

  TrainResult take_steps() {
    started_ = saved_ = Clock::now();
    bool stop = run_.ranks.any(run_.stop_requested());
    if (!stop) {
      run_.setup.model->train();
      if (policy_.eval_is_due(run_.state) && !evaluate()) {  // it was stopped between a step and its evaluation
        run_.keeper.end_if_failed();
        stop = true;
      }
    }
    if (stop) {
      run_.keeper.save_where_missing(run_.state.step);
      return stopped();
    }
    while (!stop && !policy_.is_over(run_.state)) {
      if (may_queue()) {
        queue_->push();
        continue;
      }
      bool stop_is_asked = finish_step();
      while (stop_is_asked && !queue_->is_empty()) finish_step();
      if (queue_->is_empty()) stop = stop_is_asked || !evaluate_and_save();
      if (stop) {
        run_.keeper.end_if_failed();
        run_.keeper.save();
      }
    }
    if (stop) return stopped();
    return policy_.is_end(run_.state.step) || policy_.is_out_of_patience(run_.state) ? finish() : pause();
  }

  /// Whether to queue a further step before the results of the one before are read.
  bool may_queue() const {
    return queue_->is_empty() ||
           (queue_->may_run_ahead() && !save_is_asked_ && policy_.goes_right_on(run_.state.step + 1));
  }

  /// Reads the results of a step. Returns whether to stop.
  bool finish_step() {
    const bool save_is_due =
        run_.ranks.is_main() && run_.config.save_minutes > 0 && seconds_since(saved_) >= 60 * run_.config.save_minutes;
    StepQueue::Finished step = queue_->pop({run_.stop_requested() || run_.keeper.has_failed(), save_is_due});
    save_is_asked_ = step.requests.save;
    TrainerState& state = run_.state;
    state.step += 1;
    state.steps_taken += step.record.skipped ? 0 : 1;
    state.samples += step.record.samples;
    state.tokens += step.record.tokens;
    state.step_seconds += step.record.seconds;
    step.record.epoch = run_.plan.epochs_after(state.step);
    run_.keeper.look_after_saving();
    run_.keeper.put_out([&](RunOutput& output) {
      output.step(step.record);
      run_.keeper.mend_best_model(state.best, BestModelFile::Look::kQuick);
    });
    queue_->look_into(step);
    return step.requests.stop;
  }

  /// The work due after a step. Returns false to stop.
  bool evaluate_and_save() {
    const int64_t step = run_.state.step;
    bool save_is_due = policy_.save_is_due(step) || save_is_asked_;
    if (save_is_due && policy_.is_end(step) && !policy_.is_eval_step(step)) {
      save();  // a run that is extended does not evaluate after this step
      save_is_due = false;
    }
    if (policy_.eval_is_due(run_.state)) {
      if (!evaluate()) return false;
      save_is_due = save_is_due || (run_.plan.save_every > 0 && policy_.is_out_of_patience(run_.state));
    }
    if (save_is_due) save();
    return true;
  }

  /// Returns false to stop.
  bool evaluate() {
    const auto loss = evaluator_->evaluate_dev();
    if (!loss) return false;
    has_unsaved_evaluation_ = true;
    if (const int64_t step = run_.state.step; policy_.is_end(step) || policy_.is_eval_step(step)) {
      queue_->evaluated(*loss);  // an evaluation when the run only pauses does not call this
    }
    return true;
  }

  void save() {
    run_.keeper.save_in_between();
    has_unsaved_evaluation_ = save_is_asked_ = false;
    saved_ = Clock::now();
  }

  TrainResult stopped(bool paused = false) {
    if (run_.keeper.output() != nullptr) {
      run_.keeper.output()->stopped(run_.state.step);
    }
    return {.finished = false,
            .paused = paused,
            .saves_failed = paused && saves_failed(),
            .steps = run_.state.step,
            .evaluation = std::nullopt};
  }

  TrainResult pause() {
    run_.keeper.end_if_failed();
    has_unsaved_evaluation_ ? run_.keeper.save() : run_.keeper.save_where_missing(run_.state.step);
    return stopped(/*paused=*/true);
  }

  TrainResult finish() {
    const double train_seconds = total_seconds();
    RunKeeper& keeper = run_.keeper;
    TrainerState& state = run_.state;
    keeper.end_if_failed();
    keeper.put_out([&](RunOutput& output) {
      if (!policy_.is_end(state.step)) {
        output.note(fmt::format("step {}: {} without a better model; training ends here (--patience {})", state.step,
                                counted(run_.config.patience, "evaluation"), run_.config.patience));
      }
      output.training_done();
      if (auto communication = model_->communication()) {
        communication->step = state.step;
        output.communication(*communication);
      }
      if (const auto gradients = queue_->take_gradients()) {
        output.diagnose(*gradients);
      }
    });
    evaluator_->put_back_best();
    const bool has_test = !run_.setup.test.ids.empty();
    TrainResult result{.finished = true, .steps = state.step, .evaluation = std::nullopt};
    if (has_test || !run_.setup.dev.ids.empty()) {
      result.evaluation = evaluator_->evaluate_best();
      if (!result.evaluation) {
        keeper.end_if_failed();
        keeper.save_where_missing(state.step);  // a longer run goes on from one of before the evaluation
        return stopped();
      }
    }
    result.saves_failed = saves_failed();
    keeper.put_out([&](RunOutput&) {
      if (model_->is_adapter()) {
        save_adapter(*run_.setup.model, evaluator_->adapter(),
                     {.rank = run_.config.lora, .alpha = run_.config.lora_alpha}, run_.config.model,
                     run_.config.output / kAdapterFolder);
      }
    });
    keeper.end(state, train_seconds, result.evaluation, has_test ? "test" : "dev");
    return result;
  }

  TrainResult try_steps() {
    const auto prepare = [&] {
      prepare_model();
      run_.resumed.reset();
      run_.setup.model->train();
    };
    const bool finished = dry_run(run_, prepare, [&](int64_t step) {
      run_.state.step = step;
      queue_->push();
      return finish_step();
    });
    return {.finished = finished, .steps = 0, .evaluation = std::nullopt};
  }

  bool saves_failed() const { return run_.ranks.any(!run_.keeper.failed_saves().empty()); }
  double total_seconds() const { return run_.state.seconds + seconds_since(started_); }

  /// Collective; complete on the main rank.
  Checkpoint checkpoint() {
    evaluator_->put_back_untuned();
    Checkpoint checkpoint;
    static_cast<TrainerState&>(checkpoint) = run_.state;
    checkpoint.seconds = total_seconds();
    checkpoint.identity = run_.identity;
    checkpoint.environment = run_.environment();
    queue_->save(checkpoint);
    model_->save(checkpoint);
    return checkpoint;
  }

  const CpuHalfCompute fast_half_compute_;
  TrainingRun run_;
  const StopPolicy policy_;
  std::optional<TrainingModel> model_;
  std::optional<StepQueue> queue_;
  std::optional<Evaluator> evaluator_;
  Clock::time_point started_;
  Clock::time_point saved_;              // time of the last checkpoint, or of the start
  bool save_is_asked_ = false;           // by the clock of the main rank
  bool has_unsaved_evaluation_ = false;  // no checkpoint so far knows of the last one
};

}  // namespace

TrainResult train(const TrainConfig& given,
                  const std::function<bool()>& stop_requested,
                  distributed::ProcessGroup* group) {
  given.validate();
  const Ranks ranks(group);
  TrainConfig config = restarted(given, ranks);
  set_threads(config.threads);
  if (const auto steps = steps_of_finished_run(config, ranks)) {
    if (ranks.is_main() && !config.quiet) say_that_run_has_finished(config, *steps);
    return {.finished = true, .steps = *steps, .evaluation = std::nullopt};
  }
  const DeterministicGuard deterministic(parse_device(config.device));
  return Trainer(config, stop_requested, group).run();
}

}  // namespace mezzo::text
