#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/tasks/metrics.h"
#include "mezzo/text/terminal/standard_output.h"
#include "model_session.h"
#include "ranks.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::filesystem::path data;
  bool json = false;
};

int run_eval(const EvalFlags& flags, distributed::ProcessGroup* group) {
  ModelSession session(flags.model, group);
  const auto labels = text::LabelMap::from_names(session.label_names());
  auto rows = text::load_rows(flags.data);
  if (is_main(group)) {
    warn_of_invalid_utf8(rows);
  }
  const auto data = text::to_dataset(std::move(rows), labels);
  const auto logits = session.logits(data.texts);
  session.report_cut_texts();
  const double loss = text::mean_cross_entropy(logits, data.labels);
  const auto report = text::classification_report(data.labels, text::predicted_labels(logits), session.label_names());
  if (!is_main(group)) {
    return 0;
  }
  if (flags.json) {
    const nlohmann::ordered_json json = {{"texts", data.texts.size()},
                                         {"loss", loss},
                                         {"accuracy", report.accuracy},
                                         {"macro_f1", report.macro_avg.f1},
                                         {"weighted_f1", report.weighted_avg.f1},
                                         {"confusion_matrix", report.confusion}};  // empty for very many labels
    text::write_stdout(json.dump() + "\n");
  } else {
    text::write_stdout(fmt::format("loss {:.4f}, accuracy {:.4f}\n\n{}", loss, report.accuracy, report.to_text()));
  }
  return 0;
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.add_to(app);
  app.add_option("--data", flags->data, "labelled texts: .json, .jsonl, .csv or .tsv")->required();
  app.add_flag("--json", flags->json, "one JSON object instead of the report");
  return [flags] {
    flags->model.check();
    return with_ranks(flags->model.device, kRanksTimeout, [&](auto* group) { return run_eval(*flags, group); });
  };
}

}  // namespace mezzo::app
