#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/inference/prediction_csv.h"
#include "mezzo/text/inference/prediction_json.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/standard_output.h"
#include "model_session.h"
#include "ranks.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct PredictFlags {
  ModelFlags model;
  std::optional<std::string> text, text_pair;
  std::vector<std::filesystem::path> data;
  std::filesystem::path output;
  text::ColumnNames columns;
  text::PredictionOptions options;
  bool logits = false;
};

/// In lower case.
std::string ending_of(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool is_csv(const std::filesystem::path& path) { return ending_of(path) == ".csv"; }

/// Whether predictions would replace a file of the model. Earlier predictions may lie beside it.
bool is_of_model(const std::filesystem::path& output, const std::filesystem::path& model) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(model, none)) {
    const auto& file = entry.path();
    const bool is_predictions = is_csv(file) || (file.extension() == ".jsonl" && file.filename() != "metrics.jsonl");
    if (!is_predictions && std::filesystem::equivalent(file, output, none)) {
      return true;
    }
  }
  return false;
}

int run_predict(PredictFlags flags, distributed::ProcessGroup* group) {
  for (auto* text : {&flags.text, &flags.text_pair}) {
    if (*text && text::repair_utf8(**text) && is_main(group)) {
      warn_of_invalid_utf8(text == &flags.text ? "--text" : "--text-pair", 1, 1);
    }
  }
  if (group != nullptr && !flags.text && flags.data.empty()) {
    throw UsageError("several ranks cannot share the texts of stdin; pass them as --data FILE");
  }
  if (!flags.output.empty() && is_of_model(flags.output, flags.model.model)) {
    throw UsageError(
        fmt::format("--output {} is a file in the folder of --model: predictions would replace it; pass another",
                    flags.output.string()));
  }
  ModelSession session(flags.model, group);
  if (flags.model.is_int8() && is_main(group)) {
    const auto warning = text::int8_warning(flags.model.model);
    if (!warning.empty()) std::fputs((warning + "\n").c_str(), stderr);
  }
  std::error_code none;
  std::vector<std::filesystem::path> sources = flags.data;
  if (flags.data.empty() && !flags.text) {
    sources.emplace_back("/dev/stdin");
  }
  const auto is_output = [&](const auto& source) { return std::filesystem::equivalent(source, flags.output, none); };
  if (!flags.output.empty() && std::ranges::any_of(sources, is_output)) {
    throw UsageError(
        fmt::format("--output {} is the file that the texts are read from: predictions would replace them; "
                    "pass another",
                    flags.output.string()));
  }
  std::optional<text::AtomicFile> file;
  if (!flags.output.empty() && is_main(group)) {
    file.emplace(flags.output);
  }
  std::optional<text::PredictionCsv> csv;
  if (is_csv(flags.output)) csv.emplace(session.task());
  const bool has_words = session.classifier().reads_words();
  const auto predict = [&](const text::TextSpans& rows) {
    const auto [outputs, texts] = session.run(rows);
    if (!is_main(group)) {
      return;
    }
    constexpr int64_t kTextsAtATime = 64;  // whose scores are kept by name
    for (int64_t begin = 0; begin < outputs.size(0); begin += kTextsAtATime) {
      const auto some = outputs.narrow(0, begin, std::min(kTextsAtATime, outputs.size(0) - begin));
      if (csv && file) {
        file->write(csv->lines(rows.subspan(begin, some.size(0)), some, flags.options));
        continue;
      }
      for (const auto& line :
           text::predictions_as_json(session.task(), rows.subspan(begin, some.size(0)), some,
                                     texts.word_ids.subspan(begin, some.size(0)), flags.options, flags.logits)) {
        file ? file->write(line + "\n") : text::write_stdout(line + "\n");
      }
    }
    text::flush_stdout();
  };
  TORCH_CHECK_VALUE(!has_words || !flags.text_pair,
                    "--text-pair: the model labels words, of single texts; leave it out");
  text::WordSplitter split_words;
  if (has_words) {
    split_words = [&](std::string_view text) { return session.classifier().tokenizer().split_words(text); };
  }
  if (flags.text && has_words) {
    use_lines({&*flags.text, 1}, split_words, predict);
  } else if (flags.text) {
    predict({.texts = {*flags.text}, .text_pairs = flags.text_pair ? text::Texts{*flags.text_pair} : text::Texts()});
  } else {
    const auto options = text::LoadRowsOptions().columns(flags.columns).split_words(split_words).other_columns(true);
    for_each_chunk(flags.data, options, is_main(group), predict);
  }
  session.report_cut_texts();
  if (file) {
    file->commit();
  }
  return 0;
}

}  // namespace

Run add_predict(CLI::App& app) {
  auto flags = std::make_shared<PredictFlags>();
  flags->model.add_to(app);
  app.add_option("--text", flags->text, "one text");
  app.add_option("--text-pair", flags->text_pair, "second text of a pair, with --text");
  app.add_option("--data", flags->data,
                 "texts, in files as train reads them; without --data and --text, stdin is read, one text a line")
      ->type_name("FILE");
  add_columns(app, flags->columns, /*has_labels=*/false);
  app.add_option("--output", flags->output, "file for the predictions: .jsonl, or .csv for a table; without it, stdout")
      ->type_name("FILE");
  app.add_flag("--logits", flags->logits, "add the logits");
  app.add_option("--top-k", flags->options.top_k, "number of labels whose scores are given, the highest first");
  app.add_option("--min-score", flags->options.min_score, "lowest score of a label that is given")
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  mezzo predict --model out --text \"it rains\"\n"
      "  mezzo predict --model out --data texts.csv --output labels.csv\n"
      "  tail -f log.txt | mezzo predict --model out");
  return [flags, &app] {
    as_usage([&] {
      const auto [top_k, min_score] = flags->options;
      TORCH_CHECK_VALUE(top_k.value_or(1) >= 1, "--top-k is ", *top_k, ", expected at least 1");
      TORCH_CHECK_VALUE(min_score >= 0 && min_score <= 1, "--min-score is ", min_score,
                        ", expected a number from 0 to 1");
    });
    check_is_not_dash(flags->data);
    constexpr std::array kEndings = {"", ".jsonl", ".json", ".txt", ".csv"};
    if (std::ranges::find(kEndings, ending_of(flags->output)) == kEndings.end()) {
      throw UsageError(
          fmt::format("--output is '{}', expected a name that ends in .jsonl or .csv", flags->output.string()));
    }
    if (is_csv(flags->output) && (flags->logits || flags->options.top_k)) {
      throw UsageError("--logits and --top-k are for JSON Lines; pass an --output that ends in .jsonl");
    }
    if (flags->text && !flags->data.empty()) {
      throw UsageError("pass --text or --data, not both");
    }
    if (flags->text_pair && !flags->text) {
      throw UsageError("--text-pair needs --text, the first text of the pair; pairs of a file are columns of --data");
    }
    check_has_data(app);
    flags->model.check();
    return with_ranks(flags->model.device, kRanksTimeout, [&](auto* group) { return run_predict(*flags, group); });
  };
}

}  // namespace mezzo::app
