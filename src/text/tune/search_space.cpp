#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "mezzo/text/tune/search.h"

namespace mezzo::text {

std::string SearchedSetting::value_at(double share) const {
  if (!values.empty()) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size()))];
  }
  const double above = is_whole ? high + 1 : high;
  const double number = is_log ? low * std::pow(above / low, share) : low + share * (above - low);
  if (is_whole) {
    return fmt::format("{}", static_cast<int64_t>(std::clamp(std::floor(number), low, high)));
  }
  constexpr double kNarrow = 0.1;  // of its end: a range of which three digits would leave few values
  const bool is_narrow = high - low < kNarrow * std::max(std::abs(low), std::abs(high));
  const std::string text = is_narrow ? fmt::format("{:.6g}", number) : fmt::format("{:.3g}", number);
  const double rounded = std::stod(text);
  return rounded < low || rounded > high ? fmt::format("{}", std::clamp(rounded, low, high)) : text;
}

std::vector<double> search_rungs(const SearchOptions& options) {
  std::vector<double> shares = {1};
  while (options.halving > 1 && trials_of_rung(options, shares.size() - 1) > 1) {
    const double share = shares.front() / static_cast<double>(options.halving);
    if (share < options.least_share) {
      break;
    }
    shares.insert(shares.begin(), share);
  }
  return shares;
}

int64_t trials_of_rung(const SearchOptions& options, size_t rung) {
  int64_t trials = options.trials;
  for (size_t i = 0; i < rung; ++i) {
    trials = (trials + options.halving - 1) / options.halving;
  }
  return trials;
}

std::string to_string(const Trial::Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

std::vector<Trial> draw_trials(const SearchOptions& options) {
  constexpr int kAttempts = 20'000;  // in a row that give nothing new, after which there is nothing left
  std::mt19937_64 random(options.seed);
  const auto share = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<Trial> trials;
  std::set<Trial::Settings> drawn;
  for (int attempt = 0; attempt < kAttempts && std::ssize(trials) < options.trials; ++attempt) {
    Trial trial;
    for (const SearchedSetting& setting : options.settings) {
      trial.settings.emplace_back(setting.name, setting.value_at(share()));
    }
    if (drawn.insert(trial.settings).second) {
      trial.number = std::ssize(trials) + 1;
      trials.push_back(std::move(trial));
      attempt = 0;
    }
  }
  return trials;
}

}  // namespace mezzo::text
