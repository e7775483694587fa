#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "mezzo/text/report/comparison.h"
#include "text/io/words.h"
#include "text/report/html.h"
#include "text/report/svg_chart.h"

namespace mezzo::text {
namespace {

using Look = ChartSeries::Look;

/// @param smooths  whether it is averaged over steps, where all runs have enough of them
template <class Value>
Chart step_chart(std::span<const ComparedRun> runs, std::string title, bool smooths, const Value& value) {
  smooths &= std::ranges::all_of(runs, [](const auto& run) { return run.records.steps.size() >= kLeastStepsToSmooth; });
  Chart chart;
  chart.title = std::move(title);
  chart.unit = smooths ? "smoothed" : "";
  for (size_t i = 0; i < runs.size(); ++i) {
    ChartSeries series{.name = runs[i].name, .look = Look::kLine, .color = static_cast<int>(i) + 1, .x = {}, .y = {}};
    for (const StepRecord& step : runs[i].records.steps) {
      series.x.push_back(static_cast<double>(step.step));
      series.y.push_back(value(step));
    }
    if (smooths) {
      series = smoothed(series);
      series.name = runs[i].name;
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

/// @param metric  "" for the loss
Chart dev_chart(std::span<const ComparedRun> runs, const std::string& metric) {
  Chart chart;
  chart.title = "Dev " + (metric.empty() ? std::string("loss") : metric);
  std::ranges::replace(chart.title, '_', ' ');
  chart.from_zero = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    ChartSeries series{.name = runs[i].name, .look = Look::kPoints, .color = static_cast<int>(i) + 1, .x = {}, .y = {}};
    for (const EvalRecord& eval : runs[i].records.evals) {
      if (eval.split != "dev" || eval.is_final) continue;
      const auto found = std::ranges::find(eval.metrics, metric, &std::pair<std::string, double>::first);
      series.x.push_back(static_cast<double>(eval.step));
      series.y.push_back(metric.empty() ? eval.loss : found == eval.metrics.end() ? kNan : found->second);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

/// The metric by which the first run that was evaluated chose its best model.
std::string first_metric(std::span<const ComparedRun> runs) {
  for (const ComparedRun& run : runs) {
    for (const EvalRecord& eval : run.records.evals) {
      if (!eval.metrics.empty()) return eval.metrics.front().first;
    }
  }
  return "";
}

std::string render_curves(std::span<const ComparedRun> runs) {
  std::vector<Chart> charts = {step_chart(runs, "Training loss", true, [](const auto& step) { return step.loss; })};
  charts.front().scale = Chart::Scale::kLogIfWide;
  const auto has_dev = [](const EvalRecord& eval) { return eval.split == "dev"; };
  if (std::ranges::any_of(runs, [&](const auto& run) { return std::ranges::any_of(run.records.evals, has_dev); })) {
    charts.push_back(dev_chart(runs, ""));
    if (const std::string metric = first_metric(runs); !metric.empty()) charts.push_back(dev_chart(runs, metric));
  }
  charts.push_back(step_chart(runs, "Learning rate", false, [](const auto& step) { return step.lr; }));
  charts.push_back(step_chart(runs, "Gradient norm", true, [](const auto& step) { return step.grad_norm; }));
  charts.back().scale = Chart::Scale::kLogIfWide;
  charts.push_back(step_chart(runs, "Tokens per second", true, [](const auto& step) {
    return step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : kNan;
  }));
  std::string out = "<section><h2>Curves</h2><div class=\"charts\">\n";
  for (const Chart& chart : charts) out += render_chart(chart);
  return out + "</div></section>\n";
}

std::string render_table(std::span<const ComparedRun> runs,
                         const std::string& heading,
                         std::span<const ComparedValues> rows) {
  std::string out = fmt::format("<section><h2>{}</h2>{}", escape_html(heading), scroll_region(heading));
  if (rows.empty()) return out + "<p class=\"unit\">None.</p></div></section>\n";
  out += "<table class=\"pairs\"><thead><tr><th></th>";
  for (const ComparedRun& run : runs) out += "<th scope=\"col\">" + escape_html(run.name) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& [name, values] : rows) {
    out += "<tr><th scope=\"row\">" + escape_html(name) + "</th>";
    for (const std::string& value : values) out += "<td>" + escape_html(value) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></section>\n";
}

std::string render_tested(std::span<const ComparedRun> runs, const TestedRuns& tested) {
  auto rows = tested.rows();
  ComparedValues differences{tested.metrics.front().title + " beyond the first", {""}}, chances{"p", {""}};
  for (const PairedTest& test : tested.differences) {
    differences.values.push_back(to_string(test.difference));
    chances.values.push_back(fmt::format("{:.3g}", test.p_value));
  }
  rows.push_back(std::move(differences));
  rows.push_back(std::move(chances));
  return render_table(runs, tested.heading(), rows) +
         fmt::format("<p class=\"unit\">In brackets 95 % of {}. p: two-sided permutation test over the texts.</p>\n",
                     counted(tested.resamples, "bootstrap sample"));
}

}  // namespace

std::string render_comparison(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested) {
  TORCH_CHECK_VALUE(runs.size() >= 2 && runs.size() <= kMostComparedRuns, "render_comparison: 2 to ", kMostComparedRuns,
                    " runs, got ", runs.size());
  std::string body = fmt::format("<h1>{} compared</h1>\n", counted(static_cast<int64_t>(runs.size()), "run"));
  body += "<p class=\"sub\">";
  for (size_t i = 0; i < runs.size(); ++i) {
    body += fmt::format("<span class=\"key line c{}\">{}</span> ", i + 1, escape_html(runs[i].name));
  }
  body += "</p>\n";
  body += render_table(runs, "Settings that differ", differing_settings(runs));
  body += render_table(runs, "Machines and programs that differ", differing_environments(runs));
  if (tested) body += render_tested(runs, *tested);
  body += render_table(runs, "Outcomes", outcomes(runs));
  body += render_curves(runs);
  body += "<footer>Made by mezzo. Hover over a curve for its values.</footer>\n";
  return render_page("Runs compared", body);
}

}  // namespace mezzo::text
