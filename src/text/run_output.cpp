#include "text/run_output.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mezzo/text/atomic_file.h"
#include "mezzo/text/pretrained.h"
#include "mezzo/text/report.h"
#include "mezzo/version.h"
#include "text/json_file.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_finished_run(const fs::path& output) {
  const fs::path path = output / "run.json";
  return fs::exists(path) && read_json_object(path).value("finished", false);
}

/// Refuses to mix with, or silently replace, what another run left.
void claim_folder(const TrainConfig& config) {
  const fs::path& output = config.output;
  TORCH_CHECK_VALUE(!fs::exists(output) || fs::is_directory(output), "--output ", output.string(),
                    ": is a file, not a folder");
  const bool holds_run = fs::exists(output / "metrics.jsonl") || fs::exists(output / "model.safetensors");
  const bool may_restart = config.overwrite || (config.resume == "auto" && !is_finished_run(output));
  TORCH_CHECK_VALUE(!holds_run || may_restart, "--output ", output.string(), ": holds ",
                    is_finished_run(output) ? "a finished run" : "a run",
                    " already; pass another folder, --resume auto to go on with an unfinished one, or --overwrite");
  for (const char* name :
       {"metrics.jsonl", "model.safetensors", "report.html", "run.json", "tensorboard", "checkpoints"}) {
    fs::remove_all(output / name);
  }
  fs::create_directories(output);
}

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

ReportInput::Pairs environment(const RunSetup& setup) {
  utsname system{};
  uname(&system);
  return {{"mezzo", MEZZO_VERSION},
          {"LibTorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", cpu_model()},
          {"threads", std::to_string(at::get_num_threads())},
          {"device", setup.device.str()},
          {"precision", std::string(to_string(setup.precision))}};
}

Json to_json_object(const ReportInput::Pairs& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) {
    object[name] = value;
  }
  return object;
}

ProgressBar::Options progress_options(const TrainConfig& config, const RunPlan& plan, int64_t resumed_step) {
  ProgressBar::Options options{.label = "train", .total = plan.total_steps, .initial = resumed_step};
  options.style = config.quiet ? ProgressStyle::kQuiet : ProgressStyle::kAuto;
  return options;
}

}  // namespace

RunOutput::RunOutput(const TrainConfig& config,
                     const RunSetup& setup,
                     const RunPlan& plan,
                     std::optional<int64_t> resumed_step)
    : config_(config), setup_(setup) {
  if (resumed_step) {
    fs::create_directories(config.output);
    metrics_ = MetricsLog::resume(config.output / "metrics.jsonl", *resumed_step);
  } else {
    claim_folder(config);
    metrics_.emplace(config.output / "metrics.jsonl");
  }
  TensorBoardWriter::Options board_options;
  if (resumed_step) {
    board_options.purge_step = *resumed_step + 1;
  }
  board_.emplace(config.output / "tensorboard", board_options);
  setup.tokenizer.save(config.output, config.max_length);
  setup.model->config().save(config.output / "config.json");
  write_run_json(/*finished=*/false);

  for (const std::string& line : setup.notes) {
    note(line);
  }
  note(fmt::format(
      "{} steps of {} texts in {} on {}, {} threads", plan.total_steps, plan.batch_size * plan.grad_accumulation,
      to_string(setup.precision),
      plan.ranks > 1 ? fmt::format("{} ranks, each on {}", plan.ranks, setup.device.str()) : setup.device.str(),
      at::get_num_threads()));
  if (resumed_step) {
    note(fmt::format("resumed after step {}", *resumed_step));
  }
  progress_.emplace(progress_options(config, plan, resumed_step.value_or(0)));
}

