#include "model_session.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/data/tokenized_texts.h"
#include "mezzo/text/machine/threads.h"
#include "mezzo/text/train/train_config.h"
#include "ranks.h"
#include "stop_signal.h"
#include "text_source.h"

namespace mezzo::app {

std::filesystem::path find_model(const std::filesystem::path& name, text::ModelFiles files, bool quiet) {
  if (name.empty()) return name;
  const StopSignals signals;
  return text::model_folder(name.string(), {files, quiet, [] { return stop_signal() != 0; }});
}

void ModelFlags::add_to(CLI::App& app, bool chooses_precision, bool names_model) {
  if (names_model) {
    app.add_option("--model", model, kModelHelp)->required()->type_name("MODEL");
  }
  if (chooses_precision) {
    auto* precision_option = app.add_option("--precision", precision, "number format; int8 needs a CPU");
    notes_of(precision_option->capture_default_str()).choices = {"fp32", "bf16", "fp16", "auto", "int8"};
    auto* device_option = app.add_option("--device", device, "device; cuda:N is GPU number N");
    notes_of(device_option->capture_default_str()).choices = {"cpu", "cuda", "auto"};
  }
  app.add_option("--max-length", max_length,
                 "longest text, in tokens; longer texts are truncated; default: as in training");
  auto* threads_option =
      app.add_option("--threads", threads, "CPU threads; 0: OMP_NUM_THREADS, or all usable processors");
  notes_of(threads_option->capture_default_str()).is_basic = false;
}

void ModelFlags::check() {
  as_usage([&] {
    text::check_classifier_options(precision, device, max_length);
    if (is_int8()) {
      device = "cpu";
    }
    TORCH_CHECK_VALUE(threads >= 0, "--threads is ", threads, ", expected at least 0");
    TORCH_CHECK_VALUE(threads <= text::kMostThreads, "--threads is ", threads, ", expected at most ",
                      text::kMostThreads);
  });
  model = find_model(model);
}

text::ClassifierOptions ModelFlags::options() const {
  text::set_threads(threads);
  return {.precision = precision, .device = text::parse_device(device), .max_length = max_length};
}

namespace {

text::ClassifierOptions options_of(const ModelFlags& flags, bool runs) {
  auto options = flags.options();
  options.packs_weights = runs;
  return options;
}

}  // namespace

ModelSession::ModelSession(const ModelFlags& flags, distributed::ProcessGroup* group, bool runs)
    : group_(group), classifier_(flags.model, options_of(flags, runs)) {
  if (!classifier_.unused().empty() && is_main(group)) {
    std::fputs(
        fmt::format("in {}, but not used: {}\n", flags.model.string(), fmt::join(classifier_.unused(), ", ")).c_str(),
        stderr);
  }
}

ModelSession::Result ModelSession::run(const text::TextSpans& rows) {
  auto tokenized = classifier_.tokenize(rows, num_texts_);
  text::InferenceShare share;
  if (group_ != nullptr) {
    share = {.rank = group_->rank(), .of = group_->size()};
  }
  auto outputs = classifier_.outputs(tokenized, share);
  if (group_ != nullptr) {
    group_->all_reduce(outputs);
  }
  classifier_.check_finite(outputs, num_texts_);
  num_cut_ += tokenized.truncated;
  num_texts_ += static_cast<int64_t>(rows.texts.size());
  return {std::move(outputs), std::move(tokenized)};
}

void ModelSession::report_cut_texts() const {
  if (num_cut_ > 0 && (group_ == nullptr || group_->rank() == 0)) {
    std::fputs(
        fmt::format("{} of {} texts truncated to {} tokens\n", num_cut_, num_texts_, classifier_.max_length()).c_str(),
        stderr);
  }
}

LabelledTexts read_labelled_texts(const std::vector<std::filesystem::path>& data,
                                  const text::ColumnNames& columns,
                                  const text::Task& task,
                                  bool warns) {
  const auto kind = text::label_kind(task.problem_type());
  auto rows = text::load_rows(
      data, text::LoadRowsOptions().label_kind(kind).columns(columns).on_other_task("a model trained with --task"));
  if (warns) {
    print_notes(rows);
    if (const auto note = text::note_of_positions(rows, task.label_names()); !note.empty()) {
      std::fputs(("warning: " + note + "\n").c_str(), stderr);
    }
  }
  auto targets = task.targets(rows);
  return {std::move(rows), std::move(targets)};
}

Evaluated evaluate(ModelSession& session, const LabelledTexts& texts) {
  auto result = session.run({texts.rows.texts, texts.rows.text_pairs, texts.rows.words});
  text::set_targets(result.texts, texts.targets);
  text::check_reads_words(result.texts, texts.rows.places.file, session.classifier().max_length());
  auto evaluation = session.task().evaluate(result.outputs, result.texts.targets);
  return {std::move(result), std::move(evaluation)};
}

}  // namespace mezzo::app
