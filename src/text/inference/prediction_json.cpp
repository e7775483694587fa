#include "mezzo/text/inference/prediction_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(std::monostate) { return nullptr; }
Json to_json(double value) { return value; }
Json to_json(const std::string& value) { return value; }
Json to_json(const std::vector<std::string>& values) { return values; }
Json to_json(const std::vector<std::optional<std::string>>& values) {
  auto json = Json::array();
  for (const auto& value : values) {
    json.push_back(value ? Json(*value) : Json());
  }
  return json;
}
Json to_json(const std::vector<EntityPrediction>& entities) {
  auto json = Json::array();
  for (const auto& [entity_group, score, word, start, end] : entities) {
    json.push_back({{"entity_group", entity_group}, {"score", score}, {"word", word}, {"start", start}, {"end", end}});
  }
  return json;
}
Json to_json(const std::vector<std::pair<std::string, double>>& values) {
  Json::object_t by_name;  // filled without a search for each of the names, which differ
  for (const auto& [name, value] : values) {
    by_name.emplace_back(name, value);
  }
  return by_name;
}

/// The outputs of a text. For words, the outputs of their first tokens, null without tokens.
/// @param word_ids  as of TokenizedTexts; none if the outputs are the text's.
Json logits_of(const at::Tensor& outputs, std::span<const int32_t> word_ids, size_t num_words) {
  const auto row = [](const at::Tensor& numbers) {
    return std::vector<float>(numbers.const_data_ptr<float>(), numbers.const_data_ptr<float>() + numbers.numel());
  };
  if (word_ids.empty()) {
    return row(outputs);
  }
  Json::array_t words(num_words);
  for (size_t token = word_ids.size(); token-- > 0;) {
    if (word_ids[token] >= 0) {
      words[static_cast<size_t>(word_ids[token])] = row(outputs[static_cast<int64_t>(token)]);
    }
  }
  return words;
}

/// @param logits  the model's outputs for it; null to leave them out.
std::string to_line(const TextSpans& rows, size_t row, const Prediction& prediction, Json logits) {
  Json json = {{"text", rows.texts[row]}};
  if (!rows.text_pairs.empty()) {
    json["text_pair"] = rows.text_pairs[row];
  }
  for (const auto& [name, value] : prediction) {
    json[name] = std::visit([](const auto& v) { return to_json(v); }, value);
  }
  if (!logits.is_null()) {
    json["logits"] = std::move(logits);
  }
  std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!rows.others.empty() && !rows.others[row].empty()) {
    line.pop_back();  // the brace
    line += ",\"columns\":" + rows.others[row] + "}";
  }
  return line;
}

}  // namespace

std::vector<std::string> predictions_as_json(const Task& task,
                                             const TextSpans& rows,
                                             const at::Tensor& outputs,
                                             Rows<int32_t> word_ids,
                                             const PredictionOptions& options,
                                             bool logits) {
  const bool has_words = task.head().rows == RowsPer::kToken;
  if (!has_words) word_ids = {};
  const auto predictions = task.predictions(outputs, {rows.texts, rows.words, word_ids}, options);
  std::vector<std::string> lines;
  lines.reserve(predictions.size());
  for (size_t i = 0; i < predictions.size(); ++i) {
    const auto of_text = has_words ? std::span<const int32_t>(word_ids[i]) : std::span<const int32_t>();
    const size_t num_words = has_words ? rows.words[i].size() : 0;
    lines.push_back(to_line(rows, i, predictions[i],
                            logits ? logits_of(outputs[static_cast<int64_t>(i)], of_text, num_words) : Json()));
  }
  return lines;
}

}  // namespace mezzo::text
