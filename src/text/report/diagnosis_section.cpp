#include "text/report/diagnosis_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "text/report/chart_axis.h"
#include "text/report/findings.h"
#include "text/report/html.h"
#include "text/report/svg_chart.h"

namespace mezzo::text {
namespace {

using Diagnoses = std::vector<DiagnoseRecord>;

constexpr size_t kMostFindings = 100;
constexpr int kMostDoublings = 24;
constexpr int kLeastHalf = -25;    // smaller values become 0 in float16: below 2^-25
constexpr int kGreatestHalf = 16;  // 2^16 and larger values become inf

const DiagnoseRecord* last_gradients(const Diagnoses& diagnoses) {
  const auto found =
      std::find_if(diagnoses.rbegin(), diagnoses.rend(), [](const auto& record) { return record.kind == "gradients"; });
  return found == diagnoses.rend() ? nullptr : &*found;
}

GradientExponents total_of(const std::vector<GradientExponents>& groups) {
  GradientExponents total;
  for (const GradientExponents& group : groups) {
    for (size_t i = 0; i < total.counts.size(); ++i) {
      total.counts[i] += group.counts[i];
    }
  }
  return total;
}

/// What float16 would make of the gradients at each power of two as loss scale, in percent.
Chart scale_chart(const GradientExponents& total) {
  ChartSeries lost{.name = "become 0", .look = ChartSeries::Look::kLine, .color = 2, .x = {}, .y = {}};
  ChartSeries coarse{.name = "subnormal", .look = ChartSeries::Look::kLine, .color = 1, .x = {}, .y = {}};
  ChartSeries overflowing{.name = "overflow", .look = ChartSeries::Look::kLine, .color = 3, .x = {}, .y = {}};
  const auto all = std::max<double>(1, static_cast<double>(total.nonzero()));
  for (int doublings = 0; doublings <= kMostDoublings; ++doublings) {
    int64_t too_large = 0;
    for (int e = kGreatestHalf - doublings; e <= GradientExponents::kHighest; ++e) {
      too_large += total.count(e);
    }
    lost.y.push_back(100 * total.share_lost(std::exp2(doublings)));
    coarse.y.push_back(100 * total.share_subnormal(std::exp2(doublings)));
    overflowing.y.push_back(100 * static_cast<double>(too_large) / all);
    for (ChartSeries* series : {&lost, &coarse, &overflowing}) {
      series->x.push_back(doublings);
    }
  }
  Chart chart;
  chart.title = "In float16";
  chart.unit = "% of them, by log2 of the loss scale";
  chart.x_name = "log2 scale";
  chart.series = {std::move(lost), std::move(coarse), std::move(overflowing)};
  return chart;
}

/// Percent of all non-zero gradients, by exponent, with the ends of float16 at the scale marked.
Chart exponent_chart(const DiagnoseRecord& gradients, const GradientExponents& total) {
  const auto all = std::max<double>(1, static_cast<double>(total.nonzero()));
  const int shift =
      std::isfinite(gradients.loss_scale) && gradients.loss_scale > 0 ? std::ilogb(gradients.loss_scale) : 0;
  int low = kLeastHalf - shift;
  int high = kGreatestHalf - shift;
  Chart chart;
  chart.title = "Gradient magnitudes";
  chart.unit = "% of those not 0, by power of two";
  chart.x_name = "exponent";
  chart.marks = {static_cast<double>(low), static_cast<double>(high)};
  chart.mark_name = "float16 limit";
  for (int e = GradientExponents::kLowest; e <= GradientExponents::kHighest; ++e) {
    if (total.count(e) > 0) {
      low = std::min(low, e - 1);
      high = std::max(high, e + 1);
    }
  }
  ChartSeries series{.name = "percent", .look = ChartSeries::Look::kLine, .color = 1, .x = {}, .y = {}};
  for (int e = std::max(low, GradientExponents::kLowest); e <= std::min(high, GradientExponents::kHighest); ++e) {
    series.x.push_back(e);
    series.y.push_back(100 * static_cast<double>(total.count(e)) / all);
  }
  chart.series.push_back(std::move(series));
  return chart;
}

std::string percent(double share) { return share > 0 && share < 1e-3 ? "< 0.1 %" : format_share(share); }

/// A sentence of what speaks against the scale, if anything.
std::string objection_to(const DiagnoseRecord& gradients) {
  const bool is_scale = std::isfinite(gradients.loss_scale) && gradients.loss_scale > 0;
  std::string text = is_scale ? advise_scale(gradients.groups, gradients.loss_scale).objection() : "";
  if (!text.empty()) {
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    text = " <b>" + escape_html(text) + (text.ends_with("…") ? "" : ".") + "</b>";
  }
  return text;
}

std::string render_groups(const DiagnoseRecord& gradients) {
  const std::string objection = objection_to(gradients);
  std::string out =
      fmt::format("{}<p class=\"unit\">Loss scale {}; recommended for float16: {}.{}</p>{}", scroll_region("Gradients"),
                  format_number(gradients.loss_scale), format_number(gradients.recommended_scale), objection,
                  table_head({"gradients of", "largest", "zero", "lost unscaled", "lost at this scale", "subnormal",
                              "doublings to 65504"}));
  for (const GradientExponents& group : gradients.groups) {
    const auto all = static_cast<double>(group.nonzero() + group.zeros + group.non_finite);
    const double scale = gradients.loss_scale > 0 ? gradients.loss_scale : 1;
    const double headroom = group.headroom(scale);
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                       escape_html(group.name), format_number(group.largest),
                       percent(all > 0 ? static_cast<double>(group.zeros) / all : 0), percent(group.share_lost(1)),
                       percent(group.share_underflowed(scale)), percent(group.share_subnormal(scale)),
                       std::isfinite(headroom) ? format_number(headroom) : "–");
  }
  return out + "</tbody></table></div>\n";
}

std::string render_findings(const Diagnoses& diagnoses) {
  const auto findings = findings_of(diagnoses);
  if (findings.empty()) {
    return "<div class=\"card\">No step was skipped, and traced steps had no inf or NaN.</div>\n";
  }
  const size_t first = findings.size() - std::min(findings.size(), kMostFindings);
  std::string out = "<div class=\"card\">";
  if (first > 0) {
    out += fmt::format("<p class=\"unit\">The last {} of {} findings.</p>", kMostFindings, findings.size());
  }
  for (size_t i = first; i < findings.size(); ++i) {
    const DiagnoseRecord& record = findings[i].first;
    const std::string alike = findings[i].steps() == 1 ? ""
                                                       : fmt::format("; the same up to step {}, loss scale {}",
                                                                     format_count(findings[i].last_step),
                                                                     format_number(findings[i].last_scale));
    out += fmt::format("<p class=\"unit\">step {}, loss scale {}{}: {}</p><pre>{}</pre>\n", format_count(record.step),
                       format_number(record.loss_scale), alike,
                       record.kind == "first_op" ? "where it began"
                       : record.kind == "cause"  ? "why"
                                                 : "what overflowed",
                       escape_html(record.text));
  }
  return out + "</div>\n";
}

}  // namespace

std::string render_diagnoses(const Diagnoses& diagnoses) {
  if (diagnoses.empty()) {
    return "";
  }
  std::string out;
  if (const DiagnoseRecord* gradients = last_gradients(diagnoses)) {
    const auto total = total_of(gradients->groups);
    out += "<div class=\"charts\">" + render_chart(exponent_chart(*gradients, total)) +
           render_chart(scale_chart(total)) + "</div>\n" + render_groups(*gradients);
  }
  return section("Numerical diagnosis", out + render_findings(diagnoses));
}

}  // namespace mezzo::text
