#include "mezzo/text/report/report.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <numeric>

#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/report/chart_axis.h"
#include "text/report/confusion_table.h"
#include "text/report/diagnosis_section.h"
#include "text/report/html.h"
#include "text/report/run_sections.h"
#include "text/report/svg_chart.h"

namespace mezzo::text {
namespace {

using Look = ChartSeries::Look;
using Steps = std::vector<StepRecord>;

constexpr size_t kMostEvaluations = 200;

// ---- Curves

template <class Function>
ChartSeries step_series(std::string name, Look look, const Steps& steps, Function&& value) {
  ChartSeries series{.name = std::move(name), .look = look, .color = 1, .x = {}, .y = {}};
  for (const StepRecord& step : steps) {
    series.x.push_back(static_cast<double>(step.step));
    series.y.push_back(value(step));
  }
  return series;
}

/// Of the evaluations on dev.
template <class Function>
ChartSeries eval_series(const std::vector<EvalRecord>& evals, std::string name, int color, Function&& value) {
  ChartSeries series{.name = std::move(name), .look = Look::kPoints, .color = color, .x = {}, .y = {}};
  for (const EvalRecord& eval : evals) {
    if (eval.split == "dev" && !eval.is_final) {
      series.x.push_back(static_cast<double>(eval.step));
      series.y.push_back(value(eval));
    }
  }
  return series;
}

double value_of(const EvalRecord& eval, const MetricInfo& metric) {
  const auto found = std::ranges::find(eval.metrics, metric.name, &std::pair<std::string, double>::first);
  return found == eval.metrics.end() ? kNan : found->second;
}

/// The values of the steps as they are and, if there are enough to hide the
/// trend, their average over them.
template <class Function>
std::vector<ChartSeries> noisy_series(const std::string& name, const Steps& steps, Function&& value) {
  ChartSeries raw = step_series(name, Look::kThin, steps, value);
  if (steps.size() < kLeastStepsToSmooth) {
    raw.look = Look::kLine;
    return {raw};
  }
  ChartSeries average = smoothed(raw);
  return {std::move(raw), std::move(average)};
}

template <class Predicate>
std::vector<double> steps_where(const Steps& steps, Predicate&& predicate) {
  std::vector<double> found;
  for (const StepRecord& step : steps) {
    if (predicate(step)) {
      found.push_back(static_cast<double>(step.step));
    }
  }
  return found;
}

double rate(double amount, const StepRecord& step) { return step.seconds > 0 ? amount / step.seconds : kNan; }

Chart loss_chart(const ReportInput& input) {
  Chart chart;
  chart.title = "Loss";
  chart.scale = Chart::Scale::kLogIfWide;
  chart.series = noisy_series("train", input.steps, [](const StepRecord& step) { return step.loss; });
  chart.series.push_back(eval_series(input.evals, "dev", 2, [](const EvalRecord& eval) { return eval.loss; }));
  chart.marks = steps_where(input.steps, [](const StepRecord& step) { return !std::isfinite(step.loss); });
  chart.mark_name = "non-finite value";
  return chart;
}

/// The evaluation on dev that the best model was chosen by, or null.
const EvalRecord* best_eval(const ReportInput& input) {
  const auto found = std::find_if(input.evals.rbegin(), input.evals.rend(), [&](const EvalRecord& eval) {
    return eval.split == "dev" && !eval.is_final && eval.step == input.best_step;
  });
  return found == input.evals.rend() ? nullptr : &*found;
}

/// The metric that the best model was chosen by, and other metrics of the same unit.
Chart metric_chart(const ReportInput& input) {
  const MetricInfo& first = input.metrics.front();
  const double unit = first.is_share ? 100 : 1;
  Chart chart;
  chart.title = "Dev " + first.title;
  chart.unit = first.is_share ? "%" : "";
  chart.from_zero = false;
  if (!input.steps.empty()) {  // the same steps as in the other charts
    chart.x_range = {static_cast<double>(input.steps.front().step), static_cast<double>(input.steps.back().step)};
  }
  int color = 2;
  for (const MetricInfo& metric : input.metrics) {
    if (metric.is_share == first.is_share) {
      chart.series.push_back(eval_series(input.evals, metric.title, color,
                                         [&](const EvalRecord& eval) { return unit * value_of(eval, metric); }));
      color = color == 2 ? 3 : 2;  // the page has three, and the best model's point the first
    }
  }
  if (const EvalRecord* best = best_eval(input)) {
    chart.series.push_back({.name = "best model",
                            .look = Look::kPoints,
                            .color = 1,
                            .x = {static_cast<double>(best->step)},
                            .y = {unit * value_of(*best, first)}});
  }
  return chart;
}

Chart single_chart(std::string title, std::string unit, std::vector<ChartSeries> series) {
  Chart chart;
  chart.title = std::move(title);
  chart.unit = std::move(unit);
  chart.series = std::move(series);
  return chart;
}

Chart loss_scale_chart(const Steps& steps) {
  Chart chart = single_chart(
      "Loss scale", "",
      {step_series("loss scale", Look::kSteps, steps, [](const StepRecord& step) { return step.loss_scale; })});
  chart.scale = Chart::Scale::kLog2;
  chart.marks = steps_where(steps, [](const StepRecord& step) { return step.skipped; });
  chart.mark_name = "skipped step";
  return chart;
}

Chart grad_norm_chart(const Steps& steps) {
  Chart chart = single_chart("Gradient norm", "",
                             noisy_series("norm", steps, [](const StepRecord& step) { return step.grad_norm; }));
  chart.scale = Chart::Scale::kLogIfWide;
  chart.marks = steps_where(steps, [](const StepRecord& step) { return !std::isfinite(step.grad_norm); });
  chart.mark_name = "non-finite value";
  return chart;
}

std::string render_curves(const ReportInput& input) {
  const Steps& steps = input.steps;
  if (steps.empty() && input.evals.empty()) {
    return "";
  }
  std::vector<Chart> charts = {loss_chart(input)};
  if (!input.metrics.empty()) {
    charts.push_back(metric_chart(input));
  }
  charts.push_back(
      single_chart("Learning rate", "",
                   {step_series("learning rate", Look::kLine, steps, [](const StepRecord& step) { return step.lr; })}));
  charts.push_back(grad_norm_chart(steps));
  const bool scales = std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.loss_scale != 1; });
  if (scales) {
    charts.push_back(loss_scale_chart(steps));
  }
  charts.push_back(single_chart("Time per step", "seconds",
                                noisy_series("seconds", steps, [](const StepRecord& step) { return step.seconds; })));
  charts.push_back(single_chart("Samples per second", "", noisy_series("samples/s", steps, [](const StepRecord& step) {
                                  return rate(static_cast<double>(step.samples), step);
                                })));
  charts.push_back(
      single_chart("Tokens per second", "without padding", noisy_series("tokens/s", steps, [](const StepRecord& step) {
                     return rate(static_cast<double>(step.tokens), step);
                   })));
  std::string out = "<div class=\"charts\">\n";
  for (const Chart& chart : charts) {
    out += render_chart(chart);
  }
  return section("Training", out + "</div>");
}

