#include "text/train/run_output.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "kernels/describe_device.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/report/report.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/train/run_identity.h"
#include "text/train/run_report.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json to_json_object(const ReportInput::Pairs& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) {
    object[name] = value;
  }
  return object;
}

/// Of several files an array: their names may hold spaces.
Json settings_to_json(const TrainConfig& config) {
  Json settings = to_json_object(config.settings());
  const std::pair<const char*, const std::vector<fs::path>*> lists[] = {
      {"train", &config.train}, {"dev", &config.dev}, {"test", &config.test}};
  for (const auto& [name, paths] : lists) {
    if (paths->size() > 1) {
      settings[name] = Json::array();
      for (const fs::path& path : *paths) settings[name].push_back(path.string());
    }
  }
  return settings;
}

/// "2026-11-22 23:58 to 2026-11-23 00:04 UTC", without repeating a common part.
std::string period(std::time_t begin, std::time_t end) {
  const std::string first = fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(begin));
  const std::string last = fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(end));
  const bool same_day = first.substr(0, first.find(' ')) == last.substr(0, last.find(' '));
  return first + (first == last ? "" : " to " + (same_day ? last.substr(last.find(' ') + 1) : last)) + " UTC";
}

}  // namespace

RunOutput::RunOutput(const TrainConfig& config,
                     const RunSetup& setup,
                     const RunPlan& plan,
                     const RunIdentity& identity,
                     RunFolder& folder,
                     const std::optional<Checkpoint>& resumed)
    : config_(config),
      setup_(setup),
      identity_(identity),
      total_steps_(plan.total_steps),
      has_trained_(resumed && resumed->steps_taken > 0) {
  folder.make(resumed, identity, plan.total_steps);
  run_ = folder.run();
  const fs::path metrics = config.output / "metrics.jsonl";
  const bool has_records = resumed && fs::exists(metrics);
  if (has_records) {
    const RunRecords records = read_run_records(metrics);  // if that fails, nothing has changed yet
    for (const StepRecord& record : records.steps) {
      if (record.step <= resumed->step) watch_.step(record);
    }
    for (const EvalRecord& record : records.evals) {
      if (record.step <= resumed->last_eval_step) watch_.eval(record);
    }
    std::ranges::copy_if(records.warnings, std::back_inserter(warnings_), [&](const WarningRecord& warning) {
      return warning.step > 0 && warning.step <= resumed->step;
    });
  }
  // Before any other file is made or cut: it says whose folder this is, and
  // that the run has not ended.
  const int64_t step = resumed ? resumed->step : 0;
  write_run_json("running", step);
  try {
    begin(plan, folder, resumed, has_records);
  } catch (const std::exception& error) {
    failed(step, message_of(error));
    throw;
  }
}

void RunOutput::begin(const RunPlan& plan,
                      RunFolder& folder,
                      const std::optional<Checkpoint>& resumed,
                      bool has_records) {
  const fs::path metrics = config_.output / "metrics.jsonl";
  folder.clear();
  TensorBoardWriter::Options board_options;
  if (resumed) {
    board_options.purge_step = resumed->step + 1;
  }
  if (has_records) {
    metrics_ = MetricsLog::resume(metrics, resumed->step, resumed->last_eval_step);
  } else {
    metrics_.emplace(metrics);
  }
  const fs::path board = config_.output / "tensorboard";
  fs::create_directory(board);  // and none above it: the run's own may have been taken away
  board_.emplace(board, board_options);
  setup_.tokenizer->save(config_.output, TokenizerSaveOptions()
                                             .model_max_length(*config_.max_length)
                                             .token_types(setup_.model->config().takes_token_types())
                                             .words(setup_.model->head().rows == RowsPer::kToken));
  setup_.model->config().save(config_.output / "config.json");

  for (const std::string& line : setup_.notes) {
    note(line);
  }
  note(fmt::format(
      "{} of {} in {} on {}, {}", counted(plan.total_steps, "step"),
      counted(plan.batch_size * plan.grad_accumulation, "text"), to_string(setup_.precision),
      (plan.ranks > 1 ? fmt::format("{} ranks, each on ", plan.ranks) : "") + kernels::describe_device(setup_.device),
      counted(at::get_num_threads(), "thread")));
  if (resumed) {
    note(fmt::format("resumed after step {}", resumed->step));
    const auto now = environment_of(setup_);
    if (const auto moved = describe_move(resumed->environment, {now.begin(), now.end()}); !moved.empty()) {
      note(fmt::format("warning: results may not be bit-identical to an uninterrupted run: {}", moved));
    }
    if (!has_records && config_.resume == "auto") {
      note(fmt::format("warning: {} is missing: curves and report begin after step {}", metrics.string(),
                       resumed->step));
    }
    if (!folder.left_behind().empty()) {
      note(fmt::format("checkpoints of later steps were removed: {}", fmt::join(folder.left_behind(), ", ")));
    }
  } else if (config_.resume == "auto") {
    const std::string kept = folder.kept().string();
    note(fmt::format("no checkpoint in {}, starting anew{}", (config_.output / "checkpoints").string(),
                     kept.empty() ? "" : "; the earlier files are kept in " + kept));
  }
  progress_.emplace(ProgressBar::Options{.total = plan.total_steps,
                                         .initial = resumed ? resumed->step : 0,
                                         .style = config_.quiet ? ProgressStyle::kQuiet : ProgressStyle::kAuto});
  kubeflow_ = KubeflowStatus::from_environment(resumed ? resumed->step : 0, plan.total_steps);
}

