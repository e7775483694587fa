#include "text/tune/results_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/json.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kStates = {"waiting", "dropped", "finished", "failed"};

Json to_json_object(const Trial::Settings& settings) {
  Json json = Json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

Json to_json(const Trial& trial, const std::string& metric) {
  Json scores = Json::array();
  for (const auto& score : trial.scores) {
    scores.push_back({{"share", score.share},
                      {"step", score.step},
                      {metric, score.value},
                      {"loss", score.loss},
                      {"seconds", score.seconds}});
  }
  Json json = {{"trial", trial.number},
               {"state", kStates.at(static_cast<size_t>(trial.state))},
               {"settings", to_json_object(trial.settings)},
               {"scores", std::move(scores)}};
  if (!trial.message.empty()) json["error"] = trial.message;
  return json;
}

double number_or_nan(const nlohmann::json& json) { return json.is_null() ? std::nan("") : json.get<double>(); }

/// Takes state, scores and message of the trial in the file.
void read_trial(const nlohmann::json& json, const std::string& metric, Trial& trial) {
  const auto state = std::ranges::find(kStates, json.at("state"));
  trial.state = static_cast<Trial::State>(state - kStates.begin());
  trial.message = json.value("error", "");
  for (const auto& score : json.at("scores")) {
    trial.scores.push_back({.share = score.at("share"),
                            .step = score.at("step"),
                            .value = number_or_nan(score.at(metric)),
                            .loss = number_or_nan(score.at("loss")),
                            .seconds = score.at("seconds")});
  }
}

void check_recipe(const std::string& file, const nlohmann::json& recorded, const Trial::Settings& recipe) {
  const auto then = recorded.get<std::map<std::string, std::string>>();
  const std::map<std::string, std::string> now(recipe.begin(), recipe.end());
  const auto shown = [](const std::map<std::string, std::string>& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? "not set" : in_one_line("'" + found->second + "'");
  };
  for (const auto& both : {then, now}) {
    for (const auto& [name, value] : both) {
      TORCH_CHECK_VALUE(shown(then, name) == shown(now, name), file, ": the search began with ", in_one_line(name), " ",
                        shown(then, name), ", which is now ", shown(now, name),
                        ". Restore the setting to continue, or pass another --output.");
    }
  }
}

}  // namespace

void write_results(const std::filesystem::path& file, const Trial::Settings& recipe, const SearchResult& result) {
  Json trials = Json::array();
  for (const Trial& trial : result.trials) trials.push_back(to_json(trial, result.metric));
  const Json json = {{"finished", result.finished},
                     {"metric", result.metric},
                     {"greater_is_better", result.greater_is_better},
                     {"recipe", to_json_object(recipe)},
                     {"trials", std::move(trials)}};
  write_file_atomically(file, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

SearchResult read_results(const std::filesystem::path& file,
                          const Trial::Settings& recipe,
                          const std::vector<Trial>& drawn) {
  const auto json = read_json_object(file);
  try {
    check_recipe(file.string(), json.at("recipe"), recipe);
    SearchResult result{json.at("finished"), json.at("metric"), json.at("greater_is_better"), drawn};
    const auto& trials = json.at("trials");
    for (Trial& trial : result.trials) {
      const auto found = std::ranges::find_if(trials, [&](const auto& one) { return one.at("trial") == trial.number; });
      TORCH_CHECK_VALUE(trials.size() == drawn.size() && found != trials.end() &&
                            found->at("settings") == nlohmann::json(to_json_object(trial.settings)),
                        file.string(), ": trial ", trial.number,
                        " has other settings than this search draws. Pass another --output.");
      read_trial(*found, result.metric, trial);
      TORCH_CHECK_VALUE(static_cast<size_t>(trial.state) < kStates.size(), file.string(), ": trial ", trial.number,
                        " has an unknown state. Restore the file, or pass another --output.");
    }
    return result;
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, file.string(), ": is not a record of a search: ", in_one_line(error.what()),
                      ". Restore the file, or pass another --output.");
  }
}

}  // namespace mezzo::text
