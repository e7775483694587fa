#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "mezzo/text/tune/search.h"

namespace mezzo::text {

std::string SearchedSetting::value_at(double share) const {
  if (!values.empty()) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size()))];
  }
  const double above = is_whole ? high + 1 : high;
  const double number = is_log ? low * std::pow(above / low, share) : low + share * (above - low);
  return is_whole ? fmt::format("{}", static_cast<int64_t>(std::clamp(std::floor(number), low, high)))
                  : fmt::format("{:.3g}", number);
}

std::vector<double> search_rungs(const SearchOptions& options) {
  std::vector<double> shares = {1};
  int64_t left = options.trials;
  while (options.halving > 1 && left > 1) {
    const double share = shares.front() / static_cast<double>(options.halving);
    if (share < options.least_share) {
      break;
    }
    shares.insert(shares.begin(), share);
    left = (left + options.halving - 1) / options.halving;
  }
  return shares;
}

std::vector<Trial> draw_trials(const SearchOptions& options) {
  constexpr int kAttempts = 1000;  // in a row that give nothing new, after which there is nothing left
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