void RunOutput::step(const StepRecord& record) {
  if (!record.skipped) {
    tell_of_repeats();
    has_trained_ = true;
  }
  metrics_->append(record);
  board_->add_scalar("train/loss", record.loss, record.step);
  board_->add_scalar("train/lr", record.lr, record.step);
  board_->add_scalar("train/grad_norm", record.grad_norm, record.step);
  board_->add_scalar("train/loss_scale", record.loss_scale, record.step);
  board_->add_scalar("train/samples_per_second", static_cast<double>(record.samples) / record.seconds, record.step);

  const auto smooth = [](double& average, double value) { average += (average == 0 ? 1 : 0.1) * (value - average); };
  smooth(smoothed_rate_, static_cast<double>(record.samples) / record.seconds);
  if (std::isfinite(record.loss)) smooth(smoothed_loss_, record.loss);
  std::string text = fmt::format("loss {}", fixed(std::isfinite(record.loss) ? smoothed_loss_ : record.loss, 3));
  if (best_) {
    text += fmt::format("  best {}", fixed(std::isnan(best_->value) ? best_->loss : best_->value, 3));
  }
  text += fmt::format("  epoch {:.1f}  lr {:.2g}", record.epoch, record.lr);
  std::string less = fmt::format("{:.1f} samples/s", smoothed_rate_);
  if (setup_.precision == Precision::kFloat16) {
    less += fmt::format("  scale {:g}", record.loss_scale);
  }
  if (record.skipped) {
    less += "  skipped";
  }
  progress_->update(record.step, text, less);
  if (const auto warning = watch_.step(record)) tell(*warning);
  if (!kubeflow_) return;
  kubeflow_->metric("loss", record.loss);
  kubeflow_->metric("learning_rate", record.lr);
  kubeflow_->metric("grad_norm", record.grad_norm);
  kubeflow_->metric("epoch", record.epoch);
  kubeflow_->step(record.step);
  if (const std::string problem = kubeflow_->take_problem(); !problem.empty()) warn("warning: " + problem);
}

void RunOutput::eval(const EvalRecord& record) {
  metrics_->append(record);
  const std::string tag = (record.is_final ? "final_" : "") + record.split;  // a curve has no point for the final one
  board_->add_scalar(tag + "/loss", record.loss, record.step);
  std::string metrics;
  for (size_t i = 0; i < record.metrics.size(); ++i) {
    const auto& [name, value] = record.metrics[i];
    board_->add_scalar(tag + "/" + name, value, record.step);
    metrics += fmt::format(", {} {}", setup_.task->metrics()[i].title, fixed(value, 4));
    if (kubeflow_) kubeflow_->metric(record.split + "_" + name, value);
  }
  if (kubeflow_) kubeflow_->metric(record.split + "_loss", record.loss);
  const std::string of = fmt::format("{}step {}: {} loss {}", record.is_final ? "model of " : "", record.step,
                                     record.split, fixed(record.loss, 4));
  note(std::isfinite(record.loss) ? of + metrics
                                  : of + (record.split == "dev" ? "; such a model is never kept as the best" : ""));
  if (const auto warning = watch_.eval(record)) tell(*warning);
}

