#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "commands.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/terminal/standard_output.h"
#include "model_session.h"
#include "ranks.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

using Json = nlohmann::ordered_json;

struct PredictFlags {
  ModelFlags model;
  std::optional<std::string> text;
  std::filesystem::path data, output;
  bool logits = false;
};

/// One line of JSON about one text. `logits` and `scores`: [labels].
std::string prediction(const std::string& text,
                       const std::vector<std::string>& names,
                       const at::Tensor& logits,
                       const at::Tensor& scores,
                       bool with_logits) {
  const auto best = scores.argmax().item<int64_t>();
  Json::object_t by_name;  // filled without a search for each of the names, which differ
  for (size_t id = 0; id < names.size(); ++id) {
    by_name.emplace_back(names[id], scores[static_cast<int64_t>(id)].item<float>());
  }
  Json json = {{"text", text}, {"label", names[best]}, {"score", scores[best].item<float>()}, {"scores", by_name}};
  if (with_logits) {
    json["logits"] =
        std::vector<float>(logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel());
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run_predict(const PredictFlags& flags, distributed::ProcessGroup* group) {
  if (group != nullptr && !flags.text && flags.data.empty()) {
    throw UsageError("several ranks cannot share the texts of stdin; pass them as --data FILE");
  }
  ModelSession session(flags.model, group);
  std::error_code none;
  const std::filesystem::path source = flags.data.empty() && !flags.text ? "/dev/stdin" : flags.data;
  if (!flags.output.empty() && std::filesystem::equivalent(source, flags.output, none)) {
    throw UsageError(
        fmt::format("--output {} is the file that the texts are read from: predictions would replace them; "
                    "pass another",
                    flags.output.string()));
  }
  std::optional<text::AtomicFile> file;
  if (!flags.output.empty() && is_main(group)) {
    file.emplace(flags.output);
  }
  const auto predict = [&](const std::vector<std::string>& texts) {
    const auto logits = session.logits(texts), scores = at::softmax(logits, 1);
    if (!is_main(group)) {
      return;
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const auto line = prediction(texts[i], session.label_names(), logits[row], scores[row], flags.logits);
      file ? file->write(line) : text::write_stdout(line);
    }
    text::flush_stdout();
  };
  if (flags.text) {
    predict({*flags.text});
  } else {
    for_each_chunk(flags.data, is_main(group), predict);
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
  app.add_option("--text", flags->text, "one text; without it and --data, texts come from stdin, one a line");
  app.add_option("--data", flags->data, "texts: .json, .jsonl, .csv, .tsv, or .txt with one a line");
  app.add_option("--output", flags->output, "file to write to instead of stdout");
  app.add_flag("--logits", flags->logits, "add the logits");
  return [flags] {
    flags->model.check();
    if (flags->text && !flags->data.empty()) {
      throw UsageError("pass --text or --data, not both");
    }
    return with_ranks(flags->model.device, kRanksTimeout, [&](auto* group) { return run_predict(*flags, group); });
  };
}

}  // namespace mezzo::app
