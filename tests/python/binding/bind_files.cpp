#include <algorithm>
#include <map>
#include <memory>

#include "bindings.h"
#include "mezzo/text/data/dataset.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/tasks/metrics.h"
#include "mezzo/text/tasks/scores.h"
#include "mezzo/text/tasks/task.h"
#include "text/io/content_hash.h"
#include "text/tasks/entities.h"

using namespace mezzo::text;

namespace {

std::vector<std::string> to_strings(const Texts& texts) { return {texts.begin(), texts.end()}; }

std::vector<int64_t> to_vector(const at::Tensor& targets) {
  return {targets.const_data_ptr<int64_t>(), targets.const_data_ptr<int64_t>() + targets.numel()};
}

std::shared_ptr<const Task> task_of(const std::string& problem_type, const std::vector<std::string>& names) {
  BertConfig config;
  config.problem_type = problem_type;
  config.label_names = names;
  return make_task(config);
}

}  // namespace

void bind_files(py::module_& m) {
  py::class_<SafetensorsReader>(m, "SafetensorsReader")
      .def(py::init<const std::string&>())
      .def("names", &SafetensorsReader::names)
      .def("tensor", [](const SafetensorsReader& self, const std::string& name) { return self.tensor(name); })
      .def("metadata", &SafetensorsReader::metadata);
  m.def("save_safetensors",
        [](const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::map<std::string, std::string>& metadata) { save_safetensors(path, tensors, metadata); });

  m.def("hash_of_file", [](const std::string& path) { return hash_of_file(path); });

  m.def(
      "load_rows",  // texts, labels and lines
      [](const std::string& path, int64_t limit, bool has_labels, const std::string& labels,
         const std::string& encoding) {
        const LabelKind kind = !has_labels           ? LabelKind::kNone
                               : labels == "several" ? LabelKind::kSeveral
                               : labels == "number"  ? LabelKind::kNumber
                                                     : LabelKind::kClass;
        auto rows = load_rows(path, LoadRowsOptions().limit(limit).label_kind(kind).columns({.encoding = encoding}));
        return std::tuple(to_strings(rows.texts), rows.labels, rows.places.lines);
      },
      py::arg("path"), py::arg("limit") = 0, py::arg("has_labels") = true, py::arg("labels") = "class",
      py::arg("encoding") = "auto");
  m.def(
      "load_files",  // texts, labels, places and other columns
      [](const std::vector<std::string>& paths, int64_t limit, bool has_labels) {
        const std::vector<std::filesystem::path> files(paths.begin(), paths.end());
        const LabelKind kind = has_labels ? LabelKind::kClass : LabelKind::kNone;
        const auto rows = load_rows(files, LoadRowsOptions().limit(limit).label_kind(kind).other_columns(true));
        std::vector<std::string> places;
        for (size_t i = 0; i < rows.texts.size(); ++i) places.push_back(rows.places.at(i));
        return std::tuple(to_strings(rows.texts), rows.labels, places, rows.others);
      },
      py::arg("paths"), py::arg("limit") = 0, py::arg("has_labels") = true);
  m.def("encode_labels", [](const std::vector<std::string>& train, const std::vector<std::string>& labels) {
    const auto rows_of = [](const std::vector<std::string>& names) {
      LabeledRows rows;
      rows.labels.assign(names.begin(), names.end());
      rows.places.lines.resize(names.size());
      return rows;
    };
    const auto map = LabelMap::from_rows(rows_of(train));
    return std::pair(map.names(), to_vector(label_ids(rows_of(labels), map)));
  });
  m.def("split_fold", [](std::vector<std::string> texts, std::vector<int64_t> labels, int64_t folds, int64_t fold,
                         bool by_class, uint64_t seed) {
    const auto [first, second] =
        split_fold({.texts = std::move(texts), .targets = at::tensor(labels)}, folds, fold, by_class, seed);
    return std::tuple(to_strings(first.texts), to_vector(first.targets), to_strings(second.texts),
                      to_vector(second.targets));
  });
  m.def("split_by_class",
        [](std::vector<std::string> texts, std::vector<int64_t> labels, double fraction, uint64_t seed) {
          const auto [first, second] =
              split_by_class({.texts = std::move(texts), .targets = at::tensor(labels)}, fraction, seed);
          return std::tuple(to_strings(first.texts), to_vector(first.targets), to_strings(second.texts),
                            to_vector(second.targets));
        });
  m.def("split_dataset", [](std::vector<std::string> texts, std::vector<int64_t> labels, double ratio, uint64_t seed) {
    const auto [first, second] = split_dataset({.texts = std::move(texts), .targets = at::tensor(labels)}, ratio, seed);
    return std::tuple(to_strings(first.texts), to_vector(first.targets), to_strings(second.texts),
                      to_vector(second.targets));
  });

  m.def("classification_report", [](const std::vector<int64_t>& y_true, const std::vector<int64_t>& y_pred,
                                    const std::vector<std::string>& names, int digits) {
    const auto report = classification_report(y_true, y_pred, names);
    const auto scores = [](const ClassScores& s) { return std::tuple(s.precision, s.recall, s.f1, s.support); };
    std::vector<std::tuple<double, double, double, int64_t>> classes;
    for (const ClassScores& s : report.classes) classes.push_back(scores(s));
    return std::tuple(report.to_text(digits), report.accuracy, classes, scores(report.macro_avg),
                      scores(report.weighted_avg), report.confusion);
  });

  using Column = std::vector<double>;
  // std::vector<bool> is not an array of bool.
  const auto of_flags = [](const std::vector<int>& values, const auto& score) {
    const std::unique_ptr<bool[]> flags(new bool[values.size()]);
    std::ranges::copy(values, flags.get());
    return score(std::span<const bool>(flags.get(), values.size()));
  };
  m.def("roc_auc", [=](const std::vector<int>& is_positive, const Column& scores) {
    return of_flags(is_positive, [&](auto flags) { return roc_auc(flags, scores); });
  });
  m.def("average_precision", [=](const std::vector<int>& is_positive, const Column& scores) {
    return of_flags(is_positive, [&](auto flags) { return average_precision(flags, scores); });
  });
  m.def("expected_calibration_error", [=](const Column& confidences, const std::vector<int>& is_right, int64_t bins) {
    return of_flags(is_right,
                    [&](auto flags) { return expected_calibration_error(calibration_bins(confidences, flags, bins)); });
  });
  m.def("entity_report", [](const std::vector<std::vector<std::string>>& is,
                            const std::vector<std::vector<std::string>>& predicted) {
    EntityCounts counts;
    const auto views = [](const auto& names) { return std::vector<std::string_view>(names.begin(), names.end()); };
    for (size_t i = 0; i < is.size(); ++i) counts.add(views(is[i]), views(predicted[i]));
    return counts.report().to_text(4);
  });
  m.def("pearson", [](const Column& x, const Column& y) { return pearson(x, y); });
  m.def("spearman", [](const Column& x, const Column& y) { return spearman(x, y); });
  m.def("mean_squared_error", [](const Column& x, const Column& y) { return mean_squared_error(x, y); });

  // All that an evaluation measures, by name, and the report.
  m.def("evaluate", [](const std::string& problem_type, const at::Tensor& outputs, const at::Tensor& targets,
                       const std::vector<std::string>& names) {
    const auto task = task_of(problem_type, names);
    const Evaluation evaluation = task->evaluate(outputs, targets);
    std::map<std::string, double> scores(evaluation.details.begin(), evaluation.details.end());
    for (size_t i = 0; i < evaluation.metrics.size(); ++i) scores[task->metrics()[i].name] = evaluation.metrics[i];
    scores["loss"] = evaluation.loss;
    return std::tuple(scores, evaluation.report);
  });
  m.def("tuned_shift", [](const at::Tensor& outputs, const at::Tensor& targets, const std::vector<std::string>& names) {
    return task_of("multi_label_classification", names)->tune(outputs, targets).scaling.shift;
  });
}