void RunOutput::tell(const WarningRecord& warning) {
  if (std::ranges::find(warnings_, warning.kind, &WarningRecord::kind) != warnings_.end()) return;
  metrics_->append(warning);
  warnings_.push_back(warning);
  note("warning: " + warning.text);
}

void RunOutput::best(const BestModel& model) { best_ = model; }

void RunOutput::diagnose(const DiagnoseRecord& record) {
  metrics_->append(record);
  if (const auto last = findings_.find(record.kind); last != findings_.end() && last->second.take_in(record)) {
    return;
  }
  if (record.kind != "gradients") {
    findings_.insert_or_assign(record.kind, Finding(record));
  }
  note(fmt::format("diagnosis of step {}, loss scale {:g}:", record.step, record.loss_scale));
  std::istringstream lines(record.text);
  for (std::string line; std::getline(lines, line);) {
    note("  " + line);
  }
}

void RunOutput::tell_of_repeats() {
  if (const auto found = findings_.find("overflow"); found != findings_.end() && found->second.steps() > 1) {
    const Finding& skips = found->second;
    note(fmt::format("{} skipped for the same reason, up to step {} with loss scale {:g}",
                     counted(skips.steps() - 1, "more step"), skips.last_step, skips.last_scale));
  }
  findings_.clear();
}

void RunOutput::communication(const CommunicationRecord& record) {
  metrics_->append(record);
  const double steps = static_cast<double>(std::max<int64_t>(record.steps, 1));
  const auto megabytes = [&](int64_t bytes) { return static_cast<double>(bytes) / 1e6 / steps; };
  std::string text = record.gradient_bytes > 0
                         ? fmt::format("{:.1f} MB of gradients a step in {:.0f} buckets",
                                       megabytes(record.gradient_bytes), static_cast<double>(record.buckets) / steps)
                         : "gradients through shared memory";
  if (record.weight_bytes > 0) {
    text += fmt::format(", {:.1f} MB of weights", megabytes(record.weight_bytes));
  }
  if (record.seconds > 0) {
    text += fmt::format("; {:.0f} ms a step, {:.0f} % of it while backward computed", 1000 * record.seconds / steps,
                        100 * (1 - record.exposed_seconds / record.seconds));
  }
  note(fmt::format("{}: {}", counted(record.ranks, "rank"), text));
}

void RunOutput::training_done() {
  tell_of_repeats();
  if (progress_) {
    progress_->finish();
    progress_.reset();
  }
}

void RunOutput::stopped(int64_t step) {
  training_done();
  note(fmt::format("stopped after step {}; go on with --resume auto", step));
  write_ending("stopped", step,
               fmt::format("This run was stopped after step {} of {}; the same command with --resume auto resumes it.",
                           step, total_steps_));
}

void RunOutput::failed(int64_t step, const std::string& error) {
  training_done();
  write_ending("failed", step, fmt::format("This run failed after step {} of {}: {}", step, total_steps_, error),
               error);
}

void RunOutput::write_ending(const std::string& status,
                             int64_t step,
                             const std::string& notice,
                             const std::string& error) {
  const auto attempt = [&](const char* file, const auto& write) {
    try {
      write();
    } catch (const std::exception& failure) {
      note(fmt::format("{} is not up to date: {}", file, message_of(failure)));
    }
  };
  attempt("report.html", [&] { write_report(notice, /*evaluation=*/std::nullopt, /*evaluated=*/""); });
  attempt("run.json", [&] { write_run_json(status, step, error); });
}

