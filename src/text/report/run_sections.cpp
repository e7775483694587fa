#include "text/report/run_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/report/chart_axis.h"
#include "text/report/html.h"

namespace mezzo::text {
namespace {

constexpr size_t kMostSkipped = 100;        // rows of the table
constexpr size_t kMostTrainingLabels = 60;  // of the training data
constexpr size_t kTextColumns = 300;        // of a text, behind which it is cut
constexpr std::string_view kWarning = "warning: ";

std::string cut(const std::string& text) {
  const std::string line = printable(text);
  const auto beginning = truncate_to_width(line, kTextColumns);
  return std::string(beginning) + (beginning.size() < line.size() ? " …" : "");
}

std::string number(double value) { return std::isfinite(value) ? format_number(value) : "not finite"; }

/// The scale after a step, as the next step has it.
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
    return "gradients were not finite at any scale";
  }
  return std::none_of(begin, step, is_taken)
             ? "the initial scale was too high for the gradients"
             : "the scale was too high: gradients overflowed, but not with a lower scale";
}

using NamedCounts = std::vector<std::pair<std::string, int64_t>>;

/// The counts with bars, the largest as wide as its cell, and their shares of `total`.
std::string count_table(const std::string& title,
                        const std::string& name,
                        const NamedCounts& counts,
                        const std::string& unit,
                        int64_t total) {
  const int64_t most = std::ranges::max(counts, {}, &NamedCounts::value_type::second).second;
  const auto share = [](int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
  };
  std::string rows;
  for (const auto& [what, count] : counts) {
    rows += "<tr><th scope=\"row\">" + escape_html(what) + "</th>" + bar_cell(share(count, most), format_count(count)) +
            "<td>" + format_share(share(count, total)) + "</td></tr>\n";
  }
  return "<section><h3>" + title + "</h3>" + scroll_region(title) +
         table_head({name, unit, "share"}, "pairs labels wide") + rows + "</tbody></table></div></section>\n";
}

/// In at most twelve classes of equal width.
NamedCounts histogram(const std::vector<int64_t>& lengths) {
  constexpr int64_t kMostBins = 12;
  const int64_t longest = std::ranges::max(lengths);
  int64_t width = 1;
  while (width * kMostBins <= longest) width *= 2;
  NamedCounts counts;
  for (int64_t bin = 0; bin * width <= longest; ++bin) {
    counts.emplace_back(width == 1 ? std::to_string(bin) : fmt::format("{} to {}", bin * width, (bin + 1) * width - 1),
                        0);
  }
  for (const int64_t length : lengths) ++counts[static_cast<size_t>(length / width)].second;
  return counts;
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
    return fmt::format("<tr{}><th scope=\"row\">{}</th><td>{}</td>{}<td>{}</td></tr>\n", attributes, name,
                       seconds < 0.05 ? "0.0 s" : duration_in_words(seconds),
                       bar_cell(seconds / all, format_share(seconds / all)), detail);
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
            part("backward", &StepParts::backward, "and the all-reduce of gradients that backward does not hide") +
            part("update of the weights", &StepParts::update, "check and clipping of gradients, and the optimizer") +
            part("batches", &StepParts::batch, "selection and packing of texts");
    parts += row("rest of the steps", std::max(of_steps - of_parts, 0.0), "waiting for other ranks", " class=\"part\"");
  }
  return section(
      "Time", scroll_region("Time") + "<table class=\"pairs labels wide\"><tbody>\n" +
                  row("training steps", of_steps,
                      fmt::format("{}, the median {} s, the longest {} s", counted(std::ssize(steps), "step"),
                                  format_number(sorted[sorted.size() / 2]), format_number(sorted.back()))) +
                  parts + row("evaluations", of_evaluations, counted(std::ssize(evaluations), "evaluation")) +
                  row("other", std::max(all - of_steps - of_evaluations, 0.0), "saving, records, progress, waiting") +
                  "</tbody></table></div>");
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
  return section("Skipped steps",
                 scroll_region("Skipped steps") + some +
                     table_head({"step", "loss", "loss scale", "after", "cause"}, "pairs wide") + rows +
                     "</tbody></table></div><p class=\"unit\">Skipped steps do not change the weights. --diagnose "
                     "names the op and the gradients that overflow.</p>");
}

std::string render_warnings(const ReportInput& input) {
  std::string items;
  const auto add = [&](std::string_view text) { items += "<li>" + escape_with_flags(text) + "</li>\n"; };
  for (const WarningRecord& warning : input.warnings) add(warning.text);
  for (const std::string_view note : input.notes) {
    if (note.starts_with(kWarning)) add(note.substr(kWarning.size()));
  }
  return items.empty() ? ""
                       : "<div class=\"card notice\"><b class=\"bad\">Warnings</b><ul class=\"notes\">\n" + items +
                             "</ul></div>\n";
}

std::string render_notes(const ReportInput& input) {
  std::string items;
  for (const std::string& note : input.notes) {
    if (!note.starts_with(kWarning)) items += "<li>" + escape_with_flags(note) + "</li>\n";
  }
  return items.empty() ? "" : section("Notes", "<div class=\"card\"><ul class=\"notes\">\n" + items + "</ul></div>");
}

std::string render_training_data(const ReportInput& input) {
  NamedCounts labels;
  for (size_t i = 0; i < input.train_counts.size(); ++i) {
    labels.emplace_back(i < input.label_names.size() ? input.label_names[i] : std::to_string(i), input.train_counts[i]);
  }
  std::ranges::stable_sort(labels, std::ranges::greater(), &NamedCounts::value_type::second);
  std::string body;
  if (labels.size() > kMostTrainingLabels) {
    body = fmt::format("<p class=\"unit\">The {} most frequent of {} labels.</p>", kMostTrainingLabels, labels.size());
    labels.resize(kMostTrainingLabels);
  }
  std::string tables;
  const int64_t texts = std::ssize(input.train_lengths);
  if (!labels.empty()) {
    const auto& counts = input.train_counts;
    tables += count_table("Training labels", "label", labels, input.labels_words ? "words" : "texts",
                          input.labels_words ? std::accumulate(counts.begin(), counts.end(), int64_t{0}) : texts);
  }
  if (texts > 0) tables += count_table("Text lengths", "tokens", histogram(input.train_lengths), "texts", texts);
  return tables.empty() ? "" : section("Training data", body + "<div class=\"columns\">\n" + tables + "</div>");
}

std::string render_misread(const ReportInput& input) {
  if (input.misread.empty()) {
    return "";
  }
  std::string rows;
  for (const auto& [text, label, predicted, score, before, after, place] : input.misread) {
    const bool is_word = !before.empty() || !after.empty();
    const auto names = [](const std::string& list) { return list.empty() ? "–" : escape_html(list); };
    rows += fmt::format(
        "<tr><td class=\"text\">{}{}{}{}{}</td><td>{}</td><td>{}</td><td>{}</td><td title=\"{}\">{}</td></tr>\n",
        escape_html(printable(before)), is_word ? " <b>" : "", escape_html(cut(text)), is_word ? "</b> " : "",
        escape_html(printable(after)), names(label), names(predicted), format_share(score), escape_html(place),
        escape_html(place.substr(place.rfind('/') + 1)));
  }
  return scroll_region("Most confident mistakes", "scroll") +
         table_head({"text", "label", "predicted", "score", "file and line"}) + rows + "</tbody></table></div>\n";
}

}  // namespace mezzo::text