void RunOutput::step(const StepRecord& record) {
  metrics_->append(record);
  board_->add_scalar("train/loss", record.loss, record.step);
  board_->add_scalar("train/lr", record.lr, record.step);
  board_->add_scalar("train/grad_norm", record.grad_norm, record.step);
  board_->add_scalar("train/loss_scale", record.loss_scale, record.step);
  board_->add_scalar("train/samples_per_second", static_cast<double>(record.samples) / record.seconds, record.step);

  const double rate = static_cast<double>(record.samples) / record.seconds;
  smoothed_rate_ = smoothed_rate_ == 0 ? rate : 0.9 * smoothed_rate_ + 0.1 * rate;
  std::string text = fmt::format("loss {:.3f}  {:.1f} samples/s", record.loss, smoothed_rate_);
  if (setup_.precision == Precision::kFloat16) {
    text += fmt::format("  scale {:g}", record.loss_scale);
  }
  if (record.skipped) {
    text += "  skipped";
  }
  progress_->update(record.step, text);
}

void RunOutput::eval(const EvalRecord& record) {
  metrics_->append(record);
  board_->add_scalar(record.split + "/loss", record.loss, record.step);
  board_->add_scalar(record.split + "/accuracy", record.accuracy, record.step);
  board_->add_scalar(record.split + "/macro_f1", record.macro_f1, record.step);
  note(fmt::format("step {}: {} loss {:.4f}, accuracy {:.4f}, macro F1 {:.4f}", record.step, record.split, record.loss,
                   record.accuracy, record.macro_f1));
}

void RunOutput::diagnose(const DiagnoseRecord& record) {
  metrics_->append(record);
  note(fmt::format("diagnosis of step {}, loss scale {:g}:", record.step, record.loss_scale));
  std::istringstream lines(record.text);
  for (std::string line; std::getline(lines, line);) {
    note("  " + line);
  }
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
  note(fmt::format("{} ranks: {}", record.ranks, text));
}

void RunOutput::save_model(const BertForSequenceClassification& model,
                           const std::vector<std::pair<std::string, at::Tensor>>& weights) {
  save_pretrained(model.config(), weights, config_.output);
}

void RunOutput::training_done() {
  if (progress_) {
    progress_->finish();
    progress_.reset();
  }
}

void RunOutput::stopped(int64_t step) {
  training_done();
  note(fmt::format("stopped after step {}; go on with --resume auto", step));
}

void RunOutput::end(const EndRecord& record,
                    const std::optional<ClassificationReport>& report,
                    const std::string& split) {
  metrics_->append(record);
  const RunRecords records = read_run_records(config_.output / "metrics.jsonl");
  ReportInput input;
  input.title = config_.output.filename().string();
  input.steps = records.steps;
  input.evals = records.evals;
  input.diagnoses = records.diagnoses;
  input.end = records.end;
  input.label_names = setup_.model->config().label_names;
  if (report) {
    input.confusion_matrix = report->confusion;
    input.classification_report = report->to_text();
  }
  input.settings = config_.settings();
  input.environment = environment(setup_);
  write_file_atomically(config_.output / "report.html", render_report(input));
  write_run_json(/*finished=*/true);
  if (config_.quiet) {
    return;
  }
  if (report) {
    fmt::print("{}:\n{}\n", split, report->to_text());
  }
  fmt::print("{:.4f} minutes, {:.1f} samples/s, {:.0f} tokens/s, {:.2f} GB at most\nmodel and report.html in {}\n",
             record.minutes, record.samples_per_second, record.tokens_per_second,
             static_cast<double>(record.peak_memory_bytes) / 1e9, config_.output.string());
}

void RunOutput::note(const std::string& line) {
  if (config_.quiet) {
    return;
  }
  if (progress_) {
    progress_->print_line(line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
}

void RunOutput::write_run_json(bool finished) const {
  const Json json = {
      {"finished", finished},
      {"written", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"settings", to_json_object(config_.settings())},
      {"environment", to_json_object(environment(setup_))},
      {"texts",
       {{"train", setup_.train.ids.size()}, {"dev", setup_.dev.ids.size()}, {"test", setup_.test.ids.size()}}}};
  write_file_atomically(config_.output / "run.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace mezzo::text