// ---- Headline

struct Number {
  std::string name;
  std::string value;
  std::string detail;
};

std::string format_bytes(int64_t bytes) {
  return bytes < 1000000000 ? fmt::format("{:.0f} MB", static_cast<double>(bytes) / 1e6)
                            : fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

std::string format_rate(double value) { return std::isfinite(value) ? format_number(value) : "–"; }

template <class Value>
double total_of(const Steps& steps, Value StepRecord::* value) {
  return std::accumulate(steps.begin(), steps.end(), 0.0,
                         [=](double sum, const StepRecord& step) { return sum + static_cast<double>(step.*value); });
}

/// What tells most of the model that the run leaves: the final evaluation, else the
/// best so far, else the last.
const EvalRecord* telling_eval(const ReportInput& input) {
  const auto final = std::find_if(input.evals.rbegin(), input.evals.rend(), [](const auto& e) { return e.is_final; });
  if (final != input.evals.rend()) {
    return &*final;
  }
  const EvalRecord* best = best_eval(input);
  return best != nullptr || input.evals.empty() ? best : &input.evals.back();
}

std::string format_metric(const EvalRecord& eval, const MetricInfo& metric) {
  const double value = value_of(eval, metric);
  return metric.is_share ? format_share(value) : format_number(value);
}

/// "Macro F1"
std::string as_heading(std::string title) {
  title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
  return title;
}

/// Of the share `right` of `all` texts, at 95 %.
/// @see Wilson, Probable inference, the law of succession, and statistical inference (1927)
std::pair<double, double> wilson_interval(int64_t right, int64_t all) {
  constexpr double z = 1.959963984540054;  // the normal distribution's quantile at 0.975
  const auto n = static_cast<double>(all);
  const double p = static_cast<double>(right) / n, z2 = z * z / n;
  const double middle = p + z2 / 2, half = z * std::sqrt(p * (1 - p) / n + z2 / (4 * n));
  return {std::max((middle - half) / (1 + z2), 0.0), std::min((middle + half) / (1 + z2), 1.0)};
}

/// Accuracy means more beside its interval, and beside the accuracy of the most frequent label for all texts.
void add_baseline(std::vector<Number>& numbers, size_t accuracy, const ReportInput& input) {
  const auto& matrix = input.confusion_matrix;
  int64_t all = 0, right = 0, most = 0;
  size_t majority = 0;
  for (size_t label = 0; label < matrix.size(); ++label) {
    const int64_t texts = std::accumulate(matrix[label].begin(), matrix[label].end(), int64_t{0});
    if (texts > most) majority = label;
    most = std::max(most, texts);
    all += texts;
    right += matrix[label][label];
  }
  if (all == 0) return;
  const auto [low, high] = wilson_interval(right, all);
  numbers[accuracy].detail = fmt::format("95 % interval: {} to {}", format_share(low), format_share(high));
  const std::string name = majority < input.label_names.size() ? input.label_names[majority] : std::to_string(majority);
  numbers.insert(numbers.begin() + static_cast<ptrdiff_t>(accuracy) + 1,
                 {"Majority baseline", format_share(static_cast<double>(most) / static_cast<double>(all)),
                  "always predicting " + std::string(truncate_to_width(printable(name), 40))});
}

void add_quality(std::vector<Number>& numbers, const ReportInput& input) {
  const EvalRecord* eval = telling_eval(input);
  if (eval == nullptr) {
    for (const MetricInfo& metric : input.metrics) {
      numbers.push_back({as_heading(metric.title), "–", "not evaluated"});
    }
    return;
  }
  const std::string split = eval->split == "test" ? "Test" : eval->split == "dev" ? "Dev" : eval->split;
  std::vector<std::string> details = {"model of step " + format_count(eval->step), "loss " + format_number(eval->loss)};
  details.resize(std::max(details.size(), input.metrics.size()));
  for (size_t i = 0; i < input.metrics.size(); ++i) {
    numbers.push_back({split + " " + input.metrics[i].title, format_metric(*eval, input.metrics[i]), details[i]});
  }
  const auto accuracy = std::ranges::find(input.metrics, "accuracy", &MetricInfo::name);
  if (eval->is_final && accuracy != input.metrics.end()) {
    add_baseline(numbers, static_cast<size_t>(accuracy - input.metrics.begin()), input);
  }
  if (input.best_step && !input.metrics.empty()) {
    const MetricInfo& first = input.metrics.front();
    const EvalRecord* best = best_eval(input);
    numbers.push_back(
        {input.end ? "Best step" : "Best step so far", format_count(*input.best_step),
         best != nullptr ? "dev " + first.title + " " + format_metric(*best, first) : "by dev " + first.title});
  }
}

void add_speed(std::vector<Number>& numbers, const ReportInput& input) {
  const Steps& steps = input.steps;
  const auto& end = input.end;
  const double seconds = total_of(steps, &StepRecord::seconds);
  const auto per_second = [&](double amount) { return seconds > 0 ? amount / seconds : kNan; };
  const EndRecord run = end.value_or(EndRecord{.steps = static_cast<int64_t>(steps.size()),
                                               .minutes = seconds / 60,
                                               .samples_per_second = per_second(total_of(steps, &StepRecord::samples)),
                                               .tokens_per_second = per_second(total_of(steps, &StepRecord::tokens)),
                                               .peak_memory_bytes = 0});
  const bool goes_on = !end && input.notice.empty();
  const std::string so_far = goes_on ? " so far" : "";
  numbers.push_back({"Training time", duration_in_words(60 * run.minutes),
                     format_count(run.steps) + (run.steps == 1 ? " step" : " steps") + so_far});
  numbers.push_back(
      {"Samples per second", format_rate(run.samples_per_second), format_rate(run.tokens_per_second) + " tokens/s"});
  const std::string missing = goes_on ? "run has not ended" : "not recorded";
  numbers.push_back({"Peak memory", end ? format_bytes(run.peak_memory_bytes) : "–", end ? "" : missing});
}

void add_skipped(std::vector<Number>& numbers, const Steps& steps) {
  const auto skipped = std::count_if(steps.begin(), steps.end(), [](const auto& step) { return step.skipped; });
  std::string detail = "no steps recorded";
  if (!steps.empty()) {
    const double share = static_cast<double>(skipped) / static_cast<double>(steps.size());
    detail = (skipped > 0 && share < 0.001 ? "under 0.1 %" : format_share(share)) + " of " +
             format_count(static_cast<long long>(steps.size()));
  }
  numbers.push_back({"Skipped steps", format_count(skipped), detail});
}

std::string render_headline(const ReportInput& input) {
  std::vector<Number> numbers;
  add_quality(numbers, input);
  add_speed(numbers, input);
  add_skipped(numbers, input.steps);
  std::string out = "<section class=\"headline\">\n";
  for (const Number& number : numbers) {
    out += "<div class=\"number\"><div class=\"name\">" + escape_html(number.name) + "</div><div class=\"value\">" +
           escape_html(number.value) + "</div><div class=\"detail\">" + escape_html(number.detail) + "</div></div>\n";
  }
  return out + "</section>\n";
}

// ---- Tables

using Pairs = ReportInput::Pairs;

std::string render_rows(const Pairs& pairs) {
  std::string out = "<tbody>\n";
  for (const auto& [name, value] : pairs) {
    out += "<tr><th scope=\"row\">" + escape_html(name) + "</th><td>" + escape_html(value) + "</td></tr>\n";
  }
  return out + "</tbody>";
}

std::string pairs_table(const Pairs& pairs) { return "<table class=\"pairs\">" + render_rows(pairs) + "</table>"; }

std::string render_pairs(const std::string& heading, const Pairs& pairs) {
  return pairs.empty() ? "" : section(heading, "<div class=\"card\">" + pairs_table(pairs) + "</div>");
}

/// Settings that the user chose; the others are folded away.
std::string render_settings(const ReportInput& input) {
  Pairs chosen, others;
  for (const auto& setting : input.settings) {
    const bool is_default = std::ranges::find(input.default_settings, setting) != input.default_settings.end();
    (is_default ? others : chosen).push_back(setting);
  }
  if (input.settings.empty()) {
    return "";
  }
  std::string body = chosen.empty() ? "" : pairs_table(chosen);
  if (!others.empty()) {
    body += fmt::format("<details><summary>{}</summary>{}</details>", counted(std::ssize(others), "default setting"),
                        pairs_table(others));
  }
  return section("Settings", "<div class=\"card\">" + body + "</div>");
}

std::string code_block(const std::string& name, const std::string& text) {
  return scroll_region(name, "scroll") + "<pre>" + escape_html(text) + "</pre></div>\n";
}

std::string render_commands(const ReportInput& input) {
  std::string body;
  for (const auto& [purpose, command] : input.commands) {
    body += "<h3>" + escape_html(purpose) + "</h3><pre class=\"wrap\">" + escape_with_flags(command) + "</pre>\n";
  }
  return body.empty() ? "" : section("Commands", "<div class=\"card\">" + body + "</div>");
}

std::string render_evaluations(const ReportInput& input) {
  const auto& evals = input.evals;
  if (evals.empty()) {
    return "";
  }
  std::string out = scroll_region("Evaluations");
  const size_t first = evals.size() - std::min(evals.size(), kMostEvaluations);
  if (first > 0) {
    out += fmt::format("<p class=\"unit\">The last {} of {}.</p>", kMostEvaluations, evals.size());
  }
  std::vector<std::string> heads = {"step", "split", "loss"};
  for (const MetricInfo& metric : input.metrics) heads.push_back(metric.title);
  heads.emplace_back("seconds");
  out += table_head(heads);
  const EvalRecord* best = best_eval(input);
  for (size_t i = first; i < evals.size(); ++i) {
    const EvalRecord& eval = evals[i];
    out += fmt::format("<tr{}><td>{}{}</td><td>{}{}</td><td>{}</td>", &eval == best ? " class=\"best\"" : "",
                       format_count(eval.step), &eval == best ? ", the best" : "", escape_html(eval.split),
                       eval.is_final ? ", final" : "", format_number(eval.loss));
    for (const MetricInfo& metric : input.metrics) {
      out += "<td>" + format_metric(eval, metric) + "</td>";
    }
    out += fmt::format("<td>{}</td></tr>\n", format_rate(eval.seconds));
  }
  return section("Evaluations", out + "</tbody></table></div>");
}

/// Accuracy over confidence, beside the line of perfect calibration.
Chart calibration_chart(const std::vector<CalibrationBin>& bins) {
  Chart chart =
      single_chart("Accuracy by confidence", "%",
                   {{.name = "perfect calibration", .look = Look::kThin, .color = 3, .x = {0, 100}, .y = {0, 100}},
                    {.name = "accuracy", .look = Look::kPoints, .color = 1, .x = {}, .y = {}}});
  chart.x_name = "confidence, %";
  for (const CalibrationBin& bin : bins) {
    if (bin.rows > 0) {
      chart.series.back().x.push_back(100 * bin.confidence);
      chart.series.back().y.push_back(100 * bin.accuracy);
    }
  }
  return chart;
}

std::string render_quality(const ReportInput& input) {
  std::string parts;
  const auto add = [&](const char* heading, const std::string& body) {
    if (!body.empty()) {
      parts += std::string("<section><h3>") + heading + "</h3>" + body + "</section>\n";
    }
  };
  const auto card = [](const std::string& body) {
    return body.empty() ? "" : "<div class=\"card\">" + body + "</div>";
  };
  if (!input.confusion_matrix.empty()) {
    add("Confusion matrix", card(render_confusion(input.confusion_matrix, input.label_names)));
    add("Labels", card(render_labels(input.confusion_matrix, input.label_names)));
    add("Most confused", card(render_most_confused(input.confusion_matrix, input.label_names)));
  }
  add("Most confident mistakes", card(render_misread(input)));
  if (!input.calibration.empty()) {
    add("Calibration", render_chart(calibration_chart(input.calibration)));
  }
  if (!input.evaluation_report.empty()) {
    add("Classification report", card("<details><summary>As text</summary>" +
                                      code_block("Classification report", input.evaluation_report) + "</details>"));
  }
  const std::string of = input.evaluated.empty() ? "" : " of " + escape_html(input.evaluated);
  return parts.empty() ? "" : section("Quality" + of, "\n<div class=\"quality\">\n" + parts + "</div>\n");
}

std::string subtitle(const ReportInput& input) {
  const Steps& steps = input.steps;
  const std::string when = input.when.empty() ? "" : escape_html(input.when) + " · ";
  if (steps.empty()) {
    return when + "no steps recorded";
  }
  return fmt::format("{}{} step{} · {} samples · {} tokens · {} epoch{}", when,
                     format_number(static_cast<double>(steps.size())), steps.size() == 1 ? "" : "s",
                     format_number(total_of(steps, &StepRecord::samples)),
                     format_number(total_of(steps, &StepRecord::tokens)), format_number(steps.back().epoch),
                     steps.back().epoch == 1 ? "" : "s");
}

void check(const ReportInput& input) {
  const size_t size = input.confusion_matrix.size();
  for (const auto& row : input.confusion_matrix) {
    TORCH_CHECK_VALUE(row.size() == size, "render_report: the confusion matrix must be square, got a row of ",
                      row.size(), " in a matrix of ", size, " rows.");
  }
}

}  // namespace

std::string render_report(const ReportInput& input) {
  check(input);
  const std::string notice =
      input.notice.empty() ? "" : "<p class=\"card notice\">" + escape_html(input.notice) + "</p>\n";
  const std::string body = render_commands(input) + render_curves(input) + render_skipped(input) +
                           render_diagnoses(input.diagnoses) + render_quality(input) + render_evaluations(input) +
                           render_time(input) + render_training_data(input) + render_notes(input) +
                           "<div class=\"columns\">\n" + render_settings(input) +
                           render_pairs("Environment", input.environment) + "</div>\n";
  return render_page(
      input.title + (input.when.empty() ? "" : ", " + input.when),
      "<h1>" + escape_html(input.title) + "</h1>\n<p class=\"sub\">" + subtitle(input) + "</p>\n" + notice +
          render_warnings(input) + render_headline(input) + contents(body) + body +
          "<footer>Made by mezzo. Hover over a curve or a cell for its values. The values of a chart are "
          "also below it.</footer>\n");
}

}  // namespace mezzo::text