void RunOutput::end(const EndRecord& record, const std::optional<Evaluation>& evaluation, const std::string& split) {
  for (const WarningRecord& warning : watch_.end(record.best_step)) tell(warning);
  metrics_->append(record);
  const std::string evaluated = split + ", " + kept_model(record.steps);
  const std::string notice =
      has_trained_ ? ""
                   : fmt::format(
                         "Nothing was learned: {} was skipped, because gradients were inf or NaN. The weights have not "
                         "changed{}.",
                         record.steps == 1 ? "its step" : fmt::format("each of its {} steps", record.steps),
                         config_.diagnose ? "" : "; --diagnose shows where inf and NaN begin");
  if (!has_trained_) {
    warn("warning: " + notice);
  }
  const bool has_report = evaluation && !evaluation->report.empty();
  write_report(notice, evaluation,
               has_report ? fmt::format("{}, model of step {}", split, best_ ? best_->step : record.steps) : "");
  write_run_json("finished", record.steps);
  if (kubeflow_) kubeflow_->end();
  summary_ = has_report ? fmt::format("{}:\n{}\n", evaluated, evaluation->report) : "";
  summary_ += fmt::format(
      "{}, {:.1f} samples/s, {:.0f} tokens/s, {:.2f} GB at most\nmodel and report.html in {}\n"
      "next: mezzo predict --model {} --text '…', or mezzo serve --model {}\n",
      duration_in_words(60 * record.minutes), record.samples_per_second, record.tokens_per_second,
      static_cast<double>(record.peak_memory_bytes) / 1e9, config_.output.string(),
      shell_quoted(config_.output.string()), shell_quoted(config_.output.string()));
}

void RunOutput::print_summary() const {
  if (!config_.quiet) {
    write_stdout(summary_);
    flush_stdout();
  }
}

void RunOutput::note(const std::string& line) {
  if (!config_.quiet) {
    warn(line);
  }
}

void RunOutput::warn(const std::string& line) {
  if (progress_ && !config_.quiet) {
    progress_->print_line(line);
  } else {
    std::fputs((line + '\n').c_str(), stderr);  // a stderr that cannot be written must not end the run
  }
}

std::string RunOutput::kept_model(int64_t last_step) const {
  if (!best_) {
    return fmt::format("model of the last step, {}", last_step);
  }
  const bool by_loss = std::isnan(best_->value);
  return fmt::format("model of step {}, the best on dev with {} {:.4f}", best_->step,
                     by_loss ? "loss" : setup_.task->metrics().front().title, by_loss ? best_->loss : best_->value);
}

void RunOutput::write_report(const std::string& notice,
                             const std::optional<Evaluation>& evaluation,
                             const std::string& evaluated) const {
  RunRecords records = read_run_records(config_.output / "metrics.jsonl");
  ReportInput input = report_input(config_, setup_, evaluation);
  input.when = period(started_, std::time(nullptr));
  input.notice = notice;
  input.evaluated = evaluated;
  input.steps = std::move(records.steps);
  input.evals = std::move(records.evals);
  input.diagnoses = std::move(records.diagnoses);
  input.warnings = warnings_;
  input.end = records.end;
  if (best_) input.best_step = best_->step;
  write_file_atomically(config_.output / "report.html", render_report(input));
}

void RunOutput::write_run_json(const std::string& status, int64_t steps, const std::string& error) const {
  Json json = {
      {"finished", status == "finished"},
      {"run", run_},
      {"launch", launch_id()},
      {"status", status},
      {"steps", steps},
      {"total_steps", total_steps_},
      {"metric", setup_.task->metrics().front().name},
      {"greater_is_better", setup_.task->metrics().front().greater_is_better},
      {"best_step", best_ ? Json(best_->step) : Json()},
      {"best_" + setup_.task->metrics().front().name, best_ ? Json(best_->value) : Json()},
      {"best_loss", best_ ? Json(best_->loss) : Json()},
      {"written", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"settings", settings_to_json(config_)},
      {"identity", checkpoint_format::to_json(identity_)},
      {"final_evaluation", final_evaluation_of(config_, setup_)},
      {"environment", to_json_object(environment_of(setup_))},
      {"texts",
       {{"train", setup_.train.ids.size()}, {"dev", setup_.dev.ids.size()}, {"test", setup_.test.ids.size()}}}};
  json["warnings"] = Json::array();
  for (const WarningRecord& warning : warnings_)
    json["warnings"].push_back({{"kind", warning.kind}, {"text", warning.text}});
  if (!error.empty()) {
    json["error"] = error;
  }
  write_file_atomically(config_.output / "run.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace mezzo::text
