#include "text/train/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/hub/hub.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/io/standard_output.h"
#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/train/run_identity.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

/// "model" of "model/".
fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

/// The last part of a path, and with `parents` those before it: "train.json" alone says little.
std::string tail_of(const fs::path& path, int parents) {
  fs::path whole = without_slash(fs::absolute(path));
  fs::path tail = whole.filename();
  for (; parents > 0 && whole.parent_path().has_filename(); --parents) {
    whole = whole.parent_path();
    tail = whole.filename() / tail;
  }
  return tail.string();
}

/// The model that is trained, and its data.
std::string title_of(const TrainConfig& config) {
  const std::string model = config.model.empty() ? "Fresh weights of " + tail_of(config.model_config, /*parents=*/1)
                                                 : tail_of(hub_name(config.model), /*parents=*/0);
  return model + " trained on " + tail_of(config.train.front(), /*parents=*/1) +
         (config.train.size() > 1 ? fmt::format(" and {}", counted(std::ssize(config.train) - 1, "more file")) : "");
}

/// The command of the run, without --resume.
std::string command_line(const TrainConfig& config, const ReportInput& input) {
  std::string command = "mezzo train";
  for (const auto& [name, value] : input.settings) {
    const auto& defaults = input.default_settings;
    if (name == "resume" || std::ranges::find(defaults, std::pair(name, value)) != defaults.end()) continue;
    command += " --" + name;
    const auto* files = name == "train"  ? &config.train
                        : name == "dev"  ? &config.dev
                        : name == "test" ? &config.test
                                         : nullptr;
    if (files == nullptr && value != "true") command += " " + shell_quoted(value);
    for (const fs::path& file : files != nullptr ? *files : std::vector<fs::path>()) {
      command += " " + shell_quoted(file.string());
    }
  }
  return command;
}

/// What to do with the model in `folder`.
ReportInput::Pairs model_commands(const std::string& folder, bool labels_words, bool reads_pairs) {
  const std::string text = reads_pairs ? R"({"text": "it rains", "text_pair": "take a coat"})" : R"("it rains")";
  const std::string pipe = fmt::format(
      "from transformers import pipeline\nmodel = pipeline(\"{}-classification\", {}, {})\n"
      "print(model({}))",
      labels_words ? "token" : "text", nlohmann::json(folder).dump(),
      labels_words ? "aggregation_strategy=\"simple\"" : "top_k=None", text);
  return {{"Label a text", fmt::format("mezzo predict --model {} --text 'it rains'{}", shell_quoted(folder),
                                       reads_pairs ? " --text-pair 'take a coat'" : "")},
          {"Label a file", fmt::format("mezzo predict --model {} --data texts.csv --output labels.{}",
                                       shell_quoted(folder), labels_words ? "jsonl" : "csv")},
          {"Serve the model", fmt::format("mezzo serve --model {}", shell_quoted(folder))},
          {"Python, with transformers", pipe}};
}

/// How many texts, or words, have each label. Empty if labels are numbers.
std::vector<int64_t> counts_of_labels(const at::Tensor& targets, int64_t num_labels) {
  if (!targets.defined() || (targets.is_floating_point() && targets.dim() != 2)) return {};
  const auto ids = targets.flatten().to(at::kLong);
  const auto counts = targets.is_floating_point() ? targets.sum(0).to(at::kLong)
                                                  : at::bincount(ids.masked_select(ids.ge(0)), {}, num_labels);
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

/// Of the texts that the model was measured on at last: nullopt if they are not known.
std::optional<MisreadText> misread_text(const Mistake& mistake, const RunSetup& setup) {
  const bool is_test = !setup.test.ids.empty();
  const ReadableTexts& readable = is_test ? setup.test_readable : setup.dev_readable;
  const auto row = static_cast<size_t>(mistake.row);
  MisreadText misread{"", mistake.label, mistake.predicted, mistake.score};
  if (row < readable.places.lines.size()) misread.place = readable.places.at(row);
  if (mistake.token < 0) {
    if (row >= readable.texts.size()) return std::nullopt;
    misread.text = readable.texts[row];
    return misread;
  }
  constexpr size_t kWordsAround = 8, kColumnsOfWord = 40;
  const auto& words = readable.words.at(row);
  const auto& word_ids = (is_test ? setup.test : setup.dev).word_ids[row];
  const auto word = static_cast<size_t>(word_ids[static_cast<size_t>(mistake.token)]);
  misread.text = words.at(word);
  const size_t begin = word - std::min(word, kWordsAround), end = std::min(word + 1 + kWordsAround, words.size());
  const auto joined = [&](size_t first, size_t last) {
    std::string text;
    for (size_t i = first; i < last; ++i) {
      text += (text.empty() ? "" : " ") + std::string(truncate_to_width(words[i], kColumnsOfWord));
    }
    return text;
  };
  misread.before = (begin > 0 ? "… " : "") + joined(begin, word);
  misread.after = joined(word + 1, end) + (end < words.size() ? " …" : "");
  return misread;
}

}  // namespace

ReportInput report_input(const TrainConfig& config,
                         const RunSetup& setup,
                         const std::optional<Evaluation>& evaluation) {
  ReportInput input;
  input.title = title_of(config);
  input.metrics = setup.task->metrics();
  input.label_names = setup.task->label_names();
  if (evaluation && !evaluation->report.empty()) {
    input.confusion_matrix = evaluation->confusion_matrix;
    input.calibration = evaluation->calibration;
    input.evaluation_report = evaluation->report;
  }
  if (evaluation) {
    for (const Mistake& mistake : evaluation->mistakes) {
      if (auto misread = misread_text(mistake, setup)) input.misread.push_back(*std::move(misread));
    }
  }
  input.notes = setup.notes;
  input.settings = config.settings();
  input.default_settings = TrainConfig().settings();
  for (auto& [name, value] : input.default_settings) {
    const auto chosen = std::ranges::find(input.settings, name, &std::pair<std::string, std::string>::first);
    if (setup.automatic.contains(name)) value = chosen->second;
  }
  input.commands = {
      {"Command line", command_line(config, input)},
      {"Train this model again",
       fmt::format("mezzo train --config {} --output {}", shell_quoted((config.output / "run.json").string()),
                   shell_quoted(without_slash(config.output).string() + "-again"))}};
  input.labels_words = setup.model->head().rows == RowsPer::kToken;
  if (fs::exists(config.output / kWeightsFile)) {
    std::ranges::move(model_commands(config.output.string(), input.labels_words, setup.reads_pairs),
                      std::back_inserter(input.commands));
  }
  input.train_counts = counts_of_labels(setup.train.targets, std::ssize(input.label_names));
  for (const auto& ids : setup.train.ids) input.train_lengths.push_back(std::ssize(ids));
  input.environment = environment_of(setup);
  return input;
}

}  // namespace mezzo::text
