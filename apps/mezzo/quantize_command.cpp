#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "commands.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/data/tokenized_texts.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/tasks/task.h"
#include "mezzo/text/terminal/standard_output.h"
#include "model_session.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct QuantizeFlags {
  ModelFlags model;
  std::vector<std::filesystem::path> data;
  text::ColumnNames columns;
  double max_loss = 0.5;
};

/// What a model says of labelled texts, and how good that is.
struct Answers {
  text::MetricInfo metric;
  double value = 0;
  std::vector<text::Prediction> predictions;
};

/// @param rows  read where there are none yet.
Answers answers_in(const std::string& precision, const QuantizeFlags& flags, std::optional<text::LabeledRows>& rows) {
  ModelFlags model = flags.model;
  model.precision = precision;
  ModelSession session(model, nullptr);
  const text::Task& task = session.task();
  const bool is_first = !rows;
  if (is_first) {
    const auto kind = text::label_kind(task.problem_type());
    rows = text::load_rows(flags.data, text::LoadRowsOptions().label_kind(kind).columns(flags.columns));
    warn_of_invalid_utf8(*rows);
  }
  const auto targets = task.targets(*rows);
  auto [outputs, texts] = session.run({rows->texts, rows->text_pairs, rows->words});
  text::set_targets(texts, targets);
  text::check_reads_words(texts, rows->places.file, session.max_length());
  if (is_first) {
    session.report_cut_texts();
  }
  const bool has_words = task.head().rows == text::RowsPer::kToken;
  const text::WordsOfTexts words{
      rows->texts, rows->words,
      has_words ? std::span<const std::vector<int32_t>>(texts.word_ids) : std::span<const std::vector<int32_t>>()};
  return {task.metrics().front(), task.evaluate(outputs, texts.targets).metrics.front(),
          task.predictions(outputs, words, {})};
}

/// Share of the texts that get the same labels; nullopt where answers are numbers.
std::optional<double> share_of_same(const Answers& left, const Answers& right) {
  int64_t same = 0;
  for (size_t i = 0; i < left.predictions.size(); ++i) {
    const auto &a = left.predictions[i].front().second, &b = right.predictions[i].front().second;
    if (std::holds_alternative<double>(a)) {
      return std::nullopt;
    }
    same += a == b;
  }
  return static_cast<double>(same) / static_cast<double>(left.predictions.size());
}

/// By how much a metric is worse in int8: in points of 100, or what is an error in percent of it.
double loss_of(const text::MetricInfo& metric, double in_float32, double in_int8) {
  const double lost = metric.greater_is_better ? in_float32 - in_int8 : (in_int8 - in_float32) / in_float32;
  return in_int8 == in_float32 ? 0 : 100 * lost;
}

int run_quantize(const QuantizeFlags& flags) {
  std::optional<text::LabeledRows> rows;
  const Answers in_int8 = answers_in("int8", flags, rows), in_float32 = answers_in("fp32", flags, rows);
  const text::Int8Check check{in_float32.metric.name, in_float32.value, in_int8.value, std::ssize(rows->texts),
                              share_of_same(in_float32, in_int8)};
  const auto& folder = flags.model.model;
  const text::MetricInfo& metric = in_float32.metric;
  const std::string found =
      fmt::format("{} {:.4f} in fp32, {:.4f} in int8", metric.title, check.in_float32, check.in_int8);
  const double loss = loss_of(metric, check.in_float32, check.in_int8);
  const auto* unit = metric.greater_is_better ? " points" : "%";
  if (!(loss <= flags.max_loss)) {
    text::remove_int8_check(folder);
    TORCH_CHECK(false, found,
                fmt::format(": {:.2f}{} worse, and --max-loss is {}; mezzo predict refuses {} in int8", loss, unit,
                            flags.max_loss, folder.string()));
  }
  text::save_int8_check(check, folder);
  text::write_stdout(fmt::format(
      "{} ({:+.2f}{}){} of {} texts\n", found, metric.greater_is_better ? 0 - loss : loss, unit,
      check.same_answers ? fmt::format("; the same labels for {:.2f}%", 100 * *check.same_answers) : "", check.texts));
  text::write_stdout(fmt::format("mezzo predict --model {} --precision int8 may be used now\n", folder.string()));
  return 0;
}

}  // namespace

Run add_quantize(CLI::App& app) {
  auto flags = std::make_shared<QuantizeFlags>();
  flags->model.add_to(app, /*chooses_precision=*/false);
  app.add_option("--data", flags->data, "labelled texts that the model was not trained on, in one file or several")
      ->required();
  add_columns(app, flags->columns, /*has_labels=*/true);
  app.add_option("--max-loss", flags->max_loss,
                 "by how many points, of 100, what is measured may be worse in int8 than in fp32; of errors, by how "
                 "many percent")
      ->capture_default_str();
  return [flags] {
    flags->model.check();
    if (!(flags->max_loss >= 0 && flags->max_loss <= 100)) {
      throw UsageError(fmt::format("--max-loss is {}, expected a number from 0 to 100", flags->max_loss));
    }
    return run_quantize(*flags);
  };
}

}  // namespace mezzo::app
