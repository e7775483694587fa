#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "commands.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/tasks/task.h"
#include "model_session.h"
#include "ranks.h"
#include "text_source.h"

namespace mezzo::app {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::vector<std::filesystem::path> data;
  text::ColumnNames columns;
  bool json = false;
};

int run_eval(const EvalFlags& flags, distributed::ProcessGroup* group) {
  ModelSession session(flags.model, group);
  const text::Task& task = session.task();
  const auto texts = read_labelled_texts(flags.data, flags.columns, task, is_main(group));
  const text::Evaluation evaluation = evaluate(session, texts).evaluation;
  session.report_cut_texts();
  if (!is_main(group)) {
    return 0;
  }
  if (flags.json) {
    nlohmann::ordered_json json = {{"texts", texts.rows.texts.size()}, {"loss", evaluation.loss}};
    for (size_t i = 0; i < task.metrics().size(); ++i) {
      json[task.metrics()[i].name] = evaluation.metrics[i];
    }
    for (const auto& [name, value] : evaluation.details) {
      json[name] = value;
    }
    json["confusion_matrix"] = evaluation.confusion_matrix;  // empty for very many labels
    text::write_stdout(json.dump() + "\n");
  } else {
    text::write_stdout(fmt::format("loss {:.4f}, {} {:.4f}\n\n{}", evaluation.loss, task.metrics().front().title,
                                   evaluation.metrics.front(), evaluation.report));
  }
  return 0;
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.add_to(app);
  app.add_option("--data", flags->data, "labelled texts, in files as train reads them")->required()->type_name("FILE");
  add_columns(app, flags->columns, /*has_labels=*/true);
  app.add_flag("--json", flags->json, "print a JSON object");
  app.footer(
      "Examples:\n"
      "  mezzo eval --model out --data test.jsonl\n"
      "  mezzo eval --model out --data test.csv --label-column stars --json");
  return [flags] {
    flags->model.check();
    return with_ranks(flags->model.device, kRanksTimeout, [&](auto* group) { return run_eval(*flags, group); });
  };
}

}  // namespace mezzo::app
