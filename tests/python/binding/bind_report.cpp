#include "bindings.h"
#include "mezzo/text/report/report.h"
#include "mezzo/text/report/run_records.h"
#include "mezzo/text/report/tensorboard_writer.h"

namespace {

using mezzo::text::TensorBoardWriter;

void bind_tensorboard(py::module_& m) {
  py::class_<TensorBoardWriter>(m, "TensorBoardWriter")
      .def(py::init([](const std::string& folder, int64_t flush_every, std::optional<int64_t> purge_step) {
             return std::make_unique<TensorBoardWriter>(
                 folder, TensorBoardWriter::Options{.flush_every = flush_every, .purge_step = purge_step});
           }),
           py::arg("folder"), py::arg("flush_every") = 1, py::arg("purge_step") = py::none())
      .def("add_scalar", &TensorBoardWriter::add_scalar, py::arg("tag"), py::arg("value"), py::arg("step"),
           py::arg("wall_time") = py::none())
      .def("flush", &TensorBoardWriter::flush)
      .def("path", [](const TensorBoardWriter& self) { return self.path().string(); });
}

/// render_report of a metrics.jsonl and the other parts of a ReportInput.
std::string render(const std::string& metrics,
                   const std::string& title,
                   const std::string& when,
                   const std::string& notice,
                   std::optional<int64_t> best_step,
                   const std::vector<std::string>& label_names,
                   const std::string& evaluated,
                   const std::vector<std::vector<int64_t>>& confusion_matrix,
                   const std::vector<std::tuple<int64_t, double, double>>& calibration,
                   const std::string& evaluation_report,
                   const mezzo::text::ReportInput::Pairs& settings,
                   const mezzo::text::ReportInput::Pairs& default_settings,
                   const mezzo::text::ReportInput::Pairs& environment,
                   const mezzo::text::ReportInput::Pairs& commands,
                   const std::vector<std::string>& notes,
                   const std::vector<int64_t>& train_counts,
                   const std::vector<int64_t>& train_lengths,
                   bool labels_words) {
  auto records = mezzo::text::read_run_records(metrics);
  std::vector<mezzo::text::CalibrationBin> bins;
  for (const auto& [rows, confidence, accuracy] : calibration) bins.push_back({rows, confidence, accuracy});
  return mezzo::text::render_report({.title = title,
                                     .when = when,
                                     .notice = notice,
                                     .steps = std::move(records.steps),
                                     .evals = std::move(records.evals),
                                     .metrics = {{"accuracy", "accuracy"}, {"macro_f1", "macro F1"}},
                                     .diagnoses = std::move(records.diagnoses),
                                     .warnings = std::move(records.warnings),
                                     .end = records.end,
                                     .best_step = best_step,
                                     .label_names = label_names,
                                     .evaluated = evaluated,
                                     .confusion_matrix = confusion_matrix,
                                     .calibration = bins,
                                     .evaluation_report = evaluation_report,
                                     .settings = settings,
                                     .default_settings = default_settings,
                                     .environment = environment,
                                     .notes = notes,
                                     .commands = commands,
                                     .train_counts = train_counts,
                                     .labels_words = labels_words,
                                     .train_lengths = train_lengths});
}

}  // namespace

void bind_report(py::module_& m) {
  using Pairs = mezzo::text::ReportInput::Pairs;
  bind_tensorboard(m);
  m.def("render_report", &render, py::arg("metrics"), py::kw_only(), py::arg("title") = "run", py::arg("when") = "",
        py::arg("notice") = "", py::arg("best_step") = py::none(), py::arg("label_names") = std::vector<std::string>{},
        py::arg("evaluated") = "", py::arg("confusion_matrix") = std::vector<std::vector<int64_t>>{},
        py::arg("calibration") = std::vector<std::tuple<int64_t, double, double>>{}, py::arg("evaluation_report") = "",
        py::arg("settings") = Pairs{}, py::arg("default_settings") = Pairs{}, py::arg("environment") = Pairs{},
        py::arg("commands") = Pairs{}, py::arg("notes") = std::vector<std::string>{},
        py::arg("train_counts") = std::vector<int64_t>{}, py::arg("train_lengths") = std::vector<int64_t>{},
        py::arg("labels_words") = false);
}
