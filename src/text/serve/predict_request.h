#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// A client's request to a model.
struct PredictRequest {
  std::string model = {};  ///< by its name; empty if the request names none
  std::vector<std::string> texts = {};
  std::vector<std::string> text_pairs = {};  ///< as many, or none where texts stand alone
  bool is_many = false;                      ///< whether an array is the answer
  PredictionOptions options = {};
  bool logits = false;
};

/// Reads the body of a request: an object with `text` or `texts`, and the fields in docs/serving.md.
/// @throws c10::ValueError  that describes the error.
PredictRequest parse_predict_request(std::string_view body);

}  // namespace mezzo::text
