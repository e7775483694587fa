#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "mezzo/text/tasks/scores.h"
#include "mezzo/text/tune/search.h"
#include "text/io/words.h"
#include "text/report/html.h"
#include "text/report/svg_chart.h"

namespace mezzo::text {
namespace {

std::string score_text(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "–"; }

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// How good each trial was after each part of the training, by number.
Chart score_chart(const SearchResult& result, const std::vector<double>& rungs) {
  Chart chart;
  chart.title = result.metric;
  std::ranges::replace(chart.title, '_', ' ');
  chart.x_name = "trial";
  chart.from_zero = false;
  auto trials = result.trials;
  std::ranges::sort(trials, {}, &Trial::number);
  for (size_t rung = 0; rung < rungs.size(); ++rung) {
    ChartSeries series{.name = "after " + percent(rungs[rung]),
                       .look = ChartSeries::Look::kScatter,
                       .color = static_cast<int>(rung) % 8 + 1,
                       .x = {},
                       .y = {}};
    for (const Trial& trial : trials) {
      if (trial.scores.size() > rung) {
        series.x.push_back(static_cast<double>(trial.number));
        series.y.push_back(trial.scores[rung].value);
      }
    }
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

std::string render_trials(const SearchOptions& options, const SearchResult& result, const std::vector<double>& rungs) {
  std::string out = "<section><h2>Trials</h2>" + scroll_region("Trials") +
                    "<table class=\"pairs wide\"><thead><tr>"
                    "<th scope=\"col\">place</th><th scope=\"col\">trial</th>";
  for (const SearchedSetting& setting : options.settings) {
    out += "<th scope=\"col\">" + escape_html(setting.name) + "</th>";
  }
  for (const double share : rungs) {
    out += "<th scope=\"col\">after " + percent(share) + "</th>";
  }
  out += "<th scope=\"col\">time</th><th scope=\"col\"></th></tr></thead><tbody>\n";
  for (size_t place = 0; place < result.trials.size(); ++place) {
    const Trial& trial = result.trials[place];
    out += fmt::format("<tr><td>{}</td><th scope=\"row\">{}</th>", place + 1, trial.number);
    for (const auto& [name, value] : trial.settings) {
      out += "<td>" + escape_html(value) + "</td>";
    }
    double seconds = 0;
    for (size_t rung = 0; rung < rungs.size(); ++rung) {
      const bool is_there = rung < trial.scores.size();
      out += "<td>" + (is_there ? score_text(trial.scores[rung].value) : std::string()) + "</td>";
      seconds += is_there ? trial.scores[rung].seconds : 0;
    }
    constexpr const char* kStateNames[] = {"waiting", "ended early", "trained to the end", "failed: "};
    out += fmt::format("<td>{}</td><td>{}{}</td></tr>\n", seconds > 0 ? duration_in_words(seconds) : "",
                       kStateNames[static_cast<size_t>(trial.state)], escape_html(trial.message));
  }
  return out + "</tbody></table></div></section>\n";
}

std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// What a setting has to do with the score after the first part, which all trials have.
std::string render_effects(const SearchOptions& options, const SearchResult& result) {
  std::string rows;
  for (size_t i = 0; i < options.settings.size(); ++i) {
    std::vector<double> numbers, values;
    std::map<std::string, std::pair<double, int64_t>> by_value;
    for (const Trial& trial : result.trials) {
      if (trial.scores.empty() || !std::isfinite(trial.scores.front().value)) continue;
      const double value = trial.scores.front().value;
      const std::string& text = trial.settings[i].second;
      if (const auto number = number_of(text)) {
        numbers.push_back(*number);
        values.push_back(value);
      }
      auto& [sum, count] = by_value[text];
      sum += value;
      ++count;
    }
    const double correlation = numbers.size() > 2 ? spearman(numbers, values) : std::nan("");
    std::string means;
    constexpr size_t kMostValues = 12;
    for (const auto& [text, sum] : by_value) {
      if (by_value.size() > kMostValues || options.settings[i].values.empty()) break;
      means += fmt::format("{}{}: {} ({})", means.empty() ? "" : "; ", escape_html(text),
                           score_text(sum.first / static_cast<double>(sum.second)), counted(sum.second, "trial"));
    }
    rows +=
        fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>\n", escape_html(options.settings[i].name),
                    std::isfinite(correlation) ? fmt::format("{:+.2f}", correlation) : "–", means);
  }
  return "<section><h2>Effect of the settings</h2>" + scroll_region("Effect of the settings") +
         "<table "
         "class=\"pairs\"><thead><tr><th></th>"
         "<th scope=\"col\">rank correlation</th><th scope=\"col\">mean by value</th></tr></thead><tbody>\n" +
         rows +
         "</tbody></table></div><p class=\"unit\">Spearman's correlation of the setting with the score after the "
         "first part of the training, which all trials have had: from -1 to 1.</p></section>\n";
}

}  // namespace

std::string render_search(const SearchOptions& options, const SearchResult& result) {
  const auto rungs = search_rungs(options);
  std::string body = fmt::format("<h1>{} for {}</h1>\n", counted(std::ssize(result.trials), "trial"),
                                 counted(std::ssize(options.settings), "setting"));
  int64_t begun = 0;
  for (const Trial& trial : result.trials) begun += trial.scores.empty() ? 0 : 1;
  if (!result.finished) {
    body +=
        fmt::format("<p class=\"notice\">The search is unfinished: {} of {} begun. The same command resumes it.</p>\n",
                    counted(begun, "trial"), result.trials.size());
  }
  if (begun > 0) {
    const Trial& best = result.trials.front();
    body += fmt::format("<p class=\"sub\">The best is trial {}: {} {} after {} of its steps, with {}.</p>\n",
                        best.number, escape_html(result.metric), score_text(best.scores.back().value),
                        percent(best.scores.back().share), escape_html(to_string(best.settings)));
    body += "<section><h2>Scores</h2><div class=\"charts\">\n" + render_chart(score_chart(result, rungs)) +
            "</div></section>\n";
    body += render_effects(options, result);
  }
  body += render_trials(options, result, rungs);
  body += "<footer>Made by mezzo. Scores are of the best model so far on dev.</footer>\n";
  return render_page("A search over settings", body);
}

}  // namespace mezzo::text
