#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "commands.h"
#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/tasks/task.h"
#include "model_session.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

constexpr int64_t kFewTexts = 100;  // of which one is a point, and more

struct CheckInt8Flags {
  ModelFlags model;
  std::vector<std::filesystem::path> data;
  text::ColumnNames columns;
  double max_loss = 0.5;
  bool json = false;
};

/// The labels that a prediction gives; nullptr if it is a number.
const text::PredictionValue* labels_of(const text::Prediction& prediction) {
  const auto found = std::ranges::find_if(
      prediction, [](const auto& member) { return member.first == "label" || member.first == "labels"; });
  return found == prediction.end() ? nullptr : &found->second;
}

/// A model's outputs for labelled texts, and their quality.
struct Answers {
  double value = 0;  ///< of the task's first metric
  std::vector<text::Prediction> predictions;
};

Answers answers_of(ModelSession& session, const LabelledTexts& texts) {
  const text::Task& task = session.task();
  const auto [result, evaluation] = evaluate(session, texts);
  text::Rows<int32_t> word_ids;
  if (task.head().rows == text::RowsPer::kToken) {
    word_ids = result.texts.word_ids;
  }
  return {evaluation.metrics.front(),
          task.predictions(result.outputs, {texts.rows.texts, texts.rows.words, word_ids}, {})};
}

/// Share of the texts that get the same labels; nullopt where answers are numbers.
std::optional<double> share_of_same(const Answers& left, const Answers& right) {
  int64_t same = 0;
  for (size_t i = 0; i < left.predictions.size(); ++i) {
    const auto *a = labels_of(left.predictions[i]), *b = labels_of(right.predictions[i]);
    if (a == nullptr || b == nullptr) {
      return std::nullopt;
    }
    same += *a == *b;
  }
  return static_cast<double>(same) / static_cast<double>(left.predictions.size());
}

/// By how much a metric is worse in int8: in points of 100, or in percent of an error metric.
double loss_of(const text::MetricInfo& metric, double in_float32, double in_int8) {
  const double lost = metric.greater_is_better ? in_float32 - in_int8 : (in_int8 - in_float32) / in_float32;
  return in_int8 == in_float32 ? 0 : 100 * lost;
}

int run_check_int8(const CheckInt8Flags& flags) {
  if (distributed::RankEnvironment::detect()) {
    throw UsageError("it runs in one process; start it without mezzo launch");
  }
  const auto record = flags.model.model / "int8.json";
  const auto status = std::filesystem::symlink_status(record);
  TORCH_CHECK_VALUE(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status), record.string(),
                    " is not a file, but would be replaced by one; remove it");
  ModelFlags model = flags.model;
  model.precision = "int8";
  ModelSession session(model, nullptr);
  const auto texts = read_labelled_texts(flags.data, flags.columns, session.task(), /*warns=*/true);
  const Answers in_int8 = answers_of(session, texts);
  session.report_cut_texts();
  model.precision = "fp32";
  ModelSession session_in_float32(model, nullptr);
  const Answers in_float32 = answers_of(session_in_float32, texts);

  const text::MetricInfo& metric = session.task().metrics().front();
  text::Int8Check check{metric.name, in_float32.value, in_int8.value, std::ssize(texts.rows.texts),
                        share_of_same(in_float32, in_int8)};
  const double loss = loss_of(metric, check.in_float32, check.in_int8);
  check.is_accepted = loss <= flags.max_loss;
  text::save_int8_check(check, flags.model.model);
  if (check.texts < kFewTexts) {
    std::fputs(fmt::format("warning: {} texts are few for a comparison; pass more\n", check.texts).c_str(), stderr);
  }
  const auto* unit = metric.greater_is_better ? " points" : "%";
  const std::string found =
      metric.is_share ? fmt::format("{} {:.4f} in fp32, {:.4f} in int8", metric.title, check.in_float32, check.in_int8)
                      : fmt::format("{} {:.5g} in fp32, {:.5g} in int8", metric.title, check.in_float32, check.in_int8);
  if (flags.json) {
    nlohmann::ordered_json json = {{"metric", check.metric},
                                   {"fp32", check.in_float32},
                                   {"int8", check.in_int8},
                                   {"worse", loss},
                                   {"unit", metric.greater_is_better ? "points" : "percent"},
                                   {"accepted", check.is_accepted},
                                   {"texts", check.texts},
                                   {"same_answers", nullptr}};
    if (check.same_answers) json["same_answers"] = *check.same_answers;
    text::write_stdout(json.dump() + "\n");
  } else {
    text::write_stdout(
        fmt::format("{} ({:+.2f}{}){} of {} texts\n", found, metric.greater_is_better ? 0 - loss : loss, unit,
                    check.same_answers ? fmt::format("; the same labels for {:.2f}%", 100 * *check.same_answers) : "",
                    check.texts));
  }
  text::flush_stdout();  // before an error that may follow
  TORCH_CHECK(check.is_accepted,
              fmt::format("int8 is {:.2f}{} worse, and --max-loss is {}", loss, unit, flags.max_loss));
  return 0;
}

}  // namespace

Run add_check_int8(CLI::App& app) {
  auto flags = std::make_shared<CheckInt8Flags>();
  flags->model.add_to(app, /*chooses_precision=*/false);
  flags->model.device = "cpu";
  app.add_option("--data", flags->data, "labelled texts that the model was not trained on")
      ->required()
      ->type_name("FILE");
  add_columns(app, flags->columns, /*has_labels=*/true);
  app.add_option("--max-loss", flags->max_loss,
                 "most that int8 may be worse: points from 0 to 100, or percent of a mean squared error")
      ->capture_default_str();
  app.add_flag("--json", flags->json, "print a JSON object");
  app.footer(
      "Examples:\n"
      "  mezzo check-int8 --model out --data dev.jsonl");
  return [flags] {
    if (!(flags->max_loss >= 0 && flags->max_loss <= 100)) {
      throw UsageError(fmt::format("--max-loss is {}, expected a number from 0 to 100", flags->max_loss));
    }
    flags->model.check();
    return run_check_int8(*flags);
  };
}

}  // namespace mezzo::app
