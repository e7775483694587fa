#pragma once

#include <array>
#include <string_view>
#include <vector>

namespace mezzo::text {

struct ProblemType {
  std::string_view name;          ///< in config.json
  std::string_view architecture;  ///< what ends the name of transformers' class: "Bert" + this
};

/// Those that there is a Task for, which make_task() makes.
constexpr std::array<ProblemType, 3> kProblemTypes = {{{"single_label_classification", "ForSequenceClassification"},
                                                       {"multi_label_classification", "ForSequenceClassification"},
                                                       {"regression", "ForSequenceClassification"}}};

inline std::vector<std::string_view> problem_type_names() {
  std::vector<std::string_view> names;
  for (const ProblemType& type : kProblemTypes) {
    names.push_back(type.name);
  }
  return names;
}

}  // namespace mezzo::text
