#include "text/serve/predict_request.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "text/io/json.h"
#include "text/io/known_value.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::json;

/// "an array", "null".
std::string kind_of(const Json& value) {
  const std::string name = value.type_name();
  if (value.is_null()) return name;
  return (value.is_structured() ? "an " : "a ") + name;
}

std::string string_of(const Json& value, const std::string& name) {
  TORCH_CHECK_VALUE(value.is_string(), name, " is ", kind_of(value), ", expected a string");
  return value.get<std::string>();
}

std::vector<std::string> strings_of(const Json& values, const std::string& name) {
  TORCH_CHECK_VALUE(values.is_array(), name, " is ", kind_of(values), ", expected an array of strings");
  std::vector<std::string> strings;
  strings.reserve(values.size());
  for (const Json& value : values) {
    strings.push_back(string_of(value, name + "[" + std::to_string(strings.size()) + "]"));
  }
  return strings;
}

PredictionOptions options_of(const Json& body) {
  PredictionOptions options;
  if (const auto top_k = body.find("top_k"); top_k != body.end()) {
    TORCH_CHECK_VALUE(top_k->is_number_unsigned() && *top_k >= 1 && *top_k <= std::numeric_limits<int64_t>::max(),
                      "top_k is ", top_k->dump(), ", expected a whole number of at least 1");
    options.top_k = top_k->get<int64_t>();
  }
  if (const auto min_score = body.find("min_score"); min_score != body.end()) {
    TORCH_CHECK_VALUE(min_score->is_number() && *min_score >= 0 && *min_score <= 1, "min_score is ", min_score->dump(),
                      ", expected a number from 0 to 1");
    options.min_score = min_score->get<double>();
  }
  return options;
}

}  // namespace

PredictRequest parse_predict_request(std::string_view body) {
  const Json json = parse_json(body, "the body: ");
  TORCH_CHECK_VALUE(json.is_object(), "the body is ", kind_of(json),
                    R"(, expected an object as {"text": "…"} or {"texts": ["…", "…"]})");
  for (const auto& [name, value] : json.items()) {
    check_known("the body: the member", name,
                {"text", "text_pair", "texts", "text_pairs", "model", "top_k", "min_score", "logits"});
  }
  PredictRequest request;
  request.is_many = json.contains("texts");
  TORCH_CHECK_VALUE(json.contains("text") != request.is_many, "the body has ",
                    request.is_many ? "both text and texts" : "neither text nor texts", "; send one of them");
  const char* const other_pair = request.is_many ? "text_pair" : "text_pairs";
  TORCH_CHECK_VALUE(!json.contains(other_pair), "the body has ", other_pair, " beside ",
                    request.is_many ? "texts; rename it to text_pairs" : "text; rename it to text_pair");
  if (request.is_many) {
    request.texts = strings_of(json["texts"], "texts");
    if (json.contains("text_pairs")) request.text_pairs = strings_of(json["text_pairs"], "text_pairs");
    TORCH_CHECK_VALUE(!json.contains("text_pairs") || request.text_pairs.size() == request.texts.size(),
                      "the body has ", request.texts.size(), " texts and ", request.text_pairs.size(),
                      " text_pairs; send equal numbers");
  } else {
    request.texts = {string_of(json["text"], "text")};
    if (json.contains("text_pair")) request.text_pairs = {string_of(json["text_pair"], "text_pair")};
  }
  if (json.contains("model")) {
    request.model = string_of(json["model"], "model");
    TORCH_CHECK_VALUE(!request.model.empty(), "model is empty, expected a name");
  }
  if (json.contains("logits")) {
    TORCH_CHECK_VALUE(json["logits"].is_boolean(), "logits is ", kind_of(json["logits"]), ", expected true or false");
    request.logits = json["logits"].get<bool>();
  }
  request.options = options_of(json);
  return request;
}

}  // namespace mezzo::text
