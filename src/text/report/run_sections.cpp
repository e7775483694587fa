#include "text/report/run_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "text/report/chart_axis.h"
#include "text/report/html.h"
#include "text/words/printable.h"
#include "text/words/words.h"

namespace mezzo::text {
namespace {

constexpr size_t kMostSkipped = 100;  // rows of the table
constexpr size_t kTextColumns = 300;  // of a text, behind which it is cut

std::string cut(const std::string& text) {
  const std::string line = printable(text);
  const auto beginning = truncate_to_width(line, kTextColumns);
  return std::string(beginning) + (beginning.size() < line.size() ? " …" : "");
}

std::string number(double value) { return std::isfinite(value) ? format_number(value) : "not finite"; }

/// What the scale was after a step, as the next one has it.
std::string scale_after(const std::vector<StepRecord>& steps, size_t step) {
  return step + 1 < steps.size() ? number(steps[step + 1].loss_scale) : "–";
}

std::string cause_of(const std::vector<StepRecord>& steps, size_t i) {
  const auto begin = steps.begin(), step = begin + static_cast<ptrdiff_t>(i);
  const auto is_taken = [](const StepRecord& one) { return !one.skipped; };
  if (!std::isfinite(step->loss)) {
    return "the loss itself was not finite: the forward pass overflowed, or its input was wrong";
  }
  const auto next = std::find_if(step, steps.end(), is_taken);
  if (next == steps.end()) {
    return "gradients were not finite, and no later step was taken";
  }
  if (next->loss_scale >= step->loss_scale) {
    return "gradients were not finite, whatever the scale";
  }
  return std::none_of(begin, step, is_taken)
             ? "the scale that the run begins with was too high for its gradients"
             : "the scale was too high: gradients overflowed, and with a lower one they did not";
}

}  // namespace

std::string render_time(const ReportInput& input) {
  std::vector<double> steps, evaluations;
  for (const StepRecord& step : input.steps) steps.push_back(step.seconds);
  for (const EvalRecord& eval : input.evals) evaluations.push_back(eval.seconds);
  if (steps.empty() || !input.end) {
    return "";
  }
  const double of_steps = std::accumulate(steps.begin(), steps.end(), 0.0),
               of_evaluations = std::accumulate(evaluations.begin(), evaluations.end(), 0.0);
  const double all = std::max(60 * input.end->minutes, of_steps + of_evaluations);
  if (!(all > 0) || !std::isfinite(all)) {
    return "";
  }
  double of_parts = 0;
  auto sorted = steps;
  std::ranges::sort(sorted);
  const auto row = [&](const char* name, double seconds, const std::string& detail, const char* attributes = "") {
    return fmt::format(
        "<tr{}><th scope=\"row\">{}</th><td>{}</td><td class=\"bar\" style=\"--w:{:.1f}%\">{:.1f} %</td>"
        "<td>{}</td></tr>\n",
        attributes, name, seconds < 0.05 ? "0.0 s" : duration_in_words(seconds), 100 * seconds / all,
        100 * seconds / all, detail);
  };
  const auto part = [&](const char* name, double StepParts::* seconds, const std::string& detail) {
    double sum = 0;
    for (const StepRecord& step : input.steps) sum += (*step.parts).*seconds;
    of_parts += sum;
    return row(name, sum, detail, " class=\"part\"");
  };
  std::string parts;
  if (std::ranges::all_of(input.steps, [](const StepRecord& step) { return step.parts.has_value(); })) {
    parts = part("forward", &StepParts::forward, "and the loss") +
            part("backward", &StepParts::backward, "with what it does not hide of the exchange of gradients") +
            part("update of the weights", &StepParts::update, "look at the gradients, and the optimizer") +
            part("batches", &StepParts::batch, "texts chosen and packed");
    parts += row("rest of the steps", std::max(of_steps - of_parts, 0.0), "agreeing with other processes",
                 " class=\"part\"");
  }
  return "<section><h2>Where the time went</h2>" + scroll_region("Where the time went") +
         "<table class=\"pairs labels wide\"><tbody>\n" +
         row("training steps", of_steps,
             fmt::format("{}, the median {:.3g} s, the longest {:.3g} s", counted(std::ssize(steps), "step"),
                         sorted[sorted.size() / 2], sorted.back())) +
         parts + row("evaluations", of_evaluations, counted(std::ssize(evaluations), "evaluation")) +
         row("all else", std::max(all - of_steps - of_evaluations, 0.0), "saving, records, progress, waiting") +
         "</tbody></table></div></section>\n";
}

std::string render_skipped(const ReportInput& input) {
  std::string rows;
  size_t count = 0;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const StepRecord& step = input.steps[i];
    if (!step.skipped || count++ >= kMostSkipped) continue;
    rows +=
        fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>\n",
                    format_count(step.step), number(step.loss), number(step.loss_scale), scale_after(input.steps, i),
                    cause_of(input.steps, i));
  }
  if (count == 0) {
    return "";
  }
  const std::string some =
      count > kMostSkipped ? fmt::format("<p class=\"unit\">The first {} of {}.</p>", kMostSkipped, count) : "";
  return "<section><h2>Skipped steps</h2>" + scroll_region("Skipped steps") + some +
         "<table class=\"pairs wide\"><thead><tr><th scope=\"col\">step</th><th scope=\"col\">loss</th>"
         "<th scope=\"col\">loss scale</th><th scope=\"col\">after</th><th "
         "scope=\"col\">cause</th></tr></thead><tbody>\n" +
         rows +
         "</tbody></table></div><p class=\"unit\">Skipped steps leave the weights as they were. --diagnose names the "
         "op "
         "and the gradients that overflow.</p></section>\n";
}

std::string render_notes(const ReportInput& input) {
  std::string items;
  for (const std::string& note : input.notes) {
    constexpr std::string_view kWarning = "warning: ";
    const bool warns = note.starts_with(kWarning);
    items += fmt::format("<li>{}{}</li>\n", warns ? "<b class=\"bad\">warning</b> " : "",
                         escape_html(warns ? note.substr(kWarning.size()) : note));
  }
  return items.empty() ? ""
                       : "<section><h2>Data and model</h2><div class=\"card\"><ul class=\"notes\">\n" + items +
                             "</ul></div></section>\n";
}

std::string render_misread(const ReportInput& input) {
  if (input.misread.empty()) {
    return "";
  }
  std::string rows;
  for (const auto& [text, label, predicted, score, before, after] : input.misread) {
    const bool is_word = !before.empty() || !after.empty();
    const auto names = [](const std::string& list) { return list.empty() ? "–" : escape_html(list); };
    rows += fmt::format("<tr><td class=\"text\">{}{}{}{}{}</td><td>{}</td><td>{}</td><td>{:.3f}</td></tr>\n",
                        escape_html(printable(before)), is_word ? " <b>" : "", escape_html(cut(text)),
                        is_word ? "</b> " : "", escape_html(printable(after)), names(label), names(predicted), score);
  }
  return scroll_region("Surest mistakes", "scroll") +
         "<table class=\"pairs\"><thead><tr><th scope=\"col\">text</th><th "
         "scope=\"col\">label</th>"
         "<th scope=\"col\">predicted</th><th scope=\"col\">score</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div>\n";
}

}  // namespace mezzo::text
