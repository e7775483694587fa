#pragma once

#include <array>
#include <string_view>
#include <vector>

namespace mezzo::text {

struct ProblemType {
  std::string_view name;
  std::string_view architecture;  ///< what ends the name of transformers' class: "Bert" + this
  bool is_in_config = true;       ///< whether config.json has it as problem_type, which distinguishes the problem types
                                  ///< of texts
};

/// Problem types with a Task, which make_task() makes.
constexpr std::array<ProblemType, 4> kProblemTypes = {{{"single_label_classification", "ForSequenceClassification"},
                                                       {"multi_label_classification", "ForSequenceClassification"},
                                                       {"regression", "ForSequenceClassification"},
                                                       {"token_classification", "ForTokenClassification", false}}};

/// @param of_config  leaves out types that config.json does not have.
inline std::vector<std::string_view> problem_type_names(bool of_config = false) {
  std::vector<std::string_view> names;
  for (const ProblemType& type : kProblemTypes) {
    if (type.is_in_config || !of_config) names.push_back(type.name);
  }
  return names;
}

}  // namespace mezzo::text
